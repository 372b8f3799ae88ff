"""How one GPU is shared by two processes or two streams, and how the pool of host memory behaves when the GPU is full.

These rows of `bench_gpu.py` test premises: the share law assumes that a host which returns to the device waits for at
most one quantum of each guest; the memory law assumes that a full device never means an out-of-memory error.
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from plait.training.sharing.device_memory import CudaMemory
from plait.training.sharing.host_pool import HostPool, build_allocator

MIB = 1 << 20
#: The host's kernel, and its pause between two of them: long enough for the guest to fill the device.
HOST_MS, PAUSE_S = 1.0, 0.01


def percentile(values: list[float], share: float) -> float:
    """The value below which `share` of the values lie."""
    ordered = sorted(values)
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)]


class Kernel:
    """One square matrix product that takes about `ms` milliseconds on this device."""

    def __init__(self, device: str, ms: float) -> None:
        """Double the size until it takes long enough, then scale the number of rows."""
        self.device, width = device, 256
        while True:
            self._a = torch.randn(width, width, device=device)
            self._b = torch.randn(width, width, device=device)
            if (took_s := self.seconds()) * 1e3 >= ms or width >= (16384 if device == "cuda" else 512):
                break
            width *= 2
        rows = min(max(int(width * ms / 1e3 / took_s), 1), width)
        self._a = self._a[:rows].contiguous()
        self._out = torch.empty(rows, width, device=device)

    def launch(self) -> None:
        """Queue the product on the current stream."""
        torch.mm(self._a, self._b, out=self._out)

    def seconds(self) -> float:
        """Median of five, each waited for."""
        self._out = torch.empty(self._a.shape[0], self._b.shape[1], device=self.device)
        return statistics.median(self.wait() for _ in range(6))

    def wait(self) -> float:
        """Launch the product, wait for it, and return the seconds of both."""
        begin_s = time.perf_counter()
        self.launch()
        synchronize(self.device)
        return time.perf_counter() - begin_s


def synchronize(device: str) -> None:
    """Wait until the current stream of the device is empty."""
    if device == "cuda":
        torch.cuda.current_stream().synchronize()


@dataclass(frozen=True)
class Returns:
    """Milliseconds of the host's kernel after a pause: median, 99th percentile, maximum."""

    median_ms: float
    p99_ms: float
    max_ms: float

    @classmethod
    def of(cls, seconds: list[float]) -> Returns:
        """Summarise the seconds of a host's kernels."""
        return cls(*(1e3 * one for one in (statistics.median(seconds), percentile(seconds, 0.99), max(seconds))))


def returns(kernel: Kernel, seconds: float) -> list[float]:
    """Seconds of the host's kernel, each after a pause in which a guest has the device."""
    until_s, found = time.monotonic() + seconds, []
    while time.monotonic() < until_s:
        time.sleep(PAUSE_S)
        found.append(kernel.wait())
    return found


def _guest(pipe: Connection, device: str, quantum_ms: float, waits: bool) -> None:
    kernel = Kernel(device, quantum_ms)
    pipe.send(1e3 * kernel.seconds())
    count = 0
    while not pipe.poll():
        kernel.launch()
        count += 1
        if waits or count % 8 == 0:  # otherwise the queue of the device is always a few kernels deep
            synchronize(device)
    pipe.send(count)


@contextmanager
def _beside_a_guest(device: str, quantum_ms: float, *, waits: bool) -> Iterator[float]:
    """Run a guest in another process; yields the milliseconds of its kernel on a free device."""
    spawn = multiprocessing.get_context("spawn")
    here, there = spawn.Pipe()
    process = spawn.Process(target=_guest, args=(there, device, quantum_ms, waits))
    process.start()
    there.close()
    try:
        yield here.recv()
    finally:
        here.send("end")
        process.join(20)
        process.kill()


