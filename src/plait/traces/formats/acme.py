"""Acme logs (InternLM/AcmeTrace, 2023): CSV of the clusters Seren and Kalos, stamps with zone.

In Kalos the `duration` column is end - submit: it is ignored, as `gpu_time`; run time is end - start in both.
"""

from __future__ import annotations

from typing import Any

from plait.traces.delimited import TextRow
from plait.traces.files import RULES, Pathish, Rules
from plait.traces.formats.reader import Format, Head
from plait.traces.formats.slurmlike import Log, read_log
from plait.traces.table import TraceTable

HEADER = (
    "job_id",
    "user",
    "node_num",
    "gpu_num",
    "cpu_num",
    "type",
    "state",
    "submit_time",
    "start_time",
    "end_time",
)


def read_seren(path: Pathish, *, rules: Rules = RULES) -> TraceTable:
    """Reads `trace_seren.csv`; the kind of work (`type`) is the project."""
    return read_log(Log(SEREN, HEADER, None, "in the stamps", _more), path, rules=rules)


def read_kalos(path: Pathish, *, rules: Rules = RULES) -> TraceTable:
    """Reads `trace_kalos.csv`; the kind of work (`type`) is the project, memory of a pod
    `x_memory_per_pod_gb`.
    """
    log = Log(KALOS, HEADER, None, "in the stamps", _more_kalos, check_duration=False)
    return read_log(log, path, rules=rules)


def _more(row: TextRow) -> dict[str, Any]:
    return {"project": row.maybe_text("type")}


def _more_kalos(row: TextRow) -> dict[str, Any]:
    return {"project": row.maybe_text("type"), "x_memory_per_pod_gb": row.maybe_number("mem_per_pod_GB")}


def _is_seren(head: Head) -> bool:
    return head.has("gpu_num", "type", "gpu_time") and not head.has("mem_per_pod_GB")


def _is_kalos(head: Head) -> bool:
    return head.has("gpu_num", "type", "mem_per_pod_GB")


SEREN = Format(
    "acme_seren",
    read_seren,
    _is_seren,
    units="stamps with zone, seconds",
    source="InternLM/AcmeTrace, Seren",
    licence="CC-BY-4.0",
    citation="Hu et al., NSDI'24",
)
KALOS = Format(
    "acme_kalos",
    read_kalos,
    _is_kalos,
    units="stamps with zone, seconds",
    source="InternLM/AcmeTrace, Kalos",
    licence="CC-BY-4.0",
    citation="Hu et al., NSDI'24",
)
