"""Choose the gate of a group from its members' stage times: barrier, tokens, or no sharing.

A barrier runs in lock step. A round takes the time of formula (3) (Muri, section 4), or of the longest iteration alone
if that is longer because of gaps between stages. With tokens each job runs at its own pace; they can reach the bound of
the busiest resource but lose some of it to queueing. This loss was fitted to three mixes on paced devices: 10 % of the
mean load of the other resources.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from plait.core.errors import InputError
from plait.core.resources import Resource
from plait.core.turns import lock_step_s, turn_vectors
from plait.runtime.token_model import queued_iterations

K = len(Resource)
#: Measured rounds of the barrier over formula (3), and the ratio below which lock step is worth it.
BARRIER_COST, BARRIER_MARGIN = 1.02, 0.97
#: Cost of queueing, as a part of the other resources' mean load.
TOKEN_COST = 0.10
MOST_UNEQUAL = 2.0
LEAST_GAIN = 1.05


@dataclass(frozen=True)
class Choice:
    """The chosen gate of a group, and its predicted times.

    `gate` is none, tokens or barrier; `exclusive`: sharing is not worth it, run the jobs one after the other. `turns`
    and `iteration_s` (predicted seconds of an iteration) are by member. `gain` is the sum of normalised progress, 1 for
    jobs one after the other. `barrier_s` is a round with the best turns (inf if there are more jobs than resources),
    `bound_s` what the busiest resource or the longest job alone needs.
    """

    gate: str
    exclusive: bool
    turns: tuple[int, ...]
    iteration_s: tuple[float, ...]
    gain: float
    barrier_s: float
    bound_s: float
    reason: str


def best_turns(stage_s: Sequence[Sequence[float]]) -> tuple[tuple[int, ...], float]:
    """Turns of the shortest round (the first of equals) and its seconds; inf for more jobs than resources."""
    vectors = turn_vectors(K, len(stage_s))
    if not vectors:
        return tuple(i % K for i in range(len(stage_s))), math.inf
    return min(((v, lock_step_s(stage_s, v)) for v in vectors), key=lambda found: found[1])


def segments_s(row: Sequence[float], prefetch: bool) -> tuple[float, ...]:
    """Seconds of the parts of an iteration: loading and training, which overlap with `prefetch`, else their sum."""
    load, train = row[Resource.STORAGE] + row[Resource.CPU], row[Resource.GPU] + row[Resource.NETWORK]
    return (load, train) if prefetch else (load + train,)


def choose_gate(
    stage_s: Sequence[Sequence[float]],
    iteration_s: Sequence[float] | None = None,
    *,
    capacities: Sequence[int] = (1,) * K,
    world_sizes: Sequence[int] | None = None,
    gang_rule: bool = True,
    prefetch: bool = True,
    yields: Sequence[bool] | None = None,
    token_cost: float = TOKEN_COST,
) -> Choice:
    """The gate for jobs with stage times `stage_s`: seconds, one row per job, in `Resource` order.

    `iteration_s`: seconds of an iteration alone, by default the longest segment (with `prefetch`) or the sum of the
    stages. `capacities`: jobs per resource; `world_sizes`: processes per job (default 1); `gang_rule`: whether the
    processes of a job are granted together; `yields`: whether each job has yield points (default yes); `token_cost`:
    see `TOKEN_COST`. Raises `InputError` for impossible stage times.

    >>> choose_gate([(2, 1, 1, 1), (1, 2, 1, 1), (1, 1, 2, 1), (1, 1, 1, 2)]).gate
    'barrier'
    """
    alone = _checked(stage_s, iteration_s, capacities, prefetch)
    turns, stages_s = best_turns(stage_s)
    barrier_s = max(stages_s, *alone)
    bound_s, beta = _bound(stage_s, alone, capacities, prefetch, token_cost)
    together = all(w == 1 for w in world_sizes or ()) or gang_rule
    ratio = max(alone) / min(alone)
    wins = BARRIER_COST * barrier_s <= BARRIER_MARGIN * beta * bound_s
    if wins and ratio <= MOST_UNEQUAL:
        gate, iterations = "barrier", (BARRIER_COST * barrier_s,) * len(alone)
        reason = f"lock step takes {barrier_s:.3g} s a round, tokens about {beta * bound_s:.3g} s"
    else:
        gate, iterations = "tokens", _token_iterations(stage_s, alone, capacities, beta)
        reason = f"tokens take about {beta * bound_s:.3g} s a round, lock step {barrier_s:.3g} s"
        if wins:
            reason = f"iterations differ {ratio:.2g} times, lock step would hold the short ones back"
    gain = sum(a / t for a, t in zip(alone, iterations, strict=True))
    if len(alone) == 1:
        against = "one job has the resources to itself"
    elif not together:
        against = "a job has several processes, and they are not granted together"
    elif gate == "tokens" and not _may_share_tokens(stage_s, alone, yields):
        against = "a job without yield points would hold back one whose iteration is below half its longest stage"
    elif gain < LEAST_GAIN:
        against = f"together only {gain:.2f} times as fast as one after the other"
    else:
        return Choice(gate, False, turns, iterations, gain, barrier_s, bound_s, reason)
    return Choice("none", True, turns, alone, 1.0, barrier_s, bound_s, against)


def paces(
    gate: str, stage_s: Sequence[Sequence[float]], iteration_s: Sequence[float], turns: Sequence[int]
) -> tuple[float, ...]:
    """Seconds of an iteration of each job at `gate`; `stage_s` and `iteration_s` as for `choose_gate`.

    `turns` matter at a barrier only. With tokens, the result is the longer of two predictions: the bound of the busiest
    resource with the measured cost of queueing, and whole stages in queues (`queued_iterations`), in which short stages
    wait behind long ones.

    >>> pair = [(2, 0.5, 1, 0.5), (0.5, 1, 2, 0.5)]
    >>> [round(s, 2) for s in paces("barrier", pair, (3.0, 2.5), (0, 2))]
    [4.59, 4.59]
    """
    alone = _checked(stage_s, iteration_s, (1,) * K, True)
    if len(alone) == 1:
        return alone
    if gate == "barrier":
        return (BARRIER_COST * max(lock_step_s(stage_s, turns), *alone),) * len(alone)
    _, beta = _bound(stage_s, alone, (1,) * K, True, TOKEN_COST)
    allowed = _token_iterations(stage_s, alone, (1,) * K, beta)
    return tuple(max(pair) for pair in zip(allowed, queued_iterations(stage_s, alone), strict=True))


def _bound(
    stage_s: Sequence[Sequence[float]],
    alone: Sequence[float],
    capacities: Sequence[int],
    prefetch: bool,
    token_cost: float,
) -> tuple[float, float]:
    """Seconds that the busiest resource or the longest job alone needs, and the factor of queueing."""
    load = [sum(row[r] for row in stage_s) / capacities[r] for r in Resource]
    bound_s = max(*load, *(max(segments_s(row, prefetch)) for row in stage_s), *alone)
    return bound_s, 1 + token_cost * (sum(load) - max(load)) / (K - 1) / bound_s


def _checked(
    stage_s: Sequence[Sequence[float]], iteration_s: Sequence[float] | None, capacities: Sequence[int], prefetch: bool
) -> tuple[float, ...]:
    """Seconds of each job's iteration alone; raises `InputError` for impossible stage times."""
    for job, row in enumerate(stage_s):
        if len(row) != K or any(not math.isfinite(t) or t < 0 for t in row) or sum(row) <= 0:
            raise InputError(f"job {job} of the group has stage times {list(row)}; needs {K} seconds >= 0, not all 0")
    if len(capacities) != K or min(capacities) < 1:
        raise InputError(f"capacities must be {K} numbers >= 1, got {list(capacities)}")
    if not stage_s:
        raise InputError("a group needs at least one job")
    if iteration_s is None:
        return tuple(max(segments_s(row, prefetch)) for row in stage_s)
    if len(iteration_s) != len(stage_s) or any(not math.isfinite(t) or t <= 0 for t in iteration_s):
        raise InputError(f"iteration_s must be {len(stage_s)} positive numbers of seconds, got {list(iteration_s)}")
    return tuple(float(t) for t in iteration_s)


