"""Stages of a GPU that is played: what is measured on it, and how far the host runs ahead of it."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from plait.core.resources import Resource
from plait.runtime.guest_gate import HostStages
from plait.runtime.page import Page
from plait.runtime.stage_gate import NullGate
from plait.training import process
from plait.training import stages as module
from plait.training.stages import Stages

STORAGE, CPU, GPU, NETWORK = Resource


class Played:
    """torch.cuda with one stream: kernels run one after the other, the host launches them in no time."""

    def __init__(self) -> None:
        self.now_s = self.free_s = 0.0
        self.capture: int | None = None  # the thread that captures a graph
        self.spoilt = False  # by a wait of another thread that may disturb it
        self.careful: set[int] = set()  # threads that may not
        played = self

        class Event:
            def __init__(self, enable_timing: bool = False, blocking: bool = False) -> None:
                self.at_s = 0.0

            def record(self, stream: object) -> None:
                assert stream == "stream"
                self.at_s = max(played.free_s, played.now_s)

            def synchronize(self) -> None:
                if played.capture is not None and threading.get_ident() not in played.careful:
                    played.spoilt = True
                    raise RuntimeError("operation not permitted when stream is capturing")
                played.now_s = max(played.now_s, self.at_s)

            def query(self) -> bool:
                return self.at_s <= played.now_s

            def elapsed_time(self, end: Event) -> float:
                return (end.at_s - self.at_s) * 1e3

        self.Event = Event

    def current_stream(self) -> str:
        return "stream"

    def is_current_stream_capturing(self) -> bool:
        return self.capture == threading.get_ident()

    def launch(self, seconds: float) -> None:
        self.free_s = max(self.free_s, self.now_s) + seconds

    @property
    def behind_s(self) -> float:
        return max(self.free_s - self.now_s, 0.0)


class Tokens(NullGate):
    """Gives way at the yield points it is told to, for a second, during which others use the GPU."""

    quantum_s = 0.010

    def __init__(self, cuda: Played, ways: tuple[int, ...] = ()) -> None:
        super().__init__()
        self.kind, self.cuda, self.ways, self.points = "tokens", cuda, ways, 0

    def yield_point(self, before: Callable[[], None] | None = None) -> None:
        self.points += 1
        if self.points in self.ways:
            assert before is not None
            before()
            assert self.cuda.behind_s == 0  # nobody is let in while our work runs
            self.cuda.now_s += 1.0

    def leave(self, resource: Resource) -> None:
        assert resource is not GPU or self.cuda.behind_s == 0
        super().leave(resource)


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Played:
    played = Played()
    monkeypatch.setattr(module, "torch_cuda", lambda: played)
    return played


def test_without_a_gate_the_host_never_waits(cuda: Played) -> None:
    stages = Stages(None, NullGate(), clock=lambda: cuda.now_s)
    for _ in range(3):
        with stages.stage(GPU):
            cuda.launch(0.050)
            stages.yield_point()
    assert cuda.now_s == 0.0
    stages.publish()
    assert stages.busy_s[GPU] == 0.0  # none of it is over
    cuda.now_s = 1.0
    stages.publish()
    assert stages.busy_s[GPU] == pytest.approx(0.150)


def test_a_gated_stage_ends_when_the_gpu_has_done_it(cuda: Played) -> None:
    stages = Stages(None, Tokens(cuda), clock=lambda: cuda.now_s)
    with stages.stage(GPU):
        cuda.launch(0.050)
    assert cuda.now_s == pytest.approx(0.050)
    stages.publish()
    assert stages.busy_s[GPU] == pytest.approx(0.050)


@pytest.mark.parametrize(("layer_s", "most_s"), [(0.004, 0.012), (0.001, 0.011), (0.030, 0.060)])
def test_the_host_runs_ahead_by_a_quantum_at_most(cuda: Played, layer_s: float, most_s: float) -> None:
    """Or by one layer and the one being launched, where a layer takes longer than the quantum."""
    stages = Stages(None, Tokens(cuda), clock=lambda: cuda.now_s)
    ahead, idle = [], 0.0
    with stages.stage(GPU):
        for layer in range(200):
            idle += (layer > 0) * max(cuda.now_s - cuda.free_s, 0.0)
            cuda.launch(layer_s)
            ahead.append(cuda.behind_s)
            stages.yield_point()
    assert max(ahead[20:]) <= most_s + 1e-9
    assert idle == pytest.approx(0.0)  # and the GPU never waits for the host


def test_giving_way_waits_for_the_gpu_and_is_not_counted(cuda: Played) -> None:
    stages = Stages(None, Tokens(cuda, ways=(2, 5)), clock=lambda: cuda.now_s)
    with stages.stage(GPU):
        for _ in range(8):
            cuda.launch(0.010)
            stages.yield_point()
    stages.publish()
    assert stages.busy_s[GPU] == pytest.approx(0.080)
    assert cuda.now_s == pytest.approx(2.080)


def test_giving_way_on_the_clock_is_not_counted_either(cuda: Played, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "torch_cuda", lambda: None)
    stages = Stages(None, Tokens(cuda, ways=(1,)), clock=lambda: cuda.now_s)
    with stages.stage(CPU):
        cuda.now_s += 0.25
        stages.yield_point()
        cuda.now_s += 0.5
    assert stages.busy_s[CPU] == stages.exposed_s[CPU] == pytest.approx(0.75)


def test_the_gpu_is_let_go_only_when_it_is_done(cuda: Played) -> None:
    """While gradients travel the stage goes on, and others may compute."""
    stages = Stages(None, Tokens(cuda), clock=lambda: cuda.now_s)
    stages.enter(GPU)
    cuda.launch(0.030)
    stages.let_go(GPU)
    assert cuda.now_s == pytest.approx(0.030)
    stages.leave(GPU)


def test_guests_come_when_the_gpu_has_done_what_the_script_left_behind(
    cuda: Played, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A loop launches its step in 3 ms and then waits for its loader, while the GPU still works."""
    done = [threading.Event() for _ in range(4)]
    waits = iter(done)

    class Event(cuda.Event):  # type: ignore[name-defined,misc]
        def __init__(self, enable_timing: bool = False, blocking: bool = False) -> None:
            super().__init__(enable_timing, blocking)
            self.done = next(waits) if blocking else threading.Event()

        def synchronize(self) -> None:
            assert self.done.wait(60.0)

    with Page.create(tmp_path / "page.bin") as page:
        hosts, stages = HostStages([page.path]), Stages(page, NullGate())
        with stages.stage(GPU):
            pass
        assert page.gpu_left_monotonic < math.inf, "nobody shares the GPU, so nothing is followed"
        monkeypatch.setattr(cuda, "Event", Event)
        stages.has_guests = True
        until(lambda: not hosts.busy)
        stages.returned()
        for _ in range(2):
            with stages.stage(GPU):
                assert hosts.busy
            with stages.stage(CPU):
                assert hosts.busy, "also while the script does something else"
            assert hosts.busy
        assert stages.returned() == (0, 1), "the second stage found the GPU at work"
        done[0].set()
        time.sleep(0.05)
        assert hosts.busy, "the first stage is done, and the second is not"
        done[1].set()
        until(lambda: not hosts.busy)
        with stages.stage(GPU):
            assert hosts.busy
        assert stages.returned() == (0, 1)
        with stages.stage(GPU, sync=True):
            done[2].set()
            done[3].set()
        until(lambda: not hosts.busy)
        hosts.close()


