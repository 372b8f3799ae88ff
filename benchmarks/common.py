"""Shared code of all benchmarks: traces, CPU seconds, medians, a table of ratios.

CPU seconds are those of this process, user and system, all threads (`time.process_time`): on a shared machine they
vary far less than wall time. A small run precedes each measurement, so that compilation does not count; each figure is
a median of the stated number of runs.
"""

from __future__ import annotations

import gc
import json
import os
import platform
import resource
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

from plait import Cluster, JobBatch, Policy, World, load_jobs, make_world, simulate
from plait.core.jit import HAVE_NUMBA
from plait.sim.run import Simulation, with_round
from plait.traces.synthetic import generate

ROOT = Path(__file__).resolve().parent.parent
RUNS = 5


@dataclass(frozen=True)
class Figure:
    """One measured thing: what, CPU seconds (or another `unit`), median of how many runs, and what it is compared with.

    `ratio` is the seconds of `against` over ours, measured in the same run, so more is better; NaN if there is
    nothing to compare with.
    """

    what: str
    cpu_s: float
    runs: int
    ratio: float = float("nan")
    against: str = ""
    goal: str = ""
    note: str = ""
    unit: str = "CPU s"


@cache
def jobs(count: int, gpus: int, load: float = 1.0, preset: str = "lognormal", seed: int = 1) -> JobBatch:
    """A synthetic trace, ready to simulate."""
    return load_jobs(generate(preset, count, gpus, load, seed)).jobs


def world(round_s: float, name: str = "ideal") -> World:
    """By default one without overheads, so that the engine and the policy are all that is timed."""
    return with_round(make_world(name), round_s)


def run(batch: JobBatch, cluster: str, policy: Policy, round_s: float, name: str = "ideal") -> Simulation:
    """One simulation in a world of this name; every job must have finished."""
    made = simulate(batch, Cluster.parse(cluster), policy, world(round_s, name))
    assert made.backend.ended == len(batch), "a benchmark that loses jobs measures nothing"
    return made


def cpu_s(work: Callable[[], object], runs: int = RUNS) -> float:
    """Median CPU seconds of `work`, garbage collected before each run."""
    taken = []
    for _ in range(runs):
        gc.collect()
        begin = time.process_time()
        work()
        taken.append(time.process_time() - begin)
    return statistics.median(taken)


def peak_gb() -> float:
    """Largest resident size of this process so far."""
    kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return kib * 1024 / 1e9


def machine() -> str:
    """What the figures were measured on."""
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [line.partition(":")[2].strip() for line in cpuinfo.read_text().splitlines() if "model name" in line]
        model = names[0] if names else model
    jit = "compiled kernels" if HAVE_NUMBA and not os.environ.get("NUMBA_DISABLE_JIT") else "plain Python kernels"
    return f"{os.cpu_count()} cores ({model}), Python {platform.python_version()}, {jit}"


def show(figures: list[Figure]) -> None:
    """A line a figure; with --markdown a table, with --json the figures as one JSON list, for `run.py`."""
    if "--json" in sys.argv:
        print(json.dumps([asdict(f) for f in figures]))
    elif "--markdown" in sys.argv:
        print("\n".join(markdown(figures)))
    else:
        print_table(figures)


def extra(figure: Figure) -> str:
    """Runs, goal and note."""
    runs = f"median of {figure.runs}" if figure.runs > 1 else "one run"
    return ", ".join(filter(None, (runs, figure.goal, figure.note)))


def print_table(figures: list[Figure]) -> None:
    """The figures for people."""
    width = max((len(f.what) for f in figures), default=0)
    for f in figures:
        line = f"{f.what:{width}}  {f.cpu_s:9.3f} {f.unit}"
        line += f"  {f.ratio:8.2f} x {f.against}" if f.ratio == f.ratio else ""
        print(f"{line}  ({extra(f)})")


def amount(value: float, unit: str) -> str:
    """A value with three digits or more; small seconds in milliseconds or microseconds.

    >>> amount(0.0123, "CPU s"), amount(0.0000155, "CPU s"), amount(1093.2, "CPU ms"), amount(0.0, "%")
    ('12.3 CPU ms', '15.5 CPU us', '1,093 CPU ms', '0.000 %')
    """
    if unit in ("CPU s", "s") and 0 < value < 0.1:
        value, prefix = (value * 1e3, "m") if value >= 1e-3 else (value * 1e6, "u")
        return f"{value:.3g} {unit[:-1]}{prefix}s"
    return f"{value:,.0f} {unit}" if value >= 1000 else f"{value:.3f} {unit}"


def markdown(figures: list[Figure]) -> list[str]:
    """The figures as rows of a Markdown table, header first."""
    rows = ["| what | measured | ratio | against | how |", "|---|---:|---:|---|---|"]
    for f in figures:
        ratio = f"{f.ratio:,.2f} x" if f.ratio == f.ratio else ""
        cells = (f.what, amount(f.cpu_s, f.unit), ratio, f.against, extra(f))
        rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return rows
