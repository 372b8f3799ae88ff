"""Goodput by the laws of switch memory beside that by packets, and how much faster the laws are.

python benchmarks/bench_memory_laws.py            # 272 points, twelve minutes
python benchmarks/bench_memory_laws.py kinds aimd # some sets of them
python benchmarks/bench_memory_laws.py --quick    # three of each set
"""

from __future__ import annotations

import sys
from statistics import median, quantiles

import common
from common import Figure
from memory_laws import (
    AIMD,
    BURSTS,
    CROWDS,
    FRESH,
    GRID,
    KINDS,
    MIXES,
    NARROW,
    PHASES,
    PUBLISHED,
    RACKS,
    SCATTERED,
    SLOW,
    SYSTEMS,
    Point,
    compared,
    exchanges,
    phased,
)

from plait.network.fluid.exchanges import Adders, prepared
from plait.network.fluid.memory import steady_rates

QUICK = "--quick" in sys.argv
SETS = {
    "published": PUBLISHED,
    "grid": GRID,
    "racks": RACKS,
    "narrow": NARROW,
    "bursts": BURSTS,
    "crowds": CROWDS,
    "scattered": SCATTERED,
    "slow": SLOW,
    "systems": SYSTEMS,
    "phases": PHASES,
    "mixes": MIXES,
    "kinds": KINDS,
    "aimd": AIMD,
    "fresh": FRESH,
}


def errors(name: str, points: tuple[Point, ...]) -> Figure:
    """The errors of the laws over one set of points, of every job; the points themselves go to standard error."""
    each: list[float] = []
    some = points[:: max(1, len(points) // 3)] if QUICK else points
    for one in (phased if points is PHASES else compared)(some):
        each += [100 * abs(error) for error in one.errors]
        low_high = [f"{min(rates) / 1e9:6.2f} to {max(rates) / 1e9:6.2f}" for rates in (one.packets, one.fluid)]
        print(
            f"{name}: {one.point.name:75} Gb/s by packets {low_high[0]}, by the law {low_high[1]}, worst job "
            f"{100 * one.worst:+.1f} % of {' '.join(f'{100 * error:+.0f}' for error in one.errors)}, "
            f"share of sums in a switch {one.shares[0]:.2f}, {one.shares[1]:.2f}",
            file=sys.stderr,
        )
    note = f"nine of ten below {quantiles(each, n=10)[-1]:.1f} %, largest {max(each):.1f} % of {len(each)} jobs"
    return Figure(f"error of the law, {name} points", median(each), len(each), note=note, unit="%")


def speed() -> Figure:
    """One point by the law, and by the law and one seed of packets."""
    point = Point(4096)
    scenario = point.scenario()
    parts = [prepared(scenario.graph, one) for one in exchanges(scenario)]
    slow = common.cpu_s(lambda: list(compared([point], (1,))), 3)
    fast = common.cpu_s(lambda: steady_rates(scenario.graph, Adders.of(parts)), 5)
    return Figure(f"rates by the law, {point.name}", fast, 5, slow / fast, "the packet simulator")


def main() -> None:
    """Measure and print."""
    some = SETS.keys() & set(sys.argv) or SETS.keys()
    common.show([*(errors(name, points) for name, points in SETS.items() if name in some), speed()])


if __name__ == "__main__":
    main()
