"""Slurm's accounting: `sacct -a -X -P`, fields separated by `|`, with the columns of `COMMAND`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC
from typing import Any

from plait.traces.files import Pathish, Source, TextRow, read_rows
from plait.traces.formats.reader import Format, Head, TableBuilder
from plait.traces.table import TraceTable
from plait.traces.times import stamp_s, utc_text

REQUIRED = ("JobID", "Submit", "Start", "End", "State")
#: What prints such a file; the columns beyond the required ones and `AllocTRES` are used where they are there.
COMMAND = (
    "sacct -a -X -P -S START -E END "
    "-o JobID,User,Account,Partition,QOS,Submit,Eligible,Start,End,State,AllocTRES,ReqTRES,NNodes,Timelimit,Reservation"
)
NULLS = ("", "None", "None assigned", "Unknown", "N/A", "NONE", "Partition_Limit", "UNLIMITED", "INVALID")
STATES = {
    "BOOT_FAIL": "node_fail",
    "CANCELLED": "cancelled",
    "COMPLETED": "completed",
    "COMPLETING": "running",
    "DEADLINE": "timeout",
    "FAILED": "failed",
    "NODE_FAIL": "node_fail",
    "OUT_OF_MEMORY": "failed",
    "PENDING": "pending",
    "PREEMPTED": "cancelled",
    "REQUEUED": "cancelled",
    "RESIZING": "running",
    "REVOKED": "cancelled",
    "RUNNING": "running",
    "SUSPENDED": "running",
    "TIMEOUT": "timeout",
}
_BYTES = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40, "P": 2**50}
_TEXTS = {"x_partition": "Partition", "x_qos": "QOS", "x_reservation": "Reservation"}


def read(path: Pathish, *, strict: bool = False) -> TraceTable:
    """Reads what `sacct -P` prints.

    GPUs are those of `AllocTRES`, else of `ReqTRES`; a job that names a kind (`gres/gpu:a100=4`) keeps to it. The
    account is the project. A job counts as submitted when it became eligible, if that is known: nobody schedules a job
    that is held, or waits for another. Stamps have no zone, and are taken as UTC, or are seconds since 1970.

    Dropped, counted: step (`-X` leaves them out), never_started, negative, earlier_attempt (a job that was requeued, in
    the output of `sacct -D`), component (of a heterogeneous job, `12+0` and `12+1`, which are one job with all GPUs).
    A job without end runs until the latest stamp of the file. Raises `TraceError` naming line and column.
    """
    source = Source(path)
    latest_s = float("-inf")
    for row in _rows(source):
        latest_s = max(latest_s, *(_stamp(row, name) or latest_s for name in ("Submit", "Start", "End")))
    builder = TableBuilder(source, kinds=dict.fromkeys(_TEXTS, "string"))
    found: dict[str, tuple[tuple[float, float, int], dict[str, Any]]] = {}
    for row in _rows(source):
        name = row.text("JobID")
        if "." in name:
            builder.drop("step")
            continue
        job, reason = _job(builder, row, name, latest_s)
        if reason:
            builder.drop(reason)
            continue
        order = (job["observed_start_s"], job["observed_end_s"] or latest_s, job["gpus"])
        if name not in found:
            found[name] = order, {"line": row.line, **job}
            continue
        builder.drop("earlier_attempt")
        if order > found[name][0]:
            found[name] = order, {"line": row.line, **job}
    for kept in _whole([job for _, job in found.values()], builder):
        builder.keep(kept.pop("line"), **kept)
    table = builder.finish(FORMAT, strict=strict, first_is_zero=True, time_zone="local (taken as UTC)")
    if "origin_s" in table.meta:
        table.meta["origin_utc"] = utc_text(table.meta["origin_s"])
    return table


def _rows(source: Source) -> Any:
    def refuse_without_gpus(header: list[str]) -> None:
        if not {"AllocTRES", "ReqTRES"} & set(header):
            raise source.error(
                "a column with the GPUs of the jobs is missing", column="AllocTRES", hint=f"print it with: {COMMAND}"
            )

    return read_rows(source, required=REQUIRED, delimiter="|", nulls=NULLS, quoted=False, seen=refuse_without_gpus)


def _whole(jobs: list[dict[str, Any]], builder: TableBuilder) -> list[dict[str, Any]]:
    """The jobs, with the components of heterogeneous ones, which Slurm starts together, made one job each."""
    found: dict[str, dict[str, Any]] = {}
    for job in jobs:
        name, plus, component = job["job_id"].partition("+")
        if not (plus and component.isdecimal()):
            found[job["job_id"]] = job
        elif name not in found:
            found[name] = job | {"job_id": name}
        else:
            builder.drop("component")
            _join(found[name], job)
    return list(found.values())


def _join(job: dict[str, Any], component: Mapping[str, Any]) -> None:
    """Add the resources of another component; the job runs from the first start to the last end."""
    for column in ("gpus", "nodes", "cpu_milli", "memory_bytes"):
        known = [one[column] for one in (job, component) if one.get(column) is not None]
        job[column] = sum(known) if known else None
    kinds = {one["gpu_kinds"] for one in (job, component) if one["gpu_kinds"]}
    job["gpu_kinds"] = kinds.pop() if len(kinds) == 1 else None
    ends = [job["observed_end_s"], component["observed_end_s"]]
    job["observed_start_s"] = min(job["observed_start_s"], component["observed_start_s"])
    job["observed_end_s"] = None if None in ends else max(ends)
    job["duration_s"] = max(job["duration_s"] or 0, component["duration_s"] or 0) or None
    if job["duration_s"] is not None:
        job["duration_kind"] = "right_censored" if None in ends else "exact"
    job["observed_queue_s"] = job["observed_start_s"] - job["submit_s"]
    job["state"] = "running" if None in ends else job["state"]


def _job(builder: TableBuilder, row: TextRow, name: str, latest_s: float) -> tuple[dict[str, Any], str | None]:
    """The job of a row, and why it is left out, if so."""
    submit_s, start_s, end_s = (_stamp(row, column) for column in ("Submit", "Start", "End"))
    if submit_s is None:
        raise row.error("a value is needed here", column="Submit")
    state = _state(row)
    eligible_s = _stamp(row, "Eligible")
    if start_s is None:
        return {}, "never_started"
    if eligible_s is not None and submit_s < eligible_s <= start_s:
        submit_s = eligible_s
        builder.warn("held, or waiting for other jobs, until Eligible, which counts as the submission")
    seconds = (latest_s if end_s is None else end_s) - start_s
    if seconds < 0 or start_s < submit_s:
        return {}, "negative"
    resources = _resources(row)
    limit_s = _limit_s(row)
    return {
        "job_id": name,
        "submit_s": submit_s,
        "duration_s": seconds if seconds > 0 else None,
        "duration_kind": "right_censored" if end_s is None else "exact" if seconds > 0 else "unknown",
        "state": "running" if end_s is None else state,
        "observed_start_s": start_s,
        "observed_end_s": end_s,
        "observed_queue_s": start_s - submit_s,
        "user": row.maybe_text("User"),
        "project": row.maybe_text("Account"),
        "nodes": row.maybe_whole("NNodes"),
        **resources,
        **({} if limit_s is None else {"x_time_limit_s": limit_s}),
        **{column: text for column, name in _TEXTS.items() if (text := row.maybe_text(name))},
    }, None


def _state(row: TextRow) -> str:
    """The first word: `CANCELLED by 1000`, `COMPLETED+`."""
    words = row.text("State").rstrip("+").split()
    if words[0] not in STATES:
        raise row.error("unknown state of a job", column="State", hint=f"known: {', '.join(STATES)}")
    return STATES[words[0]]


def _stamp(row: TextRow, name: str) -> float | None:
    text = row.maybe_text(name)
    if text is None:
        return None
    if re.fullmatch(r"\d{9,11}", text):
        return float(text)
    try:
        return stamp_s(text, UTC)
    except (ValueError, OverflowError):
        hint = "written YYYY-MM-DDTHH:MM:SS, as sacct prints it"
        raise row.error("not a time stamp", column=name, hint=hint) from None


def _limit_s(row: TextRow) -> float | None:
    """Seconds of a time limit, as Slurm writes them; None without one."""
    text = row.maybe_text("Timelimit")
    if text is None:
        return None
    match = re.fullmatch(r"(?:(\d{1,6})-)?(\d{1,6})(?::(\d{1,2}))?(?::(\d{1,2}))?", text)
    if match is None:
        raise row.error("not a time limit", column="Timelimit", hint="written days-hours:minutes:seconds")
    days, first, second, third = (int(part or 0) for part in match.groups())
    if match[1] is None and match[4] is None:  # minutes, or minutes:seconds
        return first * 60.0 + second
    return ((days * 24 + first) * 60 + second) * 60.0 + third


def _resources(row: TextRow) -> dict[str, Any]:
    """GPUs, kind, cores and memory of the allocation, or of the request where there is no allocation."""
    column = next((name for name in ("AllocTRES", "ReqTRES") if row.maybe_text(name)), None)
    if column is None:
        return {"gpus": 0}
    amounts = _tres(row, column)
    kinds = {name.removeprefix("gres/gpu:"): value for name, value in amounts.items() if name.startswith("gres/gpu:")}
    gpus = amounts.get("gres/gpu", sum(kinds.values()))
    if gpus != int(gpus) or gpus > 2**31 - 1:
        raise row.error("must be a whole number of GPUs", column=column)
    named = sorted(kind for kind, value in kinds.items() if value)
    cpus, memory = amounts.get("cpu"), amounts.get("mem")
    return {
        "gpus": int(gpus),
        "gpu_kinds": named[0] if gpus and len(named) == 1 and re.fullmatch(r"[\w.-]+", named[0]) else None,
        "cpu_milli": None if cpus is None else round(cpus * 1000),
        "memory_bytes": None if memory is None else round(memory),
    }


def _tres(row: TextRow, column: str) -> Mapping[str, float]:
    """Amounts of `cpu=8,mem=64G,gres/gpu:a100=4,...`, bytes for memory."""
    amounts: dict[str, float] = {}
    for part in row.text(column).split(","):
        name, equals, amount = part.partition("=")
        match = re.fullmatch(r"(\d{1,15}(?:\.\d{1,9})?)([KMGTP]?)[nc]?", amount)
        of_gres = re.fullmatch(r"(?:gres[/:])?gpu(:[\w.-]+)?:(\d{1,9})(?:\(.*\))?", part)
        if of_gres is not None:  # as jobs ask for it: gpu:a100:4
            amounts[f"gres/gpu{of_gres[1] or ''}"] = float(of_gres[2])
            continue
        if not equals or match is None:
            raise row.error(f"{part!r} is no resource", column=column, hint="written cpu=8,mem=64G,gres/gpu=4,...")
        factor = _BYTES[match[2]] if name == "mem" else 1
        amounts[name] = float(match[1]) * (factor if match[2] or name != "mem" else _BYTES["M"])
    return amounts


def _matches(head: Head) -> bool:
    return set(REQUIRED) <= {cell.strip() for cell in head.first_line.split("|")}


FORMAT = Format(
    "sacct",
    read,
    _matches,
    units="stamps, local or seconds since 1970",
    source="sacct -P of Slurm",
    licence="that of its source",
)
