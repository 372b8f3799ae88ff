"""The shares that opportunistic jobs may have by the mechanism alone, before anything is measured.

On a device that serves kernels in the order of their launch and preempts none, a guaranteed job that returns to the
device waits for at most one quantum q of each guest. With n returns in a step of b seconds:

    certain   D <= n sum(q)               whatever the phase
    expected  E D = n sum(s q / 2)        gaps of at least q, met at a random phase of the guest's cycle q / s
    work      D <= the guests' GPU time   a share s costs at most s, for any n and any gaps

In the second line q is the quantum that a random time falls into, sum(q^2) / sum(q) of those of late: a single long one
among many is seldom met.

Gaps shorter than q are not covered but by the last line: there the guard (`share_law`) finds what sharing costs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

#: Allowed slowdown of the guaranteed job; the part of it that sharing is planned to cost where the bound is expected.
EPS, THETA = 0.02, 0.015
#: The same next to a server that is met only by requests that find the device idle.
EPS_GATED_SERVER = 0.10
#: A gated server's requests take so many quanta, or guests get less.
QUANTA_A_REQUEST = 4.0


class Bound(Enum):
    """Which of the bounds holds: see the module. SERVER: of a server behind the gate; UNKNOWN: no quantum is known."""

    CERTAIN = "certain"
    EXPECTED = "expected"
    WORK = "work"
    SERVER = "server"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Grant:
    """The share of each guest, 0 to 1, and the bound that it follows from."""

    shares: tuple[float, ...]
    bound: Bound

    @property
    def total(self) -> float:
        """The sum of shares."""
        return math.fsum(self.shares)


def grant(
    step_s: float,
    returns: float,
    quanta_s: Sequence[float],
    weights: Sequence[float],
    met_s: Sequence[float] | None = None,
) -> Grant:
    """The grant of guests beside a job with steps of `step_s` seconds that returns to the device so often in each.

    quanta_s  longest quantum of each guest, in seconds; 0: none was seen, so that a share may cost all of itself
    weights   of each guest, above 0
    met_s     the quantum of each that a random time falls into; None: the longest

    >>> grant(0.2, 1, [0.002, 0.02], [1.0, 1.0]).shares
    (0.5, 0.15)
    """
    parts, known = _parts(weights), [q for q in quanta_s if q > 0.0]
    if len(known) == len(quanta_s) and returns * math.fsum(known) <= EPS * step_s:
        return Grant(parts, Bound.CERTAIN)
    shares = tuple(
        part * (min(1.0, 2.0 * THETA * step_s / (returns * q)) if q > 0.0 else EPS)
        for part, q in zip(parts, quanta_s if met_s is None else met_s, strict=True)
    )
    return Grant(shares, Bound.EXPECTED if known else Bound.UNKNOWN)


def idle_room(service_s: float, quantum_s: float) -> float:
    """The share at which a request that finds the device idle waits for an eighth of its service on average, 0 to 1.

    >>> idle_room(0.02, 0.02)
    0.25
    """
    return min(1.0, service_s / (QUANTA_A_REQUEST * quantum_s))


def beside_gated_server(service_s: float, quanta_s: Sequence[float], weights: Sequence[float]) -> Grant:
    """The grant beside a server behind the gate, whose requests take `service_s` seconds of the GPU.

    The tail of its latencies grows faster than the mean, so the room counts squared; a guest whose quantum is longer
    than a request gets nothing. Arguments as of `grant`.
    """
    shares = tuple(
        part * (EPS if q <= 0.0 else 0.0 if q > service_s else idle_room(service_s, q) ** 2)
        for part, q in zip(_parts(weights), quanta_s, strict=True)
    )
    return Grant(shares, Bound.SERVER)


def by_work(weights: Sequence[float]) -> Grant:
    """The grant where nothing but the conservation of work holds: EPS in all."""
    return Grant(tuple(EPS * part for part in _parts(weights)), Bound.WORK)


def expected_cost(step_s: float, returns: float, quanta_s: Sequence[float], level: float) -> float:
    """Mean delay of a step as a part of it, where guests have `level` together in equal shares.

    Each is met in its quantum, or waiting for one of the others.
    """
    share = level / max(len(quanta_s), 1)
    return returns * share * math.fsum(quanta_s) * (1.0 + level - share) / (2.0 * step_s)


def _parts(weights: Sequence[float]) -> tuple[float, ...]:
    whole = math.fsum(weights)
    return tuple(weight / whole for weight in weights)
