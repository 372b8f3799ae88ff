"""What is measured while a simulation runs: aggregators held and packets delivered over time, and a log of packets.

Time is divided into a fixed number of bins; when it runs out of them, two become one.
"""

from __future__ import annotations

from plait.core.jit import lean_part
from plait.network.packets.state import BINS, LOGGED, WIDTH, Net
from plait.network.protocol.header import Records


@lean_part
def widen(net: Net, now: int) -> None:
    """Make bins wide enough for a time."""
    while now >= BINS * net.info[WIDTH]:
        for j in range(len(net.jobs)):
            for b in range(BINS // 2):
                net.held[j, b] = net.held[j, 2 * b] + net.held[j, 2 * b + 1]
                net.delivered[j, b] = net.delivered[j, 2 * b] + net.delivered[j, 2 * b + 1]
            for b in range(BINS // 2, BINS):
                net.held[j, b] = 0
                net.delivered[j, b] = 0
        net.info[WIDTH] *= 2


@lean_part
def note_held(net: Net, jobs: Records, s: int, j: int, now: int) -> None:
    """Note that a job has held aggregators of a switch until now, and how many it holds from now on."""
    route = net.routes[s, j]
    since, held, width = route["since"], route["held"], net.info[WIDTH]
    while held > 0 and since < now:
        b = since // width
        until = min(now, (b + 1) * width)
        net.held[j, b] += held * (until - since)
        since = until
    if jobs[j]["held"] > held:
        route["claims"] += jobs[j]["held"] - held
    route["held"] = jobs[j]["held"]
    route["since"] = now


@lean_part
def note_packet(net: Net, row: int, node: int, now: int) -> None:
    """Write a packet that arrives to the log, while there is room."""
    at = net.info[LOGGED]
    if at >= len(net.log):
        return
    net.info[LOGGED] += 1
    p, line = net.packets[row], net.log[at]
    line[0], line[1], line[2], line[3], line[4], line[5] = now, node, p["type"], p["job"], p["seq"], p["bitmap"]
    line[6], line[7], line[8] = p["index"], p["flags"], p["prio"]
