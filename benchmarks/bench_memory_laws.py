"""Goodput by the laws of switch memory beside that by packets, and how much faster the laws are.

python benchmarks/bench_memory_laws.py            # 61 points, about two minutes
python benchmarks/bench_memory_laws.py --quick    # three of each set
"""

from __future__ import annotations

import sys
from statistics import median

import common
from common import Figure

from plait.network.fluid.exchanges import Exchange, Racks, prepared
from plait.network.fluid.jobs import PlacedJob
from plait.network.fluid.memory import steady_rates
from plait.network.packets.run import simulate
from plait.reproduce.memory_laws import GRID, HELD_OUT, PUBLISHED, Point, compared

QUICK = "--quick" in sys.argv
SETS = {"published": PUBLISHED, "grid": GRID, "held out": HELD_OUT}


def errors(name: str, points: tuple[Point, ...]) -> Figure:
    """The error of the laws over one set of points; the points themselves go to standard error."""
    found = []
    for one in compared(points[:3] if QUICK else points):
        found.append(one)
        print(
            f"{name}: {one.point.name:55} Gb/s by packets {one.packets / 1e9:6.2f}, by the law {one.fluid / 1e9:6.2f} "
            f"({100 * (one.fluid / one.packets - 1):+.1f} %), share of sums in a switch {one.shares[0]:.2f}, "
            f"{one.shares[1]:.2f}",
            file=sys.stderr,
        )
    each = [100 * one.error for one in found]
    note = f"largest {max(each):.1f} % of {len(each)} points"
    return Figure(f"error of the law, {name} points", median(each), len(each), note=note, unit="%")


def speed() -> Figure:
    """One point by the law and by packets."""
    point = Point(4096)
    scenario = point.scenario()
    parts = [
        prepared(scenario.graph, Exchange(PlacedJob(workers, server), "hash", window=point.window))
        for workers, server in scenario.placement
    ]
    slow = common.cpu_s(lambda: simulate(scenario), 3)
    fast = common.cpu_s(lambda: steady_rates(scenario.graph, Racks.of(parts)), 5)
    return Figure(f"rates by the law, {point.name}", fast, 5, slow / fast, "the packet simulator")


def main() -> None:
    """Measure and print."""
    common.show([*(errors(name, points) for name, points in SETS.items()), speed()])


if __name__ == "__main__":
    main()
