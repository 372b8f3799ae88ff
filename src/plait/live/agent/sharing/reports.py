"""Reports in the pages of processes on shared GPUs, in the form for `plait.sharing.decide`."""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from plait.live.agent.journal import Key
from plait.live.agent.sharing.gpu_processes import GpuProcess
from plait.runtime.host_stages import marks_gpu_stages
from plait.runtime.page import Page, PageError, Throttled
from plait.sharing import Device, Reached, Sharer, StepStats
from plait.sharing.memory_state import MemoryState

#: Stands for an unknown memory size of a device: it is not limited.
UNLIMITED_BYTES = 1 << 60
_THROTTLED = frozenset(Throttled) - {Throttled.NOT}
#: The label of steps that are requests to a server, as pages have it.
SERVING = f"{zlib.crc32(b'serving'):08x}"


class Reports:
    """The pages of the processes that run, and which steps in them are known."""

    def __init__(self, capacity_bytes: int) -> None:
        """Open nothing yet. `capacity_bytes`: memory of each GPU; 0: unknown, and not limited then."""
        self._capacity = capacity_bytes
        self._pages: dict[Key, Page] = {}
        self._seen: dict[Key, int] = {}
        self._servers: set[Key] = set()  # whose newest step is labelled as a request

    def open(self, processes: Iterable[GpuProcess]) -> None:
        """Open the pages of new processes, close the others."""
        here = {process.key: process for process in processes if process.alive}
        for key in self._pages.keys() - here.keys():
            self._pages.pop(key).close()
            self._seen.pop(key, None)
            self._servers.discard(key)
        for key in here.keys() - self._pages.keys():
            with contextlib.suppress(PageError, OSError):  # not there yet, or spoilt by its job
                self._pages[key] = Page.open(here[key].page, mapped=False)

    def page(self, process: GpuProcess) -> Page | None:
        """The page of a process that runs; None if it has none that can be read."""
        return self._pages.get(process.key)

    def steps(self, processes: Sequence[GpuProcess]) -> list[StepStats]:
        """New steps of a job, from its first process here; memory counts once per process."""
        page, first, count = self._pages.get(processes[0].key), processes[0].key, len(processes)
        if page is None:
            return []
        steps = page.new_steps(self._seen.get(first, -1))
        if steps:
            self._seen[first] = steps[-1].step
            (self._servers.add if steps[-1].phase == SERVING else self._servers.discard)(first)
        return steps if count == 1 else [_times(step, count) for step in steps]

    def device(self, memory: MemoryState, jobs: Mapping[str, Sequence[GpuProcess]], host: str | None) -> Device:
        """A GPU with these jobs on it; `memory`: the state of the law before, whose directives are in the pages.

        A guest without a report has not allocated anything: it looks for a newer limit after it has reported one.
        """
        capacity = self._capacity or UNLIMITED_BYTES
        reached: dict[str, Reached] = {}
        refused: dict[str, int] = {}
        for name, processes in jobs.items():
            pages = [page for process in processes if (page := self._pages.get(process.key)) is not None]
            known = memory.jobs.get(name)
            if not self._capacity:  # nothing is limited, so all limits are kept
                if known is not None:
                    reached[name] = Reached(known.number, known.cap_bytes)
                continue
            said = [one for page in pages if (one := page.reached(capacity)) is not None]
            if said and len(said) == len(processes):
                least = min(one.number for one in said)
                reached[name] = Reached(least, min(sum(one.limit_bytes for one in said), capacity))
            elif known is not None and (said or any(map(reports_nothing, pages))):  # it has started, and keeps all
                reached[name] = Reached(known.number, known.held_bytes)
            elif known is not None and processes[0].guest:  # it has not started, and will find what it was given last
                reached[name] = Reached(known.number, known.cap_bytes)
            if wanted := sum(int(size) for page in pages if (size := page.number("refused_bytes") or 0.0) > 0):
                refused[name] = wanted
        for name, one in reached.items():
            reached[name] = replace(one, share_number=self._obeyed(jobs[name]))
        sharers = {
            name: Sharer(
                name == host,
                persistent_bytes=self._kept(jobs[name]),
                latency=jobs[name][0].key in self._servers,
                quantum_s=self._quantum_s(jobs[name]),
            )
            for name in jobs
        }
        return Device(capacity, sharers, reached, refused, self._gated(jobs.get(host, ()) if host else ()))

    def _obeyed(self, processes: Sequence[GpuProcess]) -> int | None:
        """The last change of shares that all processes of a job obey; None if one of them does not report it."""
        pages = [self._pages.get(process.key) for process in processes]
        least = min((page.share_reached if page is not None else 0 for page in pages), default=0)
        return least if least > 0 else None

    def _quantum_s(self, processes: Sequence[GpuProcess]) -> float:
        """The longest quantum of the unfinished steps of a job, in seconds, or of steps that their runners throttle."""
        pages = [page for process in processes if (page := self._pages.get(process.key)) is not None]
        words = ["throttle_quantum_s" if process_throttle(page) else "longest_quantum_s" for page in pages]
        found = [page.number(word) or 0.0 for page, word in zip(pages, words, strict=True)]
        return max((seconds for seconds in found if seconds > 0.0), default=0.0)

    def _gated(self, hosts: Sequence[GpuProcess]) -> bool:
        """Whether guests can see when the processes of the guaranteed job are in their GPU stage."""
        pages = [self._pages.get(process.key) for process in hosts]
        return bool(pages) and all(page is not None and marks_gpu_stages(page) for page in pages)

    def _kept(self, processes: Sequence[GpuProcess]) -> int | None:
        """Device memory that a job here keeps from step to step; None if it matters and is unknown."""
        return sum(process.persistent_bytes for process in processes) or (None if self._capacity else 0)


def reports_nothing(page: Page) -> bool:
    """Whether the training library of a process is of the version before; not known before its first step."""
    return not page.library_version and page.steps > 0


def process_throttle(page: Page | None) -> str:
    """How the runner of a process throttles it: the name of a `Throttled` in small letters; "" if it does not."""
    number = 0 if page is None else page.throttle
    return Throttled(number).name.lower() if number in _THROTTLED else ""


def _times(step: StepStats, count: int) -> StepStats:
    """A step of so many processes that all take the same memory."""
    return replace(
        step,
        device_peak_bytes=step.device_peak_bytes * count,
        device_persistent_bytes=step.device_persistent_bytes * count,
        device_reserved_bytes=step.device_reserved_bytes * count,
        host_spill_bytes=step.host_spill_bytes * count,
    )
