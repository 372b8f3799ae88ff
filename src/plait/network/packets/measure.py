"""What is measured while a simulation runs: aggregators held and packets delivered over time, and a log of packets.

Time is divided into a fixed number of bins; when it runs out of them, two become one.
"""

from __future__ import annotations

from plait.core.arrays import IntArray
from plait.core.jit import lean_part
from plait.network.packets.state import BINS, LOGGED, WIDTH, Fabric, Links
from plait.network.protocol.header import Records


@lean_part
def widen(info: IntArray, held: IntArray, delivered: IntArray, now: int) -> None:
    """Make bins wide enough for a time."""
    while now >= BINS * info[WIDTH]:
        for j in range(len(held)):
            for b in range(BINS):
                whole = 2 * b < BINS
                held[j, b] = held[j, 2 * b] + held[j, 2 * b + 1] if whole else 0
                delivered[j, b] = delivered[j, 2 * b] + delivered[j, 2 * b + 1] if whole else 0
        info[WIDTH] *= 2


@lean_part
def note_held(fabric: Fabric, jobs: Records, s: int, j: int, now: int, width: int) -> None:
    """Note that a job has held aggregators of a switch until now, and how many it holds from now on."""
    route = fabric.routes[s, j]
    since, held = route["since"], route["held"]
    while held > 0 and since < now:
        b = since // width
        until = min(now, (b + 1) * width)
        fabric.held[j, b] += held * (until - since)
        since = until
    if jobs[j]["held"] > held:
        route["claims"] += jobs[j]["held"] - held
    route["held"] = jobs[j]["held"]
    route["since"] = now


@lean_part
def note_packet(links: Links, log: IntArray, row: int, node: int, now: int) -> None:
    """Write a packet that arrives to the log, while there is room."""
    at = links.info[LOGGED]
    if at >= len(log):
        return
    links.info[LOGGED] += 1
    p, line = links.packets[row], log[at]
    line[0], line[1], line[2], line[3], line[4], line[5] = now, node, p["type"], p["job"], p["seq"], p["bitmap"]
    line[6], line[7], line[8] = p["index"], p["flags"], p["prio"]
