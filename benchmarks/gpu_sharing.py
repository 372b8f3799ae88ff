"""A guest beside a guaranteed job on a real GPU: packed, under the law, with the gate; a training and a server as host.

`bench_gpu.py` prints these figures; `tests/gpu` tries the code on the CPU. The jobs are processes with the library,
the law is decided by the coordinator of the agent, ten times a second.
"""

from __future__ import annotations

import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from plait.live.agent.sharing import Coordinator, GpuProcess, hold_back
from plait.runtime.guest_gate import Neighbours
from plait.runtime.page import VERSION, Page

HERE = Path(__file__).resolve()
SOURCE = HERE.parents[1] / "src"
#: How the guest runs beside the host.
MODES = ("packed", "law", "gate + law")
#: Steps of a job that are not counted: kernels are chosen, pools grow.
WARM_STEPS = 5


@dataclass(frozen=True)
class Work:
    """A loop: square layers of this width, rows a batch; the host then leaves the GPU alone for `idle_s` seconds.

    `serves`: it answers requests instead, `idle_s` seconds apart on average, each with one forward pass. `ahead`: it
    launches its step and waits `idle_s` seconds for data, not for the GPU, as loops do that print no loss.
    """

    device: str
    width: int = 4096
    layers: int = 8
    batch: int = 1024
    idle_s: float = 0.0
    serves: bool = False
    ahead: bool = False


class Process:
    """A job that runs `Work`: its page, its folder, its operating-system process."""

    def __init__(self, root: Path, number: int, work: Work, neighbours: Neighbours | None) -> None:
        """Start it; a guest does not begin before a coordinator lets it."""
        self.key, self.folder = (number, 1, 0), root / str(number)
        self.folder.mkdir()
        self.page = Page.create(self.folder / "page.bin")
        (self.folder / "EPOCH").write_text("1")
        self.control(1, neighbours)
        if neighbours is not None and neighbours.guest:
            hold_back(self.page.path)
        env = os.environ | {
            "PLAIT_RUN_DIR": str(self.folder), "PLAIT_JOB_DIR": str(self.folder), "PLAIT_EPOCH": "1",
            "PYTHONPATH": str(SOURCE), "PLAIT_CHECKPOINT_S": "100000", "OMP_NUM_THREADS": "1",
        }  # fmt: skip
        self._popen = subprocess.Popen([sys.executable, str(HERE), json.dumps(asdict(work))], env=env)

    def control(self, version: int, neighbours: Neighbours | None) -> None:
        """Write its control.json."""
        control: dict[str, Any] = {"version": version, "epoch": 1, "group": None, "made_by": VERSION}
        if neighbours is not None:
            control["sharing"] = neighbours.control()
        (self.folder / "control.json").write_text(json.dumps(control))
        self.page.control_version = version

    def wait(self, true: Callable[[], bool], what: str) -> None:
        """Until that is so; SystemExit if the process ended, or after two minutes."""
        until_s = time.monotonic() + 120
        while not true():
            if time.monotonic() > until_s or self._popen.poll() is not None:
                raise SystemExit(f"job {self.key[0]}: no {what} after {self.page.steps:.0f} steps; see above")
            time.sleep(0.01)

    def latencies_s(self) -> list[float]:
        """Seconds from the arrival of each request to its answer so far."""
        try:
            return [float(one) for one in (self.folder / "latencies").read_text().split()]
        except FileNotFoundError:
            return []

    def end(self) -> None:
        """Kill it."""
        self._popen.kill()
        self._popen.wait()
        self.page.close()


@dataclass(frozen=True)
class Cell:
    """Steps a second of host and guest, and the seconds that each request to the host took, if it serves."""

    host_per_s: float
    guest_per_s: float
    latencies_s: tuple[float, ...] = ()


@contextmanager
def _folder() -> Iterator[Path]:
    shm = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="plait-", dir=shm) as folder:
        yield Path(folder)


def run(
    host: Work, guest: Work | None, mode: str, seconds: float, *, warm_s: float = 0.0, capacity_bytes: float = 0.0
) -> Cell:
    """Run a host, and a guest next to it in one of `MODES`; count for so many seconds after `warm_s`.

    The share law begins with a small share and needs about 45 s to reach its own.
    """
    with _folder() as root:
        coordinator = Coordinator(root / "coordinator.json", capacity_bytes, lambda *_, **__: None)
        processes = [Process(root, 0, host, None)]
        try:
            first = processes[0]
            first.wait(lambda: first.page.steps >= WARM_STEPS, "step")
            if guest is not None:
                role = None if mode == "packed" else Neighbours(True, (first.page.path,), gate=mode == "gate + law")
                second = Process(root, 1, guest, role)
                processes.append(second)
                second.wait(lambda: second.page.pid != 0, "start")
                if role is not None:
                    first.control(2, Neighbours(False))
                    coordinator.assign([GpuProcess(one.key, 0, one is second, one.page.path) for one in processes])
                    coordinator.start()
                second.wait(lambda: second.page.steps >= 1, "step")
                time.sleep(warm_s)
            before, requests, begin_s = [one.page.steps for one in processes], first.latencies_s(), time.monotonic()
            time.sleep(seconds)
            took_s = time.monotonic() - begin_s
            rates = [(one.page.steps - was) / took_s for one, was in zip(processes, before, strict=True)]
            return Cell(rates[0], rates[1] if guest is not None else 0.0, tuple(first.latencies_s()[len(requests) :]))
        finally:
            coordinator.close()
            for one in processes:
                one.end()


