"""Estimate gradient noise: |Pg|^2 and tr(P Sigma P^T)/M0 from squared norms, and their running averages.

g is the gradient, Sigma the covariance of the gradient of one example, P the pre-conditioner of the optimizer, M0 the
batch size the user began with. The pre-conditioned gradient noise scale is phi = M0 * var / sqr examples (Pollux,
OSDI'21, section 3.1). Everything here is arithmetic on a few numbers; where they come from is in `hooks`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from plait.core.errors import InputError
from plait.goodput.throughput import noise_scale

#: The averages forget with this factor for each batch of the initial size, whatever the batch size is.
SMOOTHING = 0.999
#: Averages of a parameter group below these count as these: estimates are unbiased, so they may be negative.
LEAST_SQR, LEAST_VAR = 0.0, 1e-6
#: Estimates needed before they decide anything.
ENOUGH = 8
#: Standard errors by which decisions use the lower end of the noise.
ERRORS = 2.0
#: Initial batches for which an estimate counts at most, unless its own step is larger: averages then consist of thirty.
MOST_FOR = 64.0
#: When progress reaches so many initial batches, estimates from before count for this part.
FADE_AT, FADE = (32, 64, 128, 256), 0.1


@dataclass(frozen=True, slots=True)
class Estimate:
    """One unbiased estimate, per parameter group.

    `scale` is S of the batch it stands for, in initial batches: 2 M/M0 where two steps were needed. `biased` says
    that it took two steps, between which the true gradient may have moved; `divided` that gradients were divided by
    the optimizer's pre-conditioner, which it does after some steps. `stands_for`: the initial batches since the last
    estimate, where not every step gives one; less than `scale` means `scale`.
    """

    sqr: tuple[float, ...]
    var: tuple[float, ...]
    scale: float
    biased: bool = False
    divided: bool = False
    stands_for: float = 0.0


def from_samples(local: Sequence[float], total: Sequence[float], samples: float, scale: float) -> Estimate:
    """From n >= 2 gradients of equal size that were averaged into one of S = `scale` initial batches.

    `local` is the mean of |P g_i|^2 over the samples and `total` is |P gbar|^2, both per group. For parts that are not
    quite equal `samples` is the number of equal ones that say as much (`Pass.samples`). Raises `InputError` for
    one sample: that needs two steps, see `from_pair`.

    >>> from_samples([4.0], [2.5], samples=2, scale=1.0)
    Estimate(sqr=(1.0,), var=(1.5,), scale=1.0, biased=False, divided=False, stands_for=0.0)
    """
    if samples < 2:
        raise InputError(f"from_samples(samples={samples}): needs two or more; use from_pair for one gradient a step")
    sqr = tuple((samples * t - mean) / (samples - 1) for mean, t in zip(local, total, strict=True))
    var = tuple(scale * (mean - t) / (samples - 1) for mean, t in zip(local, total, strict=True))
    return Estimate(sqr, var, scale)


def from_pair(product: Sequence[float], difference: Sequence[float], scale: float) -> Estimate:
    """From the gradients a and b of two steps that follow each other, each of S = `scale` initial batches.

    `product` is <Pa, Pb> and `difference` is |P(a - b)|^2, per group. The same as `from_samples` of two at twice the
    scale, without its cancellation. If the true gradient moves by D in between, var is too large by S |PD|^2 / 2.

    >>> from_pair([2.0], [1.0], scale=4.0)
    Estimate(sqr=(2.0,), var=(2.0,), scale=8.0, biased=True, divided=False, stands_for=0.0)
    """
    return Estimate(tuple(product), tuple(scale * d / 2 for d in difference), 2 * scale, biased=True)


class Statistics:
    """Running averages of estimates, per parameter group, corrected for their start.

    After updates at scales S_1 .. S_k the average weighs prod 0.999^S for what came later; its own weight is
    1 - prod 0.999^S_i, and the value is divided by it. Ranks that are given the same estimates have the same averages.
    """

    def __init__(self, groups: int = 1) -> None:
        """No estimate yet: sqr 1 and var 0 in each of `groups` parameter groups."""
        if groups < 1:
            raise InputError(f"Statistics(groups={groups}): an optimizer has one parameter group or more")
        self._sums: list[list[float]] = [[0.0] * groups, [0.0] * groups]
        self._totals = [0.0, 0.0]  # sums over groups, as they came
        self._spreads = [0.0, 0.0]  # ... and the averages of their squares
        self.weight, self.biased, self.updates = 0.0, False, 0
        self._weight2, self._taken, self._divided = 0.0, 0, False

    @property
    def groups(self) -> int:
        return len(self._sums[0])

    @property
    def known(self) -> bool:
        """Whether there was an estimate since the start, or since the averages were reset."""
        return self.weight > 0

    @property
    def group_sqr(self) -> tuple[float, ...]:
        """Average of |Pg|^2 in each group; 1 before any estimate. May be negative."""
        return tuple(s / self.weight for s in self._sums[0]) if self.known else (1.0,) * self.groups

    @property
    def group_var(self) -> tuple[float, ...]:
        """Average of tr(P Sigma P^T)/M0 in each group; 0 before any estimate. May be negative."""
        return tuple(s / self.weight for s in self._sums[1]) if self.known else (0.0,) * self.groups

    @property
    def sqr(self) -> float:
        """|Pg|^2 of the whole model: the sum over groups, each at least 0. 0 before any estimate."""
        return sum(max(value, LEAST_SQR) for value in self.group_sqr) if self.known else 0.0

    @property
    def var(self) -> float:
        """Variance of the whole model: the sum over groups, each at least 1e-6. 1 before any estimate.

        So before any estimate the noise scale is infinite and every batch size looks efficient: jobs then explore.
        """
        return sum(max(value, LEAST_VAR) for value in self.group_var) if self.known else 1.0

    @property
    def settled(self) -> bool:
        """True after enough estimates to decide by; single ones may be far off."""
        return self._taken >= ENOUGH

    @property
    def errors(self) -> tuple[float, float]:
        """Standard errors of `sqr` and `var` by how much single estimates differ; infinite before the second."""
        if self._taken < 2:
            return math.inf, math.inf
        number = self.weight**2 / self._weight2  # of equally weighted estimates that say as much
        found = []
        for total, square in zip(self._totals, self._spreads, strict=True):
            mean = total / self.weight
            found.append(math.sqrt(max(square / self.weight - mean**2, 0.0) / max(number - 1, 0.5)))
        return found[0], found[1]

    def noise_interval(self, initial_batch: int, errors: float = 1.0) -> tuple[float, float]:
        """Lower and upper noise scale, in examples, if sqr and var are off by this many standard errors.

        >>> Statistics().noise_interval(8)
        (0.0, inf)
        """
        if not self.known or self._taken < 2:
            return 0.0, math.inf
        off_sqr, off_var = (errors * error for error in self.errors)
        low = float(noise_scale(self.sqr + off_sqr, max(self.var - off_var, 0.0), initial_batch))
        return low, float(noise_scale(max(self.sqr - off_sqr, 0.0), self.var + off_var, initial_batch))

    def noise_scale(self, initial_batch: int) -> float:
        """The noise scale phi = M0 var / sqr, in examples; infinite where sqr is 0."""
        return float(noise_scale(self.sqr, self.var, initial_batch))

    def gain(self, scale: float) -> float:
        """Progress of an optimizer step at S = `scale`, in steps at M0: from 1 to S; S before any estimate.

        >>> statistics = Statistics()
        >>> statistics.update(Estimate((1.0,), (3.0,), 3.0))
        True
        >>> statistics.gain(3.0)
        2.0
        """
        return (self.var + self.sqr) / (self.var / scale + self.sqr)

    def update(self, estimate: Estimate) -> bool:
        """Add an estimate to the averages; False for one that is not finite, which changes nothing.

        The first unbiased estimate after biased ones resets the averages first, and so does the first of divided
        gradients; after those, estimates of undivided gradients are ignored.
        """
        if len(estimate.sqr) != self.groups:
            raise InputError(
                f"an estimate of {len(estimate.sqr)} parameter groups for statistics of {self.groups}; "
                "make Adaptive after the last add_param_group"
            )
        if not all(math.isfinite(value) for value in (*estimate.sqr, *estimate.var)):
            return False
        if self._divided and not estimate.divided:
            return False  # another unit
        if (self.biased and not estimate.biased) or (estimate.divided and not self._divided):
            self.reset()
        self.biased, self._divided = estimate.biased, estimate.divided
        keep = SMOOTHING ** max(min(estimate.stands_for, MOST_FOR), estimate.scale)
        for sums, values in zip(self._sums, (estimate.sqr, estimate.var), strict=True):
            sums[:] = [keep * s + (1 - keep) * value for s, value in zip(sums, values, strict=True)]
        whole = sum(estimate.sqr), sum(estimate.var)
        self._totals = [keep * t + (1 - keep) * value for t, value in zip(self._totals, whole, strict=True)]
        self._spreads = [keep * s + (1 - keep) * value**2 for s, value in zip(self._spreads, whole, strict=True)]
        self._weight2 = keep**2 * self._weight2 + (1 - keep) ** 2
        self.weight = keep * self.weight + (1 - keep)
        self.updates += 1
        self._taken += 1
        return True

    def fade(self, before: float, now: float) -> None:
        """Reduce the weight of earlier estimates to a tenth at some points between progress `before` and `now`.

        Gradients of the first steps are far larger than all later ones and would dominate for a thousand batches.
        """
        if any(before < mark <= now for mark in FADE_AT):
            self._sums = [[FADE * value for value in sums] for sums in self._sums]
            self._totals, self._spreads = ([FADE * value for value in row] for row in (self._totals, self._spreads))
            self.weight, self._weight2 = FADE * self.weight, FADE**2 * self._weight2

    def reset(self) -> None:
        """Forget all estimates, as after a change that they do not hold for."""
        groups = self.groups
        self._sums = [[0.0] * groups, [0.0] * groups]
        self._totals, self._spreads = [0.0, 0.0], [0.0, 0.0]
        self.weight, self.biased, self._weight2, self._taken = 0.0, False, 0.0, 0

    def state_dict(self) -> dict[str, Any]:
        """Floats, ints and lists of floats: loads with `weights_only=True`."""
        sqr, var = self._sums
        return {
            "sqr": list(sqr),
            "var": list(var),
            "weight": self.weight,
            "biased": int(self.biased),
            "updates": self.updates,
            "totals": list(self._totals),
            "spreads": list(self._spreads),
            "weight2": self._weight2,
            "taken": self._taken,
            "divided": int(self._divided),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore `state`; raises `ValueError` if it has another number of parameter groups."""
        sqr, var = list(state["sqr"]), list(state["var"])
        if not len(sqr) == len(var) == self.groups:
            raise ValueError(f"statistics of {len(sqr)} parameter groups, but the optimizer has {self.groups}")
        self._sums = [sqr, var]
        self.weight, self.biased, self.updates = float(state["weight"]), bool(state["biased"]), int(state["updates"])
        self._totals, self._spreads = list(state["totals"]), list(state["spreads"])
        self._weight2, self._taken = float(state["weight2"]), int(state["taken"])
        self._divided = bool(state["divided"])


