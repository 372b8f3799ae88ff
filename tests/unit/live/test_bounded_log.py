"""Nobody fills the service's log: lines of one kind have a rate."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from plait.live.service import main as journal
from plait.live.service.main import Bounded, JsonLines


def record(text: str = "request", error: Exception | None = None) -> logging.LogRecord:
    info = None if error is None else (type(error), error, None)
    return logging.LogRecord("plait.http", logging.INFO, "", 0, text, (), info)


def test_lines_of_one_kind_have_a_rate_and_what_is_left_out_is_counted() -> None:
    now = [0.0]
    bounded = Bounded(lambda: now[0])
    assert sum(bounded.filter(record()) for _ in range(5000)) == journal.MOST
    assert bounded.filter(record("another"))
    now[0] = journal.EACH_S
    first = record()
    assert bounded.filter(first)
    assert json.loads(JsonLines().format(first))["left_out_before"] == 5000 - journal.MOST
    second = record()
    assert bounded.filter(second)
    assert not hasattr(second, "facts")


def test_tracebacks_have_a_lower_rate() -> None:
    bounded = Bounded(lambda: 0.0)
    assert sum(bounded.filter(record("failed", ValueError())) for _ in range(100)) == journal.TRACEBACKS


def test_kinds_without_end_are_not_remembered() -> None:
    bounded = Bounded(lambda: 0.0)
    for i in range(5000):
        bounded.filter(record(f"text {i}"))
    assert len(bounded._since) <= 1001


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Path]:
    """The file of a service's log; handlers and level are as before after the test."""
    root = logging.getLogger()
    before, level = list(root.handlers), root.level
    yield tmp_path / "service.log"
    for handler in set(root.handlers) - set(before):
        root.removeHandler(handler)
        handler.close()
    root.setLevel(level)


def write(log: Path, lines: int) -> list[str]:
    """The log after so many equal lines."""
    journal.begin_log(log)
    for _ in range(lines):
        logging.getLogger("plait.http").info("request")
    return log.read_text().splitlines()


def test_the_log_of_a_service_is_bounded(log: Path) -> None:
    assert len(write(log, 3 * journal.MOST)) <= journal.MOST * 2


def test_lines_that_a_terminal_gets_too_are_counted_once(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = io.StringIO()
    terminal.isatty = lambda: True  # type: ignore[method-assign]
    monkeypatch.setattr("sys.stderr", terminal)
    assert len(write(log, journal.MOST)) == journal.MOST
    assert len(terminal.getvalue().splitlines()) == journal.MOST
