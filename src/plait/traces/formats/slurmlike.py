"""Common reader of Helios and Acme logs: one row a job with submit, start and end stamps and a Slurm-like state."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timezone
from typing import Any

from plait.traces.files import Pathish, Source, TextRow, read_rows
from plait.traces.formats.reader import Format, TableBuilder
from plait.traces.table import TraceTable
from plait.traces.times import stamp_s, utc_text

STATES = {
    "COMPLETED": "completed",
    "CANCELLED": "cancelled",
    "FAILED": "failed",
    "TIMEOUT": "timeout",
    "NODE_FAIL": "node_fail",
    "RUNNING": "running",
    "PENDING": "pending",
    "SUSPENDED": "suspended",
}
NULLS = ("", "None", "NaT", "nan", "NaN", "null")
STAMPS = ("submit_time", "start_time", "end_time")


@dataclass(frozen=True, slots=True)
class Log:
    """One such log: its format, header, the zone of its stamps (None: written in them), and its own
    columns.
    """

    format: Format
    header: Sequence[str]
    zone: timezone | None
    zone_name: str
    more: Callable[[TextRow], dict[str, Any]]
    prefix: str = ""
    check_duration: bool = True


def read_log(log: Log, path: Pathish, *, strict: bool) -> TraceTable:
    """Read the file `path` of a `log`, times counted from the first submission; `strict` makes warnings errors.

    Run time is end - start, never the file's `duration` column (which is only compared with it). Dropped,
    counted: never_started, negative, suspended. A job without end runs until the latest stamp
    of the log.
    """
    source = Source(path)
    latest_s = _latest(source, log)
    builder = TableBuilder(source)
    for row in read_rows(source, required=log.header, nulls=NULLS):
        submit_s, start_s, end_s = (_stamp(row, name, log.zone) for name in STAMPS)
        if submit_s is None:
            raise row.error("a value is needed here", column="submit_time")
        state = row.choice("state", STATES)
        reason = _reason(state, submit_s, start_s, end_s, latest_s)
        if reason or start_s is None:
            builder.drop(reason or "never_started")
            continue
        given_s = row.maybe_number("duration")
        if log.check_duration and None not in (given_s, end_s) and abs((given_s or 0) - (end_s or 0) + start_s) > 1:
            builder.warn("duration is not end - start, which is used")
        builder.keep(
            row.line,
            job_id=log.prefix + row.text("job_id"),
            submit_s=submit_s,
            duration_s=(latest_s if end_s is None else end_s) - start_s,
            duration_kind="right_censored" if end_s is None else "exact",
            state="running" if end_s is None else state,
            observed_start_s=start_s,
            observed_end_s=end_s,
            observed_queue_s=start_s - submit_s,
            user=row.maybe_text("user"),
            **_sizes(row),
            **log.more(row),
        )
    table = builder.finish(log.format, strict=strict, first_is_zero=True, time_zone=log.zone_name)
    if "origin_s" in table.meta:
        table.meta["origin_utc"] = utc_text(table.meta["origin_s"])
    return table


def _latest(source: Source, log: Log) -> float:
    """The latest stamp of the log: a first pass, so that the result is the same for any order of the rows."""
    latest = float("-inf")
    for row in read_rows(source, required=log.header, nulls=NULLS):
        latest = max(latest, *(_stamp(row, name, log.zone) or latest for name in STAMPS))
    return latest


def _reason(state: str, submit_s: float, start_s: float | None, end_s: float | None, latest_s: float) -> str | None:
    if state == "suspended":
        return "suspended"
    if start_s is None:
        return "never_started"
    seconds = (latest_s if end_s is None else end_s) - start_s
    if seconds < 0 or start_s < submit_s:
        return "negative"
    return None


def _sizes(row: TextRow) -> dict[str, Any]:
    cpus = row.maybe_number("cpu_num")
    return {
        "gpus": row.whole("gpu_num"),
        "nodes": row.maybe_whole("node_num"),
        "cpu_milli": None if cpus is None else round(cpus * 1000),
    }


def _stamp(row: TextRow, name: str, zone: timezone | None) -> float | None:
    text = row.maybe_text(name)
    if text is None:
        return None
    try:
        return stamp_s(text, zone)
    except (ValueError, OverflowError):
        hint = "written YYYY-MM-DD HH:MM:SS" + ("" if zone else "+08:00")
        raise row.error("not a time stamp", column=name, hint=hint) from None
