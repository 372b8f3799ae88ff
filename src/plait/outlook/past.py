"""A past to learn from: jobs with their recorded starts and ends, and the cluster on which they ran."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from plait.control.controller import Controller
from plait.control.log import read_log
from plait.control.replay import replay
from plait.core.arrays import BoolArray, FloatArray, IntArray, objects
from plait.core.cluster import Cluster
from plait.core.errors import InputError
from plait.core.jobs import JobBatch, Phase
from plait.core.policy import Policy
from plait.core.words import counted
from plait.traces.load import WITHOUT, cluster_of, load_jobs
from plait.traces.table import TraceTable

#: Nodes of an inferred cluster have at most so many GPUs.
NODE_GPUS = 8

#: The kind of GPUs of a cluster without a named kind.
UNNAMED = "gpu"


@dataclass(frozen=True, eq=False)
class Past:
    """Jobs in order of submission; `start_s` and `end_s` (jobs,) as recorded, NaN if unseen.

    `judged` marks the jobs that count in comparisons: their end was seen. `policy` is the one that was used, "" if the
    history does not name it. `remarks` list assumptions; `gaps` parts of the history that no simulation covers.
    """

    jobs: JobBatch
    start_s: FloatArray
    end_s: FloatArray
    judged: BoolArray
    cluster: Cluster
    policy: str = ""
    remarks: tuple[str, ...] = ()
    gaps: tuple[str, ...] = field(default=())

    @property
    def jct_s(self) -> FloatArray:
        """Seconds from submission to the recorded end (jobs,)."""
        return self.end_s - self.jobs.submit_s


def past_of(table: TraceTable, cluster: Cluster | None = None, *, seed: int = 0) -> Past:
    """The past that a trace records; without `cluster` that of the trace, else the least on which it could have run.

    Raises `InputError` for a trace without recorded starts and ends.
    """
    seen = ~np.isnan(table["observed_start_s"]) & ~np.isnan(table["observed_end_s"])
    if not seen.any():
        raise InputError(
            "this history has no recorded starts and ends, without which no simulation can be compared with what "
            "happened; sacct, Workloads of Kueue, logs of plait and most published logs of clusters have them"
        )
    work = load_jobs(table, censored="as_is", seed=seed)
    row = {str(name): i for i, name in enumerate(table["job_id"].tolist())}
    rows = np.array([row[str(name)] for name in work.jobs.id.tolist()], dtype=np.int64)
    start_s, end_s = table["observed_start_s"][rows], table["observed_end_s"][rows]
    # A job may wait again between its first start and its last end; what counts is that its end is known.
    judged = seen[rows] & (table["duration_kind"][rows].astype(str) == "exact")
    rows_dropped = {why: n for why, n in table.meta["rows_dropped"].items() if why not in _USUAL}
    remarks = [f"{counted(n, 'row')} left out: {why.replace('_', ' ')}" for why, n in rows_dropped.items()]
    remarks += [f"{counted(n, 'job')} left out: {WITHOUT[why]}" for why, n in work.dropped.items()]
    remarks += [*table.meta["warnings"], *work.warnings]
    if cluster is None and table.nodes is not None:
        cluster = cluster_of(table)
        remarks.append(f"cluster of the history: {len(cluster.nodes)} nodes, {cluster.gpus} GPUs")
    if cluster is None:
        cluster = inferred_cluster(work.jobs, table["nodes"][rows], start_s, end_s)
        remarks.append(f"cluster inferred from the most GPUs that were in use at once: {cluster}; --cluster sets it")
    jobs = work.jobs
    cluster, named = named_by_jobs(cluster, jobs)
    remarks += named
    known = set(cluster.kinds)
    if len(known) == 1 and any(kinds and not known & set(kinds) for kinds in jobs.column("gpu_kinds").tolist()):
        jobs = jobs.replace(gpu_kinds=objects([None] * len(jobs)))
        remarks.append("the cluster has one kind of GPU, so kinds that jobs name do not count")
    if not judged.any():
        raise InputError("no job of this history has an end that was seen")
    return Past(jobs, start_s, end_s, judged, cluster, "", tuple(remarks), tuple(_gaps(table, rows)))


def named_by_jobs(cluster: Cluster, jobs: JobBatch) -> tuple[Cluster, list[str]]:
    """A cluster without a named GPU kind gets the one kind that its jobs name, with a remark; others are unchanged."""
    kinds = {kind for some in jobs.column("gpu_kinds").tolist() for kind in some or ()}
    if cluster.kinds != (UNNAMED,) or len(kinds) != 1:
        return cluster, []
    (kind,) = kinds
    nodes = tuple(replace(node, gpu_kind=kind) for node in cluster.nodes)
    return replace(cluster, nodes=nodes), [f"GPUs are taken as {kind}, the one kind that jobs name"]


#: Rows that are no job that ran: nothing is missing without them.
_USUAL = ("component", "earlier_attempt", "never_started", "step")


def _gaps(table: TraceTable, rows: IntArray) -> list[str]:
    """Influences on who ran when that are not simulated."""
    states = Counter(str(state) for state in table["state"][rows].tolist())
    found = []
    if states["node_fail"]:
        found.append(f"node failures: {counted(states['node_fail'], 'job')} ended by one")
    if states["timeout"]:
        found.append(f"time limits: {counted(states['timeout'], 'job')} ended by one; a scheduler may plan by limits")
    for column, what in (("x_reservation", "reservations"), ("x_partition", "partitions"), ("x_qos", "classes (QOS)")):
        if column in table.columns:
            values = Counter(v for v in table[column][rows].tolist() if v)
            if len(values) > 1 or (values and column == "x_reservation"):
                found.append(f"{what}: {', '.join(str(v) for v, _ in values.most_common(4))}")
    found += _endless(table, rows)
    again = np.nan_to_num(table["attempts"][rows]) > 1
    again_rows = table.meta["rows_dropped"].get("earlier_attempt", 0)
    if again.any() or again_rows:
        found.append(f"restarts: {counted(int(again.sum()) + again_rows, 'job')} ran more than once")
    return found


#: A job that has run so many times as long as every job that ended holds its GPUs in error, or is a service.
ENDLESS = 10.0


def _endless(table: TraceTable, rows: IntArray) -> list[str]:
    """Jobs without end that have run for much longer than any other."""
    duration_s = np.nan_to_num(table["duration_s"][rows])
    open_ended = table["duration_kind"][rows].astype(str) == "right_censored"
    ended_s = duration_s[~open_ended]
    endless = np.flatnonzero(open_ended & (duration_s > ENDLESS * ended_s.max(initial=0.0)))
    if not len(ended_s) or not len(endless):
        return []
    longest = int(endless[np.argmax(duration_s[endless])])
    name, hours = table["job_id"][rows][longest], duration_s[longest] / 3600
    text = (
        f"{counted(len(endless), 'job')} without end, over {ENDLESS:.0f} times as long as any that ended; the longest"
    )
    return [f"{text} is job {name}, running for {hours:.4g} h: delete its row if it is a runaway job"]


def inferred_cluster(jobs: JobBatch, nodes: FloatArray, start_s: FloatArray, end_s: FloatArray) -> Cluster:
    """The least cluster of equal nodes a kind on which what was recorded could have run.

    `nodes` (jobs,) are the nodes that each job had, NaN if unknown; they give the GPUs of a node.
    """
    kinds = np.array([one[0] if one and len(one) == 1 else "gpu" for one in jobs.column("gpu_kinds").tolist()])
    parts = []
    for kind in sorted(set(kinds.tolist())):
        rows = (kinds == kind) & ~np.isnan(start_s)
        if not rows.any():
            rows = kinds == kind
        until_s = np.where(np.isnan(end_s), np.inf, end_s)[rows]
        times = np.concatenate([start_s[rows], until_s])
        deltas = np.concatenate([jobs.gpus[rows], -jobs.gpus[rows]])
        peak = int(np.cumsum(deltas[np.lexsort((deltas, times))]).max())  # ends before starts
        a_node = (
            np.nanmax(np.where(np.isnan(nodes[rows]), np.nan, jobs.gpus[rows] / np.maximum(nodes[rows], 1)))
            if (~np.isnan(nodes[rows])).any()
            else math.nan
        )
        largest = min(int(jobs.gpus[rows].max()), NODE_GPUS) if math.isnan(a_node) else math.ceil(a_node)
        size = 1 << (largest - 1).bit_length()
        parts.append(f"{math.ceil(peak / size)}x{size}:{kind}")
    return Cluster.parse(",".join(parts))


def past_of_log(path: str | Path, make_policy: Callable[[str], Policy]) -> Past:
    """The past in an event log of plait, replayed. Raises `InputError` for a log of another run than it claims."""
    run = read_log(path)
    text = str(run.header["policy"])
    controller, difference = replay(run, make_policy(text))
    if difference is not None:
        raise InputError(f"{path}: the log cannot be replayed: {difference}")
    return past_of_controller(controller, run.cluster, text)


def past_of_controller(controller: Controller, cluster: Cluster, policy: str, *, measured: bool = False) -> Past:
    """The past of a run that a controller has seen, as simulated or live.

    With `measured` the work of a finished job is the time it ran, whatever its file has. Raises `InputError` if none
    finished.
    """
    store = controller.job_store
    n = store.count
    columns: dict[str, Any] = {name: column[:n] for name, column in store.columns.items()}
    judged = columns["phase"] == int(Phase.FINISHED)
    if not judged.any():
        raise InputError("no job of this history has finished")
    jobs = JobBatch.of([store.spec(i) for i in range(n)]).replace(checkpoints=columns["checkpoints"].copy())
    known = judged & ~np.isnan(columns["run_s"])
    done = np.where(judged, columns["iterations_done"], jobs.iterations)
    iterations = np.where(np.isnan(jobs.iterations), done, jobs.iterations)
    if measured:  # a script that reports no iterations is one
        iterations = np.where(known & ~(iterations > 0), 1.0, iterations)
    seen_s = columns["run_s"] / np.maximum(iterations, 1e-9)
    each_s = np.where(np.isnan(jobs.iteration_s) | (measured & known), seen_s, jobs.iteration_s)
    keep = ~np.isnan(iterations * each_s) & (iterations * each_s > 0)
    if not (keep & known).any():
        raise InputError("no job of this history has finished after a time that is known")
    order = np.flatnonzero(keep)[np.argsort(jobs.submit_s[keep], kind="stable")]
    jobs = jobs.replace(iterations=np.where(keep, iterations, 1.0), iteration_s=np.where(keep, each_s, 1.0))[order]
    remarks = [] if keep.all() else [f"{counted(int((~keep).sum()), 'job')} left out: no known work"]
    return Past(
        jobs, columns["first_start_s"][order], columns["end_s"][order], known[order], cluster, policy, tuple(remarks)
    )


def first_jobs(past: Past, count: int) -> Past:
    """The past of the first `count` jobs."""
    part = slice(0, count)
    return replace(
        past, jobs=past.jobs[part], start_s=past.start_s[part], end_s=past.end_s[part], judged=past.judged[part]
    )
