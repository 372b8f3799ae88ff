"""The pages of a large cluster: CPU seconds of the service for each, and bytes of the answer.

    python benchmarks/bench_dashboard.py [--quick]

10,000 jobs on 1,000 nodes of 8 GPUs; each page is asked for through the application, with no network between. First:
nothing is kept of earlier answers. Again: as somebody else who looks at the same time.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import common
from starlette.testclient import TestClient

from plait.dashboard.app import make
from plait.live.fencing import Fences
from plait.live.layout import Layout
from plait.live.protocol.wire import RUNNING, GpuUsage, NodeInfo, Observed, Seen, Usage
from plait.live.scheduler.engine import Engine
from plait.live.scheduler.options import Options
from plait.live.service.http.app import Api, make_app
from plait.live.service.http.auth import Tokens
from plait.live.service.logs import Mailbox
from plait.live.service.worker import Worker
from plait.live.store import Store

QUICK = "--quick" in sys.argv
JOBS, NODES = (1_000, 100) if QUICK else (10_000, 1_000)
PAGES = (
    "/", "/jobs", "/jobs?q=model7", "/jobs/j-1", "/jobs/j-1/change", "/queue", "/nodes", "/nodes/n1", "/events",
    "/costs", "/policy", "/submit", "/what-if", "/what-if?nodes=%2B2x8",
)  # fmt: skip


def filled(home: Path) -> tuple[Store, Engine, float]:
    """A store and an engine with jobs on all nodes, and a long queue."""
    store = Store.open(home / "plait.db")
    options = Options(round_s=1.0, settle_s=0.1, user_jobs=0, project_jobs=0)
    engine = Engine(store, Fences(Layout(home)), now_s=0.0, policy="fifo-backfill", options=options)
    usage = Usage(0.5, 1e11, [GpuUsage(0.9, 4e10)] * 8)
    with engine.batch():
        for i in range(NODES):
            engine.observe(Observed(NodeInfo(f"n{i}", 8, "a100"), f"n{i}-a", 0, 0, [], usage), 0.1)
    with engine.batch():
        jobs = [
            {"command": ["python", "train.py"], "name": f"job {i}", "model": f"model{i % 50}", "gpus": 1 + i % 4,
             "project": "default", "iterations": 10_000} for i in range(JOBS)
        ]  # fmt: skip
        for owner in range(20):
            engine.submit(jobs[owner::20], owner=f"user{owner}", now_s=0.2)
    for now_s in (1.3, 2.4):
        with engine.batch():
            engine.tick(now_s)
    with engine.batch():
        for i in range(NODES):
            runs = engine.assignment(f"n{i}", f"n{i}-a").attempts
            seen = [Seen(run.job, run.epoch, run.rank, RUNNING, pid=9, steps=50.0, step_s=0.4) for run in runs]
            engine.observe(Observed(NodeInfo(f"n{i}", 8, "a100"), f"n{i}-a", 0, 0, seen, usage), 2.5)
    return store, engine, 2.5


def main() -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory() as folder:
        store, engine, now_s = filled(Path(folder))
        begin = time.monotonic() - now_s
        worker = Worker(engine, lambda: now_s, lambda versions: None, lambda error: None)
        tokens = Tokens(store, lambda: now_s)
        secret, _ = tokens.make("root", "admin")
        worker.start()
        api = Api(store, worker, tokens, Mailbox(), begin)
        figures = []
        with TestClient(make_app(api, make)) as http:
            http.post("/web/login", data={"token": secret})
            http.get("/web/policy")  # templates and modules are loaded once
            for path in PAGES:
                for how in ("first", "again"):
                    before = time.process_time()
                    answer = http.get(f"/web{path}")
                    taken_s = time.process_time() - before
                    assert answer.status_code == 200, (path, answer.text[-500:])
                    what = f"{path} {how}, {len(answer.content) / 1000:,.0f} kB"
                    figures.append(common.Figure(what, taken_s, 1, goal="goal 1 s"))
        worker.stop()
        worker.join()
        store.close()
        common.show(figures)


if __name__ == "__main__":
    main()
