"""The two trainings of the demo of classes: their command lines, and what they write down."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from plait.core.errors import PlaitError
from plait.sim.gpu import PATTERNS

SCRIPT = "shared_gpu.py"
PATTERN = PATTERNS["20x5 then 100 host"]
QUANTUM_S, QUANTA = 0.004, 10
#: Memory of the GPU, of a step of each job, and of a step of the guaranteed one in a burst.
GPU_GB, HOST_GB, GUEST_GB, BURST_GB = 32, 8, 3, 27


@dataclass(frozen=True)
class Sample:
    """Work of a job until a time: steps, and seconds of kernels; GB of its last step on the GPU and on the host."""

    at_s: float
    steps: float
    served_s: float
    gpu_gb: float = 0.0
    host_gb: float = 0.0


@dataclass(frozen=True)
class Pair:
    """Both jobs over one stretch of time: the mean guaranteed step, and the part of the slack the other one got."""

    step_s: float
    slack_share: float


class Jobs:
    """The two jobs, by command line."""

    def __init__(self, script: Path, folder: Path) -> None:
        """They run in `folder`, where the emulated GPUs and their records are."""
        self.script, self.folder, self._number = script, folder, 0

    def command(self, world: str, *, guest: bool) -> list[str]:
        """Of one of them, on the GPU of a world. It runs until the file `stop` is there."""
        kernels, kernel_s, host_s = (QUANTA, QUANTUM_S, 0.0) if guest else (20, 0.005, 0.1)
        burst = ["--burst", str(self.burst), "--burst-gb", str(BURST_GB)]
        return [
            sys.executable, str(self.script), "--gpu", str(self.folder / f"{world}.gpu"), "--kernels", str(kernels),
            "--kernel-ms", str(kernel_s * 1e3), "--host-ms", str(host_s * 1e3), "--steps", str(10**9),
            "--memory-gb", str(GUEST_GB if guest else HOST_GB), *([] if guest else burst),
            "--stop", str(self.stop(guest=guest)), "--record", str(self.record(world, guest=guest)),
        ]  # fmt: skip

    def record(self, world: str, *, guest: bool) -> Path:
        """Where a job of a world writes how far it is."""
        return self.folder / f"{world}-{_role(guest)}.txt"

    def stop(self, *, guest: bool) -> Path:
        """The file that ends one of the jobs."""
        return self.folder / f"stop-{_role(guest)}"

    @property
    def burst(self) -> Path:
        """The file with which the guaranteed job needs more memory."""
        return self.folder / "burst"

    def apart(self, seconds: float, *, guest: bool) -> Pair:
        """Run them as ordinary processes, without plait."""
        self._number += 1
        world = f"apart-{self._number}"
        began: list[subprocess.Popen[bytes]] = []
        try:
            roles = (False, True)[: 1 + guest]
            began += [subprocess.Popen(self.command(world, guest=role), cwd=self.folder) for role in roles]
            for role in roles:
                self._until(self.record(world, guest=role), began)
            at_s = time.monotonic()
            time.sleep(seconds)
        finally:
            for process in began:
                process.kill()
                process.wait()
        return self.pair(world, at_s, at_s + seconds)

    def pair(self, world: str, from_s: float, to_s: float) -> Pair:
        """Work of both in that time, by their records."""
        host = ends(read(self.record(world, guest=False)), from_s, to_s)
        guest = ends(read(self.record(world, guest=True)), from_s, to_s)
        step_s = (host[1].at_s - host[0].at_s) / max(host[1].steps - host[0].steps, 1)
        took = (host[1].served_s - host[0].served_s) / max(host[1].at_s - host[0].at_s, 1e-9)
        got = (guest[1].served_s - guest[0].served_s) / max(to_s - from_s, 1e-9)
        return Pair(step_s, got / max(1.0 - took, 1e-9))

    @staticmethod
    def _until(record: Path, processes: list[subprocess.Popen[bytes]]) -> None:
        def ended() -> bool:
            return any(process.poll() is not None for process in processes)

        if not wait_for(lambda: len(read(record)) >= 2 or ended(), 60) or ended():
            raise PlaitError(f"{SCRIPT} does not run here; it wrote nothing to {record}")


def wait_for(true: Callable[[], object], seconds: float) -> bool:
    """Look until that is so, at most for so long; whether it became so."""
    end_s = time.monotonic() + seconds
    while not true():
        if time.monotonic() > end_s:
            return False
        time.sleep(0.02)
    return True


def read(record: Path) -> list[Sample]:
    """The samples of a record so far; a line that is being written is left out."""
    try:
        lines = record.read_text().split("\n")[:-1]
    except OSError:
        return []
    return [Sample(*map(float, line.split())) for line in lines]


def ends(samples: list[Sample], from_s: float, to_s: float) -> tuple[Sample, Sample]:
    """The first and the last sample of a time; twice nothing where there is none."""
    inside = [one for one in samples if from_s - 0.6 <= one.at_s <= to_s] or [Sample(from_s, 0.0, 0.0)]
    return inside[0], inside[-1]


def _role(guest: bool) -> str:
    return "guest" if guest else "host"
