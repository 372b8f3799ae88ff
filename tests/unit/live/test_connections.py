"""Connections: everybody gets in, few seconds for strangers, room kept for agents and for those who have a token."""

from __future__ import annotations

import asyncio
import gc
import http.client
import json
import os
import random
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from plait.live.client.client import Client
from plait.live.fencing import Fences
from plait.live.layout import Layout, make_private, write_secret
from plait.live.protocol.wire import NodeInfo, Observed
from plait.live.scheduler.engine import Engine
from plait.live.service.http import limits
from plait.live.service.http.api import Api
from plait.live.service.http.app import make_agents_app, make_app
from plait.live.service.http.auth import Tokens
from plait.live.service.http.connections import (
    AGENT,
    HEAD_S,
    IDLE_S,
    KNOWN,
    OWN,
    REQUEST_S,
    REQUESTS,
    STRANGER,
    STREAMS,
    Acceptor,
    Connection,
    Connections,
    Surplus,
)
from plait.live.service.http.gateway import Gateway
from plait.live.service.http.limits import BodyLimit
from plait.live.service.logs import Mailbox
from plait.live.service.serving import AgentServer, Server, load_pages
from plait.live.service.worker import Worker
from plait.live.store import Store
from plait.testing.fleet import HttpLink


class World:
    """Connections under a clock that tests move."""

    def __init__(self, most: int) -> None:
        self.now = 0.0
        self.all = Connections(most, lambda: self.now)
        self.closed: list[Connection] = []

    def come(self, address: str = "a", rank: int = STRANGER, holder: str = "") -> Connection:
        self.now += 0.001
        one = self.all.admit(address)
        one.close = lambda: self.closed.append(one)
        self.all.know(one, rank, holder or f"token {len(self.all)}-{self.now}")
        return one


def test_strangers_are_closed_oldest_first_and_never_for_them_an_agent_or_a_known_one() -> None:
    w = World(80)
    agents = [w.come(rank=AGENT) for _ in range(30)]
    known = [w.come(rank=KNOWN) for _ in range(29)]
    strangers = [w.come(f"address {i}") for i in range(100)]
    assert w.closed == strangers[:80]  # a quarter of the room is theirs
    assert len(w.all) == 79
    assert not set(w.closed) & {*agents, *known}


def test_strangers_of_one_address_leave_room_for_those_of_others() -> None:
    w = World(80)
    other = w.come("b")
    many = [w.come("a") for _ in range(50)]
    assert w.closed == many[:40]
    assert other not in w.closed


def test_where_all_room_is_taken_agents_stay() -> None:
    w = World(40)
    agents = [w.come(rank=AGENT) for _ in range(20)]
    known = [w.come(f"{i}", rank=KNOWN) for i in range(20)]
    for one in known[1:]:
        w.all._touch(one, 1)
    w.come("new", rank=AGENT)
    assert w.closed == [known[0]]  # the only one that is idle and no agent
    w.come("newer", rank=AGENT)
    assert w.closed[1] in agents  # the rest of the others is at work
    w.all._touch(known[5], -1)
    w.come("newest", rank=AGENT)
    assert w.closed[2] is known[5]


def test_who_says_nothing_is_closed_in_time() -> None:
    w = World(100)
    silent, asks, known, works = w.come(), w.come(), w.come(rank=KNOWN), w.come(rank=AGENT)
    w.all._touch(asks, 1)
    w.all._touch(works, 1)
    w.now = HEAD_S + 1
    w.all.sweep()
    assert w.closed == [silent]
    w.now = REQUEST_S + 1
    w.all.sweep()
    assert w.closed == [silent, asks]
    w.now = IDLE_S + 1
    w.all.sweep()
    assert w.closed == [silent, asks, known]
    assert len(w.all) == 1


def test_counts_hold_whatever_happens() -> None:
    draw, w = random.Random(1), World(40)
    there: list[Connection] = []
    for _ in range(2000):
        act = draw.randrange(6)
        if act < 2 or not there:
            there.append(w.come(draw.choice("abc"), draw.choice([STRANGER, STRANGER, KNOWN, AGENT])))
        elif act == 2:
            w.all.gone(there.pop(draw.randrange(len(there))))
        elif act == 3:
            w.all._touch(draw.choice(there), 1)
        elif act == 4:
            one = draw.choice(there)
            if one.busy:
                w.all._touch(one, -1)
        else:
            w.now += draw.choice([0.1, 20.0])
            w.all.sweep()
        there = [one for one in there if one not in w.closed]
        assert len(w.all) == len(there) <= 41
        strangers = [one for one in there if one.rank == STRANGER]
        assert len(strangers) <= w.all.strangers
        assert sorted(map(id, strangers)) == sorted(map(id, w.all._strange))
        assert {a: len(found) for a, found in w.all._of.items()} == {
            a: n for a in "abc" if (n := sum(one.address == a for one in strangers))
        }


