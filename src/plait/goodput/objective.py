"""How far parameters of the throughput are from what was measured, and in which direction to go (pollux.md, section 2).

    E = RMSE(log T_grad) + RMSE(log T_opt) + 1e-3 (gamma - 1)^2 + 1e-2 ((beta_n / alpha_n)^2 + (beta_r / alpha_r)^2)

The gradient is analytic: an eleventh of the time of automatic differentiation or less, by the same figures.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from plait.core.arrays import FloatArray, IntArray
from plait.core.errors import InputError
from plait.core.goodput import THETA, Estimate
from plait.goodput.throughput import TINY


@dataclass(frozen=True, slots=True, eq=False)
class Profile:
    """What one job has measured: a row for each distinct (nodes, gpus, local batch), all of the same weight."""

    nodes: IntArray
    """N, nodes with at least one GPU of the job."""
    gpus: IntArray
    """K, GPUs of the job."""
    local: IntArray
    """m, examples of one GPU in one pass."""
    grad_s: FloatArray
    """Mean seconds of a pass without synchronisation."""
    step_s: FloatArray
    """Mean seconds of the pass that synchronises and steps."""

    def __post_init__(self) -> None:
        """Make columns; raise `InputError` if they differ in length or hold what cannot be measured."""
        for name, kind in (("nodes", np.int64), ("gpus", np.int64), ("local", np.int64)):
            object.__setattr__(self, name, np.atleast_1d(np.asarray(getattr(self, name), dtype=kind)))
        for name in ("grad_s", "step_s"):
            object.__setattr__(self, name, np.atleast_1d(np.asarray(getattr(self, name), dtype=np.float64)))
        shapes = {column.shape for column in (self.nodes, self.gpus, self.local, self.grad_s, self.step_s)}
        if len(shapes) != 1:
            raise InputError(f"columns of a profile have shapes {sorted(shapes)}; give each a value for every key")
        counts = (self.nodes >= 1) & (self.gpus >= self.nodes) & (self.local >= 1)
        good = counts & (self.grad_s > 0) & (self.step_s > 0) & np.isfinite(self.grad_s) & np.isfinite(self.step_s)
        if not good.all():
            row = int(np.argmin(good))
            raise InputError(
                f"row {row} of a profile has nodes={self.nodes[row]}, gpus={self.gpus[row]}, local={self.local[row]}, "
                f"grad_s={self.grad_s[row]}, step_s={self.step_s[row]}; "
                "give 1 <= nodes <= gpus, local >= 1 and positive times in seconds"
            )

    def __len__(self) -> int:
        """How many keys have been measured."""
        return len(self.nodes)


def loss(theta: FloatArray, profile: Profile) -> float:
    """E of the parameters `theta` (7,) on a profile."""
    return loss_and_gradient(theta, profile)[0]


def loss_and_gradient(theta: FloatArray, profile: Profile) -> tuple[float, FloatArray]:
    """E of the parameters `theta` (7,) on a profile, and its gradient (7,)."""
    gradient = np.zeros(THETA)
    return evaluate(np.asarray(theta, dtype=np.float64), observations(profile), gradient), gradient


def observations(profile: Profile) -> FloatArray:
    """A profile as the rows that `evaluate` reads, (7, keys).

    m; K - 2; 1 where several nodes synchronise, else 0; 1 where one node does, else 0; seconds where nothing
    synchronises, else 0; logarithms of both measured times.
    """
    many = profile.gpus > 1
    between = many & (profile.nodes > 1)
    beyond = np.maximum(profile.gpus - 2, TINY)
    rows = (
        profile.local,
        beyond,
        between,
        many & ~between,
        np.where(many, 0.0, TINY),
        np.log(profile.grad_s),
        np.log(profile.step_s),
    )
    return np.stack([np.asarray(row, dtype=np.float64) for row in rows])


def evaluate(theta: FloatArray, seen: FloatArray, gradient: FloatArray) -> float:
    """E of `theta` on `observations`; writes its gradient into `gradient` (7,)."""
    alpha_c, beta_c, alpha_n, beta_n, alpha_r, beta_r, gamma = theta
    local, beyond, between, inside, none, log_grad, log_step = seen
    grad = alpha_c + beta_c * local
    sync = between * (alpha_n + beta_n * beyond) + inside * (alpha_r + beta_r * beyond) + none
    log_g, log_n = np.log(grad), np.log(sync)
    # The share of each phase in the sum of powers, and the logarithm of that sum, without ever leaving the range.
    apart = np.exp(-gamma * np.abs(log_g - log_n))
    log_t = np.maximum(log_g, log_n) + np.log1p(apart) / gamma
    share = np.where(log_g >= log_n, 1.0, apart) / (1.0 + apart)
    first, second = log_grad - log_g, log_step - log_t
    rms_first, rms_second = np.sqrt(np.mean(first * first)), np.sqrt(np.mean(second * second))
    # Where a term is 0 its gradient is not defined; 0 is one of those that fit.
    pull_first = -first / (len(local) * max(rms_first, TINY**2))
    pull_second = -second / (len(local) * max(rms_second, TINY**2))
    by_grad = (pull_first + pull_second * share) / grad
    by_sync = pull_second * (1.0 - share) / sync
    ratio_n, ratio_r = beta_n / alpha_n, beta_r / alpha_r
    gradient[Estimate.ALPHA_C] = by_grad.sum()
    gradient[Estimate.BETA_C] = (local * by_grad).sum()
    gradient[Estimate.ALPHA_N] = (between * by_sync).sum() - 2e-2 * ratio_n * ratio_n / alpha_n
    gradient[Estimate.BETA_N] = (between * beyond * by_sync).sum() + 2e-2 * ratio_n / alpha_n
    gradient[Estimate.ALPHA_R] = (inside * by_sync).sum() - 2e-2 * ratio_r * ratio_r / alpha_r
    gradient[Estimate.BETA_R] = (inside * beyond * by_sync).sum() + 2e-2 * ratio_r / alpha_r
    turn = share * log_g + (1.0 - share) * log_n - log_t
    gradient[Estimate.GAMMA] = (pull_second * turn).sum() / gamma + 2e-3 * (gamma - 1.0)
    ratios = ratio_n * ratio_n + ratio_r * ratio_r
    return float(rms_first + rms_second + 1e-3 * (gamma - 1.0) ** 2 + 1e-2 * ratios)
