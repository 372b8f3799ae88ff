"""How many nodes to have: which to request, to empty and to give back, where nodes come and go."""

from __future__ import annotations

import contextlib
import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from plait.live.client.transport import Refused
from plait.live.layout import Layout

if TYPE_CHECKING:
    from plait.live.api.cluster import NodeRow, WantedGpus
    from plait.live.client.client import Client

#: States of a request for a node.
PENDING, RUNNING = "pending", "running"
#: A running allocation is ended whose agent is silent for so long, seconds, or has never joined. No blip of a network
#: lasts longer.
SILENT_S, UNBORN_S = 120.0, 300.0


@dataclass(frozen=True)
class AllocationLimits:
    """The user's limits: GPUs an allocation, minimum and maximum allocations, seconds that one may be idle."""

    gpus: int
    min_nodes: int = 0
    max_nodes: int = 4
    idle_s: float = 300.0


@dataclass(frozen=True)
class Held:
    """One allocation or node, as its backend and the service see it.

    `joined`: its agent works. `drained`: its node takes no new work. `used`: GPUs in use. `idle_s`: for how long none
    was. `silent_s`: for how long its agent has been silent, inf = it never joined. `left_s`: until its time limit; at
    `replace_s` before that another one is to take its place. `refused`: how often draining it was.
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
    refused: int = 0

    @property
    def stuck(self) -> bool:
        """Its agent is silent, though its backend reports it as running."""
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
    Each refusal puts a node behind the others: the one with the fewest may have the only job that cannot resume.

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
    going = sorted(idle, key=lambda one: (one.refused, -one.idle_s, one.job))[: max(surplus, 0)]
    if empty:
        busy = [one for one in fresh if one.joined and one not in going]
        going += sorted(busy, key=lambda one: (one.refused, one.used, one.job))[: max(surplus - len(going), 0)]
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
        self._refused = Counter[str]()

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
        seen = (node.gpus_used, idle_s, node.silent_s)
        return Held(number, RUNNING, works, drained, *seen, refused=self._refused[node.id])

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
            self._refused[name] += 1
            return [f"node {name} is not given back yet: {error}"] * (self._refused[name] == 1)
        del self._refused[name]
        return [f"node {name} is drained, to be given back{self._owner}"]

    def forget(self, service: Client, names: Iterable[str]) -> None:
        """Have the service forget nodes that were given back; refused while it does not know that they have ended."""
        for name in names:
            with contextlib.suppress(Refused):
                service.forget_node(name)
                self.mark(name).unlink(missing_ok=True)
