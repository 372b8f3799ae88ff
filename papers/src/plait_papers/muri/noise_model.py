"""A scheduler with wrong stage times, while the jobs run with the true ones (figure 14)."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations

import numpy as np

from plait.core.arrays import FloatArray, IntArray
from plait_papers.muri.artifact.speeds import rotation
from plait_papers.muri.artifact.trace import ArtifactTrace

Stages = tuple[float, float, float]


def noisy(trace: ArtifactTrace, noise: float, seed: int) -> ArtifactTrace:
    """`trace` with stage times as a profiler measures them with this `noise`, drawn by `seed`."""
    keys = sorted({(model, int(gpus)) for model, gpus in zip(trace.model, trace.gpus, strict=True)})
    drawn = np.random.default_rng(seed).uniform(1 - noise, 1 + noise, (len(keys), 3))
    where = {key: i for i, key in enumerate(keys)}
    factor = drawn[[where[model, int(gpus)] for model, gpus in zip(trace.model, trace.gpus, strict=True)]]
    return replace(
        trace,
        data_s=trace.data_s * factor[:, 0],
        gpu_s=trace.gpu_s * factor[:, 1],
        network_s=trace.network_s * factor[:, 2],
    )


class NoisyProfiles:
    """Times of groups arranged best (or worst) by the noisy stage times.

    Replaces `Profiles.times`; caches results by the profiles of the members.
    """

    def __init__(self, truth: ArtifactTrace, seen: ArtifactTrace) -> None:
        """`truth` and `seen` are the same jobs with different stage times."""
        rows = np.column_stack([t for trace in (truth, seen) for t in (trace.data_s, trace.gpu_s, trace.network_s)])
        kinds, of = np.unique(rows, axis=0, return_inverse=True)
        self._of: IntArray = of.reshape(-1)
        self._true: list[Stages] = [(d, g, n) for d, g, n, *_ in kinds.tolist()]
        self._seen: list[Stages] = [(d, g, n) for *_, d, g, n in kinds.tolist()]
        self._found: dict[tuple[bool, tuple[int, ...]], float] = {}

    def times(self, members: IntArray, size: IntArray, factor: FloatArray, *, worst: bool = False) -> FloatArray:
        """Seconds of an iteration of each group of 2 to 4 jobs, interference included; 0 for single jobs."""
        out = np.zeros(len(size))
        for u in np.flatnonzero(size > 1):
            kinds = tuple(sorted(self._of[members[u, : size[u]]].tolist()))
            if (worst, kinds) not in self._found:
                self._found[worst, kinds] = self._time(kinds, worst)
            out[u] = self._found[worst, kinds] * factor[size[u]]
        return out

    def _time(self, kinds: tuple[int, ...], worst: bool) -> float:
        seen = [self._seen[k] for k in kinds]
        true = [self._true[k] for k in kinds]
        choices = [(rotation([seen[i] for i in p]), p) for p in permutations(range(len(kinds)))]
        believed, chosen = max(choices, key=_first) if worst else min(choices, key=_first)
        if len(kinds) == 2:
            other = opposite(seen)
            if other > believed if worst else other < believed:
                return opposite(true)
        return rotation([true[i] for i in chosen])


def _first(choice: tuple[float, tuple[int, ...]]) -> float:
    return choice[0]


def opposite(stages: list[Stages]) -> float:
    """Seconds of one iteration of two jobs in opposite phases, slots 0 and 2."""
    (d0, g0, n0), (d1, g1, n1) = stages
    return max(d0, g1 + n1) + max(d1, g0 + n0)
