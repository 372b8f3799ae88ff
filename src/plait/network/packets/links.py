"""Links: FIFO, busy until the last packet has left; what is on its way waits in a ring of fixed size.

A packet takes one event a hop. It keeps its row on its way; copies to several workers share one.
"""

from __future__ import annotations

from plait.core.jit import lean_part
from plait.network.packets import heap
from plait.network.packets.state import (
    DOWN,
    DRAWS,
    ENTRY,
    FAULT,
    FAULT_AT,
    FREE_ROW,
    FULL_QUEUE,
    FULL_ROWS,
    HEAP,
    ORDER,
    ROWS,
    SEED,
    UP,
    Net,
)
from plait.network.protocol.addressing import mix
from plait.network.protocol.header import ECN, int64

__all__ = ["ENTRY", "draw", "new_row", "schedule", "settle", "take", "transmit"]


@lean_part
def draw(net: Net) -> int:
    """The next random number, 30 bits: a hash of the seed and how many there were."""
    net.info[DRAWS] += 1
    return mix(net.info[SEED], net.info[DRAWS]) & 0x3FFFFFFF


@lean_part
def schedule(net: Net, time: int, source: int) -> None:
    """Put an event of a source that has none into the heap."""
    order = net.info[ORDER]
    net.info[ORDER] = order + 1
    heap.push(net.heap, net.info[HEAP], time, order, source)
    net.info[HEAP] += 1


@lean_part
def new_row(net: Net) -> int:
    """A free row, which is in use from now on; without one the last row, and a fault."""
    row: int = net.info[FREE_ROW]
    if net.refs[row] < 0:  # the last one stays free: steps of the protocol may always write to it
        net.info[FAULT] = FULL_ROWS
        return row
    net.info[FREE_ROW] = net.refs[row]
    net.info[ROWS] += 1
    net.refs[row] = 0
    return row


@lean_part
def settle(net: Net, row: int) -> None:
    """Free a row if no queue has it."""
    if net.refs[row] == 0:
        net.refs[row] = net.info[FREE_ROW]
        net.info[FREE_ROW] = row
        net.info[ROWS] -= 1


@lean_part
def _marked(net: Net, row: int, kind: int) -> int:
    """The row with the mark of congestion; a result may be on its way to others, so it gets a copy."""
    if kind == DOWN:
        copy = new_row(net)
        net.packets[copy] = net.packets[row]
        for e in range(net.values.shape[1]):
            net.values[copy, e] = net.values[row, e]
        row = copy
    net.packets[row]["flags"] |= ECN
    return row


@lean_part
def transmit(net: Net, c: int, kind: int, row: int, ready: int) -> None:
    """Send a packet of class `kind` through a channel, not before `ready`; it may be marked or lost.

    A packet that is lost takes its time on the link all the same.
    """
    channel = net.channels[c]
    begin = max(ready, channel["busy"])
    took = channel["ps_per_byte"] * net.jobs[net.packets[row]["job"]]["wire_bytes"]
    if channel["slow_from"] <= begin < channel["slow_until"]:
        took *= channel["slow"]
    end = begin + int64(took)
    channel["busy"] = end
    channel["sent"] += 1
    lose = channel["lose_up"] if kind == UP else channel["lose_down"]
    if lose > 0 and draw(net) < lose:
        channel["lost"] += 1
        return
    if begin - ready >= channel["mark_ps"]:
        channel["marked"] += 1
        row = _marked(net, row, kind)
    q = 2 * c + kind
    queue = net.queues[q]
    if queue["count"] > queue["mask"]:
        net.info[FAULT] = FULL_QUEUE
        net.info[FAULT_AT] = q
        return
    time = end + queue["delay"]
    entry = net.entries[queue["first"] + ((queue["head"] + queue["count"]) & queue["mask"])]
    order = net.info[ORDER]
    entry["time"], entry["order"], entry["row"] = time, order, row
    net.refs[row] += 1
    if queue["count"] == 0:
        schedule(net, time, q)
    else:
        net.info[ORDER] = order + 1
    queue["count"] += 1


@lean_part
def take(net: Net, q: int) -> int:
    """The row of the packet at the head of a queue, whose event is the first of the heap; the next one follows it."""
    queue = net.queues[q]
    row: int = net.entries[queue["first"] + queue["head"]]["row"]
    queue["head"] = (queue["head"] + 1) & queue["mask"]
    queue["count"] -= 1
    if queue["count"] > 0:
        following = net.entries[queue["first"] + queue["head"]]
        heap.replace_first(net.heap, net.info[HEAP], following["time"], following["order"], q)
    else:
        net.info[HEAP] -= 1
        heap.remove_first(net.heap, net.info[HEAP] + 1)
    net.refs[row] -= 1
    return row
