"""Jobs to group: profiles like those of Muri's models, and small random ones with many ties."""

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from plait.core.arrays import FloatArray
from plait.grouping.bucket import Candidates

#: Storage, CPU, GPU and network seconds of eight models; how data time splits into storage and CPU is assumed.
MODELS = (
    np.array(
        [
            [560, 146, 59, 15],
            [560, 150, 115, 75],
            [60, 20, 72, 65],
            [62, 22, 85, 70],
            [0.4, 0.1, 166, 60],
            [0.5, 0.1, 415, 50],
            [4, 500, 14, 1],
            [4, 436, 8, 1],
        ]
    )
    / 1000
)


def continuous(count: int, seed: int = 0) -> FloatArray:
    """Every job a kind of its own: lognormal noise of sigma 0.35 on each stage of a model."""
    random = np.random.default_rng(seed)
    return MODELS[random.integers(0, len(MODELS), count)] * random.lognormal(0, 0.35, (count, 4))


def few_kinds(count: int, kinds: int, seed: int = 0) -> FloatArray:
    """Jobs drawn from so many kinds."""
    random = np.random.default_rng(seed)
    profiles = MODELS[np.arange(kinds) % len(MODELS)] * random.lognormal(0, 0.35, (kinds, 4))
    return profiles[random.integers(0, kinds, count)]


def candidates(stage_s: FloatArray, gpus: object = 1, **more: FloatArray) -> Candidates:
    """Jobs without overlap inside: an iteration is the sum of its stages."""
    return Candidates(stage_s, stage_s.sum(axis=1), np.broadcast_to(gpus, len(stage_s)), **more)


def stages(jobs: st.SearchStrategy[int] | int, resources: st.SearchStrategy[int] | int = 4) -> st.SearchStrategy:
    """Stage times on a coarse grid, so that ties and zeros are common, and no job of nothing."""
    times = st.integers(0, 6).map(lambda t: t / 4)

    def of(shape: tuple[int, int]) -> st.SearchStrategy:
        return hnp.arrays(np.float64, shape, elements=times).map(lambda a: np.where(a.sum(1, keepdims=True), a, 0.25))

    def some(n: st.SearchStrategy[int] | int) -> st.SearchStrategy[int]:
        return st.just(n) if isinstance(n, int) else n

    return st.tuples(some(jobs), some(resources)).flatmap(of)
