"""A simulated day of 80 jobs that adapt their batch, on 32 GPUs: what events save over polling.

    python benchmarks/bench_adaptive.py [--quick]

The alternative is the same simulator, which checks every 30 s whether a job would change its batch, as a live job
does; under `tiresias-l` jobs end at the same time either way, or the benchmark fails. `--quick` is 40 jobs on 16 GPUs.
"""

from __future__ import annotations

import sys
from functools import partial

import common
import numpy as np
from common import Figure

from plait import Cluster, JobBatch, make_policy, make_world
from plait.control.controller import Controller
from plait.control.drive import drive
from plait.core.arrays import FloatArray
from plait.sim.backend import Simulator
from plait.sim.world import SimulationSettings

POLICIES = ("tiresias-l", "pollux")
ASK_MS = 30_000.0


class Asking(Simulator):
    """Asks every job every 30 s of work."""

    def _set_pace(self, job: int) -> None:
        super()._set_pace(job)
        turn = min(self.retune_ms[job], self.since_ms[job] + ASK_MS)
        self.retune_ms[job] = turn if turn < self.stop_ms[job] else np.inf


def ends(kind: type[Simulator], batch: JobBatch, cluster: Cluster, policy: str) -> FloatArray:
    """When each job ends, seconds."""
    controller = Controller(make_policy(policy), cluster)
    drive(controller, kind(batch, cluster, SimulationSettings(overheads=make_world("pollux").overheads)))
    found: FloatArray = controller.job_store.columns["end_s"][: len(batch)]
    if np.isnan(found).any():
        raise SystemExit(f"{policy}: some jobs never ended")
    return found


def main() -> None:
    """Measure and print."""
    count, nodes, runs = (40, 4, 1) if "--quick" in sys.argv else (80, 8, 3)
    batch, cluster = common.jobs(count, 4 * nodes, 0.8, "pollux"), Cluster.parse(f"{nodes}x4")
    figures = []
    for policy in POLICIES:
        ends(Simulator, batch[:3], cluster, policy)
        events = ends(Simulator, batch, cluster, policy)
        if policy == "tiresias-l" and not np.allclose(events, ends(Asking, batch, cluster, policy), atol=60.0):
            raise SystemExit(f"{policy}: jobs end at other times if they are asked all the time")
        ours = common.cpu_s(partial(ends, Simulator, batch, cluster, policy), runs)
        asking = common.cpu_s(partial(ends, Asking, batch, cluster, policy), 1)
        note = f"mean JCT {(events - batch.submit_s).mean():,.0f} s"
        what = f"{count} adaptive jobs, {4 * nodes} GPUs, {policy}"
        figures.append(Figure(what, ours, runs, asking / ours, "every job asked every 30 s, one run", note=note))
    common.show(figures)


if __name__ == "__main__":
    main()
