"""Predict paces at tokens: every resource is a queue that serves whole stages, first come first served.

The bound of `gate_choice` is the capacity of each resource. It ignores that a job with a short GPU stage waits behind
one with a long stage in each iteration. Here the stages are simulated through the queues until the paces settle. Jobs
with yield points wait less: at most a quantum.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from plait.core.resources import Resource

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