class CautiousNoise:
    """Noise for decisions: unknown before there are enough estimates, and then the lower end of the noise.

    Too large a batch, or too much counted progress, harms the end result, while too small a batch costs only time. So
    sqr counts two standard errors higher and var two lower than estimated. Samples are drawn without replacement: the
    training target is the mean gradient of all N samples, whose squared norm is larger by tr(P Sigma P^T)/N.
    """

    def __init__(self, statistics: Statistics, part: float = 0.0) -> None:
        """Use `statistics`; `part` is M0/N, 0 for endless data."""
        self._statistics, self._part = statistics, part
        #: True while gradients are not finite: earlier estimates then decide nothing.
        self.broken = False

    @property
    def known(self) -> bool:
        """True after enough estimates, while gradients are finite."""
        return self._statistics.settled and not self.broken

    @property
    def sqr(self) -> float:
        """Squared norm of the gradient, at the upper end."""
        statistics = self._statistics
        if not statistics.known:
            return statistics.sqr
        return statistics.sqr + ERRORS * statistics.errors[0] + self._part * statistics.var

    @property
    def var(self) -> float:
        """Variance at the initial batch, at the lower end."""
        statistics = self._statistics
        return max(statistics.var - ERRORS * statistics.errors[1], LEAST_VAR) if statistics.known else statistics.var

    def gain(self, scale: float) -> float:
        """Progress of a step of `scale` initial batches, at the lower end; `scale` before any estimate."""
        if not self._statistics.known or scale <= 1:
            return self._statistics.gain(scale)
        if self._statistics.errors[0] == math.inf:
            return 1.0
        return (self.var + self.sqr) / (self.var / scale + self.sqr)


