"""Exact grouping where many jobs are of few kinds.

Equal jobs are interchangeable, so a grouping is how often each kind of group is used: a linear program whose
columns are made as they are needed, then an integer program over the columns that can matter. The linear program's
optimum bounds every grouping into as many groups.

Linear and integer programs over groups of classes, solved by HiGHS.

    maximise  sum_S value_S x_S
    so that   every class is used as often as there are jobs of it, and there are as many groups as wanted

One column x_S for each kind of group S that is offered.

Upper bounds on every grouping of a bucket into the same number of groups.

trivial   every group has gamma <= min(1, p/k) and a job of a group at most its own share of it
matching  a group of p jobs is pairs and, if p is odd, one more. Its T is at least the T of each of its pairs, so it is
          worth at most what its pairs are worth as groups of two plus the job left over alone; and all pairs
          together are a matching, worth at most the maximum-weight matching of the first round
exact     the linear program over all kinds of groups, or the integer program if it had all that matter
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from plait.core.arrays import FloatArray, IntArray
from plait.core.compile_policy import compiled, run
from plait.core.highs import engine, has_point, make_integers, need_highs, rounded
from plait.core.jit import plain
from plait.grouping import kernels
from plait.grouping.algorithm1 import MOST_NODES, MOST_TO_IMPROVE, Bucket, improved
from plait.grouping.bucket import ClassedBucket, GroupingCache, Node

#: The use of HiGHS, in messages.
EXACT = "exact grouping"
#: Cost of a job or a group that the columns offered so far cannot cover; far above any group's value.
UNCOVERED = 1e4


class Relaxation:
    """The relaxation, x_S >= 0, to which columns are added between solutions."""

    def __init__(self, counts: IntArray, groups: int) -> None:
        need_highs(EXACT)
        self.nodes: list[Node] = []
        self._known: set[Node] = set()
        self._rows = np.array([*counts.tolist(), groups], dtype=np.float64)
        self._highs = engine()
        count = len(self._rows)
        none, nothing = np.zeros(0, dtype=np.int32), np.zeros(0)
        self._highs.addRows(count, self._rows, self._rows, 0, np.zeros(count, dtype=np.int32), none, nothing)
        each = np.arange(count, dtype=np.int32)
        ones = np.ones(count)
        self._highs.addCols(count, ones * UNCOVERED, ones * 0.0, ones * np.inf, count, each, each, ones)

    def add(self, nodes: Sequence[Node], values: Sequence[float]) -> int:
        """Offer more kinds of groups; how many were new."""
        new = [(n, v) for n, v in dict(zip(nodes, values, strict=True)).items() if n not in self._known]
        if new:
            fresh = [n for n, _ in new]
            self._known.update(fresh)
            self.nodes += fresh
            _add_columns(self._highs, fresh, [v for _, v in new], len(self._rows) - 1)
        return len(new)

    def solve(self) -> tuple[float, FloatArray, FloatArray]:
        """The optimum, how often each kind of group is taken, and the prices of the classes and of a group."""
        self._highs.run()
        found = self._highs.getSolution()
        x = np.asarray(found.col_value)[len(self._rows) :]
        return -float(self._highs.getInfo().objective_function_value), x, -np.asarray(found.row_dual)

    @property
    def covered(self) -> bool:
        """Whether the last solution places every job."""
        return bool(np.asarray(self._highs.getSolution().col_value)[: len(self._rows)].max() < 1e-6)


def integer_program(
    nodes: Sequence[Node], values: Sequence[float], counts: IntArray, groups: int, gap: float, most_nodes: int
) -> tuple[list[Node] | None, float]:
    """The best of the offered groups, within an absolute `gap` of the best, and a bound on the best.

    No groups if the jobs cannot be placed in the offered ones. The search stops after `most_nodes` branchings (not
    after a time, which would not be repeatable).
    """
    highs = engine(mip_abs_gap=gap, mip_rel_gap=0.0, mip_max_nodes=most_nodes)
    rows = np.array([*counts.tolist(), groups], dtype=np.float64)
    none = np.zeros(0, dtype=np.int32)
    highs.addRows(len(rows), rows, rows, 0, np.zeros(len(rows), dtype=np.int32), none, np.zeros(0))
    _add_columns(highs, nodes, values, len(counts))
    make_integers(highs, len(nodes))
    highs.run()
    info = highs.getInfo()
    if not has_point(info):
        return None, float("inf")
    return [nodes[s] for s in np.repeat(np.arange(len(nodes)), rounded(highs)).tolist()], -float(info.mip_dual_bound)


def _add_columns(highs: Any, nodes: Sequence[Node], values: Sequence[float], group_row: int) -> None:
    start: list[int] = []
    index: list[int] = []
    often: list[int] = []
    for node in nodes:
        start.append(len(index))
        for c in dict.fromkeys(node):
            index.append(c)
            often.append(node.count(c))
        index.append(group_row)
        often.append(1)
    count = len(nodes)
    highs.addCols(
        count,
        -np.asarray(values, dtype=np.float64),
        np.zeros(count),
        np.full(count, np.inf),
        len(index),
        np.array(start, dtype=np.int32),
        np.array(index, dtype=np.int32),
        np.array(often, dtype=np.float64),
    )


#: A group is offered if its worth exceeds its members' prices by this much.
TOLERANCE = 1e-7
#: More rounds of pricing than have been needed; the bound stays valid if they do not suffice.
MOST_ROUNDS = 100
#: Up to so many groups the integer program takes all of them; above, the linear solution rounded down goes first.
WHOLE = 120
#: Kinds of groups that one integer program is given at most.
MOST_COLUMNS = 6000
#: How far from the best the integer program may stop, as a part of the bound.
GAP = 1e-4
MOST_BRANCHES = 400
#: Kinds of groups that are priced in under a second.
MOST_KINDS = 6_000_000


@dataclass(frozen=True)
class Exact:
    """Groups in canonical order, their objective, and an upper bound for as many groups."""

    nodes: list[Node]
    total: float
    bound: float


def kinds_of_groups(classes: int, max_jobs: int) -> int:
    """How many different groups of 1 to `max_jobs` jobs there are.

    >>> kinds_of_groups(8, 4), kinds_of_groups(32, 4)
    (494, 58904)
    """
    return math.comb(classes + max_jobs, max_jobs) - 1


def exact_groups(model: ClassedBucket, start: Sequence[Node], cache: GroupingCache) -> Exact:
    """The best way to put the jobs of a bucket into as many groups as `start` has; never worse than `start`.

    Exact up to a part `GAP` of the bound if there are at most `WHOLE` groups and `MOST_COLUMNS` kinds of groups that
    can matter; otherwise within `Exact.bound`. Raises `MissingExtra` without HiGHS.
    """
    need_highs(EXACT)
    given = tuple(sorted(start))
    return cache.remember(("exact", model.key, given), lambda: _exact_groups(model, given, cache))


def _exact_groups(model: ClassedBucket, start: Sequence[Node], cache: GroupingCache) -> Exact:
    few = len(start) <= WHOLE
    known = [improved(model, start, cache) if few else list(start)]
    reached = _total(model, known[0])
    program, bound, x, price = _relaxed(model, len(start), known[0] if few else _sample(model, cache))
    if program.covered:
        found, most = _whole(model, len(start), program, x, price, bound, reached)
        bound = max(min(bound, most), reached)
        known += [] if found is None else [sorted(found)]
    best = max(known, key=lambda nodes: _total(model, nodes))
    if _total(model, best) < (1.0 - 10 * GAP) * bound and len(start) <= MOST_TO_IMPROVE:
        known += [improved(model, nodes, cache) for nodes in list(known)]
        best = max(known, key=lambda nodes: _total(model, nodes))
    total = _total(model, best)
    return Exact(best, total, max(bound, total))


def fewest_is_known(model: ClassedBucket) -> bool:
    """Whether any jobs may be together, so that ceil(jobs / max_jobs) groups are the minimum."""
    most_memory = float(model.rows[:, 3 * model.resources + kernels.MEMORY].max())
    if model.shared or model.options.max_jobs > model.resources:
        return False
    return most_memory * model.options.max_jobs <= model.options.memory_limit_bytes


def _total(model: ClassedBucket, nodes: Sequence[Node]) -> float:
    return math.fsum(model.values(nodes).value.tolist())


def _sample(model: ClassedBucket, cache: GroupingCache) -> list[Node]:
    """Good groups of a smaller bucket with about the same mix, to start from."""
    counts = np.maximum(1, np.rint(model.counts * min(1.0, 160 / model.counts.sum()))).astype(np.int64)
    return improved(model, round_robin(counts, -(-int(counts.sum()) // model.options.max_jobs)), cache)


def round_robin(counts: IntArray, groups: int) -> list[Node]:
    """Jobs dealt to groups like cards, class by class."""
    jobs = np.repeat(np.arange(len(counts)), counts).tolist()
    return [tuple(jobs[g::groups]) for g in range(groups)]


def _relaxed(
    model: ClassedBucket, groups: int, seeds: Sequence[Node]
) -> tuple[Relaxation, float, FloatArray, FloatArray]:
    """The linear program, its bound, how often each of its columns is used, and the prices."""
    program = Relaxation(model.counts, groups)
    most = model.options.max_jobs
    pure = [(c,) * p for c, n in enumerate(model.counts.tolist()) for p in range(1, min(most, n) + 1)]
    _offer(model, program, [*pure, *seeds])
    beyond = 0.0
    for _ in range(MOST_ROUNDS):
        value, x, price = program.solve()
        members, gain = _priced(model, price, TOLERANCE, per_lead=True)
        if len(gain) == 0:
            beyond = TOLERANCE
            break
        beyond = float(gain.max())
        best = np.argsort(-gain, kind="stable")[: 12 * len(model.counts) + 40]
        if _offer(model, program, _as_nodes(members[best])) == 0:
            break
    return program, value + groups * beyond, x, price


def _offer(model: ClassedBucket, program: Relaxation, nodes: Sequence[Node]) -> int:
    """Add the groups that may be and do not need more jobs of a class than there are."""
    counts = model.counts
    nodes = [n for n in dict.fromkeys(nodes) if all(n.count(c) <= counts[c] for c in n)]
    value = model.values(nodes).value
    fine = np.flatnonzero(value > 0.0).tolist()
    return program.add([nodes[i] for i in fine], value[fine].tolist())


def _priced(model: ClassedBucket, price: FloatArray, floor: float, *, per_lead: bool) -> tuple[IntArray, FloatArray]:
    """Groups worth more than their price by more than `floor`, and by how much."""
    most = model.options.max_jobs
    count = len(model.counts)
    room = (count + 1) ** 2 if per_lead else MOST_COLUMNS + 1
    found = np.full((room, most), -1, dtype=np.int64)
    gain = np.full(room, -np.inf)
    arguments = (model.rows, model.counts, price, floor, per_lead, *model.packed, found, gain)
    if compiled(kernels.price_groups, kinds_of_groups(count, most)):
        run(kernels.price_groups, *arguments)
    else:
        plain(kernels.price_groups)(*arguments)
    there = np.flatnonzero(gain > -np.inf)
    return found[there], gain[there]


def _as_nodes(members: IntArray) -> list[Node]:
    return [tuple(c for c in row if c >= 0) for row in members.tolist()]


def _whole(
    model: ClassedBucket,
    groups: int,
    program: Relaxation,
    x: FloatArray,
    price: FloatArray,
    bound: float,
    reached: float,
) -> tuple[list[Node] | None, float]:
    """Whole numbers near the linear solution, and a bound on all groupings better than `reached`.

    No groups if the rest after rounding down cannot be placed; the bound is inf if something was left out.
    """
    taken = np.floor(x + 1e-9).astype(np.int64) if groups > WHOLE else np.zeros(len(x), dtype=np.int64)
    sure = [node for node, often in zip(program.nodes, taken.tolist(), strict=True) for _ in range(often)]
    counts = model.counts - np.bincount([c for node in sure for c in node], minlength=len(model.counts))
    left = groups - len(sure)
    if left == 0:
        return sure, math.inf
    # A group that is worth its price less `reach` cannot be part of anything within `reach` of the bound.
    reach = bound - reached if groups <= WHOLE else 100 * GAP * bound / groups
    members, gain = _priced(model, price, -reach - TOLERANCE, per_lead=False)
    complete = groups <= WHOLE and len(gain) <= MOST_COLUMNS
    spare = [node for node in round_robin(counts, left) if node]
    offered = [*program.nodes, *spare, *(_as_nodes(members) if len(gain) <= MOST_COLUMNS else [])]
    offered += improved(model, spare, GroupingCache(0)) if left <= MOST_TO_IMPROVE else []
    offered = [n for n in dict.fromkeys(offered) if all(n.count(c) <= counts[c] for c in n)]
    value = model.values(offered).value
    offered = [n for n, v in zip(offered, value.tolist(), strict=True) if v > 0.0]
    rest, most = integer_program(offered, value[value > 0.0].tolist(), counts, left, GAP * bound, MOST_BRANCHES)
    return None if rest is None else sure + rest, most if complete else math.inf


def bound_of(bucket: Bucket) -> tuple[float, str]:
    """The smallest bound that is known for a bucket, and its name."""
    factors = bucket.model.factors
    alone = _alone(bucket, min(1.0, *factors))
    bounds = [(_trivial(bucket, alone, factors), "trivial")]
    matching = _by_matching(bucket, alone, factors)
    if matching is not None:
        bounds.append((matching, "matching"))
    if bucket.bound is not None and bucket.bound[0] == len(bucket.nodes):
        bounds.append((bucket.bound[1], "exact"))
    return min(bounds)


def _alone(bucket: Bucket, factor: float) -> FloatArray:
    """The most that one job of each class can add to a group: T >= its own stages and iteration, or it is alone."""
    model = bucket.model
    after = model.rows[:, 3 * model.resources :]
    inside = after[:, kernels.WORTH] / after[:, kernels.LEAST] / factor
    best: FloatArray = np.maximum(inside, after[:, kernels.ALONE])
    return best


def _trivial(bucket: Bucket, alone: FloatArray, factors: list[float]) -> float:
    jobs_only = math.fsum((alone * bucket.model.counts).tolist())
    if bucket.model.options.objective == "efficiency" and not bucket.model.shared:
        return min(jobs_only, len(bucket.nodes) / min(1.0, *factors))
    return jobs_only


def _by_matching(bucket: Bucket, alone: FloatArray, factors: list[float]) -> float | None:
    options = bucket.model.options
    exact = not bucket.greedy and len(bucket.jobs) <= MOST_NODES
    if bucket.pair_weight is None or not exact or not options.monotone(bucket.model.shared) or options.max_jobs < 2:
        return None
    # Pairs of the matching may have a higher cost than the others of a larger group.
    worst = max(options.factor(2) * bucket.model.most_cost / f for f in factors[1:])
    empty = options.max_jobs * len(bucket.nodes) - len(bucket.jobs)
    odd = min(len(bucket.nodes), empty if options.max_jobs % 2 == 0 else len(bucket.nodes))
    most = np.sort(np.repeat(alone, bucket.model.counts))[::-1][:odd]
    return bucket.pair_weight * worst + math.fsum(most.tolist())
