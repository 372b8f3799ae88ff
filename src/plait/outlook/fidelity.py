"""Accuracy of the simulator: the submissions of a live log, simulated and compared with the measurements.

Taken from the log as measured: who submitted what when, the stage times of each job alone, what its starts and stops
cost, the times of profiles and policy changes, and the time of the first decision. Predicted: every decision,
every wait, the gates and turns of groups and the pace of their members, hence each job's completion. No completion time
of the log is used before the comparison.

Input of a simulation from a live log: the cost of starts and stops, and the times of external events.

Every job's seconds are measured by its agent: from the assignment to its first iteration, from its last iteration
to its end, from the stop request to its end. Where something was not measured, a job counts like the others.

Pace of jobs that take turns in the live cluster, with the gates that it would choose.

The gate and the turns of a group follow from the stage times that the scheduler knows; the pace follows from the true
ones.

The simulator with the timing of the live service, and with the external events of the log at their times.

decisions    when something has changed, at once if the last one is `gap_s` ago, else then
starting     a job that starts takes part in no gate before its first iteration; then all get a new pace
news         other policies, measured profiles, stop costs and estimates of adaptive jobs arrive when they arrived live
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeAlias

import numpy as np

from plait.control import messages
from plait.control.controller import Controller
from plait.control.drive import drive
from plait.core.arrays import BoolArray, FloatArray, IntArray
from plait.core.cluster import Cluster
from plait.core.errors import InputError
from plait.core.jobs import JobBatch, Phase
from plait.core.plan import TURN, Gate, Group, Groups, Member
from plait.core.policy import Policy
from plait.core.resources import Resource
from plait.goodput.fixed_batch import with_fixed_batches
from plait.live.scheduler.records.groups import choose
from plait.live.scheduler.records.notes import AttemptBegan, AttemptOver, Note, StopAsked
from plait.live.scheduler.state import State
from plait.outlook.log_replay import LoggedEntry, replay
from plait.runtime.gate_choice import paces
from plait.sim.backend import Simulator
from plait.sim.physics import StandardPhysics, resized
from plait.sim.state import to_ms
from plait.sim.training import Report, Training
from plait.sim.world import INTERVAL_S, Overheads, SimulationSettings


@dataclass
class JobSeconds:
    """Seconds of one job: of each start until an iteration was done, of each stop, and from the last iteration on."""

    starts_s: list[float] = field(default_factory=list)
    stops_s: list[float] = field(default_factory=list)
    tail_s: float = math.nan


@dataclass
class _Attempt:
    """`blocked_s`: until then a job that had to stop was still on its GPUs; that wait is predicted."""

    began_s: float
    gpus: frozenset[int] = frozenset()
    stop_s: float = math.nan
    blocked_s: float = -math.inf


class MeasuredCosts:
    """Follows a replay (`replay(..., observe=observed)`) and records measurements and external events."""

    def __init__(self) -> None:
        self.costs: dict[int, JobSeconds] = {}
        self.policies: list[tuple[float, Policy]] = []
        self.policy_texts: list[tuple[float, str]] = []
        self.profiles: list[messages.JobProfiled] = []
        self.estimates: list[messages.GoodputReported] = []
        self.stop_costs: list[messages.StopCostReported | messages.JobKept | messages.JobHeld] = []
        self.reports: dict[int, list[Report]] = {}  # of each job that adapts its batch
        self.silent_s: dict[int, float] = {}  # seconds that it held its GPUs until the first report
        self.first_decision_s = math.nan
        self.failures = 0
        self._attempts: dict[int, _Attempt] = {}
        self._began: dict[int, float] = {}

    def __call__(self, state: State, row: LoggedEntry) -> None:
        self._follow_policy(state, row)
        event = row.event
        if isinstance(row.entry, Note):
            note = row.entry
            if isinstance(note, AttemptBegan):
                self._attempts[note.job] = _Attempt(note.at_s, frozenset(note.gpus))
            elif isinstance(note, StopAsked) and note.job in self._attempts:
                self._attempts[note.job].stop_s = note.at_s
            elif isinstance(note, AttemptOver) and note.job in self._attempts:
                attempt = self._attempts.pop(note.job)
                costs = self.costs.setdefault(note.job, JobSeconds())
                first_s, last_s, held_s = note.first_step_s, note.last_step_s, note.held_s
                ended_s = note.ended_s
                if first_s is not None:
                    costs.starts_s.append(
                        max(0.0, ended_s - held_s - max(attempt.began_s, attempt.blocked_s)) + first_s
                    )
                if math.isfinite(attempt.stop_s):
                    for waiting in self._attempts.values():
                        if waiting.gpus & attempt.gpus:
                            waiting.blocked_s = max(waiting.blocked_s, ended_s)
                if note.outcome == "finished" and last_s is not None:
                    costs.tail_s = max(0.0, held_s - last_s)
                elif note.outcome == "preempted" and math.isfinite(attempt.stop_s):
                    costs.stops_s.append(max(0.0, note.at_s - attempt.stop_s))
        elif isinstance(event, messages.ReplanDue) and math.isnan(self.first_decision_s):
            self.first_decision_s = event.at_s
        elif isinstance(event, messages.JobProfiled):
            self.profiles.append(event)
        elif isinstance(event, messages.GoodputReported):
            self.estimates.append(event)
            self._report(state, event)
        elif isinstance(event, (messages.StopCostReported, messages.JobKept, messages.JobHeld)):
            self.stop_costs.append(event)
        elif isinstance(event, (messages.JobFailed, messages.LaunchFailed)):
            self.failures += len(event.jobs)
        elif isinstance(event, messages.ProgressReported):
            # The start of a job with less detailed reports: time held at its first report, less its iterations.
            for job, done, held, pace in zip(
                event.jobs.tolist(), event.iterations_done.tolist(), event.run_s.tolist(), event.iteration_s.tolist(),
                strict=True,
            ):  # fmt: skip
                if done > 0 and math.isfinite(pace) and job not in self._began:
                    self._began[job] = max(0.0, held - (done - 1) * pace)

    def _follow_policy(self, state: State, row: LoggedEntry) -> None:
        policy = state.controller.policy if state.controller is not None else None
        if policy is None or (self.policies and self.policies[-1][1] is policy):
            return
        self.policies.append((state.now_s, policy))
        if not self.policy_texts or self.policy_texts[-1][1] != state.policy_text:
            self.policy_texts.append((state.now_s, state.policy_text))

    def _report(self, state: State, event: messages.GoodputReported) -> None:
        assert state.controller is not None
        columns = state.controller.job_store.columns
        done = columns["iterations_done"]
        for job, row in zip(event.jobs.tolist(), event.goodput, strict=True):
            self.silent_s.setdefault(job, float(columns["run_s"][job]))
            self.reports.setdefault(job, []).append((float(done[job]), row))

    def start_s(self, job: int) -> float:
        """Seconds of the job's first start, its first iteration included; NaN if it was not seen."""
        costs = self.costs.get(job)
        return costs.starts_s[0] if costs and costs.starts_s else self._began.get(job, math.nan)

    def again_s(self, job: int) -> float:
        """Seconds of a later start; NaN if there was none."""
        costs = self.costs.get(job)
        return _mean(costs.starts_s[1:] if costs else [])

    def stop_s(self, job: int) -> float:
        """Seconds from the stop request to the end; NaN without one."""
        costs = self.costs.get(job)
        return _mean(costs.stops_s if costs else [])

    def tail_s(self, job: int) -> float:
        """Seconds from the last iteration to the end; NaN if it was not seen."""
        costs = self.costs.get(job)
        return costs.tail_s if costs else math.nan


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if values else math.nan


