"""The process in which a job runs: it holds the job, ends it, and provides its process group.

A job has its process to itself, unless `plait.training.merged` runs several jobs in one. That package then determines
what `here` returns in its threads, so nothing else in this package depends on it.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import io
import os
import sys
import threading
from collections.abc import Callable
from typing import Any, NoReturn

from plait.training.collectives.process_groups import let_threads_finish


class JobProcess:
    """A process with one job. `job`: its `plait.training.attached_job.AttachedJob`, once it has attached."""

    #: True if torch's memory limit for the process is a limit for the job.
    limits_memory = True

    def __init__(self) -> None:
        """No job has attached."""
        self.job: Any = None
        self._looked_pid = 0
        self._lock_fd: int | None = None
        self._leaves = False

    def looks_first(self) -> bool:
        """True at the first call in this process; a forked child counts as another process."""
        first, self._looked_pid = self._looked_pid != os.getpid(), os.getpid()
        return first

    def attached(self, job: Any, lock_fd: int) -> None:
        """Store the job, and hold the lock by which it is the only one of its rank."""
        self.job, self._lock_fd = job, lock_fd

    def end_with(self, end: Callable[[], object], failed: Callable[[type[BaseException]], object]) -> None:
        """Call `end` when the script ends, and before it `failed` with the type of an uncaught exception."""
        before = sys.excepthook

        def hook(kind: type[BaseException], *exception: Any) -> None:
            failed(kind)
            before(kind, *exception)

        sys.excepthook = hook
        atexit.register(self._finish_quickly)  # the last to run of what is registered from here on
        atexit.register(let_threads_finish)
        atexit.register(end)

    def process_group(self) -> Any:
        """The process group of the job; None: torch.distributed's default one."""
        return None

    @property
    def owns_default_group(self) -> bool:
        """True if torch.distributed's default process group belongs to the job."""
        return True

    def gpu_stage_begins(self) -> None:
        """Note that a GPU stage of the job begins or continues."""

    def _finish_quickly(self) -> None:
        """Spare a job that leaves its GPUs the last two garbage collections, which take most of its exit."""
        if self._leaves:
            flush_files()
            gc.freeze()

    def leave(self, code: int) -> NoReturn:
        """End the job with exit code `code`; may be called in any of its threads."""
        self._leaves = True
        if threading.current_thread() is not threading.main_thread():  # SystemExit would only end this thread
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
        raise SystemExit(code)


def flush_files() -> None:
    """Write what open files hold back, also those that only garbage refers to."""
    for thing in gc.get_objects():
        if issubclass(type(thing), (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom)):
            with contextlib.suppress(OSError, ValueError):  # a full disk; a closed file
                thing.flush()


_own = JobProcess()
_find: Callable[[], JobProcess | None] | None = None


def here() -> JobProcess:
    """The process of the job that the current thread belongs to."""
    return _own if _find is None else _find() or _own


def host_jobs(find: Callable[[], JobProcess | None] | None) -> None:
    """Let `find` return the process of the current thread; None where it does not know. Without it: one process."""
    global _find
    _find = find
