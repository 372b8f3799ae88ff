"""What happens at a switch, a server and a worker when a packet arrives or a time comes: the protocol, between links.

Start at `arrive`. The steps of the protocol decide; here their packets are sent on.
"""

from __future__ import annotations

from plait.core.jit import lean_part
from plait.network.packets.links import draw, new_row, schedule, settle, transmit
from plait.network.packets.measure import note_held, note_packet
from plait.network.packets.state import ACTIVE, DOWN, FREE_ROW, PS, ROWS, UP, WIDTH, Net, switch_at
from plait.network.protocol.addressing import mix
from plait.network.protocol.header import int64
from plait.network.protocol.server import server_step
from plait.network.protocol.switch import (
    EVICTED,
    FREE,
    HELD,
    MULTICAST,
    TO_SERVER,
    UNICAST,
    release,
    sweep,
    switch_step,
)
from plait.network.protocol.worker import (
    ACCEPTED,
    FINISHED,
    GIVES_UP,
    WAITING,
    worker_receive,
    worker_send,
    worker_start,
    worker_timeout,
)


@lean_part
def gradient(job: int, rank: int, seq: int, element: int) -> int:
    """What a worker adds to a sum where payloads are simulated: 24 bits and a sign."""
    return (mix(job * 64 + rank, seq * 1024 + element) & 0x1FFFFFF) - 0x1000000


@lean_part
def arrive(net: Net, c: int, kind: int, row: int, now: int) -> None:
    """A packet at the end of a channel."""
    node = net.channels[c]["to"]
    note_packet(net, row, node, now)
    nodes = len(net.worker_at)
    if node >= nodes:
        at_switch(net, node - nodes, kind, row, now)
    elif kind == UP:
        at_server(net, row, now)
    else:
        at_worker(net, node, row, now)
    settle(net, row)


