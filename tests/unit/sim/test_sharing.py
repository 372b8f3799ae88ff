"""Sharing GPUs: the pace of members of a group, by formula (3) and by hand."""

from dataclasses import dataclass
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plait.core import turns as turns_of_core
from plait.core.cluster import Cluster
from plait.core.errors import SimulationError
from plait.core.jobs import JobBatch, JobSpec
from plait.core.plan import Gate, Group, Groups, Member
from plait.core.resources import Resource, StageProfile
from plait.grouping.times import interleaved_iteration_s
from plait.policies.catalog import make_policy
from plait.sim.physics import StandardPhysics, lock_step_s
from plait.sim.run import simulate
from plait.sim.world import World, make_world

EXCLUSIVE = np.ones((4, 4))


def job(
    name: str, *stages: float, iteration_s: float | None = None, cpus: float = 0.0, profile: bool = True
) -> JobSpec:
    seconds = sum(stages) if iteration_s is None else iteration_s
    known = StageProfile(stages, seconds) if profile else None
    return JobSpec(id=name, submit_s=0, gpus=1, iterations=10, iteration_s=seconds, profile=known, cpus=cpus)


def pace(jobs: list[JobSpec], group: Group, cluster: Cluster | None = None, interference: tuple[float, ...] = (1.0,)):
    physics = StandardPhysics(interference=interference)
    return physics.iteration_s(JobBatch.of(jobs), Groups.of([group]), cluster or Cluster.parse("1x4")).tolist()


def together(*turns: int, gate: Gate = Gate.BARRIER) -> Group:
    return Group(tuple(Member(i, turn=t) for i, t in enumerate(turns)), (0,), gate)


A, B = job("a", 4, 1, 1, 1), job("b", 1, 1, 4, 1)


def test_turns_of_the_plan_set_the_pace():
    assert pace([A, B], together(0, 2)) == [7, 7]
    assert pace([A, B], together(0, 1)) == [10, 10]
    assert pace([A, B], together(0, 3)) == [10, 10]


def test_without_turns_the_best_order_is_taken():
    assert pace([A, B], together(0, 0)) == [7, 7]


def test_interference_by_size_comes_on_top_and_the_last_factor_serves_larger_groups():
    assert pace([A, B], together(0, 2), interference=(1.0, 1.5)) == [10.5, 10.5]
    assert pace([A, B, A], together(0, 2, 1), interference=(1.0, 1.5)) == [15.0, 15.0, 15.0]


def test_a_lone_job_runs_at_its_own_pace_not_at_the_sum_of_its_stages():
    overlapping = job("o", 1, 1, 1, 1, iteration_s=3.0)
    assert pace([overlapping], Group((Member(0),), (0,)), interference=(1.0, 9.0)) == [3.0]


def test_all_at_once_slows_down_by_what_is_asked_of_the_busiest_resource():
    gpu_bound = job("g", 0, 0.2, 0.8, 0)
    assert pace([gpu_bound, gpu_bound], together(0, 0, gate=Gate.NONE)) == pytest.approx([1.6, 1.6])
    assert pace([A, B], together(0, 0, gate=Gate.NONE)) == [7, 7]  # 5/7 of storage and of GPU: they do not collide


def test_without_a_profile_a_job_is_taken_to_keep_its_gpus_busy():
    unknown = job("u", 1, 0, 0, 0, profile=False)
    assert pace([unknown, job("g", 0, 0, 1, 0)], together(0, 1)) == [2.0, 2.0]


def test_members_in_the_same_slot_serve_one_after_the_other_unless_they_need_only_a_part():
    some = Cluster.of(1, 4, cpus=16.0)
    half = [job("a", 1, 2, 1, 1, cpus=2), job("b", 1, 2, 1, 1, cpus=2), job("c", 1, 1, 1, 1)]
    # a and b have the same turn: storage, GPU and network twice, the CPU at once because two cores of four suffice
    assert pace(half[:2], together(1, 1), some) == [2 + 2 + 2 + 2] * 2
    whole = [job("a", 1, 2, 1, 1, cpus=4), job("b", 1, 2, 1, 1, cpus=4)]
    assert pace(whole, together(1, 1), some) == [2 + 4 + 2 + 2] * 2


