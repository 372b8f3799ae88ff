"""Facts about nodes and processes that no log has: agents report them again after a restart.

The functions of this package yield these next to log entries; `memory.remember` applies them to the state.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from plait.live.protocol.wire import Seen, SwitchSeen, Usage
from plait.live.scheduler.records.attempts import Attempt


@dataclass(frozen=True, slots=True)
class AgentStarted:
    """An agent process that was not known before speaks for a node, in this term."""

    node: str
    agent: str
    term: int


@dataclass(frozen=True, slots=True)
class AgentHeard:
    """A node's agent reported: where it is reached, and the last assignment it has if it is one of this term."""

    at_s: float
    node: str
    address: str
    usage: Usage
    term: int
    reached: int | None


@dataclass(frozen=True, slots=True)
class NodeReplaced:
    """A node took the name of one with other GPUs: agents of that one are known."""

    node: str
    agents: frozenset[str]


@dataclass(frozen=True, slots=True)
class NoticeReceived:
    """Seconds until a node goes, by its own word; None: it stays."""

    node: str
    leaving_s: float | None


@dataclass(frozen=True, slots=True)
class NodeSilent:
    """An idle node stopped or resumed reporting: the controller does not need this."""

    node: str
    silent: bool


@dataclass(frozen=True, slots=True)
class NodeGone:
    """A backend reports a node as dead, and why; `dead`: nothing can run there any more."""

    node: str
    why: str
    dead: bool


@dataclass(frozen=True, slots=True)
class NodeCheckDue:
    """Nodes are to be looked at next time, however short a time ago they were."""


@dataclass(frozen=True, slots=True)
class SilenceExcused:
    """The service itself stood still for `late_s` seconds: no report could arrive meanwhile."""

    at_s: float
    late_s: float


@dataclass(frozen=True, slots=True)
class AttemptKnown:
    """An agent has this job's attempt, so older ones were fenced before it was assigned."""

    job: int


@dataclass(frozen=True, slots=True)
class ProcessSeen:
    """The last report of an agent about a process of the job's attempt; None: it was waiting, and is gone."""

    job: int
    rank: int
    seen: Seen | None


@dataclass(frozen=True, slots=True)
class MeasurementTaken:
    """When (seconds), or at which step, a measurement of this kind was last taken from a process; None: never."""

    job: int
    rank: int
    kind: str
    at: float | None


@dataclass(frozen=True, slots=True)
class TotalReported:
    """The progress that an adaptive job plans to make in all; None: unknown to it."""

    job: int
    total: float | None


@dataclass(frozen=True, slots=True)
class EstimateTaken:
    """When an adaptive job was last believed what it estimates of itself."""

    at_s: float
    job: int


@dataclass(frozen=True, slots=True)
class ReportRefused:
    """A report on a process of an attempt was invalid; for the log of the service."""

    job: int
    epoch: int
    error: Exception


@dataclass(frozen=True, slots=True)
class SuccessorAsked:
    """Processes for the next attempt of a job are to start next to the current one."""

    at_s: float
    attempt: Attempt


@dataclass(frozen=True, slots=True)
class SuccessorSettled:
    """A process of a job's successor needs no waiting: it is ready or impossible."""

    job: int
    rank: int


@dataclass(frozen=True, slots=True)
class SuccessorOver:
    """A job's successor has become its attempt, or is not needed any more."""

    job: int


@dataclass(frozen=True, slots=True)
class SwitchObserved:
    """The report of a node's agent about the switch that it serves, or could serve."""

    node: str
    seen: SwitchSeen | None


Observation: TypeAlias = (
    AgentStarted
    | AgentHeard
    | NodeReplaced
    | NoticeReceived
    | NodeSilent
    | NodeGone
    | NodeCheckDue
    | SilenceExcused
    | AttemptKnown
    | ProcessSeen
    | MeasurementTaken
    | TotalReported
    | EstimateTaken
    | ReportRefused
    | SuccessorAsked
    | SuccessorSettled
    | SuccessorOver
    | SwitchObserved
)
