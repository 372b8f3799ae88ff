"""Messages between an agent and the service: one request, one answer, both JSON.

The agent sends its observations (`Observed`), the service returns the desired state (`Assignment`). Both are whole
states, not changes, so a message that is repeated, lost or late does no harm. An attempt of a job is (job, epoch); each
of its processes has a rank.

Messages have a version, and a receiver refuses others. Fields that it does not know are ignored.

A message is decoded and cleaned once, where it arrives. Jobs can write to their pages and folders, so numbers that
cannot be and texts that a store or a terminal could not take are replaced when a message is constructed: an invalid
number would get into the log, where every later reader meets it; a profile of 1e308 seconds overflows in the policy,
whose decisions then fail for everybody.
"""

import json
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache
from typing import Any, TypeVar

from plait.core.codec.schema import CodecSchemas
from plait.core.codec.values import Codec
from plait.core.errors import InputError
from plait.core.goodput import LEAST_S, MOST_GAMMA, MOST_NOISE, MOST_S, THETA, BoundNames, Estimate
from plait.core.resources import Resource
from plait.runtime.network.grant import NetworkGrant
from plait.runtime.page import Throttled
from plait.sharing.directive import Action

VERSION = 1
STARTING, RUNNING, STOPPING, ENDED = "starting", "running", "stopping", "ended"
STATES = (STARTING, RUNNING, STOPPING, ENDED)
#: Exit codes with a meaning; any other failed.
FINISHED, PREEMPTED = 0, 75

T = TypeVar("T")


class WireError(ValueError):
    """A message that does not match its version; names the field."""


# Limits of numbers and texts that come from jobs, and what replaces invalid ones.

#: Seconds of an iteration or a stage, and iterations of a job, at most; seconds of an iteration at least.
LONGEST_S, MOST_STEPS, SHORTEST_S = 1e6, 1e15, 1e-9
#: Examples of a step at most.
MOST_EXAMPLES = 1e9
#: Bytes of a device at most; jobs that share a GPU that are named.
MOST_BYTES, MOST_NEIGHBOURS = 1e15, 64
#: Jobs that one switch serves at most.
MOST_LEASES = 4096
#: CPU cores of a node at most.
MOST_CORES = 1e6
#: Bytes of gradients that a process can have exchanged.
MOST_TRANSFERRED = 1e21
#: Characters of a reason at most.
LONGEST_REASON = 2000
#: The largest number of a process; seconds that anything can have lasted.
MOST_PID, MOST_SECONDS = 1 << 22, 1e10
#: Times that were read one after the other differ by so much at most, seconds.
CLOCKS_S = 1.0
#: Characters that a terminal or page would obey: control characters but tabs and ends of lines, and marks of direction.
_CONTROLS = re.compile(r"[\x01-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")
#: Whole numbers of a store have 64 bits.
MOST_STORED = (1 << 63) - 1
#: Stands for an impossible exit code.
NONSENSE = 255


def sane_text(text: str) -> str:
    r"""Characters that every store and every answer can hold and no terminal obeys; of a long text the ends.

    >>> sane_text("\x1b[31mred\x1b[0m\x07 and a\0b")
    '[31mred[0m and a b'
    """
    if len(text) <= LONGEST_REASON and text.isascii() and text.isprintable():
        return text  # nearly all of them
    if len(text) > LONGEST_REASON:
        half = (LONGEST_REASON - 60) // 2
        text = f"{text[:half]} ... (cut: {len(text)} characters) ... {text[-half:]}"
    return _CONTROLS.sub("", text.replace("\0", " ")).encode("utf-8", "replace").decode()


def sane_code(code: int) -> int:
    """An exit code that a process can end with (-n for signal n)."""
    return code if -128 <= code <= NONSENSE else NONSENSE


