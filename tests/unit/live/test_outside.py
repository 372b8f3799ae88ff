"""Nodes and programs from outside: GPUs by the driver's library, sockets, peaks, samples, and their reports."""

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from plait.core.resources import Resource
from plait.live.agent import outside
from plait.live.agent.monitor import Monitor, Nvml, disk_bytes
from plait.live.agent.outside import PEAKS, OutsideWatch, SocketTraffic, measure_peaks, profile_of, socket_bytes
from plait.live.agent.processes.attempt import LocalAttempt
from plait.live.protocol.wire import RUNNING, GroupInfo, Peaks, Run
from plait.live.system import procs

SPIN = "while True: pass"
#: Reads a file of 32 MiB past the page cache, again and again.
READ = """
import mmap, os, sys
path, block = sys.argv[1], mmap.mmap(-1, 1 << 20)
with open(path, "wb") as file:
    file.write(os.urandom(32 << 20)); file.flush(); os.fsync(file.fileno())
fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
print("ready", flush=True)
while True:
    for at in range(32):
        os.preadv(fd, [block], at << 20)
"""
#: Sends to itself through the loopback, in two processes.
SEND = """
import os, socket, time
server = socket.create_server(("127.0.0.1", 0))
if os.fork():
    sender = socket.create_connection(server.getsockname())
    while True:
        sender.sendall(bytes(200_000)); time.sleep(0.01)
receiver, _ = server.accept()
while True:
    receiver.recv(1 << 20)
"""


def test_sockets_are_counted_by_the_kernel() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as sender:
        receiver, _ = server.accept()
        with receiver:
            traffic, own = SocketTraffic(), {"job": [os.getpid()]}
            before = traffic.read(own)["job"]
            thread = threading.Thread(target=sender.sendall, args=(bytes(3_000_000),))
            thread.start()
            size = 0
            while size < 3_000_000:
                size += len(receiver.recv(1 << 20))
            thread.join()
            counts = socket_bytes()
            assert counts[os.fstat(receiver.fileno()).st_ino] == (0, 3_000_000)
            after = traffic.read(own)["job"]
            assert before is not None
            assert after is not None
            assert [now - then for now, then in zip(after, before, strict=True)] == pytest.approx([3e6] * 2, abs=2)


def test_peaks_are_measured_once_a_boot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outside, "PROBE_S", 0.05)
    first = measure_peaks(tmp_path)
    assert first.disk_bytes_s > 1e6
    assert first.link_bytes_s > 1e6
    monkeypatch.setattr(outside, "_disk_bytes_s", lambda folder: 7.0)
    assert measure_peaks(tmp_path) == first
    monkeypatch.setattr(outside.procs, "boot_id", lambda: "another")
    assert measure_peaks(tmp_path).disk_bytes_s == 7.0
    (tmp_path / PEAKS).write_text('{"boot": "another", "disk_bytes_s": "fast"}')
    assert measure_peaks(tmp_path).disk_bytes_s == 7.0


def watched(
    program: str, folder: Path, monkeypatch: pytest.MonkeyPatch, gpu: Callable[[], float] | None = None
) -> list[float] | None:
    """The parts that a program in a process of its own has, in a second of samples."""
    monkeypatch.setattr(outside, "SAMPLES", 20)
    monkeypatch.setattr(outside, "SAMPLE_S", 0.05)
    monkeypatch.setattr(outside, "PROBE_S", 0.05)
    with subprocess.Popen(
        [sys.executable, "-c", program, str(folder / "data")], stdout=subprocess.PIPE, text=True, process_group=0
    ) as process:
        if program == READ:
            assert process.stdout.readline() == "ready\n"
        watch = OutsideWatch(folder, 2.0, disk_bytes)
        # A fixed link, because the speed of a loopback hardly says what a busy one reaches.
        watch.peaks = Peaks(measure_peaks(folder).disk_bytes_s, 2e7)
        parts = watch.parts(process.pid, gpu)
        os.killpg(process.pid, signal.SIGKILL)
    return parts


