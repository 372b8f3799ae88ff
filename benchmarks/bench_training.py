"""The overhead of plait in a training process: step hooks, stage marks, and the pause of a checkpoint.

    python benchmarks/bench_training.py [--quick]

The step is about 10 ms of one core. Hooked and plain steps alternate in one process and CPU seconds of the training
thread are compared, so that other load on the machine falls on both.
"""

from __future__ import annotations

import os
import random
import statistics
import sys
import tempfile
import time
import weakref
from collections.abc import Callable
from pathlib import Path

import common
import torch
from common import Figure
from torch import nn
from torch.optim.optimizer import _global_optimizer_post_hooks
from torch.utils.data import DataLoader, TensorDataset

from plait.runtime.page import Page
from plait.training import AttachedJob, Resource, attach
from plait.training.adaptive import AdaptiveDataLoader

QUICK = "--quick" in sys.argv


def attached(folder: Path) -> AttachedJob:
    """A job in a folder as an agent makes it."""
    Page.create(folder / "page.bin").close()
    os.environ |= {"PLAIT_RUN_DIR": str(folder), "PLAIT_JOB_DIR": str(folder), "PLAIT_CHECKPOINT_S": "100000"}
    job = attach()
    assert isinstance(job, AttachedJob)
    return job


def a_step(width: int = 480) -> tuple[Callable[[], None], torch.optim.Optimizer]:
    """A step of about 10 ms on one core, and its optimizer."""
    model = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    x = torch.randn(480, width)

    def step() -> None:
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step, optimizer


def hook_cost(job: AttachedJob) -> Figure:
    """CPU time of a step with the hook against the same without."""
    step, optimizer = a_step()
    job.wrap_optimizer(optimizer)
    counting = job.compute._counting
    unused = a_step()[1]
    other = weakref.ref(unused)
    took: dict[bool, list[float]] = {True: [], False: []}
    dice = random.Random(1)  # not in turn: allocators alternate too
    for _ in range(60 if QUICK else 400):
        on = dice.random() < 0.5
        job.compute._counting = counting if on else other  # another optimizer's step: the hook returns at once
        begin = time.thread_time()
        if on:
            job.compute.begin()
        step()
        took[on].append(time.thread_time() - begin)
    job.compute._counting = counting
    plain, hooked = statistics.median(took[False]), statistics.median(took[True])
    note = f"{(hooked / plain - 1) * 100:+.2f} % of a step of {plain * 1e3:.1f} ms"
    return Figure("step with hooks and marks", hooked, len(took[True]), plain / hooked, "plain", "goal <= 1 %", note)


def hook_alone(job: AttachedJob) -> Figure:
    """The hook by itself: what `optimizer.step()` calls afterwards."""
    optimizer = a_step()[1]
    job.compute._counting = weakref.ref(optimizer)
    count = 2_000 if QUICK else 20_000

    def run() -> None:
        for _ in range(count):
            job.optimizer_stepped(optimizer)

    run()
    each = common.cpu_s(run) / count
    return Figure("step hook alone", each, common.RUNS, goal="goal <= 100 us", note=f"{each * 1e6:.1f} us")


def mark_cost(job: AttachedJob) -> Figure:
    """One `with job.stage(...)` without a gate."""
    count = 2_000 if QUICK else 20_000

    def run() -> None:
        for _ in range(count):
            with job.stage(Resource.CPU):
                pass

    run()
    each = common.cpu_s(run) / count
    return Figure("stage mark", each, common.RUNS, goal="goal < 15 us", note=f"{each * 1e6:.1f} us")


