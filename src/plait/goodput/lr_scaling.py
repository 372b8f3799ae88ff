"""The factor on the user's learning rate for a batch of S M0 examples instead of M0 (Pollux, OSDI 2021, section 3.1).

A rule is called before each optimiser step: `rule(scale, sqr, var, progress)` with S, the estimates of |Pg|^2 and of
the variance at M0 for each parameter group, and the progress in iterations at M0; it returns a factor per group.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from plait.core.arrays import FloatArray
from plait.core.errors import InputError, suggest
from plait.goodput.throughput import gain

Rule = Callable[[float, npt.ArrayLike, npt.ArrayLike, float], FloatArray]
"""(scale, sqr per group, var per group, progress) -> factor per group."""

#: Least variance of a parameter group's gradient: without noise known yet, all of it counts as noise.
LEAST_VAR = 1e-6


def adascale(scale: float, sqr: npt.ArrayLike, var: npt.ArrayLike, progress: float = 0.0) -> FloatArray:
    """The gain of each group at `scale` (Johnson et al., 2020), from `sqr` and `var`; for SGD."""
    return gain(np.maximum(np.asarray(sqr), 0.0), np.maximum(np.asarray(var), LEAST_VAR), scale)


def adamscale(scale: float, sqr: npt.ArrayLike, var: npt.ArrayLike, progress: float = 0.0) -> FloatArray:
    """The square root of the gain at `scale` of each group; for Adam and AdamW, in later versions of the library."""
    factor: FloatArray = np.sqrt(adascale(scale, sqr, var))
    return factor


def linear(scale: float, sqr: npt.ArrayLike, var: npt.ArrayLike, progress: float = 0.0) -> FloatArray:
    """`scale` for every group."""
    return np.full(np.shape(sqr), float(scale))


def square_root(scale: float, sqr: npt.ArrayLike, var: npt.ArrayLike, progress: float = 0.0) -> FloatArray:
    """The square root of `scale` for every group; for Adam and AdamW, in the paper."""
    return np.full(np.shape(sqr), float(np.sqrt(scale)))


def legw(warmup_epochs: float, examples: int, initial: int) -> Rule:
    """Square root of S after a linear warm-up of S times `warmup_epochs` passes over a set of `examples`.

    `initial` is M0. The factor is sqrt(S) min(1, progress / (S warmup_epochs examples / M0)). Raises `InputError`
    for sizes that are not positive.
    """
    if min(warmup_epochs, examples, initial) <= 0:
        raise InputError(
            f"legw with warmup_epochs={warmup_epochs}, examples={examples}, initial={initial}: all have to be positive"
        )
    steps = warmup_epochs * examples / initial

    def rule(scale: float, sqr: npt.ArrayLike, var: npt.ArrayLike, progress: float = 0.0) -> FloatArray:
        return square_root(scale, sqr, var) * min(1.0, progress / (scale * steps))

    return rule


#: The rules that need no parameters, by name; `legw` makes one more.
RULES: Mapping[str, Rule] = MappingProxyType(
    {"adascale": adascale, "adamscale": adamscale, "linear": linear, "square-root": square_root}
)


def rule_of(name: str) -> Rule:
    """The rule of a name in `RULES`; raises `InputError` with the nearest name for another."""
    if name not in RULES:
        raise InputError(f"no learning-rate rule {name!r}; {suggest(name, RULES)}")
    return RULES[name]


def default_rule(*, preconditioned: bool) -> str:
    """The paper's choice: AdaScale for SGD; the square root for Adam and AdamW (`preconditioned`)."""
    return "square-root" if preconditioned else "adascale"
