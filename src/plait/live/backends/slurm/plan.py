"""The wanted number of Slurm allocations: which to request, to empty, to give back. No clock, no commands."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from plait.live.backends.slurm.commands import PENDING, RUNNING

#: A running allocation whose agent is silent for so long is ended, seconds: no blip of a network lasts longer.
SILENT_S = 120.0
#: ... and one whose agent never joined.
UNBORN_S = 300.0


@dataclass(frozen=True)
class Limits:
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


def plan_allocations(held: Sequence[Held], wanted_gpus: int, limits: Limits, *, empty: bool = False) -> Moves:
    """Changes that bring the allocations nearer to the jobs' demand, within the limits.

    One that nears its time limit no longer counts, so its successor is requested while it still works (only then are
    there more than `max_nodes`); it is drained once the others suffice. Allocations that are no longer wanted are
    withdrawn from the queue first, then drained when idle for long enough; drained and empty ones are released.
    `empty`: nodes with jobs may be drained too, nodes with the fewest GPUs in use first; their jobs continue elsewhere.

    >>> plan_allocations([], 9, Limits(gpus=4, max_nodes=2))
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
