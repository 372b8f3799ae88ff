"""Figure 14: the scheduler sees stage times that are off, the jobs run as they are.

Each stage time of a (model, GPU count) is multiplied by its own U[1-n, 1+n]: a profile is measured once and reused
by later jobs of the model. Which groups there are, in which stage order, and what the guard splits
follow the noisy profile; how fast a group then runs follows the true one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from plait_papers.muri.compare import Folder
from plait_papers.muri.figures import NOISE, NOISE_TRACE
from plait_papers.muri.runs import Case, Done

POLICIES = {"Muri-S": "muri-s", "Muri-L": "muri-l"}
WORLDS = ("artifact", "plait")
SEEDS = range(10)


@dataclass(frozen=True, slots=True)
class NoiseRow:
    """One policy in one world at one noise: figures relative to no noise, means over the seeds."""

    world: str
    policy: str
    noise: float
    jct_ratio: float
    jct_low: float
    jct_high: float
    makespan_ratio: float


def cases(folder: Folder) -> list[Case]:
    """The runs of the figure; without noise every seed is the same."""
    every = [_case(folder, w, name, n, seed) for w in WORLDS for name in POLICIES for n in NOISE for seed in _seeds(n)]
    return [case for case in every if case is not None]


def _seeds(noise: float) -> Sequence[int]:
    return SEEDS if noise else SEEDS[:1]


def _case(folder: Folder, world: str, name: str, noise: float, seed: int) -> Case | None:
    if world == "plait":
        return folder.own_case(NOISE_TRACE, name, noise=noise, seed=seed)
    return folder.case(NOISE_TRACE, POLICIES[name], noise=noise, seed=seed)


def rows_of(folder: Folder, done: Mapping[Case, Done]) -> list[NoiseRow]:
    """One row a world, policy and noise."""
    rows = []
    for world, name in product(WORLDS, POLICIES):
        base = _case(folder, world, name, 0.0, SEEDS[0])
        if base is None:
            continue
        for n in NOISE:
            runs = [done[case] for seed in _seeds(n) if (case := _case(folder, world, name, n, seed)) is not None]
            jct = [run.avg_jct_s / done[base].avg_jct_s for run in runs]
            makespan = [run.makespan_s / done[base].makespan_s for run in runs]
            rows.append(
                NoiseRow(world, name, n, float(np.mean(jct)), min(jct), max(jct), float(np.mean(makespan)))
            )  # fmt: skip
    return rows