def _sizes(device: str) -> tuple[Work, Work]:
    """A busy training, and a guest whose quanta of a layer stay below 2 % of the host's step (the rule of the law)."""
    if device == "cpu":
        return Work(device, 64, 3, 64), Work(device, 64, 3, 64)
    return Work(device, 4096, 8, 2048), Work(device, 1024, 24, 2048)


def _warm(mode: str, warm_s: float) -> float:
    return min(warm_s, 3.0) if mode == "packed" else warm_s


def pair(device: str, mode: str, *, warm_s: float, seconds: float, ahead: bool = False) -> dict[str, float]:
    """A half-idle training with a guest that never rests: what the first loses, what of the slack the second gets.

    `ahead`: as for `Work`, of the training.
    """
    busy, guest = _sizes(device)
    gpu_s = 1 / run(busy, None, "", seconds / 4).host_per_s
    guest_s = 1 / run(guest, None, "", seconds / 4).host_per_s
    host = replace(busy, idle_s=2 * gpu_s if ahead else gpu_s, ahead=ahead)
    alone = run(host, None, "", seconds / 2).host_per_s
    slack = max(1 - alone * gpu_s, 1e-9)
    cell = run(host, guest, mode, seconds, warm_s=_warm(mode, warm_s))
    return {
        "host_slowdown": alone / max(cell.host_per_s, 1e-9),
        "guest_share_of_slack": cell.guest_per_s * guest_s / slack,
        "slack": slack,
        "host_step_ms": 1e3 / alone,
        "guest_step_ms": 1e3 * guest_s,
    }


def serving(device: str, mode: str, *, warm_s: float, seconds: float) -> dict[str, float]:
    """A half-loaded inference server with a training as its guest: its 99th percentile, and what the training gets."""
    busy, guest = _sizes(device)
    guest_per_s = run(guest, None, "", seconds / 4).host_per_s
    server = replace(busy, batch=max(busy.batch // 16, 1), serves=True)
    answer_s = statistics.median(run(server, None, "", seconds / 4).latencies_s)
    server = replace(server, idle_s=2 * answer_s)
    alone_s = _p99(run(server, None, "", seconds).latencies_s)
    cell = run(server, guest, mode, seconds, warm_s=_warm(mode, warm_s))
    return {
        "server_p99_over_alone": _p99(cell.latencies_s) / alone_s,
        "guest_speed": cell.guest_per_s / guest_per_s,
        "answer_ms": 1e3 * answer_s,
        "p99_alone_ms": 1e3 * alone_s,
        "requests_per_s": 1 / server.idle_s,
    }


def _p99(values: tuple[float, ...]) -> float:
    ordered = sorted(values)
    if not ordered:
        raise SystemExit("the server answered nothing; measure for longer")
    return ordered[int(0.99 * (len(ordered) - 1))]


# -- what the processes run -------------------------------------------------------------------------------------


def _be_the_job(work: Work) -> None:
    import torch

    from plait.core.resources import Resource
    from plait.training import attach

    torch.manual_seed(0)
    torch.set_num_threads(1)
    job = attach(state={})
    layers = torch.nn.ModuleList([torch.nn.Linear(work.width, work.width) for _ in range(work.layers)]).to(work.device)
    optimizer = torch.optim.SGD(layers.parameters(), lr=1e-6)
    x = torch.randn(work.batch, work.width, device=work.device)

    def forward() -> Any:
        out = x
        for layer in layers:
            out = torch.relu(layer(out))
            job.yield_point()
        return out

    def train() -> None:
        with job.stage(Resource.GPU, sync=not work.ahead):
            optimizer.zero_grad(set_to_none=True)
            forward().pow(2).mean().backward()
            optimizer.step()
        time.sleep(work.idle_s)

    arrivals = random.Random(0)
    due_s, took = time.monotonic(), []

    def serve() -> None:
        nonlocal due_s
        if len(took) < WARM_STEPS:  # the first answers take long, and what waits for them would do so for seconds
            due_s = time.monotonic()
        due_s += arrivals.expovariate(1 / work.idle_s) if work.idle_s else max(time.monotonic() - due_s, 0.0)
        time.sleep(max(due_s - time.monotonic(), 0.0))
        with torch.no_grad(), job.stage(Resource.GPU, sync=True):
            forward()
        took.append(time.monotonic() - due_s)
        if len(took) % 10 == 0:
            part = Path(os.environ["PLAIT_RUN_DIR"]) / "latencies"
            with part.open("a") as file:
                file.write("".join(f"{one}\n" for one in took[-10:]))

    for _ in job.steps(10**9):
        if work.serves:
            serve()
        else:
            train()


if __name__ == "__main__":
    _be_the_job(Work(**json.loads(sys.argv[1])))