def check_entry(entry: Mapping[str, Any]) -> None:
    """Raise `InputError` for a note of the log with a number that JSON or a table of the store cannot hold.

    >>> check_entry({"type": "RankEnded", "epoch": 10**30})
    Traceback (most recent call last):
        ...
    plait.core.errors.InputError: RankEnded: epoch is 1000000000000000000000000000000, no number that can be stored
    """
    for name, value in entry.items():
        numbers = value if isinstance(value, (list, tuple)) else (value,)
        for number in numbers:
            if isinstance(number, (int, float)) and not -MOST_STORED <= number <= MOST_STORED:
                raise InputError(f"{entry['type']}: {name} is {number!r:.40}, no number that can be stored")


def between(value: float, low: float, high: float) -> bool:
    """Whether a number is in these bounds, which are finite."""
    return low <= value <= high  # NaN compares false


def number_or_none(value: float | None, most: float, least: float = 0.0) -> float | None:
    """The number if it is in these bounds, None otherwise."""
    return value if value is not None and least <= value <= most else None


#: Words of `Sharing`.
_ACTIONS = frozenset(one.name.lower() for one in Action)
_THROTTLED = frozenset(one.name.lower() for one in Throttled if one is not Throttled.NOT)


def _sane(rule: Callable[[Any], Any], default: Any) -> Any:
    """A field that holds `rule` of its value."""
    return field(default=default, metadata={"rule": rule})


def _number(most: float) -> Any:
    """A number from 0 to `most`; 0 for any other."""
    return _sane(lambda value: number_or_none(value, most) or 0.0, 0.0)


def _maybe(most: float, least: float = 0.0) -> Any:
    """A number in these bounds; None for any other."""
    return _sane(lambda value: number_or_none(value, most, least), None)


def _whole(least: int = 0, most: int = MOST_STORED) -> Any:
    """A whole number; the nearest of these bounds for any other."""
    return _sane(lambda value: min(max(value, least), most), least)


def _text(most: int = LONGEST_REASON, default: str = "") -> Any:
    """A text of so many characters at most, which stores and terminals can take."""
    return _sane(lambda value: sane_text(value)[:most], default)


def _word(known: Collection[str], default: str) -> Any:
    """One of the known words; `default` for any other."""
    return _sane(lambda value: value if value in known else default, default)


class _Report:
    """A message from where jobs can write: the rules of its fields are applied when it is constructed."""

    def __post_init__(self) -> None:
        for name, rule in _rules(type(self)):  # type: ignore[arg-type]
            object.__setattr__(self, name, rule(getattr(self, name)))


@cache
def _rules(kind: Any) -> list[tuple[str, Callable[[Any], Any]]]:
    return [(one.name, one.metadata["rule"]) for one in fields(kind) if "rule" in one.metadata]


@dataclass(frozen=True)
class NodeInfo:
    """The hardware of a node; bytes and cores."""

    id: str
    gpus: int
    gpu_kind: str = "gpu"
    gpu_memory_bytes: float = 0.0
    cpus: float = 0.0
    memory_bytes: float = 0.0
    rack: int = 0


@dataclass(frozen=True)
class Profile:
    """Stage seconds (storage, CPU, GPU, network) and iteration seconds, measured alone over so many iterations.

    `outside`: its stages are seen from outside the processes, while others shared its GPUs, or not at all.
    """

    stage_s: list[float]
    iteration_s: float
    samples: int
    outside: bool = False


@dataclass(frozen=True)
class Adaptive(_Report):
    """Report of a process whose batch adapts.

    `progress` iterations at its first batch size done, of `total`; `batch_size` examples of a step now, all ranks
    together; `estimate` by `plait.core.goodput.Estimate`; `limits` the bounds that it keeps to: initial, most,
    least_local, most_local, and 1 if it accumulates. `not_finite`: its newest steps in a row whose gradients were NaN
    or infinite.
    """

    progress: float = _number(MOST_STEPS)
    total: float | None = _maybe(MOST_STEPS)
    batch_size: float | None = _maybe(MOST_EXAMPLES, 1.0)
    estimate: list[float | None] | None = _sane(
        lambda value: value if value is not None and _can_be_estimate(value) else None, None
    )
    limits: list[int] | None = _sane(lambda value: value if value is not None and _can_be_limits(value) else None, None)
    not_finite: float = _number(MOST_STEPS)


