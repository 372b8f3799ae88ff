"""A cluster on CPU slots of this machine that is kept up: what a supervisor of the service and the backend do.

All work happens in `maintain`, which the owner of the cluster calls now and then: there is no thread.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType

from plait.core.errors import InputError
from plait.live.backends.base import UP
from plait.live.backends.local import ElasticLocal, LocalBackend
from plait.live.client.client import Client, read_service_file
from plait.live.layout import Layout, make_private
from plait.live.system import procs
from plait.live.system.procs import Process

_PATIENCE_S, _LOOK_S = 60.0, 0.1


class Cluster:
    """The service and the agents of a home folder; a context manager that ends them and their jobs."""

    def __init__(
        self,
        home: Path,
        *,
        nodes: int = 2,
        slots: int = 4,
        options: Mapping[str, object] | None = None,
        slot_memory_gb: float | None = None,
        rack_size: int | None = None,
        elastic: ElasticLocal | None = None,
    ) -> None:
        """`options` of `python -m plait.live.service` by name, e.g. {"policy": "muri-l", "lost": 2}.

        `slot_memory_gb`: declared memory of each slot; None: not limited. `rack_size`: nodes of a rack; None: all.
        `elastic`: more nodes come and go.
        """
        self.layout = Layout.at(home)
        self.options = dict(options or {})
        self.backend = LocalBackend(
            self.layout, nodes, slots, False, stop_grace_s=5.0, slot_memory_gb=slot_memory_gb,
            racks=lambda node, nodes: node // (rack_size or nodes), elastic=elastic,
        )  # fmt: skip
        self.starts = 0
        self._service: subprocess.Popen[bytes] | None = None
        self._down_until = 0.0

    def __enter__(self) -> Cluster:
        """Started, and all nodes have joined."""
        make_private(self.layout.home)
        try:
            self._spawn()
            self._until(lambda: self.url is not None, "the service to answer")
            self.backend.start()
            self._until(self._all_ready, "all nodes to join")
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def url(self) -> str | None:
        """Where the service answers; None while it does not."""
        facts = read_service_file(self.layout)
        alive = self._service is not None and self._service.poll() is None
        return str(facts["url"]) if alive and facts and facts.get("pid") == getattr(self._service, "pid", 0) else None

    def client(self) -> Client:
        """A new connection as administrator; raises `NotRunning` while there is no service."""
        return Client.at(str(self.layout.home))

    @property
    def service(self) -> Process | None:
        return None if self._service is None or self._service.poll() is not None else Process.of(self._service.pid)

    def agent(self, node: str) -> Process | None:
        """The process of a node's agent, if it has reported that it runs."""
        pid = next((n.pid for n in self.backend.list_nodes() if n.name == node and n.state == UP), None)
        return None if pid is None else Process.of(pid)

    def keep_down(self, seconds: float) -> None:
        """Leave the service dead for so long, should it die."""
        self._down_until = time.monotonic() + seconds

    def maintain(self) -> None:
        """Restart dead processes: agents as the backend does, the service as a supervisor would."""
        if self._service is not None and self._service.poll() is not None and time.monotonic() >= self._down_until:
            self._spawn()
        if self.backend.elastic is None:
            self.backend.maintain()
            return
        with self.client() as client:
            self.backend.maintain(client)

    def stop(self) -> None:
        """End the service, then the agents with their jobs."""
        if self._service is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._service.pid, signal.SIGCONT)
            self._service.terminate()
            try:
                self._service.wait(20.0)
            except subprocess.TimeoutExpired:
                self._service.kill()
                self._service.wait()
            self._service = None
        self.backend.stop(jobs=True)
        self.layout.service_file.unlink(missing_ok=True)

    def _spawn(self) -> None:
        self.starts += 1
        self.layout.service_file.unlink(missing_ok=True)  # of a dead one
        words = [word for name, value in self.options.items() for word in (f"--{name}", str(value))]
        with open(self.layout.home / "service.log", "ab") as log:
            self._service = subprocess.Popen(
                [sys.executable, "-m", "plait.live.service", "--home", str(self.layout.home), *words],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.layout.home,
                start_new_session=True,
            )

    def _all_ready(self) -> bool:
        with self.client() as client:
            ready = [node for node in client.nodes() if node.state == "ready"]
        return len(ready) >= len(self.backend.nodes)

    def _until(self, true: Callable[[], bool], what: str) -> None:
        until = time.monotonic() + _PATIENCE_S
        while not true():
            if self._service is not None and self._service.poll() is not None:
                raise InputError(f"the service ended at once; see {self.layout.home / 'service.log'}")
            if time.monotonic() > until:
                raise InputError(f"waited {_PATIENCE_S:g} s for {what}; see the logs in {self.layout.home}")
            time.sleep(_LOOK_S)


def workers(layout: Layout) -> list[tuple[Process, Process | None]]:
    """Living runners of a home with the process of the job that each has started, in the order of their folders."""
    found = []
    for path in sorted(layout.home.glob("jobs/j-*/attempts/*/rank*/runner.json")):
        claim = procs.read_json(path) or {}
        runner = _same(claim.get("pid"), claim.get("start_time"))
        if runner is not None:
            found.append((runner, _same(claim.get("child"), claim.get("child_start_time"))))
    return found


def switch_processes(layout: Layout) -> list[tuple[str, Process]]:
    """Living switches and aggregation servers of a home, as `switch NAME` and `server NAME`, by name."""
    begin, found = hashlib.sha256(str(layout.home).encode()).hexdigest()[:12], []
    for pid in procs.pids():
        home, _, rest = procs.environment(pid).get(procs.MARK, "").partition(":")
        kind, dash, name = rest.partition(":")[0].partition("-")
        if home == begin and dash and kind in ("switch", "server") and (process := Process.of(pid)) is not None:
            found.append((f"{kind} {name}", process))
    return sorted(found, key=lambda pair: (pair[0], pair[1].pid))


def _same(pid: object, start_time: object) -> Process | None:
    """The process, if it still lives and is that one."""
    process = Process.of(pid) if isinstance(pid, int) else None
    return process if process is not None and process.start_time == start_time else None
