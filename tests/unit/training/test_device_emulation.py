"""Stages on devices that are declared slower."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from plait.core.errors import InputError
from plait.core.resources import Resource
from plait.runtime.stage_gate import NullGate
from plait.training.emulation import VARIABLE, SlowDevices, SlowerStages, make_stages
from plait.training.stages import Stages


def spin(cpu_s: float) -> float:
    """Use so much of this thread's processor time; what was used."""
    began = time.thread_time()
    while time.thread_time() - began < cpu_s:
        pass
    return time.thread_time() - began


def test_a_stage_takes_a_multiple_of_the_time_it_computed() -> None:
    stages = SlowerStages(SlowDevices.declared("gpu=5"), None, NullGate())
    with stages.stage(Resource.GPU):
        used_s = spin(0.01)
    assert stages.busy_s[Resource.GPU] >= 5 * used_s
    before_s = time.thread_time()
    with stages.stage(Resource.CPU):
        spin(0.001)
    assert stages.busy_s[Resource.CPU] >= 0.001
    assert time.thread_time() - before_s < 1.0


def test_a_stage_takes_the_time_that_is_declared() -> None:
    stages = SlowerStages(SlowDevices.declared("gpu=30ms"), None, NullGate())
    before_s = time.thread_time()
    with stages.stage(Resource.GPU):
        spin(0.001)
    assert stages.busy_s[Resource.GPU] >= 0.03
    assert time.thread_time() - before_s < 0.03, "it waits, it does not compute"


def test_waiting_for_the_network_is_not_computing() -> None:
    stages = SlowerStages(SlowDevices.declared("gpu=4"), None, NullGate())
    stages.enter(Resource.GPU)
    used_s = spin(0.01)
    stages.sleep(Resource.GPU)
    asleep_s = stages.busy_s[Resource.GPU]
    assert asleep_s >= 4 * used_s
    time.sleep(0.02)
    stages.wake(Resource.GPU)
    used_s += spin(0.01)
    stages.leave(Resource.GPU)
    assert stages.busy_s[Resource.GPU] >= 4 * used_s


class Yielding(NullGate):
    """Gives way at every yield point, for a moment."""

    def __init__(self) -> None:
        super().__init__()
        self.kind = "tokens"

    def yield_point(self, before: Callable[[], None] | None = None) -> None:
        assert before is not None
        before()
        time.sleep(0.05)


def test_a_stage_that_gives_way_takes_its_time_before_and_after() -> None:
    stages = SlowerStages(SlowDevices.declared("gpu=30ms"), None, Yielding())
    with stages.stage(Resource.GPU):
        stages.yield_point()
    assert stages.busy_s[Resource.GPU] >= 0.06
    assert stages.idle


def test_only_a_declaration_makes_marks_that_emulate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    assert type(make_stages(None, refresh=lambda gate: gate)) is Stages
    monkeypatch.setenv(VARIABLE, "gpu=5ms")
    assert type(make_stages(None, refresh=lambda gate: gate)) is SlowerStages
    monkeypatch.setenv(VARIABLE, "gpu=fast")
    with pytest.raises(InputError, match="PLAIT_SLOWER"):
        make_stages(None, refresh=lambda gate: gate)


@pytest.mark.parametrize(
    "text", ["gpu", "gpu=0.5", "gpu=x", "disk=2", "gpu=nan", "cpu=1e9", "gpu=xms", "gpu=-1ms", "network=3ms"]
)
def test_what_is_no_declaration_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="PLAIT_SLOWER"):
        SlowDevices.declared(text)