@dataclass(frozen=True)
class Memory(_Report):
    """Device memory of a process in its newest steps, bytes: peak, persistent between steps, spilled to the host."""

    peak_bytes: float = _number(MOST_BYTES)
    persistent_bytes: float = _number(MOST_BYTES)
    spill_bytes: float = _number(MOST_BYTES)


@dataclass(frozen=True)
class Sharing(_Report):
    """Limits from the coordinator of its GPU for a process that shares it.

    `guest`: it uses the GPU time that others leave. `share` of the GPU's time, 0 to 1; `limit_bytes` of its memory, 0 =
    none; `action` a name of `directive.Action` in small letters; `beside` the jobs with which it shares the GPU.
    `leaves`: why it saves its state and goes, to be resumed elsewhere; "" if it stays. `throttled`: how its runner
    freezes a guest that does not pace itself, a name of `plait.runtime.page.Throttled` in small letters; "" if it does
    not. `duty`: the part of the last ten seconds in which it was not frozen. `law`: the rule for a guest's share next
    to a guaranteed job; "" without one.
    """

    guest: bool = False
    share: float = _sane(lambda value: number_or_none(value, 1.0) or 0.0, 1.0)
    limit_bytes: float = _number(MOST_BYTES)
    action: str = _word(_ACTIONS, Action.RUN.name.lower())
    beside: list[int] = field(default_factory=list)
    leaves: str = _text()
    throttled: str = _word(_THROTTLED, "")
    duty: float | None = _maybe(1.0)
    law: str = _text()

    def __post_init__(self) -> None:
        super().__post_init__()
        beside = [job for job in self.beside if 0 <= job <= MOST_STORED][:MOST_NEIGHBOURS]
        object.__setattr__(self, "beside", beside)


@dataclass(frozen=True)
class Exchange(_Report):
    """A rank's use of in-network aggregation since it started; see `plait.runtime.network.report`.

    `mode` is aggregation or gloo, with the `reason` for gloo. Bytes of gradients that the network added up and that
    went by gloo instead, and seconds of both exchanges. Of the sums used a share had a packet whose aggregator was
    occupied; of the packets a share was sent again. `version`: of the newest grant that all ranks have found, none of
    which uses an older one; -1 for none. `numbers`: of packets, used under its present number on the wire.
    """

    mode: str = _word(("aggregation", "gloo"), "gloo")
    reason: str = _text(500)
    version: int = _whole(-1)
    aggregated_bytes: float = _number(MOST_TRANSFERRED)
    fallback_bytes: float = _number(MOST_TRANSFERRED)
    exchange_s: float = _number(MOST_SECONDS)
    collided_share: float = _number(1.0)
    resend_share: float = _number(1.0)
    timeouts: float = _number(MOST_STEPS)
    numbers: float = _number(MOST_STEPS)


@dataclass(frozen=True)
class Resources(_Report):
    """Recent use by the processes of a rank: CPU cores, resident bytes, bytes of disks and TCP sockets a second.

    Disks and sockets: None where the kernel does not count them.
    """

    cpus: float = _number(MOST_CORES)
    memory_bytes: float = _number(MOST_BYTES)
    read_bytes_s: float | None = _maybe(MOST_BYTES)
    written_bytes_s: float | None = _maybe(MOST_BYTES)
    sent_bytes_s: float | None = _maybe(MOST_BYTES)
    received_bytes_s: float | None = _maybe(MOST_BYTES)


