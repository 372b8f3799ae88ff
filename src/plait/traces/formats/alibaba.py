"""Published traces of Alibaba: PAI 2020, openb 2023, spot 2026.

Alibaba PAI 2020 (cluster-trace-gpu-v2020): several CSVs without header, seconds minus a constant.

A job has tasks (kinds of worker); a task has instances that each request a percentage of a GPU. Read the folder with
`pai_job_table.csv` and `pai_task_table.csv`, and `pai_group_tag_table.csv` where it is (each plain or `.gz`).

Alibaba 2023 "openb" pods and nodes (cluster-trace-gpu-v2023): CSV, seconds, shares of GPUs in thousandths.

Alibaba 2026 spot GPU trace: CSV, seconds; guaranteed (HP) and opportunistic (Spot) jobs, and its nodes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from plait.core.errors import TraceError
from plait.traces.delimited import TextRow, read_rows
from plait.traces.files import RULES, Pathish, Rules, Source
from plait.traces.formats.reader import Format, Head, TableBuilder
from plait.traces.schema import Array
from plait.traces.table import TraceTable

JOB = ("job_name", "inst_id", "user", "status", "start_time", "end_time")
TASK = (
    "job_name",
    "task_name",
    "inst_num",
    "status",
    "start_time",
    "end_time",
    "plan_cpu",
    "plan_mem",
    "plan_gpu",
    "gpu_type",
)
TAG = ("inst_id", "user", "gpu_type_spec", "group", "workload")
STATES = {"Running": "running", "Terminated": "completed", "Failed": "failed", "Waiting": "pending"}
GB = 10**9


@dataclass(slots=True)
class _Tasks:
    """Sums over the tasks of one job: GPUs in percent, CPU in percent of a core, memory in GB, times in
    s.
    """

    gpu_percent: float = 0.0
    cpu_percent: float = 0.0
    memory_gb: float = 0.0
    start_s: float | None = None
    end_s: float | None = None
    open_ended: bool = False
    kinds: set[str] = field(default_factory=set)

    def add(self, row: TextRow) -> None:
        count = row.maybe_number("inst_num") or 0.0
        gpu = row.maybe_number("plan_gpu") or 0.0
        self.gpu_percent += count * gpu
        self.cpu_percent += count * (row.maybe_number("plan_cpu") or 0.0)
        self.memory_gb += count * (row.maybe_number("plan_mem") or 0.0)
        start_s, end_s = row.maybe_number("start_time"), row.maybe_number("end_time")
        if start_s is not None:
            self.start_s = start_s if self.start_s is None else min(start_s, self.start_s)
            self.open_ended |= end_s is None
        if end_s is not None:
            self.end_s = end_s if self.end_s is None else max(end_s, self.end_s)
        kind = row.maybe_text("gpu_type")
        if kind is not None and gpu > 0:
            self.kinds.add(kind)


def read_pai(path: Pathish, *, rules: Rules = RULES) -> TraceTable:
    """Reads the folder of a PAI trace (or its job table, with the others next to it).

    Gang = sum over tasks of instances x share of a GPU. Less than one GPU becomes `gpus` 1 with `gpu_milli`;
    a gang with a fraction is rounded up, its true size kept in `x_gpu_share`. Run time = latest task end -
    earliest task start; the workload tag is the model. Dropped, counted: never_started, no_task, negative.
    """
    jobs_path, tasks_path, tags_path = _tables(Path(path))
    tags = {} if tags_path is None else _read_tags(tags_path)
    source = Source(jobs_path, rules)
    builder = TableBuilder(source)
    tasks, latest_s = _read_tasks(builder, tasks_path)

    def add(row: TextRow) -> None:
        state = row.choice("status", STATES)
        mine = tasks.get(row.text("job_name"))
        reason = _reason(state, mine, latest_s)
        if reason or mine is None or mine.start_s is None:
            builder.drop(reason or "no_task")
            return
        submit_s = row.maybe_number("start_time")
        if submit_s is None:
            builder.warn("no submission time, the first task's start counts")
            submit_s = mine.start_s
        group, workload = tags.get(row.maybe_text("inst_id") or "", (None, None))
        builder.keep(
            row.line,
            job_id=row.text("job_name"),
            submit_s=submit_s,
            **_run(mine, state, submit_s, latest_s),
            **_pai_size(mine, builder),
            user=row.maybe_text("user"),
            project=group,
            model=workload,
            model_source=None if workload is None else "trace",
        )

    builder.read_rows(add, names=JOB)
    return builder.finish(PAI, time_zone="UTC+8 keeps hour and weekday, not the date")


def _tables(path: Path) -> tuple[Path, Path, Path | None]:
    folder = path if path.is_dir() else path.parent
    found = []
    for name in ("pai_job_table", "pai_task_table", "pai_group_tag_table"):
        choices = [folder / f"{name}.csv", folder / f"{name}.csv.gz"]
        found.append(next((c for c in choices if c.exists()), None))
    jobs, tasks, tags = found
    if jobs is None or tasks is None:
        name = "pai_job_table.csv" if jobs is None else "pai_task_table.csv"
        raise TraceError(f"{name} is missing in this folder", file=str(folder))
    return jobs, tasks, tags


def _read_tasks(builder: TableBuilder, path: Path) -> tuple[dict[str, _Tasks], float]:
    """The tasks of each job, and the latest time of the trace."""
    tasks: dict[str, _Tasks] = {}
    latest_s = 0.0

    def add(row: TextRow) -> None:
        nonlocal latest_s
        times_s = [row.maybe_number(name) or 0.0 for name in ("start_time", "end_time")]
        tasks.setdefault(row.text("job_name"), _Tasks()).add(row)
        latest_s = max(latest_s, *times_s)

    builder.read(read_rows(Source(path), names=TASK, bad=builder.skip), add)
    return tasks, latest_s


def _read_tags(path: Path) -> dict[str, tuple[str | None, str | None]]:
    source = Source(path)
    rows = read_rows(source, names=TAG)
    return {row.text("inst_id"): (row.maybe_text("group"), row.maybe_text("workload")) for row in rows}


def _end(mine: _Tasks, state: str, latest_s: float) -> float | None:
    """When the job ended, or None if it was still running at the end of the trace."""
    return None if mine.end_s is None or (state == "running" and mine.open_ended) else mine.end_s


def _reason(state: str, mine: _Tasks | None, latest_s: float) -> str | None:
    if state == "pending":
        return "never_started"
    if mine is None:
        return "no_task"
    if mine.start_s is None:
        return "never_started"
    seconds = (_end(mine, state, latest_s) or latest_s) - mine.start_s
    return "negative" if seconds < 0 else None


def _run(mine: _Tasks, state: str, submit_s: float, latest_s: float) -> dict[str, Any]:
    start_s = mine.start_s or 0.0
    end_s = _end(mine, state, latest_s)
    return {
        "duration_s": (latest_s if end_s is None else end_s) - start_s,
        "duration_kind": "right_censored" if end_s is None else "exact",
        "state": "running" if end_s is None else state,
        "observed_start_s": start_s,
        "observed_end_s": end_s,
        "observed_queue_s": max(0.0, start_s - submit_s),
    }


def _pai_size(mine: _Tasks, builder: TableBuilder) -> dict[str, Any]:
    share = mine.gpu_percent / 100
    whole = math.ceil(share - 1e-9)
    size: dict[str, Any] = {
        "gpus": whole,
        "gpu_kinds": "|".join(sorted(mine.kinds)) or None,
        "cpu_milli": round(mine.cpu_percent * 10),
        "memory_bytes": round(mine.memory_gb * GB),
    }
    if 0 < share < 1 - 1e-9:
        size["gpu_milli"] = max(1, round(share * 1000))
    elif abs(share - whole) > 1e-9:
        builder.warn("a gang with a fraction of a GPU, rounded up")
        size["x_gpu_share"] = share
    return size


def _is_pai(head: Head) -> bool:
    if head.path.is_dir():
        return any(head.path.glob("pai_job_table.csv*"))
    return head.path.name.startswith("pai_job_table")


PAI = Format(
    "alibaba2020",
    read_pai,
    _is_pai,
    units="seconds; percent of a core and of a GPU; GB",
    source="alibaba/clusterdata, cluster-trace-gpu-v2020",
    licence="CC-BY-4.0",
    citation="Weng et al., NSDI'22",
)


PODS = (
    "name",
    "cpu_milli",
    "memory_mib",
    "num_gpu",
    "gpu_milli",
    "creation_time",
    "deletion_time",
    "scheduled_time",
)
OPENB_NODES = ("sn", "cpu_milli", "memory_mib", "gpu", "model")
PHASES = {"Running": "unknown", "Succeeded": "completed", "Failed": "failed", "Pending": "pending"}
END_S = 12_902_960.0
"""The end of observation: pods deleted then were still running."""
MIB = 2**20


def read_openb(
    path: Pathish, *, nodes: Pathish | None = None, end_s: float = END_S, rules: Rules = RULES
) -> TraceTable:
    """Reads a pod list, and its cluster from the node list `nodes`.

    Run time = deletion - scheduled. Phase Running is the phase last seen of a pod deleted later: its run time
    counts, its state is unknown; deleted at `end_s` it is right-censored. Dropped, counted: never_started,
    negative. Pods without GPU are kept with `gpus` 0.
    """
    source = Source(path, rules)
    builder = TableBuilder(source, kinds={"x_qos": "string", "x_phase": "string"})

    def add(row: TextRow) -> None:
        start_s, deleted_s = row.maybe_number("scheduled_time"), row.maybe_number("deletion_time")
        stopped_s = end_s if deleted_s is None else deleted_s
        seconds = None if start_s is None else stopped_s - start_s
        if start_s is None or seconds is None or seconds < 0:
            builder.drop("never_started" if seconds is None else "negative")
            return
        state = row.choice("pod_phase", PHASES) if row.maybe_text("pod_phase") else "unknown"
        censored = stopped_s >= end_s and state not in ("completed", "failed")
        builder.keep(
            row.line,
            job_id=row.text("name"),
            submit_s=row.number("creation_time"),
            duration_s=seconds,
            duration_kind="right_censored" if censored else "exact",
            state="running" if censored else state,
            observed_start_s=start_s,
            observed_end_s=deleted_s,
            observed_queue_s=max(0.0, start_s - row.number("creation_time")),
            x_qos=row.maybe_text("qos"),
            x_phase=row.maybe_text("pod_phase"),
            **_openb_size(row),
        )

    builder.read_rows(add, required=PODS[:5], seen=lambda header: _refuse_timeless(source, header))
    cluster = None if nodes is None else read_openb_nodes(nodes)
    return builder.finish(OPENB, nodes=cluster, options={"end_s": end_s})


def _refuse_timeless(source: Source, header: list[str]) -> None:
    missing = [name for name in PODS if name not in header]
    if missing and set(PODS[:5]) <= set(header):
        hint = "the multigpu variants have no times: their arrivals must be generated"
        raise source.error("a required column is missing", column=missing[0], hint=hint)


def _openb_size(row: TextRow) -> dict[str, Any]:
    gpus, milli = row.whole("num_gpu"), row.maybe_whole("gpu_milli")
    return {
        "gpus": gpus,
        "gpu_milli": milli if gpus == 1 and milli is not None and milli < 1000 else None,
        "gpu_kinds": row.maybe_text("gpu_spec"),
        "cpu_milli": row.maybe_whole("cpu_milli"),
        "memory_bytes": None if row.maybe_text("memory_mib") is None else round(row.number("memory_mib") * MIB),
    }


def read_openb_nodes(path: Pathish) -> dict[str, Array]:
    """Reads a node list into the columns of a nodes table; G1 to G3 are undisclosed kinds of GPU."""
    source = Source(path)
    cells: dict[str, list[Any]] = {name: [] for name in ("node_id", "gpus", "gpu_kind", "cpu_milli", "memory_bytes")}
    for row in read_rows(source, required=OPENB_NODES):
        cells["node_id"].append(row.text("sn"))
        cells["gpus"].append(row.whole("gpu"))
        cells["gpu_kind"].append(row.maybe_text("model"))
        cells["cpu_milli"].append(row.whole("cpu_milli"))
        cells["memory_bytes"].append(round(row.number("memory_mib") * MIB))
    texts = ("node_id", "gpu_kind")
    return {name: np.array(v, dtype=object if name in texts else np.float64) for name, v in cells.items()}


OPENB = Format(
    "openb2023",
    read_openb,
    lambda head: head.has("name", "num_gpu", "gpu_milli"),
    units="seconds; MiB; thousandths of cores and GPUs",
    source="alibaba/clusterdata, cluster-trace-gpu-v2023",
    licence="free for research and study (repository text): do not redistribute",
    citation="Weng et al., ATC'23",
)
