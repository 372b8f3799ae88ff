"""Who runs on a simulated GPU, what the device does, what is reported, and how opportunistic jobs are held back.

A guaranteed job repeats a `Pattern` of kernels and host work, and its steps differ by a `Variation`.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from functools import cached_property

from plait.sharing.macro_model import Load

MS = 1e-3
GB = 1_000_000_000
NEVER = math.inf
#: Standard deviation of every duration where nothing else is stated, as a part of it.
NOISE = 0.01
#: Coefficient of variation of the steps of a job of which nothing else is known.
STEP_CV = 0.05


@dataclass(frozen=True, slots=True)
class Kernel:
    """GPU work that the job waits for, then host work, both in seconds.

    `ends_stage`: the GPU stage of the job ends with it, so the gate opens during the host work behind it.
    """

    gpu_s: float
    host_s: float
    ends_stage: bool = True


@dataclass(frozen=True)
class Pattern:
    """One step.

    >>> PATTERNS["100+100"].step_s, PATTERNS["100+100"].slack, PATTERNS["100+100"].stages
    (0.2, 0.5, 1)
    """

    name: str
    kernels: tuple[Kernel, ...]

    @cached_property
    def step_s(self) -> float:
        """Seconds of a step alone on the GPU."""
        return sum(k.gpu_s + k.host_s for k in self.kernels)

    @property
    def slack(self) -> float:
        """The part of a step in which the GPU idles, 0 to 1."""
        return sum(k.host_s for k in self.kernels) / self.step_s

    @property
    def load(self) -> Load:
        """The pattern as the macro model takes it."""
        return Load(self.step_s, sum(k.gpu_s for k in self.kernels), self.gaps, self.stages)

    @property
    def stages(self) -> int:
        """GPU stages, which is the number of gaps that the gate leaves open."""
        return sum(k.ends_stage for k in self.kernels)

    @property
    def gaps(self) -> int:
        """How often a step waits for the GPU; without the gate each wait may cost the job a quantum."""
        return len(self.kernels)

    def scaled(self, factor: float) -> Pattern:
        """The same with all times multiplied."""
        kernels = (Kernel(k.gpu_s * factor, k.host_s * factor, k.ends_stage) for k in self.kernels)
        return Pattern(f"{factor:g} x {self.name}", tuple(kernels))


def _alternating(name: str, times: int, gpu_ms: float, host_ms: float) -> Pattern:
    return Pattern(name, (Kernel(gpu_ms * MS, host_ms * MS),) * times)


#: The patterns of the published table in docs/explanation/sharing-law.md, GPU + host milliseconds.
PATTERNS = {
    pattern.name: pattern
    for pattern in (
        _alternating("5x(4+3)", 5, 4, 3),
        _alternating("10x(5+5)", 10, 5, 5),
        _alternating("100+100", 1, 100, 100),
        Pattern("20x5 then 100 host", (Kernel(5 * MS, 0.0, False),) * 19 + (Kernel(5 * MS, 100 * MS),)),
        _alternating("80+20", 1, 80, 20),
        _alternating("10+190", 1, 10, 190),
    )
}


@dataclass(frozen=True, slots=True)
class Variation:
    """Factors of each step's GPU and host time.

    cv        coefficient of variation of independent steps
    lognormal their distribution: lognormal rather than normal
    cycle     factors (GPU, host) of steps, drawn or recorded, again and again from a random place on
    drift_h   part by which steps are longer after an hour
    warm_up   parts by which they are longer after each 100 steps, up to twice as long
    clock_s   steps begin at whole multiples of it, as of a job that waits for its next frame; 0: at once
    """

    cv: float = 0.0
    lognormal: bool = False
    cycle: tuple[tuple[float, float], ...] = ()
    drift_h: float = 0.0
    warm_up: float = 0.0
    clock_s: float = 0.0

    def factors(self, seed: int, step_s: float) -> Iterator[tuple[float, float]]:
        """Factors of GPU and host time of each step, without end; a step takes about `step_s` seconds."""
        chance = random.Random(f"{seed} steps")
        spread = math.sqrt(math.log(1.0 + self.cv**2))
        at = chance.randrange(len(self.cycle)) if self.cycle else 0
        number, now_s = 0, 0.0
        while True:
            if self.lognormal:
                factor = math.exp(chance.gauss(-spread * spread / 2.0, spread))
            else:
                factor = max(chance.gauss(1.0, self.cv), 0.05) if self.cv else 1.0
            factor *= 1.0 + self.drift_h * now_s / 3600.0
            factor *= min(1.0 + self.warm_up * (number // 100), 2.0)
            gpu, host = self.cycle[(at + number) % len(self.cycle)] if self.cycle else (1.0, 1.0)
            yield factor * gpu, factor * host
            number, now_s = number + 1, now_s + step_s * factor


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
    `live_bytes` stay in use at step boundaries. One in `rare` quanta takes `rare_s` instead. `spread`: standard
    deviation of the logarithm of quanta, whose median is then `quantum_s`. From `later[0]` seconds on it is `later[1]`.
    `growth`: quanta take `exp(growth * t)` times as long after `t` seconds.
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
    spread: float = 0.0
    later: tuple[float, float] = (NEVER, 0.0)
    growth: float = 0.0

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
    elsewhere     the same of its other work: guests take cores or storage
    """

    slices: bool = False
    interference: float = 0.0
    interference_s: float = 0.0
    elsewhere: float = 0.0


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
