"""Histories of cluster managers: Slurm's accounting, Workloads of Kueue.

Times are of what happened there, so a reader keeps submission, start and end.

Slurm's accounting: `sacct -a -X -P`, fields separated by `|`, with the columns of `COMMAND`.

Workloads of Kueue: `kubectl get workloads -A -o json` (or `yaml`), with the times of admission and end.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, tzinfo
from decimal import Decimal, InvalidOperation
from typing import Any

from plait.core.errors import MissingExtra, TraceError
from plait.core.words import counted
from plait.traces.delimited import BARS, FreeText, TextRow
from plait.traces.files import RULES, Pathish, Rules, Source
from plait.traces.formats.reader import Format, Head, TableBuilder, latest_s
from plait.traces.table import TraceTable
from plait.traces.times import stamp_s, utc_text, zone_named

REQUIRED = ("JobID", "Submit", "Start", "End", "State")
#: The command that prints such a file; the columns beyond the required ones and `AllocTRES` are used if present.
COMMAND = (
    "sacct -a -X -P -S START -E END "
    "-o JobID,User,Account,Partition,QOS,Submit,Eligible,Start,End,State,AllocTRES,ReqTRES,NNodes,Timelimit,Reservation"
)
NULLS = ("", "None", "None assigned", "Unknown", "N/A", "NONE", "Partition_Limit", "UNLIMITED", "INVALID")
#: Columns of the documented commands, for files without header.
LAYOUTS = (
    tuple(COMMAND.rpartition(" ")[2].split(",")),
    ("JobID", "User", "Account", "Submit", "Start", "End", "State", "AllocTRES", "NNodes"),
)
#: Columns with GPUs, in order of preference; columns of GRES are from older versions.
GPU_COLUMNS = ("AllocTRES", "AllocGRES", "ReqTRES", "ReqGRES")
#: Columns in which users write what they like, also `|` and line breaks.
FREE = ("JobName", "Comment", "SubmitLine", "WorkDir", "AdminComment", "SystemComment", "Extra", "Reason")
#: So many seconds beyond its limit (OverTimeLimit, KillWait), a job without end is a runaway.
OVER_LIMIT_S = 3600.0
#: Clocks go back by at most so many seconds.
CLOCKS_S = 3601.0
_JOB_ID = re.compile(r"\d+(?:[_+.].*)?$")
#: The stamps of a run, in order.
RUN = ("Submit", "Start", "End")
_STAMP = re.compile(r"\d{4}-\d\d-\d\dT|\d{9,11}$")
SACCT_STATES = {
    "BOOT_FAIL": "node_fail",
    "CANCELLED": "cancelled",
    "COMPLETED": "completed",
    "COMPLETING": "running",
    "CONFIGURING": "running",
    "DEADLINE": "timeout",
    "FAILED": "failed",
    "LAUNCH_FAILED": "failed",
    "NODE_FAIL": "node_fail",
    "OUT_OF_MEMORY": "failed",
    "PENDING": "pending",
    "PREEMPTED": "cancelled",
    "RECONFIG_FAIL": "node_fail",
    "REQUEUED": "cancelled",
    "REQUEUE_FED": "pending",
    "REQUEUE_HOLD": "pending",
    "RESIZING": "running",
    "REVOKED": "cancelled",
    "RESV_DEL_HOLD": "pending",
    "RUNNING": "running",
    "SIGNALING": "running",
    "SPECIAL_EXIT": "failed",
    "STAGE_OUT": "running",
    "STOPPED": "running",
    "SUSPENDED": "running",
    "TIMEOUT": "timeout",
}
_BYTES = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40, "P": 2**50}
_TEXTS = {"x_partition": "Partition", "x_qos": "QOS", "x_reservation": "Reservation"}


def read_sacct(path: Pathish, *, time_zone: str | None = None, rules: Rules = RULES) -> TraceTable:
    """Reads what `sacct -P` prints.

    GPUs come from `AllocTRES`, otherwise from `ReqTRES`; a job that names a kind (`gres/gpu:a100=4`) keeps to it. The
    account is the project. A job counts as submitted when it became eligible, if that is known: held jobs, and jobs
    that wait for others, are not scheduled. `time_zone` is for stamps without one (default: UTC); they may be seconds
    since 1970. Jobs differ by cluster, id and submission: a requeued one, or one with an id that was given out again,
    is a job of its own (`12#2`). A file without header has the columns of `COMMAND`, or of the rules.

    Dropped, counted: step (`-X` leaves them out), never_started, negative, earlier_attempt (all but the last row of a
    job), runaway (no end, though the time limit is long past), component (of a heterogeneous job, `12+0` and `12+1`,
    which are one job with all GPUs). A job without end runs until the latest stamp of the file. Raises `TraceError`
    naming line and column.
    """
    source = Source(path, rules)
    zone = UTC if time_zone is None else zone_named(time_zone)
    builder = TableBuilder(source, kinds=dict.fromkeys(_TEXTS, "string"))
    layout = _layout(source)
    reader = _Reader(builder, zone, latest_s(source, lambda row: _stamps(row, zone, RUN), **layout))
    builder.read_rows(reader.add, **layout)
    # The jobs, with the components of heterogeneous ones, which Slurm starts together, made one job each.
    jobs = _named(reader.jobs())
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
    for kept in found.values():
        builder.keep(kept.pop("line"), **kept)
    if time_zone is None and reader.backward:
        source.note(
            f"{counted(reader.backward, 'job')} left out that ended before the start, or started before the "
            "submission, by less than an hour: clocks went back? Name the zone, e.g. --time-zone Europe/Berlin"
        )
    table = builder.finish(SACCT, first_is_zero=True, time_zone=time_zone or "local (taken as UTC)")
    if "origin_s" in table.meta:
        table.meta["origin_utc"] = utc_text(table.meta["origin_s"])
    return table


def _layout(source: Source) -> dict[str, Any]:
    """How `read_rows` reads such a file."""

    def refuse_without_gpus(header: list[str]) -> None:
        if not set(GPU_COLUMNS) & set(header):
            raise source.error(
                "a column with the GPUs of the jobs is missing", column="AllocTRES", hint=f"print it with: {COMMAND}"
            )

    return {
        "required": REQUIRED, "native": BARS, "nulls": NULLS, "headerless": _headerless, "seen": refuse_without_gpus,
        "free": FreeText(FREE, _looks_right),
    }  # fmt: skip


def _headerless(cells: list[str]) -> Sequence[str] | None:
    """The columns of a row that was printed without header (`-n`) by one of the documented commands."""
    for columns in LAYOUTS:
        at = dict(zip(columns, cells, strict=False))
        trailing = len(cells) == len(columns) + 1 and not cells[-1]
        if (len(cells) == len(columns) or trailing) and _JOB_ID.match(at["JobID"]) and _STAMP.match(at["Submit"]):
            return columns
    return None


def _looks_right(row: TextRow) -> bool:
    """Whether a row has a job id, stamps and a state where they belong."""
    try:
        stamps = _stamps(row, UTC, RUN)
    except TraceError:
        return False
    state = (row.maybe_text("State") or "").rstrip("+").split()
    return bool(_JOB_ID.match(row.maybe_text("JobID") or "")) and stamps[0] is not None and state[:1] != [] and (
        state[0].replace("_", "").isupper()
    )  # fmt: skip


class _Reader:
    """The jobs of the rows, each of several rows with one cluster, id and submission as its last attempt."""

    def __init__(self, builder: TableBuilder, zone: tzinfo, latest_s: float) -> None:
        self.builder, self.zone, self.latest_s = builder, zone, latest_s
        self.backward = 0
        self._found: dict[tuple[str, str, float], dict[str, Any]] = {}

    def add(self, row: TextRow) -> None:
        name = row.text("JobID")
        if "." in name:
            self.builder.drop("step")
            return
        stamps = [*_stamps(row, self.zone, RUN), *_stamps(row, self.zone, ("Submit", "Eligible"))[1:]]
        job, reason = self._job(row, name, stamps)
        if reason:
            self.builder.drop(reason)
            return
        key = (row.maybe_text("Cluster") or "", name, stamps[0] or 0.0)
        job = {"cluster": key[0], "line": row.line, **job}
        before = self._found.get(key)
        if before is not None:
            self.builder.drop("earlier_attempt")
        if before is None or self._order(job) > self._order(before):
            self._found[key] = job

    def _order(self, job: Mapping[str, Any]) -> tuple[float, float, int]:
        end_s = job["observed_end_s"]
        return job["observed_start_s"], self.latest_s if end_s is None else end_s, job["gpus"]

    def jobs(self) -> list[dict[str, Any]]:
        return [job for _, job in sorted(self._found.items())]

    def _job(self, row: TextRow, name: str, stamps: list[float | None]) -> tuple[dict[str, Any], str | None]:
        """The job of a row, and why it is left out, if so."""
        submit_s, start_s, end_s, eligible_s = stamps
        if submit_s is None:
            raise row.error("a value is needed here", column="Submit")
        # The meaning of the first word: `CANCELLED by 1000`, `COMPLETED+`; of a word that is not known: unknown
        word = row.text("State").partition(" ")[0].rstrip("+")
        if word not in SACCT_STATES:
            self.builder.warn(f"State {word!r} is not known; what became of such a job counts as unknown")
        state = SACCT_STATES.get(word, "unknown")
        if start_s is None:
            return {}, "never_started"
        if eligible_s is not None and submit_s < eligible_s <= start_s:
            submit_s = eligible_s
            self.builder.warn("held, or waiting for other jobs, until Eligible, which counts as the submission")
        seconds = (self.latest_s if end_s is None else end_s) - start_s
        if seconds < 0 or start_s < submit_s:
            self.backward += min(seconds, start_s - submit_s) > -CLOCKS_S
            return {}, "negative"
        limit_s = _limit_s(row)
        if end_s is None and limit_s is not None and seconds > limit_s + OVER_LIMIT_S:
            hours, limit = (f"{value / 3600:.4g}" for value in (seconds, limit_s))
            self.builder.source.note(
                f"job {name} has no end after {hours} h, with a time limit of {limit} h, and is left out: a runaway "
                "job, whose end Slurm lost (sacctmgr show runawayjobs)",
                key="runaway",
            )
            return {}, "runaway"
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
            **_resources(row),
            **({} if limit_s is None else {"x_time_limit_s": limit_s}),
            **{column: text for column, name in _TEXTS.items() if (text := row.maybe_text(name))},
        }, None


def _named(jobs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The jobs with ids of their own: with the cluster if there are several, and a number from the second one on.

    Of a user's jobs with one id, the later ones are attempts.
    """
    several = len({job["cluster"] for job in jobs}) > 1
    seen: dict[str, list[dict[str, Any]]] = {}
    for job in jobs:
        cluster = job.pop("cluster")
        name = f"{cluster or '-'}/{job['job_id']}" if several else job["job_id"]
        earlier = seen.setdefault(name, [])
        attempts = sum(one["user"] == job["user"] for one in earlier) + 1
        earlier.append(job)
        base, plus, component = name.partition("+")
        number = f"#{len(earlier)}" if len(earlier) > 1 else ""
        job["job_id"] = f"{base}{number}{plus}{component}"
        if attempts > 1:
            job["attempts"] = attempts
    return jobs


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


