"""The live service: submissions, listing, a round over a long queue, and a restart.

    python benchmarks/bench_service.py [--quick]

Submissions go to a real service process over HTTP, one after the other, from one client; all else calls the engine and
the store directly. Figures are wall seconds, for which users wait.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import common

from plait.live.client.client import Client
from plait.live.fencing import Fences
from plait.live.layout import Layout
from plait.live.protocol.wire import NodeInfo, Observed
from plait.live.scheduler.engine import Engine
from plait.live.scheduler.options import Options
from plait.live.store import Store
from plait.outlook.log_replay import replay, stored_rows

Figure = partial(common.Figure, unit="s")
QUICK = "--quick" in sys.argv
STAGES = ({"storage": 0.2, "cpu": 0.1, "gpu": 0.2}, {"cpu": 0.3, "gpu": 0.1}, {"gpu": 0.4, "network": 0.1})


def median_s(work: Callable[[], object], runs: int = common.RUNS) -> float:
    """Median wall seconds."""
    taken = []
    for _ in range(runs):
        begin = time.perf_counter()
        work()
        taken.append(time.perf_counter() - begin)
    return statistics.median(taken)


def job(i: int) -> dict[str, object]:
    """One of many jobs."""
    return {"command": ["true", str(i)], "gpus": 1 + i % 2, "iterations": 1000, "profile": STAGES[i % 3]}


def over_http(home: Path) -> list[common.Figure]:
    """Start, submissions and listing through a service of its own."""
    count, listed = (300, 2_000) if QUICK else (1_500, 10_000)
    begin = time.perf_counter()
    service = subprocess.Popen(
        [sys.executable, "-m", "plait.live.service", "--home", str(home), "--policy", "muri-l", "--user-jobs", "0"]
    )
    while not (home / "service.json").exists():
        time.sleep(0.01)
    start_s = time.perf_counter() - begin
    try:
        with Client.at(str(home)) as client:
            client.submit([job(0)])
            begin = time.perf_counter()
            for i in range(count):
                client.submit([job(i)])
            each_s = (time.perf_counter() - begin) / count
            for first in range(count, listed, 1_000):
                client.submit([job(i) for i in range(first, min(first + 1_000, listed))])
            list_s = median_s(lambda: client.jobs(limit=listed))
            page_s = median_s(lambda: client.jobs(limit=100))
            status_s = median_s(client.status)
    finally:
        service.terminate()
        service.wait()
    return [
        Figure("service answers after its start", start_s, 1, goal="goal 1.5 s"),
        Figure("one submission over HTTP", each_s, count, goal="goal 3.3 ms", note=f"{1 / each_s:.0f} a second"),
        Figure(f"listing {listed:,} jobs over HTTP", list_s, common.RUNS, goal="goal 0.2 s"),
        Figure("listing the newest 100 of them", page_s, common.RUNS, goal="goal 20 ms"),
        Figure("status", status_s, common.RUNS, goal="goal 20 ms"),
    ]


def rounds(home: Path, count: int, gpus: int, goal: str) -> list[common.Figure]:
    """A decision over `count` jobs on `gpus` GPUs, with the commit; what an agent's report costs meanwhile."""
    store = Store.open(home / "plait.db")
    engine = Engine(store, Fences(Layout(home)), now_s=0.0, policy="muri-l:quantum_s=1", options=Options(round_s=0.5))
    told = Observed(NodeInfo("n0", gpus), "a")
    engine.observe(told, 0.1)
    for first in range(0, count, 1_000):
        engine.submit([job(first + i) for i in range(1_000)], owner="ann", now_s=0.2)
    now = 1.0
    engine.tick(now)
    taken, quiet = [], []
    for i in range(common.RUNS):
        now += 2.0
        running = [n for n in sorted(engine.state.live) if (a := engine.state.jobs[n].live) and a.stop is None]
        for number in running[::5]:  # others take their places, so that no grouping of the last round will do
            engine.cancel(number, now - 1.5)
        # Too early to decide: the round that is measured will.
        engine.submit([job(i)], owner="ann", now_s=engine.state.decision_s + 0.01)
        before = engine.state.decision_seq
        begin = time.perf_counter()
        engine.tick(now)
        taken.append(time.perf_counter() - begin)
        assert engine.state.decision_seq != before
        begin = time.perf_counter()
        engine.observe(told, now + 0.01)
        quiet.append(time.perf_counter() - begin)
    waiting = engine.status(now).jobs["waiting"]
    store.close()
    note = f"longest {max(taken):.2f} s"
    label = f"a round of muri-l, {gpus} GPUs, {waiting:,} waiting jobs"
    return [
        Figure(label, statistics.median(taken), common.RUNS, goal=goal, note=note),
        Figure(f"an agent's report with nothing new, {count:,} jobs", statistics.median(quiet), common.RUNS),
    ]


def coming_back(home: Path) -> list[common.Figure]:
    """A long log: what a restart takes, and what deriving all of it again does."""
    count = 10_000 if QUICK else 100_000
    store = Store.open(home / "plait.db")
    engine = Engine(store, Fences(Layout(home)), now_s=0.0, policy="fifo-backfill", options=Options(round_s=5.0))
    engine.observe(Observed(NodeInfo("n0", 8), "a"), 0.1)
    now, number = 1.0, 0
    while engine.state.seq < count:
        with engine.batch():
            for _ in range(100):
                engine.submit([job(number)], owner="ann", now_s=now)
                engine.cancel(number, now + 0.01)
                number, now = number + 1, now + 0.1
    store.close()

    def restart() -> None:
        again = Store.open(home / "plait.db")
        Engine(again, Fences(Layout(home)), now_s=0.0)
        again.close()

    restart_s = median_s(restart)
    store = Store.open(home / "plait.db", exclusive=False)
    begin = time.perf_counter()
    verified = replay(stored_rows(store))
    verify_s = time.perf_counter() - begin
    assert verified.difference is None
    store.close()
    return [
        Figure(f"restart, log of {verified.entries:,} entries", restart_s, common.RUNS, goal="goal 2 s"),
        Figure("deriving all of it again (replay --verify)", verify_s, 1, note=f"{number:,} jobs"),
    ]


def main() -> None:
    """Measure and print."""
    figures: list[common.Figure] = []
    short = partial(rounds, count=1_000, gpus=64, goal="goal 0.3 s")
    long = partial(rounds, count=1_000 if QUICK else 8_000, gpus=384, goal="goal 0.2 s")
    for part in (over_http, short, long, coming_back):
        with tempfile.TemporaryDirectory() as folder:
            figures += part(Path(folder))
    common.show(figures)


if __name__ == "__main__":
    main()
