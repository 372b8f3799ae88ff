"""Gavel traces and their relatives: tab-separated, no header, 7, 10 or 12 fields; and Gavel's throughput tables.

7: derived from Philly (`traces/msr`); 10: Gavel; 12: Shockwave. Arrivals are seconds. Commands hold shell
text: they are kept as text and never executed.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping
from typing import Any

from plait.core.errors import InputError, suggest
from plait.traces.delimited import TABS, TextRow
from plait.traces.files import RULES, Pathish, Rules, Source
from plait.traces.formats.reader import Format, Head, TableBuilder, numbered
from plait.traces.table import TraceTable

LAYOUTS: dict[int, tuple[str, ...]] = {
    7: (
        "job_type", "command", "num_steps_arg", "needs_data_dir", "total_steps", "arrival_time",
        "scale_factor",
    ),
    10: (
        "job_type", "command", "working_directory", "num_steps_arg", "needs_data_dir", "total_steps",
        "scale_factor", "priority_weight", "SLO", "arrival_time",
    ),
    12: (
        "job_type", "command", "working_directory", "num_steps_arg", "needs_data_dir", "total_steps",
        "scale_factor", "mode", "priority_weight", "SLO", "duration", "arrival_time",
    ),
}  # fmt: skip
MODES = {"static": "static", "accordion": "accordion", "gns": "gns"}
TEXTS = {"x_job_type": "string", "x_command": "string", "x_mode": "string"}

Throughputs = Mapping[str, Mapping[tuple[str, int], float]]
"""Steps per second alone: kind of GPU -> (job type, GPUs) -> rate; 0 where it does not fit."""

_BATCHED = re.compile(r"(.+) \(batch size (\d+)\)")


def split_job_type(job_type: str) -> tuple[str, int | None]:
    """Model and batch size of a job type.

    >>> split_job_type("ResNet-18 (batch size 32)"), split_job_type("A3C")
    (('ResNet-18', 32), ('A3C', None))
    """
    match = _BATCHED.fullmatch(job_type)
    return (match[1], int(match[2])) if match else (job_type, None)


def read(
    path: Pathish,
    *,
    throughputs: Pathish | Throughputs | None = None,
    kind: str = "v100",
    rules: Rules = RULES,
) -> TraceTable:
    """Reads a trace of the Gavel family.

    `throughputs`: Gavel's table, or its file; with it `duration_s` = steps / rate alone on GPUs of `kind`
    (derived). Without it only the 12-field layout has durations. Jobs have no ids: they are numbered by
    arrival, then content.
    """
    table = _table(throughputs, kind)
    source = Source(path, rules)
    fields = _field_count(source)
    rows = []

    def add(row: TextRow) -> None:
        job = _job(row, table)
        rows.append((job["submit_s"], tuple(row.cells), {"line": row.line, **job}))

    builder = TableBuilder(source, kinds=TEXTS)
    builder.read_rows(add, names=LAYOUTS[fields], native=TABS)
    for job in numbered(rows):
        builder.keep(job.pop("line"), **job)
    options = {"kind": kind if table is not None else None, "fields": fields}
    return builder.finish(FORMAT, options=options)


def _table(throughputs: Pathish | Throughputs | None, kind: str) -> Mapping[tuple[str, int], float] | None:
    if throughputs is None:
        return None
    known = throughputs if isinstance(throughputs, Mapping) else read_throughputs(throughputs)
    if kind not in known:
        raise InputError(f"no throughputs for GPU kind {kind!r}; {suggest(kind, known)}")
    return known[kind]


def _field_count(source: Source) -> int:
    with source.open() as text:
        fields = len(text.readline().rstrip("\r\n").split("\t"))
    if fields not in LAYOUTS:
        source.line = 1
        raise source.error(f"expected 7, 10 or 12 tab-separated fields, found {fields}")
    return fields


def _job(row: TextRow, table: Mapping[tuple[str, int], float] | None) -> dict[str, Any]:
    job_type, gpus, steps = row.text("job_type"), row.gang("scale_factor"), row.whole("total_steps")
    model, batch = split_job_type(job_type)
    job: dict[str, Any] = {
        "submit_s": row.number("arrival_time"),
        "gpus": gpus,
        "model": model,
        "model_source": "trace",
        "batch_size": batch,
        "iterations": steps,
        "weight": row.maybe_number("priority_weight"),
        "x_job_type": job_type,
        "x_command": row.text("command"),
    }
    duration_s = row.maybe_number("duration")
    if duration_s is not None:
        job |= {"duration_s": duration_s, "duration_kind": "exact"}
    elif table is not None:
        rate = table.get((job_type, gpus), 0.0)
        if rate <= 0:
            raise row.error(f"no throughput for this job type on {gpus} GPUs", column="job_type")
        duration_s = steps / rate
        job |= {"duration_s": duration_s, "duration_kind": "derived", "iteration_s": 1 / rate}
    slo = row.maybe_number("SLO")
    if slo is not None and slo > 0:
        job |= {"x_slo": slo, "deadline_s": None if duration_s is None else slo * duration_s}
    if row.maybe_text("mode"):
        job["x_mode"] = row.choice("mode", MODES)
    return job


def read_throughputs(path: Pathish) -> dict[str, dict[tuple[str, int], float]]:
    """Gavel's `simulation_throughputs.json`: steps per second of each job type alone, by kind of GPU.

    Kinds ending in `_unconsolidated` are spread placements. Entries of pairs that share GPUs are left out.
    """
    return {
        kind: {job: _rate(path, entry.get("null", 0.0)) for job, entry in jobs.items()}
        for kind, jobs in _throughput_entries(path).items()
    }


def _throughput_entries(path: Pathish) -> dict[str, dict[tuple[str, int], dict[str, Any]]]:
    source = Source(path)
    with source.open() as text:
        try:
            raw = json.load(text)
        except (ValueError, RecursionError) as error:
            raise source.error(f"not JSON: {error}") from error
    if not isinstance(raw, dict) or not all(isinstance(jobs, dict) for jobs in raw.values()):
        raise source.error("expected {kind: {job type and GPUs: rates}}")
    result = {}
    for kind, jobs in raw.items():
        if not all(isinstance(entry, dict) for entry in jobs.values()):
            raise source.error("expected {'null': rate, ...} for each job type", column=kind)
        result[kind] = {_job_key(path, key): entry for key, entry in jobs.items()}
    return result


def _job_key(path: Pathish, text: str) -> tuple[str, int]:
    try:
        key = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        key = None
    if not (isinstance(key, tuple) and len(key) == 2 and isinstance(key[0], str) and isinstance(key[1], int)):
        raise Source(path).error("expected ('job type', GPUs)", value=text)
    return key


def _rate(path: Pathish, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
        raise Source(path).error("expected steps per second", value=value)
    return float(value)


def _matches(head: Head) -> bool:
    return len(head.tab) in LAYOUTS


FORMAT = Format(
    "gavel",
    read,
    _matches,
    units="seconds; steps",
    source="stanford-futuredata/gavel (7 and 10 fields), uw-mad-dash/shockwave (12 fields)",
    licence="MIT; the 7-field traces derive from the Philly traces (CC-BY-4.0)",
    citation="Narayanan et al., OSDI'20; Zheng et al., NSDI'23",
)
