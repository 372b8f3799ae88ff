"""Muri in plait's own world: who is a candidate, who shares with whom, and what must not be shared."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from plait.control.controller import Controller
from plait.control.messages import JobFinished, JobSubmitted, Launch, NodesReserved, ReplanDue, Stop
from plait.core.cluster import Cluster, Node
from plait.core.errors import InputError, PlanError
from plait.core.jobs import Checkpoints, JobBatch, JobSpec
from plait.core.plan import Gate, Group, Groups, Member, NodeReservation, Plan
from plait.core.policy import Policy, View
from plait.core.preemption import PreemptionRule
from plait.core.resources import StageProfile
from plait.grouping.interference import MEASURED_INTERFERENCE
from plait.policies.catalog import make_policy
from plait.policies.compose import Composed, by_arrival
from plait.policies.interleave import Interleave, Room, candidates
from plait.sim.physics import StandardPhysics
from plait.sim.run import simulate
from plait.sim.world import make_world

#: four jobs that use one resource each nearly all the time
PURE = [
    StageProfile.of(storage=0.97, cpu=0.01, gpu=0.01, network=0.01),
    StageProfile.of(cpu=0.97, storage=0.01, gpu=0.02),
    StageProfile.of(gpu=0.97, storage=0.01, cpu=0.02),
    StageProfile.of(network=0.97, storage=0.01, gpu=0.02),
]
GPU = StageProfile.of(gpu=0.95, cpu=0.05)


def job(name: str, profile: StageProfile | None, gpus: int = 1, work_s: float = 1000.0, **more: object) -> JobSpec:
    return JobSpec(id=name, submit_s=0, gpus=gpus, iterations=work_s, iteration_s=1.0, profile=profile, **more)  # type: ignore[arg-type]


def plan(jobs: Sequence[JobSpec], policy: Policy, cluster: Cluster | str = "1x1") -> tuple[Plan, View]:
    controller = Controller(policy, Cluster.parse(cluster) if isinstance(cluster, str) else cluster)
    controller.handle(JobSubmitted(0.0, 0, JobBatch.of(jobs)))
    view = controller.view()
    return policy.decide(view), view


def members(made: Plan) -> list[list[int]]:
    return sorted(sorted(m.job for m in g.members) for g in made.groups)


def test_complementary_jobs_share_one_gpu_in_lock_step_with_distinct_turns():
    made, _ = plan([job(f"j{i}", p) for i, p in enumerate(PURE)], make_policy("muri-s"))
    assert members(made) == [[0, 1, 2, 3]]
    (group,) = made.groups
    assert group.gate is Gate.BARRIER
    assert sorted(m.turn for m in group.members) == [0, 1, 2, 3]
    assert not made.settled, "when one leaves the others may be grouped again"


def test_four_in_one_finish_in_the_time_of_about_one():
    jobs = JobBatch.of([job(f"j{i}", p) for i, p in enumerate(PURE)])
    alone = simulate(jobs, Cluster.parse("1x1"), make_policy("srsf"), make_world("ideal"))
    shared = simulate(jobs, Cluster.parse("1x1"), make_policy("muri-s"), make_world("ideal"), check=True)
    last = [float(r.controller.job_store.columns["end_s"][:4].max()) for r in (alone, shared)]
    assert last[0] == 4000
    slots_s = 0.97 + 0.02 + 0.02 + 0.02  # the longest stage of each slot, under turns that let all four work at once
    assert last[1] == pytest.approx(1000 * slots_s * MEASURED_INTERFERENCE[3], rel=0.01)


def test_all_fit_alone_so_nobody_shares():
    made, _ = plan([job(f"j{i}", p) for i, p in enumerate(PURE)], make_policy("muri-s"), "1x4")
    assert members(made) == [[0], [1], [2], [3]]
    assert made.groups.gate is None


def test_merges_only_as_far_as_needed_unless_told_otherwise():
    jobs = [job(f"j{i}", p) for i, p in enumerate(PURE)]
    assert len(plan(jobs, make_policy("muri-s"), "1x3")[0].groups) == 3
    assert len(plan(jobs, make_policy("muri-s:merge=always"), "1x3")[0].groups) == 1


def test_who_groups_always_is_asked_again_when_somebody_leaves():
    """Nobody shares, for the guard forbids it; others might once the candidates are others."""
    jobs = [job("a", PURE[0]), job("b", GPU)]
    assert plan(jobs[:1], make_policy("muri-s"), "1x4")[0].settled
    assert plan(jobs, make_policy("muri-s"), "1x4")[0].settled
    assert not plan(jobs, make_policy("muri-s:merge=always,guard=9"), "1x4")[0].settled


def test_jobs_of_one_resource_are_split_by_the_guard_and_wait_their_turn():
    jobs = [job(f"g{i}", GPU, work_s=100.0 * (i + 1)) for i in range(3)]
    made, _ = plan(jobs, make_policy("muri-s"))
    assert members(made) == [[0]]
    assert made.reasons[1].startswith("needs 1 GPU;")
    assert len(members(plan(jobs, make_policy("muri-s:guard=off"))[0])[0]) == 3


def test_without_a_profile_a_job_is_alone():
    made, _ = plan([job("a", None, work_s=10), *(job(f"j{i}", p) for i, p in enumerate(PURE))], make_policy("muri-s"))
    assert members(made) == [[0]]


def test_only_equal_sizes_share():
    two = [job("wide", PURE[0], gpus=2), job("narrow", PURE[2])]
    made, _ = plan(two, make_policy("muri-s"), "1x2")
    assert members(made) == [[1]] or members(made) == [[0]]


def test_memory_of_the_gpu_limits_the_group():
    cluster = Cluster.of(1, 1, gpu_memory_bytes=16_000_000_000)
    jobs = [job(f"j{i}", p, gpu_memory_bytes=6e9) for i, p in enumerate(PURE)]
    assert all(len(g) == 2 for g in members(plan(jobs, make_policy("muri-s"), cluster)[0]))
    large = [replace(j, gpu_memory_bytes=9e9) for j in jobs]
    assert members(plan(large, make_policy("muri-s"), cluster)[0]) == [[0]]


def test_peaks_that_interleave_let_a_group_into_the_memory_of_its_largest_job_and_a_part_of_the_others():
    cluster = Cluster.of(1, 1, gpu_memory_bytes=16_000_000_000)
    jobs = [job(f"j{i}", p, gpu_memory_bytes=12e9) for i, p in enumerate(PURE)]

    def ends_s(policy: str) -> float:
        run = simulate(JobBatch.of(jobs), cluster, make_policy(policy), make_world("ideal"), check=True)
        return float(run.controller.job_store.columns["end_s"][:4].max())

    assert members(plan(jobs, make_policy("muri-s:memory_kept=0.1"), cluster)[0]) == [[0, 1, 2, 3]], "12 + 3 x 1.2 GB"
    assert sorted(map(len, members(plan(jobs, make_policy("muri-s:memory_kept=0.2"), cluster)[0]))) == [2]
    assert ends_s("muri-s:memory_kept=0.1") < 0.5 * ends_s("muri-s") == 2000, "the controller accepts such plans"
    controller = Controller(make_policy("muri-s:memory_kept=0.1"), Cluster.of(2, 1, gpu_memory_bytes=16_000_000_000))
    controller.handle(NodesReserved(0.0, NodeReservation("r", (controller.cluster.nodes[1].id,), "other", 0.0, 1e6)))
    controller.handle(JobSubmitted(0.0, 0, JobBatch.of(jobs)))
    controller.handle(ReplanDue(0.0))
    assert members(controller.plan) == [[0, 1, 2, 3]], "also while a node is reserved"
    controller = Controller(OneGroup(), cluster)
    controller.handle(JobSubmitted(0.0, 0, JobBatch.of(jobs)))
    with pytest.raises(PlanError, match="48 GB of GPU memory"):
        controller.handle(ReplanDue(0.0))
    cores = [replace(j, cpus=1.0) for j in jobs]
    declared = Cluster.of(1, 1, gpu_memory_bytes=16_000_000_000, cpus=8.0)
    assert len(members(plan(cores, make_policy("muri-s:memory_kept=0.1"), declared)[0])[0]) == 1


class OneGroup:
    """All jobs on one GPU, by a policy that does not declare that peaks interleave."""

    def decide(self, view: View) -> Plan:
        everyone = Group(tuple(Member(job, i) for i, job in enumerate(view.jobs.number.tolist())), (0,))
        return Plan(Groups.of([everyone]))


def test_memory_of_the_node_limits_the_group():
    cluster = Cluster.of(1, 2, memory_bytes=32e9)
    jobs = [job(f"j{i}", p, memory_bytes=10e9) for i, p in enumerate(PURE)]
    made, _ = plan(jobs, make_policy("muri-s"), cluster)
    assert members(made) != [[0, 1, 2, 3]]
    assert all(len(g) == 1 for g in members(made)), "10 and 10 of 16 GB a GPU do not fit together"


def test_gpu_kinds_must_agree():
    cluster = Cluster((Node("n0", 1, "a"), Node("n1", 1, "b")))
    jobs = [job(f"j{i}", p, gpu_kinds=("a",) if i % 2 else ("b",)) for i, p in enumerate(PURE)]
    made, _ = plan(jobs, make_policy("muri-s"), cluster)
    assert members(made) == [[0, 2], [1, 3]]


def test_declared_cores_let_two_preprocess_at_once():
    cpu = StageProfile.of(cpu=1.0)
    cluster = Cluster.of(1, 1, cpus=16.0)
    few = [job(f"j{i}", cpu, cpus=4.0) for i in range(2)]
    assert members(plan(few, make_policy("muri-s:interference=off"), cluster)[0]) == [[0, 1]]
    all_of_them = [job(f"j{i}", cpu) for i in range(2)]
    assert members(plan(all_of_them, make_policy("muri-s:interference=off"), cluster)[0]) == [[0]]


def test_jobs_that_preprocess_side_by_side_run_as_fast_as_the_plan_says():
    cluster = Cluster.of(1, 1, cpus=16.0)
    jobs = JobBatch.of([job(f"j{i}", StageProfile.of(cpu=1.0), cpus=4.0) for i in range(2)])
    world = replace(make_world("ideal"), physics=StandardPhysics(interference=(1.0,)))
    run = simulate(jobs, cluster, make_policy("muri-s:interference=off"), world, check=True)
    assert run.controller.job_store.columns["end_s"][:2].tolist() == [1000.0, 1000.0], (
        "8 of 16 cores are enough for both"
    )


def chosen(order: list[int], gpus: np.ndarray, bucket: np.ndarray, capacity: int, max_jobs: int) -> list[int]:
    one_kind = np.zeros(len(gpus), dtype=np.int64), np.array([capacity]), np.array([[True]])
    return candidates(np.array(order), gpus, bucket, *one_kind, max_jobs, np.full(len(gpus), -1)).tolist()


def test_candidates_fill_the_cluster_with_full_groups_of_the_best_jobs():
    gpus = np.array([2, 1, 1, 2, 1, 4, 1])
    order = list(range(7))
    # 4 GPUs: job 0 takes two and brings 3; job 1 takes one and brings 2; job 4 the last and brings 6; 5 finds none
    assert chosen(order, gpus, gpus, 4, 2) == [0, 1, 2, 3, 4, 6]
    assert chosen(order, gpus, gpus, 4, 1) == [0, 1, 2]
    assert chosen([5, 0, 1], gpus, gpus, 4, 4) == [5]
    alone = np.where(gpus == 1, -1, gpus)
    assert chosen(order, gpus, alone, 3, 4) == [0, 1, 3]


def test_room_is_given_out_in_order_and_whoever_does_not_fit_is_passed_over():
    """Kinds a and b with 4 and 2 GPUs; sets of kinds: {a}, {b}, {a, b}."""
    inside = np.array([[True, False, True], [False, True, True], [False, False, True]])
    room = Room(np.array([0, 0, 1, 2, 2]), np.array([4, 2, 6]), inside)
    gpus = np.array([3, 2, 2, 2, 1])
    assert room.fits(gpus, np.arange(5)).tolist() == [True, False, True, False, True]
    assert room.fits(gpus, np.array([3, 0, 1, 4, 2])).tolist() == [True, True, False, True, False]


def test_jobs_share_where_their_kind_of_gpu_is_short_though_others_are_free():
    cluster = Cluster.parse("1x4:a,1x1:b")
    short = [job(f"j{i}", p, gpu_kinds=("b",)) for i, p in enumerate(PURE)]
    assert members(plan(short, make_policy("muri-s"), cluster)[0]) == [[0, 1, 2, 3]]
    anywhere = [job(f"j{i}", p) for i, p in enumerate(PURE)]
    assert members(plan(anywhere, make_policy("muri-s"), cluster)[0]) == [[0], [1], [2], [3]]


def test_jobs_that_wait_for_one_kind_do_not_use_up_the_candidates_of_another():
    cluster = Cluster.parse("1x1:a,1x1:b")
    first = [job(f"a{i}", GPU, work_s=10, gpu_kinds=("a",)) for i in range(8)]
    then = [job(f"b{i}", p, gpu_kinds=("b",)) for i, p in enumerate(PURE)]
    made, _ = plan([*first, *then], make_policy("muri-s"), cluster)
    assert members(made) == [[0], [8, 9, 10, 11]]


def test_the_queue_place_is_the_order_of_priority_not_of_placement():
    jobs = [job("small", PURE[0], work_s=10), job("wide", PURE[1], gpus=4), job("last", PURE[2], work_s=5000)]
    made, view = plan(jobs, make_policy("muri-s"), "1x8")
    assert made.order is not None
    assert [str(view.jobs[int(i)].spec.id) for i in made.order] == ["small", "wide", "last"]


def test_levels_reach_everybody_who_shares():
    jobs = [job(f"j{i}", p) for i, p in enumerate(PURE)]
    made, _ = plan(jobs, make_policy("muri-l:order=discretised"))
    assert made.levels.tolist() == [0, 0, 0, 0]


def test_the_better_unit_is_placed_even_where_large_ones_first_would_shut_it_out():
    cluster = Cluster((Node("n0", 3), Node("n1", 3)))
    jobs = [
        job("best", PURE[0], gpus=2, work_s=10),
        job("b", PURE[1], gpus=2, work_s=20),
        job("c", GPU, gpus=2, work_s=30),
    ]
    made, _ = plan(jobs, make_policy("muri-s"), cluster)
    assert any(0 in g for g in members(made))


def test_a_group_that_finds_too_few_cores_is_taken_apart():
    """`greedy` takes more than its part of the node, so `a` and `b` together ask for more cores than are left."""
    cluster = Cluster.of(1, 4, cpus=8.0)
    jobs = [
        job("greedy", GPU, work_s=100, cpus=5.0),
        job("a", PURE[0], gpus=2, cpus=2.0),
        job("b", PURE[1], gpus=2, cpus=2.0),
    ]
    made, _ = plan(jobs, make_policy("muri-s"), cluster)
    assert members(made) == [[0], [1]]
    assert list(made.reasons) == [2]
    assert members(plan(jobs[1:], make_policy("muri-s"), Cluster.of(1, 2, cpus=4.0))[0]) == [[0, 1]]


def test_wrong_values_are_named():
    for text, said in (
        ("muri-s:max_jobs=5", "max_jobs is 5; it takes a whole number from 1 to 4"),
        ("muri-s:objective=fun", "objective is 'fun'; it takes efficiency, speedup or completion"),
        ("muri-s:guard=-1", "guard is -1; it takes a finite number >= 0, auto, on or off"),
        ("muri-s:guard=tight", "guard is 'tight'; it takes"),
        ("muri-s:max_jobs=2.5", "max_jobs is 2.5; it takes"),
        ("muri-s:max_jobs=on", "max_jobs is 'on'; it takes"),
        ("muri-s:improve=5", "improve is 5; it takes on or off"),
        ("muri-s:idle_slots=some", "idle_slots is 'some'; it takes on or off"),
        ("muri-s:interference=1.5", "interference is 1.5; it takes on or off"),
        ("muri-s:interference=off,learn=on", "learn changes the measured slow-down"),
        ("muri-l:order=alphabet", "order is 'alphabet'; it takes remaining, attained"),
        ("muri-s:sticky=3", "sticky is 3; it takes on or off"),
    ):
        with pytest.raises(InputError, match=said):
            make_policy(text)


def shorter_pair_arrives(policy: str, second_s: float) -> Controller:
    """Two GPU-bound jobs share nothing; at 10 s shorter ones come, and what is decided `second_s` later is applied."""
    controller = Controller(make_policy(policy), Cluster.parse("1x1"))
    gpu = StageProfile.of(gpu=1.0)
    controller.handle(JobSubmitted(0.0, 0, JobBatch.of([job("long", gpu)])))
    controller.handle(ReplanDue(0.0))
    controller.handle(JobSubmitted(10.0, 1, JobBatch.of([replace(job("short", gpu), iterations=5.0)])))
    controller.handle(ReplanDue(10.0))
    controller.handle(ReplanDue(10.0 + second_s))
    return controller


def test_a_shortest_run_holds_for_groups_too():
    assert shorter_pair_arrives("muri-s", 0.0).running.jobs.tolist() == [1]
    assert shorter_pair_arrives("muri-s:min_run_s=60", 49.0).running.jobs.tolist() == [0]
    assert shorter_pair_arrives("muri-s:min_run_s=60", 50.0).running.jobs.tolist() == [1]


def test_who_waited_too_long_goes_first_among_groups_too():
    gpu = StageProfile.of(gpu=1.0)
    for policy, first in (("muri-s", 1), ("muri-s:reserve_after_s=100", 0)):
        controller = Controller(make_policy(policy), Cluster.parse("1x1"))
        long, short = job("long", gpu), replace(job("short", gpu), iterations=5.0, submit_s=99.0)
        controller.handle(JobSubmitted(100.0, 0, JobBatch.of([long, short])))
        controller.handle(ReplanDue(100.0))
        assert controller.running.jobs.tolist() == [first], policy


def test_running_groups_stay_together_where_restarts_cost():
    """Four jobs in two groups, one of which has lost a member: the new job takes the free place, nobody moves."""
    pure = [replace(job(f"j{i}", PURE[i % 4]), restart_s=30.0) for i in range(4)]
    controller = Controller(make_policy("muri-s:max_jobs=2"), Cluster.parse("1x2"))
    controller.rule = PreemptionRule(runs_for=0.0)
    controller.handle(JobSubmitted(0.0, 0, JobBatch.of(pure)))
    controller.handle(ReplanDue(0.0))
    before = {m.job: group.gpus for group in controller.running for m in group.members}
    controller.handle(JobFinished(5.0, np.array([0]), np.array([5.0])))
    new = replace(job("new", StageProfile.of(storage=0.9, cpu=0.1)), restart_s=30.0, submit_s=5.0)
    controller.handle(JobSubmitted(5.0, 4, JobBatch.of([new])))
    assert not [c for c in controller.handle(ReplanDue(5.0)) if isinstance(c, Stop)]
    there = {m.job: group.gpus for group in controller.running for m in group.members}
    assert there == {1: before[1], 2: before[2], 3: before[3], 4: before[0]}


def restarting(number: int, profile: StageProfile, **more: object) -> JobSpec:
    return replace(job(f"j{number}", profile, work_s=1000.0 * (number + 1)), restart_s=30.0, **more)


def pairs(controller: Controller) -> list[list[int]]:
    return sorted(sorted(member.job for member in group.members) for group in controller.running)


def test_a_better_pairing_waits_until_it_would_have_paid_for_the_restarts():
    """Job 3 joins job 1; 0 with 1 and 2 with 3 would do more work, but two jobs would restart for it."""
    stages = ((0.8, 0.1, 0, 0.1), (0, 0, 0.1, 0.9), (0.1, 0.1, 0, 0.8), (0.3, 0.1, 0.4, 0.2))
    profiles = [StageProfile.from_sequence(some, 1.0) for some in stages]
    controller = Controller(make_policy("muri-s:max_jobs=2"), Cluster.parse("1x2"))
    controller.handle(JobSubmitted(0.0, 0, JobBatch.of([restarting(i, profiles[i]) for i in range(3)])))
    controller.handle(ReplanDue(0.0))
    assert pairs(controller) == [[0, 2], [1]]
    controller.handle(JobSubmitted(60.0, 3, JobBatch.of([restarting(3, profiles[3], submit_s=60.0)])))
    assert not [c for c in controller.handle(ReplanDue(60.0)) if isinstance(c, Stop)]
    assert pairs(controller) == [[0, 2], [1, 3]]
    pays_s = controller.plan.valid_until_s
    assert not controller.handle(ReplanDue(pays_s - 1.0))
    (stop,) = [c for c in controller.handle(ReplanDue(pays_s)) if isinstance(c, Stop)]
    assert len(stop.jobs) == 2
    assert pairs(controller) == [[0, 1], [2, 3]]

    paper = Controller(make_policy("muri-s:max_jobs=2,sticky=off"), Cluster.parse("1x2"))
    paper.rule = PreemptionRule(runs_for=0.0)
    paper.handle(JobSubmitted(0.0, 0, JobBatch.of([restarting(i, profiles[i]) for i in range(3)])))
    paper.handle(ReplanDue(0.0))
    paper.handle(JobSubmitted(60.0, 3, JobBatch.of([restarting(3, profiles[3], submit_s=60.0)])))
    paper.handle(ReplanDue(60.0))
    assert pairs(paper) == [[0, 1], [2, 3]], "at once"


def test_a_departure_moves_nobody_where_groups_of_the_same_kinds_do():
    """Twelve jobs of four kinds in groups of four: one leaves, one of its kind comes, and takes its place."""
    kinds = [restarting(i, PURE[i % 4]) for i in range(12)]
    controller = Controller(make_policy("muri-s"), Cluster.parse("1x3"))
    controller.rule = PreemptionRule(runs_for=0.0)
    controller.handle(JobSubmitted(0.0, 0, JobBatch.of(kinds)))
    controller.handle(ReplanDue(0.0))
    (old,) = [some for some in pairs(controller) if 5 in some]
    others = [some for some in pairs(controller) if 5 not in some]
    controller.handle(JobFinished(500.0, np.array([5]), np.array([500.0])))
    controller.handle(JobSubmitted(500.0, 12, JobBatch.of([restarting(12, PURE[1], submit_s=500.0)])))
    assert not [c for c in controller.handle(ReplanDue(500.0)) if isinstance(c, Stop)]
    assert pairs(controller) == sorted([*others, sorted({*old, 12} - {5})])


def test_a_wide_job_whose_turn_it_is_gets_a_node_though_more_is_asked_for_than_there_is():
    """Jobs that share nothing hold a GPU of each node: for the wide one that comes before the last, one moves."""

    def gpu_bound(name: str, gpus: int, work_s: float) -> JobSpec:
        return job(name, StageProfile.of(gpu=1.0), gpus=gpus, work_s=work_s, restart_s=30.0)

    def after(policy: str) -> list[int]:
        controller = Controller(make_policy(policy), Cluster.parse("2x2"))
        controller.rule = PreemptionRule(runs_for=0.0)
        narrow = [gpu_bound(f"j{i}", 1, 1000.0) for i in range(4)]
        controller.handle(JobSubmitted(0.0, 0, JobBatch.of(narrow)))
        controller.handle(ReplanDue(0.0))
        at = {int(group.gpus[0]): group.members[0].job for group in controller.running}
        gone = np.array(sorted([at[0], at[2]]))
        controller.handle(JobFinished(50.0, gone, np.array([50.0, 50.0])))
        new = [gpu_bound("wide", 2, 2000.0), gpu_bound("long", 1, 9000.0)]
        controller.handle(JobSubmitted(50.0, 4, JobBatch.of(new)))
        controller.handle(ReplanDue(50.0))
        return sorted(controller.running.jobs.tolist())

    assert {4} <= set(after("muri-s"))
    assert 5 not in after("muri-s")
    assert 5 in after("muri-s:sticky=off"), "as published: best first, each where it is"


def test_kept_jobs_get_company_where_they_are():
    """Two plain jobs run apart; what comes joins them, and neither moves to the other."""
    kept = [replace(job(f"kept{i}", PURE[i]), checkpoints=Checkpoints.NEVER) for i in range(2)]
    controller = Controller(make_policy("muri-s"), Cluster.parse("1x2"))
    controller.handle(JobSubmitted(0.0, 0, JobBatch.of(kept)))
    controller.handle(ReplanDue(0.0))
    home = {group.members[0].job: group.gpus for group in controller.running}
    controller.handle(JobSubmitted(5.0, 2, JobBatch.of([job(f"new{i}", PURE[2 + i]) for i in range(2)])))
    controller.handle(ReplanDue(5.0))
    there = {m.job: group.gpus for group in controller.running for m in group.members}
    assert {number: there[number] for number in home} == home
    assert sorted(there) == [0, 1, 2, 3]


def test_grouping_refuses_orders_without_preemption():
    for options in ({"preempt": False}, {"preempt": False, "strict": True}):
        with pytest.raises(InputError, match="grouping goes with preemption"):
            Composed("mixed", by_arrival, group=Interleave(), **options)  # type: ignore[arg-type]


def test_launch_says_who_shares_and_when():
    controller = Controller(make_policy("muri-s"), Cluster.parse("1x1"))
    controller.handle(JobSubmitted(0.0, 0, JobBatch.of([job("a", PURE[0]), job("b", PURE[2])])))
    (launch,) = [c for c in controller.handle(ReplanDue(0.0)) if isinstance(c, Launch)]
    (group,) = launch.groups
    assert {m.job for m in group.members} == {0, 1}
    assert group.members[0].turn != group.members[1].turn


def test_an_option_given_twice_is_named():
    with pytest.raises(InputError, match="option 'guard' is given twice"):
        make_policy("muri-s:guard=off,max_jobs=2,guard=0.1")
