"""Running jobs move to faster kinds of GPU: what is learnt of kinds, when a move pays, and who stays."""

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from plait.control import messages
from plait.control.controller import Controller
from plait.control.job_store import JobStore
from plait.core.cluster import Cluster
from plait.core.jobs import JobBatch, JobSpec
from plait.core.resources import StageProfile
from plait.policies.catalog import make_policy
from plait.policies.upgrade import kind_speeds
from plait.sim.physics import StandardPhysics
from plait.sim.run import Simulation, simulate
from plait.sim.world import Overheads, make_world

PROFILE = StageProfile.of(gpu=0.9, cpu=0.1)
SPEEDS = {"slow": 0.5}


def job(
    number: int, work_s: float, gpus: int = 2, kinds: tuple[str, ...] | None = None, profile: bool = True
) -> JobSpec:
    return JobSpec(
        id=f"j{number}", submit_s=float(number), gpus=gpus, iterations=work_s, iteration_s=1.0, gpu_kinds=kinds,
        profile=PROFILE if profile else None, restart_s=60.0,
    )  # fmt: skip


def run(jobs: list[JobSpec], policy: str = "plait", cluster: str = "1x2:fast,1x2:slow") -> Simulation:
    world = replace(make_world("ideal"), physics=StandardPhysics(kind_speed=SPEEDS))
    world = replace(world, overheads=Overheads.constant(launch_s=20, checkpoint_s=20, restore_s=20, migrate_s=20))
    return simulate(JobBatch.of(jobs), Cluster.parse(cluster), make_policy(policy), world)


def columns(done: Simulation) -> Mapping[str, np.ndarray]:
    return done.controller.job_store.columns


#: The first job has the fast GPUs for 2,000 s, the second one is left with the slow ones; the third is evidence.
LINE = [job(0, 2000.0), job(1, 20_000.0)]


@pytest.mark.parametrize("knows", ["exact", "predicted", "nothing"])
def test_a_job_on_slow_gpus_moves_once_fast_ones_are_free_and_known_to_be_fast(knows: str) -> None:
    told = columns(run(LINE, f"plait:knows={knows},speeds=fast=1/slow=0.5"))
    assert told["starts"][:2].tolist() == [1, 2]
    assert told["end_s"][1] < 2100 + 19_500
    learnt = run(LINE, f"plait:knows={knows}")  # from the job that ended on the fast ones, and nobody runs there
    assert columns(learnt)["starts"][:2].tolist() == [1, 2]
    assert columns(learnt)["end_s"][1] < 4000 + 19_500
    store = learnt.controller.job_store
    assert store.kind_speeds == pytest.approx({"fast": 1.0}, rel=0.02), "the other one ran on both"
    assert JobStore.from_json(json.loads(json.dumps(store.to_json()))).kind_speeds == store.kind_speeds
    unknown = columns(run([job(0, 500.0), LINE[1]], f"plait:knows={knows}"))  # it ended too soon to tell
    assert unknown["starts"][:2].tolist() == [1, 1]
    assert unknown["end_s"][1] > 39_000


def test_finished_jobs_tell_only_what_they_were_seen_to_do_at_their_size() -> None:
    controller = Controller(make_policy("plait"), Cluster.parse("1x2:fast,1x2:slow"))
    early, one = np.zeros(1, dtype=np.int64), np.ones(1)
    for event in (
        messages.JobSubmitted(0.0, 0, JobBatch.of([job(0, 4000.0)])), messages.ReplanDue(0.0),
        messages.ProgressReported(1000.0, early, 900 * one, 2000 * one, 1000 * one, one / 0.9),
        messages.JobFinished(1000.0, early, 1000 * one),
    ):  # fmt: skip
        controller.handle(event)
    assert controller.job_store.kind_speeds == pytest.approx({"fast": 0.9}), "it ended before its 4,000 iterations"
    scaling = ((1, 3.5), (2, 1.9), (4, 1.0))
    elastic = [replace(job(i, 3000.0, 4), min_gpus=1, scaling=scaling, profile=None) for i in range(4)]
    shrunk = run(elastic, "pollux", "1x4:fast,1x4:slow")
    assert shrunk.controller.job_store.kind_speeds == {}


@pytest.mark.parametrize("profile", [True, False])
def test_speeds_are_learnt_from_jobs_that_run(profile: bool) -> None:
    some = partial(job, profile=profile)
    jobs = [some(0, 3000.0, gpus=1), some(1, 50_000.0, gpus=1), some(2, 20_000.0)]
    done = columns(run(jobs))
    assert done["starts"][:3].tolist() == [1, 1, 1], "one fast GPU is free, two are needed"
    jobs = [jobs[0], some(1, 20_000.0, gpus=1), some(2, 20_000.0, gpus=1, kinds=("slow",)), some(3, 20_000.0, gpus=1)]
    done = columns(run(jobs))
    assert done["starts"][2:4].tolist() == [1, 2], "one may run on slow ones alone, and one moves"
    assert done["end_s"][3] < 24_000 < done["end_s"][2]


def test_no_move_before_the_missed_speed_has_paid_for_the_restart_or_onto_equal_gpus() -> None:
    jobs = [job(0, 20.0), job(1, 200.0)]
    assert columns(run(jobs, "plait:speeds=fast=1/slow=0.9"))["starts"][:2].tolist() == [1, 1], "60 s for 20 s"
    assert columns(run(LINE, "plait:speeds=fast=1/slow=0.95"))["starts"][:2].tolist() == [1, 1]


def test_what_is_known_of_kinds() -> None:
    seen: list[np.ndarray] = []

    class Spy:
        name = "spy"
        policy = make_policy("plait:group=off")

        def decide(self, view):  # type: ignore[no-untyped-def]
            seen.append(kind_speeds(view))
            return replace(self.policy.decide(view), valid_until_s=view.now_s + 700.0)

    world = replace(make_world("ideal"), physics=StandardPhysics(kind_speed=SPEEDS))
    jobs = JobBatch.of([job(0, 1500.0), job(1, 1500.0)])
    simulate(jobs, Cluster.parse("1x2:fast,1x2:slow"), Spy(), world)
    assert np.isnan(seen[0]).all()
    assert any(one == pytest.approx([1.0, 0.5], rel=0.01) for one in seen)
