"""Real training on a GPU (or, to try the code, on the CPU): alone, at once, taking turns, in processes and merged.

`bench_gpu.py` prints these figures and `tests/gpu` checks them. Every function takes its device. Jobs consist of marked
stages with yield points between the layers, so the same code runs under a `Job` and with bare marks and a gate.
"""

from __future__ import annotations

import itertools
import json
import math
import multiprocessing
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from torch import nn

from plait.core.resources import Resource
from plait.core.turns import lock_step_s
from plait.runtime.gate_choice import best_turns
from plait.runtime.gates import Group, GroupMember, NullGate, make_group, open_gate
from plait.runtime.page import Page
from plait.training.job import Job
from plait.training.merged import InterleavePlan, run_merged
from plait.training.stages import Stages

CPU, GPU = Resource.CPU, Resource.GPU
SOURCE = Path(__file__).resolve().parent.parent / "src"
PREEMPTED = 75


@dataclass(frozen=True)
class Shape:
    """A job: square layers of this width, rows a batch, and how much of the CPU an iteration needs first."""

    width: int = 2048
    layers: int = 16
    batch: int = 1024
    rows: int = 200_000  # numbers sorted on the CPU before each batch
    steps: int = 100


#: For trying the code on a machine without a GPU.
TINY = Shape(width=32, layers=3, batch=8, rows=2_000, steps=12)


@dataclass(frozen=True)
class Trained:
    """Seconds from the first to the last iteration of a job, when each ended (monotonic), and its losses."""

    ends_s: tuple[float, ...]
    losses: tuple[float, ...]

    @property
    def seconds(self) -> float:
        """Between the ends of the first and the last iteration."""
        return self.ends_s[-1] - self.ends_s[0]


def train(marks: Any, device: str, shape: Shape, *, seed: int = 0, amp: bool = False, yields: bool = True) -> Trained:
    """Sort on the CPU, then forward, backward and step on the device; `marks` has `stage` and `yield_point`."""
    torch.manual_seed(seed)
    model = nn.ModuleList([nn.Linear(shape.width, shape.width) for _ in range(shape.layers)]).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    scaler = torch.amp.GradScaler(device, enabled=amp and device == "cuda")
    cast = torch.autocast(device, torch.float16 if device == "cuda" else torch.bfloat16) if amp else nullcontext()
    generator = torch.Generator().manual_seed(seed)
    ends, losses = [], []
    for _ in range(shape.steps):
        with marks.stage(CPU):
            values = torch.rand(shape.rows, generator=generator).sort().values
            x = torch.randn(shape.batch, shape.width, generator=generator) + values[-1]
        with marks.stage(GPU):
            x = x.to(device, non_blocking=True)
            optimizer.zero_grad(set_to_none=True)
            with cast:
                out = x
                for layer in model:
                    out = torch.relu(layer(out)) + out
                    if yields:
                        marks.yield_point()
                loss = out.float().pow(2).mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        losses.append(loss.detach())
        ends.append(time.monotonic())
    if device == "cuda":
        torch.cuda.current_stream().synchronize()
    ends[-1] = time.monotonic()  # when the device had done it
    return Trained(tuple(ends), tuple(float(one) for one in losses))


def wait_for(device: str) -> None:
    """Until the device has done everything."""
    if device == "cuda":
        torch.cuda.synchronize()


def used_bytes(device: str) -> float:
    """Memory of the whole GPU in use, contexts included; 0 on the CPU."""
    if device != "cuda":
        return 0.0
    free, total = torch.cuda.mem_get_info()
    return float(total - free)


# -- two and four jobs, in every way ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Way:
    """One way to run the jobs: seconds until all were done, and memory of the GPU while all were there."""

    seconds: float
    bytes: float
    losses: tuple[tuple[float, ...], ...]


def _worker(pipe: Connection, control: dict[str, Any], device: str, shape: Shape, seed: int) -> None:
    gate = open_gate(control) if control else NullGate()
    marks = Stages(None, gate)
    train(NullMarks(), device, Shape(shape.width, shape.layers, shape.batch, shape.rows, 3))  # warm
    wait_for(device)
    pipe.send("ready")
    pipe.recv()
    trained = train(marks, device, shape, seed=seed)
    wait_for(device)
    gate.drop()
    pipe.send((time.monotonic(), trained.losses))
    pipe.recv()
    pipe.send(used_bytes(device))
    pipe.recv()  # nobody leaves before all have looked
    gate.close()


