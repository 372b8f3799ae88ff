"""The entry point of grouping: which jobs share GPUs, by which method, and a bound on the distance to the optimum.

Next to it: groups that exist and jobs that join them while GPUs are short, where no job changes groups (`extended`),
and the unpack guard, which splits a group that would run slower than its members one after another. `completion_guard`
is the margin by which a group has to be faster, where completion times count.
"""

from __future__ import annotations

import heapq
import math
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from typing import Literal, TypeAlias, get_args

import numpy as np

from plait.core.arrays import IntArray
from plait.core.errors import InputError, suggest
from plait.core.highs import HAVE_HIGHS
from plait.grouping.algorithm1 import MOST_NODES, MOST_TO_IMPROVE, Bucket, algorithm1, classes_of, consecutive, improved
from plait.grouping.bucket import (
    OBJECTIVES,
    Candidates,
    ClassedBucket,
    GroupingCache,
    GroupingOptions,
    KnownWorth,
    LastingClasses,
    Node,
    Objective,
)
from plait.grouping.exact import MOST_KINDS, bound_of, exact_groups, fewest_is_known, kinds_of_groups, round_robin
from plait.grouping.times import ORDERS, Order


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


#: A group: its members, their turns, `iteration_s`, `efficiency` and `speedup` as in `Grouping`.
Known: TypeAlias = tuple[tuple[int, ...], tuple[int, ...], float, float, float]


def assembled(
    buckets: Sequence[Bucket],
    method: str,
    why: str,
    split: int,
    cache: GroupingCache,
    now: Sequence[int] | None,
    bounded: bool,
) -> Grouping:
    """Classes back to jobs, and what is known of each group; `now` as for `expand`, one entry a candidate."""
    found: list[Known] = []
    total = 0.0
    bounds = [bound_of(bucket) for bucket in buckets] if bounded else [(math.inf, "none")]
    for bucket in buckets:
        rows, seen = bucket.jobs.tolist(), {-1: -1}
        # The numbers of present groups change from decision to decision; only who is together counts.
        together = None if now is None else tuple([seen.setdefault(now[row], len(seen)) for row in rows])
        order = None if bucket.rows is None else tuple(bucket.rows)
        key = ("jobs", bucket.known, bucket.model.of_job.tobytes(), tuple(bucket.nodes), order, together)
        make = partial(_of_jobs, bucket, now)
        value, groups = cache.remember(key, make) if len(rows) <= MOST_REMEMBERED else make()
        total += value
        found += [(tuple([rows[position] for position in one[0]]), *one[1:]) for one in groups]
    found.sort()
    return Grouping(
        groups=tuple([f[0] for f in found]),
        turns=tuple([f[1] for f in found]),
        iteration_s=tuple([f[2] for f in found]),
        efficiency=tuple([f[3] for f in found]),
        speedup=tuple([f[4] for f in found]),
        total=total,
        bound=max(sum(most for most, _ in bounds), total),
        bound_kind="+".join(dict.fromkeys(kind for _, kind in bounds)),
        method=method,
        why=why,
        split=split,
    )


def _of_jobs(bucket: Bucket, now: Sequence[int] | None) -> tuple[float, list[Known]]:
    """The objective over a bucket, and its groups as positions in place of rows."""
    worth, of_job = bucket.known.worth(bucket.nodes), bucket.model.of_job.tolist()
    found: list[Known] = []
    for known, members in zip(worth, expand(bucket, now), strict=True):
        positions = tuple(sorted(members))
        turns, efficiency = bucket.known.arranged(tuple([of_job[position] for position in positions]))
        found.append((positions, turns, known.iteration_s, efficiency, known.speedup))
    return math.fsum(w.value for w in worth), found


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
        parts = {tuple([c for c, _ in stay]) for unit in changed for stay in combinations(unit, size)}
        rooms: dict[Node, list[int]] = {part: [] for part in parts}
        for node, some in free.items():
            for part in parts.intersection(combinations(node, size)):
                rooms[part] += [g for g in some if g not in found]
        holds = {part: deque(sorted(some)) for part, some in rooms.items()}
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


Method = Literal["auto", "blossom", "exact", "greedy", "consecutive"]

#: Exact grouping pays for at most so many kinds, and at least so many jobs for each eight kinds.
EXACT_CLASSES, EXACT_JOBS = 32, 200


