"""Grants of switch memory: their validity in a plan, the ones that remain until the next plan, and the changes.

A grant ends when its job leaves its GPUs, when its switch is lost, and when a plan does not repeat it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np

from plait.control.messages import Grant
from plait.core.arrays import IntArray
from plait.core.cluster import Cluster
from plait.core.errors import PlanError
from plait.core.jobs import JobSpec
from plait.core.network_grants import NetworkGrant, by_job, clashing
from plait.core.plan import NO_REASONS, Plan


def refuse_grants(
    plan: Plan,
    before: Collection[NetworkGrant],
    spec: Callable[[int], JobSpec],
    cluster: Cluster,
    name: Callable[[int], str],
    policy: str,
) -> None:
    """Raise `PlanError` for an invalid grant; the groups of the plan have been checked.

    A grant is for a job of the plan that wants aggregation, on a switch that is up; regions are within the aggregators
    that jobs may use, and regions of one job alone are not used by others. The node of a server is up, except for
    grants that were in force `before`. `spec` and `name` give a job's spec and its name for messages.
    """
    runs, seen = set(plan.groups.jobs.tolist()), set[tuple[int, str]]()

    def refuse(grant: NetworkGrant, why: str) -> None:
        raise PlanError(
            f"policy {policy} made a plan that grants memory of switch {grant.switch!r} to {name(grant.job)}, {why}"
        )

    for grant in plan.grants:
        if grant.job not in runs:
            refuse(grant, "which it does not run")
        if spec(grant.job).ina.mode == "off":
            refuse(grant, "which wants no aggregation (ina is off)")
        if (grant.job, grant.switch) in seen:
            refuse(grant, "and has another grant for the same; give it one")
        seen.add((grant.job, grant.switch))
        if (why := _switch_fault(grant, cluster)) is not None:
            refuse(grant, why)
        if grant.server >= 0 and grant not in before:
            if grant.server >= len(cluster.nodes):
                refuse(grant, f"with a server on node number {grant.server}; there are 0 to {len(cluster.nodes) - 1}")
            if not cluster.up[grant.server]:
                refuse(grant, f"with a server on node {cluster.nodes[grant.server].id!r}, which is down")
    for one, other in clashing(plan.grants):
        lone, with_ = (one, other) if one.exclusive else (other, one)
        refuse(
            with_, f"whose region {_region(with_)} has aggregators of {_region(lone)}, which {name(lone.job)} has alone"
        )


def refuse_missing_grants(
    plan: Plan, required: Collection[int], exempt: Collection[int], name: Callable[[int], str], policy: str
) -> None:
    """Raise `PlanError` if a job of the plan that is `required` to have a grant has none.

    `exempt`: jobs that had none before and that no policy may stop now.
    """
    without = (set(plan.groups.jobs.tolist()) & set(required)) - {grant.job for grant in plan.grants} - set(exempt)
    if without:
        raise PlanError(
            f"policy {policy} made a plan that runs {name(min(without))}, which requires in-network aggregation, "
            "without a grant of switch memory; give it one, or let it wait"
        )


def _switch_fault(grant: NetworkGrant, cluster: Cluster) -> str | None:
    network = cluster.network
    if network is None:
        return "and this cluster has no network"
    if grant.switch not in network.names:
        return f"a switch that this cluster does not have; it has {', '.join(sorted(network.names)[:5])}"
    if grant.switch in network.down:
        return "and the switch is lost"
    usable = network.switch(grant.switch).usable
    if not usable:
        return "and the switch has no aggregators for jobs"
    if grant.end > usable:
        return f"up to aggregator {grant.end - 1}; jobs may use 0 to {usable - 1}"
    return None


def _region(grant: NetworkGrant) -> str:
    return f"{grant.offset} to {grant.end - 1}"


def never_granted(spec: JobSpec, cluster: Cluster) -> str | None:
    """Why no plan can ever grant a job the aggregation that it requires, or None."""
    if not spec.ina.required:
        return None
    most = 0 if cluster.network is None else cluster.network.most_usable
    if not most:
        return "requires in-network aggregation, and no switch of this cluster aggregates"
    if spec.ina.memory > most:
        return f"requires {spec.ina.memory} aggregators; the switch with most has {most} that jobs may use"
    return None


def still_granted(
    grants: tuple[NetworkGrant, ...], running_group: IntArray, cluster: Cluster
) -> tuple[NetworkGrant, ...]:
    """Grants of running jobs on switches that are up; `running_group` is a column of the job store."""
    down = () if cluster.network is None else cluster.network.down
    left = tuple(one for one in grants if running_group[one.job] >= 0 and one.switch not in down)
    return grants if len(left) == len(grants) else left


def grant_changes(
    event: int,
    before: Sequence[NetworkGrant],
    now: Sequence[NetworkGrant],
    without: Mapping[int, str] = NO_REASONS,
) -> Grant | None:
    """The command that replaces `before` by `now`; None if there is nothing to do.

    `without`: jobs that run without aggregation from now on although they want it, and why.
    """
    old, new = by_job(before), by_job(now)
    granted = [
        grant
        for job, mine in sorted(new.items())
        if mine != (had := old.get(job, ())) and set(mine) != set(had)
        for grant in mine
    ]
    released = sorted(old.keys() - new.keys())
    if not granted and not released and not without:
        return None
    return Grant(event, tuple(granted), np.array(released, dtype=np.int64), dict(without))


def lost_switches(
    before: Sequence[NetworkGrant], now: Sequence[NetworkGrant], running_group: IntArray
) -> dict[int, str]:
    """Jobs that run on without any grant, as their switches were lost, and these in words."""
    left = {one.job for one in now}
    gone: dict[int, list[str]] = {}
    for one in before:
        if one.job not in left and running_group[one.job] >= 0:
            gone.setdefault(one.job, []).append(one.switch)
    return {
        job: f"switch {', '.join(names)} was lost" if len(names) == 1 else f"switches {', '.join(names)} were lost"
        for job, names in sorted(gone.items())
    }


def grants_in_words(grants: Sequence[NetworkGrant], cluster: Cluster) -> str:
    """A job's grants in words: switches, regions, modes and reasons.

    >>> grants_in_words([NetworkGrant(0, "leaf0", 0, 64, "dedicated", exclusive=True, window=32)], Cluster.of(1, 8))
    'aggregated at leaf0: 64 aggregators of its own from 0 on, dedicated, window 32'
    """
    return "aggregated at " + "; at ".join(_in_words(one, cluster) for one in grants)


def _in_words(grant: NetworkGrant, cluster: Cluster) -> str:
    share = f"{grant.size} aggregators {'of its own' if grant.exclusive else 'that it shares'} from {grant.offset} on"
    said = [share if grant.size else "aggregators that all share", grant.mode]
    said += [f"window {grant.window}"] if grant.window else []
    said += [f"server on {cluster.nodes[grant.server].id}"] if grant.server >= 0 else []
    return f"{grant.switch}: {', '.join(said)}" + (f" ({grant.reason})" if grant.reason else "")
