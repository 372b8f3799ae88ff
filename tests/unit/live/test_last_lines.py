"""What a reason quotes of a job's output: the last lines, of which long ones lose their middle."""

from __future__ import annotations

from pathlib import Path

import pytest

from plait.live.agent.processes.runner import LogWriter


@pytest.fixture
def log(tmp_path: Path) -> LogWriter:
    return LogWriter(str(tmp_path), 1_000_000)


def test_a_long_message_keeps_its_beginning_and_its_end(log: LogWriter) -> None:
    log.write(b"Traceback (most recent call last):\n  File train.py, line 3\n")
    log.write(b"ValueError: no such layer " + b"x" * 5000 + b" in the model\n")
    said = log.last_lines()
    assert len(said) <= 600
    assert "File train.py, line 3 | ValueError: no such layer xxx" in said
    assert said.endswith("xxx in the model")
    assert "xxx ... xxx" in said


def test_lines_that_fit_are_quoted_whole_and_only_the_last_ones(log: LogWriter) -> None:
    log.write("".join(f"line {i}\n\n" for i in range(9)).encode())
    assert log.last_lines() == "line 4 | line 5 | line 6 | line 7 | line 8"
    assert log.tail_text() == f"; last lines of the log: {log.last_lines()}"


def test_several_long_lines_share_the_room(log: LogWriter) -> None:
    log.write("".join(f"<{i}{'-' * 900}{i}>\n" for i in range(5)).encode())
    said = log.last_lines()
    assert len(said) <= 600
    assert all(f"<{i}-" in said and f"-{i}>" in said for i in range(5))


def test_without_output_there_is_nothing_to_quote(log: LogWriter) -> None:
    assert log.last_lines() == ""
    assert log.tail_text() == "; it printed nothing"
