"""Themis: finish-time fairness (Mahajan et al., NSDI 2020), in the max-min form that Gavel and Muri use."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from plait.core.arrays import FloatArray
from plait.core.errors import InputError
from plait.core.jobs import JobTable
from plait.core.plan import Plan
from plait.core.policy import View
from plait.goodput.fixed_batch import elastic_fixed, fixed_s
from plait.placement import Scheme, place
from plait.placement.packing import Placement
from plait.policies.compose import Ranking, sort
from plait.policies.sizing.pools import goodput_jobs


def fair_shares(
    elapsed_s: FloatArray,
    remaining_s: FloatArray,
    isolated_s: FloatArray,
    gpus: FloatArray,
    capacity: float,
) -> tuple[FloatArray, float]:
    """Time shares x that minimise the largest finish-time fairness rho (Themis, section 3).

    rho_j = (elapsed_j + remaining_j / x_j) / isolated_j with 0 < x_j <= 1 and sum gpus_j x_j <= capacity;
    all times in seconds, `isolated_s` the whole life of the job on its equal share. Bisection on rho.

    >>> x, rho = fair_shares(np.array([100.0, 0]), np.array([100.0, 100]), np.array([200.0, 200]),
    ...                      np.array([4.0, 4]), 4)
    >>> [round(float(v), 6) for v in x], round(rho, 6)
    ([0.618034, 0.381966], 1.309017)
    """
    low = float(((elapsed_s + remaining_s) / isolated_s).max())  # no job runs more than all the time

    def shares(rho: float) -> FloatArray:
        return np.minimum(remaining_s / np.maximum(rho * isolated_s - elapsed_s, 1e-300), 1.0)

    if float((gpus * shares(low)).sum()) <= capacity:
        return shares(low), low
    high = max(low, 1.0)
    while float((gpus * shares(high)).sum()) > capacity:
        low, high = high, 2 * high
    for _ in range(200):
        middle = (low + high) / 2
        if middle in (low, high):
            break
        if float((gpus * shares(middle)).sum()) > capacity:
            low = middle
        else:
            high = middle
    return shares(high), high


@dataclass(frozen=True)
class Themis:
    """Leases go to the jobs furthest below their fair share.

    Each decision computes the time shares that make the worst finish-time fairness rho as good as can be and runs the
    jobs with the largest share still owed first. GPUs are leased for `lease_s`: a running job keeps its GPUs until its
    lease is over. rho = T_shared / T_independent, both in seconds; T_independent is the run time on 1/N of the cluster
    (`independent="share"`), N the time-average number of jobs over its life, or N times the run time on all the GPUs it
    requested (`independent="queue"`). Needs remaining work.
    """

    lease_s: float = 1200.0
    independent: Literal["share", "queue"] = "share"
    place: Scheme | Placement = Scheme.CONSOLIDATED
    name: str = "themis"

    def __post_init__(self) -> None:
        if not self.lease_s > 0:
            raise InputError(f"lease_s must be > 0 seconds, got {self.lease_s}")
        if self.independent not in ("share", "queue"):
            raise InputError(f"independent is {self.independent!r}; use share or queue")

    def decide(self, view: View) -> Plan:
        """Fair shares, then leases in order of what is owed."""
        scheme = self.place if isinstance(self.place, Scheme) else self.place(view)
        owed = self.ranking(view)
        plan = place(view, sort(owed.keys), scheme=scheme)
        if len(plan.groups) == len(view.jobs):
            return plan
        until = min(view.now_s + min(owed.changes_in_s(view.jobs.running), self.lease_s), plan.valid_until_s)
        return Plan(plan.groups, plan.order, None, plan.promoted, plan.reasons, until)

    def ranking(self, view: View) -> Ranking:
        """The order by itself, for `Composed`: leased jobs first, then jobs that are owed most."""
        jobs = view.jobs
        if not len(jobs):
            return Ranking((jobs.number,))
        x, _ = fair_shares(
            jobs.age_s,
            np.maximum(jobs.remaining_s, 1e-3),
            self.isolated_s(view),
            jobs.gpus.astype(np.float64),
            max(view.cluster.gpus_up, 1),
        )
        held = view.now_s - jobs.last_start_s
        lease_left = np.where(jobs.running, self.lease_s - np.mod(held, self.lease_s), 0.0)
        leased = jobs.running & (lease_left < self.lease_s - 1e-6) | (jobs.running & (held < 1e-6))
        received = np.maximum(jobs.run_s, 0.0)
        owed = np.where(received > 0, x / np.maximum(received, 1e-9), np.inf)
        ends = np.where(jobs.running & (lease_left > 1e-6), lease_left, self.lease_s)
        return Ranking((~leased, -owed, -x), running_s=ends)

    def isolated_s(self, view: View) -> FloatArray:
        """T_independent of each job, seconds: its whole work on an equal share of the cluster."""
        jobs = view.jobs
        capacity = max(view.cluster.gpus_up, 1)
        work = np.maximum(jobs.duration_s, 1e-3)
        competitors = jobs.mean_competitors
        if self.independent == "queue":
            return competitors * work * jobs.gpus / np.minimum(capacity, jobs.gpus)
        share = np.minimum(capacity / competitors, jobs.gpus)
        alone_s = work * jobs.gpus / share
        elastic = elastic_fixed(jobs)
        if elastic.any():
            per_node = max(1, int(view.cluster.node_gpus.max()))
            alone_s[elastic] = _on_share_s(jobs.subset(jobs.number[elastic]), work[elastic], share[elastic], per_node)
        return alone_s


def _on_share_s(jobs: JobTable, work_s: FloatArray, share: FloatArray, per_node: int) -> FloatArray:
    """Seconds (J,) of elastic jobs with `work_s` at their requested size on `share` GPUs, whole ones at least.

    A share below the minimum GPUs is those for a part of the time.
    """
    gpus = np.maximum(np.floor(share), jobs.min_gpus).astype(np.int64)
    theta = goodput_jobs(jobs, per_node).theta
    there, requested = (fixed_s(theta, -(-size // per_node), size) for size in (gpus, jobs.gpus))
    seconds: FloatArray = work_s * there / requested * np.maximum(gpus / share, 1.0)
    return seconds
