"""The least loss of seven bounded parameters, by Gauss-Newton steps with Levenberg's and Marquardt's damping.

L-BFGS-B, which the published code uses, learns the curvature of the loss from gradients. Here it is known: both terms
are root mean squares of residuals whose slopes are analytic. A term e = |r| / sqrt(n) has the curvature
(J'J / n - h h') / e, h = J'r / (n e), up to the curvature of the residuals; without h h' it is an upper bound that
also leads into the kink at e = 0, which few measurements reach. Both are tried, and the better step is taken.

A search can end next to the optimum where a measured synchronisation takes no time: with alpha and beta at 0 and gamma
at 1 each of them gains only if the others do. From there another search begins (`again`).

The two parts that go over all measurements are loops for the compiler, and array expressions where there is none.
"""

from __future__ import annotations

import math
import os

import numpy as np

from plait.core.arrays import FloatArray, IntArray
from plait.core.jit import HAVE_NUMBA, long_kernel, part
from plait.goodput.throughput import array_residuals

#: Most steps, steps in a row with little gain before the search ends, and that gain, relative to the loss.
STEPS = 200
IDLE = 3
GAIN = 1e-10

#: Where damping begins, and beyond which there is no better point.
DAMPING = 1e-3
MOST_DAMPING = 1e10

#: Least root mean square for slopes and curvature: nearer to the kink they would forbid to move along it.
ZERO = 1e-6

#: An alpha below this part of the time of a pass counts as free; and the part, and gamma, with which the search
#: continues.
FREE, PART, APART = 1e-2, 0.05, 2.0

#: Columns of theta: alpha and beta of compute, between nodes and inside a node; gamma.
COMPUTE, BETWEEN, INSIDE, GAMMA, COLUMNS = 0, 2, 4, 6, 7


def each_residual(theta, seen, errors, slopes):  # type: ignore[no-untyped-def]
    """`array_residuals` one measurement at a time; same `theta`, `seen`, `errors` and `slopes`."""
    gamma = theta[GAMMA]
    for key in range(seen.shape[1]):
        local, beyond, between, inside = seen[0, key], seen[1, key], seen[2, key], seen[3, key]
        grad = theta[COMPUTE] + theta[COMPUTE + 1] * local
        sync = between * (theta[BETWEEN] + theta[BETWEEN + 1] * beyond)
        sync += inside * (theta[INSIDE] + theta[INSIDE + 1] * beyond) + seen[4, key]
        log_g, log_n = math.log(grad), math.log(sync)
        odds = math.exp(min(gamma * (log_n - log_g), 700.0))
        log_t = log_g + math.log1p(odds) / gamma
        share = 1.0 / (1.0 + odds)
        errors[0, key] = log_g - seen[5, key]
        errors[1, key] = log_t - seen[6, key]
        slopes[0, key] = 1.0 / grad
        slopes[1, key] = local / grad
        slopes[2, key] = share / grad
        slopes[3, key] = share / grad * local
        rest = (1.0 - share) / sync
        slopes[4, key] = between * rest
        slopes[5, key] = between * rest * beyond
        slopes[6, key] = inside * rest
        slopes[7, key] = inside * rest * beyond
        slopes[8, key] = (share * log_g + (1.0 - share) * log_n - log_t) / gamma


def each_product(left, right):  # type: ignore[no-untyped-def]
    """The sum of products, one at a time."""
    value = 0.0
    for key in range(len(left)):
        value += left[key] * right[key]
    return value


COMPILED = HAVE_NUMBA and os.environ.get("NUMBA_DISABLE_JIT", "0") == "0"
quick_residuals = part(each_residual) if COMPILED else array_residuals
dot = part(each_product) if COMPILED else np.dot


@part
def total(theta, errors):  # type: ignore[no-untyped-def]
    """The loss of these errors and of the parameters themselves."""
    value = np.sqrt(dot(errors[0], errors[0]) / len(errors[0])) + np.sqrt(dot(errors[1], errors[1]) / len(errors[1]))
    value += 1e-3 * (theta[GAMMA] - 1.0) ** 2
    value += 1e-2 * (theta[BETWEEN + 1] / theta[BETWEEN]) ** 2
    return value + 1e-2 * (theta[INSIDE + 1] / theta[INSIDE]) ** 2


