"""Compiled kernels against the same functions as plain Python (a core install without the extra `[sim]`).

    python benchmarks/bench_jit.py [--quick]

The plain run is a process of its own with `NUMBA_DISABLE_JIT=1`. Both must end with the same completion times.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import partial

import common
from common import Figure

from plait import make_policy

CASES = (("srsf", 360.0), ("srsf", 0.0), ("2d-las", 360.0))


def measured(count: int, nodes: int, runs: int) -> list[tuple[float, float]]:
    """(CPU seconds, sum of completion times) of each case in this process."""
    out = []
    batch = common.jobs(count, 8 * nodes)
    for policy, round_s in CASES:
        common.run(common.jobs(300, 64), "8x8", make_policy(policy), round_s)
        once = partial(common.run, batch, f"{nodes}x8", make_policy(policy), round_s)
        seconds = common.cpu_s(once, runs)
        job_store = once().controller.job_store
        out.append((seconds, float(job_store.columns["end_s"][: job_store.count].sum())))
    return out


def main() -> None:
    """Measure and print."""
    count, nodes = (2_000, 8) if "--quick" in sys.argv else (10_000, 32)
    if "--plain" in sys.argv:
        print(json.dumps(measured(count, nodes, 1)))
        return
    command = [sys.executable, __file__, "--plain", *(a for a in sys.argv[1:] if a == "--quick")]
    plain = subprocess.run(
        command, check=True, capture_output=True, text=True, env={**os.environ, "NUMBA_DISABLE_JIT": "1"}
    )
    figures = []
    for case, ours, theirs in zip(CASES, measured(count, nodes, 3), json.loads(plain.stdout), strict=True):
        assert ours[1] == theirs[1], "compiled and plain kernels must agree"
        label = f"{count:,} jobs, {8 * nodes} GPUs, {case[0]}, {'rounds' if case[1] else 'every event'}"
        figures.append(Figure(label, ours[0], 3, theirs[0] / ours[0], "plain Python kernels"))
    common.show(figures)


if __name__ == "__main__":
    main()
