"""What interleaving does on a real GPU: the figures for docs/explanation/gpu.md, printed as they are measured.

    python benchmarks/bench_gpu.py [--quick] [--cpu]

Needs CUDA; `--cpu` runs the same code on the CPU with tiny jobs, which tests it and measures nothing.
"""

from __future__ import annotations

import platform
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import gpu_cases as cases
import gpu_sharing
import torch
from gpu_cases import TINY, WAYS, Shape


def environment(device: str) -> list[str]:
    """What the figures were measured on."""
    lines = [f"Python {platform.python_version()}, torch {torch.__version__}, {platform.machine()}"]
    if device == "cuda":
        about = torch.cuda.get_device_properties(0)
        lines.append(f"{about.name}, {about.total_memory / 1e9:.0f} GB, CUDA {torch.version.cuda}")
    return lines


def ways(device: str, shape: Shape, jobs: int) -> list[str]:
    """Jobs run in every way: seconds, throughput against one after the other, memory."""
    measured = {name: cases.measure(name, device, shape, jobs) for name in WAYS}
    base = measured["one after the other"].seconds
    return [
        f"{jobs} jobs, {name:20}  {one.seconds:8.2f} s  {base / one.seconds:5.2f} x one after the other"
        f"  {one.bytes / 1e9:6.2f} GB"
        for name, one in measured.items()
    ]


def details(device: str, shape: Shape) -> list[str]:
    """Stages, gates, yield points, preemption."""
    profile = cases.stage_profile(device, shape)
    apart = profile.marks_s / profile.profiler_s - 1
    light = Shape(shape.width, max(1, shape.layers // 2), shape.batch, 2 * shape.rows, shape.steps)
    round_ = cases.barrier_round(device, [shape, light])
    ratio = round_.measured_s / round_.formula_s
    gated, free = cases.yield_cost(device, shape)
    with tempfile.TemporaryDirectory() as folder:
        moved = cases.preempt_and_resume(device, shape, Path(folder))
    return [
        f"GPU stage, marks         {profile.marks_s * 1e3:8.3f} ms  ({apart:+.1%} of torch's profiler)",
        f"barrier round            {round_.measured_s * 1e3:8.3f} ms  ({ratio:.3f} x formula (3))",
        f"yield point at tokens    {gated * 1e6:8.1f} us  (without a gate {free * 1e6:.1f} us)",
        f"preempted to exit        {moved.exit_s:8.2f} s",
        f"started to first step    {moved.resume_s:8.2f} s",
    ]


def sharing(device: str, *, quick: bool) -> Iterator[str]:
    """A guest beside a training and beside a server, and what else this machine could share by."""
    small = {"width": 64, "layers": 3, "batch": 64}
    size = small if device == "cpu" else {"width": 4096, "layers": 8, "batch": 2048}
    seconds = 2.0 if device == "cpu" else 10.0 if quick else 60.0
    yield from gpu_sharing.pairs(device, seconds, **size)
    yield from gpu_sharing.serving(device, seconds, **size)
    yield from gpu_sharing.available()


def main(options: Sequence[str]) -> None:
    """Measure and print."""
    device = "cpu" if "--cpu" in options else "cuda"
    if device == "cuda" and not torch.cuda.is_available():
        sys.exit("no CUDA device here; --cpu tries the code without one and measures nothing")
    shape = TINY if device == "cpu" else Shape(steps=30) if "--quick" in options else Shape()
    print(shape, flush=True)
    for jobs in (2, 4):
        print("\n".join(ways(device, shape, jobs)), flush=True)
    for line in sharing(device, quick="--quick" in options):
        print(line, flush=True)
    for line in (*details(device, shape), *environment(device)):  # last: this process has no context before
        print(line, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
