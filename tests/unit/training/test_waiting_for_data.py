"""Which part of the time that loading takes is waiting for data: what a busy machine adds is not."""

from __future__ import annotations

import os
import threading
import time

import pytest

pytest.importorskip("torch")
from plait.core.resources import Resource
from plait.runtime.stage_gate import NullGate
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
        monkeypatch.setattr(WaitTimer, "_queued_s", lambda _: self.read("queued_s"))

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
    mine = {WaitTimer()._file(), WaitTimer()._file()}
    others: set[int] = set()
    thread = threading.Thread(target=lambda: others.add(WaitTimer()._file()))
    thread.start()
    thread.join()
    assert len(mine) == len(others) == 1
    assert WaitTimer().queued_s >= 0


@pytest.mark.parametrize(("load_s", "measured"), [(0.0001, 3), (0.1, 20)])
def test_fast_batches_are_measured_now_and_then(load_s: float, measured: int, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[float] = []

    class Timer:
        def __init__(self) -> None:
            made.append(load_s)

        def waited_s(self) -> tuple[float, float]:
            return load_s / 4, load_s

    now = iter(range(1000))
    stages = Stages(None, NullGate(), clock=lambda: float(next(now)))
    monkeypatch.setattr(prefetch, "WaitTimer", Timer)
    marked = prefetch.Marked(list(range(8)), 0, stages)
    for _ in range(20):
        assert marked.__getitems__([1, 2]) == [1, 2]
    assert len(made) == measured
    assert stages.busy_s[Resource.STORAGE] == pytest.approx(20 / 4), "the parts of a measured batch hold for the next"
    assert stages.busy_s[Resource.CPU] == pytest.approx(20 * 3 / 4)
