"""Sharing one GPU: what the guaranteed job loses, and what opportunistic jobs get of its slack.

    python benchmarks/bench_sharing.py [--quick]

A table in virtual time, no benchmark of speed: 18 patterns (six guaranteed steps, three opportunistic quanta), packed,
with the share law, and with the stage gate and the law. Each cell is the guaranteed slowdown and the part of the slack
obtained, the mean over seeds of 600 virtual seconds from a cold start (`--quick`: 120, one seed). It is the table of
docs/explanation/sharing-law.md; four minutes.
"""

from __future__ import annotations

import sys
import time

from plait.sharing import longest_quantum_s
from plait.sim.gpu import PATTERNS, QUANTA_S, Mode, table_cell


def main() -> None:
    """One line a pattern and quantum, in Markdown."""
    quick = "--quick" in sys.argv
    seconds, seeds = (120.0, 1) if quick else (600.0, 3)
    begin_s = time.process_time()
    print("| guaranteed step (GPU+host ms) | slack | q ms | rule | packed | law | gate + law |")
    print("|---|---|---|---|---|---|---|")
    for pattern in PATTERNS.values():
        for quantum_s in QUANTA_S:
            cells = []
            for mode in Mode:
                slowdown, part = table_cell(pattern, quantum_s, mode, seconds, range(1, seeds + 1))
                cells.append(f"{slowdown:.3f} / {part:.2f}")
            longest = [longest_quantum_s(pattern.step_s, gaps) * (1 + 1e-9) for gaps in (pattern.gaps, pattern.stages)]
            rule = "always" if quantum_s <= longest[0] else "with the gate" if quantum_s <= longest[1] else "–"
            print(f"| {pattern.name} | {pattern.slack:.2f} | {quantum_s * 1e3:g} | {rule} | {' | '.join(cells)} |")
            sys.stdout.flush()
    print(f"\n{seconds:g} virtual seconds, {seeds} seeds, {time.process_time() - begin_s:.0f} CPU s")


if __name__ == "__main__":
    main()