@dataclass(frozen=True)
class Seen(_Report):
    """One process of one attempt, as the agent sees it.

    `merged`, of one that shared its process with other jobs and ended with it: culprit, bystander, unknown (which job
    did it), or refused (it cannot run merged).

    `steps` iterations since the beginning of the job; `step_s` mean seconds of the recent ones, `stage_s` mean busy
    seconds by resource in them; `held_s` seconds since its GPUs were given to it, `first_step_s` and `last_step_s` the
    same at the end of its first and its newest iteration. `saves`: whether it would resume from its newest checkpoint
    (a name of `plait.runtime.page.Saves` in small letters; "" unknown). An ended one has `exit_code` (-n for signal n,
    None if unknown) and is reported until the service drops it from the processes to keep. `resources`: None before two
    samples, and of one that shares its process with other jobs.
    """

    job: int
    epoch: int
    rank: int
    state: str
    pid: int = _sane(lambda pid: pid if 0 <= pid <= MOST_PID else 0, 0)
    exit_code: int | None = _sane(lambda code: None if code is None else sane_code(code), None)
    reason: str | None = _sane(lambda text: None if text is None else sane_text(text), None)
    steps: float = _number(MOST_STEPS)
    step_s: float | None = _maybe(LONGEST_S, SHORTEST_S)
    stage_s: list[float] | None = _sane(
        lambda times: times if times is None or all(between(t, 0.0, LONGEST_S) for t in times) else None, None
    )
    held_s: float = _number(MOST_SECONDS)
    total_steps: float | None = _maybe(MOST_STEPS)
    gate: str = _text(20, "none")
    checkpoint_steps: float | None = _maybe(MOST_STEPS)
    checkpoint_age_s: float | None = _maybe(MOST_SECONDS)
    profile: Profile | None = _sane(lambda profile: profile if profile and sane_profile(profile) else None, None)
    skew: float | None = _maybe(1.0)
    ended_s_ago: float = _number(MOST_SECONDS)
    merged: str = _text(20)
    first_step_s: float | None = None
    last_step_s: float | None = None
    adaptive: Adaptive | None = None
    saves: str = _text(20)
    memory: Memory | None = None
    sharing: Sharing | None = None
    exchange: Exchange | None = None
    resources: Resources | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("first_step_s", "last_step_s"):  # within the time in which it has made its steps
            object.__setattr__(self, name, number_or_none(getattr(self, name), self.held_s + CLOCKS_S))


@dataclass(frozen=True)
class GpuUsage:
    """One GPU: utilisation 0..1 and bytes in use."""

    utilisation: float = 0.0
    memory_bytes: float = 0.0


@dataclass(frozen=True)
class GpuMean(_Report):
    """One GPU or slot: mean utilisation 0..1 of the last 10 s, and bytes in use; None: not known."""

    utilisation: float | None = _maybe(1.0)
    memory_bytes: float | None = _maybe(MOST_BYTES)


@dataclass(frozen=True)
class Peaks(_Report):
    """Highest speeds of a node: of the disk of its jobs and of its link. 0: could not be measured.

    `link_bytes_s` is that of the loopback, an upper bound, where no driver reports the speed.
    """

    disk_bytes_s: float = _number(MOST_BYTES)
    link_bytes_s: float = _number(MOST_BYTES)


@dataclass(frozen=True)
class Usage:
    """A node: CPU 0..1, bytes in use, each GPU that can be read, and what is known of the last 10 s of each GPU.

    `peaks`: None before they were measured.
    """

    cpu: float = 0.0
    memory_bytes: float = 0.0
    gpus: list[GpuUsage] = field(default_factory=list)
    means: list[GpuMean] = field(default_factory=list)
    peaks: Peaks | None = None


@dataclass(frozen=True)
class LeaseSeen(_Report):
    """A job that a switch serves: the epoch of its region, and what the switch has counted of it.

    `held` aggregators now; packets of workers `received`, of these `collided` with another job's; sums `completed`.
    `refused`: why it does not serve this epoch, "" if it does.
    """

    job: int
    epoch: int
    held: float = _number(MOST_STEPS)
    received: float = _number(MOST_STEPS)
    collided: float = _number(MOST_STEPS)
    completed: float = _number(MOST_STEPS)
    refused: str = _text(500)


