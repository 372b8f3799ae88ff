"""Published job logs of clusters: Helios and Philly.

Helios logs (S-Lab-System-Group/HeliosData, SenseTime 2020): CSV, local stamps without zone (taken as UTC+8).

The Philly job log (msr-fiddle/philly-traces, 2017): a JSON list, local US Pacific time stamps.

No model, no iterations, and no requested size apart from the GPUs that were granted.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from datetime import tzinfo
from pathlib import Path
from typing import Any

from plait.core.errors import TraceError, suggest
from plait.traces.delimited import TextRow
from plait.traces.files import RULES, Pathish, Rules, Source, read_json_list
from plait.traces.formats.reader import Format, TableBuilder, latest_s, pick
from plait.traces.table import TraceTable
from plait.traces.times import CHINA, pacific_s, stamp_s, utc_text, zone_named

LOG_STATES = {
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


HELIOS_HEADER = (
    "job_id",
    "user",
    "vc",
    "gpu_num",
    "cpu_num",
    "node_num",
    "state",
    "submit_time",
    "start_time",
    "end_time",
)
CLUSTERS = ("venus", "earth", "saturn", "uranus")


def read_helios(
    path: Pathish, *, cluster: str | None = None, time_zone: str | None = None, rules: Rules = RULES
) -> TraceTable:
    """Reads `cluster_log.csv` of one cluster, times counted from the first submission.

    cluster: prefix of the job ids, which are unique per cluster only; default: the cluster named in the path,
    else `helios`. CPU-only jobs are kept with `gpus` 0; the virtual cluster is the project. `time_zone`: of the
    stamps; default: UTC+8.

    Run time is end - start, never the file's `duration` column (which is only compared with it). Dropped,
    counted: never_started, negative, suspended. A job without end runs until the latest stamp
    of the log.
    """
    parts = [part.lower() for part in Path(path).parts]
    prefix = cluster or next((c for c in CLUSTERS if any(c in part for part in parts)), "helios")
    zone = CHINA if time_zone is None else zone_named(time_zone)
    source = Source(path, rules)
    layout: dict[str, Any] = {"required": HELIOS_HEADER, "nulls": NULLS}
    end_of_log_s = latest_s(source, lambda row: [_log_stamp(row, name, zone) for name in STAMPS], **layout)
    builder = TableBuilder(source)

    def add(row: TextRow) -> None:
        submit_s, start_s, end_s = (_log_stamp(row, name, zone) for name in STAMPS)
        if submit_s is None:
            raise row.error("a value is needed here", column="submit_time")
        state = row.choice("state", LOG_STATES)
        reason = _log_reason(state, submit_s, start_s, end_s, end_of_log_s)
        if reason or start_s is None:
            builder.drop(reason or "never_started")
            return
        given_s = row.maybe_number("duration")
        if None not in (given_s, end_s) and abs((given_s or 0) - (end_s or 0) + start_s) > 1:
            builder.warn("duration is not end - start, which is used")
        builder.keep(
            row.line,
            job_id=f"{prefix}-{row.text('job_id')}",
            submit_s=submit_s,
            duration_s=(end_of_log_s if end_s is None else end_s) - start_s,
            duration_kind="right_censored" if end_s is None else "exact",
            state="running" if end_s is None else state,
            observed_start_s=start_s,
            observed_end_s=end_s,
            observed_queue_s=start_s - submit_s,
            user=row.maybe_text("user"),
            project=row.maybe_text("vc"),
            **_sizes(row),
        )

    builder.read_rows(add, **layout)
    table = builder.finish(HELIOS, first_is_zero=True, time_zone=time_zone or "UTC+8 (assumed)")
    if "origin_s" in table.meta:
        table.meta["origin_utc"] = utc_text(table.meta["origin_s"])
    return table


def _log_reason(state: str, submit_s: float, start_s: float | None, end_s: float | None, latest_s: float) -> str | None:
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


def _log_stamp(row: TextRow, name: str, zone: tzinfo) -> float | None:
    text = row.maybe_text(name)
    if text is None:
        return None
    try:
        return stamp_s(text, zone)
    except (ValueError, OverflowError):
        raise row.error("not a time stamp", column=name, hint="written YYYY-MM-DD HH:MM:SS") from None


HELIOS = Format(
    "helios",
    read_helios,
    lambda head: head.has("vc", "gpu_num", "submit_time", "state"),
    units="local stamps, seconds",
    source="S-Lab-System-Group/HeliosData",
    licence="CC-BY-4.0",
    citation="Hu et al., SC'21",
)


PHILLY_STATES = {"Pass": "completed", "Killed": "cancelled", "Failed": "failed"}
NO_TIME = (None, "", "None")


@dataclass(frozen=True, slots=True)
class LoggedAttempt:
    """One start of a job, seconds since 1970; `end_s` is None while it runs."""

    start_s: float
    end_s: float | None
    gpus: int


def read_philly(path: Pathish, *, attempts: str = "sum", rules: Rules = RULES) -> TraceTable:
    """Reads `cluster_job_log`.

    attempts: `sum` adds the run times of all attempts of a job, `last` takes the last one's, `split` makes
    each attempt a job `<id>#<k>`, submitted when the one before ended.

    Dropped, counted: never_started (no attempt, or none with a start), negative (an end before its start),
    no_gpus. An attempt without a start, or without an end that is not the last, is a logging
    error and left out with a warning. A last attempt without end still runs when the log ends (its latest
    stamp).
    """
    pick("attempts", attempts, ("sum", "last", "split"))
    end_s = _end_of_log(path)
    source = Source(path, rules)
    builder = TableBuilder(source)
    builder.read(read_json_list(source), lambda entry: _add(builder, entry, attempts, end_s))
    if not builder.rows_read:
        raise source.error("the list of jobs is empty")
    table = builder.finish(PHILLY, first_is_zero=True, time_zone="US Pacific", options={"attempts": attempts})
    if "origin_s" in table.meta:
        table.meta["origin_utc"] = utc_text(table.meta["origin_s"])
    return table


def _end_of_log(path: Pathish) -> float:
    """The latest stamp of the log: a first pass, so that the result is the same for any order of the jobs."""
    source = Source(path)
    latest = float("-inf")
    for entry in read_json_list(source):
        with contextlib.suppress(TraceError):  # such a job is counted when jobs are read
            latest = max(latest, _philly_stamp(source, entry, "submitted_time") or latest)
            for attempt in _list(source, entry, "attempts"):
                for name in ("start_time", "end_time"):
                    latest = max(latest, _philly_stamp(source, attempt, name) or latest)
    return latest


def _add(builder: TableBuilder, entry: dict[str, Any], mode: str, end_s: float) -> None:
    source, line = builder.source, builder.source.line
    submit_s = _philly_stamp(source, entry, "submitted_time")
    if submit_s is None:
        raise source.error("a value is needed here", column="submitted_time")
    job: dict[str, Any] = {
        "job_id": _text(source, entry, "jobid"),
        "user": entry.get("user") and _text(source, entry, "user"),
        "project": entry.get("vc") and _text(source, entry, "vc"),
        "state": _state(source, entry),
        "submit_s": submit_s,
    }
    runs = _attempts(builder, entry, submit_s)
    reason = _philly_reason(runs, end_s)
    if reason:
        builder.drop(reason)
        return
    if len({run.gpus for run in runs}) > 1 and mode != "split":
        builder.warn("attempts with different numbers of GPUs, the last counts")
    if mode != "split":
        counted = runs[-1:] if mode == "last" else runs
        builder.keep(line, **job | _observed(job, runs, counted, end_s))
        return
    for k, run in enumerate(runs):
        before_s = submit_s if k == 0 else min(runs[k - 1].end_s or run.start_s, run.start_s)
        state = job["state"] if k == len(runs) - 1 else "failed"
        piece = job | {"job_id": f"{job['job_id']}#{k + 1}", "submit_s": before_s, "state": state}
        builder.keep(line, again=k > 0, **piece | _observed(piece, [run], [run], end_s))


def _philly_reason(runs: list[LoggedAttempt], end_s: float) -> str | None:
    """Why a job gives no row, if so."""
    if not runs:
        return "never_started"
    seconds = [(run.end_s or end_s) - run.start_s for run in runs]
    if min(seconds) < 0:
        return "negative"
    if min(run.gpus for run in runs) < 1:
        return "no_gpus"
    return None


def _observed(
    job: dict[str, Any], runs: list[LoggedAttempt], counted: list[LoggedAttempt], end_s: float
) -> dict[str, Any]:
    running = runs[-1].end_s is None
    return {
        "gpus": runs[-1].gpus,
        "duration_s": sum((run.end_s or end_s) - run.start_s for run in counted),
        "duration_kind": "right_censored" if running else "exact",
        "state": "running" if running else job["state"],
        "observed_start_s": runs[0].start_s,
        "observed_end_s": runs[-1].end_s,
        "observed_queue_s": max(0.0, runs[0].start_s - job["submit_s"]),
        "attempts": len(runs),
    }


def _attempts(builder: TableBuilder, entry: dict[str, Any], submit_s: float) -> list[LoggedAttempt]:
    source = builder.source
    raw = _list(source, entry, "attempts")
    runs, known_s = [], submit_s
    for k, attempt in enumerate(raw):
        start_s = _philly_stamp(source, attempt, "start_time", known_s)
        end_s = _philly_stamp(source, attempt, "end_time", known_s if start_s is None else start_s)
        if start_s is None or (end_s is None and k < len(raw) - 1):
            builder.warn("an attempt without start, or without end before another, left out")
            continue
        gpus = sum(len(_list(source, node, "gpus")) for node in _list(source, attempt, "detail", dicts=True))
        runs.append(LoggedAttempt(start_s, end_s, gpus))
        known_s = start_s if end_s is None else end_s
    return runs


def _philly_stamp(
    source: Source, entry: dict[str, Any], name: str, not_before_s: float = float("-inf")
) -> float | None:
    text = entry.get(name)
    if text in NO_TIME:
        return None
    try:
        return pacific_s(text if isinstance(text, str) else "", not_before_s)
    except (ValueError, OverflowError):
        hint = "written YYYY-MM-DD HH:MM:SS"
        raise source.error("not a time stamp", column=name, value=text, hint=hint) from None


def _text(source: Source, entry: dict[str, Any], name: str) -> str:
    value = entry.get(name)
    if not isinstance(value, str) or not value:
        raise source.error("must be text", column=name, value=value)
    return value


def _state(source: Source, entry: dict[str, Any]) -> str:
    status = _text(source, entry, "status")
    if status not in PHILLY_STATES:
        raise source.error("unknown value", column="status", value=status, hint=suggest(status, PHILLY_STATES))
    return PHILLY_STATES[status]


def _list(source: Source, entry: dict[str, Any], name: str, *, dicts: bool = False) -> list[Any]:
    value = entry.get(name)
    items = value if isinstance(value, list) else [] if value is None else None
    objects = dicts or name == "attempts"
    if items is None or (objects and not all(isinstance(item, dict) for item in items)):
        raise source.error("must be a list" + (" of objects" if objects else ""), column=name, value=value)
    return items


PHILLY = Format(
    "philly",
    read_philly,
    lambda head: head.start.lstrip()[:1] == "[" and '"' in head.start,
    units="local US Pacific stamps",
    source="msr-fiddle/philly-traces",
    licence="CC-BY-4.0",
    citation="Jeon et al., ATC'19",
)
