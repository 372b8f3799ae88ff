"""The loop of events, compiled: one kernel that takes the first event of the heap until none is left."""

from __future__ import annotations

from plait.core.jit import linked
from plait.network.packets import heap, links, measure, state, steps
from plait.network.packets.links import take
from plait.network.packets.measure import widen
from plait.network.packets.state import BINS, EVENTS, FAULT, FINE, HEAP, NOW, TOO_LATE, WIDTH, Net
from plait.network.packets.steps import arrive, send, start, tidy, timer
from plait.network.protocol import addressing, congestion, header, server, switch, worker


@linked(header, addressing, congestion, switch, server, worker, state, heap, links, measure, steps)
def run(net: Net, until: int) -> int:
    """Take events until none is left: all workers are finished, no packet is on its way. Returns what went wrong.

    TOO_LATE: an event after `until`, in ps.
    """
    workers, queues = len(net.hosts), len(net.queues)
    while net.info[HEAP] > 0 and net.info[FAULT] == FINE:
        first = net.heap[0]
        now, source = first["time"], first["source"]
        if now > until:
            net.info[FAULT] = TOO_LATE
            break
        net.info[NOW] = now
        net.info[EVENTS] += 1
        if now >= BINS * net.info[WIDTH]:
            widen(net, now)
        if source < queues:
            row = take(net, source)
            arrive(net, source >> 1, source & 1, row, now)
            continue
        net.info[HEAP] -= 1
        heap.remove_first(net.heap, net.info[HEAP] + 1)
        source -= queues
        if source < workers:
            timer(net, source, now)
        elif source < 2 * workers:
            start(net, source - workers, now)
            send(net, source - workers, now)
        else:
            tidy(net, source - 2 * workers, now)
    fault: int = net.info[FAULT]
    return fault