@dataclass(frozen=True)
class SwitchSeen(_Report):
    """The state of the switch that an agent serves; without a name: none, and the agent can serve one.

    `declared`: the only switch that it may serve, "" for any. `incarnation` is new whenever the switch starts with
    empty memory; "" while it does not work, and `trouble` has the reason. `data_port`, `server_port`: of switch and
    aggregation server, on the address of the node. `held` of its aggregators are not free.
    """

    name: str = _text(200)
    declared: str = _text(200)
    incarnation: str = _text(200)
    trouble: str = _text(500)
    data_port: int = _sane(lambda port: port if 0 <= port < 65_536 else 0, 0)
    server_port: int = _sane(lambda port: port if 0 <= port < 65_536 else 0, 0)
    aggregators: int = _whole()
    held: float = _number(MOST_STEPS)
    restarts: int = _whole()
    leases: list[LeaseSeen] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__post_init__()
        leases = [one for one in self.leases if 0 <= one.job <= MOST_STORED and 0 <= one.epoch <= MOST_STORED]
        object.__setattr__(self, "leases", leases[:MOST_LEASES])


@dataclass(frozen=True)
class ConsoleReply:
    """State of a console: `output` (base64) from byte `output_at`, `taken` bytes of input, the exit code at the end."""

    output: str
    output_at: int
    taken: int
    exit_code: int | None = None


@dataclass(frozen=True)
class Reply:
    """The answer to an `Ask`: part of a log as text (undecodable bytes replaced).

    Bytes since the process started: `offset` where the part begins, `next` where the next one does (the text may hold
    fewer or more bytes than that), `size` of the whole log so far.
    """

    id: int
    text: str = ""
    offset: int = 0
    next: int = 0
    size: int = 0
    error: str | None = None
    console: ConsoleReply | None = None


@dataclass(frozen=True)
class Observed(_Report):
    """Everything an agent sees. `agent` is new for each agent process; `reached` the newest assignment carried out.

    The answer may be held back for `wait_s` while there is nothing new to send: 1 in the long poll, 0 when an agent
    reports a change on its second connection. `leaving_s`: the node goes in so many seconds at most, and takes no work
    any more; 0 in its last report, once nothing runs there. None: it stays. `successors`: processes (job, epoch, rank)
    of `Assignment.successors` that need no waiting: they are ready or impossible; None: the agent has none.
    """

    node: NodeInfo
    agent: str
    term: int = 0
    reached: int = 0
    attempts: list[Seen] = field(default_factory=list)
    usage: Usage = field(default_factory=Usage)
    replies: list[Reply] = field(default_factory=list)
    wait_s: float = 1.0
    leaving_s: float | None = _maybe(LONGEST_S)
    switch: SwitchSeen | None = None
    successors: list[list[int]] | None = None
    v: int = VERSION


@dataclass(frozen=True)
class Mate:
    """A member of a group: its job, its turn, and how many processes it has."""

    job: int
    turn: int
    world: int = 1


@dataclass(frozen=True)
class GroupInfo:
    """Who shares these GPUs and by which gate; `version` grows with every change of it.

    A `guest` group uses the GPU time that others leave: it starts next to any jobs there.
    """

    id: str
    gate: str = "none"
    quantum_s: float = 0.01
    members: list[Mate] = field(default_factory=list)
    version: int = 0
    guest: bool = False


@dataclass(frozen=True)
class Run:
    """One process that should run (`stop`: should end, after a checkpoint, within `grace_s`).

    `gpus` are the node's numbers of its GPUs; `world` processes in all, `local_rank` among the ranks of the node.
    `memory_bytes` 0 = no limit. `env` comes on top of the node's. Runs of one group on the same GPUs that are started
    at once and have the same `merge` (not "") may share a process. `device_bytes` of GPU memory stay from step to step
    in each of its processes, as far as known. `output`: a file to which its output is appended too, "" for none;
    relative to `workdir`. `hung`: another process of its job hangs. `network`: the switch that its ranks may use, or
    the reason for none; None where the cluster has no network. `owner`: plait's user, whose account may run it.
    """

    job: int
    epoch: int
    rank: int
    world: int
    argv: list[str]
    gpus: list[int]
    group: GroupInfo
    workdir: str = ""
    env: dict[str, str] = field(default_factory=dict)
    stop: bool = False
    grace_s: float = 60.0
    local_rank: int = 0
    local_world: int = 1
    master_addr: str = "127.0.0.1"
    master_port: int = 0
    checkpoint_s: float = 60.0
    log_bytes: int = 10_000_000
    memory_bytes: float = 0.0
    total_steps: float | None = None
    merge: str = ""
    device_bytes: float = 0.0
    output: str = ""
    hung: bool = False
    network: NetworkGrant | None = None
    owner: str = ""


