"""Advice from 100,000 jobs: twenty policies in rounds, and how good the choice is beside simulating all in full.

    python benchmarks/bench_advise.py [--quick] [--processes N] [--full]

The history is one that `fifo-backfill` made on 2,504 GPUs, of jobs as Philly had them at load 0.95: for hours there is
no queue, then it is long. Advice is the whole of `plait.outlook.advice`: the fit, the rounds, cluster sizes and
effects, with the CPU seconds of all processes. The alternative is what twenty full simulations would take: that of
`fifo-backfill`, which is among the fastest, times twenty. The fit must be within the tolerance, or the benchmark fails.

`--full` simulates every policy on all jobs, with the decision interval of the advice, and prints the regret: how much
longer the mean completion time is under the policy that the rounds put first than under the best of all, and the
correlation (Spearman) of both orders. `--quick` is 10,000 jobs on 504 GPUs.
"""

from __future__ import annotations

import os
import resource
import sys
import time

import numpy as np
from common import Figure, show

from plait import Cluster, make_policy, simulate
from plait.outlook.advice import CANDIDATES, Advice, AdviceRequest, advise
from plait.outlook.choices import Alternative, Simulations, history_world, mean_jct_s, round_of
from plait.outlook.past import Past
from plait.traces.assign import assign_tenants
from plait.traces.load import load_jobs
from plait.traces.synthetic import generate

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
    jobs = load_jobs(assign_tenants(generate("philly", count, cluster.gpus, 0.95, 1), seed=1, tenants=8)).jobs
    simulate(jobs[:500], cluster, make_policy(USED), history_world())  # compiles
    begin = cpu_s()
    run = simulate(jobs, cluster, make_policy(USED), history_world())
    took = cpu_s() - begin
    columns = run.controller.job_store.columns
    ends = columns["end_s"][:count].copy()
    return Past(jobs, columns["first_start_s"][:count].copy(), ends, ~np.isnan(ends), cluster, USED), took


def in_full(past: Past, advice: Advice, asked: AdviceRequest) -> str:
    """Every policy on all jobs beside the order of the rounds, as a note."""
    begin = cpu_s()
    with Simulations(past, round_s=round_of(past, asked.budget), processes=asked.processes) as simulations:
        choices = [Alternative("policy", text, text, past.cluster) for text in POLICIES]
        outcomes = simulations.of(choices, len(past.jobs))
    took = cpu_s() - begin
    mean_s = {choice.policy: mean_jct_s(outcome) for choice, outcome in zip(choices, outcomes, strict=True)}
    first = [one.choice.policy for one in advice.of_kind("policy")]
    regret = mean_s[first[0]] / min(mean_s[name] for name in first) - 1.0
    able = [one.choice.policy for one in advice.of_kind("policy") if not one.choice.oracle]
    regret_able = mean_s[able[0]] / min(mean_s[name] for name in able) - 1.0
    place = np.argsort(np.argsort([mean_s[name] for name in first], kind="stable"))
    agreement = float(np.corrcoef(place, np.arange(len(first)))[0, 1])
    spread = max(mean_s.values()) / min(mean_s.values()) - 1.0
    return (
        f"; regret {regret:.2%} ({regret_able:.2%} among those that can be recommended; best to worst {spread:.0%}), "
        f"rank correlation {agreement:.2f}, beside all in full ({took:.0f} CPU s)"
    )


def main() -> None:
    """Measure and print."""
    assert len(set(POLICIES)) == 20
    count, nodes = (10_000, 63) if "--quick" in sys.argv else (100_000, 313)
    processes = int(sys.argv[sys.argv.index("--processes") + 1]) if "--processes" in sys.argv else os.cpu_count() or 1
    past, once_s = history(count, nodes)
    asked = AdviceRequest(policies=POLICIES, nodes=("-10%",), processes=processes)
    begin, wall = cpu_s(), time.monotonic()
    advice = advise(past, asked)
    took, wall = cpu_s() - begin, time.monotonic() - wall
    assert abs(advice.fit.error) < 0.05, "the policy that made the history must give it back"
    rounds = sorted({one.round for one in advice.effects})
    note = (
        f"{wall:.0f} s wall on {processes} processes, {advice.simulated:,} jobs simulated in {len(rounds)} rounds, fit "
        f"{advice.fit.error:+.1%}; {advice.sentences[0]}"
    )
    if "--full" in sys.argv:
        note += in_full(past, advice, asked)
    show([
        Figure(f"20 policies, {count:,} jobs", took, 1, 20 * once_s / took, f"20 x {USED} in full ({once_s:.1f} s)",
               "< 60 s on two cores", note),
    ])  # fmt: skip


if __name__ == "__main__":
    main()