class NullMarks:
    """No stages."""

    def stage(self, resource: Resource) -> Any:
        """Nothing."""
        return nullcontext()

    def yield_point(self) -> None:
        """Nothing."""


def by_processes(device: str, shape: Shape, jobs: int, gate: str, *, one_by_one: bool = False) -> Way:
    """A process a job: all at once, without a gate (`none`), or taking turns; or one after the other."""
    spawn = multiprocessing.get_context("spawn")
    folder = Path(tempfile.mkdtemp(prefix="plait-", dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None))
    try:
        group = make_group(folder / "g", gate, [GroupMember(i, i % 4) for i in range(jobs)], version=1)
        pipes = [spawn.Pipe() for _ in range(jobs)]
        workers = [
            spawn.Process(target=_worker, args=(there, _control(group, gate, i), device, shape, i))
            for i, (_, there) in enumerate(pipes)
        ]
        for worker in workers:
            worker.start()
        ours = [here for here, _ in pipes]
        for pipe in ours:
            pipe.recv()
        begin = time.monotonic()
        if one_by_one:
            said = [_ask(pipe, "go") for pipe in ours]
        else:
            for pipe in ours:
                pipe.send("go")
            said = [pipe.recv() for pipe in ours]
        seconds = max(end for end, _ in said) - begin
        memory = max(_ask(pipe, "memory") for pipe in ours)
        for pipe in ours:
            pipe.send("leave")
        for worker in workers:
            worker.join()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return Way(seconds, memory, tuple(losses for _, losses in said))


def _control(group: Group, gate: str, index: int) -> dict[str, Any]:
    return {} if gate == "none" else {"group": group.control(index)}


def _ask(pipe: Connection, what: str) -> Any:
    pipe.send(what)
    return pipe.recv()


def merged(device: str, shape: Shape, jobs: int, gate: str) -> Way:
    """All as threads of this process, in one context."""
    got: dict[int, Trained] = {}
    memory: list[float] = []
    train(NullMarks(), device, Shape(shape.width, shape.layers, shape.batch, shape.rows, 3))
    wait_for(device)

    def job_of(index: int) -> Callable[[Job], None]:
        def work(job: Job) -> None:
            got[index] = train(job, device, shape, seed=index)
            if device == "cuda":
                torch.cuda.current_stream().synchronize()
            memory.append(used_bytes(device))

        return work

    begin = time.monotonic()
    results = run_merged([job_of(i) for i in range(jobs)], InterleavePlan(gate))
    seconds = time.monotonic() - begin
    bad = [r for r in results if r.state != "finished"]
    if bad:
        raise RuntimeError(f"a merged job did not finish: {bad[0]}")
    return Way(seconds, max(memory), tuple(got[i].losses for i in range(jobs)))


WAYS: dict[str, Callable[[str, Shape, int], Way]] = {
    "one after the other": lambda device, shape, jobs: by_processes(device, shape, jobs, "none", one_by_one=True),
    "processes, no gate": lambda device, shape, jobs: by_processes(device, shape, jobs, "none"),
    "processes, tokens": lambda device, shape, jobs: by_processes(device, shape, jobs, "tokens"),
    "processes, barrier": lambda device, shape, jobs: by_processes(device, shape, jobs, "barrier"),
    "merged, no gate": lambda device, shape, jobs: merged(device, shape, jobs, "none"),
    "merged, tokens": lambda device, shape, jobs: merged(device, shape, jobs, "tokens"),
    "merged, barrier": lambda device, shape, jobs: merged(device, shape, jobs, "barrier"),
}


def measure(way: str, device: str, shape: Shape, jobs: int) -> Way:
    """One of `WAYS` in a process of its own, so that no context of an earlier one is counted."""
    here, there = multiprocessing.get_context("spawn").Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_measured, args=(there, way, device, shape, jobs))
    process.start()
    there.close()
    try:
        return here.recv()  # type: ignore[no-any-return]
    except EOFError:
        raise RuntimeError(f"{jobs} jobs, {way}: the process ended without a result; see its output") from None
    finally:
        process.join()


