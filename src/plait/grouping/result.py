"""From kinds of groups back to jobs: who sits where, and what is known of each group."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from plait.grouping.bound import bound_of
from plait.grouping.rounds import Bucket


@dataclass(frozen=True)
class Grouping:
    """Who shares GPUs with whom; everything by group, groups in order of their best job.

    `groups` rows of the candidates, best priority first; `turns` the turn of each member, the first's is 0;
    `iteration_s` T with interference (solo time for a job alone); `efficiency` gamma, formula (4), and `speedup`
    summed normalised throughput. `total` is the objective over all groups and `bound` no grouping into as many
    groups can exceed, by `bound_kind`. `method` is what was used, `why` says so in a sentence, `split` counts groups
    that the guard took apart.
    """

    groups: tuple[tuple[int, ...], ...]
    turns: tuple[tuple[int, ...], ...]
    iteration_s: tuple[float, ...]
    efficiency: tuple[float, ...]
    speedup: tuple[float, ...]
    total: float
    bound: float
    bound_kind: str
    method: str
    why: str
    split: int

    @property
    def gap(self) -> float:
        """How far below the bound, as a part of it; the truth is this or better."""
        return max(0.0, 1.0 - self.total / self.bound) if self.bound > 0 else 0.0


def assembled(buckets: Sequence[Bucket], method: str, why: str, split: int) -> Grouping:
    """Classes back to jobs, and what is known of each group."""
    found: list[tuple[tuple[int, ...], tuple[int, ...], float, float, float]] = []
    total, bound, kinds = 0.0, 0.0, []
    for bucket in buckets:
        worth = bucket.known.worth(bucket.nodes)
        total += math.fsum(w.value for w in worth)
        most, kind = bound_of(bucket)
        bound += most
        kinds.append(kind)
        rows, of_job = bucket.jobs.tolist(), bucket.model.of_job.tolist()
        for known, seats in zip(worth, expand(bucket), strict=True):
            positions = sorted(seats)
            turns, efficiency = bucket.known.seated(tuple([of_job[position] for position in positions]))
            group = tuple([rows[position] for position in positions])
            found.append((group, turns, known.iteration_s, efficiency, known.speedup))
    found.sort()
    return Grouping(
        groups=tuple(f[0] for f in found),
        turns=tuple(f[1] for f in found),
        iteration_s=tuple(f[2] for f in found),
        efficiency=tuple(f[3] for f in found),
        speedup=tuple(f[4] for f in found),
        total=total,
        bound=max(bound, total),
        bound_kind="+".join(dict.fromkeys(kinds)),
        method=method,
        why=why,
        split=split,
    )


def expand(bucket: Bucket) -> list[tuple[int, ...]]:
    """Positions of the jobs in each node, in the order of its classes.

    Jobs in priority order take a seat of their class in the group that was opened first, and open one only if
    no open group wants them, so that the best priorities come together.
    """
    if bucket.rows is not None:
        of_job = bucket.model.of_job
        return [tuple(sorted(group, key=lambda i: (of_job[i], i))) for group in bucket.rows]
    count = len(bucket.model.counts)
    unopened: list[deque[int]] = [deque() for _ in range(count)]
    wanted: list[deque[int]] = [deque() for _ in range(count)]
    for g, node in enumerate(bucket.nodes):
        for c in dict.fromkeys(node):
            unopened[c].append(g)
    seats: list[list[tuple[int, int]]] = [[] for _ in bucket.nodes]
    for position, c in enumerate(bucket.model.of_job.tolist()):
        if wanted[c]:
            g = wanted[c].popleft()
        else:
            g = unopened[c].popleft()
            while seats[g]:
                g = unopened[c].popleft()
            others = list(bucket.nodes[g])
            others.remove(c)
            for other in others:
                wanted[other].append(g)
        seats[g].append((c, position))
    return [tuple(position for _, position in sorted(seated)) for seated in seats]
