"""The emulated GPU that processes share: one kernel at a time, in order; nothing remains of who was killed."""

import itertools
import json
import math
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from gate_process import until

from plait.core.errors import InputError
from plait.core.resources import Resource
from plait.runtime.page import STOP_GRACEFULLY, Page
from plait.runtime.stage_gate import NullGate
from plait.sharing.directive import SpillReason
from plait.training import emulation
from plait.training.emulation import ENTRIES, FIFO_VARIABLE, Declared, FifoDevice, FifoMemory, FifoStages

GB = 10**9


@pytest.fixture
def forked():
    """Run a function in a process of its own; they are ended after the test."""
    pids: list[int] = []

    def start(work: Callable[[], object]) -> int:
        pid = os.fork()
        if pid == 0:
            try:
                work()
                os._exit(0)
            except BaseException:
                os._exit(1)
        pids.append(pid)
        return pid

    yield start
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        except (ProcessLookupError, ChildProcessError):
            pass


def test_kernels_of_several_processes_never_overlap(forked, tmp_path):
    def work(number: int) -> None:
        device, spans = FifoDevice(tmp_path / "gpu"), []
        until(lambda: (tmp_path / "go").exists())
        for _ in range(25):
            device.run(0.001)
            spans.append((device._free_s - 0.001, device._free_s))
        (tmp_path / f"spans-{number}").write_text(json.dumps(spans))

    pids = [forked(lambda number=number: work(number)) for number in range(3)]
    (tmp_path / "go").touch()
    assert [os.waitpid(pid, 0)[1] for pid in pids] == [0, 0, 0]
    each = [json.loads((tmp_path / f"spans-{number}").read_text()) for number in range(3)]
    spans = sorted(span for found in each for span in found)
    assert len(spans) == 75
    assert all(end <= begin + 1e-9 for (_, end), (begin, _) in itertools.pairwise(spans))


def test_nothing_remains_of_a_killed_process(forked, tmp_path):
    def work() -> None:
        device = FifoDevice(tmp_path / "gpu", 10 * GB)
        device.reserve(9 * GB)
        device.run(3600.0)

    pid = forked(work)
    device = FifoDevice(tmp_path / "gpu", 10 * GB)
    until(lambda: device.used_bytes == 9 * GB)
    until(lambda: any(device._word(i, 0) for i in device._live()))
    assert device.reserve(4 * GB) == 1 * GB
    os.kill(pid, signal.SIGKILL)
    before_s = time.monotonic()
    until(lambda: device.used_bytes == 1 * GB)  # also while nobody has waited for it
    device.run(0.001)
    assert device._free_s - before_s < 30.0
    assert device.reserve(10 * GB) == 10 * GB
    os.waitpid(pid, 0)
    device.close()
    device.close()


def test_who_is_late_is_not_charged_twice_and_idle_time_is_not_saved_up(tmp_path):
    device = FifoDevice(tmp_path / "gpu")
    device.run(0.001)
    first_s = device._free_s
    device.run(0.001)
    assert device._free_s - first_s < 0.001 + 0.5
    device._free_s -= 60.0
    now_s = time.monotonic()
    device.run(0.001)
    assert device._free_s >= now_s
    device.host_work(0.001)
    assert time.monotonic() >= device._free_s
    device.close()


def test_what_is_no_device_is_refused_and_the_maker_says_how_large_it_is(tmp_path):
    (tmp_path / "text").write_text("x" * 5000)
    with pytest.raises(InputError, match="is no emulated GPU"):
        FifoDevice(tmp_path / "text")
    one = FifoDevice(tmp_path / "gpu", 5 * GB)
    one.close()
    other = FifoDevice(tmp_path / "gpu", 7 * GB)
    assert other.capacity_bytes == 5 * GB
    assert ENTRIES >= 16
    other.close()


