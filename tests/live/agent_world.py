"""A node for tests: a real agent process, and a service that says what the test wants it to say."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from plait.live.layout import Layout, make_private
from plait.live.protocol import wire
from plait.live.system import procs

DEADLINE_S = 20.0
TOKEN = "enrolment-token"


def until(true: Callable[[], Any], what: str, deadline_s: float = DEADLINE_S, look_s: float = 0.02) -> Any:
    """Wait for something to become true; its value. Whoever asks a service looks less often: answers cost time."""
    end = time.monotonic() + deadline_s
    while time.monotonic() < end:
        if value := true():
            return value
        time.sleep(look_s)
    raise AssertionError(f"waited {deadline_s:g} s in vain for: {what}")


class Service:
    """Answers agents with what `runs` says. `quiet`: answers with an error, as if it was not there."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.term, self.version, self.lease_s = 1, 1, 600.0
        self.runs: dict[tuple[int, int, int], wire.Run] = {}
        self.kept: set[tuple[int, int, int]] = set()
        self.asks: list[wire.Ask] = []
        self.told: list[wire.Observed] = []
        self.replies: dict[int, wire.Reply] = {}
        self.quiet = False
        self.override: Callable[[wire.Observed], wire.Assignment] | None = None
        #: The newest version it understands; it refuses others as a service of that version does.
        self.speaks = wire.VERSION
        self.heard: list[int] = []
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.server.daemon_threads = True
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02})
        self.thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_address[1]}"

    def close(self) -> None:
        self.quiet = True
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()

    def want(self, *runs: wire.Run, drop: tuple[tuple[int, int, int], ...] = ()) -> None:
        """Add or change what should run; `drop` what should not any more."""
        with self.changed:
            for run in runs:
                self.runs[run.job, run.epoch, run.rank] = run
            for key in drop:
                self.runs.pop(key, None)
            self.version += 1
            self.changed.notify_all()

    def ask(self, job: int, *, epoch: int = 1, rank: int = 0, offset: int = 0, limit: int = 65536) -> wire.Reply:
        number = len(self.replies) + len(self.asks) + 1
        with self.changed:
            self.asks.append(wire.Ask(number, job, epoch, rank, offset, limit))
            self.changed.notify_all()
        return until(lambda: self.replies.get(number), f"reply {number}")

    def seen(self, job: int, *, epoch: int = 1, rank: int = 0) -> wire.Seen | None:
        """The newest that was told of a process; its end is the last of it, though older words may come later.

        An agent has two questions open at a time, and the one that it asked first may arrive second.
        """
        key = (job, epoch, rank)
        found = [a for told in self.told for a in told.attempts if (a.job, a.epoch, a.rank) == key]
        return next((a for a in found if a.state == "ended"), found[-1] if found else None)

    def wait(self, job: int, state: str, *, epoch: int = 1, rank: int = 0) -> wire.Seen:
        def there() -> wire.Seen | None:
            seen = self.seen(job, epoch=epoch, rank=rank)
            return seen if seen is not None and seen.state == state else None

        return until(there, f"job {job} attempt {epoch} rank {rank} to be {state}")

    def answer(self, told: wire.Observed) -> wire.Assignment:
        with self.changed:
            self.told.append(told)
            for reply in told.replies:
                self.replies[reply.id] = reply
            self.asks = [ask for ask in self.asks if ask.id not in self.replies]
            for attempt in told.attempts:
                key = attempt.job, attempt.epoch, attempt.rank
                if attempt.state == "ended" and key not in self.kept and self.runs.pop(key, None):
                    self.version += 1
            if self.override is not None:
                return self.override(told)
            self.changed.wait_for(lambda: self.version > told.reached or self.asks or self.quiet, told.wait_s)
            kept = [list(key) for key in self.kept]
            return wire.Assignment(
                self.term, self.version, self.lease_s, list(self.runs.values()), kept, list(self.asks)
            )

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        service = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                good = self.path == "/agent/v1/sync" and self.headers["Authorization"] == f"Bearer {TOKEN}"
                service.heard.append(body["v"])
                known = body["v"] == service.speaks
                answer = (
                    service.answer(wire.from_json(wire.Observed, body))
                    if good and known and not service.quiet
                    else None
                )
                why = "no" if known else f"Observed has version {body['v']}; this plait speaks version {service.speaks}"
                data = json.dumps(wire.to_json(answer) if answer else {"error": {"message": why}}).encode()
                with contextlib.suppress(OSError):
                    self.send_response(200 if answer else 503 if known else 422)
                    self.send_header("Content-Length", str(len(data)))
                    self.end_headers()
                    self.wfile.write(data)

            def log_message(self, *_: object) -> None:
                pass

        return Handler


