"""Existing groups, and jobs that join them while GPUs are short: no job changes groups."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

from plait.core.arrays import IntArray
from plait.grouping.algorithm1 import Bucket
from plait.grouping.cache import GroupingCache
from plait.grouping.group import buckets_of
from plait.grouping.model.bucket import Node, Options
from plait.grouping.model.candidates import Candidates


@dataclass(frozen=True)
class Extended:
    """Groups of rows, best priority first inside each, with their turns and summed normalised throughput.

    `short`: GPUs that the groups need beyond the available ones; 0 or less if they fit.
    """

    groups: tuple[tuple[int, ...], ...]
    turns: tuple[tuple[int, ...], ...]
    speedup: tuple[float, ...]
    short: int


def extended(
    jobs: Candidates,
    units: Sequence[Sequence[int]],
    fixed: Sequence[bool],
    short: int,
    options: Options,
    cache: GroupingCache,
) -> Extended:
    """Let jobs that are in none of `units` (groups of rows) join them, cheapest first, while `short` GPUs are missing.

    If GPUs are missing even then, whole units join others, but no two units that are `fixed` to their GPUs. The cost of
    a join is that of Algorithm 1 with known room: the loss of the objective, times GPUs. No job joins a group in which
    all together would do no more than one alone (the guard). Existing groups stay, whatever their worth.
    """
    buckets = buckets_of(jobs, options, cache)
    parts = []
    for bucket in buckets:
        mine = [i for i, unit in enumerate(units) if jobs.gpus[unit[0]] == bucket.gpus]
        parts.append(_Part(bucket, [units[i] for i in mine], [bool(fixed[i]) for i in mine]))
    for movable in (_Part.singles, _Part.loose):
        heap = [offer for i, part in enumerate(parts) for one in movable(part) if (offer := part.offer(i, one))]
        heapq.heapify(heap)
        while heap and short > 0:
            _, i, one, unit, versions = heapq.heappop(heap)
            part = parts[i]
            if one not in part.units:
                continue
            if (part.versions[one], part.versions.get(unit)) == versions:
                part.join(one, unit)
                short -= part.bucket.gpus
            elif offer := part.offer(i, one):
                heapq.heappush(heap, offer)
    found = sorted(group for part in parts for group in part.groups())
    return Extended(tuple(f[0] for f in found), tuple(f[1] for f in found), tuple(f[2] for f in found), short)


class _Part:
    """The groups of one GPU count, by a number each, while one joins another. The first are the initial ones."""

    def __init__(self, bucket: Bucket, units: Sequence[Sequence[int]], fixed: Sequence[bool]) -> None:
        self.bucket = bucket
        rows: IntArray = bucket.jobs
        self.class_of = dict(zip(rows.tolist(), bucket.model.of_job.tolist(), strict=True))
        together = {row for unit in units for row in unit}
        alone = [[row] for row in rows.tolist() if row not in together]
        self.units = {i: list(unit) for i, unit in enumerate([*units, *alone])}
        self.versions = dict.fromkeys(self.units, 0)
        self.fixed = {i for i, flag in enumerate(fixed) if flag}
        self.there = len(units)

    def singles(self) -> list[int]:
        """Jobs that were in no group."""
        return [one for one in self.units if one >= self.there]

    def loose(self) -> list[int]:
        """Groups that may move."""
        return [one for one in self.units if one not in self.fixed]

    def node(self, *units: int) -> Node:
        """Groups together as classes."""
        return tuple(sorted(self.class_of[row] for unit in units for row in self.units[unit]))

    def offer(self, part: int, one: int) -> tuple[float, int, int, int, tuple[int, int | None]] | None:
        """The cheapest group to join: (cost, part, joining unit, group, versions of both); None if there is none."""
        options, gpus = self.bucket.model.options, self.bucket.gpus
        room = options.max_jobs - len(self.units[one])
        able = [i for i in self.units if i < self.there and i != one and len(self.units[i]) <= room]
        nodes = [self.node(i, one) for i in able]
        best: tuple[float, int] | None = None
        for i, node, worth in zip(able, nodes, self.bucket.known.worth(nodes), strict=True):
            if worth.value > 0.0 and worth.speedup > options.floor:
                most = 1.0 if options.objective == "efficiency" else float(len(node))
                cost = (most - worth.value) * gpus
                if best is None or (cost, i) < best:
                    best = cost, i
        if best is None:
            return None
        return best[0], part, one, best[1], (self.versions[one], self.versions[best[1]])

    def join(self, one: int, unit: int) -> None:
        """Add one group to another."""
        self.units[unit] += self.units.pop(one)
        self.versions[unit] += 1
        self.versions[one] += 1
        if one in self.fixed:
            self.fixed.add(unit)

    def groups(self) -> list[tuple[tuple[int, ...], tuple[int, ...], float]]:
        """All groups of the part: rows, turns, speed-up."""
        known = self.bucket.known
        worth = known.worth([self.node(unit) for unit in self.units])
        out = []
        for unit, one in zip(self.units.values(), worth, strict=True):
            members = tuple(sorted(unit))
            out.append((members, known.arranged(tuple(self.class_of[row] for row in members))[0], one.speedup))
        return out
