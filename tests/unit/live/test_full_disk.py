"""A full disk heals by itself: the service waits, says so, and goes on; a home folder that vanishes ends it."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from plait.dashboard.app import make as make_pages
from plait.live.agent.journal import Journal
from plait.live.fencing import Fences
from plait.live.layout import Layout
from plait.live.protocol import not_current
from plait.live.protocol.wire import ENDED, RUNNING, NodeInfo, Observed, Reply, Seen, to_json
from plait.live.scheduler.engine import Engine
from plait.live.scheduler.options import Options
from plait.live.service.http.app import Api, make_app
from plait.live.service.http.auth import Tokens
from plait.live.service.logs import Mailbox
from plait.live.service.worker import Worker
from plait.live.store import NoRoom, Store
from plait.live.supervisor.down import kill_jobs
from plait.live.supervisor.services import any_service_process
from plait.live.system import cgroups, procs


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 4 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(folder)], capture_output=True, check=False
    )
    if made.returncode:
        pytest.skip("a small disk needs root: mount -t tmpfs is refused")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(path: Path) -> None:
    with open(path, "wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))


class Served:
    """A worker with its engine on a store, as a service has it, without HTTP."""

    def __init__(self, home: Path) -> None:
        self.store, self.begin, self.failed = Store.open(home / "plait.db"), time.monotonic(), list[BaseException]()
        self.worker = Worker(self.engine(), self.clock, lambda versions: None, self.failed.append, again=self.engine)
        self.home = home
        self.worker.start()

    def clock(self) -> float:
        return time.monotonic() - self.begin

    def engine(self) -> Engine:
        return Engine(
            self.store,
            Fences(Layout(Path(str(self.store._engine.url.database)).parent)),
            now_s=self.clock(),
            options=Options(),
        )

    def submit(self, text: str = "x") -> int:
        request = {"command": ["true", text]}
        (number,) = self.worker.submit(lambda engine, now_s: engine.submit([request], owner="ann", now_s=now_s)).result(
            30
        )
        return int(number)

    def close(self) -> None:
        self.worker.stop()
        self.worker.join(20)
        self.store.close()


@pytest.fixture
def served(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Served]:
    """On the small disk of a test that has one."""
    made = Served(tmp_path / "disk" if "small_disk" in request.fixturenames else tmp_path)
    yield made
    made.close()


def until(true: Callable[[], object], what: str, seconds: float = 30.0) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, what
        time.sleep(0.02)


def _taken(served: Served) -> bool:
    with contextlib.suppress(NoRoom):
        return served.submit() > 0
    return False


def test_a_full_disk_is_waited_for_and_what_was_taken_is_there(small_disk: Path, served: Served) -> None:
    assert [served.submit(), served.submit()] == [0, 1]
    term = served.worker.engine.term
    fill(small_disk / "filler")
    taken, refusal = 2, ""
    while not refusal:  # the log has a little room in itself
        try:
            served.submit("x" * 20_000)
            taken += 1
        except NoRoom as error:
            refusal = str(error)
    assert "its disk is full" in refusal
    for _ in range(3):
        with pytest.raises(NoRoom):
            served.submit("x" * 20_000)
    assert served.worker.is_alive()
    (small_disk / "filler").unlink()
    until(lambda: _taken(served), "a submission to be taken again")
    assert served.worker.engine.term > term
    assert len(served.store.jobs()) == taken + 1
    assert served.failed == []


def test_a_store_that_cannot_be_opened_for_want_of_room_says_so(small_disk: Path) -> None:
    path = small_disk / "plait.db"
    Store.open(path).close()
    fill(small_disk / "filler")
    with pytest.raises(
        NoRoom, match=rf"^cannot open the store {path}: its disk is full; free some space, then: plait up"
    ):
        Store.open(path)
    (small_disk / "filler").unlink()
    Store.open(path).close()


def filled(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Let stores find no room while the first entry of the list is true, as it is at first."""
    full, commit = [True], Store.commit

    def commits(self: Store, *words: object, **more: object) -> None:
        if full[0]:
            raise NoRoom("cannot write to the store: its disk is full")
        commit(self, *words, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(Store, "commit", commits)
    monkeypatch.setattr(Store, "has_room", lambda self: not full[0])
    return full


def test_a_write_that_fails_for_want_of_room_loses_nothing(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    served.submit()
    full = filled(monkeypatch)
    for _ in range(3):
        with pytest.raises(NoRoom):
            served.submit()
    full[0] = False
    until(lambda: _taken(served), "a submission to be taken again")
    assert [row.number for row in served.store.jobs()] == [1, 0]
    assert served.failed == []


@dataclass
class Web:
    """Requests to a service with pages, of an administrator and of the agent of a node with one GPU."""

    served: Served
    http: TestClient
    admin: dict[str, str]
    agent: dict[str, str]

    def sync(self, *seen: Seen, **more: Any) -> Any:
        told = Observed(NodeInfo("n0", 1), "a", 1, 0, list(seen), **more)
        return self.http.post("/agent/v1/sync", headers=self.agent, json=to_json(told)).json()

    def submit(self) -> int:
        return int(self.http.post("/v1/jobs", headers=self.admin, json={"command": ["true"]}).status_code)

    def get(self, path: str) -> Any:
        return self.http.get(path, headers=self.admin)

    def read(self, path: str) -> Any:
        answer = self.get(path)
        assert answer.status_code == 200, answer.text
        return answer


@pytest.fixture
def web(served: Served) -> Iterator[Web]:
    """The first of two jobs runs."""
    tokens = Tokens(served.store, served.clock)
    secrets = tokens.make("ann", "admin")[0], tokens.make("n0", "agent", node="n0")[0]
    api = Api(served.store, served.worker, tokens, Mailbox(), served.begin)
    with TestClient(make_app(api, make_pages), raise_server_exceptions=False) as http:
        web = Web(served, http, *({"Authorization": f"Bearer {secret}"} for secret in secrets))
        web.sync()
        assert web.submit() == web.submit() == 200
        until(lambda: web.sync()["attempts"], "the first job to start")
        web.sync(Seen(0, 1, 0, RUNNING, pid=7, steps=3.0))
        yield web


def test_a_full_disk_refuses_submissions_and_is_read_all_the_same(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    full = filled(monkeypatch)
    assert web.submit() == 507
    for path in ("", "/j-0", "/j-1", "/j-0/explain", "/j-1/explain", "/j-0/events"):
        answer = web.get(f"/v1/jobs{path}")
        assert answer.status_code == 200, f"{path}: {answer.text}"
    for path in ("nodes", "state", "policy", "events", "projects"):
        assert web.get(f"/v1/{path}").status_code == 200
    status = web.get("/v1/status").json()
    assert "its disk is full" in status["store_error"]
    assert web.submit() == 507

    def answer_asks() -> None:
        answer = web.sync(Seen(0, 1, 0, RUNNING, pid=7))
        replies = [Reply(ask["id"], "hello\n", 0, 6, 6) for ask in answer["ask"]]
        if replies:
            web.sync(Seen(0, 1, 0, RUNNING, pid=7), replies=replies)

    with ThreadPoolExecutor(1) as other:
        log = other.submit(web.get, "/v1/jobs/j-0/logs")
        until(lambda: answer_asks() or log.done(), "the log", 10)
    assert log.result().json()["text"] == "hello\n"
    full[0] = False
    until(lambda: web.submit() == 200, "a submission to be taken again")
    assert web.get("/v1/status").json()["store_error"] is None


def test_a_full_disk_shows_what_is_stored_and_since_when(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not_current.HEADER not in web.read("/v1/jobs").headers
    before = web.read("/v1/status").json()
    assert before["stored_s"] is None
    full = filled(monkeypatch)
    assert [web.submit() for _ in range(3)] == [507] * 3
    web.sync(Seen(0, 1, 0, ENDED, exit_code=0))  # not taken: the agent reports it again when there is room
    status = web.read("/v1/status").json()
    assert status["jobs"] == before["jobs"]
    assert status["log_seq"] == before["log_seq"]
    assert status["term"] == before["term"]
    assert before["now_s"] <= status["stored_s"] <= status["now_s"]
    listed = web.read("/v1/jobs")
    assert [(job["id"], job["state"], job["iterations_done"]) for job in listed.json()] == [
        ("j-1", "waiting", 0.0), ("j-0", "running", 3.0),
    ]  # fmt: skip
    assert [job["id"] for job in web.read("/v1/queue").json()["jobs"]] == ["j-0", "j-1"]
    (node,) = web.read("/v1/nodes").json()
    assert (node["state"], node["gpu_jobs"]) == ("ready", [["j-0"]])
    age = json.loads(listed.headers[not_current.HEADER])
    assert age["why"] == "cannot write to the store: its disk is full"
    assert 0.0 <= age["ago_s"] <= web.served.clock()
    assert "disk is full; shown as of" in not_current.sentence_of(listed.headers[not_current.HEADER])
    page = web.http.post("/web/codes", headers=web.admin).json()["path"]
    web.http.get(page)
    for path in ("", "jobs", "nodes", "queue", "jobs/j-0"):
        assert "disk is full; shown as of" in web.http.get(f"/web/{path}").text, path
    full[0] = False
    until(lambda: web.submit() == 200, "a submission to be taken again")
    assert not_current.HEADER not in web.read("/v1/jobs").headers
    assert web.read("/v1/status").json()["stored_s"] is None
    assert "shown as of" not in web.http.get("/web/jobs").text


def test_agents_go_on_as_they_are_while_the_service_waits_for_room() -> None:
    from plait.live.service.http.routes.admin import _current_assignment

    class One:
        class worker:
            class engine:
                options = Options()

        mailbox = Mailbox()

    told = Observed(NodeInfo("n0", 2), "a", 3, 7, [Seen(1, 1, 0, RUNNING), Seen(2, 1, 0, ENDED, exit_code=0)])
    answer = _current_assignment(One(), told)  # type: ignore[arg-type]
    assert (answer.term, answer.version < 0, answer.attempts) == (3, True, [])
    assert answer.keep == [[1, 1, 0], [2, 1, 0]]
    assert answer.lease_s == Options().lease_s


def test_an_agent_that_cannot_write_its_journal_tries_again(small_disk: Path) -> None:
    journal = Journal(small_disk / "journal.jsonl")
    fill(small_disk / "filler")
    with pytest.raises(OSError, match="No space"):
        journal.append(*({"what": "term", "term": term} for term in range(10_000)))
    (small_disk / "filler").unlink()
    journal.append({"what": "term", "term": 20_000})
    journal.close()
    again = Journal(small_disk / "journal.jsonl")
    assert again.memory.term == 20_000
    again.close()


def test_a_service_says_again_where_it_is_and_ends_with_its_home(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    service = subprocess.Popen(
        [sys.executable, "-m", "plait.live.service", "--home", str(home), "--policy", "fifo"], stderr=subprocess.PIPE
    )
    try:
        layout = Layout(home.resolve())
        until(layout.service_file.exists, "the service to answer", 60)
        said = json.loads(layout.service_file.read_text())
        layout.service_file.unlink()
        found = any_service_process(layout)  # by its lock
        assert found.pid == service.pid
        until(layout.service_file.exists, "service.json to be written again")
        assert json.loads(layout.service_file.read_text()) == said
        shutil.rmtree(home)
        _, error = service.communicate(timeout=60)
        assert service.returncode != 0
        assert f"the home folder {layout.home} has vanished".encode() in error
    finally:
        service.kill()
        service.wait()
        if service.stderr:
            service.stderr.close()


DAEMON = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execve(sys.executable, [sys.executable, "-S", "-c", "import time; time.sleep(600)", sys.argv[1]], {})
    os._exit(0)
time.sleep(600)
"""


class Hidden:
    """A job that leaves a daemon with another session, another parent, and no word of plait's in its environment."""

    def __init__(self, tmp_path: Path) -> None:
        from plait.live.agent.lease import Lease, NodeLease
        from plait.live.agent.processes import launch
        from plait.live.protocol.wire import GroupInfo, Mate, Run

        self.layout, self.name = Layout(tmp_path / "home"), f"hidden-{os.getpid()}"
        argv = [sys.executable, "-S", "-c", DAEMON, self.name]
        run = Run(1, 1, 0, 1, argv, [0], GroupInfo("g", members=[Mate(1, 0)]))
        launch.prepare(run, self.layout)
        lease = NodeLease(self.layout.lease("n0"), Lease(procs.boot_s(), 600.0))
        self.mark = launch.mark_of(self.layout, 1, 1, 0)
        self.runner = launch.spawn(run, self.layout, {**os.environ, procs.MARK: self.mark}, lease)
        until(self.daemons, "the daemon")

    def daemons(self) -> list[int]:
        lines = ((pid, Path(f"/proc/{pid}/cmdline")) for pid in procs.pids())
        found = []
        for pid, path in lines:
            with contextlib.suppress(OSError):
                if self.name.encode() in path.read_bytes() and not procs.environment(pid):
                    found.append(pid)
        return found

    def close(self) -> None:
        for pid in self.daemons():
            os.kill(pid, 9)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.runner, 0)


@pytest.fixture
def hidden(tmp_path: Path) -> Iterator[Hidden]:
    made = Hidden(tmp_path)
    yield made
    made.close()


def test_a_daemon_that_hides_its_environment_ends_with_the_jobs(hidden: Hidden) -> None:
    """Its agent is dead."""
    kill_jobs(hidden.layout)
    until(lambda: not hidden.daemons(), "the end of the daemon", 5.0)
    assert procs.marked(hidden.mark) == []


@pytest.fixture
def grouped(hidden: Hidden) -> Hidden:
    if not cgroups.members(hidden.mark):
        pytest.skip("needs a cgroup v2 in which groups can be made")
    return hidden


def test_a_hidden_daemon_ends_with_the_runner_that_is_killed(grouped: Hidden) -> None:
    """Nothing but the control group is left to find it by, and the guardian does."""
    os.kill(grouped.runner, signal.SIGKILL)
    os.waitpid(grouped.runner, 0)
    until(lambda: not grouped.daemons(), "the end of the daemon", 10.0)
    until(lambda: not glob_groups(grouped.mark), "the end of the group", 10.0)


def test_a_hidden_daemon_without_runner_and_guardian_ends_with_the_jobs(grouped: Hidden) -> None:
    others = [pid for pid in procs.descendants(grouped.runner) if pid not in cgroups.members(grouped.mark)]
    assert len(others) == 1, "the guardian"
    for pid in (*others, grouped.runner):
        os.kill(pid, signal.SIGKILL)
    os.waitpid(grouped.runner, 0)
    until(lambda: procs.marked(grouped.mark) == grouped.daemons(), "the job's own process to end")
    kill_jobs(grouped.layout)
    until(lambda: not grouped.daemons(), "the end of the daemon", 5.0)
    cgroups.remove_home(grouped.mark.partition(":")[0])
    assert not glob_groups(grouped.mark)


def test_without_control_groups_nothing_is_found_or_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(cgroups, "_mount", lambda: "")
    monkeypatch.chdir(tmp_path)
    assert cgroups.make("a:j-1:1:0") == ""
    cgroups.enter("")
    assert cgroups.members("a:j-1:1:0") == cgroups.inside_home("a") == set()
    cgroups.remove("a:j-1:1:0")
    cgroups.remove_home("a")
    assert list(tmp_path.iterdir()) == []


def glob_groups(mark: str) -> list[str]:
    return cgroups._of_home(mark.partition(":")[0])
