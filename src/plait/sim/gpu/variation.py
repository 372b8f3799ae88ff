"""How the steps of a guaranteed job differ from each other."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass

#: Standard deviation of every duration where nothing else is stated, as a part of it.
NOISE = 0.01
#: Coefficient of variation of the steps of a job of which nothing else is known.
STEP_CV = 0.05


@dataclass(frozen=True, slots=True)
class Variation:
    """Factors of each step's GPU and host time.

    cv        coefficient of variation of independent steps
    lognormal their distribution: lognormal rather than normal
    cycle     factors (GPU, host) of steps, drawn or recorded, again and again from a random place on
    drift_h   part by which steps are longer after an hour
    warm_up   parts by which they are longer after each 100 steps, up to twice as long
    """

    cv: float = 0.0
    lognormal: bool = False
    cycle: tuple[tuple[float, float], ...] = ()
    drift_h: float = 0.0
    warm_up: float = 0.0

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