def all_take_part(jobs: IntArray) -> BoolArray:
    """All of these jobs take part (jobs,)."""
    return np.ones(len(jobs), dtype=bool)


@dataclass(frozen=True)
class TurnsPhysics:
    """Pace of members of live groups.

    `known`: columns of the job store that the gate is chosen from. `awake`: which jobs take part by now; a job that is
    still starting does not.
    """

    known: Mapping[str, Any]
    awake: Callable[[IntArray], BoolArray] = all_take_part
    together: StandardPhysics = field(default_factory=lambda: StandardPhysics(interference=(1.0,)))

    def iteration_s(self, truth: JobBatch, groups: Groups, cluster: Cluster) -> FloatArray:
        """Seconds an iteration, for each entry of `groups.jobs`."""
        out = self.together.iteration_s(truth, groups, cluster)
        alone = resized(truth, groups, truth.iteration_s[groups.jobs])
        awake = self.awake(groups.jobs)
        for g in np.flatnonzero(np.diff(groups.first_job) > 1).tolist():
            rows = np.arange(int(groups.first_job[g]), int(groups.first_job[g + 1]))
            jobs = groups.jobs[rows]
            out[rows] = alone[rows]
            here = awake[rows]
            if here.sum() < 2:
                continue
            gate, turns = self._gate(groups, g, rows)
            slower = alone[rows[here]] / truth.iteration_s[jobs[here]]
            stage_s = truth.stage_s[jobs[here]] * slower[:, None]
            if np.isnan(stage_s).any():
                gate = "none"
            if gate == "none":
                out[rows[here]] = self._ungated(truth, jobs[here].tolist(), groups[g].gpus, cluster)
            else:
                out[rows[here]] = paces(
                    gate, stage_s.tolist(), alone[rows[here]].tolist(), np.array(turns)[here].tolist()
                )
        return out

    def _gate(self, groups: Groups, g: int, rows: IntArray) -> tuple[str, list[int]]:
        """The gate that the service chooses for the whole group."""
        group = groups[g]
        turns = [0] * len(rows) if groups.details is None else groups.details[rows, TURN].astype(int).tolist()
        gate = Gate.NONE if groups.gate is None else Gate(int(groups.gate[g]))
        jobs = groups.jobs[rows].tolist()
        members = tuple(Member(job, turn=turn) for job, turn in zip(jobs, turns, strict=True))
        return choose(Group(members, tuple(int(i) for i in group.gpus), gate), self.known)

    def _ungated(self, truth: JobBatch, jobs: Sequence[int], gpus: Sequence[int], cluster: Cluster) -> FloatArray:
        """Pace without a gate: all members are slowed down alike by the busiest resource."""
        group = Group(tuple(Member(job) for job in jobs), tuple(int(i) for i in gpus), Gate.NONE)
        return self.together.iteration_s(truth, Groups.of([group]), cluster)