@dataclass(frozen=True, slots=True)
class Pass:
    """One forward and backward pass of this rank, the `index`-th; `passes` of each of `ranks` ranks make a step.

    `examples` are those of this rank in this pass, `batch` those of the whole step; `full` says whether all parts of
    the step are of equal size. `halves`: they are the two halves of one, of which one may have one example more.
    `pairs`: where a step has one sample, it is compared with the step before; else such steps say nothing. `measured`:
    whether the samples of a step that has several are measured.
    """

    ranks: int
    passes: int
    index: int
    examples: int
    batch: int
    full: bool = True
    halves: bool = False
    pairs: bool = True
    measured: bool = True

    @property
    def samples(self) -> float:
        """Equivalent number of samples of equal size in this step; 0 if it gives no estimate.

        For two parts of a and b examples, the mean of both squared norms has the variance of (a + b)^2 / 2ab parts.
        """
        if self.halves:
            less = self.batch // 2
            return self.batch**2 / (2 * less * (self.batch - less))
        return float(self.ranks * self.passes) if self.full else 0.0

    @property
    def last(self) -> bool:
        """True if the optimizer steps after this pass."""
        return self.index == self.passes - 1

    @property
    def weight(self) -> float:
        """Factor of its mean gradient, so that all examples of an uneven step count alike."""
        parts = self.ranks * self.passes
        return 1.0 if self.full or self.batch < parts else self.examples * parts / self.batch


