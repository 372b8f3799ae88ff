"""Choose the gate of a group from its members' stage times: barrier, tokens, or no sharing.

A barrier runs in lock step. A round takes the time of formula (3) (Muri, section 4), or of the longest iteration alone
if that is longer because of gaps between stages. With tokens each job runs at its own pace; they can reach the bound of
the busiest resource but lose some of it to queueing. This loss was fitted to three mixes on paced devices: 10 % of the
mean load of the other resources.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from plait.core.errors import InputError
from plait.core.resources import Resource
from plait.core.turns import lock_step_s, turn_vectors

# Predict paces at tokens: every resource is a queue that serves whole stages, first come first served.
#
# The bound of `gate_choice` is the capacity of each resource. It ignores that a job with a short GPU stage waits behind
# one with a long stage in each iteration. Here the stages are simulated through the queues until the paces settle. Jobs
# with yield points wait less: at most a quantum.

#: Batches that a loader prepares before it waits for the job.
AHEAD = 2
#: Part of the GPU time before the exchange of gradients; the optimizer's step follows it.
BEFORE_NETWORK = 0.75
#: Simulated iterations of the slowest job; the first half is not measured.
PLAYED = 24
#: Most stages to simulate: jobs whose iterations differ a thousand times would take long.
MOST_STAGES = 20_000


@dataclass
class _Line:
    """The stages that one thread of a job repeats in a cycle; a pause belongs to no resource."""

    stages: list[tuple[int | None, float]]
    at: int = 0
    done: list[float] = field(default_factory=list)
    feeds: _Line | None = None
    fed_by: _Line | None = None
    parked: bool = False

    def may_begin(self) -> bool:
        """True if the loader has room for a batch, or training has a batch."""
        if self.feeds is not None:
            return len(self.done) - len(self.feeds.done) < AHEAD
        return self.fed_by is None or len(self.fed_by.done) > len(self.done)


def queued_iterations(stage_s: Sequence[Sequence[float]], alone: Sequence[float]) -> tuple[float, ...]:
    """Seconds of an iteration of each job at tokens held for whole stages.

    `stage_s`: seconds, one row per job in `Resource` order. `alone`: seconds of an iteration alone, about the longer of
    loading and training if a job prefetches, else about the sum of its stages.

    >>> [round(s, 2) for s in queued_iterations([(0, 0, 8, 0), (0, 6, 1, 0)], (8, 7))]
    [9.0, 9.0]
    """
    return _play(tuple(tuple(row) for row in stage_s), tuple(alone))


@lru_cache(maxsize=256)
def _play(stage_s: tuple[tuple[float, ...], ...], alone: tuple[float, ...]) -> tuple[float, ...]:
    counted = []
    events: list[tuple[float, int, _Line]] = []
    for row, iteration_s in zip(stage_s, alone, strict=True):
        lines = _lines(row, iteration_s)
        counted.append(lines[-1])
        for line in lines:
            heapq.heappush(events, (0.0, len(events), line))
    free_s, played = [0.0] * len(Resource), len(events)
    while events and played < MOST_STAGES and min(len(line.done) for line in counted) < PLAYED:
        now_s, _, line = heapq.heappop(events)
        if line.at == 0 and not line.may_begin():
            line.parked = True
            continue
        resource, seconds = line.stages[line.at]
        end_s = seconds + (now_s if resource is None else max(now_s, free_s[resource]))
        if resource is not None:
            free_s[resource] = end_s
        line.at = (line.at + 1) % len(line.stages)
        played += 1
        if line.at == 0:  # known now though it is later; who waits for it begins then
            line.done.append(end_s)
        other = line.feeds or line.fed_by
        if other is not None and other.parked and other.may_begin():
            other.parked = False
            heapq.heappush(events, (max(now_s, end_s if line.feeds else now_s), played + MOST_STAGES, other))
        heapq.heappush(events, (end_s, played, line))
    return tuple(max(s, _settled(line.done, s)) for s, line in zip(alone, counted, strict=True))


def _lines(row: Sequence[float], alone: float) -> list[_Line]:
    """A job as one line, or as a loader and a training line; the last line counts the iterations."""
    load = [(int(r), row[r]) for r in (Resource.STORAGE, Resource.CPU) if row[r] > 0]
    gpu, network = row[Resource.GPU], row[Resource.NETWORK]
    train: list[tuple[int | None, float]] = [(int(Resource.GPU), gpu)] if gpu > 0 else []
    if network > 0 and gpu > 0:
        parts = (BEFORE_NETWORK * gpu, (1 - BEFORE_NETWORK) * gpu)
        train = [(int(Resource.GPU), parts[0]), (int(Resource.NETWORK), network), (int(Resource.GPU), parts[1])]
    elif network > 0:
        train = [(int(Resource.NETWORK), network)]
    apart, together = max(sum(row[:2]), sum(row[2:])), sum(row)
    if not load or not train or alone > (apart + together) / 2:
        return [_Line([*load, *train, (None, max(0.0, alone - together))])]
    loader, trainer = _Line([*load]), _Line([*train, (None, max(0.0, alone - apart))])
    loader.feeds, trainer.fed_by = trainer, loader
    return [loader, trainer]


def _settled(done: Sequence[float], alone: float) -> float:
    """Mean seconds between ends in the later half."""
    half = len(done) // 2
    return (done[-1] - done[half]) / (len(done) - 1 - half) if len(done) - 1 > half else alone


K = len(Resource)
#: Measured rounds of the barrier over formula (3), and the ratio below which lock step is worth it.
BARRIER_COST, BARRIER_MARGIN = 1.02, 0.97
#: Cost of queueing, as a part of the other resources' mean load.
TOKEN_COST = 0.10
MOST_UNEQUAL = 2.0
LEAST_GAIN = 1.05


@dataclass(frozen=True)
class GateChoice:
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


def segments_s(row: Sequence[float]) -> tuple[float, float]:
    """Seconds of loading and of training in an iteration, which overlap because loaders prefetch."""
    return row[Resource.STORAGE] + row[Resource.CPU], row[Resource.GPU] + row[Resource.NETWORK]


def choose_gate(stage_s: Sequence[Sequence[float]], iteration_s: Sequence[float] | None = None) -> GateChoice:
    """The gate for jobs with stage times `stage_s`: seconds, one row per job, in `Resource` order.

    `iteration_s`: seconds of an iteration alone, by default the longer of loading and training. Raises `InputError` for
    impossible stage times.

    >>> choose_gate([(2, 1, 1, 1), (1, 2, 1, 1), (1, 1, 2, 1), (1, 1, 1, 2)]).gate
    'barrier'
    """
    alone = _checked(stage_s, iteration_s)
    turns, stages_s = best_turns(stage_s)
    barrier_s = max(stages_s, *alone)
    bound_s, beta = _bound(stage_s, alone)
    ratio = max(alone) / min(alone)
    wins = BARRIER_COST * barrier_s <= BARRIER_MARGIN * beta * bound_s
    if wins and ratio <= MOST_UNEQUAL:
        gate, iterations = "barrier", (BARRIER_COST * barrier_s,) * len(alone)
        reason = f"lock step takes {barrier_s:.3g} s a round, tokens about {beta * bound_s:.3g} s"
    else:
        gate, iterations = "tokens", _token_iterations(stage_s, alone, beta)
        reason = f"tokens take about {beta * bound_s:.3g} s a round, lock step {barrier_s:.3g} s"
        if wins:
            reason = f"iterations differ {ratio:.2g} times, lock step would hold the short ones back"
    gain = sum(a / t for a, t in zip(alone, iterations, strict=True))
    if len(alone) == 1:
        against = "one job has the resources to itself"
    elif gain < LEAST_GAIN:
        against = f"together only {gain:.2f} times as fast as one after the other"
    else:
        return GateChoice(gate, False, turns, iterations, gain, barrier_s, bound_s, reason)
    return GateChoice("none", True, turns, alone, 1.0, barrier_s, bound_s, against)


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
    alone = _checked(stage_s, iteration_s)
    if len(alone) == 1:
        return alone
    if gate == "barrier":
        return (BARRIER_COST * max(lock_step_s(stage_s, turns), *alone),) * len(alone)
    _, beta = _bound(stage_s, alone)
    allowed = _token_iterations(stage_s, alone, beta)
    return tuple(max(pair) for pair in zip(allowed, queued_iterations(stage_s, alone), strict=True))


def _bound(stage_s: Sequence[Sequence[float]], alone: Sequence[float]) -> tuple[float, float]:
    """Seconds that the busiest resource or the longest job alone needs, and the factor of queueing."""
    load = [sum(row[r] for row in stage_s) for r in Resource]
    bound_s = max(*load, *(max(segments_s(row)) for row in stage_s), *alone)
    return bound_s, 1 + TOKEN_COST * (sum(load) - max(load)) / (K - 1) / bound_s


def _checked(stage_s: Sequence[Sequence[float]], iteration_s: Sequence[float] | None) -> tuple[float, ...]:
    """Seconds of each job's iteration alone; raises `InputError` for impossible stage times."""
    for job, row in enumerate(stage_s):
        if len(row) != K or any(not math.isfinite(t) or t < 0 for t in row) or sum(row) <= 0:
            raise InputError(f"job {job} of the group has stage times {list(row)}; needs {K} seconds >= 0, not all 0")
    if not stage_s:
        raise InputError("a group needs at least one job")
    if iteration_s is None:
        return tuple(max(segments_s(row)) for row in stage_s)
    if len(iteration_s) != len(stage_s) or any(not math.isfinite(t) or t <= 0 for t in iteration_s):
        raise InputError(f"iteration_s must be {len(stage_s)} positive numbers of seconds, got {list(iteration_s)}")
    return tuple(float(t) for t in iteration_s)


def _token_iterations(stage_s: Sequence[Sequence[float]], alone: Sequence[float], beta: float) -> tuple[float, ...]:
    """Predicted iteration seconds under tokens, with the factor `beta` for queueing.

    Speeds, relative to running alone, rise together until a resource is full or a job is as fast as alone; these jobs
    stop, the others continue to rise.
    """
    jobs = range(len(alone))
    use = [[stage_s[i][r] / alone[i] for r in Resource] for i in jobs]
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
