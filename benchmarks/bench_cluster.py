"""The live scheduler with many nodes: commands, heartbeats, memory of agents, rounds of a large cluster.

    python benchmarks/bench_cluster.py [--quick]

Nodes are simulated at the level of the agents' protocol (`plait.testing`); the service is a real process, and CPU
seconds are those of this process, without agents.
"""

from __future__ import annotations

import asyncio
import math
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import common
from common import Figure

from plait.live.backends.local import LocalBackend
from plait.live.client.client import Client
from plait.live.layout import Layout, make_private
from plait.live.protocol.wire import NodeInfo, Run
from plait.live.scheduler.options import Options
from plait.live.service.http.auth import hashed, new_secret
from plait.live.store import Store, Token
from plait.testing.fleet import Fleet, HttpLink, MemoryDisk, Program, SimulatedAgent, live

QUICK = "--quick" in sys.argv
STAGES = ({"storage": 0.2, "cpu": 0.1, "gpu": 0.2}, {"cpu": 0.3, "gpu": 0.1}, {"gpu": 0.4, "network": 0.1})
SIZES = (1, 1, 2, 2, 4, 8)
EMPTY = """
import asyncio, json, sys
import uvicorn
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route
async def sync(request):
    told = json.loads(await request.body())
    await asyncio.sleep(told["wait_s"])
    return JSONResponse({"term": 1, "version": 1})
app = Starlette(routes=[Route("/agent/v1/sync", sync, methods=["POST"])])
uvicorn.run(app, port=int(sys.argv[1]), log_config=None, access_log=False, timeout_keep_alive=75)
"""


