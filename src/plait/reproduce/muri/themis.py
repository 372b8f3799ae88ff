"""Themis as the artifact has it (spec B.14), solved exactly instead of by its chain of solvers.

At each event the artifact asks a linear-program solver for time shares x that minimise the largest rho,

    rho_j = (now - submit_j + R_j / (mu_j x_j)) / (C_j + R_j / b_j),   0 <= x_j <= 1,   sum g_j x_j <= 64

R_j are remaining iterations, mu_j = 1 / iteration time, b_j = min(1, ceil(64 / N) / g_j) with N jobs, and C_j
adds up what R_j lost over the b_j of its time. b_j is a fraction of GPUs where a throughput is meant, so this
is not finish-time fairness; it is kept. For a given rho every x_j has a closed form, so rho is found here by
bisection. Optima are not unique and the artifact's shares carry its solver's noise, which decides its ties: runs
are comparable in kind, not to digits.
"""

from __future__ import annotations

import numpy as np

from plait.core.arrays import FloatArray, IntArray
from plait.core.jit import kernel
from plait.reproduce.muri.state import Rule, State
from plait.reproduce.muri.yarn import GPUS, fits, lay_out

NEVER_RAN = 1e9
"""What a share is multiplied by, instead of divided by attained time, for a job that never ran."""


class Themis(Rule):
    """Those furthest below their share first."""

    def __init__(self, jobs: int) -> None:
        """For a trace of so many jobs."""
        self.own_life = np.zeros(jobs)  # C_j
        self.owed_s = np.zeros(jobs)
        self.share = np.zeros(jobs)
        self.fraction = np.ones(jobs)  # b_j
        self.left = np.full(jobs, -1.0)  # R_j when last seen
        self.before_s = 0.0

    def decide(self, state: State) -> None:
        """New shares, then the jobs owed most by yarn counting, placed by size."""
        trace, jobs = state.trace, state.listed
        left = np.maximum(state.remaining[jobs], 0.0)
        seen = self.left[jobs] >= 0
        self.own_life[jobs] += np.where(seen, (self.left[jobs] - left) / self.fraction[jobs], 0.0)
        self.left[jobs] = left
        gpus = trace.gpus[jobs].astype(np.float64)
        self.fraction[jobs] = np.minimum(1.0, np.ceil(GPUS / max(len(jobs), 1)) / gpus)
        share = fair_shares(
            state.now_s - trace.submit_s[jobs],
            left * trace.iteration_s[jobs],
            self.own_life[jobs] + left / self.fraction[jobs],
            gpus,
            float(GPUS),
        )
        share = spread(share, gpus, float(GPUS))
        ordered = jobs[self._most_owed(state, jobs, share)]
        chosen = ordered[fits(trace.gpus[ordered])]
        group = np.full(len(trace), -1, dtype=np.int64)
        group[chosen] = chosen
        by_size = np.concatenate([chosen[np.argsort(-trace.gpus[chosen], kind="stable")], jobs[group[jobs] < 0]])
        lay_out(by_size, group, trace.gpus, state.running, state.where)

    def _most_owed(self, state: State, jobs: IntArray, share: FloatArray) -> IntArray:
        """Positions in `jobs`, by share over attained time, then deficit, then share, all descending."""
        attained_s = state.attained_s[jobs]
        ran = attained_s > 0
        first = np.where(ran, share / np.where(ran, attained_s, 1.0), NEVER_RAN * share)
        deficit_s = self.owed_s[jobs] - attained_s
        self.owed_s[jobs] += share * (state.now_s - self.before_s)
        self.before_s = state.now_s
        return np.lexsort((-share, -deficit_s, -first))


@kernel
def used_at(
    rho: float, elapsed_s: FloatArray, remaining_s: FloatArray, own_life: FloatArray, gpus: FloatArray, x: FloatArray
) -> float:
    """GPUs in use if every job gets the share `x`, written here, that takes it to `rho`."""
    used = 0.0
    for j in range(len(gpus)):
        x[j] = min(remaining_s[j] / max(rho * own_life[j] - elapsed_s[j], 1e-300), 1.0)
        used += gpus[j] * x[j]
    return used


@kernel
def fair_shares(
    elapsed_s: FloatArray, remaining_s: FloatArray, own_life: FloatArray, gpus: FloatArray, capacity: float
) -> FloatArray:
    """Time shares that minimise the largest (elapsed + remaining / x) / own_life, gpus x <= capacity in sum.

    `plait.policies.themis.fair_shares` says the same in NumPy, a test compares the two.
    """
    x = np.zeros(len(gpus))
    low = 0.0
    for j in range(len(gpus)):  # nobody runs more than all the time
        low = max(low, (elapsed_s[j] + remaining_s[j]) / max(own_life[j], 1e-300))
    if used_at(low, elapsed_s, remaining_s, own_life, gpus, x) <= capacity:
        return x
    high = max(low, 1.0)
    while used_at(high, elapsed_s, remaining_s, own_life, gpus, x) > capacity:
        low, high = high, 2.0 * high
    while low < (low + high) / 2.0 < high:
        middle = (low + high) / 2.0
        if used_at(middle, elapsed_s, remaining_s, own_life, gpus, x) > capacity:
            low = middle
        else:
            high = middle
    used_at(high, elapsed_s, remaining_s, own_life, gpus, x)
    return x


@kernel
def spread(share: FloatArray, gpus: FloatArray, capacity: float) -> FloatArray:
    """Shares with what is left of the capacity added, the same number of GPUs to each job, up to a share of 1."""
    left = capacity
    for j in range(len(share)):
        left -= gpus[j] * share[j]
    if left <= 0.0:
        return share
    room = gpus * (1.0 - share)
    each, count = 0.0, len(room)
    for part in np.sort(room):  # level by level, the fullest job first
        if (part - each) * count >= left:
            each += left / count
            break
        left -= (part - each) * count
        each, count = part, count - 1
    return share + np.minimum(room, each) / gpus
