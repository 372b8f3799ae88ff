"""Adapt a script's model and optimizer to batch sizes that change.

    adaptive = Adaptive(job, model, optimizer, loader)     # after DDP(model); the loop is unchanged
    for epoch in loader.remaining_epochs(10):
        for x, y in loader:
            optimizer.zero_grad()
            loss_of(model(x), y).backward()
            optimizer.step()

The loss of a pass must be the mean over its examples, with one `backward()` per batch. `optimizer.step()` and
`zero_grad()` do nothing while gradients accumulate; after the last pass of a step `.grad` holds the mean over all
examples of all ranks and passes.
"""

from __future__ import annotations

import contextlib
import logging
import math
import sys
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.tensor import distribute_tensor

from plait.core.errors import InputError
from plait.core.goodput import ANY, Estimate, shortage
from plait.goodput.models import throughput_model
from plait.training.adaptive.hooks import GradientHooks, Hook
from plait.training.adaptive.loader import ALIKE
from plait.training.adaptive.noise import CautiousNoise, Pass, Reading, Statistics
from plait.training.adaptive.optimizer import (
    LearningRate,
    StepGate,
    check,
    check_graph,
    check_loader,
    hold_optimizer,
    hold_scaler,
    parallel_kind,
    reset_moments,
    warn_unknown,
)
from plait.training.adaptive.plan import MEASURED_FIRST
from plait.training.adaptive.preconditioner import is_adam
from plait.training.adaptive.ranks import ranks
from plait.training.attached_job import AttachedJob

if TYPE_CHECKING:
    from plait.goodput.lr_scaling import Rule
    from plait.training.adaptive.loader import AdaptiveLoader
    from plait.training.adaptive.plan import Microbatch
    from plait.training.job import Job


class Finite:
    """Detects gradients of one optimizer that are not finite: a loss of NaN makes all of them NaN.

    Only the smallest gradient of each step is checked: a loss that is not finite reaches every parameter it depends
    on. On a CUDA device it is read one step late, so that the host never waits for the current step.
    """

    def __init__(self, optimizer: Any) -> None:
        self._optimizer = optimizer
        self._smallest: Any = None  # parameter
        self._waiting: tuple[torch.Tensor, Any] | None = None
        self.steps = 0  # in a row whose gradients are not finite

    def broken(self, step: int) -> bool:
        """True if the gradients of the coming step (on a CUDA device: of the previous one) are not finite.

        The first of several such steps in a row is logged as step number `step`.
        """
        finite = self._look()
        if finite:
            if self.steps:
                _tell(f"gradients are finite again after {self.steps} step{'s' * (self.steps > 1)}")
            self.steps = 0
            return False
        self.steps += 1
        if self.steps == 1:
            _tell(
                f"gradients of step {step} are not finite (the loss is NaN or infinite): such steps are no progress, "
                "and the batch is not enlarged by them; look for the first loss that is not finite, and begin again "
                "from before it, with a smaller learning rate or clipped gradients"
            )
        return True

    def _look(self) -> bool:
        if self._smallest is None or self._smallest.grad is None:
            given = [p for group in self._optimizer.param_groups for p in group["params"] if p.grad is not None]
            self._smallest = min(given, key=lambda parameter: parameter.numel(), default=None)
        if self._smallest is None:
            return True
        smallest = self._smallest.grad
        if smallest.is_sparse:
            smallest = smallest.coalesce().values()
        smallest = getattr(smallest, "to_local", lambda: smallest)()
        good = torch.isfinite(smallest).all()
        if not good.is_cuda:
            return bool(good)
        before, host = self._waiting, torch.empty((), dtype=torch.bool, pin_memory=True)
        host.copy_(good, non_blocking=True)
        make: Any = torch.cuda.Event  # untyped in torch
        copied = make()
        copied.record(torch.cuda.current_stream(good.device))
        self._waiting = host, copied
        if before is None:
            return True
        before[1].synchronize()
        return bool(before[0])


def _tell(what: str) -> None:
    print(f"plait: {what}", file=sys.stderr, flush=True)


log = logging.getLogger("plait.adaptive")

#: After the first steps, gradient noise is measured in every so many-th.
NOISE_EVERY = 32