def _measured(pipe: Connection, way: str, device: str, shape: Shape, jobs: int) -> None:
    pipe.send(WAYS[way](device, shape, jobs))


# -- stages, gates, yield points -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Profiled:
    """Seconds of the GPU stage of an iteration: by our marks, and by torch's profiler."""

    marks_s: float
    profiler_s: float


def stage_profile(device: str, shape: Shape) -> Profiled:
    """The same iterations measured by both at once."""
    train(NullMarks(), device, Shape(shape.width, shape.layers, shape.batch, shape.rows, 5))
    wait_for(device)
    stages = Stages(None, NullGate())
    kinds = [torch.profiler.ProfilerActivity.CPU]
    if device == "cuda":
        kinds.append(torch.profiler.ProfilerActivity.CUDA)
    with torch.profiler.profile(activities=kinds) as profiler:
        train(_Ranges(stages), device, shape, yields=False)
        wait_for(device)
    stages.publish()
    spans = _spans_us(profiler.events(), device)
    if not spans:
        raise RuntimeError(f"torch's profiler has no ranges of the GPU stage; it has {len(profiler.events())} events")
    return Profiled(stages.busy_s[GPU] / shape.steps, sum(spans) / 1e6 / shape.steps)


def _spans_us(events: Any, device: str) -> list[float]:
    """Microseconds of each GPU stage. On a GPU from its first operation to the last one before the next stage.

    The profiler's own range on the device ends with the forward pass: the kernels of the backward thread and of the
    optimizer's nested range are not part of it.
    """
    ranges = [e for e in events if e.name == "stage::gpu"]
    if device != "cuda":
        return [e.time_range.elapsed_us() for e in ranges]
    on_device = [e for e in events if e.device_type == torch.autograd.DeviceType.CUDA]
    begins = sorted(e.time_range.start for e in ranges if e.device_type == torch.autograd.DeviceType.CUDA)
    work = sorted((e.time_range.start, e.time_range.end) for e in on_device if not e.is_user_annotation)
    spans = []
    for begin, following in zip(begins, [*begins[1:], math.inf], strict=True):
        ends = [end for start, end in work if begin <= start < following]
        spans.append(max(ends, default=begin) - begin)
    return spans


class _Ranges:
    """Marks, and a range of torch's profiler around each."""

    def __init__(self, stages: Stages) -> None:
        self._stages = stages

    def stage(self, resource: Resource) -> Any:
        from contextlib import ExitStack

        stack = ExitStack()
        stack.enter_context(self._stages.stage(resource))
        stack.enter_context(torch.profiler.record_function(f"stage::{resource.name.lower()}"))
        return stack

    def yield_point(self) -> None:
        self._stages.yield_point()


@dataclass(frozen=True)
class Round:
    """An iteration at the barrier, measured and by formula (3) from the stages alone."""

    measured_s: float
    formula_s: float


def barrier_round(device: str, shapes: Sequence[Shape]) -> Round:
    """Two to four jobs merged at a barrier.

    Raises `RuntimeError` if fewer than two iterations of each job ended while all of them ran: nothing was shared then.
    """
    rows = []
    for shape in shapes:
        stages = Stages(None, NullGate())
        train(stages, device, Shape(shape.width, shape.layers, shape.batch, shape.rows, 5))
        wait_for(device)
        stages = Stages(None, NullGate())
        train(stages, device, shape)
        wait_for(device)
        stages.publish()
        rows.append([busy / shape.steps for busy in stages.busy_s])
    turns, _ = best_turns(rows)
    got: dict[int, Trained] = {}
    start = threading.Barrier(len(shapes), timeout=60)  # or a small job may have ended before another begins

    def job_of(index: int) -> Callable[[Job], None]:
        def work(job: Job) -> None:
            start.wait()
            got[index] = train(job, device, shapes[index])

        return work

    run_merged([job_of(i) for i in range(len(shapes))], InterleavePlan("barrier", turns))
    first, last = max(g.ends_s[0] for g in got.values()), min(g.ends_s[-1] for g in got.values())
    each = []
    for one in got.values():
        inside = [end for end in one.ends_s if first <= end <= last]
        each += [b - a for a, b in itertools.pairwise(inside)]
    if not each:
        raise RuntimeError("the jobs hardly ran at the same time: some ended before the others' second iteration")
    return Round(statistics.mean(each), lock_step_s(rows, turns))


