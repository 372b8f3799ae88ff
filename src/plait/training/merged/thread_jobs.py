"""Jobs that share one process, each a thread with all the threads it starts: whose is the thread that asks?

`run_merged` and the host process of a merged group put a `ThreadJob` on each of their threads. What a process has only
once and that can be told apart by thread (arguments, environment, output, random streams, the job itself)
looks here; what a job asks of its process, it asks its `ThreadJob` (see `plait.training.process`).
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
from plait.training.device.cuda import torch_cuda
from plait.training.process import JobProcess, host_jobs


class Unmergeable(PlaitError, ValueError):
    """A job wants something that its process has only once. It runs by itself; submit it without merging."""


class Preempted(SystemExit):
    """Raised in the thread of a member that is told to end and does not come to a step boundary."""


@dataclass(eq=False)
class ThreadJob(JobProcess):
    """One job of a merged process. `environ` is all of its environment; `out` is where its output goes (None: as is).

    `ident`: its own thread, 0 before it runs and once it is over. `streams`: its random streams by library, see
    `random_streams`.
    """

    index: int
    name: str
    environ: dict[str, str] = field(default_factory=dict)
    argv: list[str] = field(default_factory=list)
    out: Any = None
    main: ModuleType | None = None
    ident: int = 0
    given: dict[str, Any] = field(default_factory=dict)  # what it has put in the place of sys.stdout and the like
    at_exit: list[Callable[[], object]] = field(default_factory=list)
    threads: weakref.WeakSet[threading.Thread] = field(default_factory=weakref.WeakSet)
    own_streams: Callable[[], None] | None = None  # called when a GPU stage of it begins
    make_group: Callable[[], Any] | None = None  # its process group, if it has peers in other processes
    streams: dict[str, Any] = field(default_factory=dict)
    stream: Any = None  # the CUDA stream that all its threads compute on
    leaving: int | None = None  # exit code with which a helper thread of it wants the job to end

    limits_memory = False  # torch's limit is one for all jobs

    def __post_init__(self) -> None:
        """No job has attached."""
        JobProcess.__init__(self)

    def attached(self, job: Any, lock_fd: int) -> None:
        """Remember the job; its lock is let go of when it ends."""
        self.job = job
        self.at_exit.append(lambda: os.close(lock_fd))

    def end_with(self, end: Callable[[], object], failed: Callable[[], object]) -> None:
        """Nothing: whoever runs the thread ends the job (`AttachedJob.end`)."""

    def process_group(self) -> Any:
        """Its own, if it has peers in other processes."""
        return self.make_group() if self.make_group is not None else None

    @property
    def alone(self) -> bool:
        """False: the default process group is nobody's or everybody's."""
        return False

    def gpu_stage_begins(self) -> None:
        """Its random streams of the GPU are the ones in use from here."""
        if self.own_streams is not None:
            self.own_streams()

    def leave(self, code: int) -> NoReturn:
        """End the job; from a helper thread of it, its own thread is told."""
        if threading.get_ident() != self.ident:
            self.leaving = code
            self.interrupt(Preempted)
        raise SystemExit(code)

    def interrupt(self, kind: type[BaseException] = Preempted) -> bool:
        """Raise an exception in its own thread at its next line of Python; False if that thread is gone."""
        return bool(ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self.ident), ctypes.py_object(kind)))


class _Here(threading.local):
    member: ThreadJob | None = None


_here = _Here()
_start = threading.Thread.start


def here() -> ThreadJob | None:
    """The member that the current thread belongs to; None for threads of nobody, and where nothing is merged."""
    return _here.member


def become(member: ThreadJob | None) -> None:
    """From now on the current thread is this member's."""
    _here.member = member


def inherit() -> None:
    """Threads belong to the member whose thread starts them."""
    threading.Thread.start = _start_inherited  # type: ignore[method-assign, assignment]
    host_jobs(here)


def inherit_no_more() -> None:
    """Threads belong to nobody again."""
    threading.Thread.start = _start  # type: ignore[method-assign]
    host_jobs(lambda: None)


def _start_inherited(thread: threading.Thread) -> None:
    member = here()
    if member is not None:
        run = thread.run

        def run_as_member() -> None:
            become(member)
            if member.stream is not None and (cuda := torch_cuda()) is not None:
                cuda.set_stream(member.stream)  # as the threads of a process share its default stream
            del thread.run
            run()

        thread.run = run_as_member  # type: ignore[method-assign]
        member.threads.add(thread)
    _start(thread)
