"""The loop of events, compiled: one kernel that takes the first event of the heap until none is left."""

from __future__ import annotations

from plait.core.jit import by_reference, linked
from plait.network.packets import heap, links, measure, peers, state, steps
from plait.network.packets.heap import remove_first, replace_first
from plait.network.packets.links import put_on_link, settle, take
from plait.network.packets.measure import note_packet, widen
from plait.network.packets.peers import at_peer, ended, flow, passing
from plait.network.packets.state import BINS, EVENTS, FAULT, FINE, HEAP, NOW, ORDER, PEER, TOO_LATE, UP, WIDTH, Net
from plait.network.packets.steps import (
    at_server,
    at_switch,
    at_worker,
    finish,
    free_slots,
    remind,
    send,
    start,
    tidy,
    timer,
)
from plait.network.protocol import addressing, congestion, header, server, switch, worker
from plait.network.protocol.header import int64
from plait.network.protocol.switch import HELD
from plait.network.protocol.worker import FINISHED, IGNORED


@linked(header, addressing, congestion, switch, server, worker, state, heap, links, measure, peers, steps)
def run(state_of_all: Net, until: int) -> int:
    """Take events until none is left: all workers are finished, no packet is on its way. Returns what went wrong.

    TOO_LATE: an event after `until`, in ps. Sources of events are, in this order: queues, the timers of workers, starts
    of their tensors, sweeps of switches, reminders of servers, packets of background traffic.
    """
    net = by_reference(state_of_all)
    lines, ends, info, held = net.links, net.ends, net.links.info, net.fabric.switch_info
    nodes, workers, timers = len(ends.worker_at), len(ends.hosts), len(lines.queues)
    lined = 2 * len(lines.channels)
    sweeps, reminders = 2 * workers, 2 * workers + len(net.fabric.switches)
    jobs = ends.worker_at.shape[1]
    while info[HEAP] > 0 and info[FAULT] == FINE:
        now, source = lines.heap[0]["time"], lines.heap[0]["source"]
        if now > until:
            info[FAULT] = TOO_LATE
            break
        if source < timers:
            queue = lines.queues[source]
            due = lines.entries[queue["first"] + queue["head"]]["time"]
            if due > now:  # its link was paused
                replace_first(lines.heap, info[HEAP], due, info[ORDER], source)
                info[ORDER] += 1
                continue
        info[NOW] = now
        info[EVENTS] += 1
        w, sends = source - timers, False  # a worker, and whether it may have something to send
        # Timers may come long after the last packet; only what may be measured needs a bin.
        if now >= BINS * info[WIDTH] and (w < 0 or (sweeps <= w < reminders and held[w - sweeps, HELD] > 0)):
            widen(info, net.fabric.held, ends.delivered, now)
        if lined <= source < timers:
            row, came = take(lines, source)
            put_on_link(lines, (source - lined) >> 1, source & 1, row, now, came)
            settle(lines, row)
        elif source < timers:
            row, _ = take(lines, source)
            node, kind = lines.channels[source >> 1]["to"], source & 1
            note_packet(lines, net.log, row, node, now)
            if lines.packets[row]["type"] == PEER:
                if lines.packets[row]["job"] >= jobs:
                    net.peers.waiting[source >> 1, 0] -= 1
                if node >= nodes:
                    passing(lines, net.peers, node - nodes, row, now, source >> 1)
                elif lines.packets[row]["job"] < jobs:
                    for one in at_peer(lines, ends, net.peers, row, now):
                        if ended(lines, ends, net.peers, one):
                            finish(lines, ends, net.peers, one, now)
            elif node >= nodes:
                row = at_switch(lines, net.fabric, node - nodes, kind, row, now, source >> 1)
            elif kind == UP:
                at_server(lines, net.server, row, now)
            else:
                j = int64(lines.packets[row]["job"])
                w = int64(ends.worker_at[node, j])
                answer = at_worker(lines, ends, w, row, now)
                sends = answer != IGNORED
                if answer & FINISHED and finish(lines, ends, net.peers, w, now) and lines.jobs[j]["dedicated"] != 0:
                    free_slots(lines, net.fabric, j, now)
            settle(lines, row)
        else:
            info[HEAP] -= 1
            remove_first(lines.heap, info[HEAP] + 1)
            if w < workers:
                sends = timer(lines, ends, w, now)
            elif w < 2 * workers:
                w -= workers
                start(lines, ends, net.peers, w, now)
                sends = True
            elif w < reminders:
                tidy(lines, net.fabric, w - sweeps, now, source)
            elif w < reminders + jobs:
                remind(lines, net.server, w - reminders, now, source)
            else:
                flow(lines, net.peers, w - reminders - jobs, now, source)
        if sends:
            send(lines, ends, w, now)
    fault: int = info[FAULT]
    return fault
