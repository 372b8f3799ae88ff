"""Sharing one GPU by real processes: what the guaranteed job loses, what the opportunistic one gets; a memory burst.

    python benchmarks/bench_sharing_live.py [--quick] [--seconds 90] [--pattern "100+100"] [--quantum-ms 4] [--burst]
                                            [--mode throttled] [--cv 0.05]

Two training processes with plait's library share an emulated GPU (`plait.training.emulation`): kernels in order,
never preempted, declared memory. The coordinator of the node's agent decides ten times a second. Modes as in the micro
model: packed (nobody is held back), the law, the gate and the law. Throttled: the opportunistic job is a program
without plait, which launches kernels of 1 ms and waits for each, and its runner freezes it for all but its share; its
micro model is that of the law with the quantum of the throttle. Steps of the guaranteed job vary as in the micro model,
whose cell for the same seconds from a cold start is beside each. The guaranteed slowdown is relative to the seconds
that the same steps take by their declaration; alone: what the machine adds to them.

The clock is real. Where it may (as root), everything that is measured runs with real-time priority, so that other
programs hardly delay it, and the guaranteed job catches up with what they do delay it by; the last line says how late
sleepers were woken.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from plait.live.agent.processes.throttle import QUANTUM_S
from plait.live.agent.sharing import Coordinator, GpuProcess, hold_back
from plait.live.system.procs import MARK
from plait.runtime.guest_gate import Neighbours
from plait.runtime.page import VERSION, Page
from plait.sharing.directive import Action, StepStats
from plait.sim.gpu import PATTERNS, Mode, Pattern, Variation, table_cell
from plait.sim.gpu.scenario import STEP_CV

GB = 10**9
HERE = Path(__file__).resolve()
SOURCES = HERE.parents[1] / "src"
#: Pattern, quantum in seconds.
CELLS = (("20x5 then 100 host", 0.004), ("100+100", 0.004), ("100+100", 0.02))
#: The program without plait: it launches a kernel, and waits until it is done.
PLAIN = """
import os
launched, done = os.open("launched", os.O_WRONLY), os.open("done", os.O_RDONLY)
while os.write(launched, b"."):
    os.read(done, 1)
