"""A start that works is waited for, however slow the machine is; one that is stuck is ended."""

import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from plait.core.errors import InputError
from plait.live.supervisor import services
from plait.live.system.procs import Patience, thread_states

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="processes are found in /proc")


class Slow:
    """A start on a clock that only `sleep` moves: it gets one of `share` looks of a CPU and needs `cpu_s` seconds."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, share: int, cpu_s: float) -> None:
        self.now_s, self.used_s, self.share, self.cpu_s, self.looks = 0.0, 0.0, share, cpu_s, 0
        self.ended = False
        monkeypatch.setattr(services, "time", SimpleNamespace(sleep=self.sleep, monotonic=lambda: self.now_s))
        monkeypatch.setattr(services, "Patience", lambda looks: Patience(looks, self.states))
        monkeypatch.setattr(services, "end_child", lambda process: setattr(self, "ended", True))

    def sleep(self, seconds: float) -> None:
        self.now_s, self.looks = self.now_s + seconds, self.looks + 1
        if self.looks % self.share == 0:
            self.used_s += seconds

    def states(self, pid: int) -> tuple[bytes, int]:
        return b"SR", round(self.used_s * 100)

    def wait(self) -> None:
        process: Any = SimpleNamespace(pid=1, poll=lambda: None)
        services._await(process, lambda: self.used_s >= self.cpu_s, "the service", Path("/h/service.log"))


def test_a_start_is_waited_for_on_a_machine_with_forty_busy_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = Slow(monkeypatch, share=40, cpu_s=4.0)
    slow.wait()
    assert slow.now_s > 150.0
    assert not slow.ended


def test_a_start_that_sleeps_is_ended_after_thirty_seconds_of_sleep(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = Slow(monkeypatch, share=40, cpu_s=4.0)
    monkeypatch.setattr(slow, "states", lambda pid: (b"SS", 7))
    with pytest.raises(InputError, match="does not answer and has done nothing for 30 s"):
        slow.wait()
    assert slow.ended
    assert 29.0 < slow.now_s < 31.0


def test_sleep_between_work_counts_and_waiting_for_a_disk_does_not() -> None:
    states = iter([(b"S", 1), (b"S", 2), (b"S", 2), (b"D", 2), (b"S", 2), (b"S", 3), (b"S", 3)])
    patience = Patience(2, lambda pid: next(states))
    assert [patience.over([1]) for _ in range(7)] == [False] * 6 + [True]


def test_one_process_that_works_is_enough_and_an_ended_one_does_not_work() -> None:
    patience = Patience(0, lambda pid: {1: (b"S", 0), 2: (b"SR", 0), 3: (b"", 0)}[pid])
    assert not patience.over([1, 2, 3])
    assert Patience(0, lambda pid: (b"", 0)).over([3])


def test_threads_of_a_real_process_are_seen() -> None:
    code = "import threading; t = threading.Thread(target=lambda: [0 for _ in iter(int, 1)]); t.start(); t.join()"
    with subprocess.Popen([sys.executable, "-c", code]) as busy:
        try:
            until = time.monotonic() + 60
            while thread_states(busy.pid)[1] < 2 or b"R" not in thread_states(busy.pid)[0]:
                assert time.monotonic() < until
            assert len(thread_states(busy.pid)[0]) == 2
        finally:
            busy.kill()
    assert thread_states(busy.pid) == (b"", 0)