def _stamps(row: TextRow, zone: tzinfo, names: Sequence[str]) -> list[float | None]:
    """Stamps in seconds since 1970, none before an earlier one where clocks leave the choice."""
    found: list[float | None] = []
    earliest_s = float("-inf")
    for name in names:
        at_s = _stamp(row, name, zone, earliest_s)
        found.append(at_s)
        earliest_s = earliest_s if at_s is None else at_s
    return found


def _stamp(row: TextRow, name: str, zone: tzinfo, not_before_s: float) -> float | None:
    text = row.maybe_text(name)
    if text is None:
        return None
    if re.fullmatch(r"\d{9,11}", text):
        return float(text)
    try:
        return stamp_s(text, zone, not_before_s)
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
    first: Mapping[str, float] | None = None
    amounts: Mapping[str, float] = {}
    for column in GPU_COLUMNS:
        if row.maybe_text(column):
            amounts = _tres(row, column)
            first = amounts if first is None else first
            if any(part.startswith("gres/gpu") for part in amounts):
                break
    if first is None:
        return {"gpus": 0}
    kinds = {name.removeprefix("gres/gpu:"): value for name, value in amounts.items() if name.startswith("gres/gpu:")}
    gpus = amounts.get("gres/gpu", sum(kinds.values()))
    if gpus != int(gpus) or gpus > 2**31 - 1:
        raise row.error("must be a whole number of GPUs", column=column)
    named = sorted(kind for kind, value in kinds.items() if value)
    cpus, memory = first.get("cpu"), first.get("mem")
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
        if of_gres is not None:  # as jobs request it: gpu:a100:4
            amounts[f"gres/gpu{of_gres[1] or ''}"] = float(of_gres[2])
            continue
        if not equals or match is None:
            raise row.error(f"{part!r} is no resource", column=column, hint="written cpu=8,mem=64G,gres/gpu=4,...")
        factor = _BYTES[match[2]] if name == "mem" else 1
        amounts[name] = float(match[1]) * (factor if match[2] or name != "mem" else _BYTES["M"])
    return amounts


