"""A heap of events ordered by (time, insertion number), so that equal times have one order.

An event is of a source: the head of a queue, a timer, the start of a tensor. A source is in the heap at most once, so
the heap stays small however many packets are on their way. Four children a node: half of the depth of a binary heap.
"""

from __future__ import annotations

import numpy as np

from plait.core.jit import lean_part
from plait.network.protocol.header import Records

#: An event: when (ps), its insertion number, and of which source.
EVENT = np.dtype([("time", "i8"), ("order", "i8"), ("source", "i8")])


@lean_part
def push(heap: Records, size: int, time: int, order: int, source: int) -> None:
    """Add an event to a heap of `size` events; there must be room."""
    at = size
    while at > 0:
        parent = (at - 1) >> 2
        above = heap[parent]
        if above["time"] < time or (above["time"] == time and above["order"] < order):
            break
        heap[at] = heap[parent]
        at = parent
    one = heap[at]
    one["time"] = time
    one["order"] = order
    one["source"] = source


@lean_part
def replace_first(heap: Records, size: int, time: int, order: int, source: int) -> None:
    """Put an event in the place of the first one of a heap of `size` events."""
    at = 0
    while True:
        child = 4 * at + 1
        if child >= size:
            break
        best, best_time, best_order = child, heap[child]["time"], heap[child]["order"]
        for other in range(child + 1, min(child + 4, size)):
            other_time, other_order = heap[other]["time"], heap[other]["order"]
            if other_time < best_time or (other_time == best_time and other_order < best_order):
                best, best_time, best_order = other, other_time, other_order
        if time < best_time or (time == best_time and order < best_order):
            break
        heap[at] = heap[best]
        at = best
    one = heap[at]
    one["time"] = time
    one["order"] = order
    one["source"] = source


@lean_part
def remove_first(heap: Records, size: int) -> None:
    """Remove the first event of a heap of `size` events, which has one less then."""
    last = heap[size - 1]
    replace_first(heap, size - 1, last["time"], last["order"], last["source"])