class Driver:
    """That of the played GPU: which mode a thread has."""

    def __init__(self, cuda: Played) -> None:
        self.cuda = cuda

    def cuThreadExchangeStreamCaptureMode(self, mode: Any) -> int:
        if mode._obj.value:
            self.cuda.careful.add(threading.get_ident())
        return 0


def test_a_graph_whose_capture_begins_before_the_gpu_was_followed_is_not_spoilt(
    cuda: Played, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(process.ctypes, "CDLL", lambda library: Driver(cuda))
    captures, note_ends = threading.Event(), Stages._note_ends
    monkeypatch.setattr(Stages, "_note_ends", lambda stages: captures.wait(60.0) and note_ends(stages))
    with Page.create(tmp_path / "page.bin") as page:
        stages = Stages(page, NullGate())
        stages.has_guests = True
        with stages.stage(GPU):
            cuda.launch(0.050)
        cuda.capture = threading.get_ident()
        captures.set()
        until(lambda: page.gpu_left_monotonic < math.inf)
        with stages.stage(GPU):  # a stage within the capture has no span on the GPU
            pass
        assert page.gpu_left_monotonic < math.inf
        cuda.capture = None
        stages.settle()
        stages.publish()
    assert not cuda.spoilt
    assert cuda.now_s == pytest.approx(0.050)
    assert stages.busy_s[GPU] >= 0.050


def until(true: Callable[[], bool]) -> None:
    while not true():
        time.sleep(0.001)


ENDS_WHILE_THE_GPU_WORKS = """
import time, torch
from plait.training import attach
torch.set_num_threads(1)
a = torch.randn(700, 700)

class Ended:  # a wait without the interpreter's lock, as that for a CUDA event
    def synchronize(self):
        end_s = time.monotonic() + 1.0
        while time.monotonic() < end_s:
            torch.mm(a, a)

stages = attach(state={}).stages
stages.has_guests = True
stages._cuda.ended = Ended()
stages._note_left(True)
time.sleep(0.1)
"""


def test_a_script_that_ends_while_its_gpu_works_ends_well(tmp_path: Path) -> None:
    """The thread would want the interpreter's lock of a finished interpreter, and abort the process."""
    Page.create(tmp_path / "page.bin").close()
    (tmp_path / "EPOCH").write_text("1")
    env = os.environ | {"PLAIT_RUN_DIR": str(tmp_path), "PLAIT_JOB_DIR": str(tmp_path), "PLAIT_EPOCH": "1"}
    ended = subprocess.run([sys.executable, "-c", ENDS_WHILE_THE_GPU_WORKS], env=env, capture_output=True)
    assert ended.returncode == 0, ended.stderr