"""
QUANTA = 10  # of a step of the opportunistic job
CAPACITY_BYTES = 32 * GB
#: What the machine delays the guaranteed job by, it catches up with: only the GPU shall make it slower.
CATCH_UP_S = 0.5


@dataclass
class Process:
    """One of the two jobs."""

    name: str
    key: tuple[int, int, int]
    folder: Path
    page: Page
    popen: subprocess.Popen[bytes] | None = None

    def tell(self, version: int, neighbours: Neighbours | None) -> None:
        """Write its control.json."""
        control: dict[str, object] = {
            "version": version,
            "epoch": 1,
            "group": None,
            "made_by": VERSION,
        }
        if neighbours is not None:
            control["sharing"] = neighbours.control()
        (self.folder / "control.json").write_text(json.dumps(control))
        self.page.control_version = version

    def end(self) -> None:
        """Kill it."""
        if self.popen is not None:
            self.popen.kill()
            self.popen.wait()
            self.popen = None


class World:
    """A device, a coordinator, and jobs."""

    def __init__(self, root: Path) -> None:
        """Nobody is there."""
        self.root, self.device = root, root / "gpu"
        self.coordinator = Coordinator(root / "coordinator.json", CAPACITY_BYTES, lambda *_, **__: None)
        self.jobs: list[Process] = []
        self.driver: subprocess.Popen[bytes] | None = None

    def start(
        self,
        name: str,
        what: dict[str, float],
        *,
        stage_s: float,
        kernel_s: float,
        peak_gb: float,
        neighbours: Neighbours | None = None,
    ) -> Process:
        """A job that runs `_job` with these arguments; a guest does not begin before the coordinator says so."""
        folder = self.root / name
        folder.mkdir()
        job = Process(name, (len(self.jobs), 1, 0), folder, Page.create(folder / "page.bin"))
        fifo = (
            f"file={self.device},stage={stage_s * 1e3}ms,kernel={kernel_s * 1e3}ms,persistent=1GB,peak={peak_gb}GB,"
            f"memory={CAPACITY_BYTES / GB}GB"
        )
        env = os.environ | {
            "PLAIT_RUN_DIR": str(folder), "PLAIT_JOB_DIR": str(folder), "PLAIT_EPOCH": "1", "PLAIT_FIFO_GPU": fifo,
            "PYTHONPATH": str(SOURCES), "PLAIT_CHECKPOINT_S": "100000",
        }  # fmt: skip
        (folder / "EPOCH").write_text("1")
        job.tell(1, neighbours)
        if neighbours is not None and neighbours.guest:
            hold_back(job.page.path)
        job.popen = subprocess.Popen([sys.executable, str(HERE), "--job", json.dumps(what)], env=env)
        self.jobs.append(job)
        return job

    def throttle(self, name: str, host: Process) -> Process:
        """A program without plait, started as a guest of `host` by the runner of a node; it has loaded its modules."""
        folder = self.root / name
        folder.mkdir()
        job = Process(name, (len(self.jobs), 1, 0), folder, Page.create(folder / "page.bin"))
        job.page.share, job.page.share_until = 1.0, time.monotonic() + 60.0
        job.tell(1, Neighbours(True, (host.page.path,)))
        mark = f"bench:{os.getpid()}"
        env = dict(os.environ) | {"PYTHONPATH": str(SOURCES), MARK: mark}
        argv = [sys.executable, "-S", "-c", PLAIN]
        for pipe in ("launched", "done"):
            os.mkfifo(folder / pipe)
        driver = [sys.executable, str(HERE), "--driver", str(self.device)]
        self.driver = subprocess.Popen(driver, env=os.environ | {"PYTHONPATH": str(SOURCES)}, cwd=folder)
        task = {"folder": str(folder), "argv": argv, "cwd": str(folder), "env": env, "mark": mark, "guest": True}
        job.popen = subprocess.Popen(
            [sys.executable, "-S", "-P", "-m", "plait.live.agent.processes.runner"], env=env, stdin=subprocess.PIPE
        )
        assert job.popen.stdin is not None
        with job.popen.stdin as to_runner:
            to_runner.write(json.dumps(task).encode())
        self.jobs.append(job)
        end_s = time.monotonic() + 60.0
        while not (folder / "served").exists():
            if time.monotonic() > end_s or job.popen.poll() is not None:
                raise SystemExit(f"{name} has not launched 100 kernels; see {folder / 'out.log'}")
            time.sleep(0.01)
        hold_back(job.page.path)
        return job

    def share(self, host: Process, guest: Process) -> None:
        """From now on one is the guest of the other."""
        host.tell(2, Neighbours(False))
        self.coordinator.assign([GpuProcess(one.key, 0, one is guest, one.page.path) for one in (host, guest)])
        self.coordinator.start()

    def close(self) -> None:
        """End everybody."""
        self.coordinator.close()
        if self.driver is not None:
            self.driver.kill()
            self.driver.wait()
        for job in self.jobs:
            job.end()
            job.page.close()


@contextmanager
def world() -> Iterator[World]:
    """A world that is gone afterwards."""
    shm = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=shm if shm.is_dir() else None) as root:
        made = World(Path(root))
        try:
            yield made
        finally:
            made.close()


@dataclass(frozen=True)
class Cell:
    """Seconds that guaranteed steps took, and take alone; kernel seconds of both jobs meanwhile."""

    took_s: float
    alone_s: float
    host_gpu_s: float
    guest_gpu_s: float

    @property
    def slowdown(self) -> float:
        """Of the guaranteed job."""
        return self.took_s / self.alone_s

    @property
    def slack_share(self) -> float:
        """The part of the time that the guaranteed job left on the GPU which the other one got."""
        return self.guest_gpu_s / max(self.took_s - self.host_gpu_s, 1e-9)


@contextmanager
def realtime() -> Iterator[None]:
    """Nobody else delays what sleeps most of the time anyway; nor processes that are started meanwhile."""
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(10))
    except (OSError, AttributeError):
        yield
        return
    try:
        yield
    finally:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


def measure(pattern: Pattern, quantum_s: float, label: str, seconds: float, cv: float) -> Cell:
    """Run the pair for so long; `label`: a mode in small letters, "throttled", or "alone": a host without a guest."""
    gpu_s = sum(kernel.gpu_s for kernel in pattern.kernels)
    with realtime(), world() as here:
        host = here.start(
            "host", {"host_s": pattern.step_s - gpu_s, "cv": cv}, stage_s=gpu_s,
            kernel_s=gpu_s / len(pattern.kernels), peak_gb=8,
        )  # fmt: skip
        _wait(host, 2)
        guest = None
        if label == "throttled":
            guest = here.throttle("guest", host)
            here.share(host, guest)
        elif label != "alone":
            role = None  # packed jobs do not know of each other
            if label != "packed":
                role = Neighbours(True, (host.page.path,), gate=label == "gate")
            guest = here.start(
                "guest", {"host_s": 0.0}, stage_s=QUANTA * quantum_s, kernel_s=quantum_s, peak_gb=1, neighbours=role
            )  # fmt: skip
            _wait(guest, 0 if role is not None else 2)
            if role is not None:
                here.share(host, guest)
        before, busy = _marked(host), _served(guest)
        time.sleep(seconds)
        after, busy_after = _marked(host), _served(guest)
        kernels_s, alone_s, took_s = (late - early for early, late in zip(before, after, strict=True))
        return Cell(took_s, alone_s, kernels_s, busy_after - busy)


def burst(seconds: float) -> str:
    """The guaranteed job suddenly needs 27 of 32 GB: what its steps were like, and what the guest gave for them."""
    with realtime(), world() as here:
        what = {"host_s": 0.05, "burst_at": int(seconds / 0.15), "burst": 27e9}
        host = here.start("host", what, stage_s=0.05, kernel_s=0.005, peak_gb=8)
        _wait(host, 2)
        role = Neighbours(True, (host.page.path,))
        guest = here.start("guest", {"host_s": 0.0}, stage_s=0.02, kernel_s=0.001, peak_gb=4.5, neighbours=role)
        _wait(guest, 0)
        here.share(host, guest)
        steps: list[StepStats] = []
        limits: list[tuple[float, int]] = []  # of the guest: when it kept to another one
        at_s, actions = time.monotonic(), set()
        while time.monotonic() - at_s < seconds:
            steps += host.page.new_steps(steps[-1].step if steps else -1)
            actions.add(Action(guest.page.action).name.lower())
            reached = guest.page.reached(CAPACITY_BYTES)
            if reached is not None and (not limits or limits[-1][1] != reached.limit_bytes):
                limits.append((time.monotonic() - at_s, reached.limit_bytes))
            time.sleep(0.02)
        spilled = [step for step in steps if step.host_spill_bytes]
        peak = max((step.device_reserved_bytes for step in steps), default=0)
        guest_steps, alive = guest.page.steps, guest.popen is not None and guest.popen.poll() is None
    bounds = ", ".join(f"{size / GB:.1f} GB at {when_s:.0f} s" for when_s, size in limits)
    return (
        f"burst from 8 to 27 GB at step {what['burst_at']}: {len(spilled)} steps partly on the host "
        f"({', '.join(str(step.step) for step in spilled[:8])}), then {peak / GB:.1f} GB on the device. "
        f"The guest kept to {bounds}; it was told to {' and '.join(sorted(actions))}, made {guest_steps:.0f} steps and "
        f"{'still runs' if alive else 'ENDED'}"
    )


def _marked(host: Process) -> tuple[float, float, float]:
    """Seconds of kernels of the guaranteed job so far, of its steps as they take alone, and when the last one ended."""
    kernels_s, alone_s, at_s = map(float, (host.folder / "served").read_text().split())
    return kernels_s, alone_s, at_s


def _served(guest: Process | None) -> float:
    """Seconds of kernels of the other job so far."""
    file = None if guest is None else guest.folder / "served"
    return float(file.read_text().split()[0]) if file is not None and file.exists() else 0.0


def _wait(job: Process, steps: int) -> None:
    end_s = time.monotonic() + 60
    while job.page.steps < steps or not job.page.pid:
        if time.monotonic() > end_s or (job.popen is not None and job.popen.poll() is not None):
            raise SystemExit(f"{job.name} made {job.page.steps:.0f} steps only; see above")
        time.sleep(0.01)


def _job(what: dict[str, float]) -> None:
    """What both processes run: a GPU stage of emulated kernels, then host work."""
    from plait.core.files import replace_file
    from plait.core.resources import Resource
    from plait.training import attach

    folder = Path(os.environ["PLAIT_RUN_DIR"])
    done = {"alone_s": 0.0}
    job = attach(state=done)
    stages, host_s = job.stages, what["host_s"]  # type: ignore[attr-defined]
    step_s = host_s + stages.stage_s
    factors = Variation(cv=what.get("cv", 0.0)).factors(1, step_s)
    if host_s:
        stages.device.ready_s = CATCH_UP_S
    for step in job.steps(10**9):
        if step == what.get("burst_at"):
            stages.memory.demand(what["burst"])
        stages.factor, of_host = next(factors)
        with job.stage(Resource.GPU):
            pass
        if host_s:
            stages.device.host_work(host_s * of_host)
        done["alone_s"] += stages.factor * stages.stage_s + host_s * of_host
        replace_file(folder / "served", f"{stages.served_s} {done['alone_s']} {time.monotonic()}")


def _driver(device: Path) -> None:
    """Run kernels of 1 ms for the program without plait; one that has begun ends, also if the program is frozen."""
    from plait.training.emulation import FifoDevice

    gpu, count = FifoDevice(device), 0
    launched, done = os.open("launched", os.O_RDONLY), os.open("done", os.O_WRONLY)
    while os.read(launched, 1):
        gpu.run(0.001)
        os.write(done, b".")
        count += 1
        if count % 100 == 0:
            part = Path("served.part")
            part.write_text(str(count * 0.001))
            part.replace("served")


def _lateness() -> float:
    """Mean seconds by which this machine wakes a sleeper late."""
    late = []
    with realtime():
        for _ in range(200):
            due_s = time.monotonic() + 0.004
            time.sleep(0.004)
            late.append(time.monotonic() - due_s)
    return sum(late) / len(late)


def main() -> None:
    """A line a cell, in Markdown, then the burst."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=90.0, help="of each cell with the law (default 90)")
    parser.add_argument("--quick", action="store_true", help="20 seconds a cell and the first pattern only")
    parser.add_argument("--burst", action="store_true", help="only the memory burst")
    parser.add_argument("--pattern", choices=list(PATTERNS))
    parser.add_argument("--quantum-ms", type=float)
    parser.add_argument("--cv", type=float, default=STEP_CV, help="variation of guaranteed steps (default 0.05)")
    modes = ["alone", *(mode.name.lower() for mode in Mode), "throttled"]
    parser.add_argument("--mode", choices=modes, help="only this one (default: all, and the burst)")
    parser.add_argument("--job", type=json.loads, help=argparse.SUPPRESS)
    parser.add_argument("--driver", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.driver is not None:
        _driver(options.driver)
        return
    if options.job is not None:
        _job(options.job)
        return
    seconds = 20.0 if options.quick else options.seconds
    if options.burst:
        print(burst(seconds))
        return
    cells = CELLS[:1] if options.quick else CELLS
    if options.pattern is not None:
        cells = ((options.pattern, (options.quantum_ms or 4.0) / 1e3),)
    print("| guaranteed step (GPU+host ms) | q ms | mode | slowdown | slack | micro model: slowdown | slack |")
    print("|---|---|---|---|---|---|---|", flush=True)
    for name, quantum_s in cells:
        pattern = PATTERNS[name]
        for label in modes if options.mode is None else [options.mode]:
            q_s = QUANTUM_S if label == "throttled" else quantum_s
            length_s = min(seconds, 30.0) if label in ("alone", "packed") else seconds
            found = measure(pattern, q_s, label, length_s, options.cv)
            row = f"| {name} | {q_s * 1e3:g} | {label} | {found.slowdown:.3f} | {found.slack_share:.2f} |"
            if label != "alone":
                mode = Mode.LAW if label == "throttled" else Mode[label.upper()]
                slowdown, slack = table_cell(pattern, q_s, mode, length_s, (1, 2, 3), cv=options.cv)
                row += f" {slowdown:.3f} | {slack:.2f} |"
            print(row, flush=True)
    if options.mode is None:
        print(f"\n{burst(seconds)}")
    print(f"{seconds:g} s a cell with the law; the machine woke sleepers {_lateness() * 1e3:.2f} ms late on average")


if __name__ == "__main__":
    main()
