"""The jobs of a trace for `plait simulate` and `plait tune`, with a note on jobs that are left out."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from plait.cli.experiments.options import reading
from plait.cli.experiments.request import Request
from plait.control.metrics import Value
from plait.core.cluster import Cluster
from plait.core.errors import InputError
from plait.core.jobs import JobBatch
from plait.live.notes import note
from plait.sim.studies.cases import parse_range
from plait.traces.assign import assign_classes, assign_models, assign_tenants
from plait.traces.formats.registry import read_trace
from plait.traces.load import WITHOUT, load_jobs, no_larger_than
from plait.traces.table import TraceTable


def read_table(path: Path, request: Request) -> TraceTable:
    """The first `request.jobs` rows of a trace; notes what its reader warns of and leaves out. Raises `InputError`."""
    given = {"work": request.work, "nodes": request.nodes}
    options: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    options |= reading(request.unreadable, request.columns, request.time_zone)
    table = read_trace(path, request.trace_format, **options)
    if request.jobs is not None:
        if request.jobs < 1:
            raise InputError(f"--jobs must be at least 1, got {request.jobs}")
        import numpy as np

        table = table.select(np.arange(min(request.jobs, len(table))))
    for text in table.meta["warnings"]:
        note(f"warning: {path}: {text}")
    _say_dropped(path, table.meta["rows_dropped"], "while reading")
    return table


def read_workload(path: Path, request: Request, seed: int, cluster: Cluster) -> JobBatch:
    """Read the jobs of the trace at `path`; prints which jobs were left out and why.

    `request`: options of the command; `seed`: of models and classes that are drawn; `cluster`: jobs that are larger
    are left out. Raises `InputError`.
    """
    return workload_of(read_table(path, request), path, request, seed, cluster)[0]


def workload_of(
    table: TraceTable, path: Path, request: Request, seed: int, cluster: Cluster
) -> tuple[JobBatch, dict[str, Value]]:
    """The jobs of a table that was read, none larger than the cluster, and what a result states of them.

    Models, classes, tenants and lengths that the trace does not have are drawn from `seed`; only the first seed notes
    what was left out.
    Raises `InputError`.
    """
    if request.assign_models is not None:
        table = assign_models(table, seed=seed, mix=request.assign_models)
    if request.opportunistic_share is not None:
        table = assign_classes(table, seed=seed, opportunistic=request.opportunistic_share)
    if request.tenants is not None:
        table = assign_tenants(table, seed=seed, tenants=request.tenants)
    try:
        work = load_jobs(table, censored=request.censored, seed=seed)
    except InputError as error:
        hint = "; `plait trace convert` can add what the file lacks" if WITHOUT["no_duration"] in str(error) else ""
        raise InputError(f"{path}: {error}{hint}") from None
    if seed == parse_range(request.seed, "seed")[0]:
        _say_dropped(path, work.dropped, "of the simulation", work.first_dropped)
        for text in work.warnings:
            note(f"warning: {path}: {text}")
    jobs = no_larger_than(work.jobs, cluster)
    span_s = float(jobs.submit_s[-1] - jobs.submit_s[0])
    gpu_s = float((jobs.gpus * jobs.iterations * jobs.iteration_s).sum())
    dropped = sum(work.dropped.values()) + sum(table.meta["rows_dropped"].values())
    load = round(gpu_s / (span_s * cluster.gpus), 6) if span_s > 0 else math.nan
    about: dict[str, Value] = {"load": load, "dropped": dropped}
    asked = {"opportunistic_share": request.opportunistic_share, "tenants": request.tenants}
    about |= {name: value for name, value in asked.items() if value is not None}
    if request.clusters == ("trace",):  # as text it may be as long as the list of nodes
        about["cluster"] = f"of the trace: {len(cluster.nodes)} nodes, {cluster.gpus} GPUs"
    return jobs, about


def _say_dropped(path: Path, dropped: Mapping[str, int], when: str, first: Mapping[str, str] | None = None) -> None:
    if not dropped:
        return
    reasons = []
    for reason, count in dropped.items():
        job = f" (the first is job {first[reason]!r})" if first and reason in first else ""
        reasons.append(f"{count} {WITHOUT.get(reason, reason)}{job}")
    total = sum(dropped.values())
    note(f"{path}: {total} row{'s' if total != 1 else ''} left out {when}: {', '.join(reasons)}")
