"""Algorithm 1 of Muri: rounds of matching in every bucket of equal GPU count (paper, section 4.2 and A.7).

Also its ablation without matching. Both merge only while GPUs are short if the number of GPUs is given.

Local search: exchange members of two groups while that is better.

The rounds of Algorithm 1 fix pairs before it sees quadruples; exchanging single members afterwards gains 3 to 8 % of
total efficiency, more where jobs have one long stage each. Where it starts from hardly matters, and exchanging two
members for two as well gains 0.05 % more for twice the time, so it is not done. The total never falls, the number of
groups never changes, and no group arises that the guard would split.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from plait.core.arrays import FloatArray, IntArray
from plait.core.compile_policy import compiled, run
from plait.core.jit import plain
from plait.grouping import kernels
from plait.grouping.bucket import ClassedBucket, GroupingCache, KnownWorth, Node
from plait.grouping.matching import greedy_matching, maximum_weight_matching

#: More passes than any search has needed; it stops by itself when a pass changes nothing.
MOST_PASSES = 200
#: All pairs of groups are examined: up to this many groups that takes less than a second.
MOST_TO_IMPROVE = 300


def improved(model: ClassedBucket, nodes: Sequence[Node], cache: GroupingCache) -> list[Node]:
    """The groups after local search, in canonical order; `nodes` is unchanged."""
    start = tuple(sorted(nodes))
    return cache.remember(("improve", model.key, start), lambda: _improved(model, start))


def _improved(model: ClassedBucket, nodes: Sequence[Node]) -> list[Node]:
    if len(nodes) < 2:
        return list(nodes)
    members = model.padded(nodes)
    arguments = (
        model.rows,
        members,
        MOST_PASSES,
        model.options.floor,
        *model.packed,
        *kernels.search_room(len(members), model.packed[1]),
    )
    if compiled(kernels.swap_search, len(nodes) ** 2 * model.options.max_jobs**2):
        run(kernels.swap_search, *arguments)
    else:
        plain(kernels.swap_search)(*arguments)
    return sorted(tuple(c for c in group if c >= 0) for group in members.tolist())


#: Above so many nodes a bucket is matched greedily, in parts of at most this size: a dense matrix of 4,000 nodes takes
#: 128 MB, and exact matching two seconds.
MOST_NODES = 3000


@dataclass(eq=False)
class Bucket:
    """Jobs of one GPU count: `jobs` are rows of the candidates in priority order, `nodes` the groups so far.

    `rows` are the groups as positions in `jobs`, where the order of the jobs counts (no matching). `pair_weight` is
    the total weight of the first round's matching, and `bound` a number of groups and what that many are worth at
    most; both for `bound_of`.
    """

    gpus: int
    jobs: IntArray
    model: ClassedBucket
    known: KnownWorth
    nodes: list[Node]
    method: str = "alone"
    greedy: bool = False
    rows: list[tuple[int, ...]] | None = None
    pair_weight: float | None = None
    bound: tuple[int, float] | None = None


@dataclass(frozen=True)
class Pairs:
    """A matching of nodes: index pairs, what each union is worth, and the total over all of them."""

    first: tuple[int, ...]
    second: tuple[int, ...]
    value: tuple[float, ...]
    total: float


def algorithm1(buckets: Sequence[Bucket], available: int | None, cache: GroupingCache) -> None:
    """Merge nodes in place, ceil(log2 max_jobs) rounds.

    Without `available` all matched groups are merged, as published. With it merging continues only while the groups
    need more GPUs, over all buckets in order of (1 - gamma) * gpus, least first (for the objective speedup: of the
    throughput lost, (members - speedup) * gpus). The last round leaves out unions that the guard would split.
    """
    if not buckets:
        return
    rounds = math.ceil(math.log2(buckets[0].model.options.max_jobs))
    need = sum(b.gpus * len(b.nodes) for b in buckets)
    for merge_round in range(rounds):
        if available is not None and need <= available:
            return
        found = [matched(b, merge_round == rounds - 1, cache) for b in buckets]
        if merge_round == 0:
            for bucket, pairs in zip(buckets, found, strict=True):
                bucket.pair_weight = pairs.total
        if available is None:
            chosen = [list(range(len(pairs.first))) for pairs in found]
        else:
            chosen = _cheapest(buckets, found, need - available)
        for bucket, pairs, taken in zip(buckets, found, chosen, strict=True):
            need -= bucket.gpus * len(taken)
            _merge(bucket, [(pairs.first[i], pairs.second[i]) for i in taken])


def _cheapest(buckets: Sequence[Bucket], found: Sequence[Pairs], short: int) -> list[list[int]]:
    """Choose the pairs of each bucket to merge so that `short` GPUs become free, least cost first."""
    offers = []
    for b, (bucket, pairs) in enumerate(zip(buckets, found, strict=True)):
        for i, value in enumerate(pairs.value):
            union = merged(bucket.nodes[pairs.first[i]], bucket.nodes[pairs.second[i]])
            best = 1.0 if bucket.model.options.objective == "efficiency" else float(len(union))
            offers.append(((best - value) * bucket.gpus, bucket.gpus, union, b, i))
    chosen: list[list[int]] = [[] for _ in buckets]
    for _, gpus, _, b, i in sorted(offers):
        if short <= 0:
            break
        chosen[b].append(i)
        short -= gpus
    return chosen


def merged(one: Node, other: Node) -> Node:
    return tuple(sorted(one + other))


def _merge(bucket: Bucket, pairs: Sequence[tuple[int, int]]) -> None:
    gone = {i for pair in pairs for i in pair}
    unions = [merged(bucket.nodes[u], bucket.nodes[v]) for u, v in pairs]
    bucket.nodes = sorted([node for i, node in enumerate(bucket.nodes) if i not in gone] + unions)


def matched(bucket: Bucket, last: bool, cache: GroupingCache) -> Pairs:
    """The matching of the nodes of `bucket`: maximum weight, or greedy; `last` as in the last round (`algorithm1`)."""
    bucket.nodes.sort()
    key = ("match", bucket.known, tuple(bucket.nodes), last, bucket.greedy)
    return cache.remember(key, lambda: _matched(bucket.model, bucket.nodes, last, bucket.greedy))


def _matched(model: ClassedBucket, nodes: Sequence[Node], last: bool, greedy: bool) -> Pairs:
    """Nodes are sorted, so that equal ones are neighbours: weights are computed once for each kind of node."""
    if len(nodes) > MOST_NODES:
        return _in_parts(model, nodes, last, greedy)
    kinds = sorted(set(nodes))
    weight = model.weights(kinds, guarded=last)
    if len(kinds) < len(nodes):
        number = {kind: i for i, kind in enumerate(kinds)}
        kind_of = np.array([number[node] for node in nodes], dtype=np.int64)
        weight = weight[kind_of[:, None], kind_of]
    np.fill_diagonal(weight, 0.0)
    if not weight.any():
        return Pairs((), (), (), 0.0)
    return pairs_of(greedy_matching(weight) if greedy else maximum_weight_matching(weight), weight)


def pairs_of(mate: IntArray, weight: FloatArray) -> Pairs:
    """A mate for each vertex as pairs (u, v), u < v, u ascending; pairs of weight 0 are none."""
    u = np.flatnonzero(mate > np.arange(len(mate)))
    value = weight[u, mate[u]]
    u, value = u[value > 0.0], value[value > 0.0]
    return Pairs(tuple(u.tolist()), tuple(mate[u].tolist()), tuple(value.tolist()), float(value.sum()))


def _in_parts(model: ClassedBucket, nodes: Sequence[Node], last: bool, greedy: bool) -> Pairs:
    """Too many nodes for one matrix: every part takes each n-th node, so that all parts have all kinds."""
    parts = math.ceil(len(nodes) / MOST_NODES)
    first: list[int] = []
    second: list[int] = []
    value: list[float] = []
    for part in range(parts):
        pairs = _matched(model, nodes[part::parts], last, greedy)
        first += [part + parts * i for i in pairs.first]
        second += [part + parts * i for i in pairs.second]
        value += pairs.value
    return Pairs(tuple(first), tuple(second), tuple(value), math.fsum(value))


def consecutive(buckets: Sequence[Bucket], available: int | None) -> None:
    """Groups without matching: the next `max_jobs` jobs of a bucket in priority order, while GPUs are short.

    Buckets in order of their first job. A job that may not join the group (memory, shares) opens the next one.
    """
    need = sum(b.gpus * len(b.jobs) for b in buckets)
    for bucket in buckets:
        most = bucket.model.options.max_jobs
        groups: list[tuple[int, ...]] = []
        for job in range(len(bucket.jobs)):
            short = available is None or need > available
            if short and groups and len(groups[-1]) < most and _may_be(bucket, (*groups[-1], job)):
                groups[-1] = (*groups[-1], job)
                need -= bucket.gpus
            else:
                groups.append((job,))
        bucket.rows = groups
        bucket.nodes = [classes_of(bucket, group) for group in groups]


def classes_of(bucket: Bucket, group: Sequence[int]) -> Node:
    """A group of positions as classes."""
    return tuple(sorted(bucket.model.of_job[list(group)].tolist()))


def _may_be(bucket: Bucket, group: tuple[int, ...]) -> bool:
    return bucket.known.worth([classes_of(bucket, group)])[0].value > 0.0
