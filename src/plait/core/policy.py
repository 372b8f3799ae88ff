"""The one interface every scheduling policy has."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

from plait.core.arrays import BoolArray, FloatArray, IntArray
from plait.core.cluster import Cluster
from plait.core.jobs import JobClass, JobTable
from plait.core.network_grants import NetworkFigures, NetworkGrant
from plait.core.plan import Groups, Plan, Reservation
from plait.core.preemption import DEFAULT_RULE, KeptJobs, PreemptionRule
from plait.core.preemption_kernels import CLOCK_S


@dataclass(frozen=True, slots=True, eq=False)
class Usage:
    """The last figures of GPUs and jobs; NaN where nothing is known.

    `utilisation` (gpus,) is the mean part of the last 10 s in which a GPU was busy, 0 to 1, and `memory_bytes` (gpus,)
    what is in use of its memory, by the number of the GPU in the cluster. `jobs` (n,) are numbers of jobs that ran at
    the last report, ascending; `step_s` (n,) is the mean of a job's last steps in seconds, `peak_bytes` (n,) and
    `persistent_bytes` (n,) the memory it takes on a GPU at most and between steps, `spill_bytes` (n,) what of it is in
    host memory.
    """

    utilisation: FloatArray
    memory_bytes: FloatArray
    jobs: IntArray
    step_s: FloatArray
    peak_bytes: FloatArray
    persistent_bytes: FloatArray
    spill_bytes: FloatArray


@dataclass(frozen=True, slots=True)
class View:
    """All that a policy may see: the time, the hardware, the active jobs, and what runs now.

    `jobs.running_group` is the entry of `running` that a job is in. A group may still name a member that has just
    ended; such a job is no longer in `jobs`. `rule` defines which running jobs a policy may stop or move: `may_stop` is
    one flag a row of `jobs`, and `keeps` has until when the others stay. `plait.placement.place` respects them; a
    policy that names GPUs itself gives them the GPUs they have, in `running`. A job may run on a node that is down in
    `cluster`: the node is silent, and until it is known to be lost the job stays there and nothing new starts.
    `reservations` are from the last plan, without jobs that no longer wait and GPUs that are lost. `usage` has
    measurements of GPUs and jobs; None if nothing reports it. `grants` of switch memory are in force: of jobs that run,
    on switches that are up. `network` has measurements of the exchange of gradients, or None. `silent` are the names of
    nodes that count as down because they are silent, and may respond again. `measures_memory`: jobs that do not state
    their GPU memory are measured while they run alone; without it, as in simulations, their memory is taken to fit.
    """

    now_s: float
    cluster: Cluster
    jobs: JobTable
    running: Groups
    rule: PreemptionRule = DEFAULT_RULE
    also_until_s: FloatArray | None = None
    reservations: tuple[Reservation, ...] = ()
    usage: Usage | None = None
    grants: tuple[NetworkGrant, ...] = ()
    network: NetworkFigures | None = None
    silent: frozenset[str] = frozenset()
    measures_memory: bool = True

    @property
    def keeps(self) -> KeptJobs:
        """Who stays on its GPUs and until when."""
        known = self.jobs.__dict__
        if known.get("_kept_by") is not self.rule:
            known["_kept_by"], known["_kept"] = self.rule, self._kept()
        kept: KeptJobs = known["_kept"]
        if self.also_until_s is None:
            return kept
        until_s = np.maximum(kept.until_s, self.also_until_s)
        return KeptJobs(
            (until_s > self.now_s + CLOCK_S) & (self.jobs.running_group >= 0), until_s, kept.lasting, kept.losses
        )

    def _kept(self) -> KeptJobs:
        """Jobs kept by the rule, and jobs on silent nodes, which cannot receive commands."""
        kept, silent = self.rule.kept(self.jobs), self.on_silent_nodes
        if not silent.any():
            return kept
        until_s = np.where(silent, math.inf, kept.until_s)
        return KeptJobs(kept.rows | silent, until_s, kept.lasting | silent, True)

    @property
    def on_silent_nodes(self) -> BoolArray:
        """Whether each job has GPUs on a node that is down, one flag a row of `jobs`."""
        rows, running, cluster = np.zeros(len(self.jobs), dtype=np.bool_), self.running, self.cluster
        if cluster.all_up or not len(running):
            return rows
        away = ~cluster.node_up[cluster.gpu_node[running.gpus]]
        if away.any():
            running_group = self.jobs.running_group
            rows = (running_group >= 0) & np.logical_or.reduceat(away, running.first_gpu[:-1])[running_group]
        return rows

    @property
    def node_gpus(self) -> IntArray:
        """GPUs of each node that jobs may have: all of one that is up, of another only GPUs that jobs still hold.

        None of a node from which all jobs are barred, because it is reserved.
        """
        cluster, jobs = self.cluster, self.jobs
        there: IntArray = np.where(cluster.node_up, cluster.node_gpus, 0)
        if cluster.reserved:
            closed = cluster.node_spare[:, 2:][:, jobs.columns["barred"][jobs.number].all(axis=0)] == 0.0
            there = np.where(closed.any(axis=1), 0, there)
        if cluster.all_up:
            return there
        groups = np.unique(self.jobs.running_group[self.on_silent_nodes])
        if len(groups):
            nodes = cluster.gpu_node[np.unique(self.running[groups].gpus)]  # once each, however many share a GPU
            there = there + np.bincount(nodes[~cluster.node_up[nodes]], minlength=len(there))
        return there

    def keeping(self, until_s: FloatArray) -> View:
        """The same view in which running jobs also stay where they are until then, seconds, one value a row of `jobs`.

        For policies that have such a rule of their own, as a shortest run.
        """
        if self.also_until_s is not None:
            until_s = np.maximum(self.also_until_s, until_s)
        return replace(self, also_until_s=until_s)

    @property
    def may_stop(self) -> BoolArray:
        """Whether a policy may stop or move each job now, one flag a row of `jobs`; True for jobs that do not run."""
        flags: BoolArray = ~self.keeps.rows
        return flags


@runtime_checkable
class Policy(Protocol):
    """Decides who runs where. A pure function of the view: same view, same plan."""

    def decide(self, view: View) -> Plan:
        """The complete plan from now on."""
        ...


def layers(policy: object) -> Iterator[Any]:
    """A policy, and the ones that it wraps in its field `policy`, the outermost first."""
    while policy is not None:
        yield policy
        policy = getattr(policy, "policy", None)


#: Requests of jobs, other than GPUs, that a policy may take into account, as `UsesRequests.uses` names them.
PRIORITY, DEADLINE, JOB_CLASS = "priority", "deadline", "job class"


@runtime_checkable
class UsesRequests(Protocol):
    """A policy that declares which requests of users it takes into account. Optional: others take none."""

    @property
    def uses(self) -> frozenset[str]:
        """The ones of `PRIORITY`, `DEADLINE` and `JOB_CLASS` that make a difference to the policy."""
        ...


def ignored_by(
    policy: Policy, priority: float, deadline_s: float | None, job_class: JobClass = JobClass.GUARANTEED
) -> list[str]:
    """The ones of `PRIORITY`, `DEADLINE` and `JOB_CLASS` that a job requests and the policy ignores.

    `priority` 0, `deadline_s` None (or NaN) and the class guaranteed request nothing.
    """
    uses = policy.uses if isinstance(policy, UsesRequests) else frozenset()
    asked = {
        PRIORITY: priority != 0,
        DEADLINE: deadline_s is not None and not math.isnan(deadline_s),
        JOB_CLASS: job_class != JobClass.GUARANTEED,
    }
    return [name for name, is_asked in asked.items() if is_asked and name not in uses]


def has_guests(policy: Policy) -> bool:
    """Whether plans of the policy have guests (`Group.guest`), as far as its attribute `guests` declares."""
    return bool(getattr(policy, "guests", False))  # asked at each decision: checks of protocols are slow


def has_groups(policy: Policy) -> bool:
    """Whether the policy lets jobs take turns on GPUs, by its attribute `group`, `share` or `packing`."""
    return any(getattr(one, name, None) for one in layers(policy) for name in ("group", "share", "packing"))


@runtime_checkable
class Preempts(Protocol):
    """A policy that declares whether it stops jobs for jobs ahead of them. Optional: others do not.

    Jobs that may be stopped then use GPUs that are held for the first waiting job (`plait.placement.reserve`).
    """

    @property
    def preempts(self) -> bool:
        """Whether running jobs that may be stopped give up their GPUs at once to jobs ahead in `Plan.order`."""
        ...


def has_preemption(policy: Policy) -> bool:
    """Whether the policy stops running jobs for jobs ahead of them, as far as it declares."""
    return bool(getattr(policy, "preempts", False))


def memory_kept(policy: Policy) -> float:
    """Part of its peak GPU memory that a member of a group is taken to hold while another has its own; 1: peaks add up.

    A policy declares less by an attribute of this name; its plans are then checked by it.
    """
    return min(float(getattr(one, "memory_kept", 1.0)) for one in layers(policy))


def tries_placements(policy: Policy) -> bool:
    """Whether the policy needs the pace of jobs spread and packed, which it declares by an attribute of this name."""
    return any(getattr(one, "tries_placements", False) for one in layers(policy))


def has_grants(policy: Policy) -> bool:
    """Whether plans of the policy grant memory of switches, as far as its attribute `grants` declares."""
    return bool(getattr(policy, "grants", False))


class Wanted(NamedTuple):
    """How many GPUs a cluster should have, and why, as a sentence for its operator."""

    gpus: int
    why: str


@runtime_checkable
class Autoscaling(Protocol):
    """A policy that can value more GPUs for its jobs. Optional: for others, requested GPUs are counted."""

    def wanted_gpus(self, view: View, most: int) -> Wanted | None:
        """GPUs that the cluster should have for all jobs of the view, at most `most`; None if unknown.

        A pure function, as `Policy.decide` is. Backends whose nodes come and go request nodes by it.
        """
        ...
