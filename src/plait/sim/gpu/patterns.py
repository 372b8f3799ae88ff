"""What a step of a guaranteed job looks like from the GPU: kernels, and host work between them."""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import cached_property

from plait.sharing import Load

MS = 1e-3


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


def drawn(number: int, seed: int) -> list[tuple[Pattern, float]]:
    """Random patterns, each with an opportunistic quantum in seconds, to test models on.

    Steps of 30 to 500 ms with a slack of 0.1 to 0.9 and 1 to 12 kernels, evenly spaced or without a gap but the last;
    quanta of 0.5 to 30 ms. Steps and quanta are spread evenly on a logarithmic scale.
    """
    chance, out = random.Random(seed), []
    for _ in range(number):
        step_ms = 30.0 * (500 / 30) ** chance.random()
        host_ms = step_ms * chance.uniform(0.1, 0.9)
        times, dense = chance.randint(1, 12), chance.random() < 0.5
        gpu_ms, quantum_s = (step_ms - host_ms) / times, 0.5 * MS * 60.0 ** chance.random()
        if dense:
            kernels = (Kernel(gpu_ms * MS, 0.0, False),) * (times - 1) + (Kernel(gpu_ms * MS, host_ms * MS),)
            pattern = Pattern(f"{times}x{gpu_ms:.1f} then {host_ms:.0f} host", kernels)
        else:
            pattern = _alternating(f"{times}x({gpu_ms:.1f}+{host_ms / times:.1f})", times, gpu_ms, host_ms / times)
        out.append((pattern, quantum_s))
    return out


#: Opportunistic quanta of the table, in seconds.
QUANTA_S = (0.001, 0.004, 0.02)
