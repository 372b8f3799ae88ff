"""Events (what happened) and commands (what to do); each goes to JSON and back.

Messages are batches: `at_s` is when the controller learns, arrays inside say what happened to each job and,
where it matters, when. Jobs are named by number; `JobSubmitted` gives the first number of its batch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, TypeAlias

import numpy as np

from plait.core.arrays import NO_JOBS, FloatArray, IntArray
from plait.core.cluster import Node
from plait.core.errors import InputError
from plait.core.goodput import BatchLimits, Estimate
from plait.core.jobs import Checkpoints, JobBatch, JobClass, JobSpec
from plait.core.plan import Gate, Group, Groups, Member
from plait.core.resources import Resource, StageProfile


@dataclass(frozen=True, slots=True, eq=False)
class JobSubmitted:
    """New jobs; they get the numbers `first`, `first + 1`, ...

    `room`: the cluster may grow so far that gangs of so many GPUs fit; 0 = it stays as it is.
    """

    at_s: float
    first: int
    jobs: JobBatch
    room: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class ProgressReported:
    """What the monitors measured, one entry a job.

    Iterations done, GPU-seconds and seconds held so far (overheads included), and the current seconds an
    iteration (NaN while starting or stopped).
    """

    at_s: float
    jobs: IntArray
    iterations_done: FloatArray
    attained_gpu_s: FloatArray
    run_s: FloatArray
    iteration_s: FloatArray


@dataclass(frozen=True, slots=True, eq=False)
class JobProfiled:
    """Measured solo iteration time and stage seconds (jobs x resources)."""

    at_s: float
    jobs: IntArray
    iteration_s: FloatArray
    stage_s: FloatArray


@dataclass(frozen=True, slots=True, eq=False)
class GoodputReported:
    """What adaptive jobs have fitted and measured of themselves, shape (jobs, `Estimate`); NaN unknown.

    By itself no reason to decide anew: policies that use it say when they want to be asked again.
    """

    at_s: float
    jobs: IntArray
    goodput: FloatArray


@dataclass(frozen=True, slots=True, eq=False)
class StopCostReported:
    """What stopping each of these jobs would lose, as far as it was measured.

    `checkpoints`: `Checkpoints` of each from now on (a job that attaches goes from NEVER to ON_STOP).
    `saved_run_s`: run seconds (as in `ProgressReported`) whose work its last checkpoint holds; NaN: as said before.
    `restart_s`: seconds that a stop and the start after it take, until it makes progress again; NaN: as said before.
    """

    at_s: float
    jobs: IntArray
    checkpoints: IntArray
    saved_run_s: FloatArray
    restart_s: FloatArray


@dataclass(frozen=True, slots=True, eq=False)
class JobKept:
    """Policies are to leave these running jobs on their GPUs until `until_s`, seconds; NaN: no longer.

    For what a stop would spoil besides work, such as a measurement that is nearly done.
    """

    at_s: float
    jobs: IntArray
    until_s: FloatArray


@dataclass(frozen=True, slots=True, eq=False)
class JobFinished:
    """Jobs that completed, each at its `end_s`."""

    at_s: float
    jobs: IntArray
    end_s: FloatArray


@dataclass(frozen=True, slots=True, eq=False)
class JobFailed:
    """Jobs whose processes failed; the controller starts them again while retries are left, and if `again`."""

    at_s: float
    jobs: IntArray
    reason: str
    again: bool = True


@dataclass(frozen=True, slots=True, eq=False)
class JobCancelled:
    """Jobs the user took back."""

    at_s: float
    jobs: IntArray


@dataclass(frozen=True, slots=True, eq=False)
class NodeJoined:
    """A node is there: new, or back."""

    at_s: float
    node: Node


@dataclass(frozen=True, slots=True, eq=False)
class NodeLost:
    """A node is gone, and with it the processes on it."""

    at_s: float
    node: str


@dataclass(frozen=True, slots=True, eq=False)
class NodeSuspected:
    """A node is silent (`suspect`), or is heard of again: nothing new starts there, and what runs there stays."""

    at_s: float
    node: str
    suspect: bool


@dataclass(frozen=True, slots=True, eq=False)
class LaunchFailed:
    """Jobs that could not be started where they were told to."""

    at_s: float
    jobs: IntArray
    reason: str


@dataclass(frozen=True, slots=True, eq=False)
class ReplanDue:
    """Time to decide: all that happened until now has been said."""

    at_s: float


Event: TypeAlias = (
    JobSubmitted
    | ProgressReported
    | JobProfiled
    | GoodputReported
    | StopCostReported
    | JobKept
    | JobFinished
    | JobFailed
    | JobCancelled
    | NodeJoined
    | NodeLost
    | NodeSuspected
    | LaunchFailed
    | ReplanDue
)


@dataclass(frozen=True, slots=True, eq=False)
class Stop:
    """Take these jobs off their GPUs: after a checkpoint, or suspended in host memory, or just so."""

    event: int
    jobs: IntArray
    checkpoint: bool = True
    suspend: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Launch:
    """These groups shall run as given: members not yet running there start, the others go on."""

    event: int
    groups: Groups


@dataclass(frozen=True, slots=True, eq=False)
class Adjust:
    """These groups run on, with other members, turns, shares, memory, batch sizes or gate."""

    event: int
    groups: Groups


@dataclass(frozen=True, slots=True, eq=False)
class Refuse:
    """These jobs will not run (again): refused at submission or out of retries, each with its reason."""

    event: int
    jobs: IntArray
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Wake:
    """Ask for a decision at this time even if nothing happens before."""

    event: int
    at_s: float


Command: TypeAlias = Stop | Launch | Adjust | Refuse | Wake

_TYPES: dict[str, type[Any]] = {
    t.__name__: t
    for t in (
        JobSubmitted,
        ProgressReported,
        JobProfiled,
        GoodputReported,
        StopCostReported,
        JobKept,
        JobFinished,
        JobFailed,
        JobCancelled,
        NodeJoined,
        NodeLost,
        NodeSuspected,
        LaunchFailed,
        ReplanDue,
        Stop,
        Launch,
        Adjust,
        Refuse,
        Wake,
    )
}


#: Fields that logs of before do not have: they are written where they say something.
_LATER: Mapping[str, Any] = {"room": 0, "again": True}


def to_json(message: Event | Command) -> dict[str, Any]:
    """A JSON object with a `type` and the fields; unknown numbers are null.

    >>> to_json(ReplanDue(60.0))
    {'type': 'ReplanDue', 'at_s': 60.0}
    """
    out: dict[str, Any] = {"type": type(message).__name__}
    for f in fields(message):
        value = getattr(message, f.name)
        if f.name not in _LATER or value != _LATER[f.name]:
            out[f.name] = _plain(value)
    return out


def from_json(data: Mapping[str, Any]) -> Event | Command:
    """The message that `to_json` wrote; `InputError` for anything else."""
    try:
        kind = _TYPES[data["type"]]
        row = {**_LATER, **data}
        values = {f.name: _parse(str(f.type), row[f.name]) for f in fields(kind)}
        if "stage_s" in values:
            values["stage_s"] = values["stage_s"].reshape(-1, len(Resource))
        if "goodput" in values:
            values["goodput"] = values["goodput"].reshape(-1, len(Estimate))
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"not a message of this version: {str(data)[:200]} ({error!r})") from error
    message: Event | Command = kind(**values)
    return message


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        items = value.tolist()
        if value.dtype.kind == "f":
            return _nulls(items)
        return items
    if isinstance(value, JobBatch):
        return [spec_to_json(spec) for spec in value]
    if isinstance(value, Groups):
        return [group_to_json(group) for group in value]
    if isinstance(value, Node):
        return {f.name: getattr(value, f.name) for f in fields(value)}
    if isinstance(value, tuple):
        return list(value)
    return None if isinstance(value, float) and math.isnan(value) else value


def _nulls(items: list[Any]) -> list[Any]:
    return [_nulls(i) if isinstance(i, list) else (None if math.isnan(i) else i) for i in items]


def _floats(items: list[Any]) -> FloatArray:
    def number(x: Any) -> Any:
        return [number(i) for i in x] if isinstance(x, list) else (math.nan if x is None else x)

    return np.array(number(items), dtype=np.float64)


def _parse(annotation: str, value: Any) -> Any:
    if annotation == "IntArray":
        return np.array(value, dtype=np.int64) if value else NO_JOBS
    if annotation == "FloatArray":
        return _floats(value)
    if annotation == "JobBatch":
        return JobBatch.of([spec_from_json(v) for v in value])
    if annotation == "Groups":
        return Groups.of([group_from_json(v) for v in value])
    if annotation == "Node":
        return Node(**value)
    if annotation.startswith("tuple"):
        return tuple(value)
    return value


_DEFAULT_SPEC = JobSpec(id="-")


def spec_to_json(spec: JobSpec) -> dict[str, Any]:
    """The fields of a spec that differ from the defaults."""
    out: dict[str, Any] = {}
    for f in fields(JobSpec):
        value = getattr(spec, f.name)
        if f.name in ("id", "submit_s", "gpus") or value != getattr(_DEFAULT_SPEC, f.name):
            out[f.name] = value
    for name in ("min_gpus", "max_gpus"):
        out.pop(name, None)
        if getattr(spec, name) != spec.gpus:
            out[name] = getattr(spec, name)
    if spec.profile is not None:
        out["profile"] = list(spec.profile.stage_s)
    for name in ("gpu_kinds", "tensor_bytes"):
        if out.get(name) is not None:
            out[name] = list(out[name])
    for name in ("job_class", "checkpoints"):
        if name in out:
            out[name] = out[name].name.lower()
    if spec.batch is not None:
        out["batch"] = asdict(spec.batch)
    return out


def spec_from_json(data: Mapping[str, Any]) -> JobSpec:
    """The spec that `spec_to_json` wrote."""
    row = dict(data)
    if row.get("profile") is not None:
        row["profile"] = StageProfile.from_sequence(row["profile"], row["iteration_s"])
    for name in ("gpu_kinds", "tensor_bytes"):
        if row.get(name) is not None:
            row[name] = tuple(row[name])
    if "job_class" in row:
        row["job_class"] = JobClass[row["job_class"].upper()]
    if "checkpoints" in row:
        row["checkpoints"] = Checkpoints[row["checkpoints"].upper()]
    if row.get("batch") is not None:
        row["batch"] = BatchLimits(**row["batch"])
    return JobSpec(**row)


_DEFAULT_MEMBER = Member(0)


def group_to_json(group: Group) -> dict[str, Any]:
    """GPUs and members; a member without details is just its number."""
    members: list[Any] = []
    for m in group.members:
        details = {
            f.name: getattr(m, f.name)
            for f in fields(Member)
            if f.name != "job" and getattr(m, f.name) != getattr(_DEFAULT_MEMBER, f.name)
        }
        members.append({"job": m.job, **details} if details else m.job)
    out: dict[str, Any] = {"jobs": members, "gpus": list(group.gpus)}
    if group.gate is not Gate.NONE:
        out["gate"] = group.gate.name.lower()
    return out


def group_from_json(data: Mapping[str, Any]) -> Group:
    """The group that `group_to_json` wrote."""
    members = tuple(Member(**m) if isinstance(m, Mapping) else Member(int(m)) for m in data["jobs"])
    return Group(members, tuple(int(g) for g in data["gpus"]), Gate[data.get("gate", "none").upper()])
