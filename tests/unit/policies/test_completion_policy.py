"""The policy `plait` and its parts: the value of progress, the order by look-ahead, the guard by the line."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from plait.control.controller import Controller
from plait.control.messages import (
    Command,
    Event,
    JobHeld,
    JobProfiled,
    JobSubmitted,
    Launch,
    NodeLost,
    ProgressReported,
    ReplanDue,
    Stop,
    UsageReported,
)
from plait.core.cluster import Cluster
from plait.core.errors import InputError
from plait.core.jit import plain
from plait.core.jobs import Checkpoints, JobBatch, JobSpec
from plait.core.plan import Gate, Plan
from plait.core.policy import Policy, View
from plait.core.resources import StageProfile
from plait.policies.by_completion import ByCompletion, progress_values
from plait.policies.catalog import make_policy
from plait.policies.compose import hosts_apart, side_by_side
from plait.policies.interleave import Room, Units
from plait.policies.predicted import ByListSchedule, list_schedule
from plait.sim.run import simulate
from plait.sim.world import make_world

CPU = StageProfile.of(cpu=0.6, gpu=0.4)
GPU = StageProfile.of(gpu=0.9, cpu=0.1)
STORAGE = StageProfile.of(storage=0.9, gpu=0.1)
GPUS, REMAINING_S = np.array([8, 4, 8, 1, 16]), np.array([10.0, 6.0, 3.0, 50.0, 2.0])


def job(number: int, gpus: int = 1, work_s: float = 1000.0, profile: StageProfile | None = None) -> JobSpec:
    return JobSpec(id=f"j{number}", submit_s=0, gpus=gpus, iterations=work_s, iteration_s=1.0, profile=profile)


def first(jobs: Sequence[JobSpec], policy: Policy, cluster: str = "1x1") -> tuple[Plan, View]:
    controller = Controller(policy, Cluster.parse(cluster))
    controller.handle(JobSubmitted(0.0, 0, JobBatch.of(jobs)))
    view = controller.view()
    return policy.decide(view), view


def members(plan: Plan) -> list[list[int]]:
    return sorted(sorted(m.job for m in g.members) for g in plan.groups)


@pytest.mark.parametrize(("future", "expected"), [(0.0, [2, 2, 1.5, 1]), (3.0, [5, 5, 3, 1])])
def test_progress_is_worth_more_the_more_jobs_wait_behind(future, expected):
    _, view = first([job(i, gpus) for i, gpus in enumerate((8, 8, 8, 1))], make_policy("fifo"), "2x8")
    values = progress_values(view, Room.in_view(view), np.arange(4), future)
    assert values.tolist() == expected


@pytest.mark.parametrize(("alpha", "order", "sum_s"), [(0.0, [4, 2, 1, 0, 3], 82.0), (1.0, [1, 2, 4, 3, 0], 84.0)])
def test_list_schedules_by_hand(alpha, order, sum_s):
    found = np.argsort(REMAINING_S * GPUS**alpha, kind="stable")
    assert found.tolist() == order
    for schedule in (list_schedule, plain(list_schedule)):
        assert schedule(found, GPUS, REMAINING_S, 16) == sum_s


def test_a_job_wider_than_the_cluster_holds_up_no_list_schedule():
    assert list_schedule(np.array([0, 1]), np.array([32, 1]), np.array([1.0, 5.0]), 16) == 5.0


def test_the_order_is_the_one_whose_list_schedule_ends_jobs_soonest():
    jobs = [job(i, int(gpus), float(seconds)) for i, (gpus, seconds) in enumerate(zip(GPUS, REMAINING_S, strict=True))]
    _, view = first(jobs, make_policy("fifo"), "2x8")
    assert np.argsort(ByListSchedule()(view).keys[0], kind="stable").tolist() == [4, 2, 1, 0, 3]
    assert np.argsort(ByListSchedule((1.0,))(view).keys[0], kind="stable").tolist() == [1, 2, 4, 3, 0]
    _, view = first(jobs, make_policy("fifo"), "8x8")  # all fit: shortest service first
    assert np.argsort(ByListSchedule()(view).keys[0], kind="stable").tolist() == [1, 2, 4, 3, 0]
    with pytest.raises(InputError, match="alphas must be numbers from 0 to 1"):
        ByListSchedule((2.0,))


@pytest.mark.parametrize(
    ("policy", "line", "together"),
    [
        ("muri-s:guard=auto", 0, [[0]]),  # together 1.09 times as fast as one after the other
        ("muri-s:guard=auto", 30, [[0, 1]]),
        ("plait:guests=0", 0, [[0]]),
        ("plait:guests=0", 12, [[0, 1]]),
    ],
)
def test_jobs_share_where_somebody_waits_behind_them(policy, line, together):
    """Two jobs of one GPU that use CPU and GPU in turn, and a line of jobs that share with nobody."""
    jobs = [job(0, profile=CPU, work_s=10.0), job(1, profile=GPU, work_s=100.0)]
    jobs += [job(2 + i, work_s=1000.0) for i in range(line)]
    made, _ = first(jobs, make_policy(policy))
    assert members(made) == together


def test_a_job_that_leaves_the_gpu_idle_is_host_or_guest_whichever_is_worth_more():
    """The short job is worth as much as the long one, and loses less as the host."""
    made, view = first([job(0, profile=GPU, work_s=100.0), job(1, profile=CPU, work_s=10.0)], make_policy("plait"))
    assert [(g.members[0].job, g.gpus, g.guest) for g in made.groups] == [(1, (0,), False), (0, (0,), True)]
    assert not made.reasons
    alone = ByCompletion(guests=0)(view, np.array([1, 0]))
    assert not alone.companions and not alone.hosts  # noqa: PT018


def plain_job(number: int, profile: StageProfile | None = None) -> JobSpec:
    spec = replace(job(number, profile=profile), checkpoints=Checkpoints.NEVER)
    return replace(spec, iteration_s=None) if profile is None else spec


def arrived(*jobs: JobSpec, policy: str = "plait", gpu_memory_bytes: float = 0.0) -> Controller:
    """The first job runs on the only GPU, and the others came a second later."""
    controller = Controller(make_policy(policy), Cluster.of(1, 1, gpu_memory_bytes=gpu_memory_bytes))
    for at_s, first_row, some in ((0.0, 0, jobs[:1]), (1.0, 1, jobs[1:])):
        controller.handle(JobSubmitted(at_s, first_row, JobBatch.of(some)))
        controller.handle(ReplanDue(at_s))
    return controller


def test_plain_scripts_are_tried_together_and_stay_until_it_is_known_what_they_do():
    """Nothing is known of the second; they have no gate, and what they report decides."""
    controller, none = arrived(plain_job(0, GPU), plain_job(1)), np.zeros(2)
    for at_s in (2.0, 50.0):
        (together,) = controller.running
        assert ([m.job for m in together.members], together.gate) == ([0, 1], Gate.NONE)
        controller.handle(ReplanDue(at_s))
    controller.handle(JobProfiled(51.0, np.array([1]), np.array([1.0]), np.array([[0.0, 0.0, 1.0, 0.0]])))
    for at_s, pace_s in ((52.0, 1.0), (53.0, 2.0)):  # together as fast as alone, then half as fast
        controller.handle(ProgressReported(at_s, np.arange(2), none, none, none, np.full(2, pace_s)))
        controller.handle(ReplanDue(at_s))
        groups = [(g.guest, [m.job for m in g.members]) for g in controller.running]
        assert groups == ([(False, [0, 1])] if pace_s == 1.0 else [(False, [0]), (True, [1])])
    assert (controller.job_store.columns["starts"][:2] == 1).all()
    # One at a time, not while the first measures its own profile, and not where both need the same.
    assert arrived(plain_job(0, GPU), plain_job(1), plain_job(2)).running.jobs.tolist() == [0, 1]
    assert len(arrived(plain_job(0), plain_job(1)).running.jobs) == 1
    assert [g.guest for g in arrived(plain_job(0, GPU), plain_job(1, GPU)).running] == [False, True]
    assert list(arrived(plain_job(0, STORAGE), plain_job(1, GPU)).running)[-1].guest, "known: no trial"
    assert len(arrived(plain_job(0, GPU), plain_job(1), policy="plait:guests=0").running.jobs) == 1


@pytest.mark.parametrize(("asked", "together"), [((0.0, 0.0), 1), ((6e9, 0.0), 1), ((6e9, 9e9), 2), ((6e9, 9.5e9), 1)])
def test_a_trial_is_where_memory_is_known_to_fit_and_ends_though_nothing_was_measured(asked, together):
    jobs = [replace(plain_job(i, GPU if i == 0 else None), gpu_memory_bytes=b) for i, b in enumerate(asked)]
    controller = arrived(*jobs, gpu_memory_bytes=16_000_000_000)
    assert len(controller.running.jobs) == together
    controller.handle(ReplanDue(121.0))
    assert [g.guest for g in controller.running] == [False, True][:together]


@pytest.mark.parametrize("policy", ["plait", "plait:guests=0", "muri-s"])
def test_a_job_whose_memory_is_unknown_shares_no_gpu_of_known_memory_until_its_peak_was_measured(policy):
    """One of two nodes is lost, and others wait. Jobs of 50 GB do not fit into 80 GB, with headroom not even 39 GB."""

    def together(*peaks_gb: float, declared_gb: float = 0.0, memory_gb: int = 80) -> int:
        controller = Controller(make_policy(policy), Cluster.of(2, 1, gpu_memory_bytes=memory_gb * 10**9))
        jobs = [replace(job(i, profile=p), gpu_memory_bytes=declared_gb * 1e9) for i, p in enumerate((STORAGE, GPU))]
        controller.handle(JobSubmitted(0.0, 0, JobBatch.of([*jobs, *(job(i, work_s=1e4) for i in range(2, 8))])))
        controller.handle(ReplanDue(0.0))
        numbers, unknown, peaks = np.arange(len(peaks_gb)), np.full(len(peaks_gb), np.nan), np.array(peaks_gb) * 1e9
        controller.handle(UsageReported(9.0, unknown[:0], unknown[:0], numbers, unknown, peaks, unknown, unknown))
        controller.handle(NodeLost(10.0, controller.cluster.nodes[1].id))
        controller.handle(ReplanDue(10.0))
        return len(controller.running.jobs)

    assert (together(), together(30), together(50, 50), together(39, 39), together(30, 30)) == (1, 1, 1, 1, 2)
    assert (together(declared_gb=50), together(declared_gb=39), together(50, 50, declared_gb=30)) == (1, 2, 2)
    assert together(memory_gb=0) == 2, "slots and GPUs of unknown memory are shared at once"


@pytest.mark.parametrize(("peak_gb", "measures", "jobs"), [(0, True, 1), (30, True, 2), (50, True, 1), (0, False, 2)])
def test_gandiva_packs_jobs_once_their_memory_is_known_to_fit(peak_gb, measures, jobs):
    policy, gpus = make_policy("gandiva:slice_s=5"), Cluster.of(2, 1, gpu_memory_bytes=80 * 10**9)
    controller = Controller(policy, gpus, measures_memory=measures)
    controller.handle(JobSubmitted(0.0, 0, JobBatch.of([job(0, profile=STORAGE), job(1, profile=GPU)])))
    controller.handle(ReplanDue(0.0))
    none, peaks = np.full(2, np.nan), np.full(2, (peak_gb or np.nan) * 1e9)
    controller.handle(UsageReported(9.0, none[:0], none[:0], np.arange(2), none, peaks, none, none))
    controller.job_store.columns["run_s"][:2] = 10.0
    controller.handle(NodeLost(10.0, controller.cluster.nodes[1].id))
    controller.handle(ReplanDue(10.0))
    assert len(controller.running.jobs) == jobs


def test_jobs_that_placement_leaves_together_stay_host_and_guest():
    controller = Controller(make_policy("plait:guests=1"), Cluster.parse("1x1"))
    controller.handle(JobSubmitted(0.0, 0, JobBatch.of([job(0, profile=GPU), job(1, profile=CPU)])))
    controller.handle(ReplanDue(0.0))
    view = controller.view()
    merged = side_by_side(view).running
    no_turns = np.zeros(2, dtype=np.int64)

    def flags(hosts: dict[int, int], companions: dict[int, tuple[int, ...]]) -> dict[int, bool]:
        units = Units(np.arange(2), 1, companions, no_turns, hosts=hosts)
        return {g.members[0].job: g.guest for g in hosts_apart(view, merged, units) if len(g.members) == 1}

    now = {g.members[0].job: g.guest for g in view.running}
    assert sorted(now.values()) == [False, True]
    assert flags({}, {}) == now, "no unit of the policy"
    assert flags({0: 0}, {0: (1,)}) == {0: False, 1: True}
    assert flags({0: 1}, {0: (1,)}) == {0: True, 1: False}
    assert flags({}, {0: (1,)}) == {}, "they take turns from now on"


@pytest.mark.parametrize(("cluster", "guests"), [("1x2", 1), ("2x1", 0)])
def test_gangs_are_guests_on_one_node_and_take_turns_over_several(cluster, guests):
    controller = Controller(make_policy("plait"), Cluster.parse(cluster))
    pair = job(0, profile=GPU, work_s=100.0), job(1, profile=CPU, work_s=10.0)
    line = [job(i) for i in range(2, 8)]  # without jobs that wait, turns are worth less than one after the other
    jobs = [replace(one, gpus=2, min_gpus=2, max_gpus=2) for one in (*pair, *line)]
    controller.handle(JobSubmitted(0.0, 0, JobBatch.of(jobs)))
    controller.handle(ReplanDue(0.0))
    assert sorted(controller.running.jobs.tolist()) == [0, 1]
    assert sum(group.guest for group in controller.running) == guests


def test_hosts_and_guests_on_the_same_gpus_are_one_unit_for_placement():
    controller = Controller(make_policy("plait:guests=1"), Cluster.parse("1x2"))
    controller.handle(JobSubmitted(0.0, 0, JobBatch.of([job(i, profile=CPU if i % 2 else GPU) for i in range(4)])))
    controller.handle(ReplanDue(0.0))
    assert len(controller.running) == 4
    assert controller.running.guest.sum() == 2
    view = controller.view()
    seen = side_by_side(view)
    assert members(Plan(seen.running)) == sorted(
        sorted(m.job for g in view.running if g.gpus == (gpu,) for m in g.members) for gpu in (0, 1)
    )
    assert seen.running.guest is None
    assert view.running.guest is not None
    assert (seen.keeps.rows == view.keeps.rows).all()
    controller.handle(ReplanDue(60.0))
    assert controller.job_store.columns["starts"][:4].tolist() == [1, 1, 1, 1]


def test_nobody_shares_while_all_fit_or_groups_are_off():
    jobs = [job(0, profile=CPU), job(1, profile=GPU), job(2), job(3)]
    assert members(first(jobs, make_policy("plait"), "1x4")[0]) == [[0], [1], [2], [3]]
    assert members(first(jobs * 3, make_policy("plait:group=off"))[0]) == [[0]]


@pytest.mark.parametrize("policy", ["plait:max_jobs=1", "plait:max_jobs=2", "muri-s:max_jobs=2", "muri-s:max_jobs=1"])
def test_running_groups_may_exceed_the_limit_of_another_policy(policy):
    """Eight jobs share two GPUs, then fewer a GPU may: while a stop costs too much they stay, later they part."""
    shares = [StageProfile.of(**{name: 0.9, other: 0.1}) for name, other in
              (("cpu", "gpu"), ("gpu", "cpu"), ("storage", "gpu"), ("network", "gpu"))]  # fmt: skip
    jobs = [replace(job(i, work_s=1e5, profile=shares[i % 4]), restart_s=30.0) for i in range(8)]
    controller = Controller(make_policy("muri-s:guard=off,merge=always"), Cluster.parse("1x2"))
    controller.handle(JobSubmitted(0.0, 0, JobBatch.of(jobs)))
    controller.handle(ReplanDue(0.0))
    controller.policy = make_policy(policy)
    for number, (now_s, most) in enumerate(((5.0, 4), (500.0, int(policy[-1]))), start=8):
        controller.handle(JobSubmitted(now_s, number, JobBatch.of([job(number, work_s=2e5)])))
        controller.handle(ReplanDue(now_s))
        sizes = [sum(len(group.members) for group in controller.running if gpu in group.gpus) for gpu in (0, 1)]
        assert sizes == [4, 4] if now_s == 5.0 else len(sizes) == 2 and max(sizes) <= most


@pytest.mark.parametrize("guests", [0, 2])
def test_profiles_that_are_measured_again_stop_no_job_that_has_just_started(guests):
    """They differ by up to 4 % each time, which changes the value of each group; nothing else changes."""
    draw, jobs = np.random.default_rng(0), [job(i, profile=(CPU, GPU, STORAGE)[i % 3]) for i in range(10)]
    controller = Controller(make_policy(f"plait:knows=predicted,guests={guests}"), Cluster.parse("1x2"))
    controller.handle(JobSubmitted(0.0, 0, JobBatch.of(jobs)))
    controller.handle(ReplanDue(0.0))
    stage_s = np.array([one.profile.stage_s for one in jobs if one.profile])
    for at_s, part in zip(range(2, 40, 2), draw.uniform(0.96, 1.04, size=(19, *stage_s.shape)), strict=True):
        controller.handle(JobProfiled(float(at_s), np.arange(10), np.ones(10), stage_s * part))
        assert not any(isinstance(one, Stop) for one in controller.handle(ReplanDue(float(at_s)))), f"at {at_s} s"


def runs_of(jobs: Sequence[JobSpec], policy: str) -> list[list[tuple[float, float]]]:
    """When each job ran on one GPU: from and until, seconds."""
    at_s: list[list[float]] = [[] for _ in jobs]

    def note(event: Event, commands: Sequence[Command]) -> None:
        for one in commands:
            for job in one.groups.jobs if isinstance(one, Launch) else one.jobs if isinstance(one, Stop) else ():
                at_s[job].append(event.at_s)

    world = make_world("ideal")
    done = simulate(
        JobBatch.of(jobs), Cluster.parse("1x1"), make_policy(policy), world, observe=lambda controller: note
    )
    ends_s = done.controller.job_store.columns["end_s"].tolist()
    return [list(pairwise([*times, ends_s[i]]))[::2] for i, times in enumerate(at_s)]


def one_long_many_short(count: int, long_s: float, short_s: float, every_s: float) -> list[JobSpec]:
    """More work than one GPU can do."""
    shorts = [replace(job(1 + i, work_s=short_s), submit_s=every_s * i) for i in range(count)]
    return [job(0, work_s=long_s), *shorts]


@pytest.mark.parametrize("group", ["on", "off"])
@pytest.mark.parametrize(("bound_s", "latest_s"), [(1000.0, 1200.0), (np.inf, 30_000.0)])
def test_a_job_past_the_bound_goes_first(group, bound_s, latest_s):
    runs = runs_of(one_long_many_short(200, 50_000.0, 100.0, 90.0), f"plait:bound_s={bound_s},group={group}")
    assert runs[0][0][0] <= latest_s
    assert (runs[0][0][0] > 2000.0) == (bound_s == np.inf)


@pytest.mark.parametrize("group", ["on", "off"])
def test_a_job_past_the_bound_runs_for_a_quarter_of_it_where_its_duration_is_not_known(group):
    """The job that ran for long is taken for a long one, and short ones never stop coming."""
    jobs = one_long_many_short(200, 50_000.0, 100.0, 90.0)
    runs = runs_of(jobs, f"plait:knows=nothing,bound_s=2000,group={group}")[0]
    assert len(runs) >= 3
    lasts_s = [until_s - from_s for from_s, until_s in runs[1:-1]]
    assert min(lasts_s) >= 500.0 - 1e-3, "the first start was no late one, and the last run ends by itself"
    assert runs[1][0] - runs[0][1] < 2100.0


def test_of_jobs_past_the_bound_the_one_that_waited_longest_goes_first():
    """All are late, and each runs for a quarter of the bound: nobody waits for more than one turn of all others."""
    runs = runs_of(one_long_many_short(60, 60_000.0, 4000.0, 1000.0), "plait:knows=nothing,bound_s=2000")
    waits_s = [after[0] - before[1] for times in runs for before, after in pairwise(times)]
    assert max(waits_s) <= 2000.0 + 61 * 500.0


@pytest.mark.parametrize("knows", ["predicted", "nothing"])
def test_a_job_that_is_due_runs_until_it_turns_out_to_be_much_longer(knows):
    """Its length grows as soon as it runs, and with it the wait after which it is due."""
    runs = runs_of(one_long_many_short(200, 50_000.0, 100.0, 90.0), f"plait:knows={knows},wait_lengths=2")[0]
    lasts_s = [until_s - from_s for from_s, until_s in runs]
    assert len(runs) >= 3
    assert all(now_s >= 0.5 * sum(lasts_s[:i]) for i, now_s in enumerate(lasts_s[:-1])), lasts_s


def test_no_group_holds_back_a_job_that_has_waited_for_too_long():
    """Others make more progress together, and many wait behind them: the short one, which leaves no GPU idle, waits."""
    kinds = StageProfile.of(cpu=0.95, gpu=0.05), GPU, STORAGE
    work = [replace(job(i, work_s=6000.0, profile=kinds[i % 3]), submit_s=50.0) for i in range(1, 40)]
    controller = Controller(make_policy("plait"), Cluster.parse("1x1"))
    jobs = [job(0, work_s=20.0, profile=StageProfile.of(gpu=1.0)), *work]
    controller.handle(JobSubmitted(50.0, 0, JobBatch.of(jobs)))
    plans = [make_policy("plait").decide(controller.view(now_s)) for now_s in (560.0, 600.0)]
    assert [0 in plan.groups.jobs for plan in plans] == [False, True]


@pytest.mark.parametrize("policy", ["plait", "plait:group=off,bound_s=3600", "fifo-backfill:reserve_after_s=3600"])
def test_a_late_job_that_needs_more_gpus_than_are_up_holds_up_nobody(policy):
    """It neither keeps GPUs free nor has the turn of a job that is late as well, which is longer than those behind."""
    controller = Controller(make_policy(policy), Cluster.parse("2x8"))
    others = [replace(job(i, work_s=50.0), submit_s=1.0) for i in range(2, 99)]
    controller.handle(JobSubmitted(1.0, 0, JobBatch.of([job(0, 16, 10.0), job(1, work_s=60.0), *others])))
    controller.handle(NodeLost(1.0, "n1"))
    controller.handle(ReplanDue(4000.0))
    assert len(controller.running.jobs) >= 8
    assert 1 in controller.running.jobs


def test_a_job_on_hold_does_not_wait():
    held, others = np.array([0]), JobBatch.of([replace(job(1, work_s=900.0), submit_s=9000.0)])
    controller = Controller(make_policy("plait"), Cluster.parse("1x1"))
    controller.handle(JobSubmitted(0.0, 0, JobBatch.of([job(0, work_s=1000.0)])))
    controller.handle(JobHeld(0.0, held, np.array([1])))
    controller.handle(JobSubmitted(9000.0, 1, others))
    controller.handle(JobHeld(9000.0, held, np.array([0])))
    commands = controller.handle(ReplanDue(9000.0))
    assert [one.groups.jobs.tolist() for one in commands if isinstance(one, Launch)] == [[1]]


def stream_and_wide(load: float, burst: int, gpus: int, work_s: float) -> JobBatch:
    """A stream of plain jobs of 10 to 60 minutes for 16 h on four GPUs, and from 2 h on one that is wide."""
    draw, at_s, jobs = np.random.default_rng(1), 0.0, list[JobSpec]()
    while at_s < 57_600.0:
        work = draw.integers(600, 3600, size=burst).tolist()
        jobs += [replace(job(len(jobs) + i, work_s=float(one)), submit_s=at_s) for i, one in enumerate(work)]
        at_s += draw.uniform(0.7, 1.3) * 2100.0 / 4 / load * burst
    jobs = sorted([*jobs, replace(job(len(jobs), gpus, work_s), submit_s=7200.0)], key=lambda spec: spec.submit_s)
    return JobBatch.of(replace(spec, checkpoints=Checkpoints.NEVER) for spec in jobs)


@pytest.mark.parametrize("knows", ["exact", "predicted", "nothing"])
@pytest.mark.parametrize(
    ("load", "burst", "gpus", "work_s", "error", "lengths"),
    [
        (0.9, 1, 4, 1800.0, 0.0, 4.0), (1.1, 1, 4, 1800.0, 0.0, np.inf), (1.1, 1, 4, 1800.0, 0.0, 2.0),
        (1.0, 1, 3, 3600.0, 0.0, 4.0), (1.0, 12, 4, 900.0, 0.0, 4.0), (1.0, 1, 4, 1800.0, 0.9, 4.0),
    ],
)  # fmt: skip
def test_a_wide_plain_job_waits_for_a_multiple_of_its_own_length(knows, load, burst, gpus, work_s, error, lengths):
    """It goes after those that run or became due before; stated durations are wrong by a factor of 1 + `error`."""
    jobs, policy = stream_and_wide(load, burst, gpus, work_s), f"plait:knows={knows},wait_lengths={lengths}"
    world = replace(make_world("ideal"), profile_noise=error)
    done, row = simulate(jobs, Cluster.parse("2x2"), make_policy(policy), world), int(np.argmax(jobs.gpus))
    waited_s = float(done.controller.job_store.columns["first_start_s"][row]) - 7200.0
    bound_s = lengths * (work_s * (1.0 + error) if knows == "exact" else 2400.0) + 2 * 3600.0
    assert waited_s <= bound_s if np.isfinite(lengths) else waited_s > 8 * 3600.0


def test_jobs_that_are_late_ever_again_do_not_keep_back_a_late_job_that_needs_more_gpus():
    """A minute's job each 7.5 s on eight GPUs, behind a line of 208: each waits 26 min, past its bound."""
    narrow = [replace(job(i, work_s=7.5 * min(i + 1, 8)), submit_s=7.5 * max(i - 207, 0)) for i in range(1500)]
    jobs = sorted([*narrow, replace(job(1500, 8, 600.0), submit_s=10.0)], key=lambda spec: spec.submit_s)
    done = simulate(JobBatch.of(jobs), Cluster.parse("1x8"), make_policy("plait:group=off"), make_world("ideal"))
    wide = int(np.argmax([spec.gpus for spec in jobs]))
    assert done.controller.job_store.columns["first_start_s"][wide] <= 8 * 600.0 + 10 * 208
    assert jobs[-1].submit_s > 9600.0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("muri-s:objective=completion,guard=0.3", "policy muri-s: guard does not go with objective=completion"),
        ("plait:group=off,future=1", "policy plait: future is for groups; it goes with group=on"),
        ("plait:future=-1", "policy plait: future is -1"),
        ("plait:max_jobs=5", "policy plait: max_jobs is 5"),
        ("plait:guests=4", "policy plait: guests is 4"),
        ("muri-s:guard=late", "guard is 'late'; it takes a finite number >= 0, auto, on or off"),
    ],
)
def test_wrong_options_are_named(text, said):
    with pytest.raises(InputError, match=said):
        make_policy(text)
