"""The unpack guard: a group that would run slower than its members one after another is split.

`completion_guard` is the margin by which it has to be faster, where completion times count.
"""

from __future__ import annotations

from collections.abc import Iterator

from plait.grouping.algorithm1 import Bucket, classes_of
from plait.grouping.model.bucket import Node
from plait.grouping.model.memo import Known

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


def _parts(known: Known, floor: float, classes: Node) -> list[tuple[int, ...]]:
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
    """Every way to split a list into sets."""
    if not items:
        yield []
        return
    head, *tail = items
    for way in _partitions(tail):
        yield [(head,), *way]
        for i, part in enumerate(way):
            yield [*way[:i], (head, *part), *way[i + 1 :]]
