"""Check a script's model and optimizer, suppress steps, and scale the learning rate.

Models, optimizers and loaders that cannot adapt are refused before training begins. While gradients accumulate, steps
of the optimizer and the gradient scaler are suppressed: only `step` and similar methods of these two instances are
replaced, so an ordinary loop runs unchanged, and of s+1 microbatches only the last one makes a step.

The script and its schedulers set and see the learning rate for the initial batch. For each step it is multiplied by a
factor per parameter group; afterwards the optimizer has the script's learning rate again.
"""

from __future__ import annotations

import functools
import sys
import types
import warnings
from collections.abc import Callable
from typing import Any, Literal

import torch

from plait.core.errors import InputError
from plait.goodput.lr_scaling import Rule, default_rule, rule_of
from plait.training.adaptive.loader import AdaptiveLoader
from plait.training.adaptive.noise import Statistics
from plait.training.adaptive.preconditioner import divides

#: Attribute that marks the replaced `step` of an optimizer.
_MARK = "_plait_held"


def is_held(optimizer: Any) -> bool:
    """True if `hold_optimizer` was called with this optimizer."""
    return _MARK in vars(getattr(optimizer.step, "__func__", optimizer.step))


class StepGate:
    """Decides which calls of `step` take effect."""

    def __init__(self) -> None:
        #: True if the current pass is the last one of a step, after which the optimizer steps.
        self.stepping = True


def hold_optimizer(optimizer: Any, gate: StepGate, after: Callable[[], None]) -> None:
    """Run `optimizer.step` only while `gate.stepping`; `after` is called after each step, also a failed one.

    A closure (of Lightning, say) runs for each batch, before the step: none of these optimizers calls it twice.
    """
    step = optimizer.step

    @functools.wraps(getattr(step, "__func__", step))  # with the attributes that schedulers look for
    def held_step(_: Any, closure: Callable[[], Any] | None = None, **options: Any) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if not gate.stepping:
            return loss
        try:
            made = step(**options)
        finally:
            after()
        return made if closure is None else loss

    held_step.__dict__[_MARK] = True
    optimizer.step = types.MethodType(held_step, optimizer)  # a bound method, as schedulers expect


