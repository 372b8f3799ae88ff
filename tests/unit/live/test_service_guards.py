"""Tokens, limits and queues on their own: who may, how long, how many, and that everybody gets an answer."""

import asyncio
import gc
import http.client
import json
import os
import random
import resource
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from live_cases import Cluster, Node

from plait.core.errors import Conflict, InputError
from plait.live.backends.local import LocalBackend
from plait.live.client.client import Client
from plait.live.fencing import Fences
from plait.live.layout import Layout, make_private, write_secret
from plait.live.protocol import job_file
from plait.live.protocol.wire import NodeInfo, Observed
from plait.live.scheduler.engine import Engine
from plait.live.service.http import auth, limits
from plait.live.service.http import connections as opened
from plait.live.service.http.api import Api
from plait.live.service.http.app import make_agents_app, make_app
from plait.live.service.http.auth import HOME_TOKEN, Denied, Tokens, hashed, speaks_for
from plait.live.service.http.limits import BodyLimit, Gateway
from plait.live.service.logs import Mailbox, NoAnswer
from plait.live.service.serving import AgentServer, Server, load_pages
from plait.live.service.worker import Stopped, Worker
from plait.live.store import Store, StoreError
from plait.testing.fleet import HttpLink

Make = Callable[..., Cluster]


@pytest.fixture
def tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(auth, "REST", 0.0)
    store = Store.open(tmp_path / "plait.db")
    now = [100.0]
    found = Tokens(store, lambda: now[0], Layout(tmp_path))
    yield found, now, store
    store.close()


def test_a_token_ends_to_be_valid(tokens: Any) -> None:
    known, now, store = tokens
    secret, _ = known.make("ann", "user", now_s=100.0, expires_s=160.0)
    now[0] = 159.9
    assert known.who(f"Bearer {secret}").user == "ann"
    again = Tokens(store, lambda: now[0])
    now[0] = 160.0
    for one in (known, again):
        with pytest.raises(Denied, match="the token has expired") as caught:
            one.who(f"Bearer {secret}")
        assert caught.value.status == 401
    assert [t.expires_s for t in again.all()] == [160.0]


def test_an_agent_speaks_for_its_node_alone(tokens: Any, tmp_path: Path) -> None:
    known, _, _ = tokens
    token = known.agent("Bearer " + known.make("n7", "agent", "-", node="n7")[0])
    speaks_for(token, "n7")
    for node in ("n8", "", "n7/../n8"):
        with pytest.raises(Denied, match="is for node n7"):
            speaks_for(token, node)
    with pytest.raises(Denied, match="needs agent"):
        known.agent("Bearer " + known.make("ann", "user")[0])


def test_nodes_of_this_machine_are_known_by_their_files(tokens: Any, tmp_path: Path) -> None:
    known, _, _ = tokens
    make_private(tmp_path / "nodes" / "n0")
    write_secret(tmp_path / "nodes" / "n0" / "enrol", "s" * 50)
    make_private(tmp_path / "nodes" / "n1")
    write_secret(tmp_path / "nodes" / "n1" / "enrol", "")
    token = known.agent("Bearer " + "s" * 50)
    assert (token.node, token.role) == ("n0", "agent")
    for wrong in ("Bearer", "Bearer ", "Bearer " + "t" * 50, "Basic " + "s" * 50):
        with pytest.raises(Denied):
            known.agent(wrong)
    known.revoke(token.id)
    with pytest.raises(Denied, match="revoked") as caught:
        known.agent("Bearer " + "s" * 50)
    assert caught.value.next_step == "plait nodes enrol NODE"


def test_secrets_nobody_knows_do_not_make_the_service_read_files_all_the_time(
    tokens: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known, _, _ = tokens
    for number in range(3):
        write_secret(make_private(tmp_path / "nodes" / f"n{number}") / "enrol", f"{number}" * 50)
    plain, read = auth._read, []
    monkeypatch.setattr(auth, "_read", lambda path: read.append(path) or plain(path))
    monkeypatch.setattr(auth, "REST", 1e9)
    for number in range(100):
        with pytest.raises(Denied):
            known.agent(f"Bearer guess{number:050}")
    assert len(read) == 3
    assert known.agent("Bearer " + "1" * 50).node == "n1"
    write_secret(tmp_path / "nodes" / "n2" / "enrol", "x" * 50)
    with pytest.raises(Denied):
        known.agent("Bearer " + "2" * 50)  # what counts is what is there now


def test_a_node_that_asks_twice_at_once_is_enrolled_once(tokens: Any, tmp_path: Path) -> None:
    known, _, store = tokens
    write_secret(make_private(tmp_path / "nodes" / "n0") / "enrol", "s" * 50)
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(known.agent, ["Bearer " + "s" * 50] * 8))
    assert {token.id for token in found} == {token.id for token in store.tokens()}
    assert len(store.tokens()) == 1


