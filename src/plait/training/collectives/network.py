"""Mark the network stage under DistributedDataParallel, from the start of the first bucket to the end of the last.

DDP calls a communication hook for each bucket while the backward pass still computes. The job enters the network stage
before the first bucket is sent. With tokens it leaves the GPU stage once the last bucket is sent, because the rest of
the backward pass is waiting. At a barrier a job uses one resource at a time: buckets are held until the last one is
computed, then the job leaves the GPU stage and sends them all.
"""

from __future__ import annotations

import queue
import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from plait.core.resources import Resource
from plait.runtime.stage_gate import DEFAULT_TIMEOUT_S, GateError, GateTimeout, StageGate
from plait.training.collectives.buckets import Buckets

if TYPE_CHECKING:
    from plait.training.rank import Rank

GPU, NETWORK = Resource.GPU, Resource.NETWORK
Hook = Callable[[Any, Any], Any]
#: Why gradients are not aggregated.
OWN_HOOK = "the script has a communication hook of its own"


class NetworkStage:
    """Counts the buckets of a backward pass and marks the stage."""

    def __init__(self, job: Rank, model: Any, inner: Hook | None) -> None:
        """Mark the network stage of the DDP `model` for `job`; `inner` communicates, by default by an all-reduce."""
        self._job, self._group = job, model.process_group
        self._inner = inner or self._all_reduce
        self._lock = threading.Lock()
        self._flying, self._last_sent = 0, False
        self._gate: StageGate | None = None
        self._kept: list[tuple[Any, Any]] = []
        self.layout = Buckets(model)
        job.compute.sleeps()

    def hook(self, state: Any, bucket: Any) -> Any:
        """What DDP calls; returns the future of the reduced bucket."""
        if self.layout.playing:
            return _promise(bucket.buffer(), bucket.buffer())
        if bucket.is_last():
            self.layout.sent()
        if self._kept or self._job.stages.gate.kind == "barrier":
            return self._keep(state, bucket)
        return self._send(state, bucket)

    def _keep(self, state: Any, bucket: Any) -> Any:
        """Send this bucket with the last one of the pass."""
        promised = _promise(bucket.buffer())
        self._kept.append((bucket, promised))
        if bucket.is_last():
            kept, self._kept = self._kept, []
            self._job.stages.sleep(GPU)
            for held, future in kept:
                self._send(state, held).then(lambda done, future=future: _pass_on(done, future))
        return promised

    def _send(self, state: Any, bucket: Any) -> Any:
        with self._lock:
            first = self._flying == 0 and not self._job.stages.is_open(NETWORK)
            self._flying += 1
            self._last_sent = bucket.is_last()
        if first:
            self._begin()
        future = self._inner(state, bucket)
        if bucket.is_last() and threading.get_ident() == self._job.compute_thread:
            self._job.stages.sleep(GPU)
        return future.then(self._arrived)

    def _arrived(self, future: Any) -> Any:
        value = future.value()
        with self._lock:
            self._flying -= 1
            over = self._flying == 0 and self._last_sent
        if over:
            self._end()
        return value[0] if isinstance(value, list) else value

    def _begin(self) -> None:
        stages = self._job.stages
        gate = self._gate = stages.gate
        if gate.kind != "none":
            self._job.gate_thread.call(lambda: _enter(gate, stages.lease_s(NETWORK)))
        stages.enter(NETWORK, gated=False)

    def _end(self) -> None:
        gate, self._gate = self._gate, None
        self._job.stages.leave(NETWORK)
        if gate is not None and gate.kind != "none":
            self._job.gate_thread.post(lambda: gate.leave(NETWORK))

    def _all_reduce(self, state: Any, bucket: Any) -> Any:
        """The mean over all ranks, as DDP computes it without a hook: scaled first (by the inverse), then summed."""
        tensor = bucket.buffer().mul_(1.0 / self._group.size())
        return dist.all_reduce(tensor, group=self._group, async_op=True).get_future()


def _promise(like: torch.Tensor, value: torch.Tensor | None = None) -> Any:
    """A future of a bucket, completed if there is a value."""
    future: Any = torch.futures.Future(devices=[like.device] if like.is_cuda else [])
    if value is not None:
        future.set_result(value)
    return future


def _pass_on(done: Any, future: Any) -> None:
    """Complete a future as another one was completed, or failed."""
    try:
        future.set_result(done.value())
    except Exception as error:  # else the backward pass would wait for ever
        future.set_exception(error)


def _enter(gate: StageGate, timeout_s: float) -> None:
    try:
        gate.enter(NETWORK, timeout_s)
    except (GateTimeout, GateError):  # gates only pace; leave() without enter() does nothing
        return


class GateThread:
    """The one thread that enters and leaves the gate of the network.

    The thread that took a token must return it, while buckets start in one thread and end in another.
    """

    def __init__(self) -> None:
        """No thread until the first call."""
        self._work: queue.SimpleQueue[tuple[Callable[[], None], threading.Event | None]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def call(self, work: Callable[[], None]) -> None:
        """Run `work` in the thread and wait for it."""
        done = threading.Event()
        self._put(work, done)
        done.wait(2 * DEFAULT_TIMEOUT_S)

    def post(self, work: Callable[[], None]) -> None:
        """Run `work` in the thread, after earlier work, without waiting."""
        self._put(work, None)

    def _put(self, work: Callable[[], None], done: threading.Event | None) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="plait-network-gate", daemon=True)
            self._thread.start()
        self._work.put((work, done))

    def _run(self) -> None:
        while True:
            work, done = self._work.get()
            try:
                work()
            finally:
                if done is not None:
                    done.set()


def register(job: Rank, model: Any, inner: Hook | None) -> NetworkStage:
    """Mark the network stage of the DDP `model` for `job`; `inner`: communication hook of the script, or None.

    Without one, gradients are aggregated where the scheduler has named a grant.
    """
    slot = _slot_of(model)
    if slot is not None and inner is not None:
        slot.leave(OWN_HOOK)
    stage = NetworkStage(job, model, inner if slot is None or inner is not None else slot.inner)

    def hook(state: Any, bucket: Any) -> Any:
        return stage.hook(state, bucket)

    if slot is not None:
        slot.wrap(hook)
    else:
        hook.__annotations__.clear()  # DDP accepts only its own annotations, or none
        model.register_comm_hook(None, hook)
    return stage


def _slot_of(model: Any) -> Any:
    """The hook that plait gave a model when it was made, where the scheduler has named a grant; else None."""
    module = sys.modules.get("plait.training.collectives.ddp_aggregation")
    return module.slot_of(model) if module is not None else None


def alike(model: Any) -> bool:
    """True if DDP keeps the whole model the same on every rank."""
    buffers = any(True for _ in module_of(model).buffers())
    return not getattr(model, "parameters_to_ignore", ()) and (getattr(model, "broadcast_buffers", True) or not buffers)


def module_of(model: Any) -> torch.nn.Module:
    """The module inside DDP: what a checkpoint holds, so that it loads without DDP too."""
    inner: torch.nn.Module = getattr(model, "module", model)
    return inner