def _may_share_tokens(
    stage_s: Sequence[Sequence[float]], alone: Sequence[float], yields: Sequence[bool] | None
) -> bool:
    """True unless a job without yield points would hold a token longer than two iterations of another job."""
    return all(
        may or i == j or alone[j] >= max(stage_s[i]) / 2
        for i, may in enumerate(yields or ())
        for j in range(len(alone))
    )


def _token_iterations(
    stage_s: Sequence[Sequence[float]], alone: Sequence[float], capacities: Sequence[int], beta: float
) -> tuple[float, ...]:
    """Predicted iteration seconds under tokens, with the factor `beta` for queueing.

    Speeds, relative to running alone, rise together until a resource is full or a job is as fast as alone; these jobs
    stop, the others continue to rise.
    """
    jobs = range(len(alone))
    use = [[stage_s[i][r] / alone[i] / capacities[r] for r in Resource] for i in jobs]
    speed, rising = [0.0] * len(alone), set(jobs)
    while rising:
        rise = min(1.0 - speed[i] for i in rising)
        for r in Resource:
            asked = sum(use[i][r] for i in rising)
            room = 1.0 - sum(speed[i] * use[i][r] for i in jobs)
            if asked > 0:
                rise = min(rise, max(0.0, room) / asked)
        for i in rising:
            speed[i] += rise
        full = [r for r in Resource if sum(speed[i] * use[i][r] for i in jobs) > 1 - 1e-9]
        rising = {i for i in rising if speed[i] < 1 - 1e-9 and not any(use[i][r] > 0 for r in full)}
    return tuple(alone[i] / speed[i] * beta for i in jobs)