def time_slices(device: str, seconds: float) -> dict[str, float]:
    """The host's kernel alone and beside guests of 1, 5 and 20 ms a kernel, in two processes.

    `queued`: the guest launches up to eight kernels ahead, as a training without a gate does; `paced`: one at a time,
    as a guest under the share law. The premise of the law is that `paced` adds at most one guest kernel.
    """
    kernel = Kernel(device, HOST_MS)
    alone = Returns.of(returns(kernel, seconds))
    figures = {
        "alone_median_ms": alone.median_ms,
        "alone_p99_ms": alone.p99_ms,
        "alone_busy_ms": 1e3 * kernel.seconds(),
    }
    for quantum_ms in (1.0, 5.0, 20.0):
        for name, waits in (("queued", False), ("paced", True)):
            with _beside_a_guest(device, quantum_ms, waits=waits) as took_ms:
                found = Returns.of(returns(kernel, seconds))
            key = f"{name}_{quantum_ms:g}ms"
            figures[f"{key}_kernel_ms"] = took_ms
            figures[f"{key}_median_ms"], figures[f"{key}_p99_ms"] = found.median_ms, found.p99_ms
            figures[f"{key}_median_added_kernels"] = (found.median_ms - alone.median_ms) / took_ms
            figures[f"{key}_p99_added_kernels"] = (found.p99_ms - alone.p99_ms) / took_ms
    return figures


def streams(device: str, seconds: float, quantum_ms: float = 5.0) -> dict[str, float]:
    """The host's kernel beside a guest's stream of the same process: equal priorities, and the host's higher."""
    if device != "cuda":
        return {}
    figures = {}
    kernel, guest = Kernel(device, HOST_MS), Kernel(device, quantum_ms)
    for name, priority in (("equal", 0), ("high", -1)):
        ours, theirs = torch.cuda.Stream(priority=priority), torch.cuda.Stream()
        until_s, found, queued = time.monotonic() + seconds, [], []
        while time.monotonic() < until_s:
            with torch.cuda.stream(theirs):
                while len(queued) < 4:
                    guest.launch()
                    queued.append(theirs.record_event())
            time.sleep(PAUSE_S / 4)
            with torch.cuda.stream(ours):
                found.append(kernel.wait())
            queued = [event for event in queued if not event.query()]
        torch.cuda.synchronize()
        summary = Returns.of(found)
        figures[f"{name}_median_ms"], figures[f"{name}_p99_ms"] = summary.median_ms, summary.p99_ms
    return figures


@contextmanager
def mps() -> Iterator[None]:
    """Run an MPS daemon of our own, in a folder of its own. Raises `LookupError` where the machine has none."""
    control = shutil.which("nvidia-cuda-mps-control")
    if control is None:
        raise LookupError("nvidia-cuda-mps-control is not installed")
    with tempfile.TemporaryDirectory(prefix="mps-") as folder:
        ours = {"CUDA_MPS_PIPE_DIRECTORY": folder, "CUDA_MPS_LOG_DIRECTORY": folder}
        subprocess.run([control, "-d"], env=os.environ | ours, check=True, timeout=30, capture_output=True)
        os.environ.update(ours)
        try:
            yield
        finally:
            quit_ = subprocess.run(
                [control], input="quit -t 5\n", text=True, env=os.environ, timeout=60, check=False, capture_output=True
            )
            for name in ours:
                del os.environ[name]
            if quit_.returncode:
                print(f"the MPS daemon did not end: {quit_.stderr.strip()}")


# -- memory --------------------------------------------------------------------------------------------------------


