"""Themis as in the artifact, solved exactly instead of by its chain of solvers.

At each event the artifact calls a linear-program solver for time shares x that minimise the largest rho,

    rho_j = (now - submit_j + R_j / (mu_j x_j)) / (C_j + R_j / b_j),   0 <= x_j <= 1,   sum g_j x_j <= 64

R_j are remaining iterations, mu_j = 1 / iteration time, b_j = min(1, ceil(64 / N) / g_j) with N jobs, and C_j
adds up what R_j lost over the b_j of its time. b_j is a fraction of GPUs where a throughput is meant, so this
is not finish-time fairness; it is kept.

The largest rho is often that of one nearly finished job, which leaves the others' shares open: then the
artifact's are whatever its solver stops at. Here what is open is settled in the same spirit, the next largest
rho as small as can be, and so on. That has a closed form for any level of rho, and the level is found by
bisection. Runs are comparable in kind, not to digits: mean completion times within 1 % of the authors' on trace3
and the testbed's trace, 9 % above on trace1, but 2.7 times theirs on trace3_pr. To show how much of that is what is
open, `shares` settles it in two other ways:

    centre   as a solver by interior points does, ideally: the analytic centre of all best shares
    equal    the same share for all, with which the artifact goes on where its solvers fail
"""

from __future__ import annotations

import numpy as np

from plait.core.arrays import FloatArray
from plait.core.jit import kernel
from plait_papers.muri.artifact.state import Rule, State
from plait_papers.muri.artifact.yarn import GPUS, fits, lay_out

NEVER_RAN = 1e9
"""Factor of a share, instead of dividing it by attained time, for a job that never ran."""


#: Ways to settle the shares that the largest rho leaves open.
SHARES = ("fair", "centre", "equal")


class Themis(Rule):
    """Jobs furthest below their share first."""

    def __init__(self, jobs: int, shares: str = "fair") -> None:
        self.shares = shares
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
        elapsed_s, left_s = state.now_s - trace.submit_s[jobs], left * trace.iteration_s[jobs]
        own_life = self.own_life[jobs] + left / self.fraction[jobs]
        share = fair_shares(elapsed_s, left_s, own_life, gpus, float(GPUS))
        if gpus.sum() > GPUS and self.shares != "fair":
            if self.shares == "equal":
                share = np.full(len(jobs), GPUS / gpus.sum())
            else:
                share = central_shares(elapsed_s, left_s, own_life, gpus, float(GPUS), share)
        # Positions in `jobs`, by share over attained time, then deficit, then share, all descending.
        attained_s = state.attained_s[jobs]
        ran = attained_s > 0
        first = np.where(ran, share / np.where(ran, attained_s, 1.0), NEVER_RAN * share)
        deficit_s = self.owed_s[jobs] - attained_s
        self.owed_s[jobs] += share * (state.now_s - self.before_s)
        self.before_s = state.now_s
        ordered = jobs[np.lexsort((-share, -deficit_s, -first))]
        chosen = ordered[fits(trace.gpus[ordered])]
        group = np.full(len(trace), -1, dtype=np.int64)
        group[chosen] = chosen
        by_size = np.concatenate([chosen[np.argsort(-trace.gpus[chosen], kind="stable")], jobs[group[jobs] < 0]])
        lay_out(by_size, group, trace.gpus, state.running, state.where)


@kernel
def used_at(
    rho: float, elapsed_s: FloatArray, remaining_s: FloatArray, own_life: FloatArray, gpus: FloatArray, x: FloatArray
) -> float:
    """GPUs in use if every job gets the share that takes it to `rho`, or 1 if none does; shares go to `x`."""
    used = 0.0
    for j in range(len(gpus)):
        left_s = rho * own_life[j] - elapsed_s[j]  # what `rho` allows the rest to take
        x[j] = remaining_s[j] / left_s if left_s > remaining_s[j] else 1.0
        used += gpus[j] * x[j]
    return used


@kernel
def fair_shares(
    elapsed_s: FloatArray, remaining_s: FloatArray, own_life: FloatArray, gpus: FloatArray, capacity: float
) -> FloatArray:
    """Time shares x <= 1, gpus x <= capacity in sum, that make rho = (elapsed + remaining / x) / own_life fair.

    The largest rho is as small as can be, then the next largest: all jobs have the same rho, except jobs that run all
    the time and do not reach it. `elapsed_s`, `remaining_s`, `own_life` and `gpus` have shape (jobs,).
    """
    x = np.ones(len(gpus))
    if gpus.sum() <= capacity:
        return x
    low, high = 0.0, 1.0
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


def central_shares(
    elapsed_s: FloatArray, remaining_s: FloatArray, own_life: FloatArray, gpus: FloatArray, capacity: float,
    fair: FloatArray,
) -> FloatArray:  # fmt: skip
    """The analytic centre of all shares whose largest rho is that of the `fair` ones, the least that is possible.

    It maximises the product of the distances to all limits. With lambda the inverse of the GPUs left, each share is
    the root of a quadratic equation, and lambda is found by bisection. Arguments as of `fair_shares`, (jobs,).
    """
    rho = ((elapsed_s + remaining_s / fair) / own_life).max() * (1 + 1e-9)
    least = np.minimum(remaining_s / np.maximum(rho * own_life - elapsed_s, 1e-300), 1.0)
    room = 1.0 - least
    x: FloatArray = fair
    low, high = 1e-12, 1e12
    for _ in range(100):
        middle = float(np.sqrt(low * high))
        q = middle * gpus * room
        x = least + (q + 2 - np.sqrt(q * q + 4)) / (2 * middle * gpus)
        left = capacity - float((gpus * x).sum())
        low, high = (middle, high) if middle * left < 1 else (low, middle)
    return x
