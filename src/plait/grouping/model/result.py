"""From kinds of groups back to jobs: the members of each group and its figures."""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

from plait.grouping.algorithm1 import Bucket
from plait.grouping.exact.bound import bound_of
from plait.grouping.model.bucket import Node


@dataclass(frozen=True)
class Grouping:
    """A grouping; columns by group, groups in order of their best job.

    `groups` rows of the candidates, best priority first; `turns` the turn of each member, the first's is 0;
    `iteration_s` T with interference (solo time for a job alone); `efficiency` gamma, formula (4), and `speedup` summed
    normalised throughput. `total` is the objective over all groups and `bound` no grouping into as many groups can
    exceed, by `bound_kind`. `method` is the method used, `why` the reason in a sentence, `split` counts groups that the
    guard took apart.
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
        """Relative distance of `total` below `bound`; the distance to the optimum is at most this."""
        return max(0.0, 1.0 - self.total / self.bound) if self.bound > 0 else 0.0


def assembled(
    buckets: Sequence[Bucket], method: str, why: str, split: int, now: Sequence[int] | None = None
) -> Grouping:
    """Classes back to jobs, and what is known of each group; `now` as for `expand`, one entry a candidate."""
    found: list[tuple[tuple[int, ...], tuple[int, ...], float, float, float]] = []
    total, bound, kinds = 0.0, 0.0, []
    for bucket in buckets:
        worth = bucket.known.worth(bucket.nodes)
        total += math.fsum(w.value for w in worth)
        most, kind = bound_of(bucket)
        bound += most
        kinds.append(kind)
        rows, of_job = bucket.jobs.tolist(), bucket.model.of_job.tolist()
        for known, members in zip(worth, expand(bucket, now), strict=True):
            positions = sorted(members)
            turns, efficiency = bucket.known.arranged(tuple([of_job[position] for position in positions]))
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


def expand(bucket: Bucket, now: Sequence[int] | None = None) -> list[tuple[int, ...]]:
    """Positions of the jobs in each node, in the order of its classes.

    `now[row]` is the present group of a candidate, -1 for none: of equal jobs, members of one group stay together
    (`stayed`). The others, in priority order, take a place of their class in the group that was opened first, and open
    one only if no open group wants them, so that the best priorities come together.
    """
    if bucket.rows is not None:
        of_job = bucket.model.of_job
        return [tuple(sorted(group, key=lambda i: (of_job[i], i))) for group in bucket.rows]
    count = len(bucket.model.counts)
    of_job = bucket.model.of_job.tolist()
    members: list[list[tuple[int, int]]] = [[] for _ in bucket.nodes]
    unopened: list[deque[int]] = [deque() for _ in range(count)]
    wanted: list[deque[int]] = [deque() for _ in range(count)]
    placed: set[int] = set()
    if now is not None:
        for g, stay in sorted(stayed(bucket, of_job, now).items(), key=lambda item: min(item[1])):
            members[g] = [(of_job[position], position) for position in stay]
            placed.update(stay)
            _want(wanted, bucket.nodes[g], [c for c, _ in members[g]], g)
    for g, node in enumerate(bucket.nodes):
        if not members[g]:
            for c in dict.fromkeys(node):
                unopened[c].append(g)
    for position, c in enumerate(of_job):
        if position in placed:
            continue
        if wanted[c]:
            g = wanted[c].popleft()
        else:
            g = unopened[c].popleft()
            while members[g]:
                g = unopened[c].popleft()
            _want(wanted, bucket.nodes[g], [c], g)
        members[g].append((c, position))
    return [tuple(position for _, position in sorted(some)) for some in members]


def _want(wanted: Sequence[deque[int]], node: Node, there: Sequence[int], g: int) -> None:
    """Note the free places of group `g` next to these classes."""
    others = list(node)
    for c in there:
        others.remove(c)
    for c in others:
        wanted[c].append(g)


def stayed(bucket: Bucket, of_job: Sequence[int], now: Sequence[int]) -> dict[int, tuple[int, ...]]:
    """Jobs (positions) that stay together in a node: members of one present group, as many as its classes allow.

    `of_job` are the classes of the bucket's jobs; `now` as for `expand`. First present groups that are among the nodes
    unchanged, then groups that keep most members.
    """
    present: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for position, row in enumerate(bucket.jobs.tolist()):
        if now[row] >= 0:
            present[now[row]].append((of_job[position], position))
    found: dict[int, tuple[int, ...]] = {}
    free: dict[Node, list[int]] = defaultdict(list)
    for g in reversed(range(len(bucket.nodes))):
        free[bucket.nodes[g]].append(g)
    changed = []
    for unit in map(sorted, present.values()):
        same = free.get(tuple(c for c, _ in unit))
        if same:
            found[same.pop()] = tuple(position for _, position in unit)
        else:
            changed.append(unit)
    for size in range(max(map(len, changed), default=0), 0, -1):
        holds: dict[Node, deque[int]] = defaultdict(deque)
        for g in sorted(g for some in free.values() for g in some if g not in found):
            for part in dict.fromkeys(combinations(bucket.nodes[g], size)):
                holds[part].append(g)
        still = []
        for unit in changed:
            for stay in combinations(unit, size):
                fits = holds[tuple(c for c, _ in stay)]
                while fits and fits[0] in found:
                    fits.popleft()
                if fits:
                    found[fits[0]] = tuple(position for _, position in stay)
                    break
            else:
                still.append(unit)
        changed = still
    return found
