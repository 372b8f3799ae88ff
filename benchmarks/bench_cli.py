"""CPU seconds of commands in fresh processes.

    python benchmarks/bench_cli.py [--quick]

`ls`, `explain` and `submit` ask a service with 10,000 queued jobs, whose own CPU seconds are not counted.
"""

from __future__ import annotations

import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import common
from common import Figure

from plait.live.client.client import Client

PLAIT = str(Path(sys.executable).parent / "plait")


def child_cpu_s(command: list[str], runs: int) -> float:
    """Median CPU seconds, user and system, of a command in a process of its own."""
    taken = []
    for _ in range(runs + 1):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(command, check=True, capture_output=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        taken.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return statistics.median(taken[1:])  # the first one warms the disk


def with_a_queue(home: Path, runs: int) -> list[Figure]:
    """Listing and explaining jobs of a long queue, and submitting to it."""
    count = 1_001 if "--quick" in sys.argv else 10_000
    service = subprocess.Popen(
        [sys.executable, "-m", "plait.live.service", "--home", str(home), "--policy", "fifo", "--user-jobs", "0"]
    )
    try:
        while not (home / "service.json").exists():
            time.sleep(0.05)
        with Client.at(str(home)) as client:
            for first in range(0, count, 1_000):
                jobs = [{"command": ["true", str(i)]} for i in range(first, min(first + 1_000, count))]
                client.submit(jobs)
        figures = []
        for words, goal in (
            (["ls"], "goal 0.2 s"),
            (["explain", f"j-{count - 1}"], "goal 0.35 s"),
            (["submit", "--python", sys.executable, "true"], "goal 0.2 s"),  # asks no shim which Python it starts
        ):
            seconds = child_cpu_s([PLAIT, words[0], "--home", str(home), *words[1:]], runs)
            figures.append(Figure(f"plait {words[0]}, {count:,} queued jobs", seconds, runs, goal=goal))
        return figures
    finally:
        service.terminate()
        service.wait()


def simulated(trace: Path, runs: int) -> Figure:
    """A whole simulation of 2,000 jobs, from the file to the table."""
    shape = ["--preset", "philly", "--jobs", "2000", "--gpus", "64", "--seed", "1", "--assign-models", "uniform"]
    subprocess.run([PLAIT, "trace", "generate", str(trace), *shape], check=True, capture_output=True)
    seconds = child_cpu_s([PLAIT, "simulate", str(trace), "--cluster", "8x8", "-p", "srsf"], runs)
    return Figure("plait simulate -p srsf, 2,000 jobs", seconds, runs, goal="goal 1.2 s")


def compiled(trace: Path, policies: tuple[str, ...] = ("srsf", "muri-s", "gandiva")) -> list[Figure]:
    """A simulation of 300 jobs that finds no compiled kernels, as after an installation; one policy a family."""
    shape = ["--preset", "philly", "--jobs", "300", "--gpus", "64", "--seed", "1", "--assign-models", "uniform"]
    subprocess.run([PLAIT, "trace", "generate", str(trace), *shape], check=True, capture_output=True)
    figures = []
    for policy in policies:
        with tempfile.TemporaryDirectory() as cache:
            command = f"env NUMBA_CACHE_DIR={cache} {PLAIT} simulate {trace} --cluster 8x8 -p {policy}".split()
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            again = child_cpu_s(command, 1)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
        first = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime - again
        label = f"the first plait simulate -p {policy} after an installation, 300 jobs"
        figures.append(Figure(label, first, 1, again / first, "the second", "goal +6 s", f"+{first - again:.1f} s"))
    return figures


def main() -> None:
    """Measure and print."""
    runs = 9
    bare = child_cpu_s([sys.executable, "-c", "import typer"], runs)
    figures = []
    for words, goal in ((["--help"], "goal < 0.3 s"), (["simulate", "--help"], "goal < 0.3 s"), (["policies"], "")):
        seconds = child_cpu_s([PLAIT, *words], runs)
        against = "python -c 'import typer'"
        figures.append(Figure(f"plait {' '.join(words)}", seconds, runs, bare / seconds, against, goal))
    with tempfile.TemporaryDirectory() as home:
        figures.append(simulated(Path(home) / "jobs.csv", runs))
        figures += compiled(Path(home) / "few.csv")
        figures += with_a_queue(Path(home), runs)
    common.show(figures)


if __name__ == "__main__":
    main()
