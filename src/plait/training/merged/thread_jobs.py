"""Find the job of the current thread, where each job of a process is a thread with all threads that it starts.

`run_merged` and the process of a merged group assign a `ThreadJob` to each of their threads. Replacements of what a
process has only once (arguments, environment, output, random streams, the job itself) look it up here. For a merged
job, the `ThreadJob` also takes the place of its process (see `plait.training.process`).
"""

from __future__ import annotations

import ctypes
import os
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, NoReturn

from plait.core.errors import PlaitError
from plait.training.process import JobProcess, host_jobs, torch_cuda


class Unmergeable(PlaitError, ValueError):
    """A job needs something that its process has only once; it must run in its own process."""


class Preempted(SystemExit):
    """Raised in the thread of a member that must end and does not reach a step boundary."""


@dataclass(eq=False)
class ThreadJob(JobProcess):
    """One job of a merged process. `environ`: its whole environment. `out`: file for its output (None: unchanged).

    `ident`: its main thread, 0 before its start and after its end. `streams`: its random streams by library, see
    `routes`.
    """

    index: int
    name: str
    environ: dict[str, str] = field(default_factory=dict)
    argv: list[str] = field(default_factory=list)
    out: Any = None
    main: ModuleType | None = None
    ident: int = 0
    given: dict[str, Any] = field(default_factory=dict)  # its own replacements of sys.stdout and similar
    at_exit: list[Callable[[], object]] = field(default_factory=list)
    threads: weakref.WeakSet[threading.Thread] = field(default_factory=weakref.WeakSet)
    own_streams: Callable[[], None] | None = None  # called when its GPU stage begins
    make_group: Callable[[], Any] | None = None  # its process group, if it has peers in other processes
    streams: dict[str, Any] = field(default_factory=dict)
    stream: Any = None  # the CUDA stream of all its threads
    leaving: int | None = None  # exit code, if one of its helper threads ended the job
    interrupted: bool = False  # told to end, by an exception in its main thread

    limits_memory = False  # torch's limit applies to all jobs together

    def __post_init__(self) -> None:
        JobProcess.__init__(self)

    def attached(self, job: Any, lock_fd: int) -> None:
        """Store the job; its lock is released when it ends."""
        self.job = job
        self.at_exit.append(lambda: os.close(lock_fd))

    def end_with(self, end: Callable[[], object], failed: Callable[[type[BaseException]], object]) -> None:
        """Do nothing: the code that runs the thread ends the job (`AttachedJob.end`)."""

    def process_group(self) -> Any:
        """The job's own process group, if it has peers in other processes."""
        return self.make_group() if self.make_group is not None else None

    @property
    def owns_default_group(self) -> bool:
        """False: the default process group does not belong to one merged job."""
        return False

    def gpu_stage_begins(self) -> None:
        """Switch the GPU's random streams to those of this job."""
        if self.own_streams is not None:
            self.own_streams()

    def leave(self, code: int) -> NoReturn:
        """End the job with exit code `code`; a helper thread interrupts the job's main thread."""
        if threading.get_ident() != self.ident:
            self.leaving = code
            self.interrupt(Preempted)
        raise SystemExit(code)

    def interrupt(self, kind: type[BaseException] = Preempted) -> bool:
        """Raise `kind` in its main thread at the next line of Python; returns False if that thread has ended."""
        self.interrupted = True
        return bool(ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self.ident), ctypes.py_object(kind)))


class _Here(threading.local):
    member: ThreadJob | None = None


_here = _Here()
_start = threading.Thread.start


def here() -> ThreadJob | None:
    """The member to which the current thread belongs; None if it belongs to none."""
    return _here.member


def become(member: ThreadJob | None) -> None:
    """Assign the current thread to `member`."""
    _here.member = member


def inherit() -> None:
    """Assign each new thread to the member whose thread starts it."""
    threading.Thread.start = _start_inherited  # type: ignore[method-assign, assignment]
    host_jobs(here)


def inherit_no_more() -> None:
    """Undo `inherit`."""
    threading.Thread.start = _start  # type: ignore[method-assign]
    host_jobs(None)


def _start_inherited(thread: threading.Thread) -> None:
    member = here()
    if member is not None:
        run = thread.run

        def run_as_member() -> None:
            become(member)
            if member.stream is not None and (cuda := torch_cuda()) is not None:
                cuda.set_stream(member.stream)  # like threads of a process, which share its default stream
            del thread.run
            run()

        thread.run = run_as_member  # type: ignore[method-assign]
        member.threads.add(thread)
    _start(thread)
