"""The same jobs through the running switch and through the packet simulator: goodput and fallback share.

    python benchmarks/bench_live_network.py [--quick] [--passes N] [--seed N] [--json] [--svg FOLDER]

Switch and server are processes, all packets pass the kernel; only links are paced (`paced_network`), so
slow that the load of the machine matters little. Two runs that are not among the points measure rate and delay, which
the simulator gets. Each point runs once a pass; other load of the machine can only slow a pass down, so the fastest is
compared, and the median of the passes stands beside it. Simulated figures are medians over nine seeds.
Wall seconds: not in `make bench`.
"""

from __future__ import annotations

import json
import statistics
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from paced_network import LinkFigures, Outcome, PacedDataplane, Point, median, simulations
from scatter import Cloud, scatter_svg

QUICK = "--quick" in sys.argv
PACKETS_PER_S, DELAY_S, SEEDS, GOAL = 100.0, 0.04, range(9), 0.15
#: Aggregators of each job with memory of its own, and of all jobs together where they share it.
OWN = {"dedicated": 32, "hybrid_region": 12}
SHARED = 24


@dataclass(frozen=True)
class Row:
    """A point, live and simulated; `runs` and `seeds` are all outcomes, `usual` and `simulated` their medians."""

    point: Point
    usual: Outcome
    simulated: Outcome
    runs: tuple[Outcome, ...]
    seeds: tuple[Outcome, ...]

    @property
    def live(self) -> Outcome:
        """The pass with the largest goodput."""
        return max(self.runs, key=lambda one: one.goodput_bits_per_s)

    @property
    def ratio(self) -> float:
        """Goodput of the fastest pass, live over simulated."""
        return self.live.goodput_bits_per_s / self.simulated.goodput_bits_per_s

    @property
    def plausible(self) -> bool:
        """Whether the live goodput is among those of the simulator's seeds."""
        found = [one.goodput_bits_per_s for one in self.seeds]
        return min(found) <= self.live.goodput_bits_per_s <= max(found)

    @property
    def difference(self) -> float:
        """Fallback share, live less simulated."""
        return self.live.fallback_share - self.simulated.fallback_share


def points() -> list[Point]:
    """Jobs, modes and losses, then small windows, where the round trip decides.

    Tensors with losses are longer: what a loss among the last packets costs is not what is compared.
    """
    counts, losses = ((1, 4), (0.0, 0.01)) if QUICK else ((1, 2, 4), (0.0, 0.001, 0.01))
    modes = ("dedicated", "shared_hash", "shared_cycle", "hybrid_region")
    found = [
        Point(mode, jobs, loss, 600 if loss else 200, aggregators=OWN[mode] * jobs if mode in OWN else SHARED)
        for mode in modes
        for jobs in counts
        for loss in losses
    ]
    if not QUICK:
        found += [Point(m, w, window=4, packets=100, aggregators=8 * w) for m in modes for w in (1, 4)]
    return found


def measure(passes: int, first: int) -> tuple[LinkFigures, list[Row]]:
    """Calibrate, run all points so often, and simulate them; no two live runs lose the same packets."""
    outcomes: dict[Point, list[Outcome]] = {point: [] for point in points()}
    with PacedDataplane(PACKETS_PER_S, DELAY_S) as live:
        links = live.calibrate()
        for k in range(passes):
            for seed, (point, found) in enumerate(outcomes.items(), 1000 * (first + k)):
                found.append(live.measure(point, seed, 300.0))
                print(f"pass {k + 1}: {label(point)}", file=sys.stderr, flush=True)
    rows = []
    for point, found in outcomes.items():
        seeds = simulations(point, links, SEEDS)
        rows.append(Row(point, median(found), median(seeds), tuple(found), tuple(seeds)))
    return links, rows


def label(point: Point) -> str:
    """A point in words."""
    return f"{point.mode}, {point.jobs} x {point.workers}, window {point.window}, loss {point.loss:.1%}"


