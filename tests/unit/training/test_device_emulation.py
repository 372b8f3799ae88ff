"""Stages on devices that are declared slower."""

import importlib.util
import time
from collections.abc import Callable
from pathlib import Path

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


# The declared disk and links of the examples: one queue for everybody, and nothing without a declaration.

SOURCE = Path(__file__).resolve().parents[3] / "examples" / "training" / "devices.py"


@pytest.fixture
def devices():
    spec = importlib.util.spec_from_file_location("demo_devices", SOURCE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_who_asks_later_is_served_later_whoever_it_is(devices, tmp_path):
    one, other = (devices.Device(tmp_path / "disk-0", 100.0) for _ in range(2))
    begin_s = time.monotonic()
    first = one.serve(5_000)
    assert first >= begin_s + 50
    assert other.serve(1_000) == pytest.approx(first + 10)
    assert one.serve(2_000) == pytest.approx(first + 30)
    assert devices.Device(tmp_path / "disk-1", 100.0).serve(100) < begin_s + 60  # another device is free


def test_an_idle_device_saves_nothing_up(devices, tmp_path):
    device = devices.Device(tmp_path / "disk-0", 1e9)
    device.serve(1)
    time.sleep(2 * devices.READY_S)
    now_s = time.monotonic()
    assert device.serve(10_000_000) >= now_s + 0.01


def test_only_what_is_declared_is_slow(devices, tmp_path, monkeypatch):
    for name in ("PLAIT_DEMO_DISK_MB_S", "PLAIT_DEMO_LINK_MBIT_S", "PLAIT_DEMO_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    assert devices.declared("DISK", "MB_S", 1e6) is None
    assert devices.link() is None
    (tmp_path / "file").write_bytes(b"content")
    assert devices.read(tmp_path / "file") == b"content"
    monkeypatch.setenv("PLAIT_DEMO_DISK_MB_S", "64")
    assert devices.declared("DISK", "MB_S", 1e6) is None  # nobody said who shares it
    monkeypatch.setenv("PLAIT_DEMO_DEVICES", str(tmp_path))
    assert devices.declared("DISK", "MB_S", 1e6).bytes_s == 64e6
