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
    NOW,
    ORDER,
    ROWS,
    SEED,
    UP,
    Links,
)
from plait.network.protocol.addressing import mix
from plait.network.protocol.header import ECN, int64

__all__ = ["ENTRY", "copied", "draw", "new_row", "put_on_link", "schedule", "settle", "take", "transmit"]


@lean_part
def draw(links: Links) -> int:
    """The next random number, 30 bits: a hash of the seed and how many there were."""
    links.info[DRAWS] += 1
    return mix(links.info[SEED], links.info[DRAWS]) & 0x3FFFFFFF


@lean_part
def schedule(links: Links, time: int, source: int) -> None:
    """Put an event of a source that has none into the heap."""
    order = links.info[ORDER]
    links.info[ORDER] = order + 1
    heap.push(links.heap, links.info[HEAP], time, order, source)
    links.info[HEAP] += 1


@lean_part
def new_row(links: Links) -> int:
    """A free row, which is in use from now on; without one the last row, and a fault."""
    row: int = links.info[FREE_ROW]
    if links.refs[row] < 0:  # the last one stays free: steps of the protocol may always write to it
        links.info[FAULT] = FULL_ROWS
        return row
    links.info[FREE_ROW] = links.refs[row]
    links.info[ROWS] += 1
    links.refs[row] = 0
    return row


@lean_part
def settle(links: Links, row: int) -> None:
    """Free a row if no queue has it."""
    if links.refs[row] == 0:
        links.refs[row] = links.info[FREE_ROW]
        links.info[FREE_ROW] = row
        links.info[ROWS] -= 1


@lean_part
def copied(links: Links, row: int) -> int:
    """A row with the same packet, which may be changed although the first one is on its way to others."""
    copy = new_row(links)
    links.packets[copy] = links.packets[row]
    for e in range(links.values.shape[1]):
        links.values[copy, e] = links.values[row, e]
    return copy


@lean_part
def _pause(links: Links, c: int, begin: int, until: int) -> None:
    """Let a channel start no packet from `begin` to `until`: those that have not started by then move back together."""
    channel = links.channels[c]
    delay = links.queues[2 * c + UP]["delay"]
    begin, until = begin + delay, until + delay
    if until <= channel["paused"]:
        return
    first = max(begin, channel["paused"])
    channel["paused"] = until
    channel["stopped"] += until - first
    waits = False
    for q in range(2 * c, 2 * c + 2):
        queue = links.queues[q]
        for back in range(queue["count"]):
            at = queue["first"] + ((queue["head"] + queue["count"] - 1 - back) & queue["mask"])
            entry = links.entries[at]
            took = int64(channel["ps_per_byte"] * links.jobs[links.packets[entry["row"]]["job"]]["wire_bytes"])
            if entry["time"] - queue["delay"] - took < first:
                break
            entry["time"] += until - first
            waits = True
    if waits:
        channel["busy"] += until - first


@lean_part
def transmit(links: Links, c: int, kind: int, row: int, ready: int, came: int) -> None:
    """Send a packet of class `kind` through a channel: now if it is ready, otherwise after those of its class in line.

    `came`: the channel over which it came to the switch, -1 for none; it stops where queues that are full pause links.
    """
    line = links.queues[2 * c + kind]["line"]
    if line < 0 or ready <= links.info[NOW]:
        put_on_link(links, c, kind, row, ready, came)
        return
    queue = links.queues[line]
    if queue["count"] > 0:
        last = queue["first"] + ((queue["head"] + queue["count"] - 1) & queue["mask"])
        ready = max(ready, links.entries[last]["time"])
    _append(links, line, row, ready, came)


@lean_part
def put_on_link(links: Links, c: int, kind: int, row: int, ready: int, came: int) -> None:
    """Send a packet as soon as the channel has sent all before it; it may be marked, dropped or lost.

    A packet that is lost takes its time on the link all the same, one that is dropped takes none.
    """
    channel = links.channels[c]
    begin = max(ready, max(channel["busy"], channel["paused"]))
    slow = channel["slow"] if channel["slow_from"] <= begin < channel["slow_until"] else 1.0
    if begin - ready >= slow * channel["full_ps"]:
        if channel["pauses"] == 0:
            channel["dropped"] += 1
            return
        if came >= 0:
            _pause(links, came, ready, begin - int64(slow * channel["full_ps"]) // 2)
    end = begin + int64(slow * channel["ps_per_byte"] * links.jobs[links.packets[row]["job"]]["wire_bytes"])
    channel["busy"] = end
    channel["sent"] += 1
    lose = channel["lose_up"] if kind == UP else channel["lose_down"]
    if lose > 0 and draw(links) < lose:
        channel["lost"] += 1
        return
    if begin - ready >= slow * channel["mark_ps"]:  # as many packets, which take longer on a slow link
        channel["marked"] += 1
        row = copied(links, row) if kind == DOWN else row  # a result may be on its way to others
        links.packets[row]["flags"] |= ECN
    _append(links, 2 * c + kind, row, end + links.queues[2 * c + kind]["delay"], came)


@lean_part
def _append(links: Links, q: int, row: int, time: int, came: int) -> None:
    """Put a packet at the end of a queue, and the event of the queue into the heap if it is the only one."""
    queue = links.queues[q]
    if queue["count"] > queue["mask"]:
        links.info[FAULT] = FULL_QUEUE
        links.info[FAULT_AT] = q
        return
    entry = links.entries[queue["first"] + ((queue["head"] + queue["count"]) & queue["mask"])]
    order = links.info[ORDER]
    entry["time"], entry["order"], entry["row"], entry["came"] = time, order, row, came
    links.refs[row] += 1
    if queue["count"] == 0:
        schedule(links, time, q)
    else:
        links.info[ORDER] = order + 1
    queue["count"] += 1


@lean_part
def take(links: Links, q: int) -> tuple[int, int]:
    """The row of the packet at the head of a queue, whose event is the first of the heap, and the channel it came over.

    The next one follows it.
    """
    queue = links.queues[q]
    head = links.entries[queue["first"] + queue["head"]]
    row, came = int64(head["row"]), int64(head["came"])
    queue["head"] = (queue["head"] + 1) & queue["mask"]
    queue["count"] -= 1
    if queue["count"] > 0:
        following = links.entries[queue["first"] + queue["head"]]
        heap.replace_first(links.heap, links.info[HEAP], following["time"], following["order"], q)
    else:
        links.info[HEAP] -= 1
        heap.remove_first(links.heap, links.info[HEAP] + 1)
    links.refs[row] -= 1
    return row, came
