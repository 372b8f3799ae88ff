"""Jobs that the tests of goodput share: the oracle of the specification, and random ones."""

import numpy as np

from plait.goodput.jobs import GoodputJobs

LIMITS = np.array(
    [
        [12, 384, 4, 12],
        [128, 4096, 32, 1024],
        [20, 640, 10, 80],
        [200, 12800, 20, 200],
        [256, 32768, 32, 32768],
        [8, 512, 4, 8],
    ]
)
"""M0, M_max, m_min, m_max of the published models."""


def oracle() -> GoodputJobs:
    theta = [[0.1, 0.01, 0.5, 0.05, 0.2, 0.02, 1.5]]
    return GoodputJobs(np.array(theta), [1], [4], [16], [256], [4], [32], [True])


def some_jobs(seed: int, count: int, limits: np.ndarray = LIMITS) -> GoodputJobs:
    rng = np.random.default_rng(seed)
    theta = rng.gamma(2, 2, (count, 7)) * [0.1, 0.01, 0.1, 0.01, 0.1, 0.01, 1] + [0, 0, 0, 0, 0, 0, 1]
    bounds = limits[rng.integers(0, len(limits), count)]
    noise = rng.gamma(2, 2, (2, count))
    return GoodputJobs(theta, *noise, *bounds.T, rng.random(count) < 0.7)
