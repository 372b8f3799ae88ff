"""A backend brings agents to nodes, keeps them there, and takes them away. Nothing else.

Agents talk to the service themselves, however they were started, so a backend never sees a job: placement, desired
state and truth stay with the service. All nodes see the home folder under the same path.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from plait.core.errors import InputError
from plait.live.client.transport import Refused
from plait.live.layout import Layout

if TYPE_CHECKING:
    from plait.live.api.cluster import NodeRow, WantedGpus
    from plait.live.client.client import Client

#: States of a node as its backend sees it.
UP, COMING, DEAD, LEAVING = "up", "coming", "dead", "leaving"
#: States of a request for a node.
PENDING, RUNNING = "pending", "running"
#: Most seconds that jobs get for a checkpoint when their agents are ended with them.
STOP_GRACE_S = 10.0


@dataclass(frozen=True)
class BackendNode:
    """A node as its backend sees it. `pid` of the agent if that is on this machine and known."""

    name: str
    gpus: int
    state: str
    detail: str = ""
    pid: int | None = None


class NodeBackend(Protocol):
    """Agents on the nodes of some engine. A backend derives its memory from the engine and the home folder."""

    name: str

    def start(self) -> list[str]:
        """Agents for all nodes that have none; the names of nodes whose agent was started now.

        Agents that run already, started by whomever, are kept. Raises `InputError` if the engine cannot be used.
        """

    def maintain(self, service: Client) -> list[str]:
        """Check about every second: start what is missing, report dead nodes to the service, grow or shrink.

        Returns what was done, a sentence or name each. Raises `PlaitError` for trouble that may pass.
        """

    def list_nodes(self) -> list[BackendNode]:
        """All nodes that it knows of."""

    def expected(self) -> int:
        """How many nodes join soon after `start`; callers wait for these."""

    def expected_gpus(self) -> int:
        """How many GPUs these nodes have; 0 if unknown before they join."""

    def most_gpus(self) -> int:
        """How many GPUs its nodes may have one day: jobs that need more are refused, others wait for nodes.

        `ANY_SIZE` if unknown; 0 if there are never more nodes than `start` brings.
        """

    def stop(self, jobs: bool) -> None:
        """Take the agents away; with `jobs` their jobs too (gracefully), otherwise jobs run on for the next agents."""


def whole(options: Mapping[str, Any], name: str) -> int | None:
    """An option that is a whole number, which may have come as text; None if it was not given."""
    value = options.get(name)
    try:
        return None if value is None else int(value)
    except ValueError:
        raise InputError(f"{name} is {value!r}, needs a whole number: -o {name}=4") from None


def seconds(options: Mapping[str, Any], name: str, default: float) -> float:
    """An option that is seconds of at least 0, which may have come as text."""
    value = options.get(name)
    with contextlib.suppress(TypeError, ValueError):
        if value is None or 0 <= float(value) < math.inf:
            return default if value is None else float(value)
    raise InputError(f"{name}={value} needs seconds, at least 0: -o {name}=60")


def gigabytes(options: Mapping[str, Any], name: str) -> float | None:
    """An option that is a size in GB above 0, which may have come as text; None if it was not given."""
    value = options.get(name)
    with contextlib.suppress(ValueError):
        if value is None or 0 < float(value) < 1e6:
            return None if value is None else float(value)
    raise InputError(f"{name} is {value!r}, needs a number of GB above 0: -o {name}=16")


# ---- which nodes to request, to empty, to give back: of Slurm and of this machine ----

#: A running allocation whose agent is silent for so long is ended, seconds: no blip of a network lasts longer.
SILENT_S = 120.0
#: ... and one whose agent never joined.
UNBORN_S = 300.0


@dataclass(frozen=True)
class AllocationLimits:
    """The user's limits: GPUs an allocation, minimum and maximum allocations, seconds that one may be idle."""

    gpus: int
    min_nodes: int = 0
    max_nodes: int = 4
    idle_s: float = 300.0


@dataclass(frozen=True)
class Held:
    """One allocation, as Slurm and the service see it.

    `joined`: its agent works. `drained`: its node takes no new work. `used`: GPUs in use. `idle_s`: for how long none
    was. `silent_s`: for how long its agent has been silent, inf = it never joined. `left_s`: until its time limit; at
    `replace_s` before that another one is to take its place.
    """

    job: int
    state: str
    joined: bool = False
    drained: bool = False
    used: int = 0
    idle_s: float = 0.0
    silent_s: float = 0.0
    age_s: float = 0.0
    left_s: float = math.inf
    replace_s: float = 0.0

    @property
    def stuck(self) -> bool:
        """Its agent is silent, though Slurm reports it as running."""
        return self.state == RUNNING and (
            SILENT_S <= self.silent_s < math.inf or (self.silent_s == math.inf and self.age_s >= UNBORN_S)
        )

    @property
    def expiring(self) -> bool:
        """It is time to request its successor."""
        return self.left_s <= self.replace_s


@dataclass(frozen=True)
class Moves:
    """How many allocations to request now, and which to withdraw from the queue, to drain, to release, to end."""

    submit: int = 0
    cancel: tuple[int, ...] = ()
    drain: tuple[int, ...] = ()
    release: tuple[int, ...] = ()
    end: tuple[int, ...] = ()