def hold_scaler(scaler: Any, gate: StepGate, after: Callable[[Any], None]) -> None:
    """Run `unscale_`, `step` and `update` of `scaler` only while `gate.stepping`: without gradients they would fail.

    `after(optimizer)` is called after each `step` of the scaler, whether or not it called the optimizer's own.
    """

    def held(inner: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            return inner(*args, **options) if gate.stepping else None

        return call

    step = scaler.step

    def step_and_tell(optimizer: Any, *args: Any, **options: Any) -> Any:
        result = step(optimizer, *args, **options)
        after(optimizer)
        return result

    scaler.step = step_and_tell
    scaler.unscale_, scaler.step, scaler.update = held(scaler.unscale_), held(scaler.step), held(scaler.update)


Kind = Literal["plain", "ddp", "fsdp2"]


def parallel_kind(model: Any) -> Kind:
    """How the model is spread over ranks; raises `InputError` for FSDP1."""
    fsdp = sys.modules.get("torch.distributed.fsdp")
    if fsdp is not None and isinstance(model, fsdp.FullyShardedDataParallel):
        raise InputError(
            "Adaptive: FullyShardedDataParallel hides the gradients of single parameters; "
            "shard the model by torch.distributed.fsdp.fully_shard (FSDP2), or use DistributedDataParallel"
        )
    if fsdp is not None and isinstance(model, getattr(fsdp, "FSDPModule", ())):
        return "fsdp2"
    return "ddp" if isinstance(model, torch.nn.parallel.DistributedDataParallel) else "plain"


def check(kind: Kind, model: Any, optimizer: Any, scheduler: Any) -> None:
    """Raise `InputError` for a `model`, `optimizer` or `scheduler` that gives no estimates, or wrong ones.

    `kind`: how the model is spread over ranks, from `parallel_kind`.
    """
    name = type(optimizer).__name__
    if any(base.__name__ == "ZeroRedundancyOptimizer" for base in type(optimizer).__mro__):
        raise InputError(
            "Adaptive: ZeroRedundancyOptimizer has the state of each parameter on one rank only; "
            "use the optimizer itself, or shard the model by fully_shard (FSDP2)"
        )
    if isinstance(optimizer, torch.optim.LBFGS):
        raise InputError("Adaptive: LBFGS makes several passes over a batch in one step; use SGD, Adam or AdamW")
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise InputError(f"Adaptive(optimizer={name}): needs torch's own optimizer, not something around it")
    if is_held(optimizer):
        raise InputError(
            f"Adaptive: this {name} is in another Adaptive already, which scales its learning rate; "
            "make one for each optimizer"
        )
    if isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
        raise InputError(
            "Adaptive(scheduler=ReduceLROnPlateau): it goes by a metric that only the script knows; "
            "leave scheduler out and step it in the script, once an epoch"
        )
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    own = {id(p) for p in model.parameters()}
    if not any(id(p) in own for p in parameters):
        raise InputError(
            f"Adaptive: {name} has no parameter of this {type(model).__name__}; give the optimizer that steps the "
            f"model, made of its parameters as they are now: {name}(model.parameters(), ...)"
        )
    if kind != "fsdp2" and any(hasattr(p, "to_local") for p in parameters):
        raise InputError(
            "Adaptive: parameters are distributed tensors but the model is not sharded by fully_shard; "
            "gradient noise under tensor parallelism is not estimated, give the whole model to fully_shard"
        )
    if kind == "plain" and _ranks() > 1:
        raise InputError(
            f"Adaptive: {_ranks()} ranks and a model that does not average its gradients; "
            "give it DistributedDataParallel(model)"
        )


def check_loader(loader: Any) -> None:
    """Raise `InputError` for a loader that is not adaptive, or that another `Adaptive` uses already."""
    if not isinstance(loader, AdaptiveLoader):
        raise InputError(
            f"Adaptive(loader={type(loader).__name__}): its batch cannot change; give an "
            "AdaptiveDataLoader(dataset, batch_size, max_batch_size=...), which takes DataLoader's other options too"
        )
    if loader.followed:
        raise InputError(
            "this loader feeds another Adaptive already, and one gradient noise decides its batch; "
            "give each Adaptive a loader of its own"
        )


def check_graph(model: Any, *, accumulation: bool) -> None:
    """Raise `InputError` for DDP's `static_graph` with accumulation: accumulated passes differ from the first one."""
    if accumulation and getattr(model, "static_graph", False):
        raise InputError(
            "Adaptive: DistributedDataParallel(static_graph=True) expects every pass to be reduced, and the loader has "
            "accumulation=True; leave static_graph out, or accumulation"
        )


def warn_unknown(optimizer: Any) -> None:
    """Warn of an optimizer whose scaling of gradients is unknown, so that no rule for its learning rate is certain."""
    if not isinstance(optimizer, torch.optim.SGD) and not divides(optimizer):
        name = type(optimizer).__name__
        warnings.warn(
            f"plait: gradient noise for {name} is measured without what {name} makes of gradients, and its learning "
            'rate is scaled by AdaScale as for SGD; say which rule it needs, such as Adaptive(rule="square-root")',
            RuntimeWarning,
            stacklevel=3,
        )


def _ranks() -> int:
    """Ranks of the default process group; 1 for jobs that share a process."""
    from plait.training.adaptive.ranks import ranks

    return ranks().world_size


class LearningRate:
    """The learning rates of one optimizer: call `scale` before each step and `restore` after it."""

    def __init__(self, optimizer: Any, rule: str | Rule | None = None) -> None:
        """Scale by `rule`, a function or a name; by default AdaScale, or the square root for Adam and the like.

        Raises `InputError` for an unknown name.
        """
        if rule is None:
            rule = default_rule(preconditioned=divides(optimizer))
        self.rule: Rule = rule_of(rule) if isinstance(rule, str) else rule
        self._optimizer = optimizer  # groups are looked up each time, because loading a state replaces them
        self._own: list[Any] | None = None
        #: By which each parameter group's learning rate was multiplied in the newest step.
        self.factors = [1.0] * len(optimizer.param_groups)

    @property
    def effective(self) -> list[float]:
        """Learning rate of each parameter group in a step, by the newest factors; reads tensors."""
        base = self._own if self._own is not None else [group["lr"] for group in self._optimizer.param_groups]
        return [float(lr) * factor for lr, factor in zip(base, self.factors, strict=True)]

    def scale(self, statistics: Statistics, scale: float, progress: float) -> None:
        """Set the learning rates for a step of `scale` initial batches.

        `statistics`: gradient noise by group; `progress`: iterations at the initial batch so far. Raises `InputError`
        if the rule returns another number of factors than groups, or different ones for groups that share a tensor.
        """
        self.restore()
        groups = self._optimizer.param_groups
        factors = [float(factor) for factor in self.rule(scale, statistics.group_sqr, statistics.group_var, progress)]
        if len(factors) != len(groups):
            raise InputError(
                f"{len(factors)} factors of the learning rate for {len(groups)} parameter groups; "
                "make Adaptive after the last add_param_group, and let a rule of your own give one for each group"
            )
        shared: dict[int, float] = {}  # by tensor: captured and compiled steps keep references to them
        for group, factor in zip(groups, factors, strict=True):
            if isinstance(group["lr"], torch.Tensor) and shared.setdefault(id(group["lr"]), factor) != factor:
                raise InputError(
                    f"parameter groups share one learning-rate tensor, and the rule scales it by {factor:.4g} and "
                    f"{shared[id(group['lr'])]:.4g}; give each group a tensor of its own: group['lr'].clone()"
                )
        self.factors = factors
        self._own = [g["lr"].clone() if isinstance(g["lr"], torch.Tensor) else g["lr"] for g in groups]
        for group, factor in zip(groups, factors, strict=True):
            if not isinstance(group["lr"], torch.Tensor):
                group["lr"] *= factor
            elif shared.pop(id(group["lr"]), None) is not None:
                group["lr"].mul_(factor)

    def restore(self) -> None:
        own, self._own = self._own, None
        for group, lr in zip(self._optimizer.param_groups, own or [], strict=False):
            if isinstance(group["lr"], torch.Tensor):
                group["lr"].copy_(lr)
            else:
                group["lr"] = lr


def reset_moments(optimizer: Any) -> None:
    """Reset Adam's moments and step in place: they come from gradients at another batch.

    `step` stays a tensor, as torch requires. The pre-conditioner is off for the next steps, too.
    """
    for state in optimizer.state.values():
        for name in ("exp_avg", "exp_avg_sq", "max_exp_avg_sq", "step"):
            if isinstance(state.get(name), torch.Tensor):
                state[name].zero_()
            elif name in state:
                state[name] = torch.zeros((), dtype=torch.float32)
