"""The learning rate of a step follows its batch; and what a change of the batch does to Adam.

A script and its schedulers set and see the learning rate for the initial batch. A step is made at that times a factor
for each parameter group, and afterwards the optimizer has the script's learning rate again.
"""

from __future__ import annotations

from typing import Any

import torch

from plait.core.errors import InputError
from plait.goodput.rules import Rule, default_rule, rule_of
from plait.training.adaptive.noise import Statistics
from plait.training.adaptive.preconditioner import is_adam


class LearningRate:
    """Of one optimizer: `scale` before its step, `restore` after it."""

    def __init__(self, optimizer: Any, rule: str | Rule | None = None) -> None:
        """By a rule, or the name of one; AdaScale if there is none, for Adam and AdamW the square root.

        Raises `InputError` for a name that there is not.
        """
        if rule is None:
            rule = default_rule(preconditioned=is_adam(optimizer))
        self.rule: Rule = rule_of(rule) if isinstance(rule, str) else rule
        self._groups = optimizer.param_groups
        self._own: list[Any] | None = None
        #: By which each parameter group's learning rate was multiplied in the newest step.
        self.factors = [1.0] * len(self._groups)

    @property
    def effective(self) -> list[float]:
        """What each parameter group's learning rate is in a step, by the newest factors; reads tensors."""
        base = self._own if self._own is not None else [group["lr"] for group in self._groups]
        return [float(lr) * factor for lr, factor in zip(base, self.factors, strict=True)]

    def scale(self, statistics: Statistics, scale: float, progress: float) -> None:
        """Put the learning rates of a step at S = `scale` in place."""
        self.restore()
        factors = self.rule(scale, statistics.group_sqr, statistics.group_var, progress)
        if len(factors) != len(self._groups):
            raise InputError(
                f"{len(factors)} factors of the learning rate for {len(self._groups)} parameter groups; "
                "make Adaptive after the last add_param_group, and let a rule of your own give one for each group"
            )
        self.factors = [float(factor) for factor in factors]
        self._own = []
        for group, factor in zip(self._groups, self.factors, strict=True):
            lr = group["lr"]
            if isinstance(lr, torch.Tensor):  # a captured or compiled step holds on to it
                self._own.append(lr.clone())
                lr.mul_(factor)
            else:
                self._own.append(lr)
                group["lr"] = lr * factor

    def restore(self) -> None:
        """Put the script's own back, if they are not in place."""
        own, self._own = self._own, None
        for group, lr in zip(self._groups, own or [], strict=False):
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
