"""Scale the learning rate with the batch, and reset Adam when the batch changes.

The script and its schedulers set and see the learning rate for the initial batch. For each step it is multiplied by a
factor per parameter group; afterwards the optimizer has the script's learning rate again.
"""

from __future__ import annotations

from typing import Any

import torch

from plait.core.errors import InputError
from plait.goodput.lr_scaling import Rule, default_rule, rule_of
from plait.training.adaptive.gradients.noise import Statistics
from plait.training.adaptive.gradients.preconditioner import divides


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
        """Set the script's own learning rates again."""
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
