"""Packets from one node to another that no switch adds up: all-reduces between workers, and background traffic.

A worker sends the packets of its program (`collectives`), at most a window of each lane at a time. Room in the window
comes back as long after a packet has arrived as an acknowledgement would take, which itself uses no link. Our design.
"""

from __future__ import annotations

from plait.core.jit import lean_part
from plait.network.packets.links import draw, new_row, schedule, settle, transmit
from plait.network.packets.state import ACTIVE, DOWN, FREE_ROW, PEER, WIDTH, Ends, Links, PeerTraffic
from plait.network.protocol.header import int64


@lean_part
def begin(links: Links, ends: Ends, peers: PeerTraffic, w: int, now: int) -> None:
    """Let a worker start its part of an all-reduce, that of its next tensor."""
    k = ends.hosts[w]["tensor"] % links.jobs[ends.workers.state[w]["job"]]["per_iteration"]
    for lane in range(peers.lanes.shape[1]):
        one = peers.lanes[w, lane]
        one["at"], one["end"], one["sent"] = peers.starts[w, k, lane], peers.starts[w, k, lane + 1], 0
    peers.left[w, 2] = 1
    push(links, ends, peers, w, now)


@lean_part
def push(links: Links, ends: Ends, peers: PeerTraffic, w: int, ready: int) -> None:
    """Send what a worker has and may send, not before `ready`."""
    if peers.left[w, 2] == 0:
        return
    host, me = ends.hosts[w], ends.workers.state[w]
    half = host["tensor"] & 1
    for lane in range(peers.lanes.shape[1]):
        line = peers.lanes[w, lane]
        while line["at"] < line["end"] and line["under_way"] < me["window"]:
            one = peers.sends[line["at"]]
            if one["after"] >= 0 and peers.missing[w, half, one["after"]] > 0:
                break
            if line["sent"] < one["packets"]:
                row = links.info[FREE_ROW]
                p = links.packets[row]
                p["type"], p["job"], p["seq"], p["bitmap"] = PEER, me["job"], line["at"], one["node"]
                p["index"], p["prio"], p["epoch"], p["flags"] = w, lane, half, 0
                new_row(links)
                late = draw(links) * host["jitter"] >> 30 if host["jitter"] > 0 else int64(0)
                transmit(links, host["channel"], DOWN, row, ready + late, -1)
                settle(links, row)
                line["sent"] += 1
                line["under_way"] += 1
                me["sent"] += 1
            if line["sent"] >= one["packets"]:
                line["at"] += 1
                line["sent"] = 0


@lean_part
def ended(links: Links, ends: Ends, peers: PeerTraffic, w: int) -> bool:
    """Whether a worker has sent and received all of its tensor; what it expects is that of the one after next then."""
    half, k = ends.hosts[w]["tensor"] & 1, ends.hosts[w]["tensor"]
    if peers.left[w, 2] == 0 or peers.left[w, half] > 0:
        return False
    for lane in range(peers.lanes.shape[1]):
        if peers.lanes[w, lane]["at"] < peers.lanes[w, lane]["end"]:
            return False
    after = (k + 2) % links.jobs[ends.workers.state[w]["job"]]["per_iteration"]
    for part in range(peers.missing.shape[2]):
        peers.missing[w, half, part] = peers.expected[w, after, part]
        peers.left[w, half] += peers.expected[w, after, part]
    peers.left[w, 2] = 0
    return True


@lean_part
def at_peer(links: Links, ends: Ends, peers: PeerTraffic, row: int, now: int) -> tuple[int, int]:
    """A packet of another worker at its node; returns both workers, each of which may be at its end."""
    p = links.packets[row]
    j = int64(p["job"])
    one = peers.sends[p["seq"]]
    source, w, half = int64(p["index"]), int64(ends.worker_at[one["node"], j]), int64(p["epoch"])
    ends.delivered[j, now // links.info[WIDTH]] += 1
    peers.missing[w, half, one["part"]] -= 1
    peers.left[w, half] -= 1
    peers.lanes[source, p["prio"]]["under_way"] -= 1
    push(links, ends, peers, source, now + one["back"])
    push(links, ends, peers, w, now)
    return source, w


@lean_part
def passing(links: Links, peers: PeerTraffic, s: int, row: int, now: int, came: int) -> None:
    """Send a packet of a worker or of background traffic on at a switch."""
    p = links.packets[row]
    c = int64(peers.hops[p["job"], s, p["bitmap"]])
    if p["seq"] < 0:
        _transmit_flow(links, peers, c, row, now, came)
    else:
        transmit(links, c, DOWN, row, now, came)


@lean_part
def _transmit_flow(links: Links, peers: PeerTraffic, c: int, row: int, now: int, came: int) -> None:
    """Send a packet of background traffic through a channel, or drop it where the channel has no room for it.

    Such traffic does not react, so its packets would fill any queue of a link whose rate it exceeds.
    """
    if peers.waiting[c, 0] >= peers.waiting[c, 1]:
        links.channels[c]["dropped"] += 1
        return
    before = links.queues[2 * c + DOWN]["count"]
    transmit(links, c, DOWN, row, now, came)
    peers.waiting[c, 0] += links.queues[2 * c + DOWN]["count"] - before  # 0 for a packet that was dropped or lost


@lean_part
def flow(links: Links, peers: PeerTraffic, f: int, now: int, source: int) -> None:
    """Send a packet of background traffic, and come again while a job is busy: for the next one of its flow as soon as
    the link can send it, for another flow after a random gap that makes up for that.
    """
    one = peers.flows[f]
    row = links.info[FREE_ROW]
    p = links.packets[row]
    p["type"], p["job"], p["seq"], p["bitmap"], p["index"], p["flags"] = PEER, one["job"], -1, one["node"], -1, 0
    new_row(links)
    _transmit_flow(links, peers, one["channel"], row, now, -1)
    settle(links, row)
    if links.info[ACTIVE] == 0:
        return
    wait = one["line"]
    one["left"] -= 1
    if one["left"] <= 0:
        part, gap = draw(links) >> 10, one["gap"]
        wait = part * (gap >> 19) + (part * (gap & 0x7FFFF) >> 19)  # the product can have more than 63 bits
        one["left"] = peers.sizes[draw(links) >> 20] if peers.sizes[-1] > 1 else int64(1)
    schedule(links, now + 1 + wait, source)