def is_table(head: Head) -> bool:
    """Whether it is what `sacct` prints without `-P`: columns of fixed width, in which values are cut short."""
    rule = next((line.strip() for line in head.lines if line.startswith("---")), "")
    return "JobID" in head.start and bool(rule) and not rule.strip("- ")


def _is_sacct(head: Head) -> bool:
    if is_table(head):
        return False
    return head.has(*REQUIRED, native=BARS) or _headerless(head.first_line.split("|")) is not None


SACCT = Format(
    "sacct",
    read_sacct,
    _is_sacct,
    units="stamps, local or seconds since 1970",
    source="sacct -P of Slurm",
    licence="that of its source",
    no_gpus="no row names GPUs, which Slurm records only with AccountingStorageTRES=gres/gpu in slurm.conf",
)


GROUP = "kueue.x-k8s.io"
#: Where the name of a user may be, in labels and annotations.
USERS = (f"{GROUP}/user", "user", "app.kubernetes.io/created-by")
_FACTORS: Mapping[str, Decimal | int] = {
    "": 1, "m": Decimal("0.001"), "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12,
    "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40,
}  # fmt: skip


def read_kueue(path: Pathish, *, rules: Rules = RULES) -> TraceTable:
    """Reads a list of Workloads, in JSON or YAML.

    GPUs are the resources whose name ends in `/gpu`, of the admission, else of the pod sets; their flavor is the kind.
    The cluster queue is the project, else the namespace. Start is the time of the condition `Admitted` (without it, of
    `QuotaReserved`), end that of `Finished`. A workload that was evicted and admitted again has only its last start.

    Dropped, counted: never_started, negative. A workload without end runs until the latest stamp of the file. Raises
    `TraceError` naming the workload, `MissingExtra` for YAML without PyYAML.
    """
    source = Source(path, rules)
    builder = TableBuilder(source)
    found: list[tuple[_Workload, list[float]]] = []

    def add(entry: Any) -> None:
        workload = _Workload(source, entry)
        found.append((workload, workload.stamps()))

    builder.read(_entries(source), add)
    latest_s = max((at_s for _, stamps in found for at_s in stamps), default=0.0)

    def keep(workload: _Workload) -> None:
        job, reason = workload.job(latest_s)
        if reason:
            builder.drop(reason)
        else:
            builder.keep(None, **job)

    builder.read((workload for workload, _ in found), keep)
    table = builder.finish(KUEUE, first_is_zero=True, time_zone="UTC")
    if "origin_s" in table.meta:
        table.meta["origin_utc"] = utc_text(table.meta["origin_s"])
    return table