@pytest.fixture
def memory(tmp_path):
    def make(**declared):
        device = FifoDevice(tmp_path / "gpu", 32 * GB)
        return FifoMemory(device, Declared(str(tmp_path / "gpu"), **declared), page)

    with Page.create(tmp_path / "page.bin", mapped=True) as page:
        yield make


def test_a_limit_is_kept_and_what_exceeds_it_is_on_the_host(memory):
    gpu = memory(persistent=1.0 * GB, peak=8.0 * GB)
    assert gpu.begin_step() == 1.0
    assert gpu.end_step().reserved_bytes == 8 * GB
    assert gpu.bound(4.0 * GB) == 4 * GB
    assert gpu.begin_step() == 3.0  # half of it on the host, which takes five times as long
    use = gpu.end_step()
    assert (use.peak_bytes, use.persistent_bytes, use.spilled_bytes) == (4 * GB, 1 * GB, 4 * GB)
    assert use.reason is SpillReason.OUT_OF_MEMORY
    assert gpu.bound(0.5 * GB) == 1 * GB  # partial: what lives stays
    assert gpu.bound(math.inf) == math.inf
    assert gpu.begin_step() == 1.0
    gpu.demand(40.0 * GB)
    assert gpu.begin_step() == pytest.approx(1 + 4 * 8 / 40)


def test_what_nobody_can_serve_is_waited_for_until_the_limit_rises(memory, monkeypatch):
    gpu = memory(persistent=1.0 * GB, peak=8.0 * GB, host=1.0 * GB)
    page, looks = gpu._page, []
    gpu.bound(4.0 * GB)

    def sleep(seconds):
        looks.append(page.refused_bytes)
        page.memory_limit_bytes = (5.0, 8.0)[len(looks) - 1] * GB

    monkeypatch.setattr("plait.training.emulation.time.sleep", sleep)
    assert gpu.begin_step() == 1.0
    assert looks == [3 * GB, 2 * GB]
    assert page.refused_bytes == 0
    gpu.bound(2.0 * GB)
    page.stop, asked = STOP_GRACEFULLY, len(looks)
    gpu.begin_step()  # who is asked to stop waits no longer, so that it reaches its checkpoint
    assert len(looks) == asked


@pytest.mark.parametrize("text", ["file=g,stage=5", "file=g,stage=-5ms", "file=g,kernels=5ms", "stage=5ms", "file=,x"])
def test_what_is_no_declaration_is_refused(text):
    with pytest.raises(InputError, match=FIFO_VARIABLE):
        Declared.of(text)


def test_a_stage_runs_its_kernels_with_yield_points_between(tmp_path, monkeypatch):
    assert Declared.of("") is None
    monkeypatch.setenv(FIFO_VARIABLE, f"file={tmp_path / 'gpu'},stage=10ms,kernel=4ms,peak=2GB,memory=16GB")

    class Gate(NullGate):
        points = 0

        def yield_point(self, before=None):
            self.points += 1

    with Page.create(tmp_path / "page.bin", mapped=True) as page:
        gate = Gate()
        gate.kind = "guest"
        stages = emulation.make_stages(page, refresh=lambda _: gate)
        assert isinstance(stages, FifoStages)
        with stages.stage(Resource.GPU):
            assert stages.served_s == 0
        assert (stages.served_s, gate.points) == (pytest.approx(0.010), 2)
        assert stages.busy_s[Resource.GPU] >= 0.010
        assert stages.memory.end_step().reserved_bytes == 2 * GB
        assert stages.device.capacity_bytes == 16 * GB
        with stages.stage(Resource.CPU):
            pass
        assert stages.served_s == pytest.approx(0.010)
        stages.device.close()


def test_the_declaration_may_name_every_field():
    text = "file=/tmp/g,stage=0.2s,kernel=5ms,persistent=500MB,peak=4GB,host=64GB,memory=32GB"
    assert Declared.of(text) == Declared(str(Path("/tmp/g")), 0.2, 0.005, 0.5 * GB, 4 * GB, 64 * GB, 32 * GB)