class Adaptive:
    """Measures gradient noise, accumulates, and scales the learning rate, for one model and one optimizer."""

    def __init__(
        self,
        job: Job,
        model: Any,
        optimizer: Any,
        loader: AdaptiveLoader,
        *,
        rule: str | Rule | None = None,
        scaler: Any = None,
        scheduler: Any = None,
        reset_on_rescale: bool = True,
        comm_hook: Hook | None = None,
        halves: bool = True,
        noise_every: int = NOISE_EVERY,
        throughput: str = "pollux",
    ) -> None:
        """Adapt `model` (in DDP if there are several ranks), which `optimizer` steps and `loader` feeds.

        `rule` scales the learning rate: a name of `plait.goodput.lr_scaling.RULES`, or a function like those; by
        default AdaScale, and the square root for Adam, AdamW, RMSprop and Adagrad. `scaler` is the script's GradScaler.
        `scheduler` is stepped here, once per iteration at the initial batch, so that it follows the progress of
        training whatever the batch size; the script must not step it. Schedulers by epochs stay with the script.
        `reset_on_rescale`: reset Adam and AdamW when the batch changes by more than five per cent. `comm_hook` is the
        script's own communication hook for DDP, which accepts only one. `noise_every`: gradient noise is measured in
        the first 24 full steps and then in every so many-th, because measuring may take as long as a short step; 1
        measures all. `halves`: on one rank with one pass per step, these steps, from the ninth on, are two halves of
        their batch, whose two gradients show the noise (the optimizer steps after the second). Without it, the gradient
        is compared with the previous one, which overestimates the noise while weights change fast. `throughput`: the
        model by which the batch is chosen, as in `pollux:throughput=`: pollux, racks/... or one of another package.

        Raises `InputError` for FSDP1, ZeRO, LBFGS, tensor parallelism, several ranks without DDP, a loader that is not
        adaptive, an optimizer of another model's parameters, one that another `Adaptive` uses, `noise_every` below 1,
        or an unknown `throughput`.
        """
        if noise_every < 1:
            raise InputError(
                f"Adaptive(noise_every={noise_every}): give 1 to measure in each step, or more to skip some"
            )
        throughput_model(throughput)
        self.kind = parallel_kind(model)
        check_loader(loader)
        check(self.kind, model, optimizer, scheduler)
        check_graph(model, accumulation=loader.limits.accumulation)
        if rule is None:
            warn_unknown(optimizer)
        self.job, self.model, self.optimizer, self.loader = job, model, optimizer, loader
        self.scaler, self.scheduler = scaler, scheduler
        self.statistics = Statistics(len(optimizer.param_groups))
        self._rate = LearningRate(optimizer, rule)
        self._reset = reset_on_rescale and is_adam(optimizer)
        self.careful = CautiousNoise(self.statistics, loader.batch_size / loader.size)
        self._gate, self._reading, self._finite = StepGate(), Reading(), Finite(optimizer)
        self._accumulating = contextlib.ExitStack()
        self._scale: float | None = None  # S of the newest full step
        self._moments: float | None = None  # S of the gradients in Adam's moments, approximately
        self._scheduled = 0
        self._now: Pass | None = None
        self._stepped = False  # since the current batch began
        self._since = 0.0  # initial batches since the last estimate
        self._unmeasured = 0  # steps since the last measurement
        self._hooks = self._make_hooks(comm_hook)
        self._register()
        hold_optimizer(optimizer, self._gate, self._rate.restore)
        if scaler is not None:
            hold_scaler(scaler, self._gate, self._after_scaler)
        # Hooks of the instance run before the process-wide ones, by which plait counts steps and saves.
        optimizer.register_step_pre_hook(self._before_step)
        optimizer.register_step_post_hook(self._after_step)
        loader.decisions.throughput = throughput
        loader.timings.pooled = self.kind == "fsdp2"
        halves = halves and self.kind != "fsdp2"
        loader.follow(self.careful, self._begin, self._end, counted=True, halves=halves, every=noise_every)

    def _make_hooks(self, comm_hook: Hook | None) -> GradientHooks:
        if self.kind == "fsdp2":
            from plait.training.adaptive.hooks import ShardedHooks

            return ShardedHooks(self.optimizer)
        if self.kind == "ddp":
            hooks = GradientHooks(self.optimizer, group=self.model.process_group, inner=comm_hook)
            if self.loader.planned:  # `wrap_ddp` would keep the model in checkpoints that no other stage could read
                self.model.register_comm_hook(None, hooks.comm_hook())
                return hooks
            try:
                self.job.wrap_ddp(self.model, inner=hooks.comm_hook())
            except RuntimeError as error:
                raise InputError(
                    "Adaptive: this DDP model has a communication hook already and takes only one; leave job.wrap_ddp "
                    "to Adaptive, and give a hook of your own as Adaptive(comm_hook=...)"
                ) from error
            return hooks
        return GradientHooks(self.optimizer)

    def _register(self) -> None:
        self.job.register_state(adaptive=self)
        if not isinstance(self.job, AttachedJob):
            return
        kept = self.job.kept
        if self.kind == "fsdp2" or self.loader.planned:
            self.job.compute.know(self.optimizer)
            kept.replicated.add(name := kept.free_name("sharded"))  # rank 0 alone saves it
            kept.give(name, ShardedState(self.model, self.optimizer, kept=self.job.around.rank == 0))
        else:
            self.job.wrap_optimizer(self.optimizer)
        if kept.name_of(self.model) is None and self.kind == "plain" and not self.loader.planned:
            self.job.register_state(**{kept.free_name("model"): self.model})
        others = {"scheduler": self.scheduler, "scaler": self.scaler}
        for name, value in others.items():
            if value is not None and kept.name_of(value) is None:
                self.job.register_state(**{kept.free_name(name): value})

    # -- what scripts may look at ---------------------------------------------------------------------------------

    @property
    def stepping(self) -> bool:
        """True if the optimizer steps after the current batch; if not, `.grad` is None after `backward()`."""
        return self._gate.stepping

    @property
    def lr_factors(self) -> list[float]:
        """Factor of the learning rate of each parameter group in the newest step."""
        return list(self._rate.factors)

    @property
    def effective_lr(self) -> list[float]:
        """Learning rate of each parameter group in a step: the script's own times the newest factor."""
        return self._rate.effective

    @property
    def progress(self) -> float:
        """Progress so far, in iterations at the initial batch."""
        return self.loader.progress.iterations

    @property
    def noise_scale(self) -> float:
        """The pre-conditioned gradient noise scale, in examples; infinite before the first estimate."""
        return self.statistics.noise_scale(self.loader.batch_size)

    @property
    def noise_interval(self) -> tuple[float, float]:
        """The noise scale in examples, one standard error less and more."""
        return self.statistics.noise_interval(self.loader.batch_size)

    @property
    def gain(self) -> float:
        """Progress of a step now, in steps at the initial batch."""
        return self.statistics.gain(self._scale or 1.0)

    def figures(self) -> dict[str, float]:
        """Figures to log, by name; the learning rate is that of the first parameter group."""
        return {
            "batch_size": float(self.loader.current_batch_size),
            "effective_lr": self.effective_lr[0],
            "gain": self.gain,
            "noise_scale": self.noise_scale,
            "progress": self.progress,
        }

    # -- a step ---------------------------------------------------------------------------------------------------

    def _begin(self, microbatch: Microbatch) -> None:
        """Prepare the pass of `microbatch`, which the loader hands out."""
        step = microbatch.step
        plan, measured = self.loader.plan, microbatch.measured
        # A pair takes two steps that follow each other; the next two if one of these is uneven or skipped.
        pairs = microbatch.number <= MEASURED_FIRST or self._unmeasured >= plan.every - 2
        pairs = pairs and microbatch.number > 0 and not plan.halves(step)
        now = self._now = Pass(
            step.ranks,
            step.passes,
            microbatch.index,
            microbatch.local,
            step.examples,
            step.full,
            step.halves,
            pairs,
            measured,
        )
        self._gate.stepping, self._stepped = now.last, False
        self._accumulating.close()
        if not now.last:
            self._accumulating.enter_context(self._hooks.no_sync(self.model))
        self._hooks.begin(now, self._loss_scale())

    def _end(self) -> None:
        """End the pass over the data: later steps are the script's own."""
        self._now, self._gate.stepping = None, True
        self._accumulating.close()
        self._hooks.end()

    def _loss_scale(self) -> torch.Tensor | None:
        """The scaler's current factor, as a tensor on the device, so that the host does not wait."""
        if self.scaler is None or not self.scaler.is_enabled():
            return None
        device = self.optimizer.param_groups[0]["params"][0].device
        scale: torch.Tensor = self.scaler.scale(torch.ones((), device=device))
        return scale

    def _before_step(self, *_: object) -> None:
        """Take an estimate from the complete gradients, and scale the learning rate of this step."""
        now = self._now
        if now is None:  # not a batch of the loader
            return
        self._stepped = True
        # True if a gradient scaler has set the flag by which a fused optimizer skips the step
        found = getattr(self.optimizer, "found_inf", None)
        if found is not None and bool(found):  # a fused optimizer skips the step by itself
            self.loader.progress.left_out()
            return
        squares = self._hooks.collect()
        if self._hooks.twice:  # with several backward passes, halves would be refused
            self.loader.plan.least_half = None
        if self.scaler is None and self._finite.broken(self.loader.progress.tried):
            self._tell_broken()
            self.loader.progress.left_out()
        else:
            if self.careful.broken:
                self._tell_broken()
            done = self.progress
            self.loader.progress.made()
            self.statistics.fade(done, self.progress)
        estimate = self._reading.take(squares, self.loader.batch_size)
        self._unmeasured = 0 if squares is not None else self._unmeasured + 1
        self._since += now.batch / self.loader.batch_size
        if estimate is not None:
            self.statistics.update(replace(estimate, stands_for=self._since))
            self._since = 0.0
        sync_s = self._hooks.clock.seconds()
        if sync_s is not None:
            self.loader.timings.synced(sync_s)
        before, scale = self._scale, now.batch / self.loader.batch_size
        if now.full or before is None:
            self._scale = scale
            if self._moments is None or abs(scale / self._moments - 1) > ALIKE:
                if self._reset and self._moments is not None:
                    reset_moments(self.optimizer)
                    self._hooks.precondition.reset()
                self._moments = scale
        # By the size of this very step: the last ones of a pass over the data may be far smaller.
        known = (
            self.statistics if self.statistics.settled else Statistics(self.statistics.groups)
        )  # a few estimates are not enough
        self._rate.scale(known, max(scale, 1.0), self.progress)
        if self._scale != before:
            log.info(
                "batch %d (%d x %d of %d ranks), learning rate x %s",
                now.batch,
                now.passes,
                now.examples,
                now.ranks,
                " ".join(f"{factor:.4g}" for factor in self.lr_factors),
            )

    def _tell_broken(self) -> None:
        """Suspend decisions while gradients are not finite, and report it to the agent."""
        self.careful.broken = self._finite.steps > 0
        if isinstance(self.job, AttachedJob):
            self.job.page.not_finite = float(self._finite.steps)

    def _after_scaler(self, optimizer: Any) -> None:
        """After a step of the scaler: note a step that it skipped."""
        if optimizer is self.optimizer and self._now is not None and not self._stepped:
            self.loader.progress.left_out()

    def _after_step(self, *_: object) -> None:
        """After a step: restore the script's learning rate, before a checkpoint could save it."""
        self._rate.restore()
        if self.scheduler is not None and self._now is not None:
            while self._scheduled < int(self.progress + 1e-6):
                self._scheduled += 1
                self.scheduler.step()

    # -- checkpoints ----------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Plain numbers, which load with `weights_only=True`; without model, optimizer, scheduler and scaler."""
        return {
            "statistics": self.statistics.state_dict(),
            "scale": self._scale,
            "factors": self.lr_factors,
            "scheduled": self._scheduled,
            "since": self._since,
            "unmeasured": self._unmeasured,
            "twice": self._hooks.twice,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore `state`; raises `ValueError` if it belongs to an optimizer with other parameter groups."""
        self.statistics.load_state_dict(state["statistics"])
        self._scale = self._moments = None if state["scale"] is None else float(state["scale"])
        self._rate.factors = [float(factor) for factor in state["factors"]]
        self._scheduled = int(state["scheduled"])
        self._since, self._unmeasured = float(state["since"]), int(state["unmeasured"])
        self._hooks.twice = bool(state["twice"])
        if self._hooks.twice:
            self.loader.plan.least_half = None


def parallelize(
    model: Any, loader: AdaptiveLoader, layers: Iterable[Any] = (), memory_bytes: float | None = None
) -> Any:
    """Spread `model` over the ranks by the execution plan that plait chose for them, and return it; collective.

    ZeRO stage 0 is `DistributedDataParallel` (with one rank, the model itself); stages 2 and 3 are `fully_shard` of
    each of `layers`, and then of the model, and stage 3 frees gathered parameters after the forward pass. The optimizer
    is made of the parameters of what is returned; checkpoints fit every stage and number of ranks. Without a plan of
    the scheduler it is the first stage that fits into the least `memory_bytes` of a rank, by default its GPU's. Raises
    `InputError`, on all ranks, if none does.
    """
    import numpy as np

    from plait.goodput.batch import ordered

    found, limits = ranks(), loader.limits
    limits = replace(limits, parameters=limits.parameters or sum(p.numel() for p in model.parameters()))
    if limits.zero_stage == ANY:
        if memory_bytes is None:
            memory_bytes = torch.cuda.mem_get_info()[1] if torch.cuda.is_available() else math.inf
        unknown = np.full(len(Estimate), math.nan)
        memory_bytes = min(found.gather(memory_bytes))
        chosen = ordered(limits, unknown, found.nodes, found.world_size, memory_bytes)
        if chosen is None:
            raise InputError(f"parallelize: {shortage(limits, found.world_size, memory_bytes)}")
        limits = chosen
    (stage,) = found.largest([limits.zero_stage if found.rank == 0 else 0])
    loader.take_plan(replace(limits, zero_stage=stage))
    if stage:
        from torch.distributed.fsdp import fully_shard

        for part in (*layers, model):
            fully_shard(part, reshard_after_forward=stage == 3)
        return model
    return model if found.world_size == 1 else torch.nn.parallel.DistributedDataParallel(model)


class ShardedState:
    """Model and optimizer, in shards of `fully_shard` (FSDP2) or whole, as whole tensors in the host memory of rank 0.

    They fit any number of ranks: each cuts its own shards out of them when it resumes. torch's own
    `torch.distributed.checkpoint.state_dict` makes a step of an optimizer without state, which would count.
    """

    def __init__(self, model: Any, optimizer: Any, *, kept: bool) -> None:
        """`kept`: whether this rank keeps what is gathered; all ranks take part."""
        ddp = isinstance(model, torch.nn.parallel.DistributedDataParallel)
        self._model, self._optimizer, self._kept = model.module if ddp else model, optimizer, kept
        self._whole: dict[str, Any] = {}

    def before_checkpoint(self) -> None:
        """Gather all shards; collective."""
        optimizer = self._optimizer.state_dict()
        whole = {
            "model": {name: self._gathered(value) for name, value in self._model.state_dict().items()},
            "groups": optimizer["param_groups"],
            "state": {
                index: {name: self._gathered(value) for name, value in state.items()}
                for index, state in optimizer["state"].items()
            },
        }
        self._whole = whole if self._kept else {}

    def state_dict(self) -> dict[str, Any]:
        """The newest `before_checkpoint`: tensors and plain values, loads with `weights_only=True`."""
        return self._whole

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore it on any number of ranks; raises `RuntimeError` or `KeyError` for another model."""
        own = self._model.state_dict()
        self._model.load_state_dict({name: _sharded(value, own.get(name)) for name, value in state["model"].items()})
        parameters = [p for group in self._optimizer.param_groups for p in group["params"]]
        states = {
            index: {name: _sharded(value, parameters[index]) for name, value in one.items()}
            for index, one in state["state"].items()
        }
        self._optimizer.load_state_dict({"param_groups": state["groups"], "state": states})

    def _gathered(self, value: Any) -> Any:
        whole = value.full_tensor() if hasattr(value, "full_tensor") else value
        if not isinstance(whole, torch.Tensor):
            return whole
        return whole.cpu() if self._kept else None


def _sharded(value: Any, like: Any) -> Any:
    """Cut a whole tensor as `like` is cut; the step of an optimizer and the like stay whole."""
    if not isinstance(value, torch.Tensor) or not hasattr(like, "placements") or value.shape != like.shape:
        return value
    whole = value.to(like.device)
    # Each rank has the whole tensor, so none has to send it.
    return distribute_tensor(whole, like.device_mesh, like.placements, src_data_rank=None)
