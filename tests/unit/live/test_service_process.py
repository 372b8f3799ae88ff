"""The service as a process: one a home, careful about where it listens, gone when told to."""

import json
import os
import random
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from plait.live.layout import Layout
from plait.live.service import leadership as clocks
from plait.live.service.leadership import FACT, MOST_AWAY_S, SLOW, Anchor, Clock, begin_s, open_leadership
from plait.live.service.main import main
from plait.live.service.options import read_options


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


# -- the service's time: never back, exact while the machine runs, not moved for good by a date that was wrong once ---


DAY, YEAR = 86_400.0, 365 * 86_400.0
MADE = 1.7e9


class Machine:
    """A date that may be wrong, clocks that are right, boots, and starts of a service on one store."""

    def __init__(self) -> None:
        self.true_s, self.wrong_s, self.boot, self.booted_s = MADE, 0.0, 0, MADE - 1000.0
        self.last_s, self.anchor = 0.0, None
        self.clock: Clock | None = None

    def anchor_now(self) -> Anchor:
        return Anchor(0.0, self.true_s + self.wrong_s, f"boot{self.boot}", self.true_s - self.booted_s)

    def start(self) -> float:
        now = begin_s(self.last_s, MADE, self.anchor, self.anchor_now())
        self.anchor = Anchor.read(replace(self.anchor_now(), service_s=now).text())
        self.clock = Clock(now, MADE, lambda: self.true_s + self.wrong_s, lambda: self.true_s)
        assert now >= self.last_s
        self.last_s = now
        return now

    def run(self, seconds: float, steps: int = 10) -> float:
        assert self.clock is not None
        for _ in range(steps):
            self.true_s += seconds / steps
            now = self.clock()
            assert now >= self.last_s
            self.last_s = now
        return self.last_s

    def stop(self, seconds: float, reboot: bool = False) -> None:
        self.clock, self.true_s = None, self.true_s + seconds
        if reboot:
            self.boot, self.booted_s = self.boot + 1, self.true_s - 60.0

    @property
    def ahead_s(self) -> float:
        """How much later the service's time is than the true one."""
        return self.last_s - (self.true_s - MADE)


def test_time_goes_on_by_what_has_passed_whether_a_service_ran_or_not() -> None:
    m = Machine()
    assert m.start() == 0.0
    m.run(100.0)
    m.stop(50.0)
    assert m.start() == pytest.approx(150.0)
    m.stop(5000.0, reboot=True)
    assert m.start() == pytest.approx(5150.0)


@pytest.mark.parametrize("wrong_s", [YEAR, 10 * YEAR, -YEAR, -40 * YEAR, 3600.0])
def test_a_wrong_date_moves_nothing_where_the_machine_stayed_on(wrong_s: float) -> None:
    m = Machine()
    m.start()
    m.run(1000.0)
    m.stop(10.0)
    m.wrong_s = wrong_s
    assert m.start() == pytest.approx(1010.0)
    m.wrong_s = 0.0
    m.run(50.0)
    m.stop(10.0)
    assert m.start() == pytest.approx(1070.0, abs=10.0)


@pytest.mark.parametrize("wrong_s", [YEAR, 30 * YEAR, 3600.0])
def test_a_date_wrong_at_one_boot_moves_time_by_a_day_at_most_and_time_comes_back(wrong_s: float) -> None:
    m = Machine()
    m.start()
    m.run(1000.0)
    m.stop(60.0, reboot=True)
    m.wrong_s = wrong_s
    m.start()
    assert m.ahead_s == pytest.approx(min(wrong_s, MOST_AWAY_S - 60.0))
    before = m.ahead_s
    m.wrong_s = 0.0  # the time server was heard
    m.run(DAY, steps=1000)
    assert m.ahead_s == pytest.approx(max(before - (1 - SLOW) * DAY, 1.0), abs=100.0)
    m.stop(100.0, reboot=True)
    m.start()  # what passes meanwhile is counted by the date, which says that nothing did
    assert m.ahead_s <= before
    m.run(10 * DAY, steps=10_000)
    assert abs(m.ahead_s) < 100.0


def test_a_date_wrong_for_years_to_the_past_changes_neither_time_nor_its_pace() -> None:
    for wrong_s in (-YEAR, -60 * YEAR):
        m = Machine()
        m.start()
        m.run(5000.0)
        m.stop(60.0, reboot=True)
        m.wrong_s = wrong_s
        began = m.start()
        assert began == pytest.approx(5000.0)
        assert m.run(1000.0) == pytest.approx(began + 1000.0)


def test_time_never_goes_back_and_stays_near_the_truth_whatever_the_date_does() -> None:
    for seed in range(30):
        draw, m = random.Random(seed), Machine()
        jumps = 0
        m.start()
        for _ in range(40):
            m.run(draw.uniform(0, 20_000))
            reboot = draw.random() < 0.5
            m.stop(draw.uniform(0, 5000), reboot)
            wrong = draw.choice([0.0, 0.0, draw.uniform(-1, 1) * 10 ** draw.uniform(0, 9)])
            jumps += reboot and wrong > 0
            m.wrong_s = wrong
            m.start()
            m.run(draw.uniform(0, 1000))
            m.wrong_s = 0.0
        assert -41 * 5000 * 1.2 - 0.2 * 40 * 21_000 <= m.ahead_s <= jumps * MOST_AWAY_S + 100


def test_an_anchor_that_cannot_be_read_is_none() -> None:
    for text in (None, "", "x", "[]", '{"service_s": 1}', '{"a": "b"}', "1" * 5000):
        assert Anchor.read(text) is None


def test_secrets_end_by_the_date_where_no_service_ran_for_long() -> None:
    m = Machine()
    m.start()
    m.stop(30 * DAY, reboot=True)
    m.start()
    assert m.clock is not None
    assert m.clock() == pytest.approx(MOST_AWAY_S)
    assert m.clock.by_date() == pytest.approx(30 * DAY)


def test_a_service_started_under_a_wrong_date_goes_on_where_it_was(tmp_path: Path, monkeypatch: Any) -> None:
    """The whole way: store, engine, log."""
    args, layout = read_options(["--home", str(tmp_path), "--policy", "fifo"]), Layout(tmp_path)
    real, wrong = time.time, [0.0]
    monkeypatch.setattr(time, "time", lambda: real() + wrong[0])

    def started(boot: str) -> tuple[float, str | None]:
        monkeypatch.setattr(clocks, "boot_id", lambda: boot)
        lead = open_leadership(args, layout, None)
        lead.engine.set_project("p", gpu_quota=1, weight=1.0, now_s=lead.clock())
        now, fact = lead.clock(), lead.store.fact(FACT)
        lead.store.close()
        return now, fact

    assert started("a")[0] < 60
    wrong[0] = YEAR
    assert started("a")[0] < 60
    wrong[0] = 0.0
    assert started("a")[0] < 60
    wrong[0] = YEAR
    assert MOST_AWAY_S <= started("b")[0] < MOST_AWAY_S + 60
    wrong[0] = 0.0
    now, fact = started("c")
    assert MOST_AWAY_S <= now < MOST_AWAY_S + 60
    anchor = Anchor.read(fact)
    assert anchor.boot == "c"
