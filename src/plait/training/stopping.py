"""When a job stops: a signal or a word of its agent sets a flag, and all ranks act on it at the same step.

SIGTERM (and SIGUSR1) sets a flag and does nothing else; the next step boundary saves and exits. A second one within the
grace means: exit at the next boundary without a checkpoint. With several ranks the flags are all-reduced once a step by
a small asynchronous operation on a host-side group of its own: sent at one boundary, read at the next, so it costs
tens of microseconds and every rank reads the same.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING, Any

from plait.runtime.page import STOP_GRACEFULLY, STOP_NOW, Page
from plait.training.collectives.process_groups import OwnGroup

if TYPE_CHECKING:
    from plait.training.environment import Environment
    from plait.training.state.checkpoint import Checkpointer

#: Exit code of a process that was preempted and can be resumed.
PREEMPTED = 75


def tell_where_on_quit() -> None:
    """SIGQUIT writes the stacks of all threads to stderr: what the runner wants to know of a job that hangs."""
    with contextlib.suppress(AttributeError, OSError, RuntimeError, ValueError):
        faulthandler.register(signal.SIGQUIT, file=sys.__stderr__ or 2, all_threads=True)


class StopFlag:
    """Counts the signals that ask this process to stop."""

    def __init__(self, boundary_missing: Callable[[], bool] = lambda: False) -> None:
        """Not asked yet, and not listening. `boundary_missing`: whether no boundary will look at the flag."""
        self.level, self._boundary_missing = 0, boundary_missing
        self._before: dict[int, Any] = {}

    def listen(self, *, chain: bool = True) -> None:
        """Install the handlers; only the main thread can, in others the agent's word alone counts.

        `chain`: handlers that were there before are called too.
        """
        if self._before or threading.current_thread() is not threading.main_thread():
            return
        for number in (signal.SIGTERM, signal.SIGUSR1):
            before = signal.signal(number, self._asked)
            self._before[number] = before if chain else None

    def _asked(self, number: int, frame: FrameType | None) -> None:
        self.level = min(self.level + 1, STOP_NOW) if self.level else STOP_GRACEFULLY
        before = self._before.get(number)
        if callable(before) and before is not signal.default_int_handler:
            before(number, frame)  # the script's own handler, installed before ours
        elif self._boundary_missing():
            raise SystemExit(PREEMPTED)

    def ignore(self) -> None:
        """From now on signals do nothing: this process is on its way out."""
        for number in self._before:
            signal.signal(number, signal.SIG_IGN)


class Agreement:
    """What all ranks know at a step boundary: the highest of their wishes at the boundary before.

    Every rank must call `decide` equally often, which optimizer steps of one job do. Without an initialised
    `torch.distributed` each rank decides for itself.
    """

    def __init__(self, world_size: int) -> None:
        """`world_size` ranks in the job."""
        self.world_size = world_size
        self._own: OwnGroup | None = None
        self._sent: Any = None

    def decide(self, stop: int, save: bool) -> tuple[int, bool]:
        """Tell this rank's wishes, get what all ranks do now: (0, 1 or 2; whether to make a checkpoint)."""
        dist = sys.modules.get("torch.distributed")
        if self.world_size == 1 or dist is None or not (dist.is_available() and dist.is_initialized()):
            return stop, save
        if self._own is None:
            self._own = self._join()
        agreed = (0, False)
        if self._own.work is not None:
            self._own.work.wait()
            agreed = (int(self._sent[0]), bool(self._sent[1]))
        self._sent[0], self._sent[1] = stop, int(save)
        self._own.work = dist.all_reduce(self._sent, dist.ReduceOp.MAX, group=self._own.group, async_op=True)
        return agreed

    def _join(self) -> OwnGroup:
        import torch

        self._sent = torch.zeros(2, dtype=torch.int64)
        return OwnGroup("plait")


class Boundary:
    """What is done between two iterations: whether to stop, whether to make a checkpoint."""

    def __init__(
        self, page: Page, checkpointer: Checkpointer, around: Environment, *, boundary_missing: Callable[[], bool]
    ) -> None:
        """Of the rank that `around` describes. `boundary_missing`: whether no boundary can be expected."""
        self.stop = StopFlag(boundary_missing)
        self._page, self._checkpointer, self._around = page, checkpointer, around
        self._agreement = Agreement(around.world_size)
        self._saved_s = time.monotonic()
        self._due_sent = False
        self._asked_s: float | None = None

    @property
    def wants_stop(self) -> int:
        """0 go on, 1 checkpoint and exit, 2 exit: what the agent or a signal asked of this rank."""
        level = max(self.stop.level, min(self._page.stop, STOP_NOW))
        if level and self._asked_s is None:
            self._asked_s = time.monotonic()
        return level

    @property
    def asked_for_s(self) -> float:
        """Seconds since somebody looked and was asked to stop; 0 if nobody was."""
        return time.monotonic() - self._asked_s if self._asked_s is not None else 0.0

    def saved(self) -> None:
        """A checkpoint was made, or there was nothing to lose before now."""
        self._saved_s = time.monotonic()

    def decide(self, *, save: bool = False) -> tuple[int, bool]:
        """What all ranks do at this boundary: stop (0 no, 1 after a checkpoint, 2 at once), make a checkpoint.

        `save`: there is a reason to, beside the time since the last one.
        """
        self.stop.listen()
        # Rank 0 says when, since clocks and disks of the others differ; one at a time.
        around = self._around
        due = around.rank == 0 and (save or time.monotonic() - self._saved_s >= around.checkpoint_s)
        due = due and not self._checkpointer.busy
        stop, save = self._agreement.decide(self.wants_stop, due and not self._due_sent)
        self._due_sent = due and not save
        return stop, save


def ignore_in_worker(inner: Callable[[int], None] | None, worker: int) -> None:
    """What a loader worker does first: no SIGTERM for it, or it dies before the job has saved its state.

    That of its own process counts: multiprocessing ends workers so, and then waits for them. Only a waiting thread is
    told who sent a signal.
    """
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    if hasattr(signal, "sigwaitinfo"):
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        threading.Thread(target=_obey_parent, name="plait-signals", daemon=True).start()
    if inner is not None:
        inner(worker)


def _obey_parent() -> None:
    while signal.sigwaitinfo({signal.SIGTERM}).si_pid != os.getppid():
        pass
    os._exit(0)
