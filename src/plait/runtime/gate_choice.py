"""Choose the gate of a group from its members' stage times: barrier, tokens, or no sharing.

A barrier runs in lock step. A round takes the time of formula (3) (Muri, section 4), or of the longest iteration alone
if that is longer because of gaps between stages. With tokens each job runs at its own pace: the rule of the token gate
(`plait.runtime.gates`) is played with the stage times. The gate with the larger sum of normalised progress is chosen.
"""

from __future__ import annotations

import heapq
import itertools
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from plait.core.errors import InputError
from plait.core.resources import Resource
from plait.core.turns import lock_step_s, turn_vectors

K = len(Resource)
#: Batches that a loader prepares before it waits for the job.
AHEAD = 2
#: Part of the GPU time before the exchange of gradients; the optimizer's step follows it.
BEFORE_NETWORK = 0.75
#: Simulated iterations of the slowest job; the first half is not measured.
PLAYED = 24
#: Most stages to simulate: jobs whose iterations differ a thousand times would take long.
MOST_STAGES = 20_000
#: Seconds between yield points of a stage.
YIELDS_S = 0.005
#: Stage times vary by this part, and the mean of so many runs counts. Exactly periodic jobs lock into a rhythm that
#: real jobs leave.
VARIES, RUNS = 0.05, 8


@dataclass(eq=False)
class _Line:
    """The stages that one thread of a job repeats in a cycle; a pause belongs to no resource."""

    stages: list[tuple[int | None, float]]
    at: int = 0
    left_s: float = 0.0  # of the current stage
    served_s: float = 0.0
    usual_s: dict[int, float] = field(default_factory=dict)  # of a stage by resource, as the gate learns it
    done_s: list[float] = field(default_factory=list)
    feeds: _Line | None = None
    fed_by: _Line | None = None
    parked: bool = False

    def expected_s(self, r: int, held_s: float) -> float:
        """What the gate expects to be left of the stage (`gates`): it knows only what stages on `r` usually take."""
        had, usual = self.served_s + held_s, self.usual_s.get(r, 0.0)
        return usual - had if usual > had else had

    def may_begin(self) -> bool:
        """True if the loader has room for a batch, or training has a batch."""
        if self.feeds is not None:
            return len(self.done_s) - len(self.feeds.done_s) < AHEAD
        return self.fed_by is None or len(self.fed_by.done_s) > len(self.done_s)


class _Tokens:
    """The token gate, played: first come, first served, and a stage gives way after `quantum_s` to a shorter one."""

    def __init__(self, quantum_s: float) -> None:
        self.quantum_s, self.now_s = quantum_s, 0.0
        self.holder: list[_Line | None] = [None] * K
        self.since_s, self.held = [0.0] * K, [0] * K  # of the holder; how often the token was given
        self.queues: list[list[_Line]] = [[] for _ in range(K)]
        self.events: list[tuple[float, int, int, _Line | None]] = []  # when, number, resource (K: a pause), whose end
        self._count = itertools.count()

    def begin(self, line: _Line) -> None:
        """Start the next stage of `line`, or wait for a batch or for room for one."""
        line.parked = line.at == 0 and not line.may_begin()
        if line.parked:
            return
        resource, line.left_s = line.stages[line.at]
        line.served_s = 0.0
        if resource is None:
            self._push(self.now_s + line.left_s, K, line)
            return
        self.queues[resource].append(line)
        if self.holder[resource] is None:
            self._grant(resource)
        else:
            self._check(resource)

    def play(self, counted: Sequence[_Line]) -> None:
        """Go on until each of `counted` has done `PLAYED` iterations, or `MOST_STAGES` events are over."""
        for _ in range(MOST_STAGES):
            if not self.events or min(len(line.done_s) for line in counted) >= PLAYED:
                return
            self.now_s, number, r, line = heapq.heappop(self.events)
            if r == K:
                assert line is not None
                self._end(line)
            elif line is None:
                self._give_way(r, number)
            elif self.holder[r] is line and number > self.held[r]:
                self.holder[r] = None
                self._grant(r)
                self._end(line)

    def _push(self, at_s: float, resource: int, line: _Line | None) -> None:
        heapq.heappush(self.events, (at_s, next(self._count), resource, line))

    def _grant(self, r: int) -> None:
        """Give the token to the line that has waited longest."""
        if self.queues[r]:
            line = self.holder[r] = self.queues[r].pop(0)
            self.since_s[r], self.held[r] = self.now_s, next(self._count)
            self._push(self.now_s + line.left_s, r, line)
            if self.queues[r]:
                self._check(r)

    def _check(self, r: int) -> None:
        """Check at the end of its quantum whether the holder gives way to a waiting line."""
        if self.quantum_s < math.inf:
            self._push(max(self.now_s, self.since_s[r] + self.quantum_s), r, None)

    def _give_way(self, r: int, number: int) -> None:
        line = self.holder[r]
        if line is None or number < self.held[r]:
            return
        held_s = self.now_s - self.since_s[r]
        needs_s = min((other.expected_s(r, 0.0) for other in self.queues[r] if r in other.usual_s), default=math.inf)
        if needs_s < line.expected_s(r, held_s) / 2:
            line.left_s, line.served_s, self.holder[r] = line.left_s - held_s, line.served_s + held_s, None
            self.queues[r].append(line)
            self._grant(r)
        else:  # a stage that lasts longer than usual is expected to last as long again
            longer_s = max(line.usual_s.get(r, 0.0), 2 * needs_s) - line.served_s
            if held_s < longer_s < line.left_s:
                self._push(self.since_s[r] + longer_s + YIELDS_S, r, None)

    def _end(self, line: _Line) -> None:
        """End the stage of `line` and begin its next one."""
        resource, took_s = line.stages[line.at]
        if resource is not None:
            line.usual_s[resource] = 0.7 * line.usual_s.get(resource, took_s) + 0.3 * took_s
        line.at = (line.at + 1) % len(line.stages)
        if line.at == 0:
            line.done_s.append(self.now_s)
            other = line.feeds or line.fed_by
            if other is not None and other.parked:
                self.begin(other)
        self.begin(line)


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