def plan_allocations(held: Sequence[Held], wanted_gpus: int, limits: AllocationLimits, *, empty: bool = False) -> Moves:
    """Changes that bring the allocations nearer to the jobs' demand, within the limits.

    One that nears its time limit no longer counts, so its successor is requested while it still works (only then are
    there more than `max_nodes`); it is drained once the others suffice. Allocations that are no longer wanted are
    withdrawn from the queue first, then drained when idle for long enough; drained and empty ones are released.
    `empty`: nodes with jobs may be drained too, nodes with the fewest GPUs in use first; their jobs continue elsewhere.

    >>> plan_allocations([], 9, AllocationLimits(gpus=4, max_nodes=2))
    Moves(submit=2, cancel=(), drain=(), release=(), end=())
    """
    target = min(max(math.ceil(wanted_gpus / limits.gpus), limits.min_nodes), limits.max_nodes)
    pending = [one for one in held if one.state == PENDING]
    stuck = [one for one in held if one.stuck]
    running = [one for one in held if one.state == RUNNING and not one.stuck]
    staying = [one for one in running if not one.drained]
    fresh = [one for one in staying if not one.expiring]
    surplus = len(pending) + len(fresh) - target
    unwanted = sorted(pending, key=lambda one: -one.job)[: max(surplus, 0)]
    surplus -= len(unwanted)
    idle = [one for one in fresh if one.joined and not one.used and one.idle_s >= limits.idle_s]
    going = sorted(idle, key=lambda one: (-one.idle_s, one.job))[: max(surplus, 0)]
    if empty:
        busy = [one for one in fresh if one.joined and one not in going]
        going += sorted(busy, key=lambda one: (one.used, one.job))[: max(surplus - len(going), 0)]
    return Moves(
        submit=max(-surplus, 0),
        cancel=tuple(one.job for one in unwanted),
        drain=tuple(one.job for one in [*going, *_succeeded(staying, target)]),
        release=tuple(one.job for one in running if one.drained and not one.used),
        end=tuple(one.job for one in stuck),
    )


def _succeeded(staying: Sequence[Held], target: int) -> list[Held]:
    """Expiring allocations that the others can replace, the earliest end first."""
    ready = sum(one.joined and not one.expiring for one in staying)
    expiring = sorted((one for one in staying if one.expiring and one.joined), key=lambda one: (one.left_s, one.job))
    return expiring[: max(ready + len(expiring) - target, 0)]


class Fitting:
    """Fits the number of nodes to what jobs want; knows how long nodes have been idle or too many."""

    def __init__(self, layout: Layout, clock: Callable[[], float], owner: str = "") -> None:
        """`owner`: to whom nodes are given back, for messages, e.g. " to Slurm"."""
        self.layout, self.clock, self._owner = layout, clock, owner
        self._idle: dict[int, float] = {}
        self._fewer_s = math.inf
        self._kept: set[str] = set()

    def held(self, number: int, node: NodeRow | None) -> Held:
        """A node that runs, or starts if the service has no row of it; to be called at each look."""
        if node is None:
            self._idle.pop(number, None)
            return Held(number, RUNNING, silent_s=math.inf)
        if not node.drained:
            self.mark(node.id).unlink(missing_ok=True)
        works, now, idle_s = node.state in ("ready", "suspect"), self.clock(), 0.0
        if works and not node.gpus_used:
            idle_s = now - self._idle.setdefault(number, now)
        else:
            self._idle.pop(number, None)
        drained = node.drained or node.state in ("leaving", "left")
        return Held(number, RUNNING, works, drained, node.gpus_used, idle_s, node.silent_s)

    def moves(self, wanted: WantedGpus, held: Sequence[Held], limits: AllocationLimits) -> Moves:
        """The plan for these allocations; it may empty nodes once the policy has long valued jobs at fewer."""
        staying = sum(not one.drained for one in held)
        fewer = wanted.by == "policy" and wanted.gpus <= (staying - 1) * limits.gpus
        self._fewer_s = min(self._fewer_s, self.clock()) if fewer else math.inf
        empty = fewer and self.clock() - self._fewer_s >= limits.idle_s
        return plan_allocations(held, wanted.gpus, limits, empty=empty)

    def mark(self, name: str) -> Path:
        """The file of a node that is being given back, also by the next keeper; a person drained the others."""
        return self.layout.node(name) / "given-back"

    def drain(self, service: Client, name: str) -> list[str]:
        """Drain a node that is to be given back; a sentence, if it is news."""
        try:
            self.mark(name).touch()
            service.drain(name)
        except (Refused, OSError) as error:  # a job there would lose its work: the node is kept until it has ended
            self.mark(name).unlink(missing_ok=True)
            news, self._kept = name not in self._kept, self._kept | {name}
            return [f"node {name} is not given back yet: {error}"] * news
        self._kept.discard(name)
        return [f"node {name} is drained, to be given back{self._owner}"]

    def forget(self, service: Client, names: Iterable[str]) -> None:
        """Have the service forget nodes that were given back; refused while it does not know that they have ended."""
        for name in names:
            with contextlib.suppress(Refused):
                service.forget_node(name)
                self.mark(name).unlink(missing_ok=True)
