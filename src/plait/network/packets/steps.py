"""What happens at a switch, a server and a worker when a packet arrives or a time comes: the protocol, between links.

The steps of the protocol decide; here their packets are sent on. Start at `at_switch`.
"""

from __future__ import annotations

from plait.core.jit import as_part, lean_part
from plait.network.packets.links import copied, draw, new_row, schedule, settle, transmit
from plait.network.packets.measure import note_held
from plait.network.packets.peers import begin
from plait.network.packets.state import (
    ACTIVE,
    DOWN,
    FREE_ROW,
    PS,
    ROWS,
    UP,
    WIDTH,
    Ends,
    Fabric,
    Links,
    PeerTraffic,
    switch_at,
)
from plait.network.protocol import server, switch, worker
from plait.network.protocol.addressing import mix
from plait.network.protocol.header import COLLIDED, CONTROL, int64
from plait.network.protocol.server import Server
from plait.network.protocol.switch import DROP, EVICTED, FREE, HELD, MULTICAST, TO_SERVER, UNICAST
from plait.network.protocol.worker import ACCEPTED, GIVES_UP, WAITING

#: The steps of the protocol, as parts of the loop.
_server_step, _server_remind = as_part(server.server_step), as_part(server.server_remind)
_switch_step = as_part(switch.switch_step)
_release, _sweep = as_part(switch.release), as_part(switch.sweep)
_worker_receive, _worker_send = as_part(worker.worker_receive), as_part(worker.worker_send)
_worker_start, _worker_timeout = as_part(worker.worker_start), as_part(worker.worker_timeout)


@lean_part
def gradient(job: int, rank: int, seq: int, element: int) -> int:
    """What a worker adds to a sum where payloads are simulated: 24 bits and a sign."""
    return (mix(job * 64 + rank, seq * 1024 + element) & 0x1FFFFFF) - 0x1000000


