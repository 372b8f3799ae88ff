"""The state that the functions of this package read. Only the engine changes it, by the steps that they yield."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from plait.core.jobs import JobSpec
from plait.live.protocol.requests import spec_of
from plait.live.scheduler.options import ANY_SIZE, Options
from plait.live.scheduler.records.entries import Entry
from plait.live.scheduler.records.observations import Observation
from plait.live.scheduler.records.successors import Successor
from plait.live.scheduler.state import State

#: A result of a function of this package: an entry for the log, or an observation. Each one is applied to the state
#: before the next one is requested, so that the rest of the function sees it.
Step: TypeAlias = Entry | Observation
#: Why nothing is decided while `Context.ready` is False.
COMPILING = "what decisions need is being compiled, about 20 s, once after an installation"


#: Tries to fence an attempt, where errors do not pass by themselves.
FENCE_TRIES = 10


@dataclass
class Timers:
    """When things were done last; times of the engine, seconds. Only the engine changes them.

    `settle_s`: until then jobs too large for the cluster wait for more nodes. `silence_s`: no node has been silent for
    too long before then (a bound, so that not every report looks at all nodes). `due_s`: when the engine wanted to be
    called. `arrived`: first and last arrival since the last decision of jobs that free GPUs could take; `took_s`: how
    long that decision took.
    """

    settle_s: float = -math.inf
    watched_s: float = -math.inf
    reported_s: float = -math.inf
    usage_s: float = -math.inf
    silence_s: float = math.inf
    due_s: float = math.inf
    arrived: tuple[float, float] | None = None
    took_s: float = 0.0


@dataclass
class Unfenced:
    """An attempt that no agent may receive yet, because earlier ones of its job can still commit a checkpoint.

    `why`: the last error; `tries`: of errors that will not pass by themselves, at most one a second, the next one at
    `next_s`. `fresh`: it began in this service's life, so that surely no agent knows it.
    """

    fresh: bool = False
    why: str = ""
    tries: int = 0
    next_s: float = -math.inf


@dataclass
class Context:
    """The state and what goes with it.

    `term`: of the service that leads. `port_seed`: where master ports of gangs begin, so that clusters on one machine
    seldom take the same ones. `now_s`: the newest time that was given. `ready`: False while code that decisions need is
    still being compiled. `unfenced`: jobs whose attempt no agent may start yet. `successors`: by job, the processes
    that start next to its attempt. `overlapped`: by job, the attempt that started so; its start is no measure of a cold
    one. `deferred`: an attempt waits for something that gives no notice, such as its first step or a full disk.
    `secret`: the key from which the tokens of jobs for switches are made.
    """

    state: State
    options: Options
    term: int
    port_seed: int
    now_s: float = 0.0
    ready: bool = True
    unfenced: dict[int, Unfenced] = field(default_factory=dict)
    successors: dict[int, Successor] = field(default_factory=dict)
    overlapped: dict[int, int] = field(default_factory=dict)
    deferred: bool = False
    secret: bytes = b""
    timers: Timers = field(default_factory=Timers)

    def room(self, request: Mapping[str, Any]) -> int:
        """GPUs of the cluster that a job may wait for, beyond the nodes that there are."""
        return ANY_SIZE if request.get("wait_for_nodes") else self.options.most_gpus

    def spec(self, number: int, request: Mapping[str, Any], owner: str, project: str, submit_s: float) -> JobSpec:
        """A request as the policies see it; raises `InputError` for an invalid job."""
        state = self.state
        kinds = () if state.controller is None else state.controller.cluster.kinds
        weight = float(state.projects.get(project, {}).get("weight") or 1.0)
        return spec_of(
            number, request, owner=owner, project=project, submit_s=submit_s, weight=weight, kinds=kinds,
            learnt=state.learnt,
        )  # fmt: skip