@lean_part
def at_switch(net: Net, s: int, kind: int, row: int, now: int) -> None:
    """A packet at a switch: an aggregator is claimed as it comes in, and freed as its result leaves."""
    p = net.packets[row]
    j = int64(p["job"])
    sw = switch_at(net, s)
    ready = now + net.switches[s]["latency"] if kind == UP else now
    expected = sw.jobs[j]["expected"]
    if expected == 0 or (kind == UP and p["bitmap"] & ~expected != 0):
        action = TO_SERVER if kind == UP else MULTICAST
    else:
        spare = net.info[FREE_ROW]
        action = switch_step(sw, net.packets, net.values, row, spare, now // PS)
        note_held(net, sw.jobs, s, j, now)
        if action & EVICTED:
            row_out = new_row(net)
            other = int64(net.packets[row_out]["job"])
            note_held(net, sw.jobs, s, other, now)
            transmit(net, net.routes[s, other]["up"], UP, row_out, ready)
            settle(net, row_out)
    if action & TO_SERVER and net.routes[s, j]["up"] >= 0:
        transmit(net, net.routes[s, j]["up"], UP, row, ready)
    if action & (MULTICAST | UNICAST):
        _down(net, s, j, row, ready)


@lean_part
def _down(net: Net, s: int, j: int, row: int, ready: int) -> None:
    """Send a result to all workers below; of a dedicated job, to those in its bitmap."""
    route = net.routes[s, j]
    asks = net.packets[row]["bitmap"]
    for k in range(route["first_kid"], route["first_kid"] + route["kids"]):
        kid = net.kids[k]
        if net.jobs[j]["dedicated"] == 0 or kid["bits"] & asks != 0:
            transmit(net, kid["channel"], DOWN, row, ready)


@lean_part
def at_server(net: Net, row: int, now: int) -> None:
    """A packet at the server of its job."""
    job = net.jobs[net.packets[row]["job"]]
    job["arrived"] += 1
    if server_step(net.server, net.packets, net.values, row, now // PS):
        transmit(net, job["server_channel"], DOWN, row, now + job["server_ps"])


@lean_part
def at_worker(net: Net, node: int, row: int, now: int) -> None:
    """A result at a worker: it sends what its window allows, and goes on when its tensor is finished."""
    p = net.packets[row]
    j, seq = int64(p["job"]), p["seq"]
    w = int64(net.worker_at[node, j])
    answer = worker_receive(net.workers, w, net.packets, row, now // PS)
    if answer & ACCEPTED == 0:
        return
    net.delivered[j, now // net.info[WIDTH]] += 1
    for e in range(net.values.shape[1]):
        total = int64(0)
        for rank in range(net.jobs[j]["n_workers"]):
            total += gradient(j, rank, seq, e)
        if total != net.values[row, e]:
            net.hosts[w]["wrong"] += 1
    if answer & FINISHED:
        _finish(net, w, j, now)
    send(net, w, now)


@lean_part
def send(net: Net, w: int, now: int) -> None:
    """Send all that a worker may send; its host delays each packet before the link."""
    host = net.hosts[w]
    while True:
        row = new_row(net)
        found = worker_send(net.workers, w, net.packets, row, now // PS)
        if found == 0:
            settle(net, row)
            return
        ready = now
        if host["jitter"] > 0:
            ready += draw(net) * host["jitter"] >> 30
        p = net.packets[row]
        for e in range(net.values.shape[1]):
            net.values[row, e] = gradient(int64(p["job"]), host["rank"], p["seq"], e)
        transmit(net, host["channel"], UP, row, ready)
        settle(net, row)


@lean_part
def start(net: Net, w: int, now: int) -> None:
    """Let a worker start its next tensor."""
    host, me = net.hosts[w], net.workers.state[w]
    j, k = int64(me["job"]), host["tensor"]
    job = net.jobs[j]
    if k % job["per_iteration"] == 0:
        iteration = k // job["per_iteration"]
        net.times[j, iteration, 0] = min(net.times[j, iteration, 0], now)
    me["prio"] = net.tensors[j, k, 2]
    worker_start(net.workers, w, net.tensors[j, k, 0], net.tensors[j, k, 1], job["exponents"], now // PS)
    if host["timed"] == 0:
        host["timed"] = 1
        schedule(net, now + PS * min(me["rto"], me["first_rto"]), timer_of(net, w))


@lean_part
def _finish(net: Net, w: int, j: int, now: int) -> None:
    """What follows a tensor: the next one, the next iteration after its computation, or the end."""
    host, job = net.hosts[w], net.jobs[j]
    host["tensor"] += 1
    if host["tensor"] % job["per_iteration"] != 0:
        start(net, w, now)
        return
    iteration = host["tensor"] // job["per_iteration"] - 1
    net.times[j, iteration, 1] = max(net.times[j, iteration, 1], now)
    if host["tensor"] < job["tensors"]:
        schedule(net, now + host["compute"], timer_of(net, w) + len(net.hosts))
        return
    net.info[ACTIVE] -= 1
    job["busy"] -= 1
    for s in range(len(net.switches)):
        sw = switch_at(net, s)
        if job["busy"] == 0 and job["dedicated"] != 0 and sw.jobs[j]["expected"] != 0:
            release(sw, j)
            note_held(net, sw.jobs, s, j, now)


@lean_part
def timer_of(net: Net, w: int) -> int:
    """The source of the timer of a worker. Its starts, and then the sweeps of switches, follow those of timers."""
    return len(net.queues) + w


@lean_part
def timer(net: Net, w: int, now: int) -> None:
    """Look at the timer of a worker, at the latest once in the shortest timeout: its deadline is never missed."""
    host, me = net.hosts[w], net.workers.state[w]
    if me["ack"] >= me["end"]:
        host["timed"] = 0
        return
    answer = worker_timeout(net.workers, w, now // PS)
    if answer != WAITING:
        if answer == GIVES_UP:
            host["gave_up"] += 1
        send(net, w, now)
    schedule(net, min(PS * me["deadline"], now + PS * min(me["rto"], me["first_rto"])), timer_of(net, w))


@lean_part
def tidy(net: Net, s: int, now: int) -> None:
    """Let a switch free the aggregators that are too old, and come again if it may have to."""
    sw, max_age = switch_at(net, s), net.switches[s]["max_age"]
    for index in range(len(sw.table)):
        a = sw.table[index]
        if a["key"] == FREE or now // PS - a["born"] <= max_age:
            continue
        row = new_row(net)
        written, _ = sweep(sw, net.packets, net.values, index, 1, row, now // PS, max_age)
        if written:
            j = int64(net.packets[row]["job"])
            note_held(net, sw.jobs, s, j, now)
            transmit(net, net.routes[s, j]["up"], UP, row, now + net.switches[s]["latency"])
        settle(net, row)
    if net.info[ACTIVE] > 0 or net.info[ROWS] > 0 or sw.info[HELD] > 0:
        schedule(net, now + PS * max(1, max_age // 2), timer_of(net, 2 * len(net.hosts)) + s)
