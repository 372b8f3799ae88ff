"""Profiles from step boundaries, on a clock that only the test moves."""

import math
import random

import pytest
from test_adaptive_times import Clock

from plait.core.resources import Resource, skew
from plait.runtime.page import Page, ProfileSource
from plait.runtime.stage_gate import NullGate
from plait.training.passive import Hooks
from plait.training.profiler import FEWEST, MOST, WARM_UP, Profiler
from plait.training.stages import Stages


def run(profiler: Profiler, steps: int, iteration_s: object, *, now_s: float = 0.0, **options: object) -> list[int]:
    """Steps of a job with 0.1, 0.2, 0.6, 0 s stages; those at which the profile was complete."""
    length = iteration_s if callable(iteration_s) else lambda n: iteration_s
    busy, done = [0.0] * 4, []
    for number in range(steps):
        now_s += length(number)
        busy = [b + t for b, t in zip(busy, (0.1, 0.2, 0.6, 0.0), strict=True)]
        if profiler.step(now_s, busy, **options):
            done.append(number)
    return done


def test_a_steady_job_is_profiled_from_twenty_iterations_after_warm_up_and_only_once():
    profiler = Profiler()
    done = run(profiler, 200, lambda n: 5.0 if n < WARM_UP else 0.8)
    assert done == [WARM_UP + FEWEST]
    stage_s, iteration_s, samples = profiler.result
    assert stage_s == pytest.approx((0.1, 0.2, 0.6, 0.0))
    assert iteration_s == pytest.approx(0.8)
    assert samples == FEWEST
    assert profiler.step_s == pytest.approx(0.8)


def test_an_unsteady_one_gets_fifty():
    profiler = Profiler()
    assert run(profiler, 200, lambda n: 1.0 + (n % 2)) == [WARM_UP + MOST]
    assert profiler.result[1:] == (pytest.approx(1.5), MOST)


def test_iterations_beside_others_do_not_count_and_it_starts_over():
    profiler = Profiler()
    assert run(profiler, 20, 1.0) == []
    assert run(profiler, 100, 1.0, now_s=20.0, alone=False) == []
    assert run(profiler, 40, 1.0, now_s=120.0) == [WARM_UP + FEWEST - 1]


def test_time_that_is_not_the_jobs_own_is_left_out():
    profiler = Profiler()
    run(profiler, 60, 1.0, idle_s=0.25)
    assert profiler.result[1] == pytest.approx(0.75)


def test_without_marks_the_gpu_is_what_the_job_needs():
    profiler = Profiler()
    for number in range(60):
        profiler.step(number * 0.5, [0.0] * 4)
    assert profiler.result[0] == (0.0, 0.0, pytest.approx(0.5), 0.0)


def test_a_fifth_more_ten_times_in_a_row_is_profiled_anew():
    profiler = Profiler()
    slower = lambda n: 1.0 if n < 60 or 70 <= n < 75 or n in (100, 101) else 1.3  # noqa: E731
    assert run(profiler, 75, slower) == [WARM_UP + FEWEST]
    assert profiler.result is None
    profiler = Profiler()
    assert run(profiler, 66, slower) == [WARM_UP + FEWEST]  # six are not enough
    assert profiler.result[1] == pytest.approx(1.0)
    profiler = Profiler()
    assert len(run(profiler, 150, lambda n: 1.0 if n < 60 else 1.3)) == 2
    assert profiler.result[1] == pytest.approx(1.3)


def test_what_a_job_does_beside_others_is_no_drift():
    profiler = Profiler()
    run(profiler, 60, 1.0)
    assert run(profiler, 60, 3.0, now_s=60.0, alone=False) == []
    assert profiler.result[1] == pytest.approx(1.0)


def test_a_script_without_marks_is_measured_beside_others_until_it_is_alone(monkeypatch):
    profiler = Profiler(hooks=Hooks())
    monkeypatch.setattr(Hooks, "start", lambda *args: True)
    monkeypatch.setattr(Hooks, "stages", lambda *args: (0.75, 0.0, 0.25, 0.0))
    steps = lambda first, **company: sum(profiler.step(first + n, [0.0] * 4, **company) for n in range(40))  # noqa: E731
    assert steps(0, alone=False) == 0, "it waits for turns or a share"
    assert (steps(40, alone=False, free=True), profiler.source) == (1, ProfileSource.BESIDE)
    assert (steps(80), profiler.source) == (1, ProfileSource.HOOKS)


def test_stage_times_of_a_scripted_job_are_within_five_per_cent(tmp_path):
    """From marks to what the agent reads: a load that is split afterwards, a transfer within the backward pass."""
    clock, dice, profiler = Clock(), random.Random(1), Profiler()
    with Page.create(tmp_path / "page.bin", mapped=True) as page:
        stages = Stages(page, NullGate(), clock=clock)

        def takes(seconds: float) -> None:
            clock.now_s += seconds * dice.uniform(0.9, 1.1)

        while page.profile is None:
            with stages.stage(Resource.STORAGE):
                takes(0.040)
            stages.split(Resource.STORAGE, {Resource.STORAGE: 0.25, Resource.CPU: 0.75})
            takes(0.005)  # nobody's
            stages.enter(Resource.GPU)
            takes(0.060)
            stages.enter(Resource.NETWORK, gated=False)
            takes(0.020)  # both at once
            stages.sleep(Resource.GPU)
            takes(0.015)
            stages.leave(Resource.NETWORK)
            stages.wake(Resource.GPU)
            takes(0.010)
            stages.leave(Resource.GPU)
            stages.publish()
            if profiler.step(clock.now_s, stages.busy_s):
                page.set_profile(*profiler.result)
        assert page.profile.stage_s == pytest.approx((0.010, 0.030, 0.090, 0.035), rel=0.05)
        assert page.profile.iteration_s == pytest.approx(0.150, rel=0.05)
        assert page.exposed_s[Resource.GPU] / page.busy_s[Resource.GPU] == pytest.approx(7 / 9, rel=0.05)


class Recorder:
    def __init__(self):
        self.calls = []

    def start(self):
        self.calls.append("start")

    def stop(self):
        self.calls.append("stop")
        return 3.0


def test_transfers_are_recorded_in_the_measured_iterations_and_in_no_others():
    recorder = Recorder()
    profiler = Profiler(recorder)
    run(profiler, 200, 1.0)
    assert recorder.calls == ["start", "stop"]
    assert profiler.result[0][3] == pytest.approx(3.0 / FEWEST)
    run(profiler, 1, 1.0, now_s=200.0, alone=False)
    assert recorder.calls[-1] == "stop"


def test_transfers_of_an_unmarked_job_count_if_its_steps_are_not_seen():
    recorder = Recorder()
    profiler = Profiler(recorder, Hooks())  # no optimizer of torch has stepped
    for number in range(WARM_UP + FEWEST + 1):
        profiler.step(number * 0.5, [0.0] * 4)
    assert recorder.calls == ["start", "stop"]
    assert profiler.result[0] == (0.0, 0.0, pytest.approx(0.5 - 3.0 / FEWEST), pytest.approx(3.0 / FEWEST))
    assert profiler.source == ProfileSource.NONE


def test_skew_is_the_largest_tensors_part():
    assert skew([10, 30, 60]) == 0.6
    assert math.isnan(skew([]))
