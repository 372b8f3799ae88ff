"""Goodput by the laws of switch memory beside that by packets, and how much faster the laws are.

python benchmarks/bench_memory_laws.py            # 61 points, about two minutes
python benchmarks/bench_memory_laws.py --quick    # a few of each set
"""

from __future__ import annotations

import argparse
from statistics import median

import common

from plait.network.fluid.exchanges import Exchange, Racks, prepared
from plait.network.fluid.jobs import PlacedJob
from plait.network.fluid.memory import steady_rates
from plait.network.packets.run import simulate
from plait.reproduce.memory_laws import GRID, HELD_OUT, PUBLISHED, Point, compared


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    for name, points in {"published": PUBLISHED, "grid": GRID, "held out": HELD_OUT}.items():
        found = []
        print(f"\n{name}: goodput per job, Gb/s, and share of sums that a switch completes")
        for one in compared(points[:3] if quick else points):
            found.append(one)
            print(
                f"  {one.point.name:55} packets {one.packets / 1e9:6.2f}  fluid {one.fluid / 1e9:6.2f}  "
                f"{100 * (one.fluid / one.packets - 1):+6.1f} %   share {one.shares[0]:.2f} {one.shares[1]:.2f}",
                flush=True,
            )
        errors = [one.error for one in found]
        print(
            f"  error: median {100 * median(errors):.1f} %, largest {100 * max(errors):.1f} % of {len(errors)} points"
        )
    point = Point(4096)
    scenario = point.scenario()
    parts = [
        prepared(scenario.graph, Exchange(PlacedJob(workers, server), "hash", window=point.window))
        for workers, server in scenario.placement
    ]
    slow = common.cpu_s(lambda: simulate(scenario), 3)
    fast = common.cpu_s(lambda: steady_rates(scenario.graph, Racks.of(parts)), 5)
    print(f"\n{point.name}: packets {slow:.2f} CPU s, fluid {1000 * fast:.1f} ms: {slow / fast:,.0f} times as fast")


if __name__ == "__main__":
    main()
