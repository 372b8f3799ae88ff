"""Regions of aggregators in the memory of one switch: first fit, contiguous. Our design."""

from __future__ import annotations

from collections.abc import Iterable

from plait.network.memory.records import Region


def first_fit(taken: Iterable[Region], capacity: int, size: int) -> int | None:
    """The lowest offset at which `size` aggregators below `capacity` are in none of these regions; None without one.

    >>> from plait.network.protocol.addressing import Index
    >>> first_fit([Region(0, 4, Index.DEDICATED, 0, True), Region(6, 2, Index.DEDICATED, 0, True)], 12, 3)
    8
    """
    at = 0
    for region in sorted(taken, key=lambda one: one.offset):
        if region.offset - at >= size:
            return at
        at = max(at, region.end)
    return at if capacity - at >= size else None


def remainder(exclusive: Iterable[Region], capacity: int, most: int) -> tuple[int, int]:
    """Offset and size of what is left for all others behind regions of one job each: at most the last `most`."""
    start = max((region.end for region in exclusive), default=0)
    start = max(start, capacity - most)
    return start, max(capacity - start, 0)