def busy_s(pid: int) -> float:
    """CPU seconds of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def enrolled(home: Path, nodes: int) -> dict[str, str]:
    """Secrets of so many nodes, known to the store that a service will open."""
    secrets = {f"n{i}": new_secret() for i in range(nodes)}
    store = Store.open(home / "plait.db")
    for i, (name, secret) in enumerate(secrets.items()):
        store.add_token(Token(hashed(secret), f"t-{i}", name, "agent", "-", 0.0, None, name))
    store.close()
    return secrets


class Service:
    """A service process of its own."""

    def __init__(self, home: Path, *words: str) -> None:
        """Started, and it answers."""
        command = [sys.executable, "-m", "plait.live.service", "--home", str(home), "--user-jobs", "0", *words]
        with open(home / "out.log", "wb") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)
        while not (home / "service.json").exists():
            assert self.process.poll() is None, (home / "out.log").read_text()
            time.sleep(0.01)
        self.client = Client.at(str(home))

    def close(self) -> None:
        """Ended."""
        self.client.close()
        self.process.terminate()
        self.process.wait()


# -- heartbeats ---------------------------------------------------------------------------------------------------


async def _beats(url: str, secrets: dict[str, str], pid: int, seconds: float) -> tuple[float, int]:
    """CPU seconds of a process and heartbeats answered in so many seconds, with one connection a node."""
    begun, count = False, 0
    until = math.inf

    async def beat(name: str, secret: str) -> None:
        nonlocal count
        agent = SimulatedAgent(NodeInfo(name, 8), lambda run: Program())
        async with HttpLink(url, secret) as link:
            while time.monotonic() < until:
                told = agent.observe(time.monotonic(), 1.0)
                agent.obey(await link.ask(told), told, time.monotonic())
                count += begun

    tasks = [asyncio.create_task(beat(name, secret)) for name, secret in secrets.items()]
    await asyncio.sleep(6.0)
    begun, before = True, busy_s(pid)
    await asyncio.sleep(seconds)
    spent = busy_s(pid) - before
    begun = False
    until = 0.0
    await asyncio.gather(*tasks)
    return spent, count


def _wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    """Wait until the process listens on the port."""
    while True:
        assert process.poll() is None, "the endpoint ended"
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)


def heartbeats() -> list[Figure]:
    """What a thousand quiet nodes cost the service, beside an endpoint that only parses what they say."""
    nodes, seconds = (100, 5.0) if QUICK else (1000, 15.0)
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        secrets = enrolled(home, nodes)
        service = Service(home, "--policy", "muri-l", "--lost", "60")
        try:
            ours, beats = asyncio.run(_beats(service.client.url, secrets, service.process.pid, seconds))
        finally:
            service.close()
    port = 18_765
    empty = subprocess.Popen([sys.executable, "-c", EMPTY, str(port)])
    try:
        _wait_for(port, empty)
        theirs, empties = asyncio.run(_beats(f"http://127.0.0.1:{port}", secrets, empty.pid, seconds))
    finally:
        empty.terminate()
        empty.wait()
    each, bare = 1000 * ours / beats, 1000 * theirs / empties
    note = f"{beats:,} in {seconds:.0f} s from {nodes:,} nodes; the endpoint {bare:.2f} CPU s"
    return [Figure("a thousand heartbeats", each, 1, bare / each, "a bare Starlette endpoint", note=note)]


# -- commands -----------------------------------------------------------------------------------------------------


def at_once(run: Run) -> Program:
    """A process that ends as soon as it has begun."""
    return Program(steps=0)


def requests(count: int) -> list[dict[str, object]]:
    """Jobs of one GPU."""
    return [{"command": ["true"], "gpus": 1} for _ in range(count)]


async def _carry_out(service: Service, secrets: dict[str, str], count: int) -> float:
    """Wall seconds until all jobs were commanded to start, ended, and are noted as finished."""
    disk, over = MemoryDisk(), False
    agents = [SimulatedAgent(NodeInfo(name, 8), at_once, disk) for name in secrets]
    tasks = [
        asyncio.create_task(live(agent, HttpLink(service.client.url, secrets[agent.node.id]), lambda: over))
        for agent in agents
    ]
    while (await asyncio.to_thread(service.client.status)).nodes["ready"] < len(agents):
        await asyncio.sleep(0.05)
    begin = time.perf_counter()
    await asyncio.to_thread(service.client.submit, requests(count))
    while (await asyncio.to_thread(service.client.status)).jobs.get("finished", 0) < count:
        await asyncio.sleep(0.1)
    taken = time.perf_counter() - begin
    over = True
    await asyncio.gather(*tasks)
    return taken


def in_process(home: Path, nodes: int, count: int) -> float:
    """The same without a network, by the same clock."""
    disk = MemoryDisk()
    agents = [SimulatedAgent(NodeInfo(f"n{i}", 8), at_once, disk) for i in range(nodes)]
    options = Options(round_s=0.1, user_jobs=0, project_jobs=0)
    fleet = Fleet(home, agents, policy="fifo-backfill", options=options, disk=disk)
    origin = time.perf_counter()
    fleet.sync()
    begin = time.perf_counter()
    fleet.engine.submit(requests(count), owner="ann", now_s=begin - origin)
    while fleet.engine.state.jobs:
        fleet.now_s = time.perf_counter() - origin
        fleet.sync()
    taken = time.perf_counter() - begin
    fleet.close()
    return taken


def commands() -> list[Figure]:
    """Launches told to a hundred executors, carried out and acknowledged."""
    nodes, count = (20, 400) if QUICK else (100, 4000)
    runs, spent, local = 3, [], []
    http = []
    for _ in range(runs):
        with tempfile.TemporaryDirectory() as folder:
            home = Path(folder)
            secrets = enrolled(home, nodes)
            service = Service(home, "--policy", "fifo-backfill", "--round", "0.1", "--project-jobs", "0")
            try:
                time.sleep(2.0)  # its kernels are compiled
                before = busy_s(service.process.pid)
                http.append(asyncio.run(_carry_out(service, secrets, count)))
                spent.append(busy_s(service.process.pid) - before)
            finally:
                service.close()
        with tempfile.TemporaryDirectory() as folder:
            local.append(in_process(Path(folder), nodes, count))
    ours, theirs, cpu = (statistics.median(x) for x in (http, local, spent))
    note = f"{count / ours:.0f} launches with their ends a second, {1000 * cpu / count:.2f} CPU ms of the service each"
    what = f"{count:,} commands to {nodes} executors over HTTP"
    return [Figure(what, ours, runs, theirs / ours, "the same without HTTP", note=note, unit="s")]


# -- memory -------------------------------------------------------------------------------------------------------


def pss_mb(pid: int) -> float:
    """Megabytes of a process, what it shares divided among those that share it."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) * 1024 / 1e6


