"""The learning rate of a step follows its batch; and what a change of the batch does to Adam.

A script and its schedulers set and see the learning rate for the initial batch. A step is made at that times a factor
for each parameter group, and afterwards the optimizer has the script's learning rate again.
"""

from __future__ import annotations

from typing import Any

import torch

from plait.core.errors import InputError
from plait.goodput.model.lr_scaling import Rule, default_rule, rule_of
from plait.training.adaptive.gradients.noise import Statistics
from plait.training.adaptive.gradients.preconditioner import divides


class LearningRate:
    """Of one optimizer: `scale` before its step, `restore` after it."""

    def __init__(self, optimizer: Any, rule: str | Rule | None = None) -> None:
        """By a rule, or the name of one; AdaScale if there is none, the square root where gradients are divided.

        Raises `InputError` for a name that there is not.
        """
        if rule is None:
            rule = default_rule(preconditioned=divides(optimizer))
        self.rule: Rule = rule_of(rule) if isinstance(rule, str) else rule
        self._optimizer = optimizer  # loading a state puts other groups in place, so they are looked up each time
        self._own: list[Any] | None = None
        #: By which each parameter group's learning rate was multiplied in the newest step.
        self.factors = [1.0] * len(optimizer.param_groups)

    @property
    def effective(self) -> list[float]:
        """What each parameter group's learning rate is in a step, by the newest factors; reads tensors."""
        base = self._own if self._own is not None else [group["lr"] for group in self._optimizer.param_groups]
        return [float(lr) * factor for lr, factor in zip(base, self.factors, strict=True)]

    def scale(self, statistics: Statistics, scale: float, progress: float) -> None:
        """Put the learning rates of a step at S = `scale` in place.

        Raises `InputError` if a rule gives groups that share one tensor different factors, or too few or many.
        """
        self.restore()
        groups = self._optimizer.param_groups
        factors = [float(factor) for factor in self.rule(scale, statistics.group_sqr, statistics.group_var, progress)]
        if len(factors) != len(groups):
            raise InputError(
                f"{len(factors)} factors of the learning rate for {len(groups)} parameter groups; "
                "make Adaptive after the last add_param_group, and let a rule of your own give one for each group"
            )
        shared: dict[int, float] = {}  # tensors, which a captured or compiled step holds on to
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
        """Put the script's own back, if they are not in place."""
        own, self._own = self._own, None
        for group, lr in zip(self._optimizer.param_groups, own or [], strict=False):
            if isinstance(group["lr"], torch.Tensor):
                group["lr"].copy_(lr)
            else:
                group["lr"] = lr


def reset_moments(optimizer: Any) -> None:
    """Let Adam begin anew, in place: its moments are those of gradients at another batch.

    `step` stays a tensor, as torch wants it. Afterwards the pre-conditioner is off for some steps too.
    """
    for state in optimizer.state.values():
        for name in ("exp_avg", "exp_avg_sq", "max_exp_avg_sq", "step"):
            if isinstance(state.get(name), torch.Tensor):
                state[name].zero_()
            elif name in state:
                state[name] = torch.zeros((), dtype=torch.float32)
