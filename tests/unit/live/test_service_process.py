"""The service as a process: one a home, careful about where it listens, gone when told to."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from plait.live.service.main import main


def start(home: Path, *options: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "plait.live.service", "--home", str(home), *options]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)


def facts(home: Path, process: subprocess.Popen[str]) -> dict[str, Any]:
    """service.json, once it is there."""
    deadline = time.monotonic() + 60
    while not (home / "service.json").exists():
        assert process.poll() is None, process.stderr.read() if process.stderr else ""
        assert time.monotonic() < deadline
        time.sleep(0.02)
    found: dict[str, Any] = json.loads((home / "service.json").read_text())
    return found


def ask(url: str, token: str, body: Any = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Authorization": f"Bearer {token}"})
    with urllib.request.urlopen(request, timeout=20) as answer:
        return json.load(answer)


@pytest.fixture
def service(tmp_path: Path) -> Iterator[tuple[Path, subprocess.Popen[str]]]:
    process = start(tmp_path)
    yield tmp_path, process
    if process.poll() is None:
        process.kill()
    process.wait()
    process.stderr.close()


def test_from_start_to_end(service: tuple[Path, subprocess.Popen[str]]) -> None:
    home, process = service
    found = facts(home, process)
    assert found["url"].startswith("http://127.0.0.1:")
    assert found["pid"] == process.pid
    stat = Path(f"/proc/{process.pid}/stat")
    if stat.exists():
        assert found["start_time"] == int(stat.read_text().rpartition(")")[2].split()[19])
    for name in ("token", "service.log", "plait.db"):
        assert (home / name).stat().st_mode & 0o077 == 0, name
    token = (home / "token").read_text().strip()
    assert ask(found["url"] + "/v1/jobs", token, {"command": ["x"]}) == {"id": "j-0", "number": 0}
    second = start(home)
    assert second.wait(60) == 2
    assert f"runs in {home} already (process {process.pid}); stop it with: plait down" in second.stderr.read()
    second.stderr.close()
    process.terminate()
    assert process.wait(30) == 0
    assert not (home / "service.json").exists()
    lines = [json.loads(line) for line in (home / "service.log").read_text().splitlines()]
    assert {"answers", "stopped"} <= {line["what"] for line in lines}


def test_killed_and_started_again(service: tuple[Path, subprocess.Popen[str]]) -> None:
    home, process = service
    found = facts(home, process)
    token = (home / "token").read_text().strip()
    ask(found["url"] + "/v1/jobs", token, {"jobs": [{"command": ["x"]}] * 3})
    process.send_signal(signal.SIGKILL)
    process.wait()
    os.unlink(home / "service.json")
    again = start(home)
    found = facts(home, again)
    assert [job["id"] for job in ask(found["url"] + "/v1/jobs", token)] == ["j-2", "j-1", "j-0"]
    assert ask(found["url"] + "/v1/status", token)["term"] == 2
    again.terminate()
    assert again.wait(30) == 0
    again.stderr.close()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--host", "0.0.0.0"], "--host 0.0.0.0 can be reached from other machines"),
        (["--host", "192.168.1.1"], "--insecure in a private network"),
        (["--host", "example.org"], "can be reached from other machines"),
        (["--tls-cert", "/x"], "TLS needs both files"),
        (["--tls-cert", "/nonexistent", "--tls-key", "/nonexistent"], "there is no file /nonexistent"),
        (["--lost", "5", "--lease", "5"], "the lease must be shorter"),
        (["--policy", "fifoo"], "did you mean 'fifo'"),
        (["--db", "mysql://x"], "cannot store on 'mysql'"),
        (["--standby"], "an SQLite file is for one service"),
        (["--name", "../x"], "--name is '../x'; write letters"),
    ],
)
def test_what_is_refused(tmp_path: Path, options: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    import logging

    handlers = list(logging.getLogger().handlers)
    assert main(["--home", str(tmp_path), *options]) == 2
    said = capsys.readouterr().err
    assert says in said
    assert said.count("\n") == 1
    root = logging.getLogger()
    for handler in [h for h in root.handlers if h not in handlers]:
        root.removeHandler(handler)
        handler.close()