def group(
    jobs: Candidates,
    max_jobs: int = 4,
    objective: Objective = "efficiency",
    method: Method = "auto",
    *,
    order: Order = "best",
    idle_slots: bool = True,
    interference: tuple[float, ...] = (1.0,),
    guard: float | None = 0.0,
    gpus_available: int | None = None,
    memory_limit_bytes: float | None = None,
    memory_kept: float = 1.0,
    improve: bool | None = None,
    cache: GroupingCache | None = None,
    now: Sequence[int] | None = None,
    bounded: bool = True,
) -> Grouping:
    """Group jobs of equal GPU count, at most `max_jobs` together (Muri, section 4 and Algorithm 1).

    method          "blossom": ceil(log2 max_jobs) rounds of maximum-weight matching, as published
                    "greedy": the same with greedy matching and exchanges
                    "exact": the best groups of up to max_jobs jobs, for few kinds of jobs (needs `plait[sim]`)
                    "consecutive": no matching, the next max_jobs jobs in priority order
                    "auto": chosen for each GPU count, see `Grouping.why`
    objective       "efficiency" (gamma) or "speedup" (summed normalised throughput)
    order           stage order of a group; "worst" is the paper's ablation
    interference    slow-down of a group of 1, 2, ... jobs beyond its schedule; the last counts for larger ones
    guard           split groups whose speedup is <= 1 + guard; None leaves them
    gpus_available  merge only while the groups need more GPUs than that, cheapest merges first (none or
                    less than none: as far as it goes); None (the paper) merges whatever is matched
    memory_limit_bytes  most GPU memory on each GPU that members of a group may hold together
    memory_kept         part of its peak that a member holds while another has its own; 1: peaks add up
    improve         local search after the rounds; None: yes if the method is "auto"
    now             the group that each job is in at present, -1 for none: of equal jobs, present sharers stay together.
                    It changes who is in which group, and not how good the groups are
    bounded         find the bound; else it is infinite

    The result depends on the jobs and their order of priority only: equal jobs are interchangeable, and of equal ones
    the one with the better priority joins the group that holds the best priority. Raises `InputError`.

    >>> stages = np.array([[2.0, 1.0], [2.0, 1.0], [1.0, 2.0], [1.0, 2.0]])
    >>> found = group(Candidates(stages, stages.sum(axis=1), np.ones(4)), max_jobs=2)
    >>> found.groups, found.turns, found.iteration_s, found.total
    (((0, 2), (1, 3)), ((0, 1), (0, 1)), (3.0, 3.0), 2.0)
    """
    options = GroupingOptions(
        max_jobs,
        objective,
        order,
        idle_slots,
        interference,
        guard,
        float("inf") if memory_limit_bytes is None else float(memory_limit_bytes),
        memory_kept,
    )
    checked(options, jobs, method)
    cache = GroupingCache() if cache is None else cache
    buckets = buckets_of(jobs, options, cache, method in ("blossom", "greedy", "consecutive") and not bounded)
    need = int(jobs.gpus.sum())
    if max_jobs == 1 or (gpus_available is not None and need <= gpus_available):
        fit = f"all jobs fit alone, {need} GPUs of {gpus_available}"
        return assembled(
            buckets, "alone", "groups of one were requested" if max_jobs == 1 else fit, 0, cache, now, bounded
        )
    why = _choose(buckets, method)
    if method == "consecutive":
        consecutive(buckets, gpus_available)
    else:
        whole = [b for b in buckets if gpus_available is None and b.method == "exact" and fewest_is_known(b.model)]
        algorithm1([b for b in buckets if b not in whole], gpus_available, cache)
        for bucket in whole:
            bucket.nodes = round_robin(bucket.model.counts, -(-len(bucket.jobs) // max_jobs))
    for bucket in buckets:
        _better(bucket, method == "auto" if improve is None else improve, cache)
    split = sum(apply_guard(bucket) for bucket in buckets)
    return assembled(buckets, "+".join(sorted({b.method for b in buckets})), why, split, cache, now, bounded)


def _choose(buckets: Sequence[Bucket], method: Method) -> str:
    """Set the method of each bucket; return a sentence with the reason."""
    reasons = []
    for bucket in buckets:
        jobs, classes = len(bucket.jobs), int(np.count_nonzero(bucket.model.counts))
        about = f"{jobs} jobs of {classes} kinds on {bucket.gpus} GPUs"
        if method == "auto":
            few = classes <= EXACT_CLASSES and jobs >= EXACT_JOBS * max(1, classes // 8)
            bucket.method = "exact" if few and HAVE_HIGHS else "greedy" if jobs > MOST_NODES else "blossom"
            reason = {"exact": "few kinds of many jobs", "greedy": "too many to match exactly"}
            reasons.append(f"{about}: {bucket.method}, {reason.get(bucket.method, 'small enough to match exactly')}")
        elif method == "exact" and kinds_of_groups(classes, bucket.model.options.max_jobs) > MOST_KINDS:
            bucket.method = "greedy" if jobs > MOST_NODES else "blossom"
            reasons.append(f"{about}: {bucket.method}, too many kinds for exact")
        else:
            bucket.method = method
            reasons.append(f"{about}: {method}, as requested")
        if jobs > MOST_NODES and bucket.method in ("blossom", "greedy"):
            reasons[-1] += f", in parts of at most {MOST_NODES}"
        bucket.greedy = bucket.method == "greedy" or (bucket.method == "exact" and jobs > MOST_NODES)
    return "; ".join(reasons)


def _better(bucket: Bucket, search: bool, cache: GroupingCache) -> None:
    """Replace the groups by exact grouping or local search; as many of them."""
    if bucket.method == "exact":
        found = exact_groups(bucket.model, bucket.nodes, cache)
        bucket.nodes, bucket.bound = found.nodes, (len(found.nodes), found.bound)
    elif search and len(bucket.nodes) <= MOST_TO_IMPROVE:
        nodes = improved(bucket.model, bucket.nodes, cache)
        if bucket.rows is None or nodes != sorted(bucket.nodes):
            bucket.nodes, bucket.rows = nodes, None


def checked(options: GroupingOptions, jobs: Candidates, method: str = "auto") -> None:
    """Raise `InputError` for invalid `options` or `method`, or options that do not fit `jobs`."""
    for name, value, known in (
        ("method", method, get_args(Method)),
        ("objective", options.objective, OBJECTIVES),
        ("order", options.order, ORDERS),
    ):
        if value not in known:
            raise InputError(f"unknown {name} {value!r}; {suggest(value, known)}")
    resources = jobs.stage_s.shape[1]
    most = resources if jobs.shares is None else 2 * resources
    if not 1 <= options.max_jobs <= most:
        why = "the number of resources (twice that with shares)" if jobs.shares is None else "twice the resources"
        raise InputError(f"max_jobs must be 1 to {most}, {why}, got {options.max_jobs}")
    if not options.interference or not all(f > 0 and math.isfinite(f) for f in options.interference):
        raise InputError(f"interference must be positive factors for 1, 2, ... jobs, got {options.interference}")
    if options.guard is not None and not options.guard > -1:
        raise InputError(f"guard must be a margin > -1, or None for no guard, got {options.guard}")
    if not options.memory_limit_bytes >= 0:
        raise InputError(f"memory_limit_bytes must be >= 0, got {options.memory_limit_bytes}")
    if not 0 <= options.memory_kept <= 1:
        raise InputError(f"memory_kept is a part of a peak from 0 to 1, got {options.memory_kept}")


#: Jobs of a bucket up to which classes and groups are remembered: the same thousands of jobs rarely come again.
MOST_REMEMBERED = 1000


def buckets_of(jobs: Candidates, options: GroupingOptions, cache: GroupingCache, lasting: bool = False) -> list[Bucket]:
    """`jobs` by GPU count, in order of first appearance, each bucket modelled under `options`.

    `lasting`: with `LastingClasses` where that is possible.
    """
    buckets = []
    lasting = lasting and jobs.costs is None and jobs.shares is None
    rows_of: dict[int, list[int]] = {}
    for row, gpus in enumerate(jobs.gpus.tolist()):
        rows_of.setdefault(gpus, []).append(row)
    for gpus, positions in rows_of.items():
        rows = np.array(positions, dtype=np.int64)
        if lasting:
            form = ("lasting", options, gpus, jobs.stage_s.shape[1], jobs.memory_bytes is None)
            model, known = cache.remember(form, LastingClasses).of(options, jobs, [jobs.keys[row] for row in positions])
        else:
            mine = jobs.some(rows)
            columns = mine.stage_s, mine.iteration_s, mine.memory_bytes, mine.shares, mine.costs
            model = ClassedBucket.of(options, *columns)
            known = cache.remember(("known", model.key), partial(KnownWorth, model))
        buckets.append(Bucket(gpus, rows, model, known, model.nodes_of_jobs()))
    return buckets


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
    options: GroupingOptions,
    cache: GroupingCache,
) -> Extended:
    """Let jobs that are in none of `units` (groups of rows) join them, cheapest first, while `short` GPUs are missing.

    If GPUs are missing even then, whole units join others, but no two units that are `fixed` to their GPUs. The cost of
    a join is that of Algorithm 1 with known room: the loss of the objective, times GPUs. No job joins a group in which
    all together would do no more than one alone (the guard). Existing groups stay, whatever their worth.
    """
    buckets = buckets_of(jobs, options, cache, lasting=True)
    parts = []
    for bucket in buckets:
        mine = [i for i, unit in enumerate(units) if jobs.gpus[unit[0]] == bucket.gpus]
        parts.append(_Part(bucket, [units[i] for i in mine], [bool(fixed[i]) for i in mine]))
    for movable in (_Part.singles, _Part.loose):
        if short <= 0:
            break
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
        return [one for one in self.units if one >= self.there]

    def loose(self) -> list[int]:
        return [one for one in self.units if one not in self.fixed]

    def node(self, *units: int) -> Node:
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
        self.units[unit] += self.units.pop(one)
        self.versions[unit] += 1
        self.versions[one] += 1
        if one in self.fixed:
            self.fixed.add(unit)

    def groups(self) -> list[tuple[tuple[int, ...], tuple[int, ...], float]]:
        known = self.bucket.known
        worth = known.worth([self.node(unit) for unit in self.units])
        out = []
        for unit, one in zip(self.units.values(), worth, strict=True):
            members = tuple(sorted(unit))
            out.append((members, known.arranged(tuple(self.class_of[row] for row in members))[0], one.speedup))
        return out


#: Partitions are tried up to this size (52 of them for five jobs); larger groups become singles.
MOST_TO_TRY = 5


def completion_guard(jobs: float, waiting: float) -> float:
    """By how much a group must exceed the throughput of one job alone, so that the sum of completion times falls.

    `jobs` members of equal rate, and `waiting` jobs in line behind their GPUs. One member after another ends the best
    of them sooner; the group brings forward the others and all that wait. plait's own; 0 where many wait, 0.6 for four
    members and an empty line.

    >>> [round(completion_guard(k, m), 6) for k, m in ((2, 0), (3, 0), (4, 0), (4, 5), (2, 3), (4, 20))]
    [0.333333, 0.5, 0.6, 0.2, 0.111111, 0.066667]
    """
    return (jobs - 1) / (jobs + 1 + 2 * waiting)


def apply_guard(bucket: Bucket) -> int:
    """Split the groups of a bucket whose summed normalised throughput is <= 1 + margin; how many there were."""
    model = bucket.model
    if model.options.guard is None or not bucket.nodes:
        return 0
    floor = model.options.floor
    worth = bucket.known.worth(bucket.nodes)
    bad = {g for g, node in enumerate(bucket.nodes) if len(node) > 1 and worth[g].speedup <= floor}
    if not bad:
        return 0
    if bucket.rows is not None:
        kept: list[tuple[int, ...]] = []
        for g, group in enumerate(bucket.rows):
            classes = tuple(model.of_job[list(group)].tolist())
            kept += (
                [tuple(group[i] for i in part) for part in _parts(bucket.known, floor, classes)]
                if g in bad
                else [group]
            )
        bucket.rows = kept
        bucket.nodes = [classes_of(bucket, group) for group in bucket.rows]
        return len(bad)
    nodes: list[Node] = []
    for g, node in enumerate(bucket.nodes):
        nodes += [tuple(node[i] for i in part) for part in _parts(bucket.known, floor, node)] if g in bad else [node]
    bucket.nodes = sorted(nodes)
    return len(bad)


def _parts(known: KnownWorth, floor: float, classes: Node) -> list[tuple[int, ...]]:
    """The best way to split a group, as positions: every part passes, minimum parts, then the highest objective."""
    jobs = len(classes)
    alone: list[tuple[int, ...]] = [(i,) for i in range(jobs)]
    if not 2 < jobs <= MOST_TO_TRY:
        return alone
    ways = [way for way in _partitions(list(range(jobs))) if 1 < len(way) < jobs]
    sets = sorted({part for way in ways for part in way})
    found = dict(zip(sets, known.worth([tuple(sorted(classes[i] for i in part)) for part in sets]), strict=True))
    passes = {part: len(part) == 1 or found[part].speedup > floor for part in sets}
    fine = [way for way in ways if all(passes[part] for part in way)]
    return min(fine, key=lambda way: (len(way), -sum(found[part].value for part in way), way), default=alone)


def _partitions(items: list[int]) -> Iterator[list[tuple[int, ...]]]:
    if not items:
        yield []
        return
    head, *tail = items
    for way in _partitions(tail):
        yield [(head,), *way]
        for i, part in enumerate(way):
            yield [*way[:i], (head, *part), *way[i + 1 :]]