@lean_part
def at_switch(links: Links, fabric: Fabric, s: int, kind: int, row: int, now: int, came: int) -> int:
    """A packet that came over a channel to a switch; returns its row, a copy of it where others have it, too.

    An aggregator is claimed as the packet comes in, and freed as its result leaves.
    """
    if links.refs[row] > 0 and links.packets[row]["type"] == CONTROL:
        row = copied(links, row)  # the same request is on its way to other switches
    p = links.packets[row]
    j = int64(p["job"])
    sw = switch_at(fabric, s)
    route = fabric.routes[s, j]
    ready = now + fabric.switches[s]["latency"] if kind == UP else now
    expected = sw.jobs[j]["expected"]
    if expected == 0 or (kind == UP and p["bitmap"] & ~expected != 0):
        action = TO_SERVER if kind == UP else MULTICAST
    else:
        spare = links.info[FREE_ROW]
        action = _switch_step(sw, links.packets, links.values, row, spare, now // PS)
        note_held(fabric, sw.jobs, s, j, now, links.info[WIDTH])
        if kind == UP and links.jobs[j]["passes"] > 1 and p["flags"] & COLLIDED == 0:
            ready = _recirculated(links, fabric, s, j, now, ready)
        if action & EVICTED:
            _evicted(links, fabric, s, now, ready, came)
        if p["type"] == CONTROL and action == DROP:
            action = MULTICAST  # a switch below may hold what the server asks for
    if action & TO_SERVER and route["up"] >= 0:
        transmit(links, route["up"], UP, row, ready, came)
    if action & (MULTICAST | UNICAST) == 0:
        return row
    # Results of dedicated jobs go to the workers in their bitmap, others to all.
    asks = p["bitmap"] if links.jobs[j]["dedicated"] != 0 else int64(-1)
    for k in range(route["first_kid"], route["first_kid"] + route["kids"]):
        if fabric.kids[k]["bits"] & asks != 0:
            transmit(links, fabric.kids[k]["channel"], DOWN, row, ready, came)
    return row


@lean_part
def _recirculated(links: Links, fabric: Fabric, s: int, j: int, now: int, ready: int) -> int:
    """When a packet has been through a switch as often as its payload takes; all passes but one share a port."""
    mine, more = fabric.switches[s], links.jobs[j]["passes"] - 1
    mine["busy"] = max(now, mine["busy"]) + int64(more * links.jobs[j]["wire_bytes"] * mine["ps_per_byte"])
    done: int = ready + mine["busy"] - now + more * mine["latency"]
    return done


@lean_part
def _evicted(links: Links, fabric: Fabric, s: int, now: int, ready: int, came: int) -> None:
    """Send what a switch has written to the first free row."""
    row = new_row(links)
    j = int64(links.packets[row]["job"])
    note_held(fabric, fabric.jobs_at[s], s, j, now, links.info[WIDTH])
    transmit(links, fabric.routes[s, j]["up"], UP, row, ready, came)
    settle(links, row)


@lean_part
def tidy(links: Links, fabric: Fabric, s: int, now: int, source: int) -> None:
    """Let a switch free the aggregators that are too old, and come again if it may have to."""
    sw, max_age = switch_at(fabric, s), fabric.switches[s]["max_age"]
    for index in range(len(sw.table)):
        a = sw.table[index]
        if a["key"] == FREE or now // PS - a["born"] <= max_age:
            continue
        written, _ = _sweep(sw, links.packets, links.values, index, 1, links.info[FREE_ROW], now // PS, max_age)
        if written:
            _evicted(links, fabric, s, now, now + fabric.switches[s]["latency"], -1)
    if links.info[ACTIVE] > 0 or links.info[ROWS] > 0 or sw.info[HELD] > 0:
        schedule(links, now + PS * max(1, max_age // 2), source)


@lean_part
def free_slots(links: Links, fabric: Fabric, j: int, now: int) -> None:
    """Free the dedicated slots of a job that is finished, at all switches."""
    for s in range(len(fabric.switches)):
        sw = switch_at(fabric, s)
        if sw.jobs[j]["expected"] != 0:
            _release(sw, j)
            note_held(fabric, sw.jobs, s, j, now, links.info[WIDTH])


@lean_part
def at_server(links: Links, servers: Server, row: int, now: int) -> None:
    job = links.jobs[links.packets[row]["job"]]
    job["arrived"] += 1
    if _server_step(servers, links.packets, links.values, row, now // PS):
        transmit(links, job["server_channel"], DOWN, row, now + job["server_ps"], -1)


@lean_part
def remind(links: Links, servers: Server, j: int, now: int, source: int) -> None:
    """Let the server of a job ask for what has been missing for too long, and again while the job is busy."""
    job = links.jobs[j]
    for k in range(servers.entries.shape[1]):
        seq = int64(servers.entries[j, k]["seq"])
        age = job["reminder"] // PS
        if seq >= 0 and _server_remind(servers, links.packets, j, seq, links.info[FREE_ROW], now // PS, age):
            row = new_row(links)
            transmit(links, job["server_channel"], DOWN, row, now + job["server_ps"], -1)
            settle(links, row)
    if job["busy"] > 0:
        schedule(links, now + job["reminder"], source)


@lean_part
def at_worker(links: Links, ends: Ends, w: int, row: int, now: int) -> int:
    """A result at a worker. Returns what `worker_receive` says of it."""
    p = links.packets[row]
    answer = _worker_receive(ends.workers, w, links.packets, row, now // PS)
    if answer & ACCEPTED:
        j = int64(p["job"])
        ends.delivered[j, now // links.info[WIDTH]] += 1
        for e in range(links.values.shape[1]):
            total = int64(0)
            for rank in range(links.jobs[j]["n_workers"]):
                total += gradient(j, rank, p["seq"], e)
            if total != links.values[row, e]:
                ends.hosts[w]["wrong"] += 1
    return answer


@lean_part
def send(links: Links, ends: Ends, w: int, now: int) -> None:
    """Send all that a worker may send; its host delays each packet before the link."""
    host = ends.hosts[w]
    while True:
        row = links.info[FREE_ROW]
        if _worker_send(ends.workers, w, links.packets, row, now // PS) == 0:
            return
        new_row(links)
        ready = now
        if host["jitter"] > 0:
            ready += draw(links) * host["jitter"] >> 30
        p = links.packets[row]
        for e in range(links.values.shape[1]):
            links.values[row, e] = gradient(int64(p["job"]), host["rank"], p["seq"], e)
        transmit(links, host["channel"], UP, row, ready, -1)
        settle(links, row)


@lean_part
def start(links: Links, ends: Ends, peers: PeerTraffic, w: int, now: int) -> None:
    """Let a worker start its next tensor."""
    host, me = ends.hosts[w], ends.workers.state[w]
    j, k = int64(me["job"]), host["tensor"]
    job = links.jobs[j]
    if k % job["per_iteration"] == 0:
        iteration = k // job["per_iteration"]
        ends.times[j, iteration, 0] = min(ends.times[j, iteration, 0], now)
    if job["collective"] != 0:
        begin(links, ends, peers, w, now)
        return
    move = ends.moves[j]
    if k >= move["tensor"] and me["epoch"] != move["epoch"]:
        me["offset"], me["size"], me["mode"] = move["offset"], move["size"], move["mode"]
        me["window"], me["cwnd"], me["epoch"] = move["window"], 0, move["epoch"]
    me["prio"] = ends.tensors[j, k, 2]
    _worker_start(ends.workers, w, ends.tensors[j, k, 0], ends.tensors[j, k, 1], job["exponents"], now // PS)
    if host["timed"] == 0:
        host["timed"] = 1
        schedule(links, now + PS * min(me["rto"], me["first_rto"]), len(links.queues) + w)


@lean_part
def finish(links: Links, ends: Ends, peers: PeerTraffic, w: int, now: int) -> bool:
    """What follows a tensor: the next one, the next iteration after its computation, or the end.

    Returns whether its job is finished.
    """
    host, j = ends.hosts[w], int64(ends.workers.state[w]["job"])
    job = links.jobs[j]
    host["tensor"] += 1
    if host["tensor"] % job["per_iteration"] != 0:
        start(links, ends, peers, w, now)
        return False
    iteration = host["tensor"] // job["per_iteration"] - 1
    ends.times[j, iteration, 1] = max(ends.times[j, iteration, 1], now)
    if host["tensor"] < job["tensors"]:
        schedule(links, now + host["compute"], len(links.queues) + len(ends.hosts) + w)
        return False
    links.info[ACTIVE] -= 1
    job["busy"] -= 1
    return bool(job["busy"] == 0)


@lean_part
def timer(links: Links, ends: Ends, w: int, now: int) -> bool:
    """Look at the timer of a worker, at least once in the shortest timeout; returns whether it has something to send.

    So a deadline is never missed, however it moves.
    """
    host, me = ends.hosts[w], ends.workers.state[w]
    if me["ack"] >= me["end"]:
        host["timed"] = 0
        return False
    answer = _worker_timeout(ends.workers, w, now // PS)
    if answer == GIVES_UP:
        host["gave_up"] += 1
    schedule(links, min(PS * me["deadline"], now + PS * min(me["rto"], me["first_rto"])), len(links.queues) + w)
    return bool(answer != WAITING)
