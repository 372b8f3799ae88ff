"""Busy and exposed seconds of nested and overlapping stages, on a clock that only the test moves."""

import time

import pytest
from test_adaptive_times import Clock

from plait.core.resources import Resource
from plait.runtime.guest_gate import GuestGate, Neighbours
from plait.runtime.page import Page
from plait.runtime.stage_gate import GateTimeout, NullGate
from plait.training.profiler import FEWEST, WARM_UP, Profiler
from plait.training.stages import Stages

STORAGE, CPU, GPU, NETWORK = Resource


@pytest.fixture
def clock():
    return Clock()


def test_stages_one_after_the_other(clock):
    stages = Stages(None, NullGate(), clock=clock)
    for resource, seconds in ((CPU, 1.0), (GPU, 3.0)):
        with stages.stage(resource):
            clock.now_s += seconds
        clock.now_s += 0.5
    assert stages.busy_s == [0.0, 1.0, 3.0, 0.0]
    assert stages.exposed_s == stages.busy_s
    assert stages.idle


def test_a_stage_may_stand_for_several(clock):
    stages = Stages(None, NullGate(), clock=clock)
    stages.enter(GPU, weight=3)
    clock.now_s += 2
    stages.enter(NETWORK, gated=False)
    clock.now_s += 1
    stages.leave(NETWORK)
    stages.leave(GPU)
    assert stages.busy_s == [0.0, 0.0, 9.0, 1.0]
    assert stages.exposed_s == [0.0, 0.0, 6.0, 0.0]
    with stages.stage(STORAGE, weight=2):
        clock.now_s += 1
    stages.split(STORAGE, {STORAGE: 0.25, CPU: 0.75})
    assert stages.busy_s[:2] == [0.5, 1.5]
    assert stages.exposed_s[:2] == [0.5, 1.5]


def test_what_two_stages_share_is_exposed_in_neither(clock):
    stages = Stages(None, NullGate(), clock=clock)
    stages.enter(GPU)
    clock.now_s += 2
    stages.enter(NETWORK, gated=False)
    clock.now_s += 1
    stages.leave(GPU)
    clock.now_s += 4
    stages.leave(NETWORK)
    assert stages.busy_s == [0.0, 0.0, 3.0, 5.0]
    assert stages.exposed_s == [0.0, 0.0, 2.0, 4.0]


def test_a_stage_that_waits_for_another_one_stands_still(clock):
    stages = Stages(None, NullGate(), clock=clock)
    stages.enter(GPU)
    clock.now_s += 2
    stages.enter(NETWORK, gated=False)
    stages.sleep(GPU)
    assert not stages.has(GPU)
    clock.now_s += 4
    stages.leave(NETWORK)
    clock.now_s += 0.5  # on its way back: nobody's
    stages.wake(GPU)
    clock.now_s += 1
    stages.leave(GPU)
    assert stages.busy_s == [0.0, 0.0, 3.0, 4.0]
    assert stages.exposed_s == stages.busy_s
    assert stages.idle
    stages.enter(GPU)
    stages.sleep(GPU)
    clock.now_s += 1
    stages.leave(GPU)  # without having woken
    assert stages.busy_s[GPU] == 3.0
    assert stages.idle


def test_the_same_stage_inside_itself_counts_once(clock):
    stages = Stages(None, NullGate(), clock=clock)
    with stages.stage(GPU), stages.stage(GPU):
        clock.now_s += 1
    assert stages.busy_s[GPU] == 1.0


def test_a_stage_is_split_afterwards(clock):
    stages = Stages(None, NullGate(), clock=clock)
    with stages.stage(STORAGE):
        clock.now_s += 4
    stages.split(STORAGE, {STORAGE: 0.25, CPU: 0.75})
    assert stages.busy_s == [1.0, 3.0, 0.0, 0.0]


def test_an_exception_closes_its_stage(clock):
    stages = Stages(None, NullGate(), clock=clock)
    with pytest.raises(ZeroDivisionError), stages.stage(GPU):
        _ = 1 / 0
    assert stages.idle


class Stuck(NullGate):
    def enter(self, resource, timeout_s=60.0):
        raise GateTimeout(resource, "g", timeout_s, "its holder is not known", 0)

    def leave(self, resource):
        raise AssertionError("left what was never entered")


def test_a_gate_that_times_out_is_a_warning_once_and_the_job_goes_on(clock):
    stages = Stages(None, Stuck(), clock=clock)
    with pytest.warns(RuntimeWarning, match="may go on without a gate"), stages.stage(GPU):
        clock.now_s += 1
    with stages.stage(GPU):
        clock.now_s += 1
    assert stages.busy_s[GPU] == 2.0


def test_the_gate_is_changed_between_stages_only(clock):
    right = [NullGate("one")]
    stages = Stages(None, NullGate(), refresh=lambda gate: right[-1], clock=clock)
    with stages.stage(GPU):
        right.append(NullGate("two"))
        with stages.stage(NETWORK):
            assert stages.gate.reason == "one"
    with stages.stage(CPU):
        assert stages.gate.reason == "two"


def test_an_iteration_that_ends_inside_a_stage_has_its_part_of_it(clock):
    """A stall before the first iteration of a profile is no part of it, though its stage ends in that iteration."""
    stages, profiler = Stages(None, NullGate(), clock=clock), Profiler()
    for step in range(1 + WARM_UP + FEWEST):
        with stages.stage(CPU):
            clock.now_s += 1
        with stages.stage(GPU):
            clock.now_s += 300 if step == WARM_UP else 3
            stages.publish()
            profiler.step(clock.now_s, stages.busy_so_far())
            clock.now_s += 2
    assert profiler.result is not None
    stage_s, iteration_s, _ = profiler.result
    assert (stage_s[CPU], stage_s[GPU], iteration_s) == pytest.approx((1, 5, 6))
    assert stages.busy_so_far() == stages.busy_s


@pytest.mark.parametrize("guest", [True, False])
def test_a_guest_between_yield_points_does_not_hang(tmp_path, guest):
    """Its peer may be held at a yield point while it waits for their gradients, so it says nothing of since when."""
    with Page.create(tmp_path / "page.bin", mapped=True) as page:
        page.share_until = 1e12
        gate = GuestGate(page, Neighbours(guest=True)) if guest else GivesWay()
        stages = Stages(page, gate)
        stages.enter(GPU)
        assert (page.stage_since == 0.0) is guest
        time.sleep(0.002)  # or the next yield point is passed over
        stages.yield_point()
        assert (page.stage_since == 0.0) is guest
        stages.show(Resource.STORAGE, 1.0)
        assert (page.stage_since, page.in_stage) == (1.0, Resource.STORAGE + 1)
        stages.hide()
        assert page.in_stage == Resource.GPU + 1
        assert (page.stage_since == 0.0) is guest
        stages.leave(GPU)


class GivesWay(NullGate):
    def __init__(self):
        super().__init__()
        self.kind = "tokens"

    def yield_point(self, before=None):
        before()
