"""Stages and messages of a script without marks, by hooks in torch while its iterations are measured.

`Hooks.start` puts hooks into torch and `Hooks.stop` takes them out again, so outside of a window of the profiler a
script runs as without plait. Only loader workers always count what they do, because they are forked once. In a window
the training thread (of the optimizer's steps) is in one state, and each change books what the thread has done since the
last one:

    event                                                            next state
    outermost `next` of a DataLoader begins                          loader (no workers) or wait
    ... ends, also by an exception                                   gap after host, otherwise the state before
    a module is called or a backward pass begins, with gradients     train, after host or gap
    `optimizer.step` begins                                          train, after host or gap
    `optimizer.step` ends                                            host
    a collective or its wait in Python                               net, afterwards the state before

Neither DDP's reducer nor the kernels of a GPU are seen from Python, so DDP's own measurements give the seconds and
bytes of its buckets, and CUDA events the seconds of a GPU. `stages_of` makes stages of all that. A script that plays or
evaluates without gradients stays in `host`, which counts as CPU.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import gc
import json
import os
import resource
import struct
import sys
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from plait.core.files import replace_file
from plait.training.process import capturing, note
from plait.training.stages import CudaSpans

#: In the folder of a rank: what its loader workers have done, and its messages.
WORKERS, MESSAGES = "loader-workers.bin", "messages.json"

# -- what a thread does -------------------------------------------------------------------------------------------


class _Accounting:
    """The kernel's accounting of one thread, closed when the thread ends."""

    def __init__(self) -> None:
        self.pid, self.descriptor = os.getpid(), -1
        self.descriptor = os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)

    def __del__(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)


_local = threading.local()  # the open file of each thread: opening it takes ten times as long as reading it


