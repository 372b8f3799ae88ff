"""Entries that the service itself writes into the log, next to the events of the controller, with their JSON form.

A field with a default is left out of the JSON where it has that value. Jobs are named by number.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, dataclass_transform

from plait.control.messages import Command, Event, JobSubmitted, from_json, to_json
from plait.core.codec.schema import CodecSchemas
from plait.core.codec.values import Codec, form
from plait.core.errors import InputError
from plait.core.goodput import BatchLimits

Request: TypeAlias = Mapping[str, Any]
#: A forecast: early end, middle and late end, seconds from now; None for never.
Forecast: TypeAlias = Sequence[float | None]


@dataclass_transform(frozen_default=True)
@dataclass(frozen=True)
class Note:
    """Base of all entries of this module: they happen at `at_s`, seconds on the clock of the service."""

    at_s: float

    def __init_subclass__(cls) -> None:
        dataclass(frozen=True)(cls)


class Requested(Note):
    """Jobs that a user submitted; they get the numbers `first`, `first + 1`, ... `key`: of the submission, if any.

    `met`: jobs that they name to wait for, and that had ended as they have to. `arrays`: members of arrays that they
    name.
    """

    first: int
    owner: str
    requests: Sequence[Request]
    key: str | None = None
    met: Sequence[int] = ()
    arrays: Mapping[str, Sequence[int]] | None = None


class CancelAsked(Note):
    """A job was cancelled by a user (`by`) before the controller knew of it."""

    job: int
    by: str = ""


class RequeueAsked(Note):
    """A user (`by`) sends a job back to the queue. `key`: of the request, if it has one."""

    job: int
    by: str
    key: str | None = None


class UpdateAsked(Note):
    """A user (`by`) changes the request of a job: new `fields`, and their values `before`.

    None stands for a field that is not given. `key`: of the request, if it has one.
    """

    job: int
    by: str
    fields: Mapping[str, Any]
    before: Mapping[str, Any]
    key: str | None = None


class PolicySet(Note):
    """Which policy decides from now on, and whether it may stop jobs that cannot resume from a checkpoint."""

    policy: str
    may_lose_work: bool = field(metadata=form(absent=False))  # older logs lack it


class ProjectSet(Note):
    """A project's GPU quota (None: no limit), weight in fair policies, and time limits; `gone`: it has none any more.

    `default_time_s`, `most_time_s`: the time limit of its jobs that state none, and the longest that one may state.
    `most_idle_s`: jobs whose GPUs were all unused for so long are ended.
    """

    name: str
    gone: bool = False
    gpu_quota: int | None = field(default=None, metadata=form(omit=lambda note: note.gone))
    weight: float | None = field(default=None, metadata=form(omit=lambda note: note.gone))
    default_time_s: float | None = field(default=None, metadata=form(omit=True))
    most_time_s: float | None = field(default=None, metadata=form(omit=True))
    most_idle_s: float | None = field(default=None, metadata=form(omit=True))


class AttemptBegan(Note):
    """A job starts under a new epoch: on these GPUs of the cluster, a process on each (node, GPU of the node).

    `limits`: the bounds of its batch by its execution plan, None for a job without plans.
    """

    job: int
    epoch: int
    gpus: Sequence[int]
    ranks: Sequence[tuple[str, int]]
    port: int
    limits: BatchLimits | None = None


class StopAsked(Note):
    """An attempt gets a request to stop. `grace_s`: seconds for its checkpoint if its node is about to go, or
    until its time limit.

    `reason`: who wants it, and why, in words; `takers`: jobs that get its GPUs, if others do.
    """

    job: int
    epoch: int
    why: str
    grace_s: float | None = field(
        default=None, metadata=form(omit=lambda note: note.grace_s is None and note.why != "leaving")
    )
    reason: str = ""
    takers: Sequence[int] = ()


class RankEnded(Note):
    """A process ended.

    `started`: it had run; `merged`: what ended it, if it shared a process with other jobs; `ended_s`: when it ended, by
    its agent, None if that is not known.
    """

    job: int
    epoch: int
    rank: int
    exit_code: int | None
    reason: str | None
    started: bool
    merged: str = ""
    ended_s: float | None = None


class AttemptOver(Note):
    """Nothing of an attempt is left.

    `held_s`: seconds it had its GPUs; `steps`: iterations since the beginning of the job; `first_step_s`,
    `last_step_s`: seconds from its start to these iterations, the first of them not of a guest; `batch_size`: the last
    one of an adaptive job, None if it never reported one, 0 of other jobs; `lost_work_s`: seconds of work from which no
    job resumes, and why.
    """

    job: int
    epoch: int
    outcome: str
    held_s: float
    steps: float
    ended_s: float
    first_step_s: float | None
    last_step_s: float | None
    batch_size: float | None = 0.0
    lost_work_s: float = 0.0
    why_lost: str = ""


class Restarted(Note):
    """The first step after a requested stop: for `cost_s` seconds the job was kept from training."""

    job: int
    epoch: int
    cost_s: float


class ProfileRecorded(Note):
    """A profile for later jobs: stage times and iteration time, seconds, or the skew, kept under `key` and `like`.

    `job`: the job that owns it. `beside`: that job measured its profile behind the gate of a group, and nothing is
    kept. `outside`: it was seen from outside the processes of that job. `sizes`: seconds of an iteration by
    "NODESxGPUS" of elastic jobs with a fixed batch. `fit`: throughput parameters of jobs that adapt, and the most GPUs
    they come from.
    """

    job: int | None = None
    key: str = ""
    stage_s: Sequence[float] | None = None
    iteration_s: float | None = None
    like: Sequence[str] = ()
    skew: float | None = None
    beside: bool = False
    outside: bool = False
    sizes: Mapping[str, float] | None = None
    fit: Sequence[float] | None = None


class ForecastRecorded(Note):
    """A client forecast the start (None: it runs) and the end of a job, seconds from `at_s`."""

    job: int
    start: Forecast | None
    end: Forecast


class NodeDrained(Note):
    """A node takes no work (`drained`), or does again."""

    node: str
    drained: bool


class NodeLeaving(Note):
    """A node gave notice that it goes in `leaving_s` seconds, or (not `leaving`) is back."""

    node: str
    leaving: bool
    leaving_s: float | None = None


class NodeForgotten(Note):
    """A node will not come back."""

    node: str


class NetworkSet(Note):
    """The network of the cluster: the text of a topology, or a cluster file's switches, links and racks of nodes.

    Without text and switches there is none any more.
    """

    text: str = ""
    listed: Mapping[str, Any] | None = None
    racks: Mapping[str, int] | None = None


class SwitchServed(Note):
    """A node serves a switch from now on ("": none does); with `incarnation` it has started, with empty memory."""

    switch: str
    node: str
    incarnation: str = ""


class RanksTold(Note):
    """The ranks of an attempt receive a version of their grant file, for in-network aggregation.

    Not `granted`: they exchange gradients without a switch, and `reason` is why. `lease`: epoch of the region; `wire`:
    the job's number on the wire, which it has had since the epoch `since`; the rest as in
    `plait.runtime.network.grant.NetworkGrant`.
    """

    job: int
    epoch: int
    version: int
    granted: bool
    reason: str = ""
    switch: str = ""
    address: str = ""
    ports: Sequence[int] = ()
    lease: int = 0
    offset: int = 0
    size: int = 0
    priority: int = 0
    slots: int = 0
    options: Mapping[str, Any] | None = None
    wire: int = 0
    since: int = 0
    window: int = 0


class RanksMoved(Note):
    """No rank of a job uses what it had of a switch before this `version` of its grant file: it can be freed."""

    job: int
    version: int


class NumbersSpent(Note):
    """A job has used half of the numbers of packets that it has on the wire since this epoch: it needs others."""

    job: int
    since: int


class ServiceStarted(Note):
    """A service continues from the store, in its term, `away_s` seconds after the previous newest entry."""

    term: int
    away_s: float


class AgentRestarted(Note):
    """Another agent process reports for a node than did before."""

    node: str


class Undelivered(Note):
    """A notification of an `event` of a job did not arrive by a channel, or may not have; and why."""

    job: int
    channel: str
    event: str
    why: str


_NOTES = Codec(kinds=Note.__subclasses__(), sparse=Note.__subclasses__(), closed=True)
#: The kinds of notes by name.
KINDS: Mapping[str, type[Any]] = _NOTES.kinds


def note_to_json(note: Note) -> dict[str, Any]:
    """A JSON object with a `type` and the fields.

    >>> note_to_json(CancelAsked(60.0, 3))
    {'type': 'CancelAsked', 'at_s': 60.0, 'job': 3}
    """
    return _NOTES.encode_kind(note)


def note_from_json(data: Mapping[str, Any]) -> Note:
    """The note that `note_to_json` wrote; `InputError` for anything else."""
    try:
        note: Note = _NOTES.decode_kind(data)
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"not a note of this version: {str(data)[:200]} ({error})") from error
    return note


def schemas(prefix: str) -> CodecSchemas:
    """JSON Schema of the values that `note_to_json` writes; references begin with `prefix`."""
    return CodecSchemas(_NOTES, prefix)


# -- Entries of the log: events of the controller and notes of the service; their JSON, and the jobs they are about --

Entry: TypeAlias = Event | Note


def jobs_of(message: Event | Command) -> list[int]:
    """Numbers of the jobs a message is about."""
    if isinstance(message, JobSubmitted):
        return list(range(message.first, message.first + len(message.jobs)))
    groups = getattr(message, "groups", None)
    jobs = groups.jobs if groups is not None else getattr(message, "jobs", ())
    return [int(job) for job in jobs]


def entry_to_json(entry: Entry) -> dict[str, Any]:
    """The JSON object that stands for an entry in the log."""
    return note_to_json(entry) if isinstance(entry, Note) else to_json(entry)


def entry_from_json(data: Mapping[str, Any]) -> Entry:
    """The entry that `entry_to_json` wrote; raises `InputError` for one that is not of this version."""
    return note_from_json(data) if data.get("type") in KINDS else from_json(data)  # type: ignore[return-value]
