"""What a forecast of the queue costs, and how often its intervals hold.

    python benchmarks/bench_what_if.py [--quick] [--speed | --coverage]

Speed: 5,000 jobs on 10,000 GPUs, in CPU seconds: the forecast of all jobs after a decision, and `submit --what-if` with
its variants; beside the simulation of the same state. Coverage: two public traces, replayed in the simulator with
durations that the policy does not know; every submission is forecast at its first decision.
"""

from __future__ import annotations

import sys
from functools import partial
from itertools import product
from pathlib import Path

import common
import numpy as np
from common import Figure

from plait import Cluster, load_jobs, make_policy
from plait.control.controller import Controller
from plait.control.drive import drive
from plait.control.messages import Command, Event, JobSubmitted, ReplanDue
from plait.control.snapshot import of_active
from plait.core.jobs import JobBatch, JobSpec
from plait.live.scheduler.explain.durations import History
from plait.live.scheduler.explain.outlook import Calibrations, foresee
from plait.live.scheduler.explain.queue_arrays import Who
from plait.live.scheduler.explain.queue_copy import QueueCopy
from plait.live.scheduler.explain.submission import what_if
from plait.live.scheduler.records.track_record import TrackRecord
from plait.outlook.coverage import Coverage
from plait.outlook.eta import draw as draw_truth
from plait.outlook.eta import pace_s, play
from plait.sim.backend import Simulator
from plait.sim.world import SimulationSettings
from plait.traces.formats.registry import read_trace

DATA = Path(__file__).resolve().parents[2] / "shared" / "data"
TRACES = (("muri", "muri/trace1.csv"), ("openb2023", "openb2023/openb_pod_list_default.csv"))
#: The cluster has as many nodes of eight GPUs as are enough for all jobs this part of the time: with 0.9 its queue
#: drains every now and then, with 0.7 it grows for months.
ENOUGH_FOR = (0.9, 0.7)
POLICIES = ("fifo", "fifo-backfill", "tiresias-l")
JOBS, NODES = 5000, 1250


def coverage(path: Path, kind: str, policy: str, most: int, enough_for: float) -> Coverage:
    """Replay a trace and forecast each of its jobs without knowing how long any of them takes."""
    truth = load_jobs(read_trace(path, kind)).jobs[:most]
    names = truth.column("model").tolist()
    reported = truth.replace(iterations=np.full(len(truth), np.nan), iteration_s=np.full(len(truth), np.nan))
    ends_s = truth.submit_s + truth.iterations * truth.iteration_s
    at_s = np.linspace(*np.quantile(truth.submit_s, [0.1, 1.0]), 500)[:, None]
    gpus = float(np.quantile(((truth.submit_s <= at_s) & (at_s < ends_s)) @ truth.gpus, enough_for))
    controller = Controller(make_policy(policy), Cluster.of(max(1, round(gpus / 8)), 8))
    watch = Coverage(lambda job: Who("", names[job]))
    simulator = Simulator(truth, controller.cluster, SimulationSettings(), reported)

    def see(event: Event, commands: list[Command]) -> None:
        watch.see(controller, event)

    drive(controller, simulator, see)
    return watch


def full_queue(policy: str) -> tuple[QueueCopy, History]:
    """A queue after its first decision, and jobs that ended before."""
    rng = np.random.default_rng(0)
    history = History()
    for _ in range(3000):
        who = f"u{rng.integers(50)}", f"m{rng.integers(200)}", int(rng.choice([1, 2, 4, 8]))
        history.add(*who, float(rng.lognormal(7, 1.5)))
    controller = Controller(make_policy(policy), Cluster.of(NODES, 8))
    specs = [
        JobSpec(
            id=f"j{i}", gpus=int(rng.choice([1, 2, 4, 8, 16, 32])), iterations=100.0,
            iteration_s=float(rng.lognormal(3, 1)), user=f"u{i % 50}", model=f"m{rng.integers(300)}",
        )
        for i in range(JOBS)
    ]  # fmt: skip
    controller.handle(JobSubmitted(0.0, 0, JobBatch.of(specs)))
    controller.handle(ReplanDue(1.0))
    owners = {i: Who(spec.user, spec.model) for i, spec in enumerate(specs)}
    by = Calibrations.of(TrackRecord(), 1.0)
    return QueueCopy(1, controller, np.arange(JOBS), owners, {}, by, policy), history


def simulated(copy: QueueCopy) -> None:
    """One run of the simulator from the same state; a forecast by it has ten."""
    controller, _ = of_active(copy.controller)
    n = controller.job_store.count
    pace = pace_s({name: column[:n] for name, column in controller.job_store.columns.items()}, n)
    drawn = draw_truth(controller, pace, TrackRecord(), (), np.random.default_rng(0))
    play(controller, drawn, SimulationSettings())


def _forecast(copy: QueueCopy, history: History) -> None:
    foresee(copy.arrays(), history, 1.0)


def speed() -> list[Figure]:
    """CPU seconds of forecasts."""
    figures = []
    for policy in ("fifo-backfill", "srsf"):
        copy, history = full_queue(policy)
        spec = JobSpec(id="new", submit_s=1.0, gpus=8, user="u1", model="m1")
        now = foresee(copy.arrays(), history, 1.0)
        what_if(copy, now, history, spec, "m1")
        runs = common.RUNS
        every = common.cpu_s(partial(_forecast, copy, history), runs)
        one = common.cpu_s(partial(what_if, copy, now, history, spec, "m1"), runs)
        slow = 10 * common.cpu_s(partial(simulated, copy), 1)
        label = f"{JOBS:,} jobs, {8 * NODES:,} GPUs, {policy}"
        figures.append(Figure(f"forecast of all jobs, {label}", every, runs, slow / every, "ten simulations"))
        figures.append(Figure(f"submit --what-if, {label}", one, runs, slow / one, "ten simulations", "goal < 0.2 s"))
        both = Figure(f"both, after a decision, {label}", every + one, runs, slow / (every + one), "ten simulations")
        figures.append(both)
    return figures


def main() -> None:
    """Measure and print."""
    if "--coverage" not in sys.argv:
        common.show(speed())
    if "--speed" in sys.argv:
        return
    most = 400 if "--quick" in sys.argv else 1500
    for kind, name in TRACES:
        if not (DATA / name).exists():
            print(f"{name}: not there, skipped")
            continue
        for enough_for, policy in product(ENOUGH_FOR, POLICIES):
            found = coverage(DATA / name, kind, policy, most, enough_for)
            for what, share in found.shares().items():
                print(
                    f"{kind:9} {enough_for:.0%} {policy:13} {what:16} {share.count:5} forecasts: "
                    f"50 % interval holds {share.half:6.1%}, 80 % interval {share.wide:6.1%} "
                    f"(draws alone {share.raw:6.1%}), width {share.width_s:,.0f} s"
                )


if __name__ == "__main__":
    main()
