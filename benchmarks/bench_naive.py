"""The engine against the naive reference simulator of the tests, at sizes that the reference can handle.

    python benchmarks/bench_naive.py [--quick]

The reference (`tests/reference/naive.py`) visits every job at every event. It makes the same decisions in the
same world, and both must end with the same completion times, or nothing is printed. Its time grows at least with the
square of the trace, so the ratio grows with the size: two sizes are shown, and none is extrapolated.
"""

from __future__ import annotations

import sys
from functools import partial
from typing import Any

import common
import numpy as np
from common import Figure

from plait import Cluster, make_policy

sys.path.insert(0, str(common.ROOT / "tests"))
reference: Any = __import__("reference.naive", fromlist=["naive"])

POLICIES = ("srsf", "2d-las")


def main() -> None:
    """Measure and print."""
    sizes = ((300, 4),) if "--quick" in sys.argv else ((500, 8), (2000, 32))
    figures = []
    for policy in POLICIES:
        for round_s, how in ((360.0, "rounds"), (0.0, "every event")):
            common.run(common.jobs(300, 64), "8x8", make_policy(policy), round_s)
            for count, nodes in sizes:
                figures.append(compare(policy, count, nodes, round_s, how))
    common.show(figures)


def compare(policy: str, count: int, nodes: int, round_s: float, how: str) -> Figure:
    """One policy at one size; raises if the two disagree."""
    batch, cluster = common.jobs(count, 8 * nodes), Cluster.parse(f"{nodes}x8")
    rules = reference.Rules(round_ms=int(1000 * round_s))
    slow = partial(reference.naive, list(batch), cluster, reference.asking(make_policy(policy)), rules)
    ends = []
    naive_s = common.cpu_s(lambda: ends.append(np.array([job.ended_at / 1000 for job in slow().jobs])), 1)
    fast = partial(common.run, batch, f"{nodes}x8", make_policy(policy), round_s)
    job_store = fast().controller.job_store
    assert np.array_equal(ends[0], job_store.columns["end_s"][: job_store.count]), (
        f"{policy}: engine and reference differ"
    )
    seconds = common.cpu_s(fast)
    label = f"{count:,} jobs, {8 * nodes} GPUs, {policy}, {how}"
    note = f"naive {naive_s:.1f} s, one run"
    return Figure(label, seconds, common.RUNS, naive_s / seconds, "naive reference", note=note)


if __name__ == "__main__":
    main()
