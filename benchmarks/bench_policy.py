"""A user's own policy in plain Python over `JobTable` columns, against the built-in one that decides the same.

    python benchmarks/bench_policy.py [--quick]

Both run on the same controller and simulator; the decisions are compared before anything is timed. The built-in one is
an order by a declared key, so its runs are compiled stretches of instants; the own one is called at each decision.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import partial

import common
import numpy as np
from common import Figure

from plait import Plan, View, make_policy, place


@dataclass(frozen=True)
class MySrsf:
    """Shortest remaining service first, as a user would write it."""

    def decide(self, view: View) -> Plan:
        """Order, then place."""
        jobs = view.jobs
        return place(view, np.argsort(jobs.remaining_s * jobs.gpus, kind="stable"))


def main() -> None:
    """Measure and print."""
    large, medium = (100_000, 313), (10_000, 32)  # at every event the large one would take ten minutes
    cases = ((large if "--quick" not in sys.argv else medium, 360.0), (medium, 0.0))
    figures = []
    for (count, nodes), round_s in cases:
        runs, how = common.RUNS, "rounds" if round_s else "every event"
        for policy in (make_policy("srsf"), MySrsf()):
            common.run(common.jobs(300, 64), "8x8", policy, round_s)
        batch = common.jobs(count, 8 * nodes)
        ends = [common.run(batch, f"{nodes}x8", p, round_s).controller for p in (make_policy("srsf"), MySrsf())]
        same = np.array_equal(*(c.job_store.columns["end_s"][: c.job_store.count] for c in ends))
        assert same, "the two policies must decide the same, or the comparison says nothing"
        built_in, own = (
            common.cpu_s(partial(common.run, batch, f"{nodes}x8", policy, round_s), runs)
            for policy in (make_policy("srsf"), MySrsf())
        )
        label = f"own SRSF in Python, {count:,} jobs, {how}"
        figures.append(Figure(label, own, runs, built_in / own, "built-in srsf", note=f"built-in {built_in:.3f} s"))
    common.show(figures)


if __name__ == "__main__":
    main()
