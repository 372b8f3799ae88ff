"""Reservations of a plan: whether they are valid, and which remain until the next plan."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from plait.core.arrays import IntArray
from plait.core.cluster import Cluster
from plait.core.errors import PlanError
from plait.core.jobs import Phase
from plait.core.plan import Plan, Reservation

_WAITING = int(Phase.WAITING)


def refuse_reservations(plan: Plan, phase: IntArray, cluster: Cluster, name: Callable[[int], str], policy: str) -> None:
    """Raise `PlanError` for an invalid reservation; the groups of the plan have been checked.

    Reserved GPUs are up, each for one job, which waits and is in no group, and no host is on them. `phase` is a column
    of the job store; `name` gives a job's name for messages.
    """
    hosts, runs = plan.groups.hosts, set(plan.groups.jobs.tolist())
    host = np.full(cluster.gpus, -1, dtype=np.int64)
    host[hosts.gpus] = np.repeat(hosts.jobs[hosts.first_job[:-1]], hosts.gpu_count())
    holder: dict[int, int] = {}
    seen: set[int] = set()

    def refuse(what: str) -> None:
        raise PlanError(f"policy {policy} made a plan that {what}")

    for job, gpus in ((one.job, one.gpus) for one in plan.reservations):
        if not 0 <= job < len(phase):
            refuse(f"reserves GPUs for job number {job}, which was never submitted")
        if job in runs or phase[job] > _WAITING + 1:
            refuse(f"reserves GPUs for {name(job)}, which {'runs' if job in runs else 'has already ended'}; "
                   "reservations are for jobs that wait")  # fmt: skip
        if job in seen:
            refuse(f"has two reservations for {name(job)}; give it one with all its GPUs")
        seen.add(job)
        for gpu in gpus:
            if not 0 <= gpu < cluster.gpus:
                refuse(f"reserves GPU {gpu} for {name(job)}; this cluster has GPUs 0 to {cluster.gpus - 1}")
            node = cluster.gpu_node[gpu]
            where = f"GPU {gpu} of node {cluster.nodes[node].id!r}"
            if not cluster.node_up[node]:
                refuse(f"reserves {where} for {name(job)}, which is down")
            if gpu in holder:
                refuse(f"reserves {where} for {name(job)} and for {name(holder[gpu])}")
            if host[gpu] >= 0:
                refuse(f"reserves {where} for {name(job)}, and {name(int(host[gpu]))} runs there as a host")
            holder[gpu] = job


def still_reserved(reservations: tuple[Reservation, ...], phase: IntArray, cluster: Cluster) -> tuple[Reservation, ...]:
    """The same reservations, without jobs that `phase` (by job number) has not as waiting, and GPUs of down nodes."""
    out = []
    for one in reservations:
        if phase[one.job] == _WAITING:
            gpus = tuple(gpu for gpu in one.gpus if cluster.node_up[cluster.gpu_node[gpu]])
            if gpus:
                out.append(one if len(gpus) == len(one.gpus) else Reservation(one.job, gpus))
    return tuple(out)