def _entries(source: Source) -> Iterator[Any]:
    """The workloads of a list, or of several documents."""
    with source.open() as text:
        whole = text.read()
    found = 0
    for document in _documents(source, whole):
        items = document.get("items", [document]) if isinstance(document, dict) else None
        if not isinstance(items, list):
            raise source.error("expected a list of Workloads", hint="kubectl get workloads -A -o json")
        for item in items:
            found += 1
            yield item
    if not found:
        raise source.error("there is no Workload in it", hint="kubectl get workloads -A -o json")


def _documents(source: Source, text: str) -> list[Any]:
    if text.lstrip()[:1] in ("{", "["):
        try:
            return [json.loads(text, parse_constant=_refuse)]
        except (ValueError, RecursionError) as error:
            raise source.error(f"not JSON: {error}", hint="is the file cut short?") from error
    try:
        import yaml
    except ImportError as error:
        raise MissingExtra("PyYAML", "live", "a list of Workloads in YAML") from error
    try:
        return [document for document in yaml.safe_load_all(text) if document is not None]
    except (yaml.YAMLError, ValueError, OverflowError, TypeError, RecursionError) as error:
        raise source.error(
            f"not YAML: {str(error).splitlines()[0]}", hint="kubectl get workloads -A -o yaml"
        ) from error


def _refuse(word: str) -> None:
    raise ValueError(f"{word} is not a finite number")


