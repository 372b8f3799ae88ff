"""Simulated jobs that adapt their batch: seconds by hand, what they report, and that a run stays a function."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest

from plait.control.controller import Controller
from plait.control.drive import drive
from plait.control.messages import Event, GoodputReported, JobFinished, Launch
from plait.core.cluster import Cluster
from plait.core.goodput import THETA, BatchLimits, Estimate
from plait.core.jobs import JobBatch, JobSpec
from plait.core.plan import Group, Groups, Member, Plan
from plait.core.policy import Policy, View
from plait.goodput.shipped import shipped
from plait.goodput.throughput import step_s
from plait.policies.catalog import make_policy
from plait.sim.backend import Simulator
from plait.sim.failures import NodeChange
from plait.sim.invariants import Invariants
from plait.sim.physics import StandardPhysics
from plait.sim.run import simulate
from plait.sim.training import AdaptiveJobs, Training
from plait.sim.world import Overheads, SimulationSettings, make_world
from plait.traces.load import load_jobs
from plait.traces.table import new_meta
from plait.traces.validate import checked_table

#: a pass takes 0.1 s whatever the batch, synchronising inside a node as much again, between nodes 0.3 s
THETA_BY_HAND = (0.1, 0.0, 0.3, 0.0, 0.1, 0.0, 1.0)
NO_EXTRA = StandardPhysics(interference=(1.0,))
STILL, NOISY = 1e-9, 1e12  # a larger batch brings nothing; everything


def job(**changes: object) -> JobSpec:
    limits = BatchLimits(initial=10, most=40, least_local=1, most_local=40)
    given = {"id": "a", "gpus": 2, "min_gpus": 1, "max_gpus": 8, "iterations": 1000.0, "iteration_s": 0.2}
    return JobSpec(**{**given, "batch": limits, **changes})


@dataclass(frozen=True)
class Sizes:
    """A policy that gives the only job `gpus[i]` GPUs of the first nodes from `at_s[i]` on."""

    at_s: tuple[float, ...]
    gpus: tuple[tuple[int, ...], ...]

    def decide(self, view: View) -> Plan:
        now = int(np.searchsorted(self.at_s, view.now_s, side="right")) - 1
        until = self.at_s[now + 1] if now + 1 < len(self.at_s) else float("inf")
        groups = Groups.of([Group((Member(j),), self.gpus[now]) for j in view.jobs.number.tolist()[:1]])
        return Plan(groups, valid_until_s=until)


@dataclass(frozen=True)
class Together:
    """A policy that lets all jobs share the first two GPUs."""

    def decide(self, view: View) -> Plan:
        members = tuple(Member(j) for j in view.jobs.number.tolist())
        return Plan(Groups.of([Group(members, (0, 1))] if members else []))


Levels = Sequence[tuple[float, float]]


def run(
    spec: JobSpec | list[JobSpec],
    policy: Policy,
    *levels: Levels,
    changes: Sequence[NodeChange] = (),
    nodes: str = "2x4",
    **settings: object,
) -> list[Event]:
    """Events of jobs whose noise is `level` until so many iterations are done, all of (end, level)."""
    specs = spec if isinstance(spec, list) else [spec]
    curves = [tuple(np.array(column) for column in zip(*own, strict=True)) for own in levels]
    training = Training(np.array([THETA_BY_HAND] * len(specs)), *zip(*curves, strict=True))
    cluster = Cluster.parse(nodes)
    given = SimulationSettings(training=training, **settings)
    backend = Simulator(JobBatch.of(specs), cluster, given, node_changes=iter(changes))
    controller = Controller(policy, cluster)
    checked = Invariants(controller, backend)
    seen: list[Event] = []
    drive(controller, backend, lambda event, commands: (checked(event, commands), seen.append(event))[1])
    return seen


def end_s(events: Sequence[Event]) -> float:
    return float(next(e for e in events if isinstance(e, JobFinished)).end_s[0])


def test_a_batch_that_brings_nothing_is_not_taken():
    assert end_s(run(job(), Sizes((0,), ((0, 1),)), [(1000, STILL)])) == 200.0


def test_when_the_noise_changes_the_job_takes_the_larger_batch_in_that_millisecond():
    # 500 iterations at 5 a second; then four times the batch in the same 0.2 s makes 20 a second
    assert end_s(run(job(), Sizes((0,), ((0, 1),)), [(500, STILL), (1000, NOISY)])) == pytest.approx(
        100 + 25, abs=0.0011
    )


def test_a_job_measures_itself_for_half_a_minute_before_it_adapts():
    assert end_s(run(job(), Sizes((0,), ((0, 1),)), [(1000, NOISY)])) == pytest.approx(
        30 + (1000 - 150) / 20, abs=0.0011
    )


def test_a_fixed_batch_stays_and_other_gpus_change_the_pace_alone():
    fixed = BatchLimits(initial=16, most=16, least_local=1, most_local=40)
    # 2 GPUs: 0.2 s; from 60 s on 2 nodes: 30 s of restart, then 0.4 s an iteration
    policy = Sizes((0, 60), ((0, 1), (0, 4)))
    restart = Overheads.constant(restore_s=30)
    assert end_s(run(job(batch=fixed), policy, [(1000, NOISY)], overheads=restart)) == 60 + 30 + (1000 - 300) * 0.4


def test_on_one_gpu_there_is_nothing_to_synchronise():
    assert end_s(run(job(), Sizes((0,), ((3,),)), [(1000, NOISY)])) == pytest.approx(100, abs=0.002)


def test_who_shares_goes_at_its_part_of_the_pace_it_has_by_now():
    still, later = [(500, STILL)], [(250, STILL), (1000, NOISY)]
    events = run([job(id="a", iterations=500.0), job(id="b")], Together(), still, later, physics=NO_EXTRA)
    ends = {int(j): s for e in events if isinstance(e, JobFinished) for j, s in zip(e.jobs, e.end_s, strict=True)}
    # 2.5 a second each, of the second 10 from 100 s on; the first goes at 5 once it is alone
    assert ends[1] == pytest.approx(100 + 75, abs=0.002)
    assert ends[0] == pytest.approx(175 + (500 - 437.5) / 5, abs=0.002)


def test_a_crash_throws_back_to_the_noise_of_before_and_not_what_the_job_knows():
    # the second node from 110 s on, where 700 iterations were done and none had been saved
    events = run(
        job(), Sizes((0, 110), ((0, 1), (4, 5))), [(500, STILL), (1000, NOISY)], changes=[NodeChange(110, "n0", False)]
    )
    assert end_s(events) == pytest.approx(110 + 125, abs=0.002)


def test_reports_say_what_the_job_has_found_out_and_come_with_decisions():
    policy = Sizes((0, 60, 120), ((0, 1), (0, 1, 2, 3), (0, 1, 2, 3)))
    events = run(job(), policy, [(1000, STILL)], overheads=Overheads.constant(launch_s=5, restore_s=7))
    reports = [e for e in events if isinstance(e, GoodputReported)]
    assert [r.at_s for r in reports] == [60.0, 120.0]
    first, second = (r.goodput[0] for r in reports)
    assert (first[Estimate.PROFILED_GPUS], second[Estimate.PROFILED_GPUS]) == (2, 4)
    assert np.isnan(first[Estimate.RESTART_S])
    assert second[Estimate.RESTART_S] == 7
    assert not np.isnan(second[:THETA]).any()
    assert second[Estimate.VAR] / second[Estimate.SQR] == pytest.approx(STILL / 10)


def test_measured_times_are_off_by_the_noise_of_profiling():
    policy = Sizes((0, 60), ((0, 1), (0, 1)))
    exact, off = (
        next(e for e in run(job(), policy, [(1000, STILL)], profile_noise=n) if isinstance(e, GoodputReported))
        for n in (0.0, 0.3)
    )
    ratio = off.goodput[0, Estimate.ALPHA_C] / exact.goodput[0, Estimate.ALPHA_C]
    assert 0.7 < ratio < 1.3
    assert ratio != 1


def test_what_a_job_measures_is_as_slow_as_the_gpus_it_runs_on_and_follows_it_to_others():
    kinds = StandardPhysics(kind_speed={"slow": 0.5})
    policy = Sizes((0, 60, 120), ((0, 1), (4, 5), (4, 5)))
    events = run(job(), policy, [(1000, STILL)], nodes="1x4:slow,1x4:fast", physics=kinds)
    slow, fast = (e.goodput[0] for e in events if isinstance(e, GoodputReported))
    assert step_s(slow[:THETA], 1, 2, 5) == pytest.approx(0.4, rel=1e-3)
    assert step_s(fast[:THETA], 1, 2, 5) == pytest.approx(0.2, rel=1e-3)
    assert end_s(events) == 60 + (1000 - 60 / 0.4) * 0.2  # as it says of itself


def test_on_slow_gpus_a_restart_does_not_change_what_a_job_knows():
    policy = Sizes((0, 60, 120, 180), ((0, 1), (0, 1), (2, 3), (2, 3)))
    kinds = StandardPhysics(kind_speed={"slow": 0.5})
    events = run(job(), policy, [(1000, STILL)], nodes="1x4:slow", physics=kinds)
    first, second = (e.goodput[0] for e in events if isinstance(e, GoodputReported))
    assert np.array_equal(first[:THETA], second[:THETA])


@pytest.mark.parametrize("policy", ["sia", "optimus"])
def test_adaptive_jobs_on_two_kinds_of_gpus_keep_every_invariant(policy: str):
    jobs = workload(4)
    jobs = jobs.replace(iterations=jobs.iterations / 20, submit_s=jobs.submit_s / 4)
    world = replace(make_world("pollux"), physics=StandardPhysics(kind_speed={"slow": 0.4}))
    changes = [NodeChange(600.0, "n0", False), NodeChange(1200.0, "n0", True)]
    cluster = Cluster.parse("1x4:slow,1x4:fast")
    done = simulate(jobs, cluster, make_policy(policy), world, node_changes=changes, check=True)
    assert np.isfinite(done.controller.job_store.columns["end_s"][:4]).all()


def workload(count: int) -> JobBatch:
    names = sorted(shipped())
    columns = {
        "job_id": np.arange(count).astype(str).astype(object),
        "submit_s": np.arange(count) * 240.0,
        "gpus": np.array([1 + i % 4 for i in range(count)], dtype=np.int32),
        "model": np.array([names[i % 4] for i in range(count)], dtype=object),
    }
    return load_jobs(checked_table(columns, file="<models>", meta=new_meta())).jobs


def test_jobs_of_known_models_without_duration_are_made_adaptive():
    jobs = workload(6)
    assert jobs[0].batch == shipped()["bert"].batch
    assert (jobs[0].min_gpus, jobs[0].max_gpus) == (1, 64)
    assert jobs[0].iterations == shipped()["bert"].iterations
    assert jobs[0].iteration_s == pytest.approx(12 * 0.05861 + 0.1719, rel=1e-3)  # one GPU has no room for more


@pytest.mark.parametrize("policy", ["tiresias-l", "fifo", "muri-s"])
def test_baselines_run_adaptive_jobs_at_their_size_with_every_invariant(policy: str):
    jobs = workload(8)
    changes = [NodeChange(3000.0, "n0", False), NodeChange(9000.0, "n0", True)]
    runs = []
    for _ in range(2):
        ends: dict[int, float] = {}

        def record(event: Event, commands: object, ends: dict[int, float] = ends) -> None:
            if isinstance(event, JobFinished):
                ends.update(zip(event.jobs.tolist(), event.end_s.tolist(), strict=True))
            for command in commands:
                assert not isinstance(command, Launch) or (command.groups.gpu_count() <= 4).all()

        simulate(
            jobs, Cluster.parse("2x4"), make_policy(policy), make_world("pollux"), node_changes=changes, check=True,
            observe=lambda _: record,
        )  # fmt: skip
        runs.append(ends)
    assert len(runs[0]) == 8
    assert runs[0] == runs[1]


class Asking(Simulator):
    """Asks every job every 30 s of work whether it wants another batch."""

    asked = 0

    def _set_pace(self, job: int) -> None:
        super()._set_pace(job)
        retune = min(self.retune_ms[job], self.since_ms[job] + 30_000.0)
        self.retune_ms[job] = retune if retune < self.stop_ms[job] else np.inf

    def _adapt(self, adaptive: AdaptiveJobs, job: int, at: float) -> None:
        self.asked += 1
        super()._adapt(adaptive, job, at)


def test_to_ask_jobs_all_the_time_would_change_nothing():
    jobs, cluster, ends = workload(6), Cluster.parse("2x4"), []
    jobs = jobs.replace(iterations=jobs.iterations / 8)
    for kind in (Simulator, Asking):
        controller = Controller(make_policy("tiresias-l"), cluster)
        backend = kind(jobs, cluster, SimulationSettings(overheads=Overheads.constant(launch_s=30, restore_s=30)))
        drive(controller, backend)
        ends.append(controller.job_store.columns["end_s"][: len(jobs)])
    assert backend.asked > 200
    assert ends[0] == pytest.approx(ends[1], abs=0.5)  # each question rounds to a millisecond


def test_worlds_say_what_a_start_costs():
    labels = {name: make_world(name).overheads.label for name in ("ideal", "plait", "pollux")}
    assert labels == {"ideal": "none", "plait": "measured", "pollux": "launch 30 s, restore 30 s"}