def test_tokens_come_and_go_at_the_same_time() -> None:
    """They are made and revoked in threads, and agents of this machine enrol in the event loop."""
    store = SimpleNamespace(tokens=list, add_token=lambda token: None, revoke_token=lambda name: True)
    known = Tokens(cast("Store", store))
    old = [known.make(f"u{i}", "user")[1] for i in range(2000)]
    made: list[str] = []
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        other = threading.Thread(target=lambda: made.extend(known.make("ann", "user")[0] for _ in range(1000)))
        other.start()
        for token in old[:300]:
            known.revoke(token.id)
        other.join()
    finally:
        sys.setswitchinterval(interval)
    assert all(known.who(f"Bearer {secret}").user == "ann" for secret in made)
    assert len(made) == 1000
    assert len(known.all()) == 2700


def test_each_node_of_this_machine_gets_a_secret_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from plait.live.backends import host

    monkeypatch.setattr(host, "DetachedProcess", lambda *words, **more: None)
    backend = LocalBackend(Layout(tmp_path), 2, 1, False)
    for name in backend.nodes:
        assert backend.ensure_node_agent(name)
        assert backend.ensure_node_agent(name)
    files = [tmp_path / "nodes" / name / "enrol" for name in backend.nodes]
    assert len({file.read_text() for file in files}) == 2
    assert all(file.stat().st_mode & 0o077 == 0 for file in files)


