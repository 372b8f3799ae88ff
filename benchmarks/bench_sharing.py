"""The share law against what it has to reach: what guaranteed jobs lose, and what opportunistic jobs get.

    python benchmarks/bench_sharing.py [--rows REGEX] [--seeds 1,2,3] [--data FOLDER] [--patterns]

Tables in virtual time, no benchmark of speed. Each row is a host beside guests for 900 virtual seconds from a cold
start, or as stated: slowdown in the mean and in the worst minute (of a server: p99 over p99 without guests), the part
of the slack that guests got, and what was asked for. `--data`: a folder with job_1.csv and job_2.csv of `pai-steps`,
whose step times 20 more rows repeat. `--hours N`: instead the false alarms of the
law in N hours of steps with 5 % noise, a line a seed (26 CPU seconds for 24 hours).
`--patterns`: instead the 18 patterns of docs/explanation/sharing-law.md, packed, with the law, and with gate and law.
About 2 CPU seconds a row and seed.
"""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Sequence
from pathlib import Path

from sharing_rows import QUANTA_S, Row, beside, false_alarms, recorded, result, rows

from plait.sharing.grant import EPS
from plait.sim.gpu import PATTERNS, Mode, Variation, table_cell

#: What real series have to reach: of all in the median, and each one.
MEDIAN, LEAST = 0.70, 0.30


def main() -> None:
    """A line a row, in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rows", default="", help="only rows whose name this regular expression finds")
    parser.add_argument("--seeds", default="1", help="default 1")
    parser.add_argument("--data", type=Path, help="folder of recorded step times")
    parser.add_argument("--hours", type=float, default=0.0, help="instead the false alarms in so many hours")
    parser.add_argument("--patterns", action="store_true", help="the 18 patterns instead")
    args = parser.parse_args()
    begin_s = time.process_time()
    seeds = [int(n) for n in args.seeds.split(",")]
    if args.patterns:
        patterns()
    elif args.hours:
        for seed in seeds:
            found = false_alarms(args.hours, seed)
            print(
                f"{args.hours:g} h, seed {seed}: {found.alarms} false alarms in {found.contrasts:,} contrasts",
                flush=True,
            )
    else:
        judged([row for row in [*rows(), *series(args.data)] if re.search(args.rows, row.name)], seeds)
    print(f"\n{time.process_time() - begin_s:.0f} CPU s")


def series(folder: Path | None) -> list[Row]:
    """A row for each worker of the recorded jobs; none without a folder."""
    found = {} if folder is None else recorded(folder / "job_1.csv") | recorded(folder / "job_2.csv")
    return [Row(f"{name} q 2", beside([2], varied=Variation(cycle=steps)), LEAST) for name, steps in found.items()]


def judged(found: Sequence[Row], seeds: Sequence[int]) -> None:
    """The table, and how many rows miss what they have to reach."""
    print("| host and guests | seed | slowdown, worst minute (p99) | part of the slack | wanted | alarms | missed |")
    print("|---|---|---|---|---|---|---|")
    missed, shares = 0, []
    for row in found:
        for seed in seeds:
            got = result(row, seed)
            misses = got.misses(row)
            missed += bool(misses)
            if " worker " in row.name:
                shares.append(got.share)
            cost = f"p99 {got.tail:.3f}" if row.scenario.latency else f"{got.slowdown:.4f}, {got.minute:.3f}"
            wanted = "host only" if row.least is None else f"{row.least:.2f}"
            print(
                f"| {row.name} | {seed} | {cost} | {got.share:.2f} | {wanted} | {got.alarms} | {'; '.join(misses)} |",
                flush=True,
            )
    print(f"\n{missed} of {len(found) * len(seeds)} missed")
    if shares:
        print(
            f"recorded steps: median {sorted(shares)[len(shares) // 2]:.2f} (wanted {MEDIAN}), least {min(shares):.2f}"
        )


def patterns() -> None:
    """One line a pattern and quantum: guaranteed slowdown and part of the slack, means of 600 s and three seeds."""
    print("| guaranteed step (GPU+host ms) | slack | q ms | rule | packed | law | gate + law |")
    print("|---|---|---|---|---|---|---|")
    for pattern in PATTERNS.values():
        for quantum_s in QUANTA_S:
            cells = [table_cell(pattern, quantum_s, mode, 600.0, (1, 2, 3)) for mode in Mode]
            longest = [EPS * pattern.step_s / gaps * (1 + 1e-9) for gaps in (pattern.gaps, pattern.stages)]
            rule = "always" if quantum_s <= longest[0] else "with the gate" if quantum_s <= longest[1] else "–"
            found = " | ".join(f"{slowdown:.3f} / {part:.2f}" for slowdown, part in cells)
            print(f"| {pattern.name} | {pattern.slack:.2f} | {quantum_s * 1e3:g} | {rule} | {found} |", flush=True)


if __name__ == "__main__":
    main()
