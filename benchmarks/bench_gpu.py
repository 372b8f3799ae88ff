"""What plait does on a real GPU: `make gpu`. Figures go to gpu.json and gpu.md, row by row, most valuable row first.

    python benchmarks/bench_gpu.py [--minutes 10] [--out FOLDER] [--rows NAME,NAME] [--cpu]

A run that was interrupted goes on where it stopped: rows of the same card and versions that are in gpu.json are kept.
Rows that do not fit the minutes are left out and listed. `--cpu` runs the same code on the CPU with tiny jobs, which
tests it and measures nothing.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import platform
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gpu_cases as cases
import gpu_mechanisms as mechanisms
import gpu_sharing as sharing
import torch
from gpu_cases import TINY, WAYS, Shape

Figures = dict[str, float]


@dataclass(frozen=True)
class Setting:
    """The device, and how long its parts are measured."""

    device: str

    @property
    def tiny(self) -> bool:
        """Whether this only tests the code."""
        return self.device == "cpu"

    @property
    def shape(self) -> Shape:
        """The job of the rows on interleaving."""
        return TINY if self.tiny else Shape(steps=60)

    def seconds(self, seconds: float) -> float:
        """How long to measure."""
        return 0.5 if self.tiny else seconds


@dataclass(frozen=True)
class Row:
    """One row: what it answers, how long it takes on an H100, and the function that measures it."""

    name: str
    question: str
    seconds: float
    measure: Callable[[Setting], Figures]
    needs_cuda: bool = False


def _stage_times(at: Setting) -> Figures:
    found = cases.stage_profile(at.device, at.shape)
    return {
        "marks_ms": 1e3 * found.marks_s,
        "profiler_ms": 1e3 * found.profiler_s,
        "marks_over_profiler": found.marks_s / found.profiler_s,
    }


def _time_slices(at: Setting) -> Figures:
    return mechanisms.time_slices(at.device, at.seconds(3.0))


def _time_slices_with_mps(at: Setting) -> Figures:
    with mechanisms.mps():
        return mechanisms.time_slices(at.device, at.seconds(3.0))


def _streams(at: Setting) -> Figures:
    return mechanisms.streams(at.device, at.seconds(3.0))


def _full_device(at: Setting) -> Figures:
    return mechanisms.full_device()


def _bursts(at: Setting) -> Figures:
    return mechanisms.bursts()


def _interleaved(jobs: int) -> Callable[[Setting], Figures]:
    def measure(at: Setting) -> Figures:
        measured = {name: cases.measure(name, at.device, at.shape, jobs) for name in WAYS}
        base = measured["one after the other"].seconds
        figures: Figures = {"one_after_the_other_s": base}
        for name, one in measured.items():
            key = name.replace(", ", "_").replace(" ", "_")
            figures[f"{key}_speed"] = base / one.seconds
            figures[f"{key}_gb"] = one.bytes / 1e9
        return figures

    return measure


def _barrier(at: Setting) -> Figures:
    shape = at.shape
    light = Shape(shape.width, max(1, shape.layers // 2), shape.batch, 2 * shape.rows, shape.steps)
    found = cases.barrier_round(at.device, [shape, light])
    return {"measured_ms": 1e3 * found.measured_s, "over_formula_3": found.measured_s / found.formula_s}


def _yield_point(at: Setting) -> Figures:
    gated, free = cases.yield_cost(at.device, at.shape)
    return {"at_tokens_us": 1e6 * gated, "without_a_gate_us": 1e6 * free}


def _preempt(at: Setting) -> Figures:
    with tempfile.TemporaryDirectory() as folder:
        moved = cases.preempt_and_resume(at.device, at.shape, Path(folder))
    return {"preempted_to_exit_s": moved.exit_s, "started_to_first_step_s": moved.resume_s}


def _pair(mode: str, *, ahead: bool = False) -> Callable[[Setting], Figures]:
    def measure(at: Setting) -> Figures:
        return sharing.pair(at.device, mode, warm_s=at.seconds(45.0), seconds=at.seconds(20.0), ahead=ahead)

    return measure


def _server(mode: str) -> Callable[[Setting], Figures]:
    def measure(at: Setting) -> Figures:
        return sharing.serving(at.device, mode, warm_s=at.seconds(45.0), seconds=at.seconds(20.0))

    return measure


ROWS = (
    Row("stage times", "are plait's stage times those of torch's profiler?", 15, _stage_times),
    Row("time slices", "what does a host wait for when it returns beside a guest's process?", 40, _time_slices),
    Row("full device", "which allocations fail when limit and device are full?", 5, _full_device, True),
    Row("bursts", "do 1,000 bursts above the limit end without an out-of-memory error?", 6, _bursts, True),
    Row("pair: packed", "what does a guest cost a half-idle training without plait?", 80, _pair("packed")),
    Row("pair: law", "... and under the share law?", 146, _pair("law")),
    Row("pair: ahead", "... under gate and law, if it runs ahead of the GPU?", 140, _pair("gate + law", ahead=True)),
    Row("yield point", "what does a yield point cost?", 32, _yield_point),
    Row("barrier round", "does formula (3) predict a round?", 27, _barrier),
    Row("preempt and resume", "how long do a stop and a start take?", 25, _preempt),
    Row("interleave 2", "what is interleaving worth for two jobs?", 110, _interleaved(2)),
    Row("streams", "do priorities of streams help within one process?", 11, _streams, True),
    Row("server: packed", "what does a guest cost a half-loaded server without plait?", 75, _server("packed")),
    Row("server: law", "... and under the share law?", 120, _server("law")),
    Row("pair: gate + law", "... a training, under stage gate and law?", 125, _pair("gate + law")),
    Row("server: gate + law", "... a server, under stage gate and law?", 120, _server("gate + law")),
    Row("interleave 4", "what is interleaving worth for four jobs?", 150, _interleaved(4)),
    Row("time slices, MPS", "what changes under MPS?", 80, _time_slices_with_mps, True),
)  # fmt: skip


def environment(device: str) -> dict[str, str]:
    """What the figures were measured on."""
    found = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "machine": platform.machine(),
        "device": device,
    }
    if device == "cuda":  # in a process of its own: a context here would count in the rows on memory
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            found |= pool.apply(_card)
    return found


def _card() -> dict[str, str]:
    about = torch.cuda.get_device_properties(0)
    return {
        "card": about.name,
        "memory_gb": f"{about.total_memory / 1e9:.0f}",
        "cuda": str(torch.version.cuda),
        "capability": f"{about.major}.{about.minor}",
    }


def _in_a_process(row: Row, at: Setting) -> Any:
    """Measure a row in a process of its own; its figures, or the last line of what went wrong."""
    here, there = multiprocessing.get_context("spawn").Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_measured, args=(there, row.name, at))
    process.start()
    there.close()
    try:
        return here.recv()
    except EOFError:
        return f"the process ended without a result (exit code {process.exitcode})"
    finally:
        process.join()


def _measured(pipe: Any, name: str, at: Setting) -> None:
    row = next(row for row in ROWS if row.name == name)
    try:
        pipe.send(row.measure(at))
    except (Exception, SystemExit) as error:
        traceback.print_exc()
        pipe.send(f"{type(error).__name__}: {error}")


def page(results: dict[str, Any]) -> str:
    """The results as a table in Markdown."""
    about = ", ".join(f"{key} {value}" for key, value in results["environment"].items())
    lines = [f"Measured with `make gpu`: {about}.", "", "| row | question | figures |", "|---|---|---|"]
    for row in ROWS:
        if row.name in results["rows"]:
            found = results["rows"][row.name]
            text = found if isinstance(found, str) else ", ".join(f"{k} {v:.4g}" for k, v in found.items())
            lines.append(f"| {row.name} | {row.question} | {text} |")
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str]) -> None:
    """Measure, print, write."""
    options = _parser().parse_args(arguments)
    at = Setting("cpu" if options.cpu else "cuda")
    if not at.tiny and not torch.cuda.is_available():
        sys.exit("no CUDA device here; --cpu runs the code without one and measures nothing")
    begin_s = time.monotonic()
    file = Path(options.out) / "gpu.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    about = environment(at.device)
    results: dict[str, Any] = {"environment": about, "rows": {}}
    if file.exists():
        former = json.loads(file.read_text())
        if former["environment"] == about:
            results = former
    wanted = [row for row in ROWS if not options.rows or row.name in options.rows.split(",")]
    left_out = []
    print(", ".join(f"{key} {value}" for key, value in about.items()), flush=True)
    for row in wanted:
        if not isinstance(results["rows"].get(row.name, ""), str):
            print(f"{row.name}: kept from {file}", flush=True)
            continue
        if row.needs_cuda and at.tiny:
            continue
        left_s = 60 * options.minutes - (time.monotonic() - begin_s)
        if not at.tiny and row.seconds > left_s:
            left_out.append(row.name)
            continue
        started_s = time.monotonic()
        results["rows"][row.name] = found = _in_a_process(row, at)
        file.write_text(json.dumps(results, indent=1) + "\n")
        file.with_suffix(".md").write_text(page(results))
        print(f"{row.name} ({time.monotonic() - started_s:.0f} s): {row.question}", flush=True)
        for key, value in found.items() if isinstance(found, dict) else [("failed", found)]:
            print(f"  {key:44} {value if isinstance(value, str) else format(value, '.4g')}", flush=True)
    if left_out:
        print(f"left out for lack of time (--minutes {options.minutes:g}): {', '.join(left_out)}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0, help="leave out the rows that do not fit (10)")
    parser.add_argument("--out", default=".", help="folder of gpu.json and gpu.md (here)")
    parser.add_argument("--rows", default="", help="these rows alone, separated by commas")
    parser.add_argument("--cpu", action="store_true", help="test the code without a GPU")
    return parser


if __name__ == "__main__":
    main(sys.argv[1:])
