"""Tiresias job files (SymbioticLab/Tiresias, NSDI'19): CSV, whole seconds; and its cluster files."""

from __future__ import annotations

import numpy as np

from plait.traces.delimited import TextRow, read_rows
from plait.traces.files import RULES, Pathish, Rules, Source
from plait.traces.formats.reader import Format, Head, TableBuilder
from plait.traces.schema import Array
from plait.traces.table import TraceTable

HEADER = ("job_id", "num_gpu", "submit_time", "iterations", "model_name", "duration")


def read(path: Pathish, *, nodes: Pathish | None = None, rules: Rules = RULES) -> TraceTable:
    """Reads a Tiresias job file; `nodes` is its cluster file.

    Model names are kept as they are; iteration times are not in the file.
    """
    source = Source(path, rules)
    cluster = None if nodes is None else read_cluster(nodes)
    builder = TableBuilder(source)

    def add(row: TextRow) -> None:
        builder.keep(
            row.line,
            job_id=row.text("job_id"),
            submit_s=row.number("submit_time"),
            gpus=row.gang("num_gpu"),
            duration_s=row.number("duration"),
            duration_kind="exact",
            model=row.text("model_name"),
            model_source="trace",
            iterations=row.whole("iterations"),
        )

    builder.read_rows(add, required=HEADER, optional=("interval", "model_scale"))
    return builder.finish(FORMAT, nodes=cluster)


def read_cluster(path: Pathish) -> dict[str, Array]:
    """A cluster file as a nodes table: one row of switches, nodes per switch, GPUs and CPUs per node, memory in GB."""
    source = Source(path)
    names = ("num_switch", "num_node_p_switch", "num_gpu_p_node", "num_cpu_p_node", "mem_p_node")
    for row in read_rows(source, required=names):
        switches, nodes, gpus, cpus = (row.whole(name) for name in names[:4])
        count = switches * nodes
        if min(switches, nodes) < 1 or count > 1_000_000:
            raise row.error("not a number of nodes", column="num_node_p_switch")
        return {
            "node_id": np.array([f"n{i}" for i in range(count)], dtype=object),
            "gpus": np.full(count, gpus),
            "cpu_milli": np.full(count, cpus * 1000.0),
            "memory_bytes": np.full(count, row.number("mem_p_node") * 1e9),
            "rack": np.array([f"s{i // nodes}" for i in range(count)], dtype=object),
        }
    raise source.error("the file has no cluster row")


def _matches(head: Head) -> bool:
    return head.has(*HEADER) and not head.has("iteration_time") and not head.has("batch_size")


FORMAT = Format(
    "tiresias",
    read,
    _matches,
    units="whole seconds",
    source="SymbioticLab/Tiresias",
    licence="Apache-2.0",
    citation="Gu et al., NSDI'19",
)
