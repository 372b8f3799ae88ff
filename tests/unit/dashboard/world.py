"""A service with its pages, over a real engine and store; its nodes are made by hand."""

from __future__ import annotations

import asyncio
import re
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from starlette.testclient import TestClient

from plait.dashboard.app import make
from plait.live.fencing import Fences
from plait.live.layout import Layout
from plait.live.protocol import wire
from plait.live.scheduler.decide import decision_s
from plait.live.scheduler.engine import Engine
from plait.live.scheduler.options import Options
from plait.live.service.http.app import Api, make_app
from plait.live.service.http.auth import Tokens
from plait.live.service.logs import Mailbox
from plait.live.service.worker import Worker
from plait.live.store import Store

HOSTILE = "<script>alert(1)</script>\"'&amp;{{7*7}}"
ROLES = {"root": "admin", "ann": "user", "ben": "user", "eve": "viewer"}


class Agent:
    """A node that runs what it gets, and whose processes end when a test says so."""

    def __init__(self, world: World, info: wire.NodeInfo) -> None:
        self.world, self.info, self.usage = world, info, wire.Usage()
        self.seen: dict[tuple[int, int, int], wire.Seen] = {}
        self.answer: wire.Assignment | None = None
        self.log = "step 1\nloss 0.5 <b>\n"

    def sync(self) -> None:
        answer, now, world = self.answer, list(self.seen.values()), self.world
        term, reached = (0, 0) if answer is None else (answer.term, answer.version)
        told = wire.Observed(self.info, f"{self.info.id}-a", term, reached, now, self.usage)
        world.do(lambda engine, now_s: engine.observe(told, now_s))
        self.answer = world.do(lambda engine, now_s: engine.assignment(self.info.id, told.agent))
        if world.loop is not None:
            world.loop.call_soon_threadsafe(self._answer)
        listed = {(run.job, run.epoch, run.rank): run for run in self.answer.attempts}
        self.seen = {k: one for k, one in self.seen.items() if k in listed or one.state != wire.ENDED}
        for key, run in listed.items():
            if key not in self.seen:
                self.seen[key] = wire.Seen(
                    *key, wire.RUNNING, pid=100 + run.job, saves="yes", **world.progress.get(run.job, {})
                )
            elif run.stop and self.seen[key].state != wire.ENDED:
                self.seen[key] = replace(self.seen[key], state=wire.ENDED, exit_code=wire.PREEMPTED)

    def _answer(self) -> None:
        """Parts of logs that somebody asked for."""
        for ask in self.world.mailbox.due(self.info.id):
            part = self.log[ask.offset : ask.offset + ask.limit]
            reply = wire.Reply(ask.id, part, ask.offset, ask.offset + len(part), len(self.log))
            self.world.mailbox.take(self.info.id, [reply])

    def end(self, job: int, exit_code: int = 0, **more: Any) -> None:
        for key, one in self.seen.items():
            if key[0] == job and one.state != wire.ENDED:
                self.seen[key] = replace(one, state=wire.ENDED, exit_code=exit_code, **more)


def _decides_soon(engine: Engine, now_s: float) -> bool:
    ctx = engine.context
    return (bool(ctx.state.pending) and now_s < ctx.timers.settle_s) or decision_s(ctx) <= now_s + 0.05


class World:
    """All of it: `http` asks the application without a network."""

    def __init__(self, home: Path, policy: str = "fifo-backfill", pages: Any = make) -> None:
        begin = time.monotonic()
        self.store = Store.open(home / "plait.db")
        options = Options(round_s=0.01, settle_s=0.2, suspect_s=3600.0, lost_s=3600.0, user_jobs=0, project_jobs=0)
        self.engine = Engine(self.store, Fences(Layout(home)), now_s=0.0, policy=policy, options=options)
        self.engine.ready = True
        self.clock = lambda: time.monotonic() - begin
        tokens, self.mailbox = Tokens(self.store, self.clock), Mailbox()
        self.tokens = {user: tokens.make(user, role)[0] for user, role in ROLES.items()}
        self.broken: list[BaseException] = []
        self.worker = Worker(self.engine, self.clock, lambda versions: None, self.broken.append)
        self.api = Api(self.store, self.worker, tokens, self.mailbox, begin)
        self.app = make_app(self.api, pages)
        self.loop: asyncio.AbstractEventLoop | None = None
        self.agents: dict[str, Agent] = {}
        self.progress: dict[int, dict[str, Any]] = {}
        self.worker.start()

    def do(self, work: Any) -> Any:
        return self.worker.submit(work).result(60.0)

    def add(
        self, name: str, gpus: int = 4, busy: Mapping[int, float] | None = None, kind: str = "a100"
    ) -> Agent:  # fmt: skip
        agent = self.agents[name] = Agent(self, wire.NodeInfo(name, gpus, kind, 80e9, 64.0, 512e9))
        if busy is not None:
            agent.usage = wire.Usage(0.4, 64e9, [wire.GpuUsage(busy.get(i, 0.9), 30e9) for i in range(gpus)])
        agent.sync()
        return agent

    def submit(self, owner: str = "ann", **job: Any) -> str:
        request = {"command": ["python", "train.py"], "workdir": "/home/ann", "project": "default", **job}
        number = self.do(lambda engine, now_s: engine.submit([request], owner=owner, now_s=now_s))[0]
        return f"j-{number}"

    def settle(self, rounds: int = 3) -> None:
        """Decisions are taken and carried out, however long a busy machine needs for them."""
        for _ in range(rounds):
            time.sleep(0.03)
            while self.do(_decides_soon):
                time.sleep(0.01)
            for agent in self.agents.values():
                agent.sync()

    def close(self) -> None:
        self.worker.stop()
        self.worker.join()
        self.api.what_if.close()
        self.store.close()
        assert not self.broken


class Browser:
    """A client with cookies that is logged in."""

    def __init__(self, http: TestClient, user: str, token: str) -> None:
        http.cookies.clear()
        self.http, self.user = http, user
        answer = http.post("/web/login", data={"token": token}, follow_redirects=False)
        assert answer.status_code == 303, answer.text
        self.cookie = "; ".join(f"{name}={value}" for name, value in answer.cookies.items())
        http.cookies.clear()

    def ask(self, method: str, path: str, headers: Mapping[str, str] | None = None, **more: Any) -> Any:
        given = {"Cookie": self.cookie, **(headers or {})}
        return self.http.request(method, path, headers=given, follow_redirects=False, **more)

    def get(self, path: str, status: int = 200, **headers: str) -> str:
        answer = self.ask("GET", path, headers)
        assert answer.status_code == status, answer.text
        return answer.text

    def post(self, path: str, status: int = 303, csrf: str | None = None, **form: str) -> Any:
        token = csrf if csrf is not None else self.csrf()
        answer = self.ask("POST", path, data={"csrf": token, **form})
        assert answer.status_code == status, answer.text
        return answer

    def csrf(self) -> str:
        found = re.search(r'name="csrf" value="([^"]+)"', self.get("/web/"))
        return found[1]


@contextmanager
def serving(world: World) -> Iterator[str]:
    """The application on a port of this machine; yields its address."""
    import socket

    import uvicorn

    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(
        world.app, log_config=None, access_log=False, lifespan="off", ws="none", timeout_graceful_shutdown=1
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listener])), daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    world.loop = server.servers[0].get_loop()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        world.api.closing.set()
        server.should_exit = True
        thread.join()
