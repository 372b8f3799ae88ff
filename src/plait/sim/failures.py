"""When nodes, switches and jobs break: from a failure trace, or drawn from a seeded mean time between failures.

And nodes that come and go as a policy values them: `ElasticNodes`.

A switch that is down adds up no gradients, and what was in its memory is gone; packets still pass it. Where a switch
cuts nodes off, these nodes go down, too, each with changes of its own.
"""

from __future__ import annotations

import csv
import heapq
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from plait.control.controller import Controller
from plait.control.messages import Command, Event, ReplanDue
from plait.core.arrays import IntArray
from plait.core.cluster import Cluster
from plait.core.errors import InputError, TraceError
from plait.core.jobs import JobBatch
from plait.core.policy import Autoscaling, layers

#: A change that is due now takes effect this much later, seconds: after the commands of the present decision.
SOON_S = 0.001


@dataclass(frozen=True, slots=True, order=True)
class NodeChange:
    """A node goes down or comes back at a time in seconds, or a switch: `node` is its name; no two have the same.

    A `graceful` node has saved the jobs that run there before it goes.
    """

    at_s: float
    node: str
    up: bool
    graceful: bool = False


@dataclass(frozen=True)
class ElasticNodes:
    """The nodes that a cluster has at least and at most, and when others come and go.

    Every `every_s` the policy values nodes (`Autoscaling`), or else the requests of active jobs count. New nodes arrive
    `start_s` after they are requested. Nodes of which the policy wants fewer leave at once, idle ones first, and save
    the jobs that run there; without a policy that values them, only nodes that have no job leave, after `idle_s`.
    """

    least: int
    most: int
    start_s: float = 120.0
    every_s: float = 60.0
    idle_s: float = 300.0

    def __post_init__(self) -> None:
        times = (self.start_s, self.every_s, self.idle_s)
        if not 0 <= self.least <= self.most or self.most < 1 or not all(0 <= t < math.inf for t in times):
            raise InputError(
                f"an elastic cluster needs 0 <= least <= most nodes and seconds >= 0, got {self.least} to {self.most} "
                f"nodes, start_s={self.start_s}, every_s={self.every_s}, idle_s={self.idle_s}"
            )

    @classmethod
    def parse(cls, text: str, start_s: float) -> ElasticNodes:
        """Read `LEAST..MOST`; raises `InputError`."""
        least, dots, most = text.partition("..")
        if not (dots and least.isdecimal() and most.isdecimal()):
            raise InputError(f"elastic nodes are {text!r}; give the least and the most, e.g. 1..16")
        return cls(int(least), int(most), start_s)

    def first(self, cluster: Cluster) -> Cluster:
        """The cluster at the beginning: its first `least` nodes are up. Raises `InputError` if it has too few."""
        if len(cluster.nodes) < self.most:
            raise InputError(
                f"an elastic cluster of {self.most} nodes needs as many; this one has {len(cluster.nodes)}"
            )
        for node in cluster.nodes[self.least :]:
            cluster = cluster.without_node(node.id)
        return cluster


class Changing(Protocol):
    """A simulated cluster whose nodes may be changed while it runs."""

    def schedule(self, change: NodeChange) -> None:
        """A node comes or goes at a time that lies ahead."""

    def look_at(self, at_s: float) -> None:
        """Have a decision at this time, if there is none before."""


