"""What a job asks of the process it runs in: to be remembered, ended, given a process group.

A job has its process to itself unless something else hosts several jobs in one (`plait.training.merged`); that then
answers `here` for its own threads, and nothing else in this package has to know.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
from collections.abc import Callable
from typing import Any, NoReturn


class JobProcess:
    """A process with one job. `job`: its `plait.training.job.AttachedJob`, once it has attached."""

    #: Whether a limit of torch for the whole process is one for the job.
    limits_memory = True

    def __init__(self) -> None:
        """No job has attached."""
        self.job: Any = None
        self._looked_pid = 0
        self._lock_fd: int | None = None

    def looks_first(self) -> bool:
        """Whether nobody has looked for a job yet; from now on somebody has. A forked child looks for itself."""
        first, self._looked_pid = self._looked_pid != os.getpid(), os.getpid()
        return first

    def attached(self, job: Any, lock_fd: int) -> None:
        """Remember the job, and hold the lock that makes it the only one."""
        self.job, self._lock_fd = job, lock_fd

    def end_with(self, end: Callable[[], object], failed: Callable[[], object]) -> None:
        """Call `end` when the script is over, and `failed` before it if it ends by an exception."""
        before = sys.excepthook

        def hook(*exception: Any) -> None:
            failed()
            before(*exception)

        sys.excepthook = hook
        atexit.register(end)

    def process_group(self) -> Any:
        """The process group of the job; None: torch.distributed's default one."""
        return None

    @property
    def alone(self) -> bool:
        """Whether torch.distributed's default process group is the job's."""
        return True

    def gpu_stage_begins(self) -> None:
        """A GPU stage of the job begins, or goes on."""

    def leave(self, code: int) -> NoReturn:
        """End the job with this exit code, from whichever of its threads."""
        if threading.current_thread() is not threading.main_thread():  # SystemExit would only end this thread
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
        raise SystemExit(code)


_own = JobProcess()
_find: Callable[[], JobProcess | None] = lambda: None  # noqa: E731


def here() -> JobProcess:
    """The process of the job that the current thread belongs to."""
    return _find() or _own


def host_jobs(find: Callable[[], JobProcess | None]) -> None:
    """From now on `find` says whose the current thread is, where it knows."""
    global _find
    _find = find