def full_device(limit_mib: int = 512, pool_mib: int = 1024) -> dict[str, float]:
    """Allocations of all sizes and of other streams with the device full: how many fail.

    One of the two other streams has allocated before the pool was made.
    """
    known, new = torch.cuda.Stream(), torch.cuda.Stream()
    with torch.cuda.stream(known):
        in_use = torch.empty(MIB, device="cuda")
    memory, pool = _pool(limit_mib, pool_mib)
    figures: dict[str, float] = {"pool_mib": pool_mib}
    try:
        kept = [torch.empty(64 * MIB, dtype=torch.uint8, device="cuda") for _ in range(limit_mib // 64)]
        for name, size, count in (
            ("large", 16 * MIB, 8),
            ("2mib", 2 * MIB, 32),
            ("small", 64 * 1024, 256),
            ("tiny", 512, 256),
        ):
            figures[f"{name}_failed"] = _failures(size, count, torch.cuda.current_stream())
        for name, stream in (("known_stream", known), ("new_stream", new)):
            figures[f"{name}_large_failed"] = _failures(16 * MIB, 8, stream)
            figures[f"{name}_small_failed"] = _failures(64 * 1024, 64, stream)
        del kept, in_use
    finally:
        _release(memory)
        del pool
    return figures


def _failures(size: int, count: int, stream: Any) -> float:
    kept, failed = [], 0
    with torch.cuda.stream(stream):
        for _ in range(count):
            try:
                kept.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
            except torch.OutOfMemoryError:
                failed += 1
    torch.cuda.synchronize()
    return float(failed)


def bursts(count: int = 1000, limit_mib: int = 512, pool_mib: int = 1024) -> dict[str, float]:
    """Steps that need up to 1.5 times the limit: errors, steps that report spilled bytes, and what a step costs."""
    memory, pool = _pool(limit_mib, pool_mib)
    draw = torch.Generator().manual_seed(0)
    errors, spilled_steps, inside_s, spilled_s, unseen = 0, 0, [], [], 0
    memory.end_step()
    try:
        for _ in range(count):
            want = int(limit_mib * (0.6 + 0.9 * float(torch.rand((), generator=draw))))
            begin_s = time.perf_counter()
            try:
                kept = [torch.ones(32 * MIB, dtype=torch.uint8, device="cuda") for _ in range(want // 32)]
                kept += [torch.ones(4096, dtype=torch.uint8, device="cuda") for _ in range(64)]
                torch.cuda.synchronize()
            except torch.OutOfMemoryError:
                errors += 1
            took_s = time.perf_counter() - begin_s
            kept = []  # as a training frees its activations before the step ends
            use = memory.end_step()
            over = want // 32 * 32 > limit_mib
            spilled_steps += use.spilled_bytes > 0
            unseen += over and not use.spilled_bytes
            (spilled_s if over else inside_s).append(took_s)
    finally:
        _release(memory)
        del pool
    return {
        "bursts": float(count),
        "out_of_memory": float(errors),
        "steps_over_the_limit": float(len(spilled_s)),
        "over_the_limit_not_reported_as_spilled": float(unseen),
        "steps_reported_as_spilled": float(spilled_steps),
        "step_within_ms": 1e3 * statistics.median(inside_s),
        "step_spilled_ms": 1e3 * statistics.median(spilled_s),
    }


def _pool(limit_mib: int, pool_mib: int) -> tuple[CudaMemory, HostPool]:
    torch.cuda.init()
    torch.cuda.empty_cache()
    memory = CudaMemory(torch.cuda)
    with tempfile.TemporaryDirectory() as folder:
        begin_s = time.perf_counter()
        library = build_allocator(Path(folder))
        built_s = time.perf_counter()
        pool = HostPool(torch.cuda, pool_mib * MIB, library)
        pinned_s = time.perf_counter() - built_s
        print(f"  allocator built in {built_s - begin_s:.2f} s, {pool_mib} MiB pinned in {pinned_s:.2f} s")
    memory.host_bytes = pool.size_bytes
    memory.bound(float(limit_mib * MIB))
    return memory, pool


def _release(memory: CudaMemory) -> None:
    torch.cuda.synchronize()
    memory.host_bytes = 0
    memory.bound(float("inf"))
