"""`plait logs -f` waits for a service that its keeper is starting again, says so, and not without end."""

from __future__ import annotations

import pytest

from plait.cli import patience
from plait.live.client.client import NotRunning
from plait.live.supervisor import daemon


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