def queued_s() -> float:
    """Seconds that this thread has waited for a core; 0 where the kernel does not count them."""
    try:
        opened = getattr(_local, "opened", None)
        if opened is None or opened.pid != os.getpid():  # a forked child must not use its parent's
            opened = _local.opened = _Accounting()
        return int(os.pread(opened.descriptor, 64, 0).split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return 0.0


class Lap(NamedTuple):
    """Seconds of a thread: wall, running, waiting for a core, and in the kernel (a part of running)."""

    wall: float = 0.0
    run: float = 0.0
    queue: float = 0.0
    kernel: float = 0.0

    @property
    def blocked(self) -> float:
        """Seconds in which the thread neither ran nor waited for a core."""
        return max(self.wall - self.run - self.queue, 0.0)

    def plus(self, now: Lap, before: Lap) -> Lap:
        """Return the sum of this and the time from `before` to `now`."""
        return Lap(*(a + b - c for a, b, c in zip(self, now, before, strict=True)))


def _now() -> Lap:
    # schedstat's own seconds of running lag by a tick while the thread runs.
    kernel_s = resource.getrusage(resource.RUSAGE_THREAD).ru_stime
    return Lap(time.perf_counter(), time.thread_time(), queued_s(), kernel_s)


class Reads(NamedTuple):
    """Bytes that a thread got by `read` calls, and those of them (or of mapped files) that came from a device."""

    all: float = 0.0
    device: float = 0.0

    @property
    def cached(self) -> float:
        """Part of the reads that the page cache served."""
        if self.all > 0:
            return 1.0 - min(1.0, self.device / self.all)
        return 0.0 if self.device > 0 else 1.0

    def plus(self, now: Reads, before: Reads) -> Reads:
        """Return the sum of this and what was read from `before` to `now`."""
        return Reads(self.all + now.all - before.all, self.device + now.device - before.device)


def _reads(of: str) -> Reads:
    """The reads so far of `thread-self` or `self`; none where the kernel does not count them."""
    try:
        with open(f"/proc/{of}/io", encoding="ascii") as file:
            counts = dict(line.split(": ") for line in file)
        return Reads(float(counts["rchar"]), float(counts["read_bytes"]))
    except (OSError, KeyError, ValueError):
        return NOTHING


NO_TIME, NOTHING = Lap(), Reads()

# -- stages -------------------------------------------------------------------------------------------------------

#: A stage below this part of an iteration does not count, and one of the trainer's own below these.
LEAST, LEAST_HOST, LEAST_HOST_S = 0.02, 0.2, 0.005
#: Bytes of an iteration from a device from which on a training thread that is blocked waits for them.
LEAST_READ = 65536.0


@dataclass
class WindowTimes:
    """What the training thread and the loader workers did in so many iterations; all are sums over the window.

    `comm_s`, `overlap_s`: of DDP's buckets, and of them beside the backward pass; None without DDP. `device_s`: of the
    GPU's stream from the first call of the model to the end of the step, None without GPU. `reads`: of the training
    thread, `all_reads` of the process.
    """

    iterations: int
    states: Mapping[str, Lap]
    workers: Lap = NO_TIME
    reads: Reads = NOTHING
    worker_reads: Reads = NOTHING
    all_reads: Reads = NOTHING
    comm_s: float | None = None
    overlap_s: float = 0.0
    device_s: float | None = None

    @property
    def disturbed(self) -> float:
        """Part of the time in which threads waited for a core: neighbours, not work."""
        laps = [*self.states.values(), self.workers]
        wall = sum(lap.wall for lap in laps)
        return sum(lap.queue for lap in laps) / wall if wall else 0.0


def _storage_and_cpu(lap: Lap, cached: float) -> tuple[float, float]:
    """Seconds of `lap` on storage and CPU.

    Kernel time of reads from a device belongs to storage, as in the marks. So does waiting for a core in a thread that
    is blocked more than it runs: it waits for one after each read. In proportion to both, the CPU share of a loader
    that waits for its disk would grow with the load of the machine.
    """
    moving = min(lap.kernel, lap.run) * (1.0 - cached)
    storage, cpu = lap.blocked + moving, lap.run - moving
    rest = lap.wall - lap.blocked - lap.run
    return (storage + rest, cpu) if storage > cpu else (storage, cpu + rest)


def _settled(states: Mapping[str, Lap]) -> Mapping[str, Lap]:
    """`states` as if each had waited for a core in proportion to the time it ran.

    On a busy machine one wait outlasts several iterations of a few milliseconds, so it falls on any state, and the
    kernel often counts it in the next one: a state that only ran seems blocked. Only the sum over all states is right.
    """
    wall, run, queue, _ = Lap(*map(sum, zip(*states.values(), strict=True)))
    seen, blocked = sum(lap.blocked for lap in states.values()), max(wall - run - queue, 0.0)
    if run <= 0:
        return states
    part, wait = blocked / max(seen, 1e-9), max(wall - run - blocked, 0.0) / run
    return {
        name: Lap(part * lap.blocked + (1 + wait) * lap.run, lap.run, wait * lap.run, lap.kernel)
        for name, lap in states.items()
    }


def parts_of(window: WindowTimes, iteration_s: float) -> tuple[float, ...]:
    """Part of an iteration of `iteration_s` seconds that each resource is in use, by `Resource`; may exceed 1."""
    states, whole_s = _settled(window.states), iteration_s * window.iterations
    least_s = LEAST_HOST * whole_s
    loader, host, gap, train, net = (states.get(name, NO_TIME) for name in ("loader", "host", "gap", "train", "net"))
    loaded = _storage_and_cpu(loader, window.reads.cached)
    fetched = _storage_and_cpu(window.workers, window.worker_reads.cached)
    storage, cpu, gpu = loaded[0] + fetched[0], loaded[1] + fetched[1], train.wall
    host_cpu = _storage_and_cpu(host, 1.0)[1]
    if window.device_s is not None:  # a host that waits for its GPU runs in a loop
        host_cpu = min(host_cpu, max(whole_s - window.device_s, 0.0))
    if host_cpu >= min(least_s, LEAST_HOST_S * window.iterations):
        cpu += host_cpu
    if gap.wall <= 0.5 * train.wall:  # moves a batch to the device
        gpu += gap.wall
    else:
        cpu += _storage_and_cpu(gap, 1.0)[1]
    blocked = host.blocked + gap.blocked
    if blocked >= least_s and window.all_reads.device >= LEAST_READ * window.iterations:  # of a mapped file, say
        storage += blocked
    network = net.wall
    hidden = 0.0
    if window.comm_s is not None:
        network = max(window.comm_s, net.wall)
        hidden = max(window.comm_s - window.overlap_s, 0.0)
        if window.device_s is None:  # a pass that is blocked computes nothing: a communication hook waits in it
            hidden = max(hidden, min(train.blocked, window.comm_s))
        gpu += net.wall - hidden
    if window.device_s is not None:
        gpu = window.device_s - hidden
    return tuple(max(seconds, 0.0) / whole_s for seconds in (storage, cpu, gpu, network))


def stages_of(window: WindowTimes, iteration_s: float) -> tuple[float, ...] | None:
    """Seconds of each stage of an iteration of `iteration_s` seconds, by `Resource`; None if there is none."""
    parts = [min(part, 1.0) if part >= LEAST else 0.0 for part in parts_of(window, iteration_s)]
    return tuple(part * iteration_s for part in parts) if any(parts) else None


# -- messages -----------------------------------------------------------------------------------------------------

#: How the descriptions of plait's own groups begin.
OWN = "plait"
#: Methods of a process group that move tensors; names differ between releases of torch.
COLLECTIVES = (
    *("allreduce", "allreduce_coalesced", "reduce", "broadcast", "send", "recv", "gather", "scatter"),
    *("allgather", "allgather_coalesced", "allgather_into_tensor_coalesced", "_allgather_base"),
    *("all_gather_single", "all_gather_single_coalesced", "alltoall", "alltoall_base", "all_to_all_single"),
    *("reduce_scatter", "_reduce_scatter_base", "reduce_scatter_tensor_coalesced"),
    *("reduce_scatter_single", "reduce_scatter_single_coalesced"),
)


@dataclass
class Messages:
    """Messages of the script's process groups in some iterations: how many of each method and size in bytes.

    Sizes are those of buffers: of a collective the larger of its input and its output. What crosses a link of `p`
    ranks is `2 (p - 1) / p` times that for an all-reduce, `(p - 1) / p` for a reduce-scatter or an all-gather.
    """

    iterations: int
    counts: Counter[tuple[str, int]] = field(default_factory=Counter)

    @property
    def per_iteration(self) -> list[tuple[str, int, float]]:
        """Method, bytes and number of messages of an iteration, the largest first."""
        rows = [(method, size, count / self.iterations) for (method, size), count in self.counts.items()]
        return sorted(rows, key=lambda row: (-row[1], row[0]))

    @property
    def bytes(self) -> float:
        return sum(size * count for (_, size), count in self.counts.items()) / self.iterations

    @property
    def largest(self) -> int:
        return max((size for _, size in self.counts), default=0)

    def write(self, folder: Path) -> None:
        """Write them to `MESSAGES` in the folder of the rank."""
        content = {"version": 1, "per_iteration": self.per_iteration, "bytes": self.bytes, "largest": self.largest}
        replace_file(folder / MESSAGES, json.dumps(content).encode())


def _size_of(value: Any) -> int:
    """Bytes of a tensor, or of all tensors in nested lists; 0 for anything else."""
    if isinstance(value, list | tuple):
        return sum(map(_size_of, value))
    return int(getattr(value, "nbytes", 0))


# -- hooks --------------------------------------------------------------------------------------------------------

STATES = ("host", "loader", "wait", "gap", "train", "net")
#: A window ends so many iterations, and at least so many seconds, after its last step: the script trains no longer.
LATE_ITERATIONS, LATE_S = 100, 30.0


class _Buckets:
    """What DDP has measured of the buckets of one model in a window."""

    def __init__(self, model: Any) -> None:
        """Let DDP measure each iteration of `model`, where by itself it measures one in a hundred."""
        self.model = weakref.ref(model)
        self._iteration = self._data(model).get("iteration")
        self.seen = 0
        self.comm_ns = self.overlap_ns = 0.0
        self.sizes: tuple[int, ...] = ()
        self.hooked = False  # whether a communication hook sends the buckets
        model._set_ddp_runtime_logging_sample_rate(1)

    @staticmethod
    def _data(model: Any) -> Mapping[str, Any]:
        return dict(model._get_ddp_logging_data())

    def look(self) -> None:
        """After a step: take over what DDP measured since the last one, if it did."""
        model = self.model()
        data = {} if model is None else self._data(model)
        if data.get("iteration") in (None, self._iteration):
            return
        self._iteration = data["iteration"]
        self.seen += 1
        self.comm_ns += data.get("backward_comm_time", 0)
        self.overlap_ns += data.get("backward_compute_comm_overlap_time", 0)
        sizes = str(data.get("rebuilt_bucket_sizes") or data.get("bucket_sizes") or "")
        self.sizes = tuple(int(size) for size in sizes.split(",") if size.strip())
        self.hooked = bool(data.get("comm_hook"))

    def end(self) -> None:
        """Let DDP measure as by default."""
        if (model := self.model()) is not None:
            model._set_ddp_runtime_logging_sample_rate(100)


def _communicates() -> bool:
    distributed = sys.modules.get("torch.distributed")
    return distributed is not None and distributed.is_available() and distributed.is_initialized()


def _fail_in_capture() -> None:
    if capturing():  # waiting for the GPU would end the capture with an error
        raise RuntimeError("a CUDA graph is captured")


class Hooks:
    """The hooks of one process; `start` and `stop` are called in its training thread, between two iterations."""

    def __init__(self, folder: Path | None = None) -> None:
        """Watch the rank with this folder, in which its loader workers write; nothing is hooked yet."""
        self._folder = folder
        self._stepped = False  # whether an optimizer of torch has stepped
        self._on = False
        self._undo: list[Callable[[], object]] = []
        self._errors = self._thread = self._pid = 0
        self._state, self._sums, self._last = "host", dict.fromkeys(STATES, NO_TIME), NO_TIME
        self._calls: Counter[tuple[str, int]] = Counter()
        self._ddp: list[_Buckets] = []
        self._cuda, self._device_used = CudaSpans(), False
        self._before = NOTHING, NOTHING, (NO_TIME, NOTHING)
        self._late_s = self._due_s = 0.0
        #: Whether the last window ended before its time, though no hook failed: another may succeed.
        self.interrupted = False
        #: Of the newest complete window.
        self.window: WindowTimes | None = None
        self.messages: Messages | None = None

    def stepped(self) -> None:
        """After `optimizer.step`, before anything else is done."""
        self._stepped = True
        if self._on and self._mine():
            self._guarded(self._step_ended)

    def start(self, iteration_s: float) -> bool:
        """Begin a window, of iterations of about `iteration_s` seconds; return whether there is one.

        There is none in a process in which no optimizer of torch has stepped.
        """
        if self._on or not self._stepped:
            return self._on
        self._on, self._errors, self.interrupted = True, 0, False
        self._late_s = max(LATE_ITERATIONS * iteration_s, LATE_S)
        self._thread, self._pid = threading.get_ident(), os.getpid()
        self._state, self._sums = "host", dict.fromkeys(STATES, NO_TIME)
        self._calls, self._ddp = Counter(), []
        self._cuda, self._device_used = CudaSpans(), False
        for begin in (self._watch_loaders, self._watch_training, self._watch_groups, self._begin):
            self._guarded(begin)
        return True

    def _begin(self) -> None:
        self._before = _reads("thread-self"), _reads("self"), self._workers()
        self._last = _now()
        self._due_s = self._last.wall + self._late_s

    def stages(self, iterations: int, iteration_s: float) -> tuple[float, ...] | None:
        """End the window of so many iterations of `iteration_s` seconds; returns `stages_of` it.

        None if there was no window, or if a hook failed.
        """
        whole = self._on and self._mine()
        self.stop()
        if whole and not self._errors:
            self._guarded(self._take, iterations)
        return stages_of(self.window, iteration_s) if whole and not self._errors and self.window is not None else None

    def stop(self) -> None:
        """End the window, if there is one: take all hooks out."""
        self.interrupted = False
        if not self._on:
            return
        self._guarded(self._book)
        self._on = False
        for undo in reversed(self._undo):
            self._guarded(undo)
        self._undo.clear()
        for buckets in self._ddp:
            self._guarded(buckets.end)

    def _interrupt(self, *_: object) -> None:
        """End the window before its time, in the training thread."""
        if self._on and self._mine():
            self.stop()
            self.interrupted = True

    def _overdue(self) -> bool:
        """End the window if its last step is long ago; return whether it is."""
        if time.perf_counter() < self._due_s:
            return False
        self._interrupt()
        return True

    def _take(self, iterations: int) -> None:
        """Take over what was seen in the window that has ended."""
        device_s = None
        if self._device_used:
            _fail_in_capture()
            self._cuda.wait()
            device_s = self._cuda.collect()
        thread, process, (workers, worker_reads) = self._before
        now_workers, now_worker_reads = self._workers()
        measured = [one for one in self._ddp if one.seen]
        self.window = WindowTimes(
            iterations,
            self._sums,
            workers=NO_TIME.plus(now_workers, workers),
            reads=NOTHING.plus(_reads("thread-self"), thread),
            worker_reads=NOTHING.plus(now_worker_reads, worker_reads),
            all_reads=NOTHING.plus(_reads("self"), process),
            comm_s=sum(one.comm_ns / one.seen for one in measured) * iterations / 1e9 if measured else None,
            overlap_s=sum(one.overlap_ns / one.seen for one in measured) * iterations / 1e9,
            device_s=device_s,
        )
        counts = Counter(self._calls)
        for one in measured:
            if not one.hooked or not self._calls:  # a hook in Python sends by calls that were seen
                counts.update([("allreduce", size) for size in one.sizes] * iterations)
        self.messages = Messages(iterations, counts)

    # -- states ---------------------------------------------------------------------------------------------------

    def _mine(self) -> bool:
        """True in the training thread, and not in a forked child."""
        return self._thread == threading.get_ident() and self._pid == os.getpid()

    def _guarded(self, call: Callable[..., Any], *args: Any) -> Any:
        """The result of `call`; None if it fails: the script must not notice what goes wrong here."""
        try:
            return call(*args)
        except Exception as error:
            self._errors += 1
            if self._errors == 1:
                note(self._folder, f"the stages of this script are not seen: {error!r}")
            return None

    def _book(self) -> None:
        """Book what the thread has done since the last change on the present state."""
        now = _now()
        self._sums[self._state] = self._sums[self._state].plus(now, self._last)
        self._last = now

    def _to(self, state: str) -> None:
        self._book()
        self._state = state

    def _trains(self, *_: object) -> None:
        """A module is called, or a backward pass or a step begins; nothing has to be done at its end."""
        if self._state in ("host", "gap") and self._mine():
            self._to("train")
            if not self._cuda.spanning:
                self._cuda.begin()

    def _step_begins(self, *_: object) -> None:
        if not self._errors:
            self._guarded(self._trains)

    def _step_ended(self) -> None:
        self._to("host")
        self._due_s = self._last.wall + self._late_s
        self._device_used |= self._cuda.end(wait=False)
        for buckets in self._ddp:
            buckets.look()

    def _module_called(self, module: Any, _: object) -> None:
        if self._errors or self._overdue():
            return
        if isinstance(module, self._ddp_type):
            self._guarded(self._ddp_called)
            if all(one.model() is not module for one in self._ddp) and self._on:
                self._guarded(lambda: self._ddp.append(_Buckets(module)))
        if self._on and self._state in ("host", "gap") and sys.modules["torch"].is_grad_enabled():
            self._guarded(self._trains)

    def _ddp_called(self) -> None:
        """Before DDP's forward pass, which waits for events of the last iteration if that was measured."""
        try:
            _fail_in_capture()
        except RuntimeError:
            self.stop()
            raise

    def _next_begins(self, iterator: Any) -> str | None:
        """Return the state to come back to; None for a loader within a loader, and in other threads."""
        if not self._mine() or self._overdue() or self._state in ("loader", "wait"):
            return None
        back = "gap" if self._state == "host" else self._state
        self._to("wait" if getattr(iterator, "_num_workers", 0) else "loader")
        return back

    def _waits(self, *_: object) -> str | None:
        if not self._mine() or self._state not in ("host", "gap", "train"):
            return None
        back = self._state
        self._to("net")
        return back

    def _sends(self, method: str, group: Any, *args: Any) -> str | None:
        if group.group_desc.startswith(OWN):
            return None
        if size := max(map(_size_of, args), default=0):
            self._calls[method, size] += 1
        return self._waits()

    # -- what is hooked; a name that this release of torch lacks is left out ----------------------------------------

    def _wrap(self, owner: Any, name: str, begins: Callable[..., str | None]) -> None:
        """Let `owner.name` call `begins` with its arguments first, and at its end return to the state that this names.

        The script's call is made exactly once, and its result and exception pass through unchanged.
        """
        original = getattr(owner, name, None)
        if original is None:
            return
        own = vars(owner).get(name)

        @functools.wraps(original)
        def watched(*args: Any, **options: Any) -> Any:
            back = self._guarded(begins, *args) if self._on and not self._errors else None
            try:
                return original(*args, **options)
            finally:
                if back is not None and self._on:
                    self._guarded(self._to, back)

        def undo() -> None:
            if vars(owner).get(name) is not watched:
                return  # the script has patched it since
            if own is None:
                delattr(owner, name)
            else:
                setattr(owner, name, own)

        setattr(owner, name, watched)
        self._undo.append(undo)

    def _watch_loaders(self) -> None:
        if (module := sys.modules.get("torch.utils.data.dataloader")) is not None:
            self._wrap(module._BaseDataLoaderIter, "__next__", self._next_begins)

    def _watch_training(self) -> None:
        modules = sys.modules
        self._wrap(modules["torch.autograd"], "backward", self._trains)
        parallel = modules.get("torch.nn.parallel.distributed")
        self._ddp_type: Any = parallel.DistributedDataParallel if parallel is not None else ()
        counters = getattr(modules.get("torch._dynamo.utils"), "counters", {})
        optimized = getattr(modules.get("torch._dynamo.eval_frame"), "OptimizedModule", None)
        # A hook of all modules or optimizers would make torch.compile compile again, and one of modules warn.
        if counters.get("frames", {}).get("total"):
            self._wrap(optimized, "__call__", self._compiled_called)
            # Find the DDP models of a process that compiles, in which their calls are not seen
            if _communicates() and self._ddp_type:
                kinds = [self._ddp_type, *self._ddp_type.__subclasses__()]
                found = [model for model in gc.get_referrers(*kinds) if type(model) in kinds]
                self._ddp += map(_Buckets, found)
        else:
            self._wrap(optimized, "__call__", self._interrupt)
            compiling = getattr(modules.get("torch._dynamo.callback"), "callback_handler", None)
            self._wrap(compiling, "run_start_callbacks", self._interrupt)
            step = modules["torch.optim.optimizer"].register_optimizer_step_pre_hook
            self._undo.append(step(self._step_begins).remove)
            call = modules["torch.nn.modules.module"].register_module_forward_pre_hook
            # `module.compile()` would compile the hook itself before the module.
            self._undo.append(call(modules["torch"].compiler.disable(self._module_called)).remove)

    def _compiled_called(self, module: Any, *_: object) -> None:
        if self._ddp:
            self._ddp_called()
        self._module_called(module, ())

    def _watch_groups(self) -> None:
        module = sys.modules.get("torch._C._distributed_c10d")
        if module is None or not _communicates():
            return
        for method in COLLECTIVES:
            self._wrap(module.ProcessGroup, method, functools.partial(self._sends, method))
        self._wrap(module.Work, "wait", self._waits)

    # -- loader workers -------------------------------------------------------------------------------------------

    def _workers(self) -> tuple[Lap, Reads]:
        """What all loader workers of this rank have done so far."""
        try:
            content = (self._folder / WORKERS).read_bytes() if self._folder is not None else b""
        except OSError:
            return NO_TIME, NOTHING
        rows = list(_ENTRY.iter_unpack(content[: len(content) - len(content) % _ENTRY.size]))
        sums = [sum(column) for column in zip(*rows, strict=True)] if rows else [0.0] * 6
        return Lap(*sums[:4]), Reads(*sums[4:])


#: What a loader worker has done so far: a `Lap` and its `Reads`.
_ENTRY = struct.Struct("<6d")
#: Seconds between two writes of an entry: counting reads and writing take twice as long as reading clocks.
WRITE_S = 0.001


class _Worker:
    """Counts what this loader worker does, in an entry of its own in the file of its rank."""

    def __init__(self, file: Path) -> None:
        """Append an entry; the lock keeps workers that begin at the same time from taking the same one."""
        self._fd = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._fd, fcntl.LOCK_EX)
        try:
            self._at = os.fstat(self._fd).st_size
            os.ftruncate(self._fd, self._at + _ENTRY.size)
        finally:
            fcntl.flock(self._fd, fcntl.LOCK_UN)
        self.pid, self._lap, self._first = os.getpid(), NO_TIME, _reads("thread-self")
        self._due_s = 0.0

    def add(self, before: Lap) -> None:
        """Count the time since `before`; write it, with what was read so far, `WRITE_S` after the last time."""
        now = _now()
        self._lap = self._lap.plus(now, before)
        if now.wall >= self._due_s:
            self._due_s = now.wall + WRITE_S
            os.pwrite(self._fd, _ENTRY.pack(*self._lap, *NOTHING.plus(_reads("thread-self"), self._first)), self._at)


_worker: _Worker | None = None


def watch_workers(module: Any) -> None:
    """Let the loader workers that are forked from now on, and those that are spawned, count what they do.

    `module`: `torch.utils.data._utils.fetch`, when it is loaded.
    """
    for name in ("_MapDatasetFetcher", "_IterableDatasetFetcher"):
        fetcher = getattr(module, name, None)
        if fetcher is not None:
            fetcher.fetch = _counted(fetcher.fetch)


def _counted(fetch: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(fetch)
    def counted(*args: Any, **options: Any) -> Any:
        if (worker := _this_worker()) is None:
            return fetch(*args, **options)
        before = _now()
        try:
            return fetch(*args, **options)
        finally:
            with contextlib.suppress(OSError):
                worker.add(before)

    return counted


def _this_worker() -> _Worker | None:
    """The count of this process, None if it is not a loader worker of a rank."""
    global _worker
    if sys.modules["torch.utils.data"].get_worker_info() is None:
        return None
    if (_worker is None or _worker.pid != os.getpid()) and (folder := os.environ.get("PLAIT_RUN_DIR")):
        try:
            _worker = _Worker(Path(folder) / WORKERS)
        except OSError:
            return None
    return _worker
