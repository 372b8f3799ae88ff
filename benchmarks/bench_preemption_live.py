"""Plain and attached scripts in one queue on a live cluster: completion times of both under each policy.

    python benchmarks/bench_preemption_live.py [--quick] [POLICY ...]

Two slots; every job sleeps, so only the policy and the restarts take time. Each policy gets the same submissions: half
of the jobs are plain scripts, which start over after a stop, and half call `attach` and resume. Figures are wall
seconds, relative to `fifo` in the same run; lost work is the cluster's own figure. `--quick`: a third of the jobs.
"""

from __future__ import annotations

import os
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import common
import numpy as np
from bench_forecast import ATTACHED, PLAIN

from plait.live.client.client import FINAL
from plait.testing.cluster import Cluster

JOBS = 8 if "--quick" in sys.argv else 24
SLOTS, MEDIAN_S, SIGMA, LOAD = 2, 5.0, 0.8, 1.0
#: The baseline comes first.
POLICIES = ("fifo", "muri-l", "tiresias-l", "2d-las")


def submissions(seed: int = 3) -> list[tuple[float, str, dict[str, Any]]]:
    """Seconds of arrival, kind and request of each job."""
    rng = random.Random(seed)
    at_s, out = 0.0, []
    for i in range(JOBS):
        seconds = rng.lognormvariate(0.0, SIGMA) * MEDIAN_S
        kind = "attached" if i % 2 else "plain"
        if kind == "plain":
            request: dict[str, Any] = {"command": [sys.executable, "-c", PLAIN, f"{seconds:.2f}"]}
        else:
            request = {"command": [sys.executable, "attached.py", str(max(2, round(seconds / 0.1)))]}
        out.append((at_s, kind, request))
        at_s += rng.expovariate(LOAD * SLOTS / (MEDIAN_S * np.exp(SIGMA**2 / 2)))
    return out


def run(policy: str) -> dict[str, float]:
    """Mean and largest completion by kind, seconds; restarts of plain jobs; GPU-seconds of work that a policy lost."""
    jobs = submissions()
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "attached.py").write_text(ATTACHED)
        options = {"policy": policy}
        with (
            Cluster(Path(folder) / "home", slots=SLOTS, nodes=1, options=options) as cluster,
            cluster.client() as service,
        ):
            begin, names = time.monotonic(), []
            for at_s, _, request in jobs:
                time.sleep(max(0.0, begin + at_s - time.monotonic()))
                names.append(service.submit([{**request, "workdir": folder}])[0].id)
            while any(job.state not in FINAL for job in service.jobs(limit=10 * JOBS)):
                time.sleep(0.5)
            ended = [service.job(name) for name in names]
            lost = service.status().lost.work_gpu_s.get("preempted", 0.0)
    assert all(job.state == "finished" for job in ended), "a benchmark that loses jobs measures nothing"
    out = {"lost": lost, "restarts": float(sum(job.preemptions for job in ended))}
    for kind in ("plain", "attached", "all"):
        jct_s = [job.jct_s for job, (_, own, _) in zip(ended, jobs, strict=True) if kind in (own, "all")]
        out[f"{kind} mean"], out[f"{kind} p99"] = float(np.mean(jct_s)), float(np.percentile(jct_s, 99))
    out["plain again"] = float(sum(j.preemptions for j, (_, own, _) in zip(ended, jobs, strict=True) if own == "plain"))
    return out


def table(policies: Sequence[str]) -> None:
    """A row a policy, completions as ratios to the first."""
    print(
        f"{common.machine()}; load of the machine {os.getloadavg()[0]:.1f} at the beginning; {JOBS} jobs, {SLOTS} slots"
    )
    heads = ("all mean", "all p99", "plain mean", "plain p99", "attached mean", "attached p99")
    print("| policy | " + " | ".join(f"{head} JCT" for head in heads) + " | preemptions (plain) | work lost, s |")
    print("|---|" + "---:|" * (len(heads) + 2))
    first: dict[str, float] = {}
    for policy in policies:
        found = run(policy)
        first = first or found
        ratios = " | ".join(f"{found[head] / first[head]:.2f}" for head in heads)
        again = f"{found['restarts']:.0f} ({found['plain again']:.0f})"
        print(f"| `{policy}` | {ratios} | {again} | {found['lost']:.1f} |", flush=True)


if __name__ == "__main__":
    named = [word for word in sys.argv[1:] if not word.startswith("--")]
    table(named or POLICIES)
