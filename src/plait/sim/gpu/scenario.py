"""Who runs on a simulated GPU, what the device does, what is reported, and how opportunistic jobs are held back."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum

from plait.sim.gpu.patterns import Pattern
from plait.sim.gpu.variation import Variation

GB = 1_000_000_000
NEVER = math.inf


class Mode(Enum):
    """How opportunistic kernels are held back: not at all, by their share, or also by the stage gate."""

    PACKED = 0
    LAW = 1
    GATE = 2


@dataclass(frozen=True, slots=True)
class Phase:
    """What the guaranteed job does until `until_s`: a pattern, a demand for memory, and its own `label` of it.

    `variation`: of its steps; None: each duration by `Variation.NOISE` alone.
    """

    pattern: Pattern
    until_s: float = NEVER
    memory_bytes: int = 8 * GB
    label: str = ""
    variation: Variation | None = None


@dataclass(frozen=True, slots=True)
class Opportunistic:
    """A job of endless steps, each of `quanta` kernels of `quantum_s` seconds.

    `curve` gives its speed, relative to that with `wants_bytes`, at parts of them: (part, speed) in rising order.
    `live_bytes` stay in use at step boundaries. One in `rare` quanta takes `rare_s` instead.
    """

    name: str
    quantum_s: float
    weight: float = 1.0
    starts_s: float = 0.0
    quanta: int = 10
    persistent_bytes: int = GB
    live_bytes: int = GB
    wants_bytes: int = 2 * GB
    curve: tuple[tuple[float, float], ...] = ((0.0, 1.0), (1.0, 1.0))
    rare: int = 0
    rare_s: float = 0.0

    def speed(self, limit_bytes: int) -> float:
        """Relative speed within a limit, straight between the points of the curve."""
        part = min(limit_bytes / self.wants_bytes, 1.0)
        for (x0, y0), (x1, y1) in zip(self.curve, self.curve[1:], strict=False):
            if part <= x1:
                return y0 + (y1 - y0) * (part - x0) / (x1 - x0)
        return self.curve[-1][1]


@dataclass(frozen=True, slots=True)
class Hardware:
    """What the device does beside serving kernels in order.

    slices        host and guest have the device in turn whenever both have work, in slices that are short beside it
    interference  GPU work of the host takes so much longer, as a part at share 1, from `interference_s` on
    """

    slices: bool = False
    interference: float = 0.0
    interference_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Reporting:
    """What reaches the coordinator.

    stages, stamps, returns  steps of the guaranteed job have GPU-stage seconds, the time of their end, counted returns
    acknowledged             guests report the number of the share that they obey
    lost, late_s             part of the steps that are never seen; seconds until a report is
    """

    stages: bool = True
    stamps: bool = True
    returns: bool = True
    acknowledged: bool = True
    lost: float = 0.0
    late_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Scenario:
    """Jobs on a GPU for `seconds`. The guaranteed job starts at `starts_s` and leaves after the last of its phases.

    `latency`: it is a server whose requests arrive at random, at `load` (0 to 1) of what it can serve; each is a step.
    """

    phases: tuple[Phase, ...]
    opportunistic: tuple[Opportunistic, ...]
    seconds: float
    starts_s: float = 0.0
    capacity_bytes: int = 32 * GB
    load: float = 0.0
    hardware: Hardware = Hardware()
    reporting: Reporting = Reporting()

    @property
    def latency(self) -> bool:
        """Whether the guaranteed job is a server."""
        return self.load > 0.0