def yield_cost(device: str, shape: Shape) -> tuple[float, float]:
    """Seconds a yield point costs a job alone at its tokens, and that without a gate."""

    def seconds(gate: str, yields: bool) -> float:
        got: list[Trained] = []
        run_merged([lambda job: got.append(train(job, device, shape, yields=yields))], InterleavePlan(gate))
        return got[0].seconds

    shape = replace(shape, rows=1000)  # sorting varies by more than all yield points take
    points = (shape.steps - 1) * shape.layers
    gated = statistics.median(seconds("tokens", True) - seconds("tokens", False) for _ in range(3))
    free = statistics.median(seconds("none", True) - seconds("none", False) for _ in range(3))
    return gated / points, free / points


# -- preempted and resumed -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Moved:
    """Seconds from the signal to the exit, and from a new start to the first iteration; steps before and after."""

    exit_s: float
    resume_s: float
    steps: int
    resumed_at: int


def preempt_and_resume(device: str, shape: Shape, folder: Path) -> Moved:
    """A job as the agent starts it, stopped by SIGTERM, started again."""
    first = _start(device, shape, folder, 1)
    page = _page(folder, 1)
    _until(lambda: page.steps >= 5, first)
    begin = time.monotonic()
    first.send_signal(signal.SIGTERM)
    code = first.wait(60)
    exit_s = time.monotonic() - begin
    if code != PREEMPTED:
        raise RuntimeError(f"the job ended with {code}, not {PREEMPTED}")
    steps = int(page.steps)
    begin = time.monotonic()
    second = _start(device, shape, folder, 2)
    page = _page(folder, 2)
    try:
        _until(lambda: page.steps > steps, second)
        resume_s, resumed_at = time.monotonic() - begin, int(page.checkpoint_steps)
    finally:
        second.kill()
        second.wait()
    return Moved(exit_s, resume_s, steps, resumed_at)


def _run_dir(folder: Path, epoch: int) -> Path:
    return folder / "attempts" / str(epoch) / "rank0"


def _page(folder: Path, epoch: int) -> Page:
    return Page.open(_run_dir(folder, epoch) / "page.bin", mapped=False)


def _until(true: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + 120
    while not true():
        if process.poll() is not None or time.monotonic() > until:
            raise RuntimeError(f"the job came to nothing (exit code {process.poll()})")
        time.sleep(0.001)


def _start(device: str, shape: Shape, folder: Path, epoch: int) -> subprocess.Popen[bytes]:
    run_dir = _run_dir(folder, epoch)
    run_dir.mkdir(parents=True)
    Page.create(run_dir / "page.bin").close()
    (folder / "EPOCH").write_text(str(epoch))
    env = os.environ | {
        "PLAIT_RUN_DIR": str(run_dir), "PLAIT_JOB_DIR": str(folder), "PLAIT_EPOCH": str(epoch), "PLAIT_JOB": "j-0",
        "PYTHONPATH": os.pathsep.join([str(SOURCE / "plait" / "training" / "hook"), str(SOURCE)]),
    }  # fmt: skip
    return subprocess.Popen([sys.executable, __file__, device, json.dumps(vars(shape))], env=env)


def _be_the_job(device: str, shape: Shape) -> None:
    from plait.training import attach

    torch.manual_seed(1)
    model = nn.Sequential(*(nn.Linear(shape.width, shape.width) for _ in range(shape.layers))).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)
    job = attach(model=model, optimizer=optimizer)
    for _ in job.steps(10**9):
        optimizer.zero_grad()
        model(torch.randn(shape.batch, shape.width).to(device)).pow(2).mean().backward()
        optimizer.step()


if __name__ == "__main__":
    _be_the_job(sys.argv[1], Shape(**json.loads(sys.argv[2])))