def token_paces(
    stage_s: Sequence[Sequence[float]], alone: Sequence[float], quantum_s: float = math.inf
) -> tuple[float, ...]:
    """Seconds of an iteration of each job at tokens, which jobs hold for whole stages or give up after `quantum_s`.

    `stage_s`: seconds, one row per job in `Resource` order. `alone`: seconds of an iteration alone, about the longer of
    loading and training if a job prefetches, else about the sum of its stages. A job gives way only at its yield points
    (`job.yield_point()`), and one of several processes never does.

    >>> [round(s) for s in token_paces([(0, 0, 8, 0), (0, 6, 1, 0)], (8, 7))]
    [9, 9]
    """
    return _mean_paces(tuple(tuple(row) for row in stage_s), tuple(alone), quantum_s)


@lru_cache(maxsize=256)
def _mean_paces(
    stage_s: tuple[tuple[float, ...], ...], alone: tuple[float, ...], quantum_s: float
) -> tuple[float, ...]:
    draw, longer = random.Random(0), [0.0] * len(alone)
    for _ in range(RUNS):
        varied = [[t * (1 + VARIES * draw.uniform(-1, 1)) for t in row] for row in stage_s]
        alone_s = [a * sum(new) / sum(row) for a, row, new in zip(alone, stage_s, varied, strict=True)]
        tokens = _Tokens(quantum_s)
        lines = [_lines(row, iteration_s) for row, iteration_s in zip(varied, alone_s, strict=True)]
        counted = [of_job[-1] for of_job in lines]
        for line in itertools.chain.from_iterable(lines):
            tokens.begin(line)
        tokens.play(counted)
        for i, line in enumerate(counted):
            longer[i] += _settled(line.done_s, tokens.now_s) / alone_s[i] / RUNS
    mean_s = [a * max(1.0, factor) for a, factor in zip(alone, longer, strict=True)]
    busy = max(sum(row[r] / t for row, t in zip(stage_s, mean_s, strict=True)) for r in Resource)
    return tuple(t * max(1.0, busy) for t in mean_s)  # means of several runs can exceed 1 slightly


def _settled(done_s: Sequence[float], now_s: float) -> float:
    """Mean seconds between ends in the later half; what has passed, at least, where the play was cut before."""
    half = len(done_s) // 2
    if len(done_s) - 1 > half:
        return (done_s[-1] - done_s[half]) / (len(done_s) - 1 - half)
    return now_s / (len(done_s) + 1)


#: Measured rounds of the barrier over formula (3), and the sum of progress from which sharing is worth it. Tokens have
#: to gain by this factor more than a barrier, whose rounds are predicted with a smaller error.
BARRIER_COST, LEAST_GAIN, TOKENS_MARGIN = 1.02, 1.05, 1.01


@dataclass(frozen=True)
class GateChoice:
    """The chosen gate of a group, and its predicted times.

    `gate` is none, tokens or barrier; `exclusive`: sharing is not worth it, run the jobs one after the other. `turns`
    and `iteration_s` (predicted seconds of an iteration) are by member. `gain` is the sum of normalised progress, 1 for
    jobs one after the other. `barrier_s` is a round with the best turns (inf if there are more jobs than resources).
    """

    gate: str
    exclusive: bool
    turns: tuple[int, ...]
    iteration_s: tuple[float, ...]
    gain: float
    barrier_s: float
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
    if len(alone) == 1:
        return GateChoice("none", True, turns, alone, 1.0, barrier_s, "one job has the resources to itself")
    paces_s = {"barrier": (BARRIER_COST * barrier_s,) * len(alone), "tokens": token_paces(stage_s, alone)}
    gains = {gate: sum(a / t for a, t in zip(alone, iterations, strict=True)) for gate, iterations in paces_s.items()}
    gate = "tokens" if gains["tokens"] > TOKENS_MARGIN * gains["barrier"] else "barrier"
    reason = (
        f"{gains['barrier']:.2f} times as fast as one after the other at a barrier, {gains['tokens']:.2f} at tokens"
    )
    if gains[gate] < LEAST_GAIN:
        return GateChoice("none", True, turns, alone, 1.0, barrier_s, reason)
    return GateChoice(gate, False, turns, paces_s[gate], gains[gate], barrier_s, reason)


def paces(
    gate: str, stage_s: Sequence[Sequence[float]], iteration_s: Sequence[float], turns: Sequence[int]
) -> tuple[float, ...]:
    """Seconds of an iteration of each job at `gate`; `stage_s` and `iteration_s` as for `choose_gate`.

    `turns` matter at a barrier only; at tokens whole stages are held (`token_paces`).

    >>> pair = [(2, 0.5, 1, 0.5), (0.5, 1, 2, 0.5)]
    >>> [round(s, 2) for s in paces("barrier", pair, (3.0, 2.5), (0, 2))]
    [4.59, 4.59]
    """
    alone = _checked(stage_s, iteration_s)
    if len(alone) == 1:
        return alone
    if gate == "barrier":
        return (BARRIER_COST * max(lock_step_s(stage_s, turns), *alone),) * len(alone)
    return token_paces(stage_s, alone)


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