def stages_known(stage_s: Any) -> bool:
    """Whether all four were measured, and at least one is above 0."""
    values = np.asarray(stage_s, dtype=np.float64)
    return bool(len(values) == len(Resource) and np.isfinite(values).all() and values.sum() > 0)


#: Reports of jobs about themselves.
ExternalEvent: TypeAlias = (
    messages.JobProfiled | messages.GoodputReported | messages.StopCostReported | messages.JobKept | messages.JobHeld
)

News = tuple[float, Policy | ExternalEvent]


class LiveReplay(Simulator):
    """A simulator that calls its controller when the live service would have called it."""

    def __init__(
        self,
        truth: JobBatch,
        cluster: Cluster,
        settings: SimulationSettings,
        reported: JobBatch,
        *,
        gap_s: float,
        first_s: float,
        news: Sequence[News],
    ) -> None:
        """`news` (seconds, what) in order of time; no decision before `first_s`."""
        super().__init__(truth, cluster, settings, reported)
        self.controller: Controller | None = None
        self.gap_ms, self.decide_ms = to_ms(gap_s), to_ms(first_s)
        self.news: list[News] = list(news)
        self.starting: set[int] = set()
        self.reports_estimates = False

    def awake(self, jobs: IntArray) -> BoolArray:
        """Which of these jobs run and have their start behind them."""
        awake: BoolArray = (self.is_running[jobs] == 1) & (self.since_ms[jobs] <= self.now)
        return awake

    def events(self) -> Iterator[messages.Event]:
        """Everything that happens until the last job has ended."""
        assert self.controller is not None
        while self.ended < len(self.truth):
            # When something happens next: to jobs, from outside, or because a decision may be made
            due = self.next_due()
            if self.news:
                due = min(due, max(to_ms(self.news[0][0]), self.now))
            for job in self.starting:
                due = min(due, max(float(self.since_ms[job]), self.now))
            if self.controller.changed and self.arrived:
                due = min(due, max(self.decide_ms, self.now))
            if self.adapt_until(due):
                continue
            if due == math.inf:
                return
            yield from self.happened(due)
            yield from self._external_events(due)
            self._join(due)
            if self._decides(due):
                self.decide_ms = due + self.gap_ms
                yield self.replan_due()
            self.check_progress()

    def _decides(self, now_ms: float) -> bool:
        assert self.controller is not None
        wanted = self.controller.changed or to_ms(self.controller.plan.valid_until_s) <= now_ms
        if wanted and now_ms >= self.decide_ms:
            return True
        if self.wake_ms <= now_ms:
            self.wake_ms = self.decide_ms if wanted else math.inf
        return False

    def _external_events(self, now_ms: float) -> Iterator[messages.Event]:
        assert self.controller is not None
        while self.news and to_ms(self.news[0][0]) <= now_ms:
            what = self.news.pop(0)[1]
            if isinstance(what, ExternalEvent):
                known = np.flatnonzero(what.jobs < self.controller.job_store.count)
                if len(known):
                    yield _rows(what, known, what.jobs[known], now_ms / 1000)
            else:
                self.controller.policy, self.controller.changed = what, True

    def execute(self, command: messages.Command) -> None:
        """Carry out a command; launched jobs do not take part in gates yet."""
        super().execute(command)
        if isinstance(command, messages.Launch):
            self.starting.update(command.groups.jobs.tolist())
            self._join(self.now)

    def _join(self, now_ms: float) -> None:
        """Jobs whose start is over by now change the pace of their group."""
        ready = [job for job in self.starting if not self.is_running[job] or self.since_ms[job] <= now_ms]
        self.starting.difference_update(ready)
        for job in sorted(ready):
            if self.is_running[job] and job in self.groups:
                self.share_gpus(self.groups[job], now_ms)