class NodeSupply:
    """Requests nodes and gives them back, as a step of a simulation."""

    def __init__(self, nodes: ElasticNodes, controller: Controller, backend: Changing) -> None:
        self.nodes, self.controller, self.backend = nodes, controller, backend
        self.next_s = 0.0
        self.coming: dict[str, float] = {}  # requested nodes, and when they arrive
        self.idle_since: dict[int, float] = {}
        self.leaving = False  # whether nodes are up, or coming, that will leave without another job

    def __call__(self, event: Event, commands: Sequence[Command]) -> None:
        """Look at the cluster after a decision, at most every `every_s`."""
        if not isinstance(event, ReplanDue):
            return
        if event.at_s >= self.next_s:
            self.next_s = event.at_s + max(self.nodes.every_s, SOON_S)
            self._look(event.at_s)
        active = len(self.controller.active) > 0
        if active or self.leaving:
            self.backend.look_at(self.next_s)
        self.leaving |= active  # until a look after its end

    def _look(self, now_s: float) -> None:
        view = self.controller.view()
        self.coming = {node: at_s for node, at_s in self.coming.items() if at_s > now_s}
        cluster, size = view.cluster, max(1, int(view.cluster.node_gpus.max()))
        values = next((one for one in layers(self.controller.policy) if isinstance(one, Autoscaling)), None)
        wanted = None if values is None else values.wanted_gpus(view, self.nodes.most * size)
        gpus = int(view.jobs.gpus.sum()) if wanted is None else wanted.gpus
        target = min(max(-(-gpus // size), self.nodes.least), self.nodes.most)
        up = np.flatnonzero(cluster.node_up[: self.nodes.most]).tolist()
        group = np.repeat(np.arange(len(view.running)), view.running.gpu_count())
        held = view.running.gpus[np.isin(group, view.jobs.running_group)]  # of groups that have not ended
        busy = set(cluster.gpu_node[held].tolist())
        self.idle_since = {n: self.idle_since.get(n, now_s) for n in up if n not in busy}
        short = target - len(up) - len(self.coming)
        down = [n for n, is_up in enumerate(cluster.node_up[: self.nodes.most].tolist()) if not is_up]
        for n in [n for n in down if cluster.nodes[n].id not in self.coming][: max(short, 0)]:
            self.coming[cluster.nodes[n].id] = at_s = now_s + max(self.nodes.start_s, SOON_S)
            self.backend.schedule(NodeChange(at_s, cluster.nodes[n].id, True))
        leave = sorted(up, key=lambda n: (n in busy, -n))[: max(len(up) - target, 0)]
        self.leaving = len(up) + len(self.coming) > target
        for n in leave:
            rested = now_s - self.idle_since.get(n, math.inf) >= self.nodes.idle_s
            if wanted is not None or rested:
                self.backend.schedule(NodeChange(now_s + SOON_S, cluster.nodes[n].id, False, graceful=True))


def read_failures(path: str | Path, cluster: Cluster) -> tuple[NodeChange, ...]:
    """Read a CSV with the columns at_s, node (or the name of a switch), state (`down` or `up`).

    Raises `TraceError` naming file, line and column.
    """
    known = {n.id for n in cluster.nodes} | (cluster.network.names if cluster.network is not None else set())
    changes: list[NodeChange] = []
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            for column in ("at_s", "node", "state"):
                if column not in (reader.fieldnames or ()):
                    raise TraceError(
                        "missing column",
                        file=str(path),
                        line=1,
                        column=column,
                        hint="needs at_s, node, state",
                    )
            changes.extend(_change(row, known, str(path), reader.line_num) for row in reader)
    except OSError as error:
        raise TraceError(f"cannot read failures: {error.strerror}", file=str(path)) from error
    return tuple(sorted(changes))


def _change(row: dict[str, str], known: set[str], file: str, line: int) -> NodeChange:
    try:
        at_s = float(row["at_s"])
    except (TypeError, ValueError):
        at_s = math.nan
    if not (math.isfinite(at_s) and at_s >= 0):
        raise TraceError("not a time in seconds >= 0", file=file, line=line, column="at_s", value=row["at_s"])
    if row["node"] not in known:
        raise TraceError(
            "no such node or switch",
            file=file,
            line=line,
            column="node",
            value=row["node"],
            hint="nodes are n0, n1, ...; `plait network show` names switches",
        )
    if row["state"] not in ("up", "down"):
        raise TraceError("unknown state", file=file, line=line, column="state", value=row["state"], hint="down or up")
    return NodeChange(at_s, row["node"], row["state"] == "up")


def drawn_failures(cluster: Cluster, mtbf_s: float, mttr_s: float, seed: int) -> Iterator[NodeChange]:
    """An endless, ordered stream of node failures and repairs, exponential with means `mtbf_s` and `mttr_s`."""
    return _drawn([node.id for node in cluster.nodes], mtbf_s, mttr_s, (seed, 0x0FA11))


def drawn_switch_failures(cluster: Cluster, mtbf_s: float, mttr_s: float, seed: int) -> Iterator[NodeChange]:
    """The same of the switches that aggregate; they do not depend on those of nodes."""
    switches = () if cluster.network is None else cluster.network.switches
    return _drawn([one.id for one in switches if one.usable], mtbf_s, mttr_s, (seed, 0x5F411))


def _drawn(names: Sequence[str], mtbf_s: float, mttr_s: float, seed: tuple[int, int]) -> Iterator[NodeChange]:
    streams = [np.random.default_rng((*seed, i)) for i in range(len(names))]
    heap = [(float(rng.exponential(mtbf_s)), i, False) for i, rng in enumerate(streams)]
    heapq.heapify(heap)
    while heap:
        at_s, i, up = heapq.heappop(heap)
        at_s = math.ceil(at_s * 1000) / 1000
        yield NodeChange(at_s, names[i], up)
        pause = streams[i].exponential(mtbf_s if up else mttr_s)
        heapq.heappush(heap, (at_s + max(float(pause), 0.001), i, not up))


def time_to_failure_s(seed: int, job: int, attempt: int, mtbf_s: float) -> float:
    """Seconds from the start of attempt number `attempt` of `job` to its failure, with mean `mtbf_s`."""
    rng = np.random.default_rng((seed, 0x10B, job, attempt))
    return float(rng.exponential(mtbf_s))


def has_room(cluster: Cluster, jobs: JobBatch, rows: IntArray) -> bool:
    """Whether the nodes that are up hold one of these rows of `jobs` at the size it asks for; always if all are up."""
    if cluster.node_up.all():
        return True
    gpus = np.where(cluster.node_up, cluster.node_gpus, 0)
    fits = np.broadcast_to(gpus, (len(rows), len(gpus)))
    if jobs.any_demands:
        for name, there in (("cpus", cluster.node_cpus), ("memory_bytes", cluster.node_memory_bytes)):
            per_gpu = (jobs.column(name) / jobs.gpus)[rows][:, None]
            with np.errstate(divide="ignore", invalid="ignore"):
                fits = np.where(per_gpu > 0, np.minimum(fits, (there + 1e-6) // per_gpu), fits)
    masks = np.array([cluster.kind_mask(kinds) for kinds in jobs.column("gpu_kinds")[rows]], dtype=np.int64)
    for kind in range(len(cluster.kinds)):
        gang = fits[:, cluster.node_kind == kind].sum(axis=1)
        if ((masks >> kind & 1 == 1) & (gang >= jobs.gpus[rows])).any():
            return True
    return False
