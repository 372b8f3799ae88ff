"""`plait logs --tail`: whole lines, read from the end of a log as agents answer."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from plait.cli import patience
from plait.cli.commands import jobs
from plait.live.agent.logs import read_part
from plait.live.agent.processes.runner import LogWriter
from plait.live.api.jobs import LogPart
from plait.live.client.client import NotRunning
from plait.live.supervisor import daemon
from sample_answers import sample


class Service:
    """Answers about one log in a folder."""

    def __init__(self, folder: Path, most: int) -> None:
        self.folder, self.most = folder, most

    def logs(
        self, job: str, *, rank: int = 0, offset: int = 0, limit: int = 65_536, epoch: int | None = None
    ) -> LogPart:
        """A part, of at most `most` bytes."""
        return sample(LogPart, **asdict(read_part(self.folder, offset, min(limit, self.most))))


@pytest.mark.parametrize("most", [1000, 1001, 1002, 1 << 20])
def test_the_last_lines_are_whole_characters_and_lines(tmp_path: Path, monkeypatch: Any, most: int) -> None:
    monkeypatch.setattr(jobs, "LOG_CHUNK", 512)
    text = "".join(f"line {i} {'ä€😀' * (i % 40)}\n" for i in range(400)) + "without an end ä"
    LogWriter(str(tmp_path), 10_000_000).write(text.encode())
    service: Any = Service(tmp_path, most)
    for count in (1, 2, 20, 300, 1000):
        found = jobs.last_lines(service, "j-1", 0, count)
        assert found.text == "\n".join(text.split("\n")[-count:])
        assert text.encode()[found.offset :].decode() == found.text
        assert found.next == found.size == len(text.encode())


def test_lines_behind_a_gap_and_an_empty_log(tmp_path: Path) -> None:
    writer = LogWriter(str(tmp_path), 4096)
    service: Any = Service(tmp_path, 1 << 20)
    assert jobs.last_lines(service, "j-1", 0, 3).text == ""
    for i in range(3000):
        writer.write(f"{i:06d}\n".encode())
    assert jobs.last_lines(service, "j-1", 0, 2).text == "002998\n002999\n"
    everything = jobs.last_lines(service, "j-1", 0, 3000).text.splitlines()
    assert everything[0] == "000000"
    assert sum(line.startswith("[plait: ") for line in everything) == 1


# `plait replay` and `plait fidelity` import nothing because a log names it.

SPY = """
from pathlib import Path
Path("imported").write_text("")
from plait.policies.catalog import make_policy

def Best():
    return make_policy("fifo")
"""


@pytest.fixture
def simulated(plait, small, tmp_path: Path) -> Path:
    """A log of a policy in `spy.py`, which leaves a mark when it is imported."""
    (tmp_path / "spy.py").write_text(SPY)
    assert plait("simulate", small, "-p", "fifo", "-c", "2x4", "--log", "log.jsonl").code == 0
    log = tmp_path / "log.jsonl"
    head, *rest = log.read_text().splitlines()
    log.write_text("\n".join([json.dumps({**json.loads(head), "policy": "spy:Best"}), *rest]) + "\n")
    return log


def test_replay_imports_what_the_user_named_alone(plait, simulated: Path, tmp_path: Path) -> None:
    refused = plait("replay", simulated)
    assert refused.code == 2
    assert "--allow-policy spy" in refused.err
    assert "a log runs nothing" in refused.err
    assert not (tmp_path / "imported").exists()
    assert plait("replay", simulated, "--allow-policy", "other").code == 2
    assert not (tmp_path / "imported").exists()
    assert plait("replay", simulated, "--allow-policy", "spy", "--verify").code == 0
    assert (tmp_path / "imported").exists()


def test_replay_runs_only_policies_of_a_module_that_was_named(plait, simulated: Path, tmp_path: Path) -> None:
    """And not what that module has from elsewhere."""
    (tmp_path / "mine.py").write_text("from os import system\n")
    simulated.write_text(simulated.read_text().replace("spy:Best", "mine:system:command=touch ran"))
    refused = plait("replay", simulated, "--allow-policy", "mine")
    assert refused.code == 2
    assert "mine.system is no policy" in refused.err
    assert not (tmp_path / "ran").exists()


def test_fidelity_imports_nothing_that_a_saved_log_names(plait, tmp_path: Path) -> None:
    entry = {"type": "PolicySet", "at_s": 0.0, "policy": "os:system:command=touch ran", "may_lose_work": False}
    log = tmp_path / "events.json"
    log.write_text(json.dumps([{"seq": 1, "event": entry, "commands": []}]))
    refused = plait("fidelity", "--log", log)
    assert refused.code == 2
    assert "--allow-policy os" in refused.err
    assert not (tmp_path / "ran").exists()


# `plait logs -f` waits for a service that its keeper is starting again, says so, and not without end.


@pytest.fixture
def away(plait, tmp_path, monkeypatch):
    """A home whose service does not answer; a function that says whether its keeper lives."""
    (tmp_path / "service.json").write_text('{"url": "http://127.0.0.1:9", "pid": 1}')
    monkeypatch.setenv("PLAIT_TOKEN", "x")
    monkeypatch.delenv("PLAIT_URL", raising=False)
    monkeypatch.setattr("plait.live.client.transport.PAUSES_S", (0.0, 0.0, 0.0))
    kept = [True]
    monkeypatch.setattr(daemon, "running", lambda layout, name: object() if kept[0] else None)
    return kept


@pytest.mark.parametrize("tail", [(), ("--tail", 10)])
def test_logs_that_follow_wait_for_the_keeper_and_say_so(plait, away, tmp_path, monkeypatch, tail) -> None:
    monkeypatch.setattr(patience, "STARTED_S", 0.3)
    answer = plait("logs", "-f", "j-1", *tail, "--home", tmp_path)
    assert answer.code == 2
    assert answer.err.count("its keeper starts it again, and the log goes on then") == 1
    away[0] = False
    answer = plait("logs", "-f", "j-1", *tail, "--home", tmp_path)
    assert answer.code == 2
    assert "keeper" not in answer.err
    assert "start it with: plait up" in answer.err


def test_what_is_asked_is_awaited(away, tmp_path, monkeypatch) -> None:
    answers = [NotRunning("away"), NotRunning("away"), {"size": 7}]

    def ask():
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(patience, "LOOK_S", 0.0)
    assert patience.awaited(ask, patience.while_it_is_started(str(tmp_path))) == {"size": 7}
    away[0] = False
    answers[:] = [NotRunning("away")]
    with pytest.raises(NotRunning):
        patience.awaited(ask, patience.while_it_is_started(str(tmp_path)))
