"""Who runs on a simulated GPU, and how opportunistic jobs are held back."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum

from plait.sim.gpu.patterns import Pattern

GB = 1_000_000_000
NEVER = math.inf


class Mode(Enum):
    """How opportunistic kernels are held back: not at all, by their share, or also by the stage gate."""

    PACKED = 0
    LAW = 1
    GATE = 2


@dataclass(frozen=True, slots=True)
class Phase:
    """What the guaranteed job does until `until_s`: a pattern, a demand for memory, and its own `label` of it."""

    pattern: Pattern
    until_s: float = NEVER
    memory_bytes: int = 8 * GB
    label: str = ""


@dataclass(frozen=True, slots=True)
class Opportunistic:
    """A job of endless steps, each of `quanta` kernels of `quantum_s` seconds.

    `curve` gives its speed, relative to that with `wants_bytes`, at parts of them: (part, speed) in rising order.
    `live_bytes` stay in use at step boundaries.
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

    def speed(self, limit_bytes: int) -> float:
        """Relative speed within a limit, straight between the points of the curve."""
        part = min(limit_bytes / self.wants_bytes, 1.0)
        for (x0, y0), (x1, y1) in zip(self.curve, self.curve[1:], strict=False):
            if part <= x1:
                return y0 + (y1 - y0) * (part - x0) / (x1 - x0)
        return self.curve[-1][1]


@dataclass(frozen=True, slots=True)
class Scenario:
    """Jobs on a GPU for `seconds`. The guaranteed job starts at `starts_s` and leaves after the last of its phases."""

    phases: tuple[Phase, ...]
    opportunistic: tuple[Opportunistic, ...]
    seconds: float
    starts_s: float = 0.0
    capacity_bytes: int = 32 * GB
