"""Alibaba 2026 spot GPU trace: CSV, seconds; guaranteed (HP) and opportunistic (Spot) jobs, and its nodes."""

from __future__ import annotations

from typing import Any

import numpy as np

from plait.traces.delimited import TextRow, read_rows
from plait.traces.files import RULES, Pathish, Rules, Source
from plait.traces.formats.reader import Format, Head, TableBuilder
from plait.traces.schema import Array
from plait.traces.table import TraceTable

HEADER = (
    "job_name",
    "organization",
    "gpu_model",
    "cpu_request",
    "gpu_request",
    "worker_num",
    "submit_time",
    "duration",
    "job_type",
)
NODES = ("node_name", "gpu_model", "gpu_capacity_num", "cpu_num")
CLASSES = {"HP": "guaranteed", "Spot": "opportunistic"}


def read(path: Pathish, *, nodes: Pathish | None = None, rules: Rules = RULES) -> TraceTable:
    """Reads the job list, and its cluster from the node list `nodes`.

    Gang = GPUs of a worker x workers; one worker with part of a GPU has `gpu_milli`; CPUs are summed over workers.
    Taken literally, the durations need more A10s than there are.
    """
    source = Source(path, rules)
    builder = TableBuilder(source)

    def add(row: TextRow) -> None:
        workers, share = row.whole("worker_num"), row.number("gpu_request")
        part = workers == 1 and 0 < share < 1
        if not part and share * workers != int(share * workers):
            raise row.error("workers with parts of GPUs make no whole gang", column="gpu_request")
        builder.keep(
            row.line,
            job_id=row.text("job_name"),
            submit_s=row.number("submit_time"),
            gpus=1 if part else int(share * workers),
            gpu_milli=max(1, round(share * 1000)) if part else None,
            duration_s=row.number("duration"),
            duration_kind="exact",
            project=row.maybe_text("organization"),
            gpu_kinds=row.maybe_text("gpu_model"),
            cpu_milli=round(row.number("cpu_request") * workers * 1000),
            job_class=row.choice("job_type", CLASSES),
        )

    builder.read_rows(add, required=HEADER)
    cluster = None if nodes is None else read_nodes(nodes)
    return builder.finish(FORMAT, nodes=cluster)


def read_nodes(path: Pathish) -> dict[str, Array]:
    """Reads the node list (columns by name: the published order differs from the description)."""
    source = Source(path)
    cells: dict[str, list[Any]] = {name: [] for name in ("node_id", "gpus", "gpu_kind", "cpu_milli")}
    for row in read_rows(source, required=NODES):
        cells["node_id"].append(row.text("node_name"))
        cells["gpus"].append(row.whole("gpu_capacity_num"))
        cells["gpu_kind"].append(row.maybe_text("gpu_model"))
        cells["cpu_milli"].append(round(row.number("cpu_num") * 1000))
    texts = ("node_id", "gpu_kind")
    return {name: np.array(v, dtype=object if name in texts else np.float64) for name, v in cells.items()}


def _matches(head: Head) -> bool:
    return head.has("job_name", "organization", "worker_num", "job_type")


FORMAT = Format(
    "spot2026",
    read,
    _matches,
    units="seconds; cores and GPUs of a worker",
    source="alibaba/clusterdata, spot GPU 2026",
    licence="free for research and study (repository text): do not redistribute",
)
