"""Which part of the time that loading takes is waiting for data: what a busy machine adds is not."""

import os
import threading
import time
from functools import partial

import pytest

pytest.importorskip("torch")
from plait.core.resources import Resource
from plait.runtime.stage_gate import NullGate
from plait.training import passive
from plait.training.loader import prefetch
from plait.training.loader.prefetch import WaitTimer
from plait.training.stages import Stages


class Clocks:
    """Those of a thread, which may lose its core for a while at any reading."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, lost_s: list[float]) -> None:
        self.now_s = self.cpu_s = self.queued_s = 0.0
        self.lost_s = lost_s
        monkeypatch.setattr(time, "perf_counter", lambda: self.read("now_s"))
        monkeypatch.setattr(time, "thread_time", lambda: self.read("cpu_s"))
        monkeypatch.setattr(prefetch, "queued_s", lambda: self.read("queued_s"))

    def read(self, name: str) -> float:
        value: float = getattr(self, name)
        lost_s = self.lost_s.pop(0) if self.lost_s else 0.0
        self.now_s, self.queued_s = self.now_s + lost_s, self.queued_s + lost_s
        return value


@pytest.mark.parametrize("at", range(8))
def test_a_core_that_is_lost_while_clocks_are_read_is_no_part_of_it(at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    clocks = Clocks(monkeypatch, [0.0] * at + [0.005])
    timer = WaitTimer()
    clocks.now_s += 0.006
    clocks.cpu_s += 0.002
    waited_s, all_s = timer.waited_s()
    assert waited_s == pytest.approx(0.004)
    assert all_s in (pytest.approx(0.006), pytest.approx(0.011))


def test_a_thread_opens_its_accounting_once() -> None:
    if not os.path.exists("/proc/thread-self/schedstat"):
        pytest.skip("this kernel accounts for no waiting")
    opened: list[int] = []

    def look() -> None:
        for _ in range(2):
            assert WaitTimer().queued_s >= 0
            opened.append(passive._local.opened.descriptor)

    look()
    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert opened[0] == opened[1] != opened[2] == opened[3]
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(opened[2])  # closed with its thread


class LoadClocks:
    """The clocks of `prefetch`, moved by what is loaded."""

    now_s = cpu_s = 0.0

    def perf_counter(self) -> float:
        return self.now_s

    def thread_time(self) -> float:
        return self.cpu_s


class Items:
    """Loading an item waits three times as long as it computes."""

    def __init__(self, clocks: LoadClocks, load_s: dict[int, float]) -> None:
        self.clocks, self.load_s = clocks, load_s

    def __getitem__(self, index: int) -> int:
        self.clocks.now_s += self.load_s.get(index, self.load_s[0])
        self.clocks.cpu_s += self.load_s.get(index, self.load_s[0]) * self.computed(index)
        return index

    def computed(self, index: int) -> float:
        return 0.25


class Shards(Items):
    """Items that only compute, except those that are read from a disk, which only wait."""

    def computed(self, index: int) -> float:
        return 0.0 if index in self.load_s and index else 1.0


@pytest.mark.parametrize(("load_s", "measured"), [({0: 0.001}, 2), ({0: 0.025}, 40), ({0: 0.001, 5: 0.4, 9: 0.1}, 4)])
def test_fast_batches_are_measured_now_and_then(
    load_s: dict[int, float], measured: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    clocks = LoadClocks()
    timers: list[prefetch.WaitTimer] = []

    class Timer(prefetch.WaitTimer):
        def __init__(self) -> None:
            timers.append(self)
            super().__init__()

    monkeypatch.setattr(prefetch, "time", clocks)
    monkeypatch.setattr(prefetch, "queued_s", lambda: 0.0)
    monkeypatch.setattr(prefetch, "WaitTimer", Timer)
    stages = Stages(None, NullGate(), clock=clocks.perf_counter)
    timer, items = prefetch.LoadTimer(stages), Items(clocks, load_s)
    for number in range(40):
        assert timer.time(partial(items.__getitem__, number)) == number
    assert measured <= len(timers) <= measured + 1  # the sum of the times is rounded
    loaded_s = sum(load_s.get(number, load_s[0]) for number in range(40))
    waiting = min(load_s[0], prefetch.SHORT_S) * 40  # of batches whose parts are not known yet
    assert stages.busy_s[Resource.STORAGE] == pytest.approx(0.75 * loaded_s, abs=0.75 * waiting)
    assert stages.busy_s[Resource.CPU] == pytest.approx(0.25 * loaded_s, abs=0.25 * waiting)
    assert stages.busy_s[Resource.STORAGE] == pytest.approx(3 * stages.busy_s[Resource.CPU])


def test_batches_that_take_long_count_for_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    clocks = LoadClocks()
    monkeypatch.setattr(prefetch, "time", clocks)
    monkeypatch.setattr(prefetch, "queued_s", lambda: 0.0)
    stages = Stages(None, NullGate(), clock=clocks.perf_counter)
    timer, items = prefetch.LoadTimer(stages), Shards(clocks, {0: 0.001} | dict.fromkeys(range(45, 1000, 100), 0.1))
    for number in range(1000):
        timer.time(partial(items.__getitem__, number))
    assert stages.busy_s[Resource.STORAGE] == pytest.approx(1.0, abs=0.05)
    assert stages.busy_s[Resource.CPU] == pytest.approx(0.99, abs=0.05)


def test_a_batch_in_a_gated_stage_is_always_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    clocks = LoadClocks()
    monkeypatch.setattr(prefetch, "time", clocks)
    stages = Stages(None, NullGate(), clock=clocks.perf_counter)
    stages.gate.kind = "tokens"
    timer, items = prefetch.LoadTimer(stages), Items(clocks, {0: 0.001})
    for number in range(20):
        assert timer.time(partial(items.__getitem__, number)) == number
    assert stages.gate.stats.stages[Resource.STORAGE] + stages.gate.stats.stages[Resource.CPU] == 20


def test_a_stream_is_waited_for_whatever_else_the_job_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    clocks = LoadClocks()
    monkeypatch.setattr(prefetch, "time", clocks)
    stages = Stages(None, NullGate(), clock=clocks.perf_counter)
    stages.add(Resource.CPU, 1.0, 1.0)
    timer, items = prefetch.LoadTimer(stages, waits=True), Items(clocks, {0: 0.001})
    for number in range(100):
        timer.time(partial(items.__getitem__, number))
    assert stages.busy_s[Resource.CPU] == 1.0
    assert stages.busy_s[Resource.STORAGE] == pytest.approx(0.1, abs=0.02)