def table(links: LinkFigures, rows: list[Row], passes: int) -> str:
    """The figures as Markdown, and how far they are from each other."""
    measured = (
        f"links: {links.packets_per_s:.1f} packets/s, delay {1e3 * links.delay_s:.1f} ms, spread "
        f"{1e3 * links.jitter_s:.1f} ms; live: {passes} passes, simulated: median of {len(SEEDS)} seeds"
    )
    heads: tuple[str, ...] = (
        "mode",
        "jobs",
        "window",
        "memory",
        "loss, %",
        "goodput live, Mb/s",
        "median",
        "simulated",
        "ratio",
    )
    heads += ("fallback live, %", "simulated", "difference")
    lines = [measured, "", f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for row in rows:
        p, a, b = row.point, row.live, row.simulated
        lines.append(
            f"| {p.mode} | {p.jobs} | {p.window} | {p.aggregators} | {100 * p.loss:g} | "
            f"{a.goodput_bits_per_s / 1e6:.3f} | {row.usual.goodput_bits_per_s / 1e6:.3f} | "
            f"{b.goodput_bits_per_s / 1e6:.3f} | {row.ratio:.2f} | "
            f"{100 * a.fallback_share:.1f} | {100 * b.fallback_share:.1f} | {100 * row.difference:+.1f} |"
        )
    lines += ["", _goodput(rows), _fallback(rows)]
    return "\n".join(lines)


def _goodput(rows: list[Row]) -> str:
    """How far the goodputs are from each other."""
    errors = [abs(row.ratio - 1) for row in rows]
    inside = sum(one <= GOAL for one in errors)
    middle, most, usual = statistics.median(errors), max(errors), sum(row.plausible for row in rows)
    return (
        f"goodput: median error {middle:.1%}, largest {most:.1%}, {inside} of {len(rows)} within {GOAL:.0%}, {usual} "
        "among those of the simulator's seeds"
    )


def _fallback(rows: list[Row]) -> str:
    """How far the fallback shares are from each other, where the simulated one is not close to 0 also as ratios."""
    off = [100 * abs(row.difference) for row in rows if row.simulated.fallback_share or row.live.fallback_share]
    some = [row for row in rows if row.simulated.fallback_share >= 0.05]
    good = sum(abs(row.difference) <= GOAL * row.simulated.fallback_share for row in some)
    return (
        f"fallback share, {len(off)} points that have any: median difference {statistics.median(off):.1f} percentage "
        f"points, largest {max(off):.1f}; {good} of {len(some)} that are 5 % or more within {GOAL:.0%} of their value"
    )


def pictures(folder: Path, rows: list[Row]) -> None:
    """Write the scatter of both figures."""
    for name, title, figure, scale in (
        ("goodput", "Goodput of a worker, Mb/s", "goodput_bits_per_s", 1e-6),
        ("fallback", "Fallback share, %", "fallback_share", 100.0),
    ):
        clouds = []
        for mode in dict.fromkeys(row.point.mode for row in rows):
            mine = [row for row in rows if row.point.mode == mode]
            x = [scale * getattr(row.simulated, figure) for row in mine]
            y = [scale * getattr(row.live, figure) for row in mine]
            clouds.append(Cloud(mode.replace("_", " "), x, y))
        drawn = scatter_svg(title, clouds, "simulated", "live; dashed: 15 % off", band=GOAL)
        (folder / f"live-network-{name}.svg").write_text(drawn)


def main() -> None:
    """Measure and print."""
    passes = int(sys.argv[sys.argv.index("--passes") + 1]) if "--passes" in sys.argv else 1 if QUICK else 3
    first = int(sys.argv[sys.argv.index("--seed") + 1]) if "--seed" in sys.argv else 0
    links, rows = measure(passes, first)
    if "--svg" in sys.argv:
        pictures(Path(sys.argv[sys.argv.index("--svg") + 1]), rows)
    if "--json" in sys.argv:
        print(json.dumps({"links": asdict(links), "points": [asdict(row) for row in rows]}))
    else:
        print(table(links, rows, passes))


if __name__ == "__main__":
    main()
