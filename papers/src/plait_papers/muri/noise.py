"""Figure 14: the scheduler sees stage times that are off, the jobs run as they are.

Each stage time of a (model, GPU count) is multiplied by its own U[1-n, 1+n]: a profile is measured once and reused
by later jobs of the model. Which groups there are, in which stage order, and what the guard splits
follow the noisy profile; how fast a group then runs follows the true one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from plait_papers.muri.compare import Folder
from plait_papers.muri.figures import NOISE, NOISE_TRACE
from plait_papers.muri.runs import Case, Done

POLICIES = {"Muri-S": "muri-s", "Muri-L": "muri-l"}
SEEDS = (0, 1, 2, 3, 4)


@dataclass(frozen=True, slots=True)
class NoiseRow:
    """One policy at one noise: figures relative to no noise, means over the seeds."""

    policy: str
    noise: float
    jct_ratio: float
    jct_low: float
    jct_high: float
    makespan_ratio: float


def cases(folder: Folder) -> list[Case]:
    """The runs of the figure; without noise every seed is the same."""
    return [_case(folder, policy, n, seed) for policy in POLICIES.values() for n in NOISE for seed in _seeds(n)]


def _seeds(noise: float) -> Sequence[int]:
    return SEEDS if noise else SEEDS[:1]


def _case(folder: Folder, policy: str, noise: float, seed: int) -> Case:
    return folder.case(NOISE_TRACE, policy, noise=noise, seed=seed)


def rows_of(folder: Folder, done: Mapping[Case, Done]) -> list[NoiseRow]:
    """One row a policy and noise."""
    rows = []
    for name, policy in POLICIES.items():
        base = done[_case(folder, policy, 0.0, SEEDS[0])]
        for n in NOISE:
            runs = [done[_case(folder, policy, n, seed)] for seed in _seeds(n)]
            jct = [run.avg_jct_s / base.avg_jct_s for run in runs]
            makespan = [run.makespan_s / base.makespan_s for run in runs]
            rows.append(
                NoiseRow(name, n, float(np.mean(jct)), min(jct), max(jct), float(np.mean(makespan)))
            )  # fmt: skip
    return rows
