"""Mark the network stage under DistributedDataParallel, from the start of the first bucket to the end of the last.

DDP calls a communication hook for each bucket while the backward pass still computes. The job enters the network stage
before the first bucket is sent. With tokens it leaves the GPU stage once the last bucket is sent, because the rest of
the backward pass is waiting. At a barrier a job uses one resource at a time: buckets are held until the last one is
computed, then the job leaves the GPU stage and sends them all.
"""

from __future__ import annotations

import itertools
import queue
import sys
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from plait.core.resources import Resource
from plait.runtime.stage_gate import DEFAULT_TIMEOUT_S, GateError, GateTimeout, StageGate

if TYPE_CHECKING:
    from plait.training.job import Rank


# Restore DDP's buckets after a resume, so that sums of gradients are the same to the last bit.
#
# DDP sends all gradients of its first backward pass in one bucket and records the order of their arrival; from the next
# forward pass on, its buckets follow that order. A ring sums each piece of a bucket starting at a different rank, so
# with three or more ranks the position of a gradient in its bucket decides the order of its summands, and so its last
# bits. A resumed process would start with the single bucket again. Therefore the checkpoint holds the order of arrival,
# and a resumed process replays it to DDP before its first pass: without gradients, without sending anything, and
# without touching random streams, buffers or hooks of the script.
#
# With `find_unused_parameters` DDP uses the same buckets from the first pass on. `static_graph` and DDP's own mixed
# precision are not covered, since DDP prepares its passes differently there.


class Buckets:
    """The order in which the gradients of one DDP model arrived in its first synchronised pass."""

    def __init__(self, model: Any) -> None:
        """Watch the first pass of `model`, unless it is over or DDP will not rebuild its buckets."""
        self._model = model
        self.order: list[int] = []
        #: While this is set, buckets are not sent.
        self.playing = False
        self._arrived: dict[int, int] = {}
        self._watching: list[Any] = []
        # True if DDP will rebuild its buckets after the first pass, in a way that can be replayed.
        special = ["find_unused_parameters", "static_graph", "mixed_precision", "_has_rebuilt_buckets"]
        special += ["_delay_all_reduce_all_params", "_use_python_reducer"]
        known = callable(getattr(getattr(model, "reducer", None), "_autograd_hook", None))
        known = known and callable(getattr(model, "_build_params_for_reducer", None))
        if known and not any(getattr(model, name, None) for name in special):
            count = itertools.count()
            for index, one in enumerate(_parameters(model)):
                hooked: Any = one  # untyped in torch
                self._watching.append(hooked.register_post_accumulate_grad_hook(self._watcher(index, count)))

    def _watcher(self, index: int, count: itertools.count[int]) -> Any:
        def watch(parameter: torch.Tensor) -> None:
            self._arrived[index] = next(count)  # passes that only accumulate come before: the last one counts

        return watch

    def sent(self) -> None:
        """Note that the last bucket of a pass is complete, so all gradients have arrived."""
        if self._watching:
            self._forget()
            self.order = sorted(self._arrived, key=lambda index: self._arrived[index])

    def _forget(self) -> None:
        for handle in self._watching:
            handle.remove()
        self._watching.clear()

    def state_dict(self) -> dict[str, Any]:
        """The order; empty before the first pass, or if DDP does not use it."""
        return {"order": list(self.order)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Replay the order to DDP, unless its first pass is over or the model has other parameters now."""
        order = [int(index) for index in state["order"]]
        if not self._watching or self._arrived or sorted(order) != list(range(len(_parameters(self._model)))):
            return
        self._forget()
        self.order = order
        parameters = _parameters(self._model)
        before = [parameter.grad for parameter in parameters]
        for parameter in parameters:
            parameter.grad = None
        self.playing = True
        try:
            self._model.reducer.prepare_for_backward([])
            with torch.enable_grad():
                begin: Any = _Arrivals.apply  # untyped in torch
                begin(torch.zeros((), requires_grad=True), self._model.reducer, self.order).backward()
        finally:
            self.playing = False
            for parameter, gradient in zip(parameters, before, strict=True):
                parameter.grad = gradient


class _Arrivals(torch.autograd.Function):
    """A backward pass that reports the arrival of gradients to DDP without any, which DDP treats as zeros."""

    @staticmethod
    def forward(ctx: Any, one: torch.Tensor, reducer: Any, order: list[int]) -> torch.Tensor:
        ctx.reducer, ctx.order = reducer, order
        return one.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        for index in ctx.order:
            ctx.reducer._autograd_hook(index)
        return gradients[0], None, None


def _parameters(model: Any) -> list[torch.nn.Parameter]:
    """The parameters that DDP reduces, in its numbering."""
    found: list[torch.nn.Parameter] = model._build_params_for_reducer()[0]
    return found


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
            # Send this bucket with the last one of the pass.
            promised = _promise(bucket.buffer())
            self._kept.append((bucket, promised))
            if bucket.is_last():
                kept, self._kept = self._kept, []
                self._job.stages.sleep(GPU)
                for held, future in kept:
                    self._send(state, held).then(lambda done, future=future: _pass_on(done, future))
            return promised
        return self._send(state, bucket)

    def _send(self, state: Any, bucket: Any) -> Any:
        with self._lock:
            first = self._flying == 0 and not self._job.stages.is_open(NETWORK)
            self._flying += 1
            self._last_sent = bucket.is_last()
        if first:
            stages = self._job.stages
            gate = self._gate = stages.gate
            if gate.kind != "none":
                self._job.gate_thread.call(lambda: _enter(gate, stages.lease_s(NETWORK)))
            stages.enter(NETWORK, gated=False)
        future = self._inner(state, bucket)
        if bucket.is_last() and threading.get_ident() == self._job.compute.thread:
            self._job.stages.sleep(GPU)
        return future.then(self._arrived)

    def _arrived(self, future: Any) -> Any:
        value = future.value()
        with self._lock:
            self._flying -= 1
            over = self._flying == 0 and self._last_sent
        if over:
            gate, self._gate = self._gate, None
            self._job.stages.leave(NETWORK)
            if gate is not None and gate.kind != "none":
                self._job.gate_thread.post(lambda: gate.leave(NETWORK))
        return value[0] if isinstance(value, list) else value

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
    # The hook that plait gave a model when it was made, where the scheduler has named a grant; else None.
    module = sys.modules.get("plait.training.collectives.ina_hook")
    slot = module.slot_of(model) if module is not None else None
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


def alike(model: Any) -> bool:
    """True if DDP keeps the whole model the same on every rank."""
    buffers = any(True for _ in module_of(model).buffers())
    return not getattr(model, "parameters_to_ignore", ()) and (getattr(model, "broadcast_buffers", True) or not buffers)


def module_of(model: Any) -> torch.nn.Module:
    """The module inside DDP: what a checkpoint holds, so that it loads without DDP too."""
    inner: torch.nn.Module = getattr(model, "module", model)
    return inner