def test_nodes_of_a_home_that_had_one_secret_for_all_get_their_own(
    tokens: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store knows the common one, for no node: agents that showed it would be refused for ever."""
    from plait.live.backends import host

    known, _, _ = tokens
    common, _ = known.make("agents", "agent", "-")
    monkeypatch.setattr(host, "DetachedProcess", lambda *words, **more: None)
    backend = LocalBackend(Layout(tmp_path), 2, 1, False)
    for folder in (tmp_path, *(make_private(tmp_path / "nodes" / name) for name in backend.nodes)):
        write_secret(folder / "enrol", common)
    for name in backend.nodes:
        assert backend.ensure_node_agent(name)
        secret = (tmp_path / "nodes" / name / "enrol").read_text().strip()
        assert secret != common
        speaks_for(known.agent(f"Bearer {secret}"), name)  # raises where it may not


def test_a_lost_token_of_the_administrator_is_replaced_and_revoked(tokens: Any, tmp_path: Path) -> None:
    known, _, store = tokens
    layout = Layout(tmp_path)
    known.at_home(layout)
    first = layout.token_file.read_text().strip()
    others = known.make("boss", "admin")[0]
    known.at_home(layout)
    assert layout.token_file.read_text().strip() == first
    layout.token_file.unlink()
    known.at_home(layout)
    second = layout.token_file.read_text().strip()
    assert known.who(f"Bearer {second}").role == "admin"
    assert known.who(f"Bearer {others}").user == "boss"
    with pytest.raises(Denied):
        known.who(f"Bearer {first}")
    assert store.fact(HOME_TOKEN) == hashed(second)


def test_jobs_a_user_and_a_project_may_have(cluster: Make) -> None:
    c = cluster((1,), user_jobs=3, project_jobs=5)
    c.submit({}, {})
    with pytest.raises(
        Conflict, match=r"user ann has 2 jobs that have not ended, and may have 3; .*plait up --user-jobs"
    ):
        c.submit({}, {})
    c.submit({})
    c.submit({}, {}, owner="ben")
    with pytest.raises(Conflict, match="project default has 5 jobs"):
        c.submit({}, owner="cyn")
    c.submit({"project": "other"}, owner="cyn")
    c.engine.cancel(2, c.now)
    c.submit({})  # room again
    c.restart()
    with pytest.raises(Conflict, match="user ann has 3"):
        c.submit({})
    assert c.engine.state.numbers == 7


def test_what_is_cancelled_before_any_node_is_there_is_no_open_job(cluster: Make) -> None:
    c = cluster((), user_jobs=2)
    c.submit({}, {})
    c.engine.cancel(0, c.now)
    c.engine.cancel(1, c.now)
    assert c.submit({}) == [2]
    c.restart()
    assert c.engine.context.open_jobs["user", "ann"] == 1
    c.nodes.append(Node(c, "n0", 1))
    c.pass_s(3)
    assert [c.state(job) for job in range(3)] == ["cancelled", "cancelled", "running"]
    assert c.engine.context.open_jobs["user", "ann"] == 1


def test_names_that_agents_and_users_invent_are_not_remembered() -> None:
    box = Mailbox()

    async def ask() -> None:
        for i in range(50):
            box.due(f"n{i}")
            box.take(f"n{i}", [])
            await box.news(f"n{i}", 5, 0.0)
            with pytest.raises(NoAnswer):
                await box.ask(f"n{i}", 1, 1, 0, 0, 10)

    from plait.live.service import logs

    patience, logs.PATIENCE_S = logs.PATIENCE_S, 0.001
    try:
        asyncio.run(ask())
    finally:
        logs.PATIENCE_S = patience
    assert not box._open
    assert not box._bells
    assert not box._sent


def test_whoever_asks_a_worker_that_ends_gets_an_answer(cluster: Make) -> None:
    c = cluster((1,))
    worker = Worker(c.engine, lambda: c.now, lambda versions: None, lambda error: None)
    worker.start()
    answers: list[Future[Any]] = []
    asking = threading.Event()

    def ask() -> None:
        while len(answers) < 20_000:
            answers.append(worker.submit(lambda engine, now_s: now_s))
            if len(answers) > 100:
                asking.set()
            if worker._closed and len(answers) > 200:
                break

    # The engine is used by this thread only while the worker does not: SQLite minds, the engine would too.
    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    asking.wait(20)
    worker.stop()
    worker.join()
    for thread in threads:
        thread.join()
    for answer in answers:
        error = answer.exception(timeout=20)
        assert error is None or isinstance(error, Stopped)


def test_a_worker_that_hangs_can_be_asked_where(cluster: Make) -> None:
    c, entered, leave = cluster((1,)), threading.Event(), threading.Event()
    worker = Worker(c.engine, lambda: c.now, lambda versions: None, lambda error: None)

    def dream(engine: Engine, now_s: float) -> None:
        entered.set()
        leave.wait(20)

    worker.start()
    try:
        asleep = worker.submit(dream)
        assert entered.wait(20)
        assert "in dream\n" in worker.doing()
    finally:
        leave.set()
        asleep.result(20)
        worker.stop()
        worker.join(20)
    assert worker.doing() == "its thread has ended"


def test_a_worker_does_nothing_while_another_service_may_lead(cluster: Make) -> None:
    c = cluster((1,))
    leads = threading.Event()
    leads.set()
    worker = Worker(c.engine, lambda: c.now, lambda versions: None, lambda error: None, leads.is_set)
    worker.start()
    assert worker.submit(lambda engine, now_s: "done").result(20) == "done"
    leads.clear()
    late = worker.submit(lambda engine, now_s: "done")
    commits, cycles = worker.commits, worker.cycles
    while worker.cycles < cycles + 5:  # it waits, and does not hang
        time.sleep(0.01)
    assert not late.done()
    leads.set()
    assert late.result(20) == "done"
    assert worker.commits > commits
    leads.clear()
    refused = worker.submit(lambda engine, now_s: "done")
    worker.stop()
    with pytest.raises(Stopped):
        refused.result(20)
    worker.join(20)
    assert not worker.is_alive()


def test_what_the_driver_says_itself_becomes_an_error_of_the_store(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "plait.db")
    with pytest.raises(StoreError, match="cannot read the store: gone"), store.reading():
        raise sqlite3.OperationalError("gone")
    with pytest.raises(StoreError, match="cannot write to the store: gone"), store._writing():
        raise sqlite3.OperationalError("gone")
    store.close()


def test_the_newest_of_many_entries_can_be_reached(cluster: Make) -> None:
    c = cluster((1,))
    c.submit({})
    for _ in range(5):
        c.pass_s(1)
        c.nodes[0].end(0, 75, steps=1.0 + c.now)
    whole = [e.seq for e in c.store.entries(job=0)]
    assert len(whole) > 12
    assert [e.seq for e in c.store.entries(job=0, limit=4)] == whole[:4]
    assert [e.seq for e in c.store.entries(job=0, limit=4, newest=True)] == whole[-4:]
    assert [e.seq for e in c.store.entries(job=0, after=whole[3], limit=4)] == whole[4:8]


LONG = "x" * 70_000
FITS: list[tuple[dict[str, Any], bool]] = [
    ({}, True), ({"gpus": 100_000}, True), ({"gpus": 100_001}, False), ({"gpus": -1}, False), ({"gpus": 1.5}, False),
    ({"gpus": True}, False), ({"iterations": 1e15}, True), ({"iterations": 1.1e15}, False), ({"iterations": 0}, False),
    ({"iterations": None}, True), ({"priority": -1e9}, True), ({"priority": 1e9}, True), ({"priority": 1.1e9}, False),
    ({"priority": -1.1e9}, False), ({"retries": 1000}, True), ({"retries": 1001}, False), ({"memory": 1e18}, True),
    ({"memory": 1.1e18}, False), ({"cpus": 1e18}, True), ({"cpus": -1}, False), ({"gpu_memory": 1.1e18}, False),
    ({"deadline_s": 1e12}, True), ({"deadline_s": 1.1e12}, False), ({"checkpoint_s": 1e9}, True),
    ({"checkpoint_s": 1.1e9}, False), ({"checkpoint_s": 0}, False), ({"skew": 1}, True), ({"skew": 1.01}, False),
    ({"profile": {"gpu": 1e6}}, True), ({"profile": {"gpu": 1.1e6}}, False), ({"profile": {"cpu": -1}}, False),
    ({"profile": {"gpu": 1, "iteration_s": 1.1e6}}, False), ({"profile": {"tpu": 1}}, False),
    ({"env": {"A": "b"}}, True), ({"env": {"A=B": "c"}}, False), ({"env": {"": "c"}}, False),
    ({"env": {"A\0": "c"}}, False), ({"env": {"A": "c\0"}}, False), ({"env": {"A" * 1000: "c"}}, True),
    ({"env": {"A" * 1001: "c"}}, False), ({"env": {f"A{i}": "" for i in range(1001)}}, False),
    ({"env": {"A": LONG}}, False), ({"command": ["a"] * 4096}, True), ({"command": ["a"] * 4097}, False),
    ({"command": []}, False), ({"command": ["a\0b"]}, False), ({"command": ["a\nb"]}, True),
    ({"command": [LONG]}, False),
    ({"name": "x" * 200}, True), ({"name": "x" * 201}, False), ({"name": "a\nb"}, False), ({"model": "a\tb"}, False),
    ({"workdir": "/" * 4096}, True), ({"workdir": "/" * 4097}, False), ({"workdir": "/a\0"}, False),
    ({"project": "a.b-c"}, True), ({"project": "../x"}, False), ({"project": "x" * 101}, False),
    ({"class": "royal"}, False), ({"unheard": 1}, False),
]  # fmt: skip


@pytest.mark.parametrize(("given", "fits"), FITS, ids=lambda v: json.dumps(v)[:40] if isinstance(v, dict) else str(v))
def test_a_job_is_checked_by_the_published_schema(given: dict[str, Any], fits: bool) -> None:
    job = {"command": ["true"], **given}
    if fits:
        job_file.request_of(job)
        return
    with pytest.raises(InputError):
        job_file.request_of(job)


# -- connections: everybody gets in, few seconds for strangers, room kept for agents and for those who have a token ---


class World:
    """Connections under a clock that tests move."""

    def __init__(self, most: int) -> None:
        self.now = 0.0
        self.all = opened.Connections(most, lambda: self.now)
        self.closed: list[opened.Connection] = []

    def come(self, address: str = "a", rank: int = opened.STRANGER, holder: str = "") -> opened.Connection:
        self.now += 0.001
        one = self.all.admit(address)
        one.close = lambda: self.closed.append(one)
        self.all.know(one, rank, holder or f"token {len(self.all)}-{self.now}")
        return one


def test_strangers_are_closed_oldest_first_and_never_for_them_an_agent_or_a_known_one() -> None:
    w = World(80)
    agents = [w.come(rank=opened.AGENT) for _ in range(30)]
    known = [w.come(rank=opened.KNOWN) for _ in range(29)]
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
    agents = [w.come(rank=opened.AGENT) for _ in range(20)]
    known = [w.come(f"{i}", rank=opened.KNOWN) for i in range(20)]
    for one in known[1:]:
        w.all._touch(one, 1)
    w.come("new", rank=opened.AGENT)
    assert w.closed == [known[0]]  # the only one that is idle and no agent
    w.come("newer", rank=opened.AGENT)
    assert w.closed[1] in agents  # the rest of the others is at work
    w.all._touch(known[5], -1)
    w.come("newest", rank=opened.AGENT)
    assert w.closed[2] is known[5]


def test_who_says_nothing_is_closed_in_time() -> None:
    w = World(100)
    silent, asks, known, works = w.come(), w.come(), w.come(rank=opened.KNOWN), w.come(rank=opened.AGENT)
    w.all._touch(asks, 1)
    w.all._touch(works, 1)
    w.now = opened.HEAD_S + 1
    w.all.sweep()
    assert w.closed == [silent]
    w.now = opened.REQUEST_S + 1
    w.all.sweep()
    assert w.closed == [silent, asks]
    w.now = opened.IDLE_S + 1
    w.all.sweep()
    assert w.closed == [silent, asks, known]
    assert len(w.all) == 1


def test_counts_hold_whatever_happens() -> None:
    draw, w = random.Random(1), World(40)
    there: list[opened.Connection] = []
    for _ in range(2000):
        act = draw.randrange(6)
        if act < 2 or not there:
            there.append(
                w.come(draw.choice("abc"), draw.choice([opened.STRANGER, opened.STRANGER, opened.KNOWN, opened.AGENT]))
            )
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
        strangers = [one for one in there if one.rank == opened.STRANGER]
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
        connections = opened.Connections(max(descriptors - opened.OWN, 8))
        acceptor = opened.Acceptor(listener, connections, lambda one: counting(one, connections), None)
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

    def counting(one: opened.Connection, connections: opened.Connections) -> asyncio.Protocol:
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
        ann, ben, agent = (
            w.come(rank=opened.KNOWN, holder="ann"),
            w.come(rank=opened.KNOWN, holder="ben"),
            w.come(rank=opened.AGENT),
        )

        async def request(one: opened.Connection, name: str) -> None:
            async with w.all.turn(one):
                began.append(name)
                await release.wait()

        tasks = [asyncio.create_task(request(ann, "ann")) for _ in range(opened.REQUESTS + 5)]
        tasks += [asyncio.create_task(request(agent, "agent")) for _ in range(opened.REQUESTS + 5)]
        tasks.append(asyncio.create_task(request(ben, "ben")))
        tasks[opened.REQUESTS + 1].cancel()  # one that waits may go
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        before = list(began)
        release.set()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert began.count("ann") == opened.REQUESTS + 4
        assert not w.all._lines
        assert (ann.busy, ben.busy, agent.busy) == (0, 0, 0)
        return before

    before = asyncio.run(run())
    assert before.count("ann") == opened.REQUESTS
    assert before.count("agent") == opened.REQUESTS + 5
    assert before.count("ben") == 1


def test_streams_have_a_limit_of_their_own_and_leave_turns_to_requests() -> None:
    async def run() -> None:
        w = World(1000)
        ann, ben = w.come(rank=opened.KNOWN, holder="ann"), w.come(rank=opened.KNOWN, holder="ben")
        async with AsyncExitStack() as turns:
            ends = [w.all.begin_stream(await turns.enter_async_context(w.all.turn(ann))) for _ in range(opened.STREAMS)]
            with pytest.raises(opened.Surplus, match=f"{opened.STREAMS} streams are open already"):
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
    ann = [w.come(f"{i}", opened.KNOWN, "ann") for i in range(10)]
    w.all._touch(ann[0], 1)
    w.come("new", opened.KNOWN, "ann")
    assert w.closed == [ann[1]], "the one that has been idle longest"
    for one in ann[2:]:
        w.all._touch(one, 1)
    w.all.gone(ann[0])
    last = w.come("newer", opened.KNOWN, "ann")
    w.all._touch(last, 1)
    other = w.all.admit("newest")
    w.all._touch(next(one for one in w.all._held["ann"] if not one.busy), 1)
    with pytest.raises(opened.Surplus, match="10 connections are at work already"):
        w.all.know(other, opened.KNOWN, "ann")
    assert w.come("ben", opened.KNOWN, "ben").rank == opened.KNOWN
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