def checkpoint_cost(job: AttachedJob, folder: Path) -> Figure:
    """Seconds that training stands still for a checkpoint, against torch.save of the same state; wall time."""
    width = 1024 if QUICK else 2048
    model = nn.Sequential(*(nn.Linear(width, width) for _ in range(3)))
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.randn(4, width)).sum().backward()
    optimizer.step()
    job.register_state(bench_model=model, bench_optimizer=optimizer)
    blocking, saving = [], []
    for number in range(6):
        job.step += 1
        handle = job.checkpoint(block=True)
        assert handle is not None
        assert handle.committed
        if number:  # the first one makes the buffers
            blocking.append(handle.blocking_s)
        begin = time.perf_counter()
        with (folder / "plain.pt").open("wb") as file:
            torch.save({"m": model.state_dict(), "o": optimizer.state_dict()}, file)
            file.flush()
            os.fsync(file.fileno())
        saving.append(time.perf_counter() - begin)
    size = (folder / "plain.pt").stat().st_size / 1e6
    ours, theirs = statistics.median(blocking), statistics.median(saving)
    what = f"checkpoint of {size:.0f} MB stops training"
    note = f"wall time, {ours / theirs * 100:.0f} % of torch.save"
    return Figure(what, ours, len(blocking), theirs / ours, "torch.save", "goal >= 10 x", note, "s")


def loader_cost(job: AttachedJob) -> Figure:
    """A batch of an adaptive loader against one of a wrapped DataLoader: 32 samples of eight numbers each."""
    data = TensorDataset(torch.randn(3_200 if QUICK else 32_000, 8), torch.arange(3_200 if QUICK else 32_000))
    adaptive = job.wrap_loader(AdaptiveDataLoader(data, 32, shuffle=True))
    plain = job.wrap_loader(DataLoader(data, 32, shuffle=True))
    took: dict[bool, list[float]] = {True: [], False: []}
    for number in range(12):  # in turn: both have the same other load
        ours = number % 2 == 0
        begin = time.thread_time()
        batches = sum(1 for _ in (adaptive if ours else plain))
        took[ours].append((time.thread_time() - begin) / batches)
    ours_s, theirs_s = statistics.median(took[True]), statistics.median(took[False])
    note = f"{(ours_s - theirs_s) * 1e6:+.0f} us a batch"
    return Figure("adaptive batch", ours_s, len(took[True]), theirs_s / ours_s, "wrapped", "goal <= 100 us more", note)


def attached_cost(job: AttachedJob) -> Figure:
    """A loop of steps of about 1 ms, attached and with a wrapped loader, against the same loop without plait.

    A pass takes a third of a second: of shorter ones, in turns with those of the other loop, each would begin with a
    step that is measured whole, which a training has every 50 ms.
    """
    rows = 64 * (20 if QUICK else 400)
    data = TensorDataset(torch.randn(rows, 256), torch.arange(rows) % 16)

    hooks = dict(_global_optimizer_post_hooks)

    def loop(loader: DataLoader[tuple[torch.Tensor, ...]], *, counts: bool) -> Callable[[], None]:
        model = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 16))
        optimizer = torch.optim.SGD(model.parameters(), 1e-3)
        if counts:
            job.wrap_optimizer(optimizer)

        def epoch() -> None:
            _global_optimizer_post_hooks.clear()
            if counts:
                _global_optimizer_post_hooks.update(hooks)
            for x, y in loader:
                nn.functional.cross_entropy(model(x), y).backward()
                optimizer.step()
                optimizer.zero_grad()

        return epoch

    loops = (
        loop(DataLoader(data, 64, shuffle=True), counts=False),
        loop(job.wrap_loader(DataLoader(data, 64, shuffle=True)), counts=True),
    )
    took: tuple[list[float], list[float]] = [], []
    for _ in range(5 if QUICK else 15):
        for epoch, seconds in zip(loops, took, strict=True):
            begin = time.thread_time()
            epoch()
            seconds.append((time.thread_time() - begin) * 64 / rows)
    plain, ours = statistics.median(took[0][1:]), statistics.median(took[1][1:])
    note = f"{(ours - plain) * 1e6:+.0f} us, {(ours / plain - 1) * 100:+.1f} % of a step of {plain * 1e3:.2f} ms"
    return Figure("attached loop of short steps", ours, len(took[1]), plain / ours, "plain loop", "goal <= 50 us", note)


def main() -> None:
    """Measure and print."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as made:
        job = attached(Path(made))
        figures = [hook_cost(job), hook_alone(job), mark_cost(job), checkpoint_cost(job, Path(made)), loader_cost(job)]
        figures.append(attached_cost(job))
        common.show(figures)
        job.checkpointer.drain()


if __name__ == "__main__":
    main()
