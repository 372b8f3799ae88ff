"""Does the simulator predict what happened? The live log's submissions simulated, beside what was measured.

The simulated jobs are those of the log: submitted when they were, with the stage times measured while they ran and the
iterations they made. Everything else is the simulator's: the policy decides anew, jobs share GPUs by its physics.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from plait.control.controller import Controller
from plait.control.drive import drive
from plait.control.messages import ProgressReported
from plait.core.errors import InputError
from plait.core.jobs import JobBatch, Phase
from plait.forecast.eta import TURNS_COST
from plait.forecast.replayed import Replayed, Row
from plait.policies.catalog import make_policy
from plait.sim.overheads import Overheads
from plait.sim.physics import StandardPhysics
from plait.sim.run import simulator
from plait.sim.world import World


@dataclass(frozen=True)
class Compared:
    """One job that finished: seconds from submission to completion, as predicted and as measured."""

    id: str
    predicted_s: float
    measured_s: float

    @property
    def error(self) -> float:
        """Predicted over measured, minus one."""
        return self.predicted_s / self.measured_s - 1.0


@dataclass(frozen=True)
class Fidelity:
    """All jobs that finished; `start_up_s` is what a start cost (measured), `left_out` the jobs that did not finish."""

    jobs: tuple[Compared, ...]
    policy: str
    start_up_s: float
    left_out: int

    @property
    def worst(self) -> float:
        """The largest error, without its sign."""
        return max((abs(job.error) for job in self.jobs), default=math.nan)

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        rows = [
            {"id": j.id, "predicted_s": j.predicted_s, "measured_s": j.measured_s, "error": j.error} for j in self.jobs
        ]
        return {"policy": self.policy, "start_up_s": self.start_up_s, "left_out": self.left_out, "jobs": rows}


def fidelity(rows: Sequence[Row], replayed: Replayed, *, round_s: float = 1.0) -> Fidelity:
    """Simulate what was submitted and compare; `InputError` if nothing finished yet."""
    controller = replayed.state.controller
    if controller is None:
        raise InputError("no node ever joined this cluster; start one with: plait up")
    books = controller.books
    columns = {name: column[: books.count] for name, column in books.columns.items()}
    finished = np.flatnonzero(columns["phase"] == int(Phase.FINISHED))
    if not len(finished):
        raise InputError("no job has finished yet; look again when one has (plait ls)")
    start_up_s = start_ups(rows)
    typical = float(np.median(list(start_up_s.values()))) if start_up_s else 0.0
    truth = _truth(controller, finished, start_up_s)
    world = World(
        "live", "what was measured", StandardPhysics(interference=TURNS_COST), _costs(truth, start_up_s, typical),
        round_s=0.0 if round_s < 0.05 else round_s,
    )  # fmt: skip
    starts = truth.submit_s - float(truth.submit_s.min())
    backend = simulator(truth.replace(submit_s=starts), controller.cluster, world)
    # The policy is told what was said at submission; what was measured only while they ran is the simulator's secret.
    said = JobBatch.of([replace(books.spec(job), model=f"job-{job}") for job in finished.tolist()])
    backend.reported = said.replace(submit_s=starts)
    again = Controller(make_policy(replayed.state.policy_text), controller.cluster)
    drive(again, backend)
    if len(again.active):
        raise InputError("the simulator cannot run what ran live: some jobs never start under this policy in it")
    ends = again.books.columns["end_s"]
    jobs = tuple(
        Compared(
            str(books.spec(int(job)).id),
            float(ends[i] - starts[i]),
            float(columns["end_s"][job] - columns["submit_s"][job]),
        )
        for i, job in enumerate(finished.tolist())
    )
    return Fidelity(jobs, replayed.state.policy_text, typical, books.count - len(finished))


def start_ups(rows: Sequence[Row]) -> dict[int, float]:
    """Seconds each job held its GPUs before its first iteration was under way, where that was seen.

    From its first report with progress: the time held, less the iterations at the pace of that report.
    """
    found: dict[int, float] = {}
    for row in rows:
        event = row.event
        if not isinstance(event, ProgressReported):
            continue
        for job, done, held, pace in zip(
            event.jobs.tolist(), event.iterations_done.tolist(), event.run_s.tolist(), event.iteration_s.tolist(),
            strict=True,
        ):  # fmt: skip
            if done > 0 and math.isfinite(pace) and job not in found:
                found[job] = max(0.0, held - done * pace)
    return found


def _truth(controller: Controller, finished: Any, start_up_s: Mapping[int, float]) -> JobBatch:
    """The finished jobs with what was measured; each is a model of its own, so that it has its own start-up."""
    books = controller.books
    specs = []
    for job in finished.tolist():
        done = max(float(books.columns["iterations_done"][job]), 1.0)
        pace = float(books.columns["iteration_s"][job])
        if not math.isfinite(pace) or pace <= 0:
            worked_s = float(books.columns["run_s"][job]) - start_up_s.get(job, 0.0)
            pace = max(worked_s, 1e-3) / done
        specs.append(replace(books.spec(job), iterations=done, iteration_s=pace, model=f"job-{job}", profile=None))
    batch = JobBatch.of(specs)
    return batch.replace(stage_s=books.columns["stage_s"][finished].copy())


def _costs(truth: JobBatch, start_up_s: Mapping[int, float], typical: float) -> Overheads:
    rows = []
    for model, iterations in zip(truth.column("model").tolist(), truth.iterations.tolist(), strict=True):
        # A job that made no iteration is all work: nobody saw where its start ended.
        unseen = 0.0 if iterations <= 1 else typical
        seconds = start_up_s.get(int(model.removeprefix("job-")), unseen)
        rows.append((model, ((1.0, seconds, 0.0, seconds, 0.0),)))
    return Overheads(tuple(rows))
