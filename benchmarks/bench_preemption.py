"""What the preemption rule and sticky groups change, and which policy suits a mixed queue best.

    python benchmarks/bench_preemption.py [--jobs N] [--seed N] [--data DIR] [--trace TEXT] [--policies A,B]
    python benchmarks/bench_preemption.py --mixed [--jobs N]                        policies on plain and attached jobs

Before and after: the same jobs as published, where policies stop and move any job and Muri groups from scratch at each
decision (`FREELY`, `sticky=off`), and with the rule and sticky groups, which are the default. Muri's traces are read
from DIR, Philly-like ones are drawn by the seed; `--jobs` takes only the first jobs of each.

Mixed: half of the jobs of a Philly-like trace are plain, so they have neither checkpoints nor stage profiles.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from plait import Cluster, JobBatch, Plan, View, load_jobs, make_policy, make_world, simulate
from plait.core.jobs import Checkpoints
from plait.core.policy import Policy, has_preemption
from plait.core.preemption import DEFAULT_RULE, FREELY, PreemptionRule
from plait.traces.assign import assign_models
from plait.traces.formats.registry import read_trace
from plait.traces.synthetic import generate

LOADS = (0.7, 1.0, 1.5)
POLICIES = ("muri-s", "muri-l", "srsf")
#: Jobs of a Philly-like trace.
COUNT = 1000
#: Sizes are unknown live; the last two know them and show what that would be worth.
CANDIDATES = (
    "muri-l", "muri-l:order=discretised", "2d-las", "las", "tiresias-l", "gandiva", "fifo-backfill", "fifo", "drf",
    "plait:knows=predicted", "plait:knows=predicted,guests=0,bound_s=21600", "muri-s", "srsf",
)  # fmt: skip


@dataclass(frozen=True)
class Outcome:
    """Figures of a run.

    Completion times of all jobs, which of them are plain, preemptions, lost work in GPU-hours, and CPU seconds of all
    decisions.
    """

    jct_s: np.ndarray
    plain: np.ndarray
    preemptions: int
    lost_gpu_h: float
    decisions_s: float

    def mean_s(self, which: np.ndarray) -> float:
        """Mean completion time of some jobs."""
        return float(self.jct_s[which].mean())

    def p99_s(self, which: np.ndarray) -> float:
        """The 99th percentile of completion times of some jobs."""
        return float(np.percentile(self.jct_s[which], 99))


@dataclass
class Timed:
    """A policy, and how long it has thought, CPU seconds."""

    policy: Policy
    cpu_s: float = 0.0

    @property
    def preempts(self) -> bool:
        """Whether the policy stops jobs for those ahead of them."""
        return has_preemption(self.policy)

    def decide(self, view: View) -> Plan:
        """What the policy decides."""
        begun = time.process_time()
        plan = self.policy.decide(view)
        self.cpu_s += time.process_time() - begun
        return plan


def run(jobs: JobBatch, policy: str, rule: PreemptionRule, cluster: str = "8x8") -> Outcome:
    """One run in the default world, with measured overheads."""
    timed = Timed(make_policy(policy))
    done = simulate(jobs, Cluster.parse(cluster), timed, make_world("plait"), rule=rule)
    n, columns = len(jobs), done.controller.job_store.columns
    return Outcome(
        columns["end_s"][:n] - columns["submit_s"][:n],
        jobs.column("checkpoints") == int(Checkpoints.NEVER),
        int(columns["preemptions"][:n].sum()),
        float((columns["lost_s"][:n] * columns["gpus"][:n]).sum()) / 3600,
        timed.cpu_s,
    )


def philly(count: int | None, load: float, seed: int = 1) -> JobBatch:
    """The first `count` jobs, None for all, of a Philly-like trace with models, on 64 GPUs."""
    table = assign_models(generate("philly", COUNT, 64, load, seed), seed=seed)
    return load_jobs(table.select(np.arange(len(table))[:count])).jobs


def traces(data: Path, count: int | None, seed: int, part: str) -> Iterator[tuple[str, JobBatch]]:
    """The first jobs of each trace with `part` in its name, all for None, by name."""
    for file, name in (("trace1", "Muri's trace 1"), ("trace3", "Muri's trace 3"), ("trace3_pr", "Muri's trace 3'")):
        found = next(data.rglob(f"{file}.csv"), None)
        if part not in name:
            continue
        if found is None:
            print(f"{file}.csv is not under {data}: left out", file=sys.stderr)
            continue
        table = read_trace(str(found), "muri")
        yield name, load_jobs(table.select(np.arange(len(table))[:count])).jobs
    for load in LOADS:
        if part in (name := f"Philly-like, load {load:g}"):
            yield name, philly(count, load, seed)
    if part in (name := "Philly-like, all at once"):
        jobs = philly(count, 1.0, seed)
        yield name, jobs.replace(submit_s=np.zeros(len(jobs)))


def before_and_after(found: Iterator[tuple[str, JobBatch]], policies: Sequence[str]) -> None:
    """Print the first table: times in hours, ratios of after to before."""
    print("| trace | policy | mean JCT, h | | p99 JCT, h | | preemptions | decisions, CPU s |")
    print("|---|---|---:|---:|---:|---:|---:|---:|")
    for name, jobs in found:
        every = np.ones(len(jobs), dtype=bool)
        for policy in policies:
            published = f"{policy}:sticky=off" if policy.startswith("muri") else policy
            old, new = run(jobs, published, FREELY), run(jobs, policy, DEFAULT_RULE)
            cells = [f"{name} | `{policy}`"]
            for before, after in ((old.mean_s(every), new.mean_s(every)), (old.p99_s(every), new.p99_s(every))):
                cells.append(f"{before / 3600:.2f} -> {after / 3600:.2f} | {after / before:.3f}")
            cells.append(f"{old.preemptions:,} -> {new.preemptions:,} | {old.decisions_s:.1f} -> {new.decisions_s:.1f}")
            print(f"| {' | '.join(cells)} |", flush=True)


def mixed(count: int) -> None:
    """Print the second table: times in hours."""
    columns = ("all", "plain", "attached")
    heads = [f"{which} {figure}" for which in columns for figure in ("mean", "p99")]
    print(f"| load | policy | {' | '.join(heads)} | preemptions | lost work, GPU-h |")
    print(f"|---:|---|{'---:|' * (len(heads) + 2)}")
    for load in LOADS:
        jobs = philly(count, load)
        plain = np.random.default_rng(7).random(len(jobs)) < 0.5
        stages = np.where(plain[:, None], np.nan, jobs.stage_s)
        kinds = np.where(plain, int(Checkpoints.NEVER), int(Checkpoints.ON_STOP))
        jobs = jobs.replace(stage_s=stages, checkpoints=kinds)
        cases = [(policy, DEFAULT_RULE, policy) for policy in CANDIDATES]
        cases.append(("muri-l", replace(DEFAULT_RULE, may_lose_work=True), "muri-l, may lose work"))
        for policy, rule, label in cases:
            found = run(jobs, policy, rule)
            every = np.ones(len(jobs), dtype=bool)
            kinds_of_jobs = (every, found.plain, ~found.plain)
            times = [figure(which) for which in kinds_of_jobs for figure in (found.mean_s, found.p99_s)]
            cells = " | ".join(f"{seconds / 3600:.2f}" for seconds in times)
            print(f"| {load:g} | `{label}` | {cells} | {found.preemptions:,} | {found.lost_gpu_h:.1f} |", flush=True)


def main() -> None:
    """Measure and print."""
    given = sys.argv[1:]
    options = {name: given[i + 1] for i, name in enumerate(given[:-1]) if name.startswith("--")}
    count = int(options["--jobs"]) if "--jobs" in options else None
    if "--mixed" in given:
        mixed(count or 200)
    else:
        data, seed = Path(options.get("--data", "../shared/data")), int(options.get("--seed", "1"))
        found = traces(data, count, seed, options.get("--trace", ""))
        before_and_after(found, options.get("--policies", ",".join(POLICIES)).split(","))


if __name__ == "__main__":
    main()
