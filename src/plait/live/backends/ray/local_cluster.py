"""A small real Ray cluster on this machine, for trying things out: `plait ray up`, `plait ray down`.

Each node is a session of processes made by `ray start`; it is ended by its session, never by `ray stop`, which would
end every Ray process of the user. Started nodes are recorded in `ray/cluster.json` of the home folder.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plait.core.errors import InputError, MissingExtra
from plait.live.layout import Layout, make_private, write_secret
from plait.live.system import procs

HEAD = "head"
_START_S, _STOP_S = 90.0, 5.0
#: The least that Ray takes, bytes: nothing is stored there.
_STORE_BYTES = 80_000_000


@dataclass(frozen=True)
class RayProcessGroup:
    """A node of the small cluster: its name, the session of its processes, the living ones."""

    name: str
    session: int
    pids: tuple[int, ...]

    @property
    def alive(self) -> bool:
        """Whether what makes it a node lives: the raylet, and for the head the GCS too."""
        words = {word for pid in self.pids for word in (_program(pid),)}
        return "raylet" in words and (self.name != HEAD or "gcs_server" in words)

    def pid(self, program: str) -> int | None:
        """The process of a program, such as raylet or gcs_server."""
        return next((pid for pid in self.pids if _program(pid) == program), None)


class RayCluster:
    """The small cluster of a home folder."""

    def __init__(self, layout: Layout) -> None:
        if importlib.util.find_spec("ray") is None:
            raise MissingExtra("ray", "ray", "a Ray cluster")
        self.folder = layout.home / "ray"
        self._file = self.folder / "cluster.json"
        self._facts: dict[str, Any] = procs.read_json(self._file) or {}

    @property
    def token_file(self) -> Path:
        """The secret that every process of the cluster shows."""
        return self.folder / "token"

    @property
    def address(self) -> str:
        """Of the head; empty before the first start."""
        return f"{_own_address()}:{self._facts['port']}" if "port" in self._facts else ""

    def members(self) -> list[RayProcessGroup]:
        """All that were started, dead ones too, the head first."""
        if self._facts.get("boot") != procs.boot_id():
            return []
        sessions: dict[int, list[int]] = {}
        for pid in procs.pids():
            with contextlib.suppress(OSError):
                sessions.setdefault(os.getsid(pid), []).append(pid)
        temp = str(self._facts.get("temp"))
        found = []
        for name, session in self._facts.get("nodes", {}).items():
            pids = tuple(pid for pid in sessions.get(session, ()) if procs.start_time(pid) is not None)
            ours = any(temp in _command(pid) for pid in pids)  # the number may belong to another process by now
            found.append(RayProcessGroup(name, session, pids if ours else ()))
        return found

    def up(self, nodes: int | None = None, slots: int | None = None) -> list[str]:
        """Start what does not live; the names of what was started. Raises InputError if it does not come up.

        A head that died comes back at the same address, and the other nodes are started again with it, since nodes of
        the old head cannot join the new one.
        """
        make_private(self.folder)
        if not self.token_file.exists():
            write_secret(self.token_file, secrets.token_hex(32))
        facts = self._facts if self._facts.get("boot") == procs.boot_id() else {}
        self._facts = {
            "boot": procs.boot_id(),
            "temp": facts.get("temp") or tempfile.mkdtemp(prefix="plait-ray-", dir="/tmp"),
            "port": facts.get("port") or _free_port(),
            "client_port": facts.get("client_port") or _free_port(20001),
            "wanted": nodes or facts.get("wanted") or 2,  # not how many there are: a start may have failed
            "slots": slots or facts.get("slots") or 4,
            "nodes": facts.get("nodes", {}),
        }
        alive = {member.name for member in self.members() if member.alive}
        if HEAD not in alive:
            self._end(self.members())
            self._facts["nodes"] = {}
            alive = set()
            # The client's server, which is not needed here, uses one port for all clusters of a machine by default; and
            # a Ray that was installed without it (no grpc) takes no port for it.
            client = ["--ray-client-server-port", str(self._facts["client_port"])] if _has_client() else []
            self._start({HEAD: ["--head", "--port", str(self._facts["port"]), "--include-dashboard", "false",
                                "--num-cpus", "0", *client]})  # fmt: skip
        wanted = [f"n{i}" for i in range(self._facts["wanted"])]
        self._end([member for member in self.members() if member.name not in {*wanted, HEAD} or not member.alive])
        missing = [name for name in wanted if name not in alive]
        labels = f"plait/slots={self._facts['slots']}"
        self._start({name: ["--address", self.address, "--num-cpus", "1", "--labels", f"plait/node={name},{labels}"]
                     for name in missing})  # fmt: skip
        return missing if HEAD in alive else [HEAD, *missing]

    def down(self) -> list[str]:
        """End all processes; the names of the nodes that were there."""
        members = self.members()
        self._end(members)
        if self._facts.get("temp"):
            shutil.rmtree(self._facts["temp"], ignore_errors=True)
        self._file.unlink(missing_ok=True)
        self._facts = {}
        return [member.name for member in members if member.pids]

    def _start(self, what: dict[str, list[str]]) -> None:
        """Start all nodes in parallel and retry failures once: Ray allows 30 s, too little under load."""
        failed = self._try(what)
        if failed:
            self._end([member for member in self.members() if member.name in failed])
            failed = self._try({name: words for name, words in what.items() if name in failed})
        for name, problem in failed.items():
            raise InputError(
                f"the Ray node {name} {problem}; look at {self.folder / (name + '.log')}, clean up with: plait ray down"
            )

    def _try(self, what: dict[str, list[str]]) -> dict[str, str]:
        """Start each and wait; the errors of nodes that did not come up."""
        environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
        environment |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(self.token_file)}
        environment.setdefault("RAY_worker_niceness", "0")  # executors hold agents up, which hold jobs up
        common = [
            "--num-gpus", "0", "--disable-usage-stats", "--include-log-monitor", "false", "--object-store-memory",
            str(_STORE_BYTES), "--node-ip-address", _own_address(),
        ]  # fmt: skip
        started: dict[str, subprocess.Popen[bytes]] = {}
        for name, words in what.items():
            # each its own: in a common one Ray numbers sockets by what is there, and two that start at once take one
            own = ["--temp-dir", f"{self._facts['temp']}/{name}"]
            with open(self.folder / f"{name}.log", "ab") as log:
                started[name] = subprocess.Popen(
                    [sys.executable, "-m", "ray.scripts.scripts", "start", *words, *common, *own],
                    stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, start_new_session=True,
                )  # fmt: skip
            self._facts["nodes"] = {**self._facts["nodes"], name: started[name].pid}
            procs.write_json(self._file, self._facts)
        until = time.monotonic() + _START_S
        failed = {}
        for name, process in started.items():
            try:
                code = process.wait(max(0.1, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                failed[name] = f"did not come up in {_START_S:g} s"
                process.kill()
                process.wait()
            else:
                if code:
                    failed[name] = f"ended with exit code {code}"
        return failed

    def _end(self, members: list[RayProcessGroup]) -> None:
        _end_sessions(members)
        ended = {member.name for member in members}
        if ended:
            self._facts["nodes"] = {
                name: session for name, session in self._facts["nodes"].items() if name not in ended
            }
            procs.write_json(self._file, self._facts)


def _end_sessions(members: list[RayProcessGroup]) -> None:
    """SIGTERM to all processes of sessions, then SIGKILL: raylets without a head do not listen. Agents have left."""
    until = time.monotonic() + _STOP_S
    known = [process for member in members for pid in member.pids if (process := procs.Process.of(pid))]
    for process in known:
        process.send(signal.SIGTERM)
        process.send(signal.SIGCONT)
    while left := [process for process in known if process.alive]:
        if time.monotonic() > until:
            for process in left:
                process.send(signal.SIGKILL)
        time.sleep(0.05)
    sessions = {member.session for member in members if member.pids}
    for pid in procs.pids():  # what they made meanwhile
        with contextlib.suppress(OSError):
            if os.getsid(pid) in sessions:
                os.kill(pid, signal.SIGKILL)


def _has_client() -> bool:
    return importlib.util.find_spec("grpc") is not None


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def _program(pid: int) -> str:
    return Path(_command(pid).partition(" ")[0]).name


def _own_address() -> str:
    """Ray's replacement of 127.0.0.1: the address by which other machines would see this one."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # nothing is sent
        except OSError:
            return "127.0.0.1"
        return str(probe.getsockname()[0])


def _free_port(first: int = 6379) -> int:
    for port in range(first, first + 600):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("", port))
            return port
    raise InputError(f"no port from {first} to {first + 599} is free for a Ray head")
