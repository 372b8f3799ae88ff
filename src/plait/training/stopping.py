"""Stop a job: a signal or a command of the agent sets a flag, and all ranks act on it at the same step.

SIGTERM (and SIGUSR1) only sets a flag; the job saves and exits at the next step boundary. After a second signal within
the grace period it exits at the next boundary without a checkpoint. With several ranks the flags are all-reduced once
a step by a small asynchronous operation on a separate host-side group: sent at one boundary and read at the next, it
costs tens of microseconds, and all ranks read the same value.
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
from plait.training.process import OwnGroup

if TYPE_CHECKING:
    from plait.training.environment import Environment
    from plait.training.state.checkpoint import Checkpointer

#: Exit code of a process that was preempted and can be resumed.
PREEMPTED = 75


def tell_where_on_quit() -> None:
    """Let SIGQUIT write the stacks of all threads to stderr; the runner sends it to a job that hangs."""
    with contextlib.suppress(AttributeError, OSError, RuntimeError, ValueError):
        faulthandler.register(signal.SIGQUIT, file=sys.__stderr__ or 2, all_threads=True)


class StopFlag:
    """Counts the signals that ask this process to stop."""

    def __init__(self, boundary_missing: Callable[[], bool] = lambda: False) -> None:
        """Start without a request and without handlers. `boundary_missing`: True if no boundary will read the flag."""
        self.level, self._boundary_missing = 0, boundary_missing
        self._before: dict[int, Any] = {}

    def listen(self, *, chain: bool = True) -> None:
        """Install the signal handlers; only the main thread can, so other threads obey the agent's command only.

        `chain`: call earlier handlers, too.
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

    @property
    def script_decides(self) -> bool:
        """True if the script handles SIGTERM itself, so that it may answer a stop with any exit code."""
        handler = signal.getsignal(signal.SIGTERM)
        if handler == self._asked:
            handler = self._before[signal.SIGTERM]
        return callable(handler) and handler is not signal.default_int_handler

    def ignore(self) -> None:
        """Ignore signals from now on: the process is ending."""
        for number in self._before:
            signal.signal(number, signal.SIG_IGN)


class Agreement:
    """Agreement of all ranks at a step boundary: the maximum of their requests at the previous boundary.

    Every rank must call `decide` equally often, which optimizer steps of one job do. Without an initialised
    `torch.distributed` each rank decides for itself.
    """

    def __init__(self, world_size: int) -> None:
        self.world_size = world_size
        self._own: OwnGroup | None = None
        self._sent: Any = None

    def decide(self, stop: int, save: bool) -> tuple[int, bool]:
        """Send this rank's requests; returns what all ranks do now, as (0, 1 or 2; make a checkpoint).

        `stop`: 0 continue, 1 stop after a checkpoint, 2 stop at once; `save`: make a checkpoint.
        """
        dist = sys.modules.get("torch.distributed")
        if self.world_size == 1 or dist is None or not (dist.is_available() and dist.is_initialized()):
            return stop, save
        if self._own is None:
            import torch

            self._sent = torch.zeros(2, dtype=torch.int64)
            self._own = OwnGroup("plait")
        agreed = (0, False)
        if self._own.work is not None:
            self._own.work.wait()
            agreed = (int(self._sent[0]), bool(self._sent[1]))
        self._sent[0], self._sent[1] = stop, int(save)
        self._own.work = dist.all_reduce(self._sent, dist.ReduceOp.MAX, group=self._own.group, async_op=True)
        return agreed


class Boundary:
    """Decides between two iterations whether to stop and whether to make a checkpoint."""

    def __init__(
        self,
        page: Page,
        checkpointer: Checkpointer,
        around: Environment,
        *,
        boundary_missing: Callable[[], bool],
        leaves: Callable[[], bool] = lambda: False,
    ) -> None:
        """Decide for the rank that `around` describes, whose agent writes to `page`.

        `boundary_missing`: True if no boundary can be expected. `leaves`: True if a guest must save and leave its GPU.
        """
        self.stop, self._leaves = StopFlag(boundary_missing), leaves
        self._page, self._checkpointer, self._around = page, checkpointer, around
        self._agreement = Agreement(around.world_size)
        self._saved_s = time.monotonic()
        self._due_sent = False
        self._asked_s: float | None = None

    @property
    def wants_stop(self) -> int:
        """Request of the agent or of a signal: 0 continue, 1 checkpoint and exit, 2 exit."""
        level = max(self.stop.level, min(self._page.stop, STOP_NOW), STOP_GRACEFULLY if self._leaves() else 0)
        if level and self._asked_s is None:
            self._asked_s = time.monotonic()
        return level

    @property
    def asked_for_s(self) -> float:
        """Seconds since a stop request was first noticed; 0 without one."""
        return time.monotonic() - self._asked_s if self._asked_s is not None else 0.0

    def saved(self) -> None:
        """Restart the checkpoint interval: a checkpoint was made, or there is nothing to lose yet."""
        self._saved_s = time.monotonic()

    def decide(self, *, save: bool = False) -> tuple[int, bool]:
        """What all ranks do at this boundary: (stop: 0 no, 1 after a checkpoint, 2 at once; make a checkpoint).

        `save`: make a checkpoint even if the interval has not passed.
        """
        self.stop.listen()
        # Rank 0 decides, since clocks and disks differ; one checkpoint at a time.
        around = self._around
        due = around.rank == 0 and (save or time.monotonic() - self._saved_s >= around.checkpoint_s)
        due = due and not self._checkpointer.busy
        stop, save = self._agreement.decide(self.wants_stop, due and not self._due_sent)
        self._due_sent = due and not save
        return stop, save


def ignore_in_worker(inner: Callable[[int], None] | None, worker: int) -> None:
    """Initialise a loader worker: ignore SIGTERM, or it would die before the job has saved its state.

    A SIGTERM of its parent counts, since multiprocessing ends workers so. Only a thread in `sigwaitinfo` can see the
    sender of a signal. `inner`: the script's own initialiser; `worker`: number of the worker.
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