@part
def curvature(theta, errors, slopes, gradient, upper, exact):  # type: ignore[no-untyped-def]
    """Write `gradient` (7,), `upper` bound of the curvature, and `exact`, the curvature without second slopes."""
    keys = errors.shape[1]
    for a in range(COLUMNS):
        gradient[a] = 0.0
        for b in range(a + 1):
            upper[a, b] = exact[a, b] = 0.0
    for term in range(2):
        columns, first = (2, 0) if term == 0 else (COLUMNS, 2)
        size = max(np.sqrt(dot(errors[term], errors[term]) / keys), ZERO)
        pull = np.zeros(COLUMNS)
        for a in range(columns):
            pull[a] = dot(slopes[first + a], errors[term]) / (keys * size)
            gradient[a] += pull[a]
            for b in range(a + 1):
                bent = dot(slopes[first + a], slopes[first + b]) / (keys * size)
                upper[a, b] += bent
                exact[a, b] += bent - pull[a] * pull[b] / size
    for pair in (BETWEEN, INSIDE):
        alpha = theta[pair]
        ratio = theta[pair + 1] / alpha
        gradient[pair] -= 2e-2 * ratio * ratio / alpha
        gradient[pair + 1] += 2e-2 * ratio / alpha
        for matrix in (upper, exact):
            matrix[pair, pair] += 2e-2 * (ratio / alpha) ** 2
            matrix[pair + 1, pair] -= 2e-2 * ratio / alpha**2
            matrix[pair + 1, pair + 1] += 2e-2 / alpha**2
    gradient[GAMMA] += 2e-3 * (theta[GAMMA] - 1.0)
    upper[GAMMA, GAMMA] += 2e-3
    exact[GAMMA, GAMMA] += 2e-3


@part
def moved(theta, step, lower, upper, result):  # type: ignore[no-untyped-def]
    """Write `theta` + `step`, moved into `lower` to `upper`, to `result`; all (7,)."""
    for a in range(COLUMNS):
        result[a] = min(max(theta[a] + step[a], lower[a]), upper[a])


@part
def solve(matrix, diagonal, gradient, free, step):  # type: ignore[no-untyped-def]
    """Write into the free entries of `step` the solution of (matrix + diag(diagonal)) step = -gradient.

    `matrix` is read below its diagonal; entries that are not free keep their step, and the others take it into account.
    """
    root = np.zeros((COLUMNS, COLUMNS))
    right = np.zeros(COLUMNS)
    for a in range(COLUMNS):
        if not free[a]:
            continue
        right[a] = -gradient[a]
        for b in range(COLUMNS):
            if not free[b]:
                right[a] -= (matrix[a, b] if b < a else matrix[b, a]) * step[b]
        for b in range(a + 1):
            if not free[b]:
                continue
            value = matrix[a, b]
            for c in range(b):
                value -= root[a, c] * root[b, c]
            if b < a:
                root[a, b] = value / root[b, b]
            else:
                root[a, a] = np.sqrt(max(value + diagonal[a], 1e-12 * (matrix[a, a] + diagonal[a]), 1e-300))
        for c in range(a):
            right[a] -= root[a, c] * right[c]
        right[a] /= root[a, a]
    for a in range(COLUMNS - 1, -1, -1):
        if free[a]:
            for c in range(a + 1, COLUMNS):
                if free[c]:
                    right[a] -= root[c, a] * right[c]
            right[a] /= root[a, a]
            step[a] = right[a]


@part
def bounded(matrix, diagonal, gradient, theta, lower, upper, step):  # type: ignore[no-untyped-def]
    """Write the damped step from `theta` that stays in the bounds: what would leave them goes there and no further."""
    free = np.zeros(COLUMNS, dtype=np.bool_)
    for a in range(COLUMNS):
        step[a] = 0.0
        stuck = (theta[a] <= lower[a] and gradient[a] > 0) or (theta[a] >= upper[a] and gradient[a] < 0)
        free[a] = lower[a] < upper[a] and not stuck
    for _ in range(COLUMNS):
        solve(matrix, diagonal, gradient, free, step)
        inside = True
        for a in range(COLUMNS):
            if free[a] and not lower[a] <= theta[a] + step[a] <= upper[a]:
                step[a] = min(max(step[a], lower[a] - theta[a]), upper[a] - theta[a])
                free[a] = inside = False
        if inside:
            break