def test_a_body_that_does_not_come_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "BODY_S", 0.05)
    count = SimpleNamespace(labels=lambda *words: SimpleNamespace(inc=lambda: None), observe=lambda s: None)
    sent: list[Any] = []
    parts = [{"type": "http.request", "body": b"{", "more_body": True}]

    async def app(scope: Any, receive: Any, send: Any) -> None:
        while (await receive()).get("more_body"):
            pass
        raise AssertionError("it came to an end")

    async def receive() -> Any:
        if parts:
            return parts.pop()
        await asyncio.sleep(60)
        return None

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": "/v1/jobs", "headers": []}
    limited = BodyLimit(
        app, cast("Any", SimpleNamespace(requests=count, seconds=count, worker=SimpleNamespace(trouble="")))
    )
    asyncio.run(limited(cast("Any", scope), receive, send))
    assert sent[0]["status"] == 408
    assert (b"connection", b"close") in sent[0]["headers"]


@pytest.mark.parametrize("descriptors", [128, 200, 256, 576, 1024, 4096])
def test_bursts_of_connections_leave_no_descriptor_open(descriptors: int) -> None:
    async def bursts() -> list[int]:
        listener = socket.create_server(("127.0.0.1", 0))
        connections = Connections(max(descriptors - OWN, 8))
        acceptor = Acceptor(listener, connections, lambda one: counting(one, connections), None)
        acceptor.open()
        counts = [len(os.listdir("/proc/self/fd"))]
        for _ in range(3):
            with ExitStack() as clients:
                for _ in range(300):
                    clients.enter_context(socket.create_connection(listener.getsockname()))
                for _ in range(20):
                    await asyncio.sleep(0)
            while len(connections):
                await asyncio.sleep(0.001)
            for _ in range(5):
                await asyncio.sleep(0)
            counts.append(len(os.listdir("/proc/self/fd")))
        acceptor.close()
        listener.close()
        return counts

    def counting(one: Connection, connections: Connections) -> asyncio.Protocol:
        protocol = asyncio.Protocol()
        protocol.connection_lost = lambda error: connections.gone(one)  # type: ignore[method-assign]
        return protocol

    gc.disable()  # an idle service seldom collects: sockets must not wait for that
    try:
        before, *after = asyncio.run(bursts())
    finally:
        gc.enable()
    assert after == [before] * 3


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """A service that may have 256 descriptors open, and a node known by the secret in its file."""
    write_secret(make_private(tmp_path / "nodes" / "n0") / "enrol", "s" * 50)
    process = subprocess.Popen(
        [sys.executable, "-m", "plait.live.service", "--home", str(tmp_path), "--policy", "fifo"],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256)),
        stderr=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + 60
    while not (tmp_path / "service.json").exists():
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)
    yield tmp_path
    process.terminate()
    assert process.wait(30) == 0


@pytest.mark.parametrize(
    "many", [300, pytest.param(1500, marks=pytest.mark.skipif("PLAIT_SLOW" not in os.environ, reason="PLAIT_SLOW"))]
)
def test_idle_connections_without_a_token_leave_agents_and_clients_unharmed(home: Path, many: int) -> None:
    found = json.loads((home / "service.json").read_text())
    address = ("127.0.0.1", int(found["url"].rpartition(":")[2]))

    async def agent(link: HttpLink, times: int) -> None:
        for _ in range(times):
            await link.ask(Observed(NodeInfo("n0", 1), "agent-1", wait_s=0.05))

    async def attack() -> None:
        async with HttpLink(found["url"], "s" * 50) as link:
            await agent(link, 2)  # known from now on: its connection is to outlast all others
            with ExitStack() as idle, Client.at(str(home)) as client:
                client.status()
                for i in range(many):
                    one = idle.enter_context(socket.create_connection(address))
                    if i % 3 == 1:
                        one.sendall(b"GET /v1/status HTTP/1.1\r\nHost: x\r\nX-Slow: ")
                    elif i % 3 == 2:
                        one.sendall(b"POST /v1/jobs HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{")
                    if i % 60 == 59:
                        await agent(link, 1)
                        await asyncio.to_thread(client.status)
                        with Client.at(str(home)) as new:  # a connection of its own
                            await asyncio.to_thread(new.status)
                async with HttpLink(found["url"], "s" * 50) as other:
                    await agent(other, 1)
                await agent(link, 1)

    asyncio.run(attack())


def test_requests_of_one_holder_wait_for_their_turn_and_those_of_others_do_not() -> None:
    async def run() -> list[str]:
        w, began = World(1000), []
        release = asyncio.Event()
        ann, ben, agent = w.come(rank=KNOWN, holder="ann"), w.come(rank=KNOWN, holder="ben"), w.come(rank=AGENT)

        async def request(one: Connection, name: str) -> None:
            async with w.all.turn(one):
                began.append(name)
                await release.wait()

        tasks = [asyncio.create_task(request(ann, "ann")) for _ in range(REQUESTS + 5)]
        tasks += [asyncio.create_task(request(agent, "agent")) for _ in range(REQUESTS + 5)]
        tasks.append(asyncio.create_task(request(ben, "ben")))
        tasks[REQUESTS + 1].cancel()  # one that waits may go
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        before = list(began)
        release.set()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert began.count("ann") == REQUESTS + 4
        assert not w.all._lines
        assert (ann.busy, ben.busy, agent.busy) == (0, 0, 0)
        return before

    before = asyncio.run(run())
    assert before.count("ann") == REQUESTS
    assert before.count("agent") == REQUESTS + 5
    assert before.count("ben") == 1


