"""Events (what happened) and commands (what to do); each goes to JSON and back.

Messages are batches: `at_s` is when the controller learns, arrays inside have the event of each job and, where it
matters, its time. Jobs are named by number; `JobSubmitted` gives the first number of its batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, dataclass_transform

from plait.core.arrays import AS_LISTS, FloatArray, IntArray
from plait.core.cluster import Network, Node
from plait.core.codec.schema import CodecSchemas
from plait.core.codec.values import Codec, form
from plait.core.errors import InputError
from plait.core.goodput import Estimate
from plait.core.jobs import InaRequest, JobBatch, JobSpec
from plait.core.network_grants import NetworkGrant
from plait.core.plan import Gate, Group, Groups, Member, NodeReservation
from plait.core.resources import Resource, StageProfile


@dataclass_transform(frozen_default=True, eq_default=False)
class Message:
    """Base of all messages: frozen values, compared by identity, as the arrays in them cannot be compared."""

    def __init_subclass__(cls) -> None:
        dataclass(frozen=True, eq=False)(cls)


class Event(Message):
    """What happened, as the controller learns at `at_s`."""

    at_s: float


class Command(Message):
    """What to do because of an event, by its number."""

    event: int


class JobSubmitted(Event):
    """New jobs; they get the numbers `first`, `first + 1`, ...

    `room`: the cluster may grow so far that gangs of so many GPUs fit; 0 = it does not grow. `refused`: numbers of
    these jobs that may not run whatever the cluster, with the reason.
    """

    first: int
    jobs: JobBatch
    room: int = field(default=0, metadata=form(omit=True))
    refused: tuple[tuple[int, str], ...] = field(default=(), metadata=form(omit=True))


class ProgressReported(Event):
    """Measurements of the monitors, one entry a job.

    Iterations done, GPU-seconds and seconds held so far (overheads included), and the current seconds an
    iteration (NaN while starting or stopped).
    """

    jobs: IntArray
    iterations_done: FloatArray
    attained_gpu_s: FloatArray
    run_s: FloatArray
    iteration_s: FloatArray


class JobProfiled(Event):
    """Measured solo iteration time and stage seconds (jobs x resources)."""

    jobs: IntArray
    iteration_s: FloatArray
    stage_s: FloatArray = field(metadata=form(columns=len(Resource)))


class GoodputReported(Event):
    """Fits and measurements of adaptive jobs themselves, shape (jobs, `Estimate`); NaN unknown.

    It does not trigger a decision: policies that use it set the time of the next one.
    """

    jobs: IntArray
    goodput: FloatArray = field(metadata=form(columns=len(Estimate)))


class StopCostReported(Event):
    """Losses of a stop of each of these jobs, as far as measured.

    `checkpoints`: `Checkpoints` of each from now on (a job that attaches goes from NEVER to ON_STOP). `saved_run_s`:
    run seconds (as in `ProgressReported`) whose work its last checkpoint holds; NaN: unchanged. `restart_s`: seconds
    that a stop and the start after it take, until it makes progress again; NaN: unchanged.
    """

    jobs: IntArray
    checkpoints: IntArray
    saved_run_s: FloatArray
    restart_s: FloatArray


class JobKept(Event):
    """Policies are to leave these running jobs on their GPUs until `until_s`, seconds; NaN: no longer.

    For what a stop would spoil besides work, such as a measurement that is nearly done.
    """

    jobs: IntArray
    until_s: FloatArray


class JobHeld(Event):
    """Waiting jobs that the policy does not see (`held` 1), or sees again (0); jobs that run are left alone."""

    jobs: IntArray
    held: IntArray


class UsageReported(Event):
    """Measurements of GPUs and of running jobs: the fields of `core.policy.Usage`, NaN unknown.

    `gpu_utilisation` and `gpu_memory_bytes` have one entry a GPU of the cluster, or are empty; the others one a job. It
    does not trigger a decision: policies that use it set the time of the next one.
    """

    gpu_utilisation: FloatArray
    gpu_memory_bytes: FloatArray
    jobs: IntArray
    step_s: FloatArray
    peak_bytes: FloatArray
    persistent_bytes: FloatArray
    spill_bytes: FloatArray


class NetworkReported(Event):
    """Measurements of the exchange of gradients, one entry a job: the fields of `NetworkFigures`, NaN unknown.

    It does not trigger a decision: policies that use it set the time of the next one.
    """

    jobs: IntArray
    bits_per_s: FloatArray
    aggregated: FloatArray
    fallback_share: FloatArray


class JobFinished(Event):
    """Jobs that completed, each at its `end_s`."""

    jobs: IntArray
    end_s: FloatArray


class JobFailed(Event):
    """Jobs whose processes failed; the controller starts them again while retries are left, and if `again`."""

    jobs: IntArray
    reason: str
    again: bool = field(default=True, metadata=form(omit=True))


class JobCancelled(Event):
    """Jobs that `by` cancelled; "" if it is not known who."""

    jobs: IntArray
    by: str = field(default="", metadata=form(omit=True))


class JobUpdated(Event):
    """New requests for these jobs: `specs` has an entry for each of `jobs`, in that order.

    A job that runs on fewer or more GPUs than it now takes leaves them after a checkpoint, and waits.
    """

    jobs: IntArray
    specs: JobBatch


class JobRequeued(Event):
    """Running jobs that are to leave their GPUs after a checkpoint, and to wait again."""

    jobs: IntArray


class NodeJoined(Event):
    """A node is there: new, or back."""

    node: Node


class NodeLost(Event):
    """A node is gone, and with it the processes on it."""

    node: str


class NodeSuspected(Event):
    """A node is silent (`suspect`) or responds again; on a silent node nothing new starts, and running jobs stay."""

    node: str
    suspect: bool


class SwitchLost(Event):
    """A switch no longer aggregates, and what was in its memory is gone."""

    switch: str


class SwitchJoined(Event):
    """A switch of the network is there again, with empty memory."""

    switch: str


class NodesReserved(Event):
    """Nodes are for jobs of a project alone, for some time; another one of the same id is replaced."""

    reservation: NodeReservation


class ReservationCancelled(Event):
    """Nodes are no longer reserved; `by`: who cancelled it."""

    id: str
    by: str = field(default="", metadata=form(omit=True))


class LaunchFailed(Event):
    """Jobs that could not be started where the plan put them."""

    jobs: IntArray
    reason: str


class ReplanDue(Event):
    """Time to decide: every event up to now has been reported."""


class Stop(Command):
    """Take these jobs off their GPUs: after a checkpoint, suspended in host memory, or without either."""

    jobs: IntArray
    checkpoint: bool = True
    suspend: bool = False


class Grant(Command):
    """The memory of switches that jobs have from now on.

    `grants`: all that each of their jobs has. `released`: jobs that have none any more. `without`: jobs that run
    without aggregation from now on although they want it, and why.
    """

    grants: tuple[NetworkGrant, ...]
    released: IntArray
    without: Mapping[int, str] = field(default_factory=dict, metadata=form(omit=lambda command: not command.without))

    @property
    def jobs(self) -> list[int]:
        """The numbers of all jobs that it names, ascending."""
        return sorted({one.job for one in self.grants}.union(self.released.tolist(), self.without))


class Launch(Command):
    """Run these groups as given: members not yet running there start, the others continue."""

    groups: Groups


class Adjust(Command):
    """Continue these groups with other members, turns, shares, memory, batch sizes or gate."""

    groups: Groups


class Refuse(Command):
    """These jobs will not run (again): refused at submission or out of retries, each with its reason."""

    jobs: IntArray
    reasons: tuple[str, ...]


class Wake(Command):
    """Request a decision at this time even if nothing happens before."""

    at_s: float


def to_json(message: Event | Command) -> dict[str, Any]:
    """A JSON object with a `type` and the fields; unknown numbers are null.

    >>> to_json(ReplanDue(60.0))
    {'type': 'ReplanDue', 'at_s': 60.0}
    """
    return _MESSAGES.encode_kind(message)


def from_json(data: Mapping[str, Any]) -> Event | Command:
    """The message that `to_json` wrote; `InputError` for anything else."""
    try:
        message: Event | Command = _MESSAGES.decode_kind(data)
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"not a message of this version: {str(data)[:200]} ({error})") from error
    return message


def spec_to_json(spec: JobSpec) -> dict[str, Any]:
    """The fields of a spec that differ from the defaults."""
    out: dict[str, Any] = _PARTS.encode(spec)
    return out


def spec_from_json(data: Mapping[str, Any]) -> JobSpec:
    """The spec that `spec_to_json` wrote."""
    if data.get("profile") is None:
        return _PARTS.decode(JobSpec, data)
    profile = StageProfile.from_sequence(data["profile"], data["iteration_s"])
    return _PARTS.decode(JobSpec, {**data, "profile": profile})


def group_to_json(group: Group) -> dict[str, Any]:
    """GPUs and members; a member without details is just its number."""
    details = [_PARTS.encode(member) for member in group.members]
    out: dict[str, Any] = {"jobs": [m if len(m) > 1 else m["job"] for m in details], "gpus": list(group.gpus)}
    if group.gate is not Gate.NONE:
        out["gate"] = group.gate.name.lower()
    if group.guest:
        out["guest"] = True
    return out


def group_from_json(data: Mapping[str, Any]) -> Group:
    """The group that `group_to_json` wrote."""
    members = tuple(_PARTS.decode(Member, m) if isinstance(m, Mapping) else Member(int(m)) for m in data["jobs"])
    gate = Gate[data.get("gate", "none").upper()]
    return Group(members, tuple(int(g) for g in data["gpus"]), gate, bool(data.get("guest", False)))


def node_to_json(node: Node) -> dict[str, Any]:
    """All fields of a node, without the bandwidth of its network if that is not known."""
    out: dict[str, Any] = _PARTS.encode(node)
    return out


def node_from_json(data: Mapping[str, Any]) -> Node:
    """The node that `node_to_json` wrote."""
    return _PARTS.decode(Node, data)


def network_to_json(network: Network) -> dict[str, Any]:
    out: dict[str, Any] = _PARTS.encode(network)
    return out


def network_from_json(data: Mapping[str, Any]) -> Network:
    """The network that `network_to_json` wrote."""
    return _PARTS.decode(Network, data)


#: Parts of messages. The iteration time of a profile is a field of its job, so a profile is its stages alone.
_PARTS = Codec(
    sparse=(JobSpec, Member, InaRequest),
    closed=True,
    own={StageProfile: (lambda one: list(one.stage_s), lambda made: made)},
)
_MESSAGES = Codec(
    kinds=(*Event.__subclasses__(), *Command.__subclasses__()),
    nulls=True,
    own={
        JobBatch: (lambda jobs: list(map(spec_to_json, jobs)), lambda rows: JobBatch.of(map(spec_from_json, rows))),
        Groups: (lambda some: list(map(group_to_json, some)), lambda rows: Groups.of(map(group_from_json, rows))),
        Node: (node_to_json, node_from_json),
        **AS_LISTS,
    },
)


def schemas(prefix: str) -> CodecSchemas:
    """JSON Schema of the values that `to_json` writes; references begin with `prefix`."""
    parts = CodecSchemas(_PARTS, prefix, {StageProfile: {"type": "array", "items": {"type": "number"}}})
    found = CodecSchemas(
        _MESSAGES, prefix,
        {
            JobBatch: {"type": "array", "items": parts.of(JobSpec)},
            Groups: {"type": "array", "items": _group_schema(parts.of(Member))},
            Node: parts.of(Node),
            IntArray: {"type": "array", "items": {"type": "integer"}},
            FloatArray: {"type": "array", "items": {"type": ["number", "array", "null"]}},
        },
    )  # fmt: skip
    found.found = parts.found  # one set of names
    return found


def _group_schema(member: Mapping[str, Any]) -> dict[str, Any]:
    """JSON Schema of the values that `group_to_json` writes."""
    numbers = {"type": "array", "items": {"type": "integer"}}
    jobs = {"type": "array", "items": {"anyOf": [{"type": "integer"}, member]}}
    return {
        "type": "object", "required": ["jobs", "gpus"],
        "properties": {
            "jobs": jobs, "gpus": numbers, "gate": {"enum": [g.name.lower() for g in Gate]},
            "guest": {"type": "boolean"},
        },
    }  # fmt: skip