@part
def search(seen, start, lower, upper, theta):  # type: ignore[no-untyped-def]
    """Write the parameters at which the search from `start` ends; return their loss."""
    keys = seen.shape[1]
    errors, slopes = np.zeros((2, keys)), np.zeros((COLUMNS + 2, keys))
    gradient, bound, exact = np.zeros(COLUMNS), np.zeros((COLUMNS, COLUMNS)), np.zeros((COLUMNS, COLUMNS))
    trial, better, step, diagonal = np.zeros(COLUMNS), np.zeros(COLUMNS), np.zeros(COLUMNS), np.zeros(COLUMNS)
    moved(start, step, lower, upper, theta)
    quick_residuals(theta, seen, errors, slopes)
    best = total(theta, errors)
    damping, idle = DAMPING, 0
    for _ in range(STEPS):
        curvature(theta, errors, slopes, gradient, bound, exact)
        reached = best
        while reached >= best and damping <= MOST_DAMPING:
            for a in range(COLUMNS):
                diagonal[a] = damping * bound[a, a]
            for matrix in (exact, bound):
                bounded(matrix, diagonal, gradient, theta, lower, upper, step)
                moved(theta, step, lower, upper, trial)
                quick_residuals(trial, seen, errors, slopes)
                value = total(trial, errors)
                if value < reached:
                    reached = value
                    trial, better = better, trial
            damping = damping * 4.0 if reached >= best else max(damping * 0.2, 1e-12)
        if reached >= best:
            break
        idle = idle + 1 if best - reached <= GAIN * best else 0
        best = reached
        for a in range(COLUMNS):
            theta[a] = better[a]
        quick_residuals(theta, seen, errors, slopes)
        if idle >= IDLE:
            break
    return best


@part
def again(seen, theta, lower, upper, start):  # type: ignore[no-untyped-def]
    """Whether `theta` has a measured synchronisation for free; writes a start where it is not."""
    keys = seen.shape[1]
    pass_s = 0.0
    for key in range(keys):
        pass_s += math.exp(seen[5, key]) / keys
    for a in range(COLUMNS):
        start[a] = theta[a]
    start[GAMMA] = max(theta[GAMMA], APART)
    free = False
    for pair in (BETWEEN, INSIDE):
        if lower[pair] < upper[pair] and theta[pair] < FREE * pass_s:
            start[pair], start[pair + 1] = PART * pass_s, PART * pass_s / 10
            free = True
    return free


@long_kernel
def search_many(
    seen: FloatArray, first: IntArray, starts: FloatArray, lower: FloatArray, upper: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """The best ends (J, 7) of searches from S starts a job (J, S, 7), and their losses (J,).

    `seen` (7, keys) holds the observations of all jobs one behind another, job j's from first[j] to first[j + 1];
    bounds are (J, 7). Starts with a NaN are passed over. Where the best end has a synchronisation for free, another
    search begins next to it.
    """
    jobs = len(lower)
    ends, losses = np.zeros((jobs, COLUMNS)), np.zeros(jobs)
    theta, beside = np.zeros(COLUMNS), np.zeros(COLUMNS)
    for job in range(jobs):
        losses[job] = np.inf
        own = seen[:, first[job] : first[job + 1]]
        for begin in range(starts.shape[1] + 1):
            start = starts[job, begin] if begin < starts.shape[1] else beside
            if begin == starts.shape[1]:
                if not again(own, ends[job], lower[job], upper[job], beside):
                    break
            elif math.isnan(dot(start, start)):
                continue
            value = search(own, start, lower[job], upper[job], theta)
            if value < losses[job]:
                losses[job] = value
                for a in range(COLUMNS):
                    ends[job, a] = theta[a]
    return ends, losses