class World:
    def __init__(self, home: Path) -> None:
        self.layout = Layout.at(home)
        self.service = Service()
        self.agent: subprocess.Popen[bytes] | None = None
        make_private(self.layout.node("n0"))
        (self.layout.node("n0") / "enrol").write_text(TOKEN)
        self.publish()

    def publish(self) -> None:
        self.layout.service_file.write_text(json.dumps({"url": self.service.url}))

    def start(self, *options: str, gpus: int = 4) -> World:
        command = [sys.executable, "-m", "plait.live.agent", "--home", str(self.layout.home), "--gpus", str(gpus)]
        with open(self.layout.node("n0") / "agent.log", "ab") as log:
            self.agent = subprocess.Popen([*command, *options], stdout=log, stderr=log, start_new_session=True)
        return self

    def end_agent(self, number: int = signal.SIGTERM) -> int:
        self.agent.send_signal(signal.SIGCONT)
        self.agent.send_signal(number)
        code = self.agent.wait(DEADLINE_S)
        self.agent = None
        return code

    def run(self, job: int, *argv: str, **more: Any) -> wire.Run:
        alone = wire.GroupInfo(f"g{job}", members=[wire.Mate(job, 0)])
        values: dict[str, Any] = {"epoch": 1, "rank": 0, "world": 1, "gpus": [0], "grace_s": 30.0, "group": alone}
        return wire.Run(job=job, argv=list(argv), **(values | more))

    def python(self, job: int, code: str, **more: Any) -> wire.Run:
        return self.run(job, sys.executable, "-S", "-c", code, **more)

    def folder(self, job: int, *, epoch: int = 1, rank: int = 0) -> Path:
        return self.layout.rank(job, epoch, rank)

    def log(self, job: int, *, epoch: int = 1, rank: int = 0) -> str:
        path = self.folder(job, epoch=epoch, rank=rank) / "out.log"
        return path.read_text() if path.exists() else ""

    def said(self, job: int, text: str, *, epoch: int = 1, rank: int = 0) -> str:
        """Wait until a job has printed something."""
        until(lambda: text in self.log(job, epoch=epoch, rank=rank), f"{text!r} in the log of job {job}")
        return self.log(job, epoch=epoch, rank=rank)

    def starts(self, run: wire.Run, text: str = "ready") -> None:
        """Request a job, and wait until it has printed something."""
        self.service.want(run)
        self.said(run.job, text, epoch=run.epoch, rank=run.rank)

    def runner(self, job: int, *, epoch: int = 1, rank: int = 0) -> int:
        claim = until(lambda: procs.read_json(self.folder(job, epoch=epoch, rank=rank) / "runner.json"), "runner.json")
        return int(claim["pid"])

    def journal(self) -> list[dict[str, Any]]:
        lines = (self.layout.node("n0") / "journal.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines if line]

    def left(self) -> list[str]:
        """What still runs or lies about of this home: processes by their environment or command, gates."""
        home = str(self.layout.home).encode()
        mine = []
        for pid in procs.pids():
            with contextlib.suppress(OSError):
                environment = Path(f"/proc/{pid}/environ").read_bytes()
                command = Path(f"/proc/{pid}/cmdline").read_bytes()
                marked = b"PLAIT_HOME=" + home in environment.split(b"\0") or home in command.split(b"\0")
                if marked and procs.start_time(pid) is not None and pid != os.getpid():
                    mine.append(f"{pid} {command.replace(bytes(1), b' ').decode()}")
        gates = self.layout.gates
        return mine + ([str(p) for p in gates.iterdir() if p.is_dir()] if gates.is_dir() else [])

    def close(self) -> None:
        """Stop everything; fails if something is left that the agent should have ended."""
        if self.agent is not None and self.agent.poll() is None:
            self.layout.service_file.unlink(missing_ok=True)  # nobody is left to hear a last word
            self.agent.send_signal(signal.SIGCONT)
            self.agent.send_signal(signal.SIGUSR1)
            self.agent.wait(DEADLINE_S)
        self.service.close()
        with contextlib.suppress(AssertionError):
            until(lambda: not self.left(), "nothing left", 3.0)
        left = self.left()
        for line in left:
            if line.split()[0].isdigit():
                with contextlib.suppress(OSError):
                    os.kill(int(line.split()[0]), signal.SIGKILL)
        assert not left, left
        if self.layout.gates.parent != self.layout.home:
            shutil.rmtree(self.layout.gates.parent, ignore_errors=True)


def group(name: str, *jobs: int, gate: str = "none", version: int = 1) -> wire.GroupInfo:
    return wire.GroupInfo(name, gate, members=[wire.Mate(job, turn) for turn, job in enumerate(jobs)], version=version)
