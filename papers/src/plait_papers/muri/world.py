"""The artifact's world for `plait simulate`: one run, with figures under the names of all of plait's results."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, get_args

import numpy as np

from plait.control.history import Timeline
from plait.control.metrics import RunResult, Value
from plait.core.cluster import Cluster
from plait.core.version import __version__
from plait.sim.published import PublishedRun
from plait_papers.muri.artifact.engine import Overhead
from plait_papers.muri.artifact.settings import MEANINGS, SUMMARIES, read_setting
from plait_papers.muri.artifact.trace import read
from plait_papers.muri.runs import Case, Done, run_case, summary_of


class MuriArtifact:
    """Muri's released simulator (SIGCOMM 2022, commit 4e69a78)."""

    summary = "Muri's released simulator, to all printed digits: 64 GPUs, its placement, overheads and policies"
    policies: Mapping[str, str] = SUMMARIES
    options: Mapping[str, str] = MEANINGS
    cluster = "8x8"
    trace_format: str | None = "muri"
    takes: tuple[str, ...] = ("round_s", "overheads", "jobs")
    overheads: tuple[str, ...] = get_args(Overhead)

    def check(self, policy: str) -> None:
        """Raise `InputError` if the policy or its options are not of this world."""
        read_setting(policy)

    def jobs(self, run: PublishedRun) -> int:
        return len(read(run.trace, run.jobs))

    def run(self, run: PublishedRun, ended: Callable[[int], None] | None = None, **labels: Any) -> RunResult:
        """Simulate the run as the artifact does.

        `ended` is called with the number of ended jobs; `labels` go into the summary.
        """
        overhead: Any = run.overheads or self.overheads[0]
        case = Case(str(run.trace), run.policy, run.jobs, run.round_s, overhead)
        done = run_case(case, ended)
        summary: dict[str, Value] = {
            "trace": str(run.trace),
            "policy": run.policy,
            "world": run.world,
            "seed": 0,
            "cluster": self.cluster,
            **summary_of(done),
            "round_s": run.round_s,
            "overheads": overhead,
            "cpu_s": round(done.cpu_s, 3),
            "version": __version__,
            **labels,
        }
        return RunResult(
            summary,
            _columns(done),
            {},
            Timeline.empty(Cluster.parse(self.cluster), done.jobs, done.events, done.makespan_s),
        )


def _columns(done: Done) -> dict[str, Any]:
    """The per-job table under the names it has everywhere."""
    given = {name: np.array(column) for name, column in done.columns.items()}
    n = done.jobs
    return {
        "number": np.arange(n),
        "id": given["row"].astype(str).astype(object),
        "gpus": given["gpus"],
        "submit_s": given["submit_s"],
        "first_start_s": given["first_start_s"],
        "end_s": given["end_s"],
        "jct_s": given["jct_s"],
        "queue_s": given["jct_s"] - given["attained_s"],
        "run_s": given["attained_s"],
        "attained_gpu_s": given["attained_s"] * given["gpus"],
        "starts": given["starts"],
        "state": np.full(n, "finished", dtype=object),
        "reason": np.full(n, "", dtype=object),
    }