def memory() -> list[Figure]:
    """A real agent process beside a Python that does nothing."""
    nodes = 4
    with tempfile.TemporaryDirectory() as folder:
        layout = Layout.at(folder)
        make_private(layout.home)
        backend = LocalBackend(layout, nodes, 8, False)
        backend.start()
        bare = [subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) for _ in range(nodes)]
        try:
            while not all(place.pid for place in backend.list_nodes()):
                time.sleep(0.1)
            time.sleep(1.0)
            ours = statistics.median(pss_mb(place.pid) for place in backend.list_nodes() if place.pid)
            theirs = statistics.median(pss_mb(process.pid) for process in bare)
        finally:
            for process in bare:
                process.kill()
                process.wait()
            backend.stop(jobs=True)
    return [Figure("an agent", ours, nodes, theirs / ours, "python that sleeps", goal="goal < 60 MB", unit="MB")]


# -- rounds -------------------------------------------------------------------------------------------------------


def large(policy: str, nodes: int, jobs: int, rounds: int) -> tuple[list[float], float, int]:
    """CPU seconds of each round of a busy cluster and of a second of heartbeats between, and how many jobs ran."""
    disk, round_s = MemoryDisk(), 30.0

    def program(run: Run) -> Program:
        return Program(steps=200 + 37 * (run.job % 97), pace_s=0.5)

    with tempfile.TemporaryDirectory() as folder:
        agents = [SimulatedAgent(NodeInfo(f"n{i}", 8), program, disk) for i in range(nodes)]
        options = Options(round_s=round_s, suspect_s=1e6, lost_s=1e7, user_jobs=0, project_jobs=0)
        fleet = Fleet(Path(folder), agents, policy=policy, options=options, disk=disk)
        fleet.sync()
        wanted = [
            {
                "command": ["python", "train.py"], "gpus": SIZES[i % len(SIZES)], "profile": STAGES[i % len(STAGES)],
                "iterations": 200 + 37 * (i % 97),
            }
            for i in range(jobs + 100 * rounds)
        ]  # fmt: skip
        fleet.engine.submit(wanted[:jobs], owner="ann", now_s=0.5)
        taken, quiet, running = [], [], 0
        for i in range(rounds):
            before = fleet.engine.state.decision_seq
            fleet.now_s = (i + 1) * round_s
            begin = time.process_time()
            fleet.engine.tick(fleet.now_s)
            taken.append(time.process_time() - begin)
            assert fleet.engine.state.decision_seq != before
            for _ in range(2):  # commands are carried out: stops, then starts
                fleet.now_s += 1.0
                fleet.sync()
            running = max(running, len(fleet.engine.state.live))
            told = [agent.observe(fleet.now_s) for agent in agents]
            begin = time.process_time()
            with fleet.engine.batch():
                for words in told:
                    fleet.engine.observe(words, fleet.now_s)
            quiet.append(time.process_time() - begin)
            first = jobs + 100 * i
            fleet.engine.submit(wanted[first : first + 100], owner="ann", now_s=fleet.now_s)
        fleet.close()
    return taken[1:], statistics.median(quiet), running


def cluster_rounds() -> list[Figure]:
    """Ten thousand GPUs, five thousand jobs."""
    nodes, jobs, rounds = (125, 500, 6) if QUICK else (1250, 5000, 7)
    large("fifo-backfill", 4, 20, 3)
    large("muri-l", 4, 20, 3)
    plain, _, _ = large("fifo-backfill", nodes, jobs, rounds)
    figures = []
    for policy in ("muri-l", "2d-las"):
        taken, quiet, running = large(policy, nodes, jobs, rounds)
        middle = statistics.median(taken)
        note = f"longest {max(taken):.2f} s, {running:,} jobs running; a report of all nodes {quiet:.2f} s"
        what = f"a round of {8 * nodes:,} GPUs and {jobs:,} jobs, {policy}"
        ratio = statistics.median(plain) / middle
        figures.append(Figure(what, middle, len(taken), ratio, "fifo-backfill", "goal <= 2 s", note))
    return figures


def main() -> None:
    """Measure and print."""
    parts: dict[str, Callable[[], list[Figure]]] = {
        "rounds": cluster_rounds, "heartbeats": heartbeats, "commands": commands, "memory": memory,
    }  # fmt: skip
    chosen = [name for name in parts if f"--{name}" in sys.argv] or list(parts)
    figures: list[Figure] = []
    for name in chosen:
        figures += parts[name]()
    common.show(figures)


if __name__ == "__main__":
    main()
