"""Seconds of an iteration on given GPUs (Pollux, OSDI'21, section 3.2).

    T_grad(m) = alpha_c + beta_c m
    T_sync    = 0 on one GPU; alpha + beta (K - 2) with the pair of the node (N = 1) or of the network (N > 1)
    T_opt     = (T_grad^gamma + T_sync^gamma)^(1/gamma)
    T_iter    = s T_grad + T_opt

`theta[..., 7]` holds (alpha_c, beta_c, alpha_n, beta_n, alpha_r, beta_r, gamma); its leading axes broadcast against
nodes N, gpus K, local batch m (examples) and accumulation-only passes s. All times in seconds. Of the placement only
K and whether N > 1 count.

Statistical efficiency: the worth of an example in a larger batch (Pollux, OSDI'21, section 3.1).

`sqr` is the squared norm of the true (pre-conditioned) gradient, `var` the variance of its estimate at the user's
batch size M0, and scale S = M / M0. The gradient noise scale is phi = M0 var / sqr, in examples.

Goodput relative to a fair share of the cluster, and what a restart costs (Pollux, OSDI'21, section 4.2).

The error of throughput parameters against measurements, and its gradient (Pollux, section 4.1).

    E = RMSE(log T_grad) + RMSE(log T_opt) + 1e-3 (gamma - 1)^2 + 1e-2 ((beta_n / alpha_n)^2 + (beta_r / alpha_r)^2)

With r1, r2 the errors of both logarithms over n keys and e1, e2 their root mean squares, the gradient is the sum of
r1 / (n e1) times the slope of log T_grad and of r2 / (n e2) times the slope of log T_opt.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from plait.core.arrays import BoolArray, FloatArray, IntArray
from plait.core.errors import InputError
from plait.core.goodput import THETA, Estimate

#: Stands for zero seconds, and for zero GPUs beyond the second, so that logarithms exist.
TINY = 1e-8


def grad_s(theta: FloatArray, local: npt.ArrayLike) -> FloatArray:
    """T_grad(m): seconds of one forward and backward pass of `local` (m) examples on one GPU."""
    time: FloatArray = theta[..., Estimate.ALPHA_C] + theta[..., Estimate.BETA_C] * np.asarray(local)
    return time


def sync_s(theta: FloatArray, nodes: npt.ArrayLike, gpus: npt.ArrayLike) -> FloatArray:
    """T_sync: seconds of one synchronisation of `gpus` (K) GPUs on `nodes` (N) nodes; `TINY` for one GPU."""
    nodes, gpus = np.asarray(nodes), np.asarray(gpus)
    beyond = np.maximum(gpus - 2, TINY)
    inside = theta[..., Estimate.ALPHA_R] + theta[..., Estimate.BETA_R] * beyond
    between = theta[..., Estimate.ALPHA_N] + theta[..., Estimate.BETA_N] * beyond
    time: FloatArray = np.where(gpus <= 1, TINY, np.where(nodes > 1, between, inside))
    return time


def overlapped_s(grad: FloatArray, sync: FloatArray, gamma: FloatArray) -> FloatArray:
    """Seconds of two overlapping phases `grad` and `sync`: their sum for `gamma` 1, close to the longer one for 10."""
    first, second = np.log(grad), np.log(sync)
    log_s = np.maximum(first, second) + np.log1p(np.exp(-gamma * np.abs(first - second))) / gamma
    time: FloatArray = np.exp(log_s)
    return time


def step_s(theta: FloatArray, nodes: npt.ArrayLike, gpus: npt.ArrayLike, local: npt.ArrayLike) -> FloatArray:
    """T_opt: seconds of the pass of `local` (m) examples that synchronises and ends with the optimiser's step."""
    return overlapped_s(grad_s(theta, local), sync_s(theta, nodes, gpus), theta[..., Estimate.GAMMA])


def iteration_s(
    theta: FloatArray, nodes: npt.ArrayLike, gpus: npt.ArrayLike, local: npt.ArrayLike, passes: npt.ArrayLike
) -> FloatArray:
    """T_iter: seconds of `passes` accumulation-only passes and a synchronising one."""
    time: FloatArray = np.asarray(passes) * grad_s(theta, local) + step_s(theta, nodes, gpus, local)
    return time


def throughput(
    theta: FloatArray, nodes: npt.ArrayLike, gpus: npt.ArrayLike, local: npt.ArrayLike, passes: npt.ArrayLike
) -> FloatArray:
    """Examples per second of `gpus` GPUs with `local` examples each in `passes` + 1 passes: K m (s + 1) / T_iter."""
    examples = np.asarray(gpus) * np.asarray(local) * (np.asarray(passes) + 1)
    rate: FloatArray = examples / iteration_s(theta, nodes, gpus, local, passes)
    return rate


def gain(sqr: npt.ArrayLike, var: npt.ArrayLike, scale: npt.ArrayLike) -> FloatArray:
    """Progress of a step at `scale` (S) times M0 examples, in steps at M0: (var + sqr) / (var / S + sqr); 1 if unknown.

    Between 1 (no noise: a larger batch brings nothing) and S (only noise) for S >= 1.
    """
    sqr, var = np.asarray(sqr, dtype=np.float64), np.asarray(var, dtype=np.float64)
    below = var / np.asarray(scale) + sqr
    known = below > 0
    ratio: FloatArray = np.where(known, (var + sqr) / np.where(known, below, 1.0), 1.0)
    return ratio