@dataclass(frozen=True)
class Lease:
    """A job that a switch is to serve: its number on the wire, its secret, and its region.

    `options` as `plait.network.protocol.options.preset` takes them, `protocol` among them. The lease ends after `ttl_s`
    seconds without contact to the service, 0: with that of the node. `window` as in
    `plait.runtime.network.grant.NetworkGrant`. While it is `moving`, ranks may use the region that it had before.
    """

    job: int
    wire: int
    name: str
    token: str
    workers: int
    epoch: int
    offset: int
    size: int
    priority: int = 0
    ttl_s: float = 0.0
    options: dict[str, Any] = field(default_factory=dict)
    window: int = 0
    moving: bool = False


@dataclass(frozen=True)
class SwitchOrder:
    """The switch that an agent is to serve, on this address, and all jobs that it serves.

    Its aggregation server has room for `most_jobs` at once, with windows of up to `most_window` packets.
    """

    name: str
    address: str
    aggregators: int
    payload_bytes: int
    most_window: int = 1024
    most_jobs: int = 32
    leases: list[Lease] = field(default_factory=list)


@dataclass(frozen=True)
class ConsoleAsk:
    """A request to a console, a program next to a running job; see `plait.live.agent.processes.console`.

    `command` starts it, unless a console of this `name` is there. `input` (base64) begins at byte `input_at` of all
    input; `input_over`: no more follows. `output_at`: how much output has come. `term`: it has a terminal of this type
    with so many `rows` and `columns`; "" for none. `end`: end it.
    """

    name: str
    command: list[str] = field(default_factory=list)
    input: str = ""
    input_at: int = 0
    input_over: bool = False
    output_at: int = 0
    term: str = ""
    rows: int = 0
    columns: int = 0
    end: bool = False


@dataclass(frozen=True)
class Ask:
    """Please send a part of a log, or of a console; a negative offset counts from the log's end."""

    id: int
    job: int
    epoch: int
    rank: int
    offset: int = 0
    limit: int = 65_536
    console: ConsoleAsk | None = None


@dataclass(frozen=True)
class Assignment:
    """Everything that should run on a node. All else should not.

    `keep` lists ended processes (job, epoch, rank) to be reported again; others that were reported are noted and may
    be forgotten. Versions of one term never go back; a service that starts again has a higher term. A lower `term` than
    one seen before comes from a leader that was replaced, and is refused. `lease_s`: without contact for that long the
    agent stops its work. `successors`: processes of attempts that begin once the current attempts of their jobs have
    ended. The interpreter starts and loads modules, and nothing of the job runs.
    """

    term: int
    version: int
    lease_s: float = 600.0
    attempts: list[Run] = field(default_factory=list)
    keep: list[list[int]] = field(default_factory=list)
    ask: list[Ask] = field(default_factory=list)
    switch: SwitchOrder | None = None
    successors: list[Run] = field(default_factory=list)
    v: int = VERSION


# msgspec is imported where it is used: programs that are started without a cluster have these classes and no msgspec.


def to_json(message: Any) -> dict[str, Any]:
    """A message as plain values.

    >>> to_json(Mate(3, 1))
    {'job': 3, 'turn': 1, 'world': 1}
    """
    import msgspec

    plain: dict[str, Any] = msgspec.to_builtins(message)
    return plain


