"""Exact grouping where many jobs are of few kinds.

Equal jobs are interchangeable, so a grouping is how often each kind of group is used: a linear program whose
columns are made as they are needed, then an integer program over the columns that can matter. The linear program's
optimum bounds every grouping into as many groups.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from plait.core.arrays import FloatArray, IntArray
from plait.core.compile_policy import compiled, run
from plait.core.jit import plain
from plait.grouping.cache import GroupingCache
from plait.grouping.exact.programs import LinearProgram, integer_program, need_highs
from plait.grouping.local_search import MOST_TO_IMPROVE, improved
from plait.grouping.model import kernels
from plait.grouping.model.bucket import Model, Node

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


def exact_groups(model: Model, start: Sequence[Node], cache: GroupingCache) -> Exact:
    """The best way to put the jobs of a bucket into as many groups as `start` has; never worse than `start`.

    Exact up to a part `GAP` of the bound if there are at most `WHOLE` groups and `MOST_COLUMNS` kinds of groups that
    can matter; otherwise within `Exact.bound`. Raises `MissingExtra` without HiGHS.
    """
    need_highs()
    given = tuple(sorted(start))
    return cache.remember(("exact", model.key, given), lambda: _exact_groups(model, given, cache))


def _exact_groups(model: Model, start: Sequence[Node], cache: GroupingCache) -> Exact:
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


def fewest_is_known(model: Model) -> bool:
    """Whether any jobs may be together, so that ceil(jobs / max_jobs) groups are the minimum."""
    most_memory = float(model.rows[:, 3 * model.resources + kernels.MEMORY].max())
    if model.shared or model.options.max_jobs > model.resources:
        return False
    return most_memory * model.options.max_jobs <= model.options.memory_limit_bytes


def _total(model: Model, nodes: Sequence[Node]) -> float:
    return math.fsum(model.values(nodes).value.tolist())


def _sample(model: Model, cache: GroupingCache) -> list[Node]:
    """Good groups of a smaller bucket with about the same mix, to start from."""
    counts = np.maximum(1, np.rint(model.counts * min(1.0, 160 / model.counts.sum()))).astype(np.int64)
    return improved(model, round_robin(counts, -(-int(counts.sum()) // model.options.max_jobs)), cache)


def round_robin(counts: IntArray, groups: int) -> list[Node]:
    """Jobs dealt to groups like cards, class by class."""
    jobs = np.repeat(np.arange(len(counts)), counts).tolist()
    return [tuple(jobs[g::groups]) for g in range(groups)]


def _relaxed(model: Model, groups: int, seeds: Sequence[Node]) -> tuple[LinearProgram, float, FloatArray, FloatArray]:
    """The linear program, its bound, how often each of its columns is used, and the prices."""
    program = LinearProgram(model.counts, groups)
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


def _offer(model: Model, program: LinearProgram, nodes: Sequence[Node]) -> int:
    """Add the groups that may be and do not need more jobs of a class than there are."""
    counts = model.counts
    nodes = [n for n in dict.fromkeys(nodes) if all(n.count(c) <= counts[c] for c in n)]
    value = model.values(nodes).value
    fine = np.flatnonzero(value > 0.0).tolist()
    return program.add([nodes[i] for i in fine], value[fine].tolist())


def _priced(model: Model, price: FloatArray, floor: float, *, per_lead: bool) -> tuple[IntArray, FloatArray]:
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
    model: Model,
    groups: int,
    program: LinearProgram,
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
