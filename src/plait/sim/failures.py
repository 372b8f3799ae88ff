"""When nodes, switches and jobs break: from a failure trace, or drawn from a seeded mean time between failures.

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

import numpy as np

from plait.core.arrays import IntArray
from plait.core.cluster import Cluster
from plait.core.errors import TraceError
from plait.core.jobs import JobBatch


@dataclass(frozen=True, slots=True, order=True)
class NodeChange:
    """A node goes down or comes back at a time in seconds, or a switch: `node` is its name; no two have the same."""

    at_s: float
    node: str
    up: bool


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
