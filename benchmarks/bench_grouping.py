"""Grouping: Muri's Algorithm 1, local search, exact groups over kinds of jobs, and what each gains.

    python benchmarks/bench_grouping.py [--quick]

Profiles are drawn around the eight models of Muri's traces: every job its own ("continuous"), or drawn from so many
kinds. One bucket, groups of up to four jobs, no guard. Gains are in total efficiency (the sum of gamma over as many
groups) over the named alternative: groups of four consecutive jobs, or Algorithm 1 as published.

The published data stage is storage and CPU together. Here all of it goes to the one the authors call the bottleneck,
or to storage; one row has 70 % there and the rest on the other, as `bench_matching.py` does. Both are assumptions: the
more stages mix, the less local search gains.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from typing import Any

import common
import numpy as np
from bench_matching import MODELS
from common import Figure

from plait.core.arrays import FloatArray
from plait.grouping.bucket import Candidates, GroupingCache
from plait.grouping.group import Grouping, group

FIRST_CALL = """
import time
import numpy as np
from plait.grouping.bucket import Candidates
from plait.grouping.group import group
stages = np.random.default_rng(0).random((200, 4))
begin = time.process_time()
group(Candidates(stages, stages.sum(axis=1), np.ones(200)))
print(time.process_time() - begin)
"""


def unmixed() -> FloatArray:
    """The models with storage and CPU put together where there is more of it."""
    data = MODELS[:, 0] + MODELS[:, 1]
    mostly_storage = MODELS[:, 0] > MODELS[:, 1]
    return np.column_stack([data * mostly_storage, data * ~mostly_storage, MODELS[:, 2:]])


def profiles(count: int, kinds: int = 0, seed: int = 1, mixed: bool = False) -> FloatArray:
    """Stage seconds of jobs: lognormal noise of sigma 0.35 on each stage of a model."""
    random = np.random.default_rng(seed)
    models = np.arange(kinds) % len(MODELS) if kinds else random.integers(0, len(MODELS), count)
    drawn = (MODELS if mixed else unmixed())[models] * random.lognormal(0.0, 0.35, (len(models), 4)) / 1000
    return drawn[random.integers(0, kinds, count)] if kinds else drawn


def made(stage_s: FloatArray, **options: Any) -> Grouping:
    """The grouping of one bucket; jobs are checked and packed each time, as a policy has to."""
    return group(Candidates(stage_s, stage_s.sum(axis=1), np.ones(len(stage_s))), guard=None, **options)


def measured(what: str, stage_s: FloatArray, goal: str, runs: int, against: str, **options: Any) -> Figure:
    """Seconds of one way to group, and what it gains over `against`, another way on the same jobs."""
    other = {"consecutive": {"method": "consecutive"}, "Algorithm 1": {"method": "blossom"}}.get(
        against, {"method": "greedy"}
    )
    best = made(stage_s, **options)
    known = made(stage_s, **other)
    assert len(best.groups) == len(known.groups), "totals compare only over as many groups"
    own = common.cpu_s(lambda: made(stage_s, **options), runs)
    theirs = common.cpu_s(lambda: made(stage_s, **other), min(runs, 3))
    gain = f"total efficiency {best.total:.2f}, {best.total / known.total - 1:+.1%} over {against}"
    proof = f", {best.gap:.3%} below the bound" if best.bound_kind == "exact" else ""
    return Figure(what, own, runs, theirs / own, against, goal, gain + proof)


def repeated(what: str, stage_s: FloatArray, goal: str) -> Figure:
    """A call as a simulator makes it thousands of times: no cache hits, compiled."""
    made(stage_s, method="blossom")
    calls = 200
    seconds = common.cpu_s(lambda: [made(stage_s, method="blossom") for _ in range(calls)], 3) / calls
    return Figure(what, seconds, 3, goal=goal, note=f"mean of {calls} calls: {seconds * 1e3:.2f} ms")


def first_call() -> Figure:
    """A process of its own without compiled code on disk; matching compiles too."""
    taken = []
    for _ in range(3):
        with tempfile.TemporaryDirectory() as folder:
            settings = {**os.environ, "NUMBA_CACHE_DIR": folder}
            command = [sys.executable, "-c", FIRST_CALL]
            taken.append(
                float(subprocess.run(command, env=settings, capture_output=True, text=True, check=True).stdout)
            )
    return Figure("first call, 200 jobs, nothing compiled", sorted(taken)[1], 3, goal="goal 10 s with matching")


def main() -> None:
    """All figures."""
    quick = "--quick" in sys.argv
    runs = 2 if quick else common.RUNS
    many = 3000 if quick else 10_000
    for stage_s in (profiles(200), profiles(300, 8)):
        for method in ("auto", "blossom", "greedy", "exact" if len(stage_s) == 300 else "consecutive"):
            made(stage_s, method=method, cache=GroupingCache())
    thousand = profiles(1000)
    figures = [
        repeated("Algorithm 1, 25 jobs of 8 kinds", profiles(25, 8), "goal 1 ms"),
        repeated("Algorithm 1, 130 jobs of 8 kinds", profiles(130, 8), "goal 5 ms"),
        measured("Algorithm 1, 1,000 jobs, continuous", thousand, "goal 0.4 s", runs, "consecutive", method="blossom"),
        measured("... with local search", thousand, "goal 1 s, +4 %", runs, "Algorithm 1"),
        measured("... 30 % of data time elsewhere", profiles(1000, mixed=True), "", runs, "Algorithm 1"),
        measured(
            "consecutive, with local search", thousand, "", runs, "consecutive", method="consecutive", improve=True
        ),
    ]
    for kinds in (8, 16, 32):
        stage_s = profiles(1000, kinds)
        figures.append(
            measured(f"exact, 1,000 jobs of {kinds} kinds", stage_s, "", runs, "Algorithm 1", method="exact")
        )
    for kinds in (8, 16, 32):
        stage_s = profiles(many, kinds)
        what = f"exact, {many:,} jobs of {kinds} kinds"
        figures.append(measured(what, stage_s, "goal 1 s", runs, "greedy rounds", method="exact"))
    if not quick:
        figures.append(first_call())
    common.show(figures)


if __name__ == "__main__":
    main()
