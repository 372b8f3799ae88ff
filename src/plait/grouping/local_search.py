"""Local search: exchange members of two groups while that is better.

The rounds of Algorithm 1 fix pairs before it sees quadruples; exchanging single members afterwards gains 3 to 8 % of
total efficiency, more where jobs have one long stage each. Where it starts from hardly matters, and exchanging two
members for two as well gains 0.05 % more for twice the time, so it is not done. The total never falls, the number of
groups never changes, and no group arises that the guard would split.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations

from plait.core.compile_policy import compiled, run
from plait.core.jit import plain
from plait.grouping.cache import GroupingCache
from plait.grouping.model import kernels
from plait.grouping.model.bucket import Model, Node

#: More passes than any search has needed; it stops by itself when a pass changes nothing.
MOST_PASSES = 200
#: All pairs of groups are examined: up to this many groups that takes less than a second.
MOST_TO_IMPROVE = 300


def improved(model: Model, nodes: Sequence[Node], cache: GroupingCache) -> list[Node]:
    """The groups after local search, in canonical order; `nodes` is unchanged."""
    start = tuple(sorted(nodes))
    return cache.remember(("improve", model.key, start), lambda: _improved(model, start))


def _improved(model: Model, nodes: Sequence[Node]) -> list[Node]:
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


def reference_swap_search(
    nodes: Sequence[Node],
    most: int,
    value_of: Callable[[Node], float],
    may_be: Callable[[Node], bool] = lambda node: True,
) -> list[Node]:
    """The plain reference of the search: `value_of` is the worth of a group, `may_be` whether it is allowed.

    `nodes` are groups of classes, of at most `most` members each.

    >>> reference_swap_search([(1, 1), (2, 2)], 2, lambda node: len(set(node)))
    [(1, 2), (1, 2)]
    """
    groups = [tuple(sorted(node)) for node in nodes]
    seen: dict[tuple[int, int], tuple[Node, Node]] = {}
    while True:
        before = list(groups)
        for a, b in combinations(range(len(groups)), 2):
            if seen.get((a, b)) == (groups[a], groups[b]):
                continue
            seen[a, b] = groups[a], groups[b]
            best = value_of(groups[a]) + value_of(groups[b]) + kernels.GAIN
            for one, other in _exchanges(groups[a], groups[b], most):
                total = value_of(one) + value_of(other)
                if may_be(one) and may_be(other) and total > best:
                    best, groups[a], groups[b] = total, one, other
        if groups == before:
            return sorted(groups)


def _exchanges(one: Node, other: Node, most: int) -> list[tuple[Node, Node]]:
    """Both groups after every exchange of two members, or after a move of one."""
    found = []
    for leaves in _members(one, most):
        for joins in _members(other, most):
            left, right = list(one), list(other)
            for member, group, to in ((leaves, left, right), (joins, right, left)):
                if member is not None:
                    group.remove(member)
                    to.append(member)
            if left and right and max(len(left), len(right)) <= most:
                found.append((tuple(sorted(left)), tuple(sorted(right))))
    return found


def _members(group: Node, most: int) -> list[int | None]:
    return [*dict.fromkeys(group), *([None] if len(group) < most else [])]
