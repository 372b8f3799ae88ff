"""Logs of the Parallel Workloads Archive (Standard Workload Format): 18 numbers a line, `;` comments, -1 for unknown.

The logs are of machines without GPUs: a job gets one GPU for each `processors` of its processors.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from plait.core.errors import InputError
from plait.traces.delimited import TextRow
from plait.traces.files import RULES, Pathish, Rules, Source
from plait.traces.formats.reader import Format, Head, TableBuilder
from plait.traces.table import TraceTable

NAMES = (
    "job", "submit_s", "wait_s", "run_s", "processors", "cpu_s", "used_kb", "requested_processors", "requested_s",
    "requested_kb", "status", "user", "group", "executable", "queue", "partition", "preceding_job", "think_s",
)  # fmt: skip
STATES = {"0": "failed", "1": "completed", "5": "cancelled", "-1": "unknown"}
#: Lines of single runs of a job that was checkpointed; another line has the sum.
PARTIAL = ("2", "3", "4")
TEXTS = {"x_executable": "string", "x_queue": "string", "x_preceding_job": "string"}


def read(path: Pathish, *, processors: int = 1, rules: Rules = RULES) -> TraceTable:
    """Reads a log; times count from the first submission.

    `processors`: how many of a job count as one GPU, rounded up; requested ones where they are known. Raises
    `InputError` if it is below 1. `x_requested_s` is the time limit that a user gave.
    """
    if processors < 1:
        raise InputError(f"option processors: {processors}, must be at least 1")
    source = Source(path, rules)
    builder = TableBuilder(source, kinds=TEXTS)

    def add(row: TextRow) -> None:
        job = _job(row, processors)
        if isinstance(job, str):
            builder.drop(job)
        else:
            builder.keep(row.line, **job)

    builder.read(_rows(source, builder), add)
    if not builder.rows_read:
        raise source.error("the file has no jobs", hint="a line of a job has 18 numbers")
    return builder.finish(FORMAT, first_is_zero=True, options={"processors": processors})


def _rows(source: Source, builder: TableBuilder) -> Iterator[TextRow]:
    row = TextRow(source, NAMES, ("-1",), decimal_comma=False)
    with source.open() as text:
        for source.line, line in enumerate(text, 1):
            cells = line.partition(";")[0].split()
            if len(cells) == len(NAMES):
                row.cells = cells
                yield row
            elif cells:
                builder.skip(source.error(f"expected {len(NAMES)} fields, found {len(cells)}"))
    source.line = None


def _job(row: TextRow, processors: int) -> dict[str, Any] | str:
    """One job, or why the line gives none."""
    status = row.maybe_text("status") or "-1"
    if status in PARTIAL:
        return "partial"
    state = STATES.get(status)
    if state is None:
        raise row.error("unknown status, not one of -1 to 5", column="status")
    asked = row.maybe_whole("requested_processors") or row.maybe_whole("processors")
    run_s, wait_s, submit_s = row.maybe_number("run_s"), row.maybe_number("wait_s"), row.number("submit_s")
    if asked is None:
        return "no_processors"
    if not run_s:
        return "never_started"
    memory_kb = row.maybe_number("requested_kb") or row.maybe_number("used_kb")
    start_s = None if wait_s is None else submit_s + wait_s
    return {
        "job_id": row.text("job"),
        "submit_s": submit_s,
        "gpus": math.ceil(asked / processors),
        "duration_s": run_s,
        "duration_kind": "exact",
        "state": state,
        "observed_start_s": start_s,
        "observed_end_s": None if start_s is None else start_s + run_s,
        "observed_queue_s": wait_s,
        "user": row.maybe_text("user"),
        "project": row.maybe_text("group"),
        "cpu_milli": 1000 * asked,
        "memory_bytes": None if memory_kb is None else round(memory_kb * 1024) * asked,
        "x_requested_s": row.maybe_number("requested_s"),
        "x_executable": row.maybe_text("executable"),
        "x_queue": row.maybe_text("queue"),
        "x_preceding_job": row.maybe_text("preceding_job"),
    }


def _matches(head: Head) -> bool:
    rows = [line.partition(";")[0].split() for line in head.start.splitlines()[:-1] or [head.start]]
    first = next((cells for cells in rows if cells), None)
    if first is None:  # nothing but comments so far
        return head.first_line.startswith(";") and "MaxProcs:" in head.start
    return len(first) == len(NAMES) and all(_is_number(cell) for cell in first)


def _is_number(cell: str) -> bool:
    try:
        return math.isfinite(float(cell))
    except ValueError:
        return False


FORMAT = Format(
    "swf",
    read,
    _matches,
    units="seconds, kilobytes a processor",
    source="Parallel Workloads Archive",
    licence="by log",
    citation="Chapin et al., JSSPP'99",
)
