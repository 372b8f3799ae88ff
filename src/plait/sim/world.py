"""Named worlds: a physics, overheads and everything else that is not a policy."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from plait.core.errors import InputError, suggest
from plait.sim.overheads import Overheads
from plait.sim.physics import Physics, StandardPhysics


@dataclass(frozen=True)
class World:
    """What is true in a simulation. Times in seconds; infinite = never.

    `round_s` 0 decides at every event. Failures are exponential with these means, those of switches in clusters with a
    network whose switches aggregate; `checkpoint_every_s` is
    how often a running job saves its work without stopping. `profile_noise` n lets policies see stage times
    that are off by a factor U[1-n, 1+n]. `plain` is the share of jobs (drawn by the seed) that cannot resume from a
    checkpoint and start over after a stop.
    """

    name: str
    summary: str
    physics: Physics = field(default_factory=StandardPhysics)
    overheads: Overheads = field(default_factory=Overheads)
    round_s: float = 0.0
    checkpoint_every_s: float = 1800.0
    node_mtbf_s: float = math.inf
    node_mttr_s: float = 3600.0
    switch_mtbf_s: float = math.inf
    switch_mttr_s: float = 3600.0
    job_mtbf_s: float = math.inf
    profile_noise: float = 0.0
    plain: float = 0.0

    def __post_init__(self) -> None:
        """Check the times."""
        for name in ("node_mtbf_s", "node_mttr_s", "switch_mtbf_s", "switch_mttr_s", "job_mtbf_s"):
            if not getattr(self, name) > 0:
                raise InputError(f"world {self.name}: {name} must be > 0 seconds, got {getattr(self, name)}")
        if not (self.round_s >= 0 and math.isfinite(self.round_s)):
            raise InputError(f"world {self.name}: round_s must be >= 0 seconds, got {self.round_s}")
        if not 0 <= self.plain <= 1:
            raise InputError(f"world {self.name}: plain must be a share of the jobs from 0 to 1, got {self.plain}")
        if not 0 <= self.profile_noise <= 1:
            raise InputError(f"profile noise must be between 0 and 1, got {self.profile_noise}")


#: How much slower a sensitive gang is on more nodes than it needs. An assumption: no figure
#: has been published for these models; it keeps spreading from being free of cost.
SPREAD_SLOWDOWN = 1.3


def plait_world() -> World:
    """Measured start-up overheads, slower when spread: the world to compare policies in."""
    return World(
        "plait",
        "measured start overheads, sensitive jobs slower when spread, decisions at every event",
        StandardPhysics(spread_slowdown=SPREAD_SLOWDOWN),
        Overheads.measured(),
    )


def ideal_world() -> World:
    """No overheads and no slow-down, as in textbooks."""
    return World("ideal", "no overheads, placement does not matter to speed", StandardPhysics())


def pollux_world() -> World:
    """Every start takes 30 s, the published simulation's figure: the world for adaptive jobs."""
    return World(
        "pollux",
        "30 s a start, decisions when policies ask: for jobs that adapt their batch",
        StandardPhysics(),
        Overheads.constant(launch_s=RESTART_S, restore_s=RESTART_S),
    )


#: What a start or restart costs an adaptive job in the published simulation (Pollux, OSDI'21, section 5.3).
RESTART_S = 30.0

WORLDS = {"plait": plait_world, "ideal": ideal_world, "pollux": pollux_world}


def make_world(name: str) -> World:
    """A world by name; `InputError` with the nearest name otherwise."""
    if name not in WORLDS:
        raise InputError(f"unknown world {name!r}; {suggest(name, WORLDS)}")
    return WORLDS[name]()