def efficiency(sqr: npt.ArrayLike, var: npt.ArrayLike, scale: npt.ArrayLike) -> FloatArray:
    """Progress per example relative to M0: `gain` / `scale` = (phi + M0) / (phi + M), in (0, 1] for `scale` >= 1."""
    part: FloatArray = gain(sqr, var, scale) / np.asarray(scale)
    return part


def noise_scale(sqr: npt.ArrayLike, var: npt.ArrayLike, initial: npt.ArrayLike) -> FloatArray:
    """The noise scale phi = M0 var / sqr in examples, M0 being `initial`; infinite where `sqr` is not positive."""
    sqr = np.asarray(sqr, dtype=np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        phi: FloatArray = np.where(sqr > 0, np.asarray(initial) * np.asarray(var) / sqr, np.inf)
    return phi


def fair_share(gpus: int, jobs: int, gpus_per_node: int, *, one_node: bool = False) -> tuple[int, int]:
    """(N_f, K_f): the share of each of `jobs` jobs in `gpus` GPUs, rounded up, on as few nodes as hold it.

    `one_node` puts every share on one node, as the published code does by mistake.
    """
    share = -(-gpus // max(jobs, 1))
    return (1 if one_node else max(1, -(-share // gpus_per_node))), share


def speedup(values: FloatArray, base: FloatArray) -> FloatArray:
    """Goodputs (J, C) over each job's goodput on its fair share (J,); 0 where the job cannot run on that share."""
    base = np.asarray(base, dtype=np.float64)[:, None]
    ratio: FloatArray = np.where(base > 0, values / np.where(base > 0, base, 1.0), 0.0)
    return ratio


def restart_factor(
    age_s: npt.ArrayLike, restarts: npt.ArrayLike, delta_s: npt.ArrayLike, *, ran: BoolArray | None = None
) -> FloatArray:
    """The part of a speed-up that remains when the job has to restart: max(T - R delta, 0) / (T + delta), in [0, 1).

    T is the age of a job (s since submission), R its restarts so far and delta the cost of one (s). Jobs that never
    ran (`ran` false) lose nothing: their factor is 1. Without `ran` the formula holds for all, as published, and a job
    submitted at this very moment is worth nothing.
    """
    age, delta = np.asarray(age_s, dtype=np.float64), np.asarray(delta_s, dtype=np.float64)
    left = np.maximum(age - np.asarray(restarts) * delta, 0.0)
    total = age + delta
    factor: FloatArray = np.divide(left, total, out=np.ones(np.broadcast(left, total).shape), where=total > 0)
    return factor if ran is None else np.where(ran, factor, 1.0)


def replica_cap(profiled: npt.ArrayLike, most: npt.ArrayLike, least_local: npt.ArrayLike) -> IntArray:
    """Most GPUs of a job: twice the most it has been `profiled` on, and at most `most` / `least_local`."""
    explored = np.maximum(1, 2 * np.asarray(profiled, dtype=np.int64))
    cap: IntArray = np.minimum(explored, np.asarray(most, dtype=np.int64) // np.asarray(least_local, dtype=np.int64))
    return cap


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
    volume: FloatArray = field(default_factory=lambda: np.ones(1))
    """Bytes exchanged in that pass relative to an all-reduce of the gradients (`plait.goodput.execution_plans`)."""

    def __post_init__(self) -> None:
        for name, kind in (("nodes", np.int64), ("gpus", np.int64), ("local", np.int64)):
            object.__setattr__(self, name, np.atleast_1d(np.asarray(getattr(self, name), dtype=kind)))
        for name in ("grad_s", "step_s"):
            object.__setattr__(self, name, np.atleast_1d(np.asarray(getattr(self, name), dtype=np.float64)))
        object.__setattr__(self, "volume", np.broadcast_to(self.volume, self.step_s.shape))
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

    m; K - 2; the volume where several nodes synchronise, else 0; the same where one node does; seconds where nothing
    synchronises, else 0; logarithms of both measured times.
    """
    many = profile.gpus > 1
    between = many & (profile.nodes > 1)
    beyond = np.maximum(profile.gpus - 2, TINY)
    rows = (
        profile.local,
        beyond,
        between * profile.volume,
        (many & ~between) * profile.volume,
        np.where(many, 0.0, TINY),
        np.log(profile.grad_s),
        np.log(profile.step_s),
    )
    return np.stack([np.asarray(row, dtype=np.float64) for row in rows])


def evaluate(theta: FloatArray, seen: FloatArray, gradient: FloatArray) -> float:
    """E of `theta` on `observations`; writes its gradient into `gradient` (7,)."""
    keys = seen.shape[1]
    errors, slopes = np.empty((2, keys)), np.empty((2 + THETA, keys))
    array_residuals(theta, seen, errors, slopes)
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


def array_residuals(theta: FloatArray, seen: FloatArray, errors: FloatArray, slopes: FloatArray) -> None:
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
