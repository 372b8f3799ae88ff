"""Two services, one PostgreSQL: the leader is killed, or sleeps past its lease; `plait up --standby` takes over."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from cluster_shell import Shell

from plait.live.backends.local import LocalBackend
from plait.live.client.client import Client
from plait.live.discovery import records
from plait.live.layout import Layout, make_private
from plait.live.protocol.wire import NodeInfo, Observed, to_json
from plait.live.store import Store
from plait.live.supervisor.services import process_of, processes
from plait.live.system import procs
from plait.outlook.log_replay import replay, stored_rows
from plait.testing import leaks

pytestmark = pytest.mark.engines

#: Nothing here takes so long on any machine.
PATIENCE_S = 120.0


class Pair:
    """Two services that are kept up, and two nodes."""

    def __init__(
        self,
        home: Path,
        url: str,
        *,
        nodes: int = 2,
        slots: int = 4,
        lead_lease_s: float = 3.0,
        round_s: float = 0.2,
        options: Mapping[str, object] | None = None,
    ) -> None:
        """`options`: more of those of the service, by name."""
        self.layout, self.url, self.lead_lease_s, self.round_s = Layout.at(home), url, lead_lease_s, round_s
        make_private(self.layout.home)
        self.options = {"policy": "fifo", **(options or {})}
        self.backend = LocalBackend(self.layout, nodes, slots, False, stop_grace_s=2.0)
        self.children: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Pair:
        self.maintain("1")
        until(lambda: self.leader() == "1", "the first service leads")
        self.maintain("2")
        until(lambda: self.follows("2"), "the second stands by, prepared")
        self.backend.start()
        until(lambda: self.ready_nodes() == len(self.backend.nodes), "all nodes are ready")
        return self

    def __exit__(self, *_: object) -> None:
        for child in self.children.values():
            child.send_signal(signal.SIGCONT)
            child.kill()
            child.wait()
        self.backend.stop(jobs=True)
        for path in (self.layout.service_file, *self.layout.home.glob("service-*.json")):
            path.unlink(missing_ok=True)

    def maintain(self, *names: str) -> None:
        """Start those of these services that do not run, to stand by: what keepers do."""
        for name in names:
            if name in self.children and self.children[name].poll() is None:
                continue
            words = ["--db", self.url, "--standby", "--name", name]
            words += [word for option, value in self.options.items() for word in (f"--{option}", str(value))]
            command = [sys.executable, "-m", "plait.live.service", "--home", str(self.layout.home), *words]
            command += ["--lead-lease", str(self.lead_lease_s), "--round", str(self.round_s)]
            with open(self.layout.home / f"said-{name}.log", "ab") as log:
                self.children[name] = subprocess.Popen(command, stdout=log, stderr=log)

    def leader(self) -> str | None:
        """The name of the one that service.json names, if it lives."""
        record = procs.read_json(self.layout.service_file) or {}
        alive = process_of(record)
        return next((n for n, p in processes(self.layout).items() if alive and p.pid == alive.pid), None)

    def health(self, name: str) -> tuple[int, dict[str, Any]]:
        return ask(records(self.layout)[name]["url"], "GET", "/v1/health")

    def follows(self, name: str) -> bool:
        """Whether it stands by, and could lead at once."""
        try:
            said = self.health(name)[1]
            return said["role"] == "standby" and said["prepared"]
        except (OSError, KeyError):
            return False

    def ready_nodes(self) -> int:
        with Client.at(str(self.layout.home)) as client:
            return sum(node.state == "ready" for node in client.nodes())

    def attached(self, term: int) -> bool:
        """Whether every agent obeys a leader of this term at least."""
        journals = [self.layout.node(node) / "journal.jsonl" for node in self.backend.nodes]
        return all(max(map(int, re.findall(r'"term": ?(\d+)', j.read_text())), default=0) >= term for j in journals)

    def pause(self, name: str) -> None:
        """Stop a service in the middle of whatever it does; returns when all its threads stand still."""
        process = self.children[name]
        process.send_signal(signal.SIGSTOP)
        threads = Path(f"/proc/{process.pid}/task")

        def still() -> bool:
            try:
                return all(" T " in t.joinpath("stat").read_text() for t in threads.iterdir())
            except OSError:  # a thread that ended just now
                return False

        until(still, "it stands still")

    def kill_leader(self) -> float:
        """Seconds until another one answers, and commands all agents."""
        old = self.leader()
        assert old is not None
        with Client.at(str(self.layout.home)) as client:
            term = client.status().term
            self.children[old].kill()
            began = time.monotonic()
            self.children[old].wait()
            found = client.status().term  # a client that was there before finds the new leader by itself
        assert found > term
        until(lambda: self.attached(found), "all agents follow")
        took_s = time.monotonic() - began
        self.maintain(old)
        until(lambda: self.leader() != old and self.follows(old), "the old one stands by, prepared")
        return took_s


def until(met: Callable[[], Any], what: str) -> None:
    end = time.monotonic() + PATIENCE_S
    while not met():
        assert time.monotonic() < end, f"not within {PATIENCE_S:g} s: {what}"
        time.sleep(0.1)


def ask(url: str, method: str, path: str, body: Any = None, token: str = "") -> tuple[int, dict[str, Any]]:
    """One question over a connection of its own, on which an answer may be long in coming."""
    parts = urlsplit(url)
    link = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=PATIENCE_S)
    try:
        data = None if body is None else json.dumps(body)
        link.request(method, path, data, {"Authorization": f"Bearer {token}", "Content-Type": "application/json"})
        answer = link.getresponse()
        return answer.status, json.loads(answer.read() or b"{}")
    finally:
        link.close()


def check_log(url: str, jobs: int) -> None:
    """Every job finished once, in one attempt, and every decision is derived again."""
    store = Store.open(url, exclusive=False)
    try:
        rows = store.jobs(limit=1000)
        assert {(row.state, row.starts, row.epoch, row.failures) for row in rows} == {("finished", 1, 1, 0)}
        assert len(rows) == jobs
        for row in rows:
            found = store.job(row.number)
            assert len(found.attempts) == 1
        assert replay(stored_rows(store)).difference is None
    finally:
        store.close()


def kill_often(home: Path, url: str, jobs: int, kills: int, length_s: float) -> list[float]:
    """Jobs run, the last one until the end, and so many leaders die; returns the seconds until each was followed."""
    go = home.with_name("go")
    program = f"import os, time; time.sleep({length_s})"
    last = f"{program}\nwhile not os.path.exists({str(go)!r}): time.sleep(0.05)"
    with Pair(home, url) as pair:
        commands = [[sys.executable, "-S", "-c", program if i < jobs - 1 else last] for i in range(jobs)]
        with Client.at(str(pair.layout.home)) as client:
            client.submit([{"command": c, "gpus": 1 + i % 2, "name": f"job-{i}"} for i, c in enumerate(commands)])
            until(lambda: any(job.state == "running" for job in client.jobs()), "something runs")
        took = []
        for _ in range(kills):
            took.append(pair.kill_leader())
            with Client.at(str(pair.layout.home)) as client:
                left = sum(job.state != "finished" for job in client.jobs())
            print(f"fail-over: {took[-1]:.2f} s, {left} jobs to go", flush=True)
            assert left
        go.touch()
        print(f"fail-over: {kills} leaders killed, take-over {min(took):.2f} to {max(took):.2f} s")
        with Client.at(str(pair.layout.home)) as client:
            until(lambda: all(job.state == "finished" for job in client.jobs(limit=1000)), "all have finished")
    check_log(url, jobs)
    assert leaks(pair.layout) == []
    return took


def test_jobs_do_not_notice_that_the_leader_is_killed(tmp_path: Path, postgres: Callable[[], str]) -> None:
    assert len(kill_often(tmp_path / "home", postgres(), jobs=4, kills=2, length_s=8.0)) == 2


@pytest.mark.slow
def test_twenty_jobs_do_not_notice_that_ten_leaders_are_killed(tmp_path: Path, postgres: Callable[[], str]) -> None:
    """Each take-over is printed: under 5 s, most under 3, where nothing takes the cores away."""
    assert len(kill_often(tmp_path / "home", postgres(), jobs=20, kills=10, length_s=15.0)) == 10


@pytest.fixture
def pair(tmp_path: Path, postgres: Callable[[], str]) -> Iterator[Pair]:
    with Pair(tmp_path / "home", postgres(), nodes=1, lead_lease_s=1.5) as made:
        yield made


def test_a_leader_that_slept_past_its_lease_commands_nobody_and_follows(pair: Pair) -> None:
    old = pair.leader()
    assert old is not None
    record = records(pair.layout)[old]
    node = NodeInfo("x0", 1)
    with Client.at(str(pair.layout.home)) as client:
        token = client.create_token("x0", "agent", node="x0").token
        client.submit([{"command": ["sleep", "300"]} for _ in range(5)])  # one for this node: something to command
        term = client.status().term

    def commanded() -> bool:
        question = to_json(Observed(node, "agent-x", wait_s=0.0))
        status, told = ask(record["url"], "POST", "/agent/v1/sync", question, token)
        assert (status, told["term"]) == (200, term)
        return bool(told["attempts"])

    until(commanded, "a job begins, and nothing else is going to change")
    # An agent that listens to the old leader all the time: questions that it holds back, and such as come in its sleep.
    answers: list[tuple[int, dict[str, Any]]] = []

    def listen(wait_s: float, term_seen: int, reached: int) -> None:
        body = to_json(Observed(node, "agent-x", term_seen, reached, wait_s=wait_s))
        try:
            answers.append(ask(record["url"], "POST", "/agent/v1/sync", body, token))
        except (OSError, http.client.HTTPException) as error:
            answers.append((0, {"why": repr(error)}))

    process = pair.children[old]
    held = [threading.Thread(target=listen, args=(1.0, term, 10**9)) for _ in range(4)]
    for thread in held:
        thread.start()
    time.sleep(0.3)  # they are held back for a second
    pair.pause(old)
    for thread in held:
        thread.join(0.5)
    early = len(answers)  # on a machine that is slow a second was over before the pause: those were right
    sent = [threading.Thread(target=listen, args=(0.0, 0, 0)) for _ in range(4)]
    for thread in sent:
        thread.start()
    until(lambda: pair.leader() not in (None, old), "the other one leads")
    with Client.at(str(pair.layout.home)) as client:
        found = client.status().term
    assert found > term
    until(lambda: pair.attached(found), "the agent follows, though the old leader has its question still")
    process.send_signal(signal.SIGCONT)
    for thread in held + sent:
        thread.join(PATIENCE_S)
    assert len(answers) == 8
    assert [answer for answer in answers[early:] if answer[0] == 200] == []
    until(lambda: pair.follows(old) and pair.health(old)[1]["term"] == found, "the old one stands by")
    assert process.poll() is None  # the same process, begun anew
    assert pair.health(old)[0] == 503
    status, said = ask(records(pair.layout)[old]["url"], "GET", "/v1/jobs", token=token)
    new = pair.leader()
    assert new is not None
    assert (status, said["leader"]) == (503, records(pair.layout)[new]["url"])
    assert "stands by; the leader is at http://" in said["error"]["message"]


def test_a_leader_that_slept_leaves_the_jobs_of_its_successor_alone(
    tmp_path: Path, postgres: Callable[[], str]
) -> None:
    """A job waits when it falls asleep, is begun by the successor, and would be begun in its own next round too."""
    url, go = postgres(), tmp_path / "go"
    wait = "import os, time\nwhile not os.path.exists({!r}): time.sleep(0.05)"
    keep = "import os; os.makedirs(os.environ['PLAIT_JOB_DIR'] + '/checkpoints/kept', exist_ok=True)\n"
    programs = wait.format(f"{go}-0"), keep + wait.format(f"{go}-1")
    first, second = ([{"command": [sys.executable, "-S", "-c", program], "gpus": 4}] for program in programs)
    with Pair(tmp_path / "home", url, nodes=1, lead_lease_s=1.5, round_s=2.5) as pair:
        old, store = pair.leader(), Store.open(url, exclusive=False)
        assert old is not None

        def decisions() -> int:
            return sum(entry.type == "ReplanDue" for entry in store.entries())

        with Client.at(str(pair.layout.home)) as client:
            client.submit(first)
            until(lambda: client.jobs()[0].state == "running", "the first job has all GPUs")
            before = decisions()
            client.submit(second)
            until(lambda: decisions() > before, "a round has just been")
            Path(f"{go}-0").touch()
            until(lambda: client.job("j-0").state == "finished", "the second is next")
            pair.pause(old)
        kept = pair.layout.job(1) / "checkpoints" / "kept"
        until(kept.is_dir, "the other one leads, and has begun the second job")
        assert pair.leader() not in (None, old)
        pair.children[old].send_signal(signal.SIGCONT)
        until(lambda: pair.follows(old), "the old one stands by")
        assert list(pair.layout.job(1).glob("before-*")) == []
        Path(f"{go}-1").touch()
        with Client.at(str(pair.layout.home)) as client:
            until(lambda: client.job("j-1").state == "finished", "both have finished")
        assert kept.is_dir()
        store.close()
    check_log(url, 2)


def test_a_leader_that_is_told_to_end_is_followed_at_once(pair: Pair) -> None:
    """The rolling upgrade: end one after the other."""
    with Client.at(str(pair.layout.home)) as client:
        term = client.status().term
        pair.children["1"].terminate()
        assert pair.children["1"].wait(PATIENCE_S) == 0
        assert client.status().term == term + 1
        assert pair.leader() == "2"
        assert list(records(pair.layout)) == ["2"]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def kill(plait: Shell, name: str, number: int = signal.SIGKILL) -> None:
    """End a service as a crash would, or as for an upgrade; its keeper starts it again."""
    old = processes(plait.layout)[name].pid
    os.kill(old, number)
    plait.comes(lambda: (now := processes(plait.layout).get(name)) is not None and now.pid != old)


def role(plait: Shell, name: str) -> str | None:
    record = records(plait.layout).get(name, {})
    return record["role"] if process_of(record) else None


def test_it_takes_over_is_kept_and_comes_back_as_it_was(plait: Shell, postgres: Callable[[], str]) -> None:
    ports = {"1": free_port(), "2": free_port()}
    words = ("--nodes", 1, "--gpus-per-node", 2, "--fake", "--policy", "fifo", "--round", 0.2, "--port", ports["1"])
    assert "--db postgresql://host/name" in plait("up", "--standby", code=2)
    plait("up", "--db", postgres(), *words)
    assert f"standby service runs at http://127.0.0.1:{ports['2']};" in plait("up", "--standby", "--port", ports["2"])
    assert "runs already" in plait("up", "--standby", code=2)
    assert f"cannot listen on port {ports['2']}" in plait(
        "up", "--standby", "--name", "c", "--port", ports["2"], code=2
    )
    job = plait.submit("--", "sleep", 600)
    plait.until(job, "running")

    kill(plait, "2")
    kill(plait, "2", signal.SIGTERM)
    assert records(plait.layout)["2"]["url"].endswith(f":{ports['2']}")
    kill(plait, "1")
    plait.comes(lambda: (role(plait, "1"), role(plait, "2")) == ("standby", "leader"))
    assert {name: int(r["url"].rpartition(":")[2]) for name, r in records(plait.layout).items()} == ports
    assert plait.until(job, "running")["epoch"] == 1

    assert "2 services are stopped" in plait("down")
    plait("up")
    assert f"standby service runs at http://127.0.0.1:{ports['2']};" in plait("up", "--standby")
    assert role(plait, "1") == "leader"
    assert plait.until(job, "running")["starts"] == 1
