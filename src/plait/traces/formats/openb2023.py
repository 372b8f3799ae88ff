"""Alibaba 2023 "openb" pods and nodes (cluster-trace-gpu-v2023): CSV, seconds, shares of GPUs in
thousandths.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from plait.traces.delimited import TextRow, read_rows
from plait.traces.files import RULES, Pathish, Rules, Source
from plait.traces.formats.reader import Format, Head, TableBuilder
from plait.traces.schema import Array
from plait.traces.table import TraceTable

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
NODES = ("sn", "cpu_milli", "memory_mib", "gpu", "model")
PHASES = {"Running": "unknown", "Succeeded": "completed", "Failed": "failed", "Pending": "pending"}
END_S = 12_902_960.0
"""The end of observation: pods deleted then were still running."""
MIB = 2**20


def read(path: Pathish, *, nodes: Pathish | None = None, end_s: float = END_S, rules: Rules = RULES) -> TraceTable:
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
            **_size(row),
        )

    builder.read_rows(add, required=PODS[:5], seen=lambda header: _refuse_timeless(source, header))
    cluster = None if nodes is None else read_nodes(nodes)
    return builder.finish(FORMAT, nodes=cluster, options={"end_s": end_s})


def _refuse_timeless(source: Source, header: list[str]) -> None:
    missing = [name for name in PODS if name not in header]
    if missing and set(PODS[:5]) <= set(header):
        hint = "the multigpu variants have no times: their arrivals must be generated"
        raise source.error("a required column is missing", column=missing[0], hint=hint)


def _size(row: TextRow) -> dict[str, Any]:
    gpus, milli = row.whole("num_gpu"), row.maybe_whole("gpu_milli")
    return {
        "gpus": gpus,
        "gpu_milli": milli if gpus == 1 and milli is not None and milli < 1000 else None,
        "gpu_kinds": row.maybe_text("gpu_spec"),
        "cpu_milli": row.maybe_whole("cpu_milli"),
        "memory_bytes": None if row.maybe_text("memory_mib") is None else round(row.number("memory_mib") * MIB),
    }


def read_nodes(path: Pathish) -> dict[str, Array]:
    """Reads a node list into the columns of a nodes table; G1 to G3 are undisclosed kinds of GPU."""
    source = Source(path)
    cells: dict[str, list[Any]] = {name: [] for name in ("node_id", "gpus", "gpu_kind", "cpu_milli", "memory_bytes")}
    for row in read_rows(source, required=NODES):
        cells["node_id"].append(row.text("sn"))
        cells["gpus"].append(row.whole("gpu"))
        cells["gpu_kind"].append(row.maybe_text("model"))
        cells["cpu_milli"].append(row.whole("cpu_milli"))
        cells["memory_bytes"].append(round(row.number("memory_mib") * MIB))
    texts = ("node_id", "gpu_kind")
    return {name: np.array(v, dtype=object if name in texts else np.float64) for name, v in cells.items()}


def _matches(head: Head) -> bool:
    return head.has("name", "num_gpu", "gpu_milli")


FORMAT = Format(
    "openb2023",
    read,
    _matches,
    units="seconds; MiB; thousandths of cores and GPUs",
    source="alibaba/clusterdata, cluster-trace-gpu-v2023",
    licence="free for research and study (repository text): do not redistribute",
    citation="Weng et al., ATC'23",
)
