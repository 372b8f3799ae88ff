"""How long a person waits for the command line: CPU seconds of fresh processes.

python benchmarks/bench_cli.py
"""

from __future__ import annotations

import resource
import statistics
import subprocess
import sys
from pathlib import Path

import common
from common import Figure

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


def main() -> None:
    """Measure and print."""
    runs = 9
    bare = child_cpu_s([sys.executable, "-c", "import typer"], runs)
    figures = []
    for words, goal in ((["--help"], "goal < 0.3 s"), (["simulate", "--help"], "goal < 0.3 s"), (["policies"], "")):
        seconds = child_cpu_s([PLAIT, *words], runs)
        against = "python -c 'import typer'"
        figures.append(Figure(f"plait {' '.join(words)}", seconds, runs, bare / seconds, against, goal))
    common.show(figures)


if __name__ == "__main__":
    main()
