"""Do the intervals of `plait explain` hold? Live starts on a machine that is quiet and on one that is busy.

    python benchmarks/bench_forecast.py [--quick] [--busy-only | --quiet-only]

Jobs arrive at a cluster of one slot. Half of them are plain scripts without progress, half are attached and state their
number of iterations; all sleep, so that the benchmark itself is no load. For each job that waits 1.5 s after its
submission, the benchmark requests the estimate of `plait explain` once and compares its interval with the actual start.
50 starts take about seven minutes. `busy`: as many processes as there are cores compute all the time.
"""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import common

from plait.core.errors import InputError
from plait.live.client.client import Client
from plait.outlook.queue import foresee
from plait.testing.cluster import Cluster

STARTS = 12 if "--quick" in sys.argv else 50
#: Seconds of a job: median and standard deviation of the logarithm; between two arrivals; after which one is asked.
MEDIAN_S, SIGMA, GAP_S, ASK_S = 3.5, 0.5, (1.0, 8.0), 1.5
PLAIN = "import sys, time; time.sleep(float(sys.argv[1]))"
ATTACHED = """
import sys, time
from plait.training import attach
state = {"done": 0}
for step in attach(state=state).steps(int(sys.argv[1])):
    time.sleep(0.1)
    state["done"] += 1
"""
BURN = "while True: sum(range(10000))"


@dataclass
class Asked:
    """One job that was asked about: when, what was said before and after calibration, when it started."""

    at_s: float
    raw: tuple[float, float]
    honest: tuple[float, float]
    came_s: float | None = None


@dataclass
class Coverage:
    """All forecasts of one run."""

    asked: list[Asked] = field(default_factory=list)

    def share(self, which: str) -> float:
        """Of the intervals that held."""
        known = [a for a in self.asked if a.came_s is not None]
        held = [low <= (a.came_s or 0.0) <= high for a in known for low, high in [getattr(a, which)]]
        return sum(held) / max(len(held), 1)


def run(busy: bool, seed: int = 1) -> Coverage:
    """Submit until so many starts were foreseen, with or without burners beside."""
    burners = [subprocess.Popen([sys.executable, "-c", BURN]) for _ in range((os.cpu_count() or 1) if busy else 0)]
    try:
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "attached.py").write_text(ATTACHED)
            with Cluster(Path(folder) / "home", nodes=1, slots=1) as cluster, cluster.client() as service:
                return _measure(service, folder, random.Random(seed))
    finally:
        for burner in burners:
            burner.kill()
            burner.wait()


def _measure(service: Client, folder: str, rng: random.Random) -> Coverage:
    found, open_ones, ask = Coverage(), dict[str, Asked](), dict[str, float]()
    due = time.monotonic()
    while len(found.asked) < STARTS or open_ones:
        now = time.monotonic()
        if now >= due and len(found.asked) < STARTS:
            (made,) = service.submit([_job(rng, folder)])
            ask[made.id] = now + ASK_S
            due = now + rng.uniform(*GAP_S)
        for name in [name for name, at in ask.items() if now >= at]:
            del ask[name]
            if (asked := _ask(service, name)) is not None:
                open_ones[name] = asked
                found.asked.append(asked)
        for name in list(open_ones):
            row = service.job(name)
            if row.attempts:
                asked = open_ones.pop(name)
                asked.came_s = (row.attempts[0].started_s or 0.0) - asked.at_s
        time.sleep(0.2)
    return found


def _job(rng: random.Random, folder: str) -> dict[str, Any]:
    seconds = rng.lognormvariate(0.0, SIGMA) * MEDIAN_S
    if rng.random() < 0.5:
        return {"command": [sys.executable, "-c", PLAIN, f"{seconds:.2f}"], "workdir": folder, "model": "plain"}
    steps = max(2, round(seconds / 0.1))
    command = [sys.executable, "attached.py", str(steps)]
    return {"command": command, "workdir": folder, "model": "attached", "iterations": steps}


def _ask(service: Client, name: str) -> Asked | None:
    """What `plait explain` says of a job that waits, and tells the service."""
    number = int(name.removeprefix("j-"))
    if service.job(name).state != "waiting":
        return None
    state = service.state()
    foreseen = foresee(state)
    eta = None if foreseen is None else foreseen.raw.etas.get(number)
    if foreseen is None or eta is None or eta.start is None:
        return None
    with contextlib.suppress(InputError):  # it has started, and ended, meanwhile
        service.tell_forecast(name, eta.start.said_json(), eta.end.said_json())
    honest = foreseen.honest.etas[number].start
    assert honest is not None
    return Asked(float(state["asked_s"]), (eta.start.low_s, eta.start.high_s), (honest.low_s, honest.high_s))


def main() -> None:
    """Both machines, unless one was chosen."""
    print(f"{common.machine()}; load of the machine {os.getloadavg()[0]:.1f} at the beginning")
    for name, busy in (("quiet", False), ("busy", True)):
        if f"--{'quiet' if busy else 'busy'}-only" in sys.argv:
            continue
        found = run(busy)
        later = Coverage(found.asked[len(found.asked) // 5 :])
        print(
            f"{name}: {len(found.asked)} starts; 80 % intervals held {found.share('honest'):.0%} of the time "
            f"(without the first fifth {later.share('honest'):.0%}), before calibration {found.share('raw'):.0%}; "
            f"load {os.getloadavg()[0]:.1f} at the end",
            flush=True,
        )


if __name__ == "__main__":
    main()
