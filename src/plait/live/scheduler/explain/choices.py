"""The queue under another choice: another policy, more nodes or fewer, other priorities. Who gains, who loses, hours.

Both queues are played with the same drawn durations, so that what differs is the choice.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from plait.control.controller import Controller
from plait.core.arrays import FloatArray
from plait.core.cluster import Cluster
from plait.core.errors import InputError, suggest
from plait.core.policy import PRIORITY, Policy, UsesRequests
from plait.live.api.explain import ComparedHours, ComparedQueues, ComparedTotals, MovedCounts, MovedJob
from plait.live.scheduler.explain.next_starts import next_starts
from plait.live.scheduler.explain.outlook import Outlook, allowed, assumptions, middles
from plait.live.scheduler.explain.queue_arrays import arrays_of
from plait.live.scheduler.explain.queue_copy import QueueCopy, order_with

#: Jobs that are named on each side at most; a change of the end that counts, seconds and part of the time until then.
NAMED, LEAST_S, LEAST = 20, 1.0, 0.01
#: Quantiles that are shown: four in five lie between the outer ones, one in two between the inner ones.
QUANTILES = (0.1, 0.25, 0.5, 0.75, 0.9)


@dataclass(frozen=True)
class Choice:
    """Changes, applied together. `nodes` as `+2x8:a100`; `without` names of nodes; `priority` by job.

    `policy` is the policy that `text` names, None for the current one.
    """

    text: str = ""
    policy: Policy | None = None
    nodes: str = ""
    without: tuple[str, ...] = ()
    priority: Mapping[int, float] = field(default_factory=dict)

    @property
    def words(self) -> str:
        """The same for people."""
        said = [f"policy {self.text}"] * bool(self.text) + [f"nodes {self.nodes}"] * bool(self.nodes)
        said += [f"without node {name}" for name in self.without]
        return ", ".join([*said, *(f"j-{job} with priority {value:g}" for job, value in self.priority.items())])


def compare(copy: QueueCopy, now: Outlook, choice: Choice) -> ComparedQueues:
    """Who would end sooner and who later, in hours; raises `InputError` for what is not there or changes nothing.

    `copy` is unchanged afterwards.
    """
    controller = copy.controller
    if not (choice.text or choice.nodes or choice.without or choice.priority):
        raise InputError("nothing would be different; give a policy, nodes, a node to be without, or a priority")
    policy = choice.policy or controller.policy
    cluster, rows = _cluster(controller.cluster, choice), _rows(copy, policy, choice)
    before_s = _ends(copy, controller, now)
    then = _changed(controller, cluster, policy)
    priority = controller.job_store.columns["priority"]
    old = priority.copy()
    try:
        for row, value in rows.items():
            priority[row] = value
        after_s = _ends(copy, then, now)
    finally:
        priority[:] = old
    gain, lose, counts = _sides(copy, now, before_s, after_s)
    return ComparedQueues(
        choice=choice.words, policy=copy.policy, decision=copy.decision, gain=gain, lose=lose, counts=counts,
        totals=_totals(before_s, after_s, [_gpus(controller.cluster), _gpus(cluster)]),
        assumptions=[
            *assumptions(now.queue, choice.text or copy.policy, copy.by)[:1],
            "differences are between runs with the same durations; what stops and starts cost is left out",
        ],
    )  # fmt: skip


def _changed(controller: Controller, cluster: Cluster, policy: Policy) -> Controller:
    """The same jobs under another policy, on other nodes; jobs on nodes that are gone wait."""
    then = Controller(
        policy, cluster, controller.rule, controller.max_guests_per_gpu, controller.kills, controller.aggregates
    )
    then.job_store, then.active, then.running = controller.job_store, controller.active, controller.running
    then.now_s, then.competing, then.plan = controller.now_s, controller.competing, controller.plan
    then.usage, then.network, then.reserved = controller.usage, controller.network, controller.reserved
    return then


def _ends(copy: QueueCopy, controller: Controller, now: Outlook) -> FloatArray:
    """Ends of the jobs, in the order of `now`, shape (draws, jobs)."""
    order = order_with(controller, [])
    queue = arrays_of(controller, copy.who, copy.reported, order)
    cluster, groups = controller.cluster, controller.running
    down = ~cluster.node_up[cluster.gpu_node[groups.gpus]] if len(groups) else np.zeros(0, dtype=bool)
    if down.any():
        away = np.logical_or.reduceat(down, groups.first_gpu[:-1])
        group = controller.job_store.columns["running_group"][queue.numbers]
        queue = replace(queue, place=np.where((queue.place >= 0) & away[group], -1, queue.place))
    columns = np.array([now.row[number] for number in queue.numbers.tolist()], dtype=np.int64)
    left_s = now.left_s[:, columns]
    releases = {} if down.any() or not copy.ready else next_starts(controller, middles(queue, left_s))
    ends_s = allowed(queue, left_s, releases)[1]
    out = np.empty_like(ends_s)
    out[:, columns] = ends_s
    return out


def _cluster(cluster: Cluster, choice: Choice) -> Cluster:
    for name in choice.without:
        known = [node.id for node in cluster.nodes if not node.id.startswith("-")]
        if name not in known:
            there = f"there are: {', '.join(known[:10])}"
            raise InputError(f"no node {name!r}; {suggest(name, known, there)}")
        cluster = cluster.without_node(name)
    if choice.nodes:
        text = choice.nodes.removeprefix("+")
        kinds, had = cluster.kinds, {node.id for node in cluster.nodes}
        new = Cluster.parse(text).nodes
        for i, node in enumerate(new):
            kind = node.gpu_kind
            if kind == "gpu" and kind not in kinds:
                kind = kinds[0]  # not given: like the present ones
            if kind not in kinds:
                raise InputError(f"nodes {choice.nodes!r}: no GPU kind {kind!r}; this cluster has {', '.join(kinds)}")
            like = next(one for one in cluster.nodes if one.gpu_kind == kind)
            name = next(f"new-{k}" for k in range(i, i + len(had) + 1) if f"new-{k}" not in had)
            had.add(name)
            more = replace(
                like, id=name, gpus=node.gpus, cpus=node.cpus or like.cpus,
                memory_bytes=node.memory_bytes or like.memory_bytes,
            )  # fmt: skip
            cluster = Cluster((*cluster.nodes, more), (*cluster.up, True))
    return cluster if cluster.network is None else replace(cluster, network=None)


def _rows(copy: QueueCopy, policy: Policy, choice: Choice) -> dict[int, float]:
    """The priorities by the numbers that jobs have in the copy."""
    if choice.priority and not (isinstance(policy, UsesRequests) and PRIORITY in policy.uses):
        raise InputError(f"policy {choice.text or copy.policy} ignores priorities; name one that uses them with policy")
    rows = {}
    for job, value in choice.priority.items():
        row = copy.row(job)
        if row is None or row not in set(copy.controller.active.tolist()):
            raise InputError(f"no job j-{job} that waits or runs; `plait ls` lists the present ones")
        rows[row] = value
    return rows


def _gpus(cluster: Cluster) -> int:
    return int(cluster.node_gpus[cluster.node_up].sum())


def _sides(
    copy: QueueCopy, now: Outlook, before_s: FloatArray, after_s: FloatArray
) -> tuple[list[MovedJob], list[MovedJob], MovedCounts]:
    """Who ends sooner and who later, most hours first; how many they are."""
    with np.errstate(invalid="ignore"):
        change_s = np.where(np.isinf(before_s) & np.isinf(after_s), 0.0, after_s - before_s)
    middle_s, was_s = np.median(change_s, axis=0), np.median(before_s, axis=0)
    counts_s = np.maximum(LEAST_S, LEAST * np.where(np.isfinite(was_s), was_s, 0.0))
    gain = np.flatnonzero(middle_s < -counts_s)
    lose = np.flatnonzero(middle_s > counts_s)
    gain, lose = gain[np.argsort(middle_s[gain], kind="stable")], lose[np.argsort(-middle_s[lose], kind="stable")]

    def moved(row: int) -> MovedJob:
        number = int(now.queue.numbers[row])
        return MovedJob(
            id=copy.name(number), user=copy.who(number).user, gpus=int(now.queue.gpus[row]),
            waits=bool(now.queue.place[row] < 0), hours=_hours(change_s[:, row]), end_hours=_hours(after_s[:, row]),
        )  # fmt: skip

    counts = MovedCounts(gain=len(gain), lose=len(lose), same=len(middle_s) - len(gain) - len(lose))
    return [*map(moved, gain[:NAMED].tolist())], [*map(moved, lose[:NAMED].tolist())], counts


def _hours(seconds: FloatArray) -> list[float | None]:
    ordered = np.sort(seconds)
    found = [float(ordered[min(int(q * len(ordered)), len(ordered) - 1)]) for q in QUANTILES]
    return [round(v / 3600, 4) if math.isfinite(v) else None for v in found]


def _totals(before_s: FloatArray, after_s: FloatArray, gpus: list[int]) -> ComparedTotals:
    """Of all jobs: mean hours until the end, and hours until the queue is empty; now, then, and the difference."""
    if not before_s.shape[1]:
        return ComparedTotals(jobs=0, gpus=gpus, mean_end_hours=None, empty_hours=None)

    def compared(before: FloatArray, after: FloatArray) -> ComparedHours:
        with np.errstate(invalid="ignore"):
            change = np.where(np.isinf(before) & np.isinf(after), 0.0, after - before)
        return ComparedHours(now=_hours(before), then=_hours(after), change=_hours(change))

    return ComparedTotals(
        jobs=before_s.shape[1],
        gpus=gpus,
        mean_end_hours=compared(before_s.mean(axis=1), after_s.mean(axis=1)),
        empty_hours=compared(before_s.max(axis=1), after_s.max(axis=1)),
    )


def parse_priorities(said: Sequence[str]) -> dict[int, float]:
    """`j-3=10` of each; the words high and low stand for 100 and -100.

    >>> parse_priorities(["j-3=10", "j-4=high"])
    {3: 10.0, 4: 100.0}
    """
    out = {}
    for one in said:
        job, _, value = one.partition("=")
        number = job.strip().removeprefix("j-")
        value = {"high": "100", "low": "-100"}.get(value.strip(), value)
        try:
            out[int(number)] = float(value)
        except ValueError:
            raise InputError(f"priority {one!r}: write JOB=PRIORITY, e.g. j-3=10, j-3=high or j-3=low") from None
    return out
