"""Apply the limit of GPU memory in the page between two steps, and report the limit that was reached."""

from __future__ import annotations

import math
from collections.abc import Callable

from plait.core.errors import InputError
from plait.runtime.page import Page
from plait.training.sharing.device_memory import DeviceMemory, MemoryUse


class MemoryLimit:
    """Of one process. The GPU is looked for until it is used; a process that uses none has reached every limit."""

    def __init__(
        self,
        page: Page,
        find: Callable[[], DeviceMemory | None],
        *,
        own_process: bool,
        note: Callable[[str], object],
    ) -> None:
        """`own_process`: whether the job has its process to itself; torch's limit is one for the whole process."""
        self._page, self._find, self._own, self._note = page, find, own_process, note
        self._memory: DeviceMemory | None = None
        self._number, self._given_bytes, self._reached_bytes = -1, 0.0, math.inf
        self._applied = False  # to a GPU
        self._refused = self._stepped = False

    @property
    def memory(self) -> DeviceMemory | None:
        """The memory of the GPU, once the process uses one."""
        if self._memory is None and self._own:
            self._memory = self._find()
        return self._memory

    @property
    def given_bytes(self) -> float:
        """The limit that was applied last; infinite: none."""
        return self._given_bytes or math.inf

    @property
    def due(self) -> bool:
        """True if a limit must be applied: a new one, one reached only in part, or the first one on a GPU."""
        page = self._page
        if page.limit_number != self._number or page.memory_limit_bytes != self._given_bytes:
            return True
        late = bool(self._given_bytes) and not self._applied and self.memory is not None
        return late or self._reached_bytes > self.given_bytes

    def act(self, *, guest: bool) -> None:
        """Between two steps: keep to the limit as far as possible and say which was reached.

        A host keeps none before its first step, nor where nothing that it needs beyond can go to the memory of the
        host: then all of the device counts as its own.

        Raises `InputError` for a limit of a `guest` that shares its process: it could not keep to it.
        """
        page = self._page
        self._number, given = page.limit_number, page.memory_limit_bytes
        self._given_bytes = given if 0 < given < math.inf else 0.0
        if self._given_bytes and not self._own:
            self._refuse(guest)
            page.set_reached(self._number, math.inf)
            return
        memory = self.memory
        self._applied = memory is not None
        if memory is None:
            self._reached_bytes = self.given_bytes
        else:
            keeps = guest or (memory.spills and self._stepped)
            self._reached_bytes = memory.bound(self.given_bytes if keeps else math.inf)
        page.set_reached(self._number, self._reached_bytes)

    def end_step(self, *, reset: bool = True) -> MemoryUse:
        """Memory that the step that has ended used; all zero without a GPU. `reset`: begin the peaks of the next."""
        memory, self._stepped = self.memory, True
        return memory.end_step(reset=reset) if memory is not None else MemoryUse()

    def _refuse(self, guest: bool) -> None:
        why = (
            f"a memory limit of {self._given_bytes / 2**30:.2f} GiB cannot be kept by a job that shares its process "
            "(merged): torch's limit is one for the whole process; run the job in a process of its own"
        )
        if guest:
            raise InputError(why)
        if not self._refused:
            self._refused = True
            self._note(why)
