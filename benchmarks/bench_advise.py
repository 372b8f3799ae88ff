"""Advice from 100,000 jobs: twenty policies in rounds, beside simulating all of them on all jobs.

    python benchmarks/bench_advise.py [--quick] [--processes N]

The history is one that `fifo-backfill` made on 2,504 GPUs at load 0.9, in world `history`. Advice is the whole of
`plait.advice.advise`: the fit, the rounds, cluster sizes and effects, with the CPU seconds of all processes. The
alternative is what twenty full simulations would take: that of `fifo-backfill`, which is among the fastest, times
twenty. The fit must be within the tolerance, or the benchmark fails. `--quick` is 10,000 jobs on 504 GPUs.
"""

from __future__ import annotations

import os
import resource
import sys
import time

import numpy as np
from common import Figure, show

from plait import Cluster, make_policy, simulate
from plait.advice.advise import CANDIDATES, Asked, advise
from plait.advice.choices import history_world
from plait.advice.past import Past
from plait.traces.load import load_jobs
from plait.traces.synthetic.assign import assign_tenants
from plait.traces.synthetic.generate import generate

USED = "fifo-backfill"
#: Twenty in all, with the policy that was used.
POLICIES = (
    *CANDIDATES, "srtf", "2d-las:min_run_s=3600", "tiresias-l:knob=2", "las:min_run_s=3600",
)  # fmt: skip


def cpu_s() -> float:
    """CPU seconds of this process and of those that it ran."""
    spent = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in spent)


def history(count: int, nodes: int) -> tuple[Past, float]:
    """A past of so many jobs, and the CPU seconds of simulating all of it once."""
    cluster = Cluster.parse(f"{nodes}x8")
    jobs = load_jobs(assign_tenants(generate("lognormal", count, cluster.gpus, 0.9, 1), seed=1, tenants=8)).jobs
    simulate(jobs[:500], cluster, make_policy(USED), history_world())  # compiles
    begin = cpu_s()
    run = simulate(jobs, cluster, make_policy(USED), history_world())
    took = cpu_s() - begin
    columns = run.controller.job_store.columns
    ends = columns["end_s"][:count].copy()
    return Past(jobs, columns["first_start_s"][:count].copy(), ends, ~np.isnan(ends), cluster, USED), took


def main() -> None:
    """Measure and print."""
    assert len(set(POLICIES)) == 20
    count, nodes = (10_000, 63) if "--quick" in sys.argv else (100_000, 313)
    processes = int(sys.argv[sys.argv.index("--processes") + 1]) if "--processes" in sys.argv else os.cpu_count() or 1
    past, once_s = history(count, nodes)
    begin, wall = cpu_s(), time.monotonic()
    advice = advise(past, Asked(policies=POLICIES, nodes=("-10%",), processes=processes))
    took, wall = cpu_s() - begin, time.monotonic() - wall
    assert abs(advice.fit.error) < 0.05, "the policy that made the history must give it back"
    rounds = sorted({one.round for one in advice.effects})
    note = (
        f"{wall:.0f} s wall on {processes} processes, {advice.simulated:,} jobs simulated in {len(rounds)} rounds, fit "
        f"{advice.fit.error:+.1%}; {advice.sentences[0]}"
    )
    show([
        Figure(f"20 policies, {count:,} jobs", took, 1, 20 * once_s / took, f"20 x {USED} in full ({once_s:.1f} s)",
               "< 60 s on two cores", note),
    ])  # fmt: skip


if __name__ == "__main__":
    main()
