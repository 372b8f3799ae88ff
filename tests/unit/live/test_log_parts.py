"""Logs that are larger than what is kept: the beginning and the end stay, and a line says what is missing."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from plait.live.agent.logs import read_part
from plait.live.agent.processes.runner import LogWriter


def whole(folder: Path, limit: int = 1 << 16) -> str:
    """What a reader gets who starts at the beginning and goes on to the end."""
    text, at = "", 0
    while (part := read_part(folder, at, limit)).next > at:
        text, at = text + part.text, part.next
    assert at == part.size
    return text


def written(folder: Path, lines: int, limit: int) -> str:
    """Write lines to a log of files of `limit` bytes; what was written."""
    log = LogWriter(str(folder), limit)
    text = ""
    for i in range(lines):
        line = f"{i:06d} ä€ {'x' * (i % 50)}\n"
        log.write(line.encode())
        text += line
    return text


def test_a_log_that_fits_is_whole(tmp_path: Path) -> None:
    text = written(tmp_path, 390, 4096)
    assert 3 * 4096 < len(text.encode()) < 4 * 4096
    assert whole(tmp_path, 777) == text


def test_the_output_file_gets_missing_folders_and_a_pipe_without_reader_is_an_error(tmp_path: Path) -> None:
    output = tmp_path / "logs" / "of" / "mine.txt"
    LogWriter(str(tmp_path), 4096, str(output)).write(b"text")
    assert output.read_text() == "text"
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="pipe"):
        LogWriter(str(tmp_path), 4096, str(tmp_path / "pipe"))


@pytest.mark.parametrize("lines", [600, 1000, 5000])
def test_the_beginning_and_the_end_are_kept_and_a_line_says_what_is_not(tmp_path: Path, lines: int) -> None:
    text = written(tmp_path, lines, 4096)
    shown = whole(tmp_path, 1000)
    head, note, tail = shown.partition("[plait: ")
    count, rest = tail.split(" bytes of this log were dropped here", 1)
    rest = rest.split("\n", 1)[1]
    assert note
    assert text.startswith(head)
    assert text.endswith(rest)
    assert len(head.encode()) > 4000
    assert len(rest.encode()) > 2 * 4000
    assert len(head.encode()) + int(count.replace(",", "")) + len(rest.encode()) == len(text.encode())
    assert head.endswith("\n")


def test_a_reader_in_the_gap_gets_the_note_and_goes_on_behind_it(tmp_path: Path) -> None:
    text = written(tmp_path, 5000, 4096).encode()
    part = read_part(tmp_path, len(text) // 2, 1000)
    assert part.text.startswith("[plait: ")
    assert part.next > part.offset == len(text) // 2
    assert text[part.next :].startswith(read_part(tmp_path, part.next, 1000).text.encode())
    assert read_part(tmp_path, -20, 1000).text.encode() == text[-20:]
    assert read_part(tmp_path, 10**9, 1000).text == ""


# -- What a reason quotes of a job's output: the last lines, of which long ones lose their middle --------


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
