"""Cost of sharing for a guaranteed job and gain for opportunistic ones over minutes, without simulating kernels.

    estimate(Load(step_s=0.2, gpu_s=0.1), quantum_s=0.004)     # slowdown 1.009, 0.89 of the slack

The micro model (`plait.sim.gpu`) runs jobs, memory and decisions kernel by kernel. This one has what makes the result,
in closed form: the grant of `plait.sharing.grant`; what a share really costs, also where gaps are shorter than a
quantum, which the grant does not cover and the guard finds; the quanta that fit into a gap at a share; and the time
without guests, in off blocks and in the ramp.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

from plait.core.errors import InputError
from plait.sharing.contrast import PLACEBO, block_steps
from plait.sharing.grant import EPS, grant
from plait.sharing.share_law import CALM, USUAL

#: Coefficient of variation of steps where nothing else is known.
NOISE = 0.05
#: Where off blocks take a sixteenth of the time: up to this variation.
QUIET_NOISE = 0.05
#: Seconds that the ramp takes at RAMP_NOISE, longer as that squared, where returns are not counted.
RAMP_S, RAMP_NOISE = 220.0, 0.2
#: What a share costs on average where the guard holds it below the grant, as a part of a step: cuts aim at half of eps.
HELD = EPS / 2.0
#: Steps around an off block that are neither on nor off: guests obey within a tenth of a second and a step.
OBEY_S = 0.1
#: What a guest gets at least: the law tries one quantum now and then, however little a host leaves.
LEAST_SHARE = 1e-4
#: Seconds over which the law's result is taken in clusters: guests stay for hours.
HORIZON_S = 3600.0
#: GPU work that a guest starts without a look at its share where nothing else is known, seconds.
QUANTUM_S = 0.002


@dataclass(frozen=True, slots=True)
class Load:
    """A step of a guaranteed job that is alone.

    step_s  seconds of the step
    gpu_s   of those on the GPU, evenly in `gaps` kernels that the job waits for
    gaps    how many times it waits for the GPU
    stages  how many of the gaps have host work in them, evenly; the gate closes the others
    noise   coefficient of variation of its steps
    """

    step_s: float
    gpu_s: float
    gaps: int = 1
    stages: int = 1
    noise: float = NOISE

    def __post_init__(self) -> None:
        if not (0.0 <= self.gpu_s <= self.step_s and 0.0 < self.step_s < math.inf):
            raise InputError(f"gpu_s must be 0 to step_s, got gpu_s={self.gpu_s} and step_s={self.step_s}")
        if not (1 <= self.stages <= self.gaps and self.gaps % self.stages == 0):
            raise InputError(f"gaps must be a multiple of stages, got gaps={self.gaps} and stages={self.stages}")
        if not 0.0 <= self.noise < math.inf:
            raise InputError(f"noise must be a number >= 0, got {self.noise}")


@dataclass(frozen=True, slots=True)
class Estimate:
    """Mean guaranteed slowdown, and the part of the slack in which opportunistic jobs together had the GPU, 0 to 1."""

    slowdown: float
    slack_share: float


@lru_cache(maxsize=65_536)
def estimate(
    load: Load, quantum_s: float, *, gated: bool = False, guests: int = 1, seconds: float = 600.0, counted: bool = False
) -> Estimate:
    """Result of the law for a guaranteed job and `guests` opportunistic ones on a GPU, `seconds` from a cold start.

    quantum_s  opportunistic GPU work that starts without a look at the share, in seconds
    gated      opportunistic work starts only outside the GPU stage of the guaranteed job
    counted    the job reports how often it returns to the GPU

    A pure function; docs/explanation/sharing-law.md compares it with the micro model. Raises `InputError` for invalid
    values.
    """
    if not (quantum_s > 0.0 and guests >= 1 and seconds > 0.0):
        raise InputError(f"quantum_s, guests and seconds must be > 0, got {quantum_s}, {guests} and {seconds}")
    if load.gpu_s == load.step_s:
        return Estimate(1.0, 0.0)  # no slack, so no part of it
    returns = load.stages if gated else load.gaps
    quanta = (quantum_s,) * guests
    level = grant(load.step_s, returns if counted or gated else load.stages, quanta, (1.0,) * guests).total
    cost = _cost(load, quantum_s, gated, guests, level)
    if cost > EPS:  # the guard holds it where it costs less
        level *= HELD / cost
        cost = _cost(load, quantum_s, gated, guests, level)
    on = _on(load, seconds, counted)
    return Estimate(1.0 + cost * on, min(_used(load, quantum_s, guests, level) * on, 1.0))


@lru_cache(maxsize=1 << 16)
def beside_host(
    step_s: float, busy: float, guests: int, quantum_s: float = QUANTUM_S, gaps: int = 1, noise: float = NOISE
) -> tuple[float, float]:
    """The part of a GPU that guests get together beside a host whose step keeps it `busy` (0 to 1); its slowdown."""
    if busy >= 1.0:
        return LEAST_SHARE, 1.0
    load = Load(step_s, min(max(busy, 0.01), 0.99) * step_s, gaps, gaps, noise)
    found = estimate(load, quantum_s, guests=guests, seconds=HORIZON_S, counted=True)
    return (1.0 - busy) * found.slack_share, found.slowdown


def _cost(load: Load, quantum_s: float, gated: bool, guests: int, level: float) -> float:
    """What guests with `level` together cost a step, as a part of it."""
    gap_s, share = (load.step_s - load.gpu_s) / load.stages, level / guests
    if gap_s >= quantum_s:  # met at a random phase of its cycle
        outer_s = load.stages * guests * share * quantum_s / 2.0
    else:  # it begins with the gap or somewhere in it, and hangs over
        quanta = min(float(load.stages), share * load.step_s / quantum_s)
        inside = gap_s * load.stages / load.step_s
        outer_s = guests * quanta * (quantum_s - gap_s * (1.0 - inside / 2.0))
    inner_s = 0.0
    if not gated and load.gaps > load.stages:  # no gap at all: each quantum costs all of itself
        inside = load.gaps - load.stages
        inner_s = guests * min(inside * quantum_s, share * load.gpu_s * inside / load.gaps)
    return (outer_s + inner_s) / load.step_s


def _used(load: Load, quantum_s: float, guests: int, level: float) -> float:
    """The part of the slack that guests with `level` together use while they may."""
    gap_s, kernel_s = (load.step_s - load.gpu_s) / load.stages, load.gpu_s / load.stages
    share = level / guests
    cycle_s = quantum_s / share
    if cycle_s < gap_s + kernel_s:  # one begins with the gap, others follow
        used_s = share * gap_s + quantum_s / 2.0
    else:  # one waits for the kernel now and then
        waits_s = kernel_s * kernel_s / (2.0 * (kernel_s + gap_s))
        used_s = quantum_s * (gap_s + kernel_s) / (cycle_s + waits_s)
    return min(guests * min(used_s / gap_s, 1.0), 1.0)


def _on(load: Load, seconds: float, counted: bool) -> float:
    """The part of the time in which guests may run."""
    part = CALM if load.noise <= QUIET_NOISE else USUAL
    block_s = block_steps(load.step_s, 1) * load.step_s
    ramp_s = PLACEBO * block_s
    if not counted:
        ramp_s += RAMP_S * (load.noise / RAMP_NOISE) ** 2 + 4.0 * 2.0 * (block_s + OBEY_S + load.step_s)
    lost = min(ramp_s / seconds, 1.0)
    return (1.0 - part) * (1.0 - lost)