@pytest.mark.parametrize(
    ("program", "gpu", "bottleneck"),
    [
        (SPIN, None, Resource.GPU),  # of a slot, which has no other device
        (SPIN, lambda: 0.0, Resource.CPU),
        (SPIN, lambda: 1.0, Resource.GPU),  # its host waits in a loop
        (READ, lambda: 0.0, Resource.STORAGE),
        (READ, None, Resource.STORAGE),
        (SEND, lambda: 0.0, Resource.NETWORK),
    ],
)
def test_the_bottleneck_of_a_program(
    program: str,
    gpu: Callable[[], float] | None,
    bottleneck: Resource,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parts = watched(program, tmp_path, monkeypatch, gpu)
    assert parts.index(max(parts)) == bottleneck, parts
    assert parts[bottleneck] > 0.6


def test_a_program_that_does_nothing_has_no_stages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert watched("import time; time.sleep(600)", tmp_path, monkeypatch, lambda: 0.02) is None


def test_it_is_watched_ever_more_rarely(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A notebook that nobody uses would otherwise cost its agent half of the time, for days."""
    attempt = LocalAttempt(Run(1, 1, 0, 1, ["x"], [0], GroupInfo("g")), tmp_path, "mark", state=RUNNING)
    watched_s = []
    for now_s in range(24 * 3600):
        monkeypatch.setattr(procs, "boot_s", lambda now_s=now_s: float(now_s))
        if attempt.unseen():
            attempt.outside_s = float(now_s)
            watched_s.append(now_s)
    assert watched_s[:4] == [10, 20, 40, 80]
    assert len(watched_s) < 15


def test_its_profile_is_of_its_iterations_if_their_length_is_known() -> None:
    assert profile_of([0.5, 0.0, 0.25, 0.0], 4.0).stage_s == [2.0, 0.0, 1.0, 0.0]
    unknown = profile_of([0.5, 0.0, 0.25, 0.0], None)
    assert (unknown.iteration_s, unknown.outside) == (1.0, True)


MIB = 1 << 20
#: As an H100 reports it: 550 MiB belong to driver and firmware.
TOTAL, RESERVED, FREE = 81_559 * MIB, 550 * MIB, 60_000 * MIB


class Driver(SimpleNamespace):
    """`old`: a driver before 510. `included`: bytes in use include those reserved, as drivers of 525 say."""

    nvmlMemory_v2 = 0x02000028

    def __init__(self, *, old: bool = False, included: bool = False) -> None:
        super().__init__(old=old, included=included, lost=False)

    def nvmlInit(self) -> None:
        pass

    def nvmlDeviceGetCount(self) -> int:
        return 1

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetName(self, handle: int) -> bytes:
        return b"NVIDIA H100"

    def nvmlDeviceGetUtilizationRates(self, handle: int) -> Any:
        return SimpleNamespace(gpu=40)

    def nvmlDeviceGetMemoryInfo(self, handle: int, version: int | None = None) -> Any:
        if self.lost:
            raise RuntimeError("GPU is lost")
        if version is None:
            return SimpleNamespace(total=TOTAL, free=FREE, used=TOTAL - FREE)
        if self.old:
            raise RuntimeError("function not found")
        used = TOTAL - FREE - (0 if self.included else RESERVED)
        return SimpleNamespace(total=TOTAL, reserved=RESERVED, free=FREE, used=used)


def monitor(monkeypatch: pytest.MonkeyPatch, driver: Driver) -> Monitor:
    monkeypatch.setitem(sys.modules, "pynvml", driver)
    return Monitor("n0", 1, [0])


@pytest.mark.parametrize("included", [True, False])
def test_memory_that_the_driver_keeps_is_nobodys(monkeypatch: pytest.MonkeyPatch, included: bool) -> None:
    found = monitor(monkeypatch, Driver(included=included))
    assert (found.node.gpu_kind, found.node.gpu_memory_bytes) == ("NVIDIA H100", TOTAL - RESERVED)
    gpu = found.usage().gpus[0]
    assert (gpu.utilisation, gpu.memory_bytes) == (0.4, TOTAL - RESERVED - FREE)


def test_an_old_driver_says_only_what_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    found = monitor(monkeypatch, Driver(old=True))
    assert found.node.gpu_memory_bytes == TOTAL
    assert found.usage().gpus[0].memory_bytes == TOTAL - FREE


def test_a_gpu_that_cannot_be_read_is_not_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver()
    monkeypatch.setitem(sys.modules, "pynvml", driver)
    nvml = Nvml()
    driver.lost = True
    assert (nvml.usage(0).utilisation, nvml.usage(0).memory_bytes) == (0.0, 0.0)