def test_a_slower_place_slows_the_stages_of_all():
    physics = StandardPhysics(interference=(1.0,), kind_speed={"slow": 0.5})
    groups = Groups.of([together(0, 2)])
    assert physics.iteration_s(JobBatch.of([A, B]), groups, Cluster.parse("1x4:slow")).tolist() == [14, 14]


@given(
    st.integers(2, 4).flatmap(
        lambda p: st.tuples(
            st.lists(st.lists(st.floats(0, 100), min_size=4, max_size=4), min_size=p, max_size=p),
            st.sampled_from(list(permutations(range(4), p))),
        )
    )
)
def test_distinct_turns_are_formula_three(case: tuple[list[list[float]], tuple[int, ...]]):
    stages, turns = case
    first = np.zeros(1, dtype=np.int64)
    rows = np.array(stages)
    got = lock_step_s(rows, first, np.array(turns), EXCLUSIVE[: len(turns)])
    assert got.tolist() == pytest.approx([turns_of_core.lock_step_s(stages, turns)])
    assert got[0] >= interleaved_iteration_s(rows) - 1e-9


def test_many_groups_at_once_are_what_they_are_one_by_one():
    rng = np.random.default_rng(1)
    jobs = [job(f"j{i}", *rng.uniform(0.1, 1, 4).tolist()) for i in range(9)]
    batch = JobBatch.of(jobs)
    groups = [
        Group((Member(0), Member(1, turn=1)), (0,), Gate.BARRIER),
        Group((Member(2),), (1,)),
        Group((Member(3), Member(4)), (2,), Gate.NONE),
        Group((Member(5, turn=2), Member(6, turn=3), Member(7), Member(8, turn=1)), (3,), Gate.BARRIER),
    ]
    physics, cluster = StandardPhysics(), Cluster.parse("1x4")
    whole = physics.iteration_s(batch, Groups.of(groups), cluster)
    parts = [physics.iteration_s(batch, Groups.of([g]), cluster) for g in groups]
    assert whole.tolist() == np.concatenate(parts).tolist()
    assert whole[2] == jobs[2].iteration_s
    assert len(Resource) == 4


def test_a_member_of_a_group_is_never_faster_than_alone():
    """Stages of a quarter of the iteration: formula (3) alone would let both run twice as fast as alone."""
    gaps = [job(name, 0, 0, 0.25, 0, iteration_s=1.0) for name in "ab"]
    assert pace(gaps, together(0, 0)) == [1.0, 1.0]
    assert pace(gaps, together(0, 2), interference=(1.0, 1.5)) == [1.5, 1.5]
    uneven = [gaps[0], job("c", 1, 1, 1, 1, iteration_s=5.0)]
    assert pace(uneven, together(0, 1)) == [5.0, 5.0]


@pytest.mark.parametrize("policy", ["muri-s", "muri-l", "muri-s:objective=speedup,guard=off"])
def test_gaps_between_stages_are_no_free_speed_up(policy: str):
    """Two jobs of 1,000 s that are busy on the GPU for a quarter of it: nothing ends them before 1,000 s."""
    profile = StageProfile.of(gpu=0.25, iteration_s=1.0)
    jobs = JobBatch.of(JobSpec(id=n, iterations=1000.0, iteration_s=1.0, profile=profile) for n in "ab")
    run = simulate(jobs, Cluster.parse("1x1"), make_policy(policy), make_world("ideal"), check=True)
    assert min(run.controller.job_store.columns["end_s"][:2]) >= 1000.0


@dataclass(frozen=True)
class FormulaThreeAlone(StandardPhysics):
    """What physics did once: formula (3), whatever a member takes alone."""

    def _shared(self, truth, groups, alone, stage_s, share):
        return super()._shared(truth, groups, np.minimum(alone, stage_s.sum(axis=1)), stage_s, share)


def test_check_finds_a_member_that_is_faster_than_alone():
    profile = StageProfile.of(storage=0.1, gpu=0.1, iteration_s=1.0)
    jobs = JobBatch.of(JobSpec(id=n, iterations=1000.0, iteration_s=1.0, profile=profile) for n in "ab")
    world = World("too fast", "", FormulaThreeAlone(interference=(1.0,)))
    with pytest.raises(SimulationError, match=r"job 'a' .* s an iteration in its group and 1 s alone"):
        simulate(jobs, Cluster.parse("1x1"), make_policy("muri-s:guard=off"), world, check=True)
