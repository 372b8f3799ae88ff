"""Which part of the time that loading takes is waiting for data: what a busy machine adds is not."""

from __future__ import annotations

import time

import pytest

pytest.importorskip("torch")
from plait.training.loader.prefetch import WaitTimer


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
