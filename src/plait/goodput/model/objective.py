"""The error of throughput parameters against measurements, and its gradient (Pollux, section 4.1).

    E = RMSE(log T_grad) + RMSE(log T_opt) + 1e-3 (gamma - 1)^2 + 1e-2 ((beta_n / alpha_n)^2 + (beta_r / alpha_r)^2)

With r1, r2 the errors of both logarithms over n keys and e1, e2 their root mean squares, the gradient is the sum of
r1 / (n e1) times the slope of log T_grad and of r2 / (n e2) times the slope of log T_opt.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from plait.core.arrays import FloatArray, IntArray
from plait.core.errors import InputError
from plait.core.goodput import THETA, Estimate
from plait.goodput.model.throughput import TINY


@dataclass(frozen=True, slots=True, eq=False)
class Measurements:
    """Measurements of one job: a row for each distinct (nodes, gpus, local batch), all of the same weight."""

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
        """Make columns; raise `InputError` if they differ in length or hold impossible measurements."""
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


def loss(theta: FloatArray, profile: Measurements) -> float:
    """E of the parameters `theta` (7,) on a profile."""
    return loss_and_gradient(theta, profile)[0]


def loss_and_gradient(theta: FloatArray, profile: Measurements) -> tuple[float, FloatArray]:
    """E of the parameters `theta` (7,) on a profile, and its gradient (7,)."""
    gradient = np.zeros(THETA)
    return evaluate(np.asarray(theta, dtype=np.float64), observations(profile), gradient), gradient


def observations(profile: Measurements) -> FloatArray:
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
    keys = seen.shape[1]
    errors, slopes = np.empty((2, keys)), np.empty((2 + THETA, keys))
    residuals(theta, seen, errors, slopes)
    sizes = np.sqrt((errors * errors).mean(axis=1))
    # Where a term is 0 its gradient is not defined; 0 is a valid one.
    pull = errors / (keys * np.maximum(sizes, TINY**2))[:, None]
    gradient[:] = (slopes[2:] * pull[1]).sum(axis=1)
    gradient[: Estimate.ALPHA_N] += (slopes[:2] * pull[0]).sum(axis=1)
    value = sizes.sum() + 1e-3 * (theta[Estimate.GAMMA] - 1.0) ** 2
    gradient[Estimate.GAMMA] += 2e-3 * (theta[Estimate.GAMMA] - 1.0)
    for alpha, beta in ((Estimate.ALPHA_N, Estimate.BETA_N), (Estimate.ALPHA_R, Estimate.BETA_R)):
        ratio = theta[beta] / theta[alpha]
        value += 1e-2 * ratio * ratio
        gradient[alpha] -= 2e-2 * ratio * ratio / theta[alpha]
        gradient[beta] += 2e-2 * ratio / theta[alpha]
    return float(value)


def residuals(theta: FloatArray, seen: FloatArray, errors: FloatArray, slopes: FloatArray) -> None:
    """Write how far both logarithms are off, and their slopes.

    `errors` (2, keys): of T_grad, of T_opt. `slopes` (9, keys): two of the first, by alpha_c and beta_c; seven of the
    second, by each parameter. `seen` comes from `observations`.
    """
    alpha_c, beta_c, alpha_n, beta_n, alpha_r, beta_r, gamma = theta
    local, beyond, between, inside, none, log_grad, log_step = seen
    grad = alpha_c + beta_c * local
    sync = between * (alpha_n + beta_n * beyond) + inside * (alpha_r + beta_r * beyond) + none
    log_g, log_n = np.log(grad), np.log(sync)
    odds = np.exp(np.minimum(gamma * (log_n - log_g), 700.0))
    log_t = log_g + np.log1p(odds) / gamma
    share = 1.0 / (1.0 + odds)
    errors[0] = log_g - log_grad
    errors[1] = log_t - log_step
    slopes[0] = 1.0 / grad
    slopes[1] = local / grad
    slopes[2] = share / grad
    slopes[3] = slopes[2] * local
    rest = (1.0 - share) / sync
    slopes[4] = between * rest
    slopes[5] = slopes[4] * beyond
    slopes[6] = inside * rest
    slopes[7] = slopes[6] * beyond
    slopes[8] = (share * log_g + (1.0 - share) * log_n - log_t) / gamma