def from_json(kind: type[T], data: Any) -> T:
    """The message of this kind; raises `WireError` naming the field for anything else. Unknown fields are left out.

    >>> from_json(Mate, {"job": 3, "turn": 1, "later": True})
    Mate(job=3, turn=1, world=1)
    """
    import msgspec

    _check_version(kind, data.get("v", VERSION) if isinstance(data, Mapping) else VERSION)
    try:
        return msgspec.convert(data, kind)
    except msgspec.ValidationError as error:
        raise WireError(f"{kind.__name__}: {error}") from None


def encode(message: Any) -> bytes:
    """A message as JSON text."""
    import msgspec

    return msgspec.json.encode(message)


def decode(kind: type[T], body: bytes) -> T:
    """The message of this kind in a JSON text; raises `WireError` as `from_json` does, or for what is no JSON."""
    import msgspec

    try:
        message = msgspec.json.decode(body, type=kind)
    except msgspec.DecodeError:
        try:
            return from_json(kind, json.loads(body))  # it reads NaN, as Python writes it, and finds another version
        except (ValueError, RecursionError) as error:
            raise error if isinstance(error, WireError) else WireError(f"{kind.__name__}: {error}") from None
    _check_version(kind, getattr(message, "v", VERSION))
    return message


def decode_report(body: bytes) -> Observed:
    """An agent's report; an unreadable report of a process becomes the end of that process, with the reason.

    Raises `WireError` for what is no report otherwise.
    """
    try:
        return decode(Observed, body)
    except WireError:
        try:
            data = json.loads(body)
        except (ValueError, RecursionError):
            data = None
        attempts = data.get("attempts") if isinstance(data, dict) else None
        if not isinstance(attempts, list):
            raise
    report = from_json(Observed, {**data, "attempts": []})
    return replace(report, attempts=[one for item in attempts if (one := _seen_from_json(item)) is not None])


def _check_version(kind: type[Any], version: Any) -> None:
    if version != VERSION:
        raise WireError(
            f"{kind.__name__} has version {version!r}; this plait speaks version {VERSION}: install the same plait on "
            "all machines, and start the service and its agents again"
        )


def _seen_from_json(item: Any) -> Seen | None:
    try:
        return from_json(Seen, item)
    except WireError as error:
        job, epoch, rank = (item.get(n) if isinstance(item, Mapping) else None for n in ("job", "epoch", "rank"))
        if not (isinstance(job, int) and isinstance(epoch, int) and isinstance(rank, int)):
            return None  # of no process
        why = f"the agent sent an unreadable report about this process: {error}"[:500]
        return Seen(job, epoch, rank, ENDED, exit_code=NONSENSE, reason=why, pid=1)


def _can_be_limits(limits: list[int]) -> bool:
    return len(limits) == len(BoundNames._fields) and all(between(x, 0, MOST_EXAMPLES) for x in limits)


def _can_be_estimate(estimate: list[float | None]) -> bool:
    """Whether all of it can be; seconds and norms so large that they overflow in a policy are none."""
    if len(estimate) != len(Estimate):
        return False
    theta, gamma = estimate[:THETA], estimate[Estimate.GAMMA]
    whole = all(t is None for t in theta) or (gamma is not None and None not in theta and 1 <= gamma <= MOST_GAMMA)
    times_only = all(t is None or between(t, LEAST_S, MOST_S) for t in theta)
    return whole and times_only and all(x is None or between(x, 0.0, MOST_NOISE) for x in estimate[THETA:])


def sane_profile(profile: Profile) -> bool:
    """Whether a measured profile is one: all four stages, some of them longer than nothing, none for ever."""
    times = profile.stage_s
    return (
        len(times) == len(Resource)
        and all(between(t, 0.0, LONGEST_S) for t in times)
        and sum(times) > 0
        and 0 < profile.iteration_s <= LONGEST_S
        and 0 <= profile.samples <= MOST_STEPS
    )


def schemas(prefix: str) -> CodecSchemas:
    """JSON Schema of messages; references begin with `prefix`."""
    return CodecSchemas(Codec(strict=True), prefix)
