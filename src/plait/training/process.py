"""The process in which a job runs: it holds the job, ends it, and provides its process group.

A job has its process to itself, unless `plait.training.merged` runs several jobs in one. That package then determines
what `here` returns in its threads, so nothing else in this package depends on it.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import io
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

#: In the folder of the process, next to its log.
FILE = "plait.log"


def note(folder: str | os.PathLike[str] | None, text: str) -> None:
    """Append the line; does nothing without a folder, or if writing fails."""
    if folder:
        with contextlib.suppress(OSError), open(os.path.join(folder, FILE), "a", encoding="utf-8") as file:
            file.write(text + "\n")


def torch_cuda() -> Any:
    """torch.cuda if this process uses a GPU, else None."""
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    return cuda if cuda is not None and hasattr(cuda, "is_initialized") and cuda.is_initialized() else None


def capturing() -> bool:
    """Whether a CUDA graph is being captured: then nobody may wait for the GPU, copy to the host or pin memory."""
    cuda = torch_cuda()
    return bool(cuda is not None and cuda.is_current_stream_capturing())


#: How a thread treats captures of CUDA graphs, in the drivers of NVIDIA and AMD; the one that heeds its own only.
_CAPTURE_MODES = (
    ("libcuda.so.1", "cuThreadExchangeStreamCaptureMode"),
    ("libamdhip64.so", "hipThreadExchangeStreamCaptureMode"),
)
_THREAD_LOCAL = 1


def ignore_captures() -> None:
    """Let this thread wait for the GPU while another one captures a CUDA graph, which would else end with an error.

    The threads in which torch watches its collectives do the same.
    """
    for library, name in _CAPTURE_MODES:
        with contextlib.suppress(OSError, AttributeError):
            getattr(ctypes.CDLL(library), name)(ctypes.byref(ctypes.c_int(_THREAD_LOCAL)))


# plait's own process groups, destroyed before the interpreter shuts down.
#
# A gloo group has threads. If it is destroyed only during shutdown, because a module still refers to it, one of its
# threads may still wait in a reduction for a late rank. It cannot return into a finished interpreter, and the process
# aborts (exit code -6) after a successful training. So `atexit`, while threads can still run, waits for what was sent
# and destroys every group.
#
# The script's own groups live on in its DDP model. Their threads release the last operation only after they have woken
# the script, and need the interpreter for it: the operation holds Python objects of the thread that started it. On a
# busy machine the script may have ended by then, with the same exit code -6; `let_threads_finish` waits for them.

#: Seconds to wait at the end for a late rank; a rank that died is noticed at once.
LATE_S = 60.0
#: Name of the threads of a gloo group in Linux (torch's ProcessGroupGloo).
GLOO_THREAD = "pt_gloo_runloop"
#: A thread that waits for the interpreter wakes every 5 ms (`sys.getswitchinterval`); one that sleeps longer is idle.
IDLE_S = 0.02


class OwnGroup:
    """A host-side group of ranks, created by all of them together; `group` is None once it is destroyed."""

    def __init__(self, name: str, ranks: Sequence[int] | None = None) -> None:
        """Create it in an initialised `torch.distributed`, of all ranks or of these alone."""
        import torch.distributed as dist

        if ranks is None or len(ranks) == dist.get_world_size():
            self.group: Any = dist.new_group(backend="gloo", group_desc=name)
        else:  # the other ranks do not take part in creating it
            made = dist.new_group(list(ranks), backend="gloo", group_desc=name, use_local_synchronization=True)
            self.group = made
        self.work: Any = None  # the newest asynchronous operation on it
        self._pid = os.getpid()
        atexit.register(self.close)

    def close(self) -> None:
        """Wait for the newest operation, then destroy the group; does nothing twice, or in forked children."""
        group, work = self.group, self.work
        self.group = self.work = None
        atexit.unregister(self.close)
        if group is None or self._pid != os.getpid():
            return
        if work is not None:
            _wait(work)
        dist = sys.modules.get("torch.distributed")
        if dist is not None and dist.is_initialized():
            # Raises if the script has destroyed all groups; dropping the reference is then enough.
            with contextlib.suppress(RuntimeError, ValueError, AssertionError, KeyError):
                dist.destroy_process_group(group)


def _wait(work: Any) -> None:
    """Wait until a reduction ends or its other ranks are gone; `Work.wait` alone may wait for half an hour."""

    def wait() -> None:
        with contextlib.suppress(RuntimeError):  # a rank has died
            work.wait()

    waiting = threading.Thread(target=wait, name="plait-last-word", daemon=True)
    waiting.start()
    waiting.join(LATE_S)


def let_threads_finish(limit_s: float = LATE_S) -> None:
    """Wait until every thread of a gloo group sleeps and has nothing left to release; at most `limit_s` seconds.

    To be called after the last operation. A thread that waits for another rank counts as idle.
    """
    end_s, before = time.monotonic() + limit_s, _gloo_threads()
    while before and time.monotonic() < end_s:
        time.sleep(IDLE_S)  # without the interpreter's lock, so that they can take it
        now = _gloo_threads()
        if now == before and all(state == "S" for state, _ in now.values()):
            return
        before = now


def _gloo_threads() -> dict[str, tuple[str, str]]:
    """State (R, S, D) and number of voluntary switches of each thread of a gloo group, by its id; none off Linux."""
    found = {}
    for task in Path("/proc/self/task").glob("*"):
        with contextlib.suppress(OSError):  # a thread that has ended
            fields = dict(line.split(":", 1) for line in (task / "status").read_text().splitlines())
            if fields["Name"].strip() == GLOO_THREAD:
                found[task.name] = fields["State"].split()[0], fields["voluntary_ctxt_switches"].strip()
    return found


class JobProcess:
    """A process with one job. `job`: its `plait.training.attached_job.AttachedJob`, once it has attached."""

    #: True if torch's memory limit for the process is a limit for the job.
    limits_memory = True

    def __init__(self) -> None:
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