def _rows(event: ExternalEvent, rows: IntArray, jobs: IntArray, at_s: float) -> ExternalEvent:
    """Some rows of an event, about jobs of these numbers."""
    names = [f.name for f in fields(event) if f.name not in ("at_s", "jobs")]
    return replace(event, at_s=at_s, jobs=jobs, **{name: getattr(event, name)[rows] for name in names})


def numbered(events: Sequence[ExternalEvent], jobs: Sequence[int]) -> list[News]:
    """The events about these jobs of the log, under their numbers in the simulation."""
    number = {job: i for i, job in enumerate(jobs)}
    out: list[News] = []
    for event in events:
        rows = np.array([i for i, job in enumerate(event.jobs.tolist()) if job in number], dtype=np.int64)
        if len(rows):
            new = np.array([number[int(event.jobs[i])] for i in rows], dtype=np.int64)
            out.append((event.at_s, _rows(event, rows, new, event.at_s)))
    return out


TAKEN = (
    "submissions; iterations and stage times of each job alone; seconds of starts, stops and ends; when profiles and "
    "policies came; the first decision"
)
PREDICTED = "decisions, waits, gates and turns of groups, the pace of jobs that share, completions"


@dataclass(frozen=True)
class JobFidelity:
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

    jobs: tuple[JobFidelity, ...]
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
        JobFidelity(
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
    again = Controller(seen.policies[0][1], controller.cluster, controller.rule, measures_memory=False)
    costs = _costs(truth, finished, seen)
    names = truth.column("model").tolist()
    table = tuple(
        (name, ((1.0, start + tail, stop, more, 0.0),))
        for name, (start, stop, more, tail) in zip(names, costs, strict=True)
    )
    backend: list[LiveReplay] = []
    physics = TurnsPhysics(again.job_store.columns, lambda jobs: backend[0].awake(jobs))
    reports = [seen.reports.get(job, []) for job in finished]
    training = Training.reported(with_fixed_batches(truth), reports, int(controller.cluster.node_gpus.max()))
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
        iterations = spec.iterations
        done = max(float(job_store.columns["iterations_done"][job]), 1.0) if iterations is None else float(iterations)
        pace = float(job_store.columns["iteration_s"][job])
        if not math.isfinite(pace) or pace <= 0:
            held_s = float(job_store.columns["run_s"][job])
            worked_s = held_s - float(np.nan_to_num(seen.start_s(job)))
            if spec.min_gpus != spec.max_gpus and held_s > 0:  # it may have run on more or fewer GPUs than requested
                worked_s *= float(job_store.columns["attained_gpu_s"][job]) / held_s / spec.gpus
            pace = max(worked_s, 1e-3) / done
        specs.append(replace(spec, iterations=done, iteration_s=pace, model=f"job-{job}", profile=None))
    batch = JobBatch.of(specs)
    # What a stop leaves of a job's work is known once it has attached, not when it is submitted.
    return batch.replace(**{name: job_store.columns[name][finished].copy() for name in ("stage_s", "checkpoints")})


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
