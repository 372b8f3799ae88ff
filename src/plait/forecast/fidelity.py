"""Accuracy of the simulator: the submissions of a live log, simulated and compared with the measurements.

Taken from the log as measured: who submitted what when, the stage times of each job alone, what its starts and stops
cost, the times of profiles and policy changes, and the time of the first decision. Predicted: every decision,
every wait, the gates and turns of groups and the pace of their members, hence each job's completion. No completion time
of the log is used before the comparison.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from plait.control.controller import Controller
from plait.control.drive import drive
from plait.core.errors import InputError
from plait.core.jobs import JobBatch, Phase
from plait.forecast.live_replay import LiveReplay, News, numbered
from plait.forecast.log_replay import LoggedEntry, replay
from plait.forecast.measured_costs import MeasuredCosts
from plait.forecast.turns import TurnsPhysics, stages_known
from plait.sim.adaptive import INTERVAL_S
from plait.sim.overheads import Overheads
from plait.sim.settings import SimulationSettings
from plait.sim.training import Training

TAKEN = (
    "submissions; iterations and stage times of each job alone; seconds of starts, stops and ends; when profiles and "
    "policies came; the first decision"
)
PREDICTED = "decisions, waits, gates and turns of groups, the pace of jobs that share, completions"


@dataclass(frozen=True)
class Compared:
    """One job that finished: seconds from submission to completion, as predicted and as measured; what was given.

    `start_s` is what its first start cost until its iterations began, `end_s` what came after the last one. `own_pace`:
    it was never profiled alone, so its pace is that of this very run, and its prediction is no proof of anything.
    """

    id: str
    predicted_s: float
    measured_s: float
    iterations: float = math.nan
    iteration_s: float = math.nan
    start_s: float = math.nan
    end_s: float = math.nan
    own_pace: bool = False

    @property
    def error(self) -> float:
        """Predicted over measured, minus one."""
        return self.predicted_s / self.measured_s - 1.0


@dataclass(frozen=True)
class Fidelity:
    """All jobs that finished; `start_up_s` is what a start cost (median), `left_out` the jobs that did not finish.

    `policies`: seconds and name of each policy that was in force. `failures`: attempts that failed, which the
    simulation does not predict. `lost_gpu_s`: GPU-seconds of work that was discarded.
    """

    jobs: tuple[Compared, ...]
    policies: tuple[tuple[float, str], ...]
    start_up_s: float
    left_out: int
    failures: int = 0
    lost_gpu_s: float = 0.0

    @property
    def policy(self) -> str:
        """All policies, in the order of their time."""
        return ", then ".join(text for _, text in self.policies)

    @property
    def worst(self) -> float:
        """The largest error, without its sign."""
        return max((abs(job.error) for job in self.jobs), default=math.nan)

    def to_json(self) -> dict[str, Any]:
        """As plain values; null for unknown ones."""
        rows = [
            {
                "id": j.id, "predicted_s": j.predicted_s, "measured_s": j.measured_s, "error": j.error,
                "iterations": j.iterations, "iteration_s": _known(j.iteration_s), "start_s": _known(j.start_s),
                "end_s": _known(j.end_s), "own_pace": j.own_pace,
            }
            for j in self.jobs
        ]  # fmt: skip
        return {
            "policies": [{"at_s": at_s, "policy": text} for at_s, text in self.policies],
            "start_up_s": self.start_up_s, "worst_error": _known(self.worst), "left_out": self.left_out,
            "failures": self.failures, "lost_gpu_s": self.lost_gpu_s, "measured": TAKEN,
            "predicted": PREDICTED, "jobs": rows,
        }  # fmt: skip


def fidelity(rows: Sequence[LoggedEntry], *, round_s: float = 1.0) -> Fidelity:
    """Simulate what was submitted and compare; `InputError` if nothing finished yet."""
    seen = MeasuredCosts()
    replayed = replay(rows, compare=False, observe=seen)
    controller = replayed.state.controller
    if controller is None:
        raise InputError("no node ever joined this cluster; start one with: plait up")
    job_store = controller.job_store
    columns = {name: column[: job_store.count] for name, column in job_store.columns.items()}
    finished: list[int] = np.flatnonzero(columns["phase"] == int(Phase.FINISHED)).tolist()
    if not finished:
        raise InputError("no job has finished yet; look again when one has (plait ls)")
    truth = _truth(controller, finished, seen)
    ends = _simulated_ends(controller, truth, finished, seen, round_s)
    costs = _costs(truth, finished, seen)
    jobs = tuple(
        Compared(
            str(job_store.spec(job).id),
            float(ends[i] - truth.submit_s[i]),
            float(columns["end_s"][job] - columns["submit_s"][job]),
            float(truth.iterations[i]),
            float(truth.iteration_s[i]),
            float(costs[i][0]),
            float(np.nan_to_num(seen.tail_s(job))),
            not stages_known(columns["stage_s"][job]) or not math.isfinite(columns["iteration_s"][job]),
        )
        for i, job in enumerate(finished)
    )
    typical = float(np.median([job.start_s for job in jobs]))
    left_out = job_store.count - len(finished)
    lost_gpu_s = sum(replayed.state.record.lost_gpu_s.values())
    return Fidelity(jobs, tuple(seen.policy_texts), typical, left_out, seen.failures, lost_gpu_s)


def _simulated_ends(
    controller: Controller, truth: JobBatch, finished: list[int], seen: MeasuredCosts, round_s: float
) -> Any:
    """When each job ends in the simulation, seconds."""
    job_store = controller.job_store
    # The policy knows what was stated at submission; the rest arrives when it arrived live.
    reported = JobBatch.of([job_store.spec(job) for job in finished])
    events = [*seen.profiles, *seen.estimates, *seen.stop_costs]
    news: list[News] = [*seen.policies[1:], *numbered(events, finished)]
    news.sort(key=lambda item: item[0])
    again = Controller(seen.policies[0][1], controller.cluster, controller.rule)
    world_sizes = [seen.world_sizes.get(job, 1) for job in finished]
    costs = _costs(truth, finished, seen)
    names = truth.column("model").tolist()
    table = tuple(
        (name, ((1.0, start + tail, stop, more, 0.0),))
        for name, (start, stop, more, tail) in zip(names, costs, strict=True)
    )
    backend: list[LiveReplay] = []
    physics = TurnsPhysics(
        again.job_store.columns, lambda job, gpus: gpus * world_sizes[job], lambda jobs: backend[0].awake(jobs)
    )
    training = Training.reported(truth, [seen.reports.get(job, []) for job in finished])
    silent = [s - float(np.nan_to_num(seen.start_s(job))) for job, s in seen.silent_s.items() if s > 0]
    settings = SimulationSettings(
        physics=physics, overheads=Overheads(table), training=training,
        measure_s=max(0.001, _median(silent)) if silent else INTERVAL_S,
    )  # fmt: skip
    first_s = 0.0 if math.isnan(seen.first_decision_s) else seen.first_decision_s
    world = LiveReplay(
        truth, controller.cluster, settings, reported, gap_s=round_s, first_s=first_s, news=news,
    )  # fmt: skip
    backend.append(world)
    world.controller = again
    drive(again, world)
    if len(again.active):
        raise InputError("the simulator cannot run what ran live: some jobs never start under this policy in it")
    return again.job_store.columns["end_s"]


def _truth(controller: Controller, finished: list[int], seen: MeasuredCosts) -> JobBatch:
    """The finished jobs with what was measured; each is a model of its own, so that it has its own start-up."""
    job_store = controller.job_store
    specs = []
    for job in finished:
        spec = job_store.spec(job)
        said = spec.iterations
        done = max(float(job_store.columns["iterations_done"][job]), 1.0) if said is None else float(said)
        pace = float(job_store.columns["iteration_s"][job])
        if not math.isfinite(pace) or pace <= 0:
            held_s = float(job_store.columns["run_s"][job])
            worked_s = held_s - float(np.nan_to_num(seen.start_s(job)))
            if spec.min_gpus != spec.max_gpus and held_s > 0:  # it may have run on more or fewer GPUs than requested
                worked_s *= float(job_store.columns["attained_gpu_s"][job]) / held_s / spec.gpus
            pace = max(worked_s, 1e-3) / done
        specs.append(replace(spec, iterations=done, iteration_s=pace, model=f"job-{job}", profile=None))
    batch = JobBatch.of(specs)
    return batch.replace(stage_s=job_store.columns["stage_s"][finished].copy())


def _costs(truth: JobBatch, finished: list[int], seen: MeasuredCosts) -> list[tuple[float, float, float, float]]:
    """Seconds of each job until it iterates, of a stop, until it iterates again, and from the last iteration on."""
    firsts = [seen.start_s(job) for job in finished]
    typical = _median(firsts)
    stop = _median([seen.stop_s(job) for job in finished])
    out = []
    for i, job in enumerate(finished):
        pace = float(truth.iteration_s[i])
        # A job that made no iteration is all work: the end of its start was not observed.
        unseen = 0.0 if truth.iterations[i] <= 1 else max(0.0, typical - pace)
        first = max(0.0, firsts[i] - pace) if math.isfinite(firsts[i]) else unseen
        again = seen.again_s(job)
        more = max(0.0, again - pace) if math.isfinite(again) else first
        own_stop = seen.stop_s(job)
        tail = seen.tail_s(job)
        out.append((first, own_stop if math.isfinite(own_stop) else stop, more, 0.0 if math.isnan(tail) else tail))
    return out


def _median(values: Sequence[float]) -> float:
    known = [v for v in values if math.isfinite(v)]
    return float(np.median(known)) if known else 0.0


def _known(value: float) -> float | None:
    return value if math.isfinite(value) else None
