"""Plans of faults: kind, time and target, drawn from a seed."""

from __future__ import annotations

import enum
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from plait.core.errors import InputError


class Kind(enum.StrEnum):
    """Kinds of faults."""

    KILL_SERVICE = "kill the service"
    STOP_SERVICE = "stop the service for a while"
    KILL_AGENT = "kill an agent"
    STOP_AGENT = "stop an agent for a while"
    KILL_WORKER = "kill a process of a job"
    KILL_RUNNER = "kill the runner of a process"
    FULL_DISK = "no room for the files of a job"
    KILL_SWITCH = "kill a switch"
    KILL_SERVER = "kill the aggregation server of a switch"


#: Relative frequency of each kind.
WEIGHTS: Mapping[Kind, float] = {
    Kind.KILL_SERVICE: 2.0,
    Kind.STOP_SERVICE: 1.0,
    Kind.KILL_AGENT: 2.0,
    Kind.STOP_AGENT: 2.0,
    Kind.KILL_WORKER: 2.0,
    Kind.KILL_RUNNER: 1.0,
    Kind.FULL_DISK: 2.0,
}
#: The same for clusters with switches.
NETWORK_WEIGHTS: Mapping[Kind, float] = {**WEIGHTS, Kind.KILL_SWITCH: 3.0, Kind.KILL_SERVER: 2.0}


@dataclass(frozen=True)
class Fault:
    """One fault: `after_s` seconds after the previous one, on the target at `pick` (0 to 1) of those at that time.

    `length_s`: until the service is started again, the stopped one continues, there is room again.
    """

    after_s: float
    kind: Kind
    pick: float
    length_s: float


def plan_faults(
    seed: int,
    count: int,
    *,
    every_s: float = 1.5,
    longest_s: float = 5.0,
    weights: Mapping[Kind, float] = WEIGHTS,
) -> Sequence[Fault]:
    """`count` faults, `every_s` seconds apart in the mean, each at most `longest_s` long.

    Each kind with a weight comes at least once if there are enough faults. Stopping an agent takes the longest time, so
    with `longest_s` above the cluster's `lost` its work is replaced. Raises `InputError` for invalid numbers.

    >>> [fault.kind.name for fault in plan_faults(3, 2)] == [fault.kind.name for fault in plan_faults(3, 2)]
    True
    """
    if count < 0 or not every_s > 0 or not longest_s > 0:
        raise InputError(f"{count} faults every {every_s:g} s of up to {longest_s:g} s; needs >= 0, > 0 and > 0")
    kinds = [kind for kind in Kind if weights.get(kind, 0.0) > 0]
    if not kinds:
        raise InputError("no kind of fault has a weight > 0; give some of plait.testing.Kind")
    draw = random.Random(seed)
    chosen = draw.sample(kinds, len(kinds))[:count]
    chosen += draw.choices(kinds, [weights[kind] for kind in kinds], k=count - len(chosen))
    draw.shuffle(chosen)
    faults = []
    for kind in chosen:
        after_s = draw.expovariate(1 / every_s)
        share = 1.0 if kind is Kind.STOP_AGENT else draw.random()
        faults.append(Fault(after_s, kind, draw.random(), share * longest_s))
    return faults
