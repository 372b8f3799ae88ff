"""A world of real processes under any backend, and the one of `LocalBackend`."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from abc import abstractmethod
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
from backend_worlds import GPUS, LOST_S, POLICY, SCRIPT, Json, World
from repeating_proxy import Between

from plait.live.agent import journal
from plait.live.backends.base import NodeBackend
from plait.live.backends.local import LocalBackend
from plait.live.client.client import Client, NotRunning, read_service_file
from plait.live.protocol.wire import NodeInfo, Observed, Seen, to_json
from plait.live.system import procs
from plait.live.system.procs import Process


class Served(World):
    def __init__(self, home: Path) -> None:
        super().__init__(home)
        self._service: subprocess.Popen[bytes] | None = None
        self._client: Client | None = None
        self._spawn()
        self.backend = self.make_backend()
        try:
            self.backend.start()
            self.until(lambda: len(self._ready()) >= self.nodes, "all nodes to join")
            self.base = self._ready()
        except BaseException:
            self.close()
            raise

    @abstractmethod
    def make_backend(self) -> NodeBackend:
        """Of `nodes` nodes with `GPUS` each."""

    @property
    def client(self) -> Client:
        assert self._client is not None
        return self._client

    def _ready(self) -> list[str]:
        return sorted(name for name, state in self.states().items() if state == "ready")

    def _spawn(self) -> None:
        self.layout.service_file.unlink(missing_ok=True)
        words = {"policy": POLICY, "round": 0.1, "lost": LOST_S, "first-step": 0, "settle": 1, "grace": 20}
        with open(self.layout.home / "service.log", "ab") as log:
            self._service = subprocess.Popen(
                [
                    sys.executable, "-m", "plait.live.service", "--home", str(self.layout.home),
                    *(word for name, value in words.items() for word in (f"--{name}", str(value))),
                ],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
                env={**os.environ, "PYTHONPATH": os.pathsep.join([str(SCRIPT.parent), *sys.path])},
            )  # fmt: skip
        until = time.monotonic() + self.patience_s
        while read_service_file(self.layout) is None:
            assert self._service.poll() is None, (self.layout.home / "service.log").read_text()[-2000:]
            assert time.monotonic() < until, "the service does not answer"
            time.sleep(0.02)
        if self._client is not None:
            self._client.close()
        self._client = Client.at(str(self.layout.home), url=str((read_service_file(self.layout) or {})["url"]))

    # -- users --------------------------------------------------------------------------------------------

    def submit(self, *words: str, **more: Any) -> int:
        made = self.client.submit([{"command": [sys.executable, str(SCRIPT), *words], **more}])[0]
        self._submitted.append(made.number)
        return made.number

    def held(self) -> list[str]:
        self._go.unlink(missing_ok=True)
        return [f"until={self._go}"]

    def let_go(self) -> None:
        self._go.touch()

    @property
    def _go(self) -> Path:
        return self.layout.home / "go"

    def job(self, number: int) -> Json:
        found: Json = msgspec.to_builtins(self.client.job(f"j-{number}"))
        return found

    def cancel(self, number: int) -> None:
        self.client.cancel(f"j-{number}")

    def states(self) -> dict[str, str]:
        return {node.id: node.state for node in self.client.nodes()}

    def drain(self, node: str) -> None:
        self.client.drain(node, may_lose_work=True)

    def resume(self, node: str) -> None:
        self.client.resume(node)

    def follow(self, number: int) -> Iterator[str]:
        return self.client.follow(f"j-{number}")

    def attempt_log(self, number: int, epoch: int, rank: int = 0) -> str:
        path = self.layout.rank(number, epoch, rank) / "out.log"
        return path.read_text() if path.exists() else ""

    def term(self) -> int:
        return self.client.status().term

    def log(self) -> list[Json]:
        return [row["event"] for row in self.client.all_events()]

    # -- faults -------------------------------------------------------------------------------------------

    def agent(self, node: str) -> Process | None:
        """The process of a node's agent, if it has said that it runs."""
        record = procs.read_json(self.layout.node(node) / "agent.json") or {}
        process = Process.of(int(record.get("pid", 0)))
        return process if process is not None and process.start_time == record.get("start_time") else None

    def _send(self, node: str, number: int) -> None:
        process = self.until(lambda: self.agent(node), f"an agent of {node}")
        assert process.send(number)

    def kill_agent(self, node: str) -> None:
        before = self.until(lambda: self.agent(node), f"an agent of {node}")
        before.send(signal.SIGKILL)
        self.until(lambda: (now := self.agent(node)) is not None and now.pid != before.pid, f"a new agent of {node}")

    def freeze(self, node: str) -> None:
        self._send(node, signal.SIGSTOP)

    def thaw(self, node: str) -> None:
        self._send(node, signal.SIGCONT)

    def wake_all(self) -> None:
        """No agent stands still any more."""
        for node in self.states():
            process = self.agent(node)
            if process is not None:
                process.send(signal.SIGCONT)

    def restart(self) -> None:
        self._service.kill()
        self._service.wait()
        self._spawn()

    def tell(self, node: str, *seen: Seen, term: int | None = None, agent: str | None = None) -> None:
        shown = next(n for n in self.client.nodes() if n.id == node)
        info = NodeInfo(**{k: getattr(shown, k) for k in NodeInfo.__dataclass_fields__})
        mine = (procs.read_json(self.layout.node(node) / "agent.json") or {})["agent"]
        words = Observed(info, agent or mine, self.term() if term is None else term, 0, list(seen), wait_s=0.0)
        self._post(node, to_json(words))

    def _post(self, node: str, body: Json) -> Json:
        secret = (self.layout.node(node) / "enrol").read_text().strip()
        connection = HTTPConnection(urlsplit(self.client.url).netloc, timeout=10)
        with contextlib.closing(connection):
            connection.request("POST", "/agent/v1/sync", json.dumps(body), {"Authorization": f"Bearer {secret}"})
            answer = connection.getresponse()
            data = answer.read()
            assert answer.status == 200, data
        return json.loads(data)

    @contextlib.contextmanager
    def confused(self) -> Iterator[object]:
        """Agents that restart find a go-between in the service's place."""
        said = self.layout.service_file.read_text()
        between = Between(urlsplit(json.loads(said)["agents"]).netloc)
        try:
            self._announce({**json.loads(said), "agents": between.url})
            for node in self.base:
                self.kill_agent(node)
            self.until(lambda: set(self.base) <= between.nodes, "agents to talk through the go-between")
            yield between
            assert between.replayed > 0
        finally:
            self._announce(json.loads(said))
            between.close()

    def _announce(self, facts: Json) -> None:
        part = self.layout.home / "service.json.part"
        part.write_text(json.dumps(facts))
        os.replace(part, self.layout.service_file)

    def processes(self, node: str) -> list[tuple[int, int, int]]:
        memory = journal.read(self.layout.node(node) / "journal.jsonl")
        return [key for key in memory.attempts if self._runner(*key) is not None]

    def _runner(self, number: int, epoch: int, rank: int) -> Process | None:
        claim = procs.read_json(self.layout.rank(number, epoch, rank) / "runner.json") or {}
        process = Process.of(int(claim.get("pid", 0)))
        return process if process is not None and process.start_time == claim.get("start_time") else None

    def kill_processes(self, node: str) -> None:
        """All runners of a node, and with each its job's process, as when the machine dies."""
        for key in self.processes(node):
            runner = self._runner(*key)
            if runner is not None:
                runner.send(signal.SIGKILL)

    # -- time ---------------------------------------------------------------------------------------------

    def pass_s(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while True:
            self.maintain()
            left_s = until - time.monotonic()
            if left_s <= 0:
                return
            time.sleep(min(left_s, 0.1))

    def maintain(self) -> None:
        """What the keeper of `plait up` does about each second."""
        with contextlib.suppress(NotRunning):
            self.backend.maintain(self.client)

    def close(self) -> None:
        try:
            self.wake_all()
        finally:
            assert self._service is not None
            self.client.close()
            self._service.terminate()
            self._service.wait(20)
            self.backend.stop(jobs=True)
            self.layout.service_file.unlink(missing_ok=True)


class Local(Served):
    """Agents of this machine, started by `LocalBackend`."""

    name = "local"
    backend: LocalBackend

    def make_backend(self) -> LocalBackend:
        return LocalBackend(self.layout, self.nodes, GPUS, False, stop_grace_s=5.0)

    def maintain(self) -> None:
        """Agents that died are started, but not those of nodes that were lost on purpose."""
        self.backend.maintain(self.client)

    def join(self) -> str:
        count = len(self.backend.nodes) + 1
        self.backend = LocalBackend(self.layout, count, GPUS, False, stop_grace_s=5.0)
        (name,) = self.backend.start()
        return name

    def leave(self, node: str) -> None:
        assert node == f"n{len(self.backend.nodes) - 1}", "the last one leaves"
        self.backend = LocalBackend(self.layout, len(self.backend.nodes) - 1, GPUS, False, stop_grace_s=5.0)
        self.backend.start()

    def lose(self, node: str) -> None:
        del self.backend.nodes[node]
        self._send(node, signal.SIGKILL)
        self.kill_processes(node)

    def mend(self) -> None:
        self.wake_all()
        self.backend = self.make_backend()
        self.backend.start()
        for node, state in self.states().items():
            if state == "drained":
                self.resume(node)
