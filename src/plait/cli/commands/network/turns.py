"""`plait network turns`: what taking turns on GPUs and links is worth to a group whose network others use, too."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from rich.table import Table

from plait.cli.commands.network.rates import read_job
from plait.cli.render.console import console
from plait.core.cluster import Cluster
from plait.core.errors import InputError
from plait.core.jobs import JobBatch, JobSpec
from plait.core.plan import Gate, Group, Groups, Member
from plait.core.resources import Resource, StageProfile
from plait.grouping.times import best_turns
from plait.sim.contention.network import NetworkPhysics, with_gradient_bytes
from plait.sim.physics import StandardPhysics
from plait.traces.assign import catalogue


def turn_rows(
    cluster: Cluster, jobs: Sequence[str], overlap: float = 0.0, phases: str = "random"
) -> list[dict[str, Any]]:
    """One row a job `MODEL@NODES`; jobs on the same nodes are a group. Times in seconds an iteration.

    `alone_s`: on these nodes without any other; `all_at_once_s`: with all others, each using resources whenever it
    wants; `in_turns_s`: with the members of its group in turns, while other groups use the network; `turns_alone_s`:
    the same without the other groups. `exchange_alone_s` and `exchange_in_turns_s`: of the exchange. Raises
    `InputError` for a model without a profile at that size, and for groups that overlap.
    """
    specs, nodes = zip(*(_read(cluster, text, i) for i, text in enumerate(jobs)), strict=True)
    truth = with_gradient_bytes(JobBatch.of(specs), 0)
    places = list(dict.fromkeys(nodes))
    taken = [node for place in places for node in place]
    if len(set(taken)) < len(taken):
        raise InputError(
            "two groups share some of their nodes; jobs of one group name the same nodes, others none of them"
        )
    members = {place: [j for j, at in enumerate(nodes) if at == place] for place in places}
    physics = NetworkPhysics(StandardPhysics(interference=(1.0,)), overlap, phases)
    for_itself = {place: _groups(cluster, truth, [(place, members[place])], Gate.BARRIER) for place in places}
    together = [(place, members[place]) for place in places]
    free, turns = (_groups(cluster, truth, together, gate) for gate in (Gate.NONE, Gate.BARRIER))
    paces = {name: _by_job(physics, truth, groups, cluster) for name, groups in (("free", free), ("turns", turns))}
    rows = []
    for j, text in enumerate(jobs):
        one = _groups(cluster, truth, [(nodes[j], [j])], Gate.NONE)
        rows.append(
            {
                "job": text,
                "alone_s": _by_job(physics, truth, one, cluster)[j],
                "exchange_alone_s": _exchange_s(physics, truth, one, cluster, j),
                "all_at_once_s": paces["free"][j],
                "in_turns_s": paces["turns"][j],
                "exchange_in_turns_s": _exchange_s(physics, truth, turns, cluster, j),
                "turns_alone_s": _by_job(physics, truth, for_itself[nodes[j]], cluster)[j],
            }
        )
    return rows


def _read(cluster: Cluster, text: str, number: int) -> tuple[JobSpec, tuple[int, ...]]:
    model, at, where = text.partition("@")
    if not at:
        raise InputError(f"job {text!r}: write MODEL@NODES, e.g. vgg16@n0..n1; models: {', '.join(catalogue().models)}")
    placed = read_job(cluster, where)
    nodes = tuple(sorted(placed.workers))
    if placed.server is not None:
        raise InputError(f"job {text!r}: exchanges in a ring; leave out > and the server")
    gpus = int(cluster.node_gpus[list(nodes)].sum())
    known = catalogue().profile(model, gpus)
    stages = StageProfile.of(
        storage=known.storage_s,
        cpu=known.cpu_s,
        gpu=known.gpu_s,
        network=known.network_s,
        iteration_s=known.iteration_s,
    )
    return JobSpec(id=f"{number}:{text}", gpus=gpus, model=model, iterations=1, profile=stages), nodes


def _groups(
    cluster: Cluster, truth: JobBatch, places: Sequence[tuple[tuple[int, ...], list[int]]], gate: Gate
) -> Groups:
    groups = []
    for nodes, jobs in places:
        turns: Sequence[int] = (0,) * len(jobs)
        if gate == Gate.BARRIER and len(jobs) > 1:
            turns = best_turns(truth.stage_s[jobs])[1]
        gpus = tuple(np.flatnonzero(np.isin(cluster.gpu_node, nodes)).tolist())
        members = tuple(Member(job, turn) for job, turn in zip(jobs, turns, strict=True))
        groups.append(Group(members, gpus, gate if len(jobs) > 1 else Gate.NONE))
    return Groups.of(groups)


def _by_job(physics: NetworkPhysics, truth: JobBatch, groups: Groups, cluster: Cluster) -> dict[int, float]:
    return dict(zip(groups.jobs.tolist(), physics.iteration_s(truth, groups, cluster).tolist(), strict=True))


def _exchange_s(physics: NetworkPhysics, truth: JobBatch, groups: Groups, cluster: Cluster, job: int) -> float:
    """Seconds of the exchange of a job between nodes; its stage on one node."""
    found = physics.exchanges(truth, groups, cluster, {}, physics.inner.alone_s(truth, groups, cluster))
    row = groups.jobs.tolist().index(job)
    return found[row][1] if row in found else float(truth.stage_s[job, Resource.NETWORK])


def show_turns(rows: list[dict[str, Any]]) -> None:
    """Print the rows, and what turns are worth."""
    grid = Table("job", "alone", "exchange", "all at once", "in turns", "exchange in turns", "turns, network idle")
    names = ("alone_s", "exchange_alone_s", "all_at_once_s", "in_turns_s", "exchange_in_turns_s", "turns_alone_s")
    for row in rows:
        grid.add_row(row["job"], *(f"{1000 * row[name]:.1f}" for name in names))
    console().print(grid)
    worth = sum(1 / row["in_turns_s"] for row in rows) / sum(1 / row["all_at_once_s"] for row in rows) - 1
    console().print(f"Milliseconds an iteration. Turns: {100 * worth:+.1f} % iterations of all jobs together.")