def test_streams_have_a_limit_of_their_own_and_leave_turns_to_requests() -> None:
    async def run() -> None:
        w = World(1000)
        ann, ben = w.come(rank=KNOWN, holder="ann"), w.come(rank=KNOWN, holder="ben")
        async with AsyncExitStack() as turns:
            ends = [w.all.begin_stream(await turns.enter_async_context(w.all.turn(ann))) for _ in range(STREAMS)]
            with pytest.raises(Surplus, match=f"{STREAMS} streams are open already"):
                w.all.begin_stream(await turns.enter_async_context(w.all.turn(ann)))
            w.all.begin_stream(await turns.enter_async_context(w.all.turn(ben)))()
            ends.pop()()
            w.all.begin_stream(await turns.enter_async_context(w.all.turn(ann)))()
            for end in ends:
                end()
        assert not w.all._lines
        assert not w.all._streams

    asyncio.run(asyncio.wait_for(run(), 30))


def test_one_holder_has_an_eighth_of_all_connections() -> None:
    w = World(80)
    ann = [w.come(f"{i}", KNOWN, "ann") for i in range(10)]
    w.all._touch(ann[0], 1)
    w.come("new", KNOWN, "ann")
    assert w.closed == [ann[1]], "the one that has been idle longest"
    for one in ann[2:]:
        w.all._touch(one, 1)
    w.all.gone(ann[0])
    last = w.come("newer", KNOWN, "ann")
    w.all._touch(last, 1)
    other = w.all.admit("newest")
    w.all._touch(next(one for one in w.all._held["ann"] if not one.busy), 1)
    with pytest.raises(Surplus, match="10 connections are at work already"):
        w.all.know(other, KNOWN, "ann")
    assert w.come("ben", KNOWN, "ben").rank == KNOWN
    for one in list(w.all._open):
        w.all.gone(one)
    assert not w.all._held


@pytest.mark.parametrize("path", ["/v1/jobs", "/web/login", "/agent/v1/sync"])
def test_a_body_cut_off_by_its_client_is_no_error(tmp_path: Path, path: str, caplog: pytest.LogCaptureFixture) -> None:
    store = Store.open(tmp_path / "plait.db")
    worker = Worker(Engine(store, Fences(Layout(tmp_path)), now_s=0.0), lambda: 0.0, lambda _: None, lambda _: None)
    tokens = Tokens(store)
    roles = {"/v1/jobs": "user", "/web/login": "user", "/agent/v1/sync": "agent"}
    secret, _ = tokens.make("ann", roles[path], node="n0" if roles[path] == "agent" else None)
    api = Api(store, worker, tokens, Mailbox(), 0.0)
    apps = [make_app(api, load_pages("plait.dashboard.app:make"))]
    if roles[path] == "agent":
        apps.append(make_agents_app(api))
    sent: list[Any] = []

    async def cut(app: Any) -> None:
        parts = [{"type": "http.request", "body": b"abc", "more_body": True}, {"type": "http.disconnect"}]
        headers = [(b"authorization", f"Bearer {secret}".encode()), (b"content-length", b"1000")]
        scope = {
            "type": "http", "method": "POST", "path": path, "raw_path": path.encode(), "query_string": b"",
            "headers": headers, "root_path": "", "scheme": "http", "server": ("x", 80), "client": ("a", 1),
        }  # fmt: skip

        async def receive() -> Any:
            return parts.pop(0) if len(parts) > 1 else parts[0]

        async def send(message: Any) -> None:
            sent.append(message)

        await app(scope, receive, send)

    for app in apps:
        asyncio.run(cut(app))
    store.close()
    assert [message["status"] for message in sent if "status" in message] == [499] * len(apps)
    assert not [record for record in caplog.records if record.exc_info]


def test_agents_are_answered_while_the_loop_of_users_stands_still(tmp_path: Path) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})

    gateway = Gateway(None)
    gateway.app, failed = app, []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        agents = AgentServer(Server(gateway, 50, None, None), listener, failed.append)
        agents.start()

        async def users() -> None:  # nothing of this loop is awaited meanwhile
            for _ in range(3):
                link = http.client.HTTPConnection(*listener.getsockname(), timeout=60)
                link.request("POST", "/agent/v1/sync")
                assert link.getresponse().status == 200
                link.close()

        asyncio.run(users())
        agents.stop()
        agents.join(60)
    assert not agents.is_alive()
    assert not failed
