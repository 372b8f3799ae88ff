"""The fit of adaptive jobs and the table of their goodput, against SciPy and against a call per job.

    python benchmarks/bench_goodput.py [--quick]

Jobs are drawn around the six published models (Pollux, OSDI'21; fits of its published measurements), with noise of
5 % on each measured time. All fits of a row have the same profiles and the same start. The note has the loss of each;
less is better.
"""

from __future__ import annotations

import sys
from functools import partial

import common
import numpy as np
from common import Figure

from plait.core.arrays import FloatArray, IntArray
from plait.goodput.batch import best_batch, goodput_table
from plait.goodput.fit import START, Measurements, bounds, fit_many, loss, minimised
from plait.goodput.jobs import GoodputJobs
from plait.goodput.throughput import grad_s, observations, step_s

# bert, cifar10, ncf, imagenet, deepspeech2, yolov3: theta, then M0, M_max, m_min, m_max, share of the workload.
THETA = np.array(
    [
        [0.1719, 0.05861, 1.386, 0.00943, 0.284, 0.0096, 1.90],
        [0.01866, 0.0006798, 0.09152, 0.002525, 0.0154, 5e-8, 1.277],
        [0.006957, 6.355e-7, 0.01748, 0.000556, 0.006, 1e-7, 1.248],
        [0.06417, 0.00448, 0.2994, 0.006638, 0.02649, 5.35e-5, 2.47],
        [0.3111, 0.02384, 0.4871, 0.009818, 0.0839, 0.00137, 1.413],
        [0.1871, 0.02538, 0.7491, 0.01071, 0.1283, 0.01744, 1.108],
    ]
)
LIMITS = np.array(
    [
        [12, 384, 4, 12],
        [128, 4096, 32, 1024],
        [256, 32768, 32, 32768],
        [200, 12800, 20, 200],
        [20, 640, 10, 80],
        [8, 512, 4, 8],
    ]
)
SHARES = [0.10, 0.36, 0.36, 0.02, 0.10, 0.06]


def some_jobs(count: int) -> GoodputJobs:
    """Adaptive jobs with a fit."""
    rng = np.random.default_rng(count)
    kind = rng.choice(len(THETA), count, p=SHARES)
    theta = THETA[kind] * np.exp(0.1 * rng.standard_normal((count, 7)))
    theta[:, 6] = theta[:, 6].clip(1, 10)
    return GoodputJobs(theta, np.ones(count), rng.uniform(1, 100, count), *LIMITS[kind].T, np.ones(count, dtype=bool))


def configurations(nodes: int, each: int = 4) -> IntArray:
    """Powers of two up to a node, then whole nodes."""
    inside = [(1, 2**power) for power in range(each.bit_length())]
    return np.array(inside + [(count, count * each) for count in range(2, nodes + 1)])


def profiles(count: int) -> list[Measurements]:
    """What jobs have measured after 1 to 40 different configurations."""
    rng = np.random.default_rng(count)
    made = []
    for theta in some_jobs(count).theta:
        keys = int(rng.integers(1, 41))
        gpus = rng.integers(1, 33, keys)
        nodes = np.minimum(rng.integers(1, 9, keys), gpus)
        local = rng.integers(4, 65, keys)
        spread = np.exp(0.05 * rng.standard_normal((2, keys)))
        made.append(
            Measurements(
                nodes, gpus, local, grad_s(theta, local) * spread[0], step_s(theta, nodes, gpus, local) * spread[1]
            )
        )
    return made


def by_scipy(measured: list[Measurements], gradient: bool) -> FloatArray:
    """L-BFGS-B from the published start, one job after the other."""
    ends = [minimised(observations(p), START, *bounds(p), gradient=gradient)[1] for p in measured]
    return np.array(ends)


def fits(count: int) -> list[Figure]:
    """A cold fit of each job."""
    measured = profiles(count)

    def mean_loss(thetas: FloatArray) -> float:
        limits = [bounds(p) for p in measured]
        return float(np.mean([loss(np.clip(t, *b), p) for t, b, p in zip(thetas, limits, measured, strict=True)]))

    ours = common.cpu_s(partial(fit_many, measured))
    figures = []
    for name, gradient in (("L-BFGS-B, finite differences", False), ("L-BFGS-B, analytic gradient", True)):
        theirs = common.cpu_s(partial(by_scipy, measured, gradient), 1)
        note = f"mean loss {mean_loss(fit_many(measured)):.5f} against {mean_loss(by_scipy(measured, gradient)):.5f}"
        figures.append(Figure(f"fit of {count} jobs", ours, common.RUNS, theirs / ours, name, note=note))
    return figures


def tables(count: int, nodes: int, goal: str) -> list[Figure]:
    """Goodput of all jobs on all configurations."""
    jobs, configs = some_jobs(count), configurations(nodes)
    ours = common.cpu_s(partial(goodput_table, jobs, configs))

    def per_job() -> None:
        for row in range(count):
            best_batch(jobs[[row]], *configs.T)

    def per_cell(some: int) -> None:
        for row in range(some):
            for config in configs:
                best_batch(jobs[[row]], *config)

    label = f"table of {count} jobs, {len(configs)} configurations"
    each = common.cpu_s(per_job, 1)
    some = max(1, 2000 // len(configs))
    cells = common.cpu_s(partial(per_cell, some), 1) * count / some
    return [
        Figure(label, ours, common.RUNS, each / ours, "a call per job", goal),
        Figure(label, ours, common.RUNS, cells / ours, "a call per job and configuration", goal, f"of {some} jobs"),
    ]


def main() -> None:
    """Measure and print."""
    quick = "--quick" in sys.argv
    fit_many(profiles(2))  # compile
    figures = fits(16 if quick else 160)
    figures += tables(160, 16, "goal <= 0.02 s")
    figures += [] if quick else tables(300, 512, "goal <= 0.5 s")
    common.show(figures)


if __name__ == "__main__":
    main()
