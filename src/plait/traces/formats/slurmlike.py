"""Common reader of Helios and Acme logs: one row a job with submit, start and end stamps and a Slurm-like state."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import tzinfo
from typing import Any

from plait.traces.delimited import TextRow
from plait.traces.files import Pathish, Rules, Source
from plait.traces.formats.reader import Format, TableBuilder, latest_s
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
    zone: tzinfo | None
    zone_name: str
    more: Callable[[TextRow], dict[str, Any]]
    prefix: str = ""
    check_duration: bool = True


def read_log(log: Log, path: Pathish, *, rules: Rules) -> TraceTable:
    """Read the file `path` of a `log`, times counted from the first submission; `strict` makes warnings errors.

    Run time is end - start, never the file's `duration` column (which is only compared with it). Dropped,
    counted: never_started, negative, suspended. A job without end runs until the latest stamp
    of the log.
    """
    source = Source(path, rules)
    layout: dict[str, Any] = {"required": log.header, "nulls": NULLS}
    end_of_log_s = latest_s(source, lambda row: [_stamp(row, name, log.zone) for name in STAMPS], **layout)
    builder = TableBuilder(source)

    def add(row: TextRow) -> None:
        submit_s, start_s, end_s = (_stamp(row, name, log.zone) for name in STAMPS)
        if submit_s is None:
            raise row.error("a value is needed here", column="submit_time")
        state = row.choice("state", STATES)
        reason = _reason(state, submit_s, start_s, end_s, end_of_log_s)
        if reason or start_s is None:
            builder.drop(reason or "never_started")
            return
        given_s = row.maybe_number("duration")
        if log.check_duration and None not in (given_s, end_s) and abs((given_s or 0) - (end_s or 0) + start_s) > 1:
            builder.warn("duration is not end - start, which is used")
        builder.keep(
            row.line,
            job_id=log.prefix + row.text("job_id"),
            submit_s=submit_s,
            duration_s=(end_of_log_s if end_s is None else end_s) - start_s,
            duration_kind="right_censored" if end_s is None else "exact",
            state="running" if end_s is None else state,
            observed_start_s=start_s,
            observed_end_s=end_s,
            observed_queue_s=start_s - submit_s,
            user=row.maybe_text("user"),
            **_sizes(row),
            **log.more(row),
        )

    builder.read_rows(add, **layout)
    table = builder.finish(log.format, first_is_zero=True, time_zone=log.zone_name)
    if "origin_s" in table.meta:
        table.meta["origin_utc"] = utc_text(table.meta["origin_s"])
    return table


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


def _stamp(row: TextRow, name: str, zone: tzinfo | None) -> float | None:
    text = row.maybe_text(name)
    if text is None:
        return None
    try:
        return stamp_s(text, zone)
    except (ValueError, OverflowError):
        hint = "written YYYY-MM-DD HH:MM:SS" + ("" if zone else "+08:00")
        raise row.error("not a time stamp", column=name, hint=hint) from None
