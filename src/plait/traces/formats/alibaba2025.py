"""Alibaba 2025 disaggregated recommendation inference: CSV, seconds, services rather than training jobs.

Useful for the shape of a cluster and the GPUs that guaranteed services leave to opportunistic jobs.
"""

from __future__ import annotations

from plait.traces.delimited import TextRow
from plait.traces.files import RULES, Pathish, Rules, Source
from plait.traces.formats.reader import Format, Head, TableBuilder, latest_s
from plait.traces.table import TraceTable

HEADER = (
    "instance_sn", "role", "app_name", "cpu_request", "gpu_request", "memory_request", "creation_time",
    "scheduled_time", "deletion_time",
)  # fmt: skip
TIMES = HEADER[-3:]
ROLES = {"HN": "HN", "CN": "CN"}
GIB = 2**30


def read(path: Pathish, *, rules: Rules = RULES) -> TraceTable:
    """Reads the instance list.

    No creation time: the instance is older than the trace; it is submitted at 0 and its duration is a lower
    bound. No deletion time: it outlives the trace; its duration, until the latest time in the file, is
    right-censored (also where both are missing). Created but never scheduled: dropped as never_started;
    negative likewise.
    """
    source = Source(path, rules)
    end_s = max(0.0, latest_s(source, lambda row: [row.maybe_number(name) for name in TIMES], required=HEADER))
    builder = TableBuilder(source, kinds={"x_role": "string"})
    builder.read_rows(lambda row: _add(builder, row, end_s), required=HEADER)
    return builder.finish(FORMAT)


def _add(builder: TableBuilder, row: TextRow, end_s: float) -> None:
    created_s, scheduled_s, deleted_s = (row.maybe_number(name) for name in TIMES)
    if created_s is not None and scheduled_s is None:
        builder.drop("never_started")
        return
    start_s = max(0.0, scheduled_s or 0.0)
    seconds = (end_s if deleted_s is None else deleted_s) - start_s
    if seconds < 0:
        builder.drop("negative")
        return
    known = "lower_bound" if created_s is None else "exact"
    builder.keep(
        row.line,
        job_id=row.text("instance_sn"),
        submit_s=created_s or 0.0,
        gpus=row.whole("gpu_request"),
        duration_s=seconds,
        duration_kind="right_censored" if deleted_s is None else known,
        state="running" if deleted_s is None else "unknown",
        observed_start_s=scheduled_s,
        observed_end_s=deleted_s,
        observed_queue_s=None if created_s is None else max(0.0, start_s - created_s),
        project=row.maybe_text("app_name"),
        cpu_milli=round(row.number("cpu_request") * 1000),
        memory_bytes=round(row.number("memory_request") * GIB),
        x_role=row.choice("role", ROLES),
        x_rdma_percent=row.maybe_number("rdma_request"),
        x_max_instances_per_node=row.maybe_number("max_instance_per_node"),
    )


def _matches(head: Head) -> bool:
    return head.has("instance_sn", "role", "app_name")


FORMAT = Format(
    "alibaba2025",
    read,
    _matches,
    units="seconds; cores; GPUs; GiB; percent of a network card",
    source="alibaba/clusterdata, disaggregated DLRM 2025",
    licence="free for research and study (repository text): do not redistribute",
)