@dataclass(slots=True)
class Squares:
    """Measurements of one step: two rows of one float64 per parameter group, on the gradients' device.

    `first` and `second` are the arguments of `from_samples` if there were `samples` > 1, else of `from_pair`. `batch`
    is that of the step. `divided`: by the optimizer's pre-conditioner.
    """

    first: torch.Tensor
    second: torch.Tensor
    samples: float
    batch: int
    divided: bool = False

    def estimate(self, initial_batch: int) -> Estimate:
        """The estimate from these measurements; waits for the device."""
        rows = torch.stack([self.first, self.second]).tolist()
        return estimate(rows, self.samples, self.batch / initial_batch, divided=self.divided)


def estimate(rows: list[list[float]], samples: float, scale: float, *, divided: bool = False) -> Estimate:
    """From the two rows of `Squares` as numbers."""
    first, second = rows
    found = from_samples(first, second, samples, scale) if samples > 1 else from_pair(first, second, scale)
    return replace(found, divided=divided)


class Reading:
    """Reads measurements from the device: on CUDA one step late, so that the host never waits for the current step.

    All ranks read at the same steps, because the learning rate derived from an estimate must be the same on all of
    them.
    """

    def __init__(self) -> None:
        self._waiting: tuple[torch.Tensor, Any, float, float, bool] | None = None

    def take(self, squares: Squares | None, initial_batch: int) -> Estimate | None:
        """Begin to read `squares`; returns the estimate of this step on a CPU, of the previous step on CUDA.

        `initial_batch`: examples of the initial batch.
        """
        if squares is not None and not squares.first.is_cuda:
            return squares.estimate(initial_batch)
        found, self._waiting = self._waiting, None
        if squares is not None:
            rows = torch.stack([squares.first, squares.second])
            host = torch.empty(rows.shape, dtype=rows.dtype, pin_memory=True)
            host.copy_(rows, non_blocking=True)
            make: Any = torch.cuda.Event  # untyped in torch
            copied = make()
            copied.record(torch.cuda.current_stream(rows.device))
            self._waiting = host, copied, squares.samples, squares.batch / initial_batch, squares.divided
        if found is None:
            return None
        host, copied, samples, scale, divided = found
        copied.synchronize()  # of the previous step: the GPU has passed it, unless the host is a whole step ahead
        return estimate(host.tolist(), samples, scale, divided=divided)