class _Workload:
    """One entry, with errors that name it."""

    def __init__(self, source: Source, entry: Any) -> None:
        if not isinstance(entry, dict) or entry.get("kind") != "Workload":
            what = entry.get("kind") if isinstance(entry, dict) else entry
            raise source.error("expected a Workload of Kueue", value=what, hint="kubectl get workloads -A -o json")
        self.source, self.entry = source, entry
        meta = self.part(entry, "metadata")
        self.name = "/".join(str(meta[key]) for key in ("namespace", "name") if meta.get(key))
        if not self.name:
            raise source.error("a Workload without a name")
        self.meta, self.spec, self.status = meta, self.part(entry, "spec"), self.part(entry, "status")
        self.submit_s = self.stamp(meta.get("creationTimestamp"), "metadata.creationTimestamp")
        self.conditions = {
            str(one.get("type")): one for one in self.parts(self.status, "conditions") if one.get("status") == "True"
        }

    def error(self, problem: str, value: Any = None) -> TraceError:
        return self.source.error(f"workload {self.name}: {problem}", value=value)

    def part(self, of: Mapping[str, Any], name: str) -> Mapping[str, Any]:
        value = of.get(name) or {}
        if not isinstance(value, dict):
            raise self.source.error(f"{name} must be an object", value=value)
        return value

    def parts(self, of: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
        value = of.get(name) or []
        if not isinstance(value, list) or not all(isinstance(one, dict) for one in value):
            raise self.error(f"{name} must be a list of objects")
        return value

    def stamp(self, text: Any, where: str) -> float:
        try:  # YAML reads stamps as such
            return stamp_s(text if isinstance(text, str) else text.isoformat())
        except (ValueError, OverflowError, AttributeError):
            raise self.error(f"{where} is not a time stamp", text) from None

    def at(self, condition: str) -> float | None:
        one = self.conditions.get(condition)
        return None if one is None else self.stamp(one.get("lastTransitionTime"), f"condition {condition}")

    def stamps(self) -> list[float]:
        return [self.submit_s, *(at for name in self.conditions if (at := self.at(name)) is not None)]

    def job(self, latest_s: float) -> tuple[dict[str, Any], str | None]:
        """The job, and why it is left out, if so."""
        start_s, end_s = self.at("Admitted"), self.at("Finished")
        start_s = self.at("QuotaReserved") if start_s is None else start_s
        if start_s is None:
            return {}, "never_started"
        seconds = (latest_s if end_s is None else end_s) - start_s
        if seconds < 0 or start_s < self.submit_s:
            return {}, "negative"
        gpus, kinds = self.gpus()
        admission = self.part(self.status, "admission")
        labels = {**self.part(self.meta, "annotations"), **self.part(self.meta, "labels")}
        user = next((str(labels[key]) for key in USERS if labels.get(key)), None)
        project = admission.get("clusterQueue") or self.meta.get("namespace")
        priority = self.spec.get("priority")
        if priority is not None and (isinstance(priority, bool) or not isinstance(priority, int | float)):
            raise self.error("spec.priority must be a number", priority)
        failed = self.conditions.get("Finished", {}).get("reason") in ("Failed", "JobFailed")
        return {
            "job_id": self.name,
            "submit_s": self.submit_s,
            "gpus": gpus,
            "duration_s": seconds if seconds > 0 else None,
            "duration_kind": "right_censored" if end_s is None else "exact" if seconds > 0 else "unknown",
            "state": "running" if end_s is None else "failed" if failed else "completed",
            "observed_start_s": start_s,
            "observed_end_s": end_s,
            "observed_queue_s": start_s - self.submit_s,
            "user": user,
            "project": None if project is None else str(project),
            "gpu_kinds": next(iter(kinds)) if len(kinds) == 1 else None,
            "priority": priority,
        }, None

    def gpus(self) -> tuple[int, set[str]]:
        """GPUs of all pods, and their flavors."""
        total, kinds = Decimal(0), set()
        assignments = self.parts(self.part(self.status, "admission"), "podSetAssignments")
        for one in assignments:
            for name, amount in self.part(one, "resourceUsage").items():
                if name.endswith("/gpu"):
                    total += self.amount(amount)
                    kind = self.part(one, "flavors").get(name)
                    kinds |= {str(kind)} if kind else set()
        if not assignments:
            for pods in self.parts(self.spec, "podSets"):
                template = self.part(self.part(pods, "template"), "spec")
                for container in self.parts(template, "containers"):
                    resources = self.part(container, "resources")
                    asked = self.part(resources, "requests") or self.part(resources, "limits")
                    for name, amount in asked.items():
                        if name.endswith("/gpu"):
                            total += self.amount(pods.get("count", 1)) * self.amount(amount)
        if total != int(total) or total > 2**31 - 1:
            raise self.error("must ask for a whole number of GPUs", str(total))
        return int(total), kinds

    def amount(self, text: Any) -> Decimal:
        digits = str(text).rstrip("kmMGTi")
        try:
            value = Decimal(digits) * _FACTORS[str(text)[len(digits) :]]
        except (InvalidOperation, KeyError):
            value = Decimal("NaN")
        if isinstance(text, bool) or not value.is_finite() or not 0 <= value <= 2**63:
            raise self.error("is no quantity of a resource", text)
        return value


KUEUE = Format(
    "kueue",
    read_kueue,
    lambda head: GROUP in head.start and "Workload" in head.start,
    units="stamps in UTC",
    source="Workloads of Kueue, kubectl get workloads -A -o json",
    licence="that of its source",
)
