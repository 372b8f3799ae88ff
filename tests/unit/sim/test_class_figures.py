"""Figures of guaranteed and opportunistic jobs side by side, in runs under `antman` and without classes."""

from dataclasses import replace

import pytest

from plait.control.controller import Controller
from plait.control.history import History
from plait.control.metrics import CLASS_NAMES, RunResult, measure
from plait.core.cluster import Cluster
from plait.core.jobs import Checkpoints, JobBatch, JobClass, JobSpec
from plait.core.preemption import PreemptionRule
from plait.core.resources import StageProfile
from plait.policies.catalog import make_policy
from plait.sharing.macro_model import Load, estimate
from plait.sim.guest_models import GuestModels
from plait.sim.physics import MeasuredPhysics
from plait.sim.run import simulate
from plait.sim.shared_gpu import GpuSharing
from plait.sim.world import World, make_world

HALF = StageProfile.of(cpu=0.5, gpu=0.5)
GUEST, AUTO = JobClass.OPPORTUNISTIC, JobClass.AUTO


def job(name: str, seconds: float, klass: JobClass = JobClass.GUARANTEED, **more: object) -> JobSpec:
    return JobSpec(id=name, iterations=seconds, profile=HALF, job_class=klass, **more)  # type: ignore[arg-type]


def figures(
    policy: str, *jobs: JobSpec, cluster: str = "1x1", world: World | None = None, **options: object
) -> RunResult:
    histories: list[History] = []

    def observe(controller: Controller) -> History:
        histories.append(History(controller))
        return histories[-1]

    done = simulate(
        JobBatch.of(jobs), Cluster.parse(cluster), make_policy(policy), world or make_world("ideal"),
        observe=observe, check=True, **options,  # type: ignore[arg-type]
    )  # fmt: skip
    return measure(done.controller, histories[0])


def test_each_class_has_its_own_average_and_guests_their_throttled_time() -> None:
    found = figures("antman", job("host", 100.0), job("guest", 50.0, GUEST)).summary
    part = estimate(Load(1.0, 0.5), 0.002, seconds=3600.0, counted=True).slack_share
    guest_s = 50.0 * (0.5 + 0.5 / (0.5 * part))
    assert found["avg_jct_guaranteed_s"] == pytest.approx(100.07, abs=0.07)  # longer beside the guest
    assert found["avg_jct_opportunistic_s"] == pytest.approx(guest_s, rel=0.01)
    assert found["throttled_h"] == pytest.approx((guest_s - 50.0) / 3600, rel=0.02)
    assert found["max_stretch_guaranteed"] <= 1.011
    assert (found["opportunistic_kills"], found["promotions_in_place"]) == (0, 0)
    assert (found["jobs_guaranteed"], found["jobs_opportunistic"]) == (1, 1)
    assert found["guest_gpu_h"] == pytest.approx(guest_s / 3600, rel=0.01)


def test_a_guest_that_is_promoted_goes_on_where_it_is() -> None:
    found = figures("antman", job("host", 100.0), job("auto", 100.0, AUTO)).summary
    assert found["promotions_in_place"] == 1
    assert found["preemptions"] == 0


def test_a_stalled_guest_goes_elsewhere_without_losing_work() -> None:
    busy = [replace(job(f"busy{s}", s), profile=None, iteration_s=1.0, submit_s=10.0) for s in (300.0, 3000.0)]
    found = figures("antman", job("guest", 2000.0, GUEST), *busy, cluster="1x2")
    assert found.summary["preemptions"] == 1  # beside the long one it gets nothing; 600 s later it goes elsewhere
    assert found.summary["lost_work_s"] == 0
    assert found.summary["avg_jct_opportunistic_s"] < 2900.0


@pytest.mark.parametrize("measured", [False, True])
def test_a_guest_goes_elsewhere_once_it_has_got_nothing_for_long_however_old_it_is(measured: bool) -> None:
    def busy(name: str, seconds: float, **more: object) -> JobSpec:
        return replace(job(name, seconds, **more), profile=None, iteration_s=1.0)  # type: ignore[arg-type]

    world = make_world("ideal")
    if measured:
        world = replace(world, physics=MeasuredPhysics(sharing=GpuSharing(models=GuestModels(()))))
    jobs = (busy("short", 2010.0), job("guest", 3000.0, GUEST), busy("long", 3000.0, submit_s=2000.5))
    found = figures("antman", *jobs, cluster="1x2", world=world)
    assert found.summary["preemptions"] == 1
    # It runs alone until 2000.5 s, beside the long one until 2600.5 s, although a GPU is free from 2010 s on.
    assert found.jobs["end_s"][1] == pytest.approx(3600.0, abs=1.0)


def test_a_job_stopped_without_a_checkpoint_is_a_kill() -> None:
    jobs = (
        job("guest", 100.0, GUEST, checkpoints=Checkpoints.NEVER),
        job("host", 10.0, submit_s=50.0),
    )
    found = figures("srtf", *jobs, rule=PreemptionRule(may_lose_work=True, runs_for=0.0)).summary
    assert found["opportunistic_kills"] == 1


def test_only_runs_with_classes_have_such_figures() -> None:
    assert not set(CLASS_NAMES) & set(figures("antman", job("a", 10.0)).summary)
    some = figures("antman", job("a", 10.0), job("b", 10.0, GUEST), job("c", 10.0, AUTO)).summary
    assert set(CLASS_NAMES) <= set(some)
