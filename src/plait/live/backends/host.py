"""Agents of one home folder on this machine, for any caller: started, found again, ended."""

from __future__ import annotations

import contextlib
import filecmp
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO

from plait.core.errors import PlaitError
from plait.core.options import words
from plait.live.agent import journal
from plait.live.agent.journal import Key
from plait.live.agent.node import AgentOptions
from plait.live.agent.processes.attempt import RUNNER_PATIENCE_S
from plait.live.agent.processes.launch import mark_of
from plait.live.layout import Layout, is_locked, make_private, write_secret
from plait.live.system import procs
from plait.live.system.procs import Process

_MOST_LOG_BYTES = 5_000_000
#: Prints the pid of the process that becomes the agent: orphaned, in a session of its own, so that its starter may die,
#: and where that is allowed not as nice as Ray makes its workers (15), which jobs would inherit.
_DETACH = """
import os, sys
os.setsid()
try:
    os.setpriority(os.PRIO_PROCESS, 0, 0)
except OSError:
    pass
child = os.fork()
if child:
    print(child, flush=True)
    os._exit(0)
os.dup2(2, 1)
os.execv(sys.argv[1], sys.argv[1:])
"""


class DetachedProcess(subprocess.Popen[bytes]):
    """A child that is meant to outlive us, so that dropping it is no mistake to be warned of."""

    def __del__(self) -> None:
        """Nothing."""


class AgentHost:
    """Starts and ends agents of nodes on this machine.

    `detached` agents are orphans and get nothing of the environment of `RAY_`: neither the end of the process that
    started them nor that of its supervisor reaches them, and jobs do not see the secrets of the engine.
    """

    def __init__(self, layout: Layout, stop_grace_s: float, *, detached: bool = False) -> None:
        """Nothing is started yet. `stop_grace_s`: most seconds for jobs at `end(jobs=True)`."""
        self.layout, self.stop_grace_s, self.detached = layout, stop_grace_s, detached
        self._started: dict[str, DetachedProcess] = {}
        self._born: dict[str, Process] = {}

    def spawn(self, name: str, size: Mapping[str, object]) -> None:
        """Start the agent of a node; `size` are its options for the size of the node, by long name."""
        folder = make_private(self.layout.node(name))
        own, common = folder / "enrol", self.layout.home / "enrol"  # older homes have one token for all nodes
        if not own.exists() or (common.exists() and filecmp.cmp(own, common, shallow=False)):
            write_secret(own, "plait_" + secrets.token_urlsafe(32))  # its agent shows it; the service finds it here too
        given = {**size, "home": self.layout.home, "node": name, "stop-grace": f"{self.stop_grace_s:g}"}
        command = [sys.executable, "-m", "plait.live.agent", *words(AgentOptions, given)]
        with _log_of(folder) as log:
            if self.detached:
                self._born[name] = self._detach(command, log)
            else:
                self._started[name] = DetachedProcess(
                    command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.layout.home,
                    start_new_session=True,
                )  # fmt: skip

    def _detach(self, command: list[str], log: IO[bytes]) -> Process:
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "PLAIT_RAY"))}
        done = subprocess.run(
            [sys.executable, "-S", "-E", "-c", _DETACH, *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            cwd=self.layout.home,
            env=environment,
            timeout=60.0,
            check=True,
        )
        pid = int(done.stdout)
        return Process.of(pid) or Process(pid, -1, "")

    def agent(self, name: str) -> Process | None:
        """The running agent of a node that has reported so."""
        record = procs.read_json(self.layout.node(name) / "agent.json") or {}
        pid, start, boot = record.get("pid"), record.get("start_time"), record.get("boot")
        if not (isinstance(pid, int) and isinstance(start, int) and isinstance(boot, str)):
            return None
        process = Process(pid, start, boot)
        return process if process.alive else None

    def pid(self, name: str) -> int | None:
        """The pid of a running or starting agent of a node; None where there is none."""
        started, known = self._started.get(name), self.agent(name) or self._born.get(name)
        if known is None and started is not None and started.poll() is None:
            return started.pid
        return None if known is None else known.pid

    def runs(self, name: str) -> bool:
        """Whether an agent has the node, or is being born."""
        started, born = self._started.get(name), self._born.get(name)
        if (started is not None and started.poll() is None) or (born is not None and born.alive):
            return True
        return is_locked(self.layout.node(name) / "agent.lock")

    def end(self, names: Sequence[str], jobs: bool, size_of: Callable[[str], Mapping[str, object]]) -> None:
        """Signal, wait, and kill agents that do not end (their jobs' runners are found by the next agent)."""
        until = time.monotonic() + (self.stop_grace_s + RUNNER_PATIENCE_S if jobs else 0.0) + 5.0
        for name in names:
            if jobs and not self.runs(name) and self.has_jobs(name):
                self.spawn(name, size_of(name))  # to reattach to them and end them
            self._wait_for(name)
            process = self.agent(name)
            if process is not None:
                if jobs:
                    with contextlib.suppress(OSError):  # a full disk: the grace the agent was started with
                        procs.write_json(self.layout.node(name) / "stop.json", {"grace_s": self.stop_grace_s})
                process.send(signal.SIGCONT)
                process.send(signal.SIGUSR1 if jobs else signal.SIGTERM)
        for name in names:
            while self.runs(name):
                if time.monotonic() > until:
                    self._kill(name)
                if time.monotonic() > until + 30.0:
                    raise PlaitError(f"the agent of {name} holds its lock, but is not on this machine")
                time.sleep(0.01)
            self._born.pop(name, None)
            started = self._started.pop(name, None)
            if started is not None:
                started.wait()

    def _kill(self, name: str) -> None:
        process = self.agent(name) or self._born.get(name)
        if process is not None:
            process.send(signal.SIGKILL)
        elif name in self._started:
            self._started[name].kill()

    def has_jobs(self, name: str) -> bool:
        """Whether processes of jobs that its agents left still run here."""
        memory = journal.read(self.layout.node(name) / "journal.jsonl")
        return any(not known.ended and self._runs_still(key, known) for key, known in memory.attempts.items())

    def _runs_still(self, key: Key, known: journal.Remembered) -> bool:
        """Whether an attempt has a process: its runner, or what is left of it."""
        return (known.process is not None and known.process.alive) or bool(procs.marked(mark_of(self.layout, *key)))

    def _wait_for(self, name: str, timeout_s: float = 5.0) -> None:
        """Wait while an agent is starting, until it reports that it runs or has ended."""
        until = time.monotonic() + timeout_s
        while self.agent(name) is None and self.runs(name) and time.monotonic() < until:
            time.sleep(0.01)


def _log_of(folder: Path) -> IO[bytes]:
    """agent.log to write to, put aside when it has grown."""
    path = folder / "agent.log"
    if path.exists() and path.stat().st_size > _MOST_LOG_BYTES:
        path.replace(folder / "agent.log.1")
    return open(path, "ab", opener=lambda name, flags: os.open(name, flags, 0o600))
