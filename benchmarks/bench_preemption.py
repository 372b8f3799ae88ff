"""What the preemption rule and sticky groups change, and which policy suits a mixed queue best.

    python benchmarks/bench_preemption.py [--jobs N] [--data DIR] [--trace TEXT] [--policies A,B]    before and after
    python benchmarks/bench_preemption.py --mixed [--jobs N]                        policies on plain and attached jobs

Before and after: the same jobs with every policy stopping and moving whom it likes and Muri grouping anew at each
decision (`FREELY`, `sticky=off`), as published, and with the rule and sticky groups, which are the default. Jobs of
Muri's traces 1 and 3 are read from DIR, those of a Philly-like trace are drawn; both also with all jobs at once.
Figures are ratios of mean and 99th percentile of completion times, after over before, and preemptions.

Mixed: half of the jobs of a Philly-like trace are plain: they have no checkpoint to go on from and no stage profile.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from plait import Cluster, JobBatch, load_jobs, make_policy, make_world, simulate
from plait.core.jobs import Checkpoints
from plait.core.preemption import DEFAULT_RULE, FREELY, PreemptionRule
from plait.traces.assign import assign_models
from plait.traces.formats import read_trace
from plait.traces.synthetic import generate

LOADS = (0.7, 1.0, 1.5)
POLICIES = ("muri-s", "muri-l", "srsf", "2d-las", "tiresias-l")
#: Sizes are unknown live; the last two know them and show what that would be worth.
CANDIDATES = (
    "muri-l", "muri-l:order=discretised", "2d-las", "las", "tiresias-l", "gandiva", "fifo-backfill", "fifo", "drf",
    "muri-s", "srsf",
)  # fmt: skip


@dataclass(frozen=True)
class Outcome:
    """Figures of a run: completion times of all jobs, which of them are plain, preemptions, lost work in GPU-hours."""

    jct_s: np.ndarray
    plain: np.ndarray
    preemptions: int
    lost_gpu_h: float

    def mean_s(self, which: np.ndarray) -> float:
        """Mean completion time of some jobs."""
        return float(self.jct_s[which].mean())

    def p99_s(self, which: np.ndarray) -> float:
        """The 99th percentile of completion times of some jobs."""
        return float(np.percentile(self.jct_s[which], 99))


def run(jobs: JobBatch, policy: str, rule: PreemptionRule, cluster: str = "8x8") -> Outcome:
    """One run in the default world, with measured overheads."""
    done = simulate(jobs, Cluster.parse(cluster), make_policy(policy), make_world("plait"), rule=rule)
    n, columns = len(jobs), done.controller.books.columns
    return Outcome(
        columns["end_s"][:n] - columns["submit_s"][:n],
        jobs.column("checkpoints") == int(Checkpoints.NEVER),
        int(columns["preemptions"][:n].sum()),
        float((columns["lost_s"][:n] * columns["gpus"][:n]).sum()) / 3600,
    )


def philly(count: int, load: float) -> JobBatch:
    """A Philly-like trace with models, on 64 GPUs."""
    return load_jobs(assign_models(generate("philly", count, 64, load, 1), seed=1)).jobs


def traces(data: Path, count: int) -> Iterator[tuple[str, JobBatch]]:
    """The first jobs of each trace, by name."""
    for name in ("trace1", "trace3"):
        found = next(data.rglob(f"{name}.csv"), None)
        if found is None:
            print(f"{name}.csv is not under {data}: left out", file=sys.stderr)
            continue
        table = read_trace(str(found), "muri")
        jobs = load_jobs(table.select(np.arange(min(count, len(table))))).jobs
        yield f"Muri's {name}", jobs
        if name == "trace3":
            yield "trace3, all at once", jobs.replace(submit_s=np.zeros(len(jobs)))
    for load in LOADS:
        yield f"Philly-like, load {load:g}", philly(count, load)
    jobs = philly(count, 1.0)
    yield "Philly-like, all at once", jobs.replace(submit_s=np.zeros(len(jobs)))


def before_and_after(data: Path, count: int, part: str, policies: Sequence[str]) -> None:
    """Print the first table, of traces with `part` in their names."""
    print("| trace | policy | mean JCT | p99 JCT | preemptions before | after |\n|---|---|---:|---:|---:|---:|")
    for name, jobs in traces(data, count):
        every = np.ones(len(jobs), dtype=bool)
        for policy in policies if part in name else ():
            published = f"{policy}:sticky=off" if policy.startswith("muri") else policy
            old, new = run(jobs, published, FREELY), run(jobs, policy, DEFAULT_RULE)
            mean, p99 = new.mean_s(every) / old.mean_s(every), new.p99_s(every) / old.p99_s(every)
            row = f"| {name} | `{policy}` | {mean:.3f} | {p99:.3f} | {old.preemptions:,} | {new.preemptions:,} |"
            print(row, flush=True)


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
    count = int(options.get("--jobs", "200"))
    if "--mixed" in given:
        mixed(count)
    else:
        policies = options.get("--policies", ",".join(POLICIES)).split(",")
        before_and_after(Path(options.get("--data", "../shared/data")), count, options.get("--trace", ""), policies)


if __name__ == "__main__":
    main()
