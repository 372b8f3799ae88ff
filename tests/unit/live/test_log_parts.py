"""Large logs keep beginning and end; notices of attempts to followers; notes of the event log."""

import asyncio
import io
import json
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from plait.core.errors import InputError
from plait.live.agent.logs import read_part
from plait.live.agent.processes.runner import LogWriter
from plait.live.api.jobs import LogPart
from plait.live.client.client import Client
from plait.live.scheduler.records import notes
from plait.live.service import main as journal
from plait.live.service.http.routes import logs as route
from plait.live.service.main import Bounded, JsonLines


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


#: Each kind of note, and what the log has beside its type and time.
WRITTEN: list[tuple[notes.Note, dict[str, Any]]] = [
    (notes.Requested(1.0, 3, "ann", [{"gpus": 2}]), {"first": 3, "owner": "ann", "requests": [{"gpus": 2}]}),
    (notes.Requested(1.0, 3, "ann", [], "k"), {"first": 3, "owner": "ann", "requests": [], "key": "k"}),
    (notes.CancelAsked(1.0, 2), {"job": 2}),
    (notes.CancelAsked(1.0, 2, "ann"), {"job": 2, "by": "ann"}),
    (notes.RequeueAsked(1.0, 2, "ann", "k"), {"job": 2, "by": "ann", "key": "k"}),
    (
        notes.UpdateAsked(1.0, 2, "ann", {"gpus": 4}, {"gpus": None}),
        {"job": 2, "by": "ann", "fields": {"gpus": 4}, "before": {"gpus": None}},
    ),
    (notes.PolicySet(1.0, "fifo", may_lose_work=False), {"policy": "fifo", "may_lose_work": False}),
    (notes.ProjectSet(1.0, "p", gpu_quota=None, weight=2.0), {"name": "p", "gpu_quota": None, "weight": 2.0}),
    (notes.ProjectSet(1.0, "p", gone=True), {"name": "p", "gone": True}),
    (notes.NetworkSet(1.0, "single-switch"), {"text": "single-switch"}),
    (notes.SwitchServed(1.0, "leaf0", "n0", "7-1"), {"switch": "leaf0", "node": "n0", "incarnation": "7-1"}),
    (
        notes.RanksTold(1.0, 2, 1, 3, False, "switch leaf0 was lost"),
        {"job": 2, "epoch": 1, "version": 3, "granted": False, "reason": "switch leaf0 was lost"},
    ),
    (notes.RanksMoved(1.0, 2, 3), {"job": 2, "version": 3}),
    (notes.NumbersSpent(1.0, 2, 4), {"job": 2, "since": 4}),
    (
        notes.AttemptBegan(1.0, 2, 1, [0], [("n0", 0)], 0),
        {"job": 2, "epoch": 1, "gpus": [0], "ranks": [["n0", 0]], "port": 0},
    ),
    (notes.StopAsked(1.0, 2, 1, "preempted"), {"job": 2, "epoch": 1, "why": "preempted"}),
    (
        notes.StopAsked(1.0, 2, 1, "preempted", None, "for j-3 of ann", [3]),
        {"job": 2, "epoch": 1, "why": "preempted", "reason": "for j-3 of ann", "takers": [3]},
    ),
    (notes.StopAsked(1.0, 2, 1, "leaving", None), {"job": 2, "epoch": 1, "why": "leaving", "grace_s": None}),
    (
        notes.RankEnded(1.0, 2, 1, 0, 3, None, started=True),
        {"job": 2, "epoch": 1, "rank": 0, "exit_code": 3, "reason": None, "started": True},
    ),
    (
        notes.AttemptOver(1.0, 2, 1, "failed", 5.0, 3.0, 1.0, None, None, None, 2.0, "failed"),
        {
            "job": 2, "epoch": 1, "outcome": "failed", "held_s": 5.0, "steps": 3.0, "ended_s": 1.0,
            "first_step_s": None, "last_step_s": None, "batch_size": None, "lost_work_s": 2.0, "why_lost": "failed",
        },
    ),
    (notes.Restarted(1.0, 2, 1, 4.0), {"job": 2, "epoch": 1, "cost_s": 4.0}),
    (notes.ProfileRecorded(1.0, key="k", skew=0.5), {"key": "k", "skew": 0.5}),
    (notes.ProfileRecorded(1.0, job=0, beside=True), {"job": 0, "beside": True}),
    (notes.ForecastRecorded(1.0, 2, None, [1.0, 2.0, None]), {"job": 2, "start": None, "end": [1.0, 2.0, None]}),
    (notes.NodeDrained(1.0, "n0", drained=True), {"node": "n0", "drained": True}),
    (notes.NodeLeaving(1.0, "n0", leaving=False), {"node": "n0", "leaving": False}),
    (notes.NodeLeaving(1.0, "n0", leaving=True, leaving_s=0.0), {"node": "n0", "leaving": True, "leaving_s": 0.0}),
    (notes.NodeForgotten(1.0, "n0"), {"node": "n0"}),
    (notes.ServiceStarted(1.0, 2, 7.5), {"term": 2, "away_s": 7.5}),
    (notes.AgentRestarted(1.0, "n0"), {"node": "n0"}),
    (
        notes.Undelivered(1.0, 2, "mail", "failed", "it answered 500"),
        {"job": 2, "channel": "mail", "event": "failed", "why": "it answered 500"},
    ),
]  # fmt: skip


@pytest.mark.parametrize(("note", "fields"), WRITTEN, ids=lambda value: type(value).__name__)
def test_a_note_is_written_with_what_it_says_and_read_back(note: notes.Note, fields: dict[str, Any]) -> None:
    text = json.dumps(notes.note_to_json(note), allow_nan=False)
    assert text == json.dumps({"type": type(note).__name__, "at_s": 1.0, **fields})
    assert notes.note_from_json(json.loads(text)) == note


def test_every_kind_of_note_is_tried_above() -> None:
    assert {type(note).__name__ for note, _ in WRITTEN} == set(notes.KINDS)


@pytest.mark.parametrize(
    "data", [{"type": "Unheard"}, {"type": "CancelAsked", "at_s": 1.0}, {"type": "CancelAsked", "at_s": 1.0, "jobs": 3}]
)
def test_what_is_no_note_of_this_version_is_refused(data: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="not a note of this version"):
        notes.note_from_json(data)


def test_a_log_from_before_lost_work_was_a_question_is_read() -> None:
    old = {"type": "PolicySet", "at_s": 1.0, "policy": "fifo"}
    assert notes.note_from_json(old) == notes.PolicySet(1.0, "fifo", may_lose_work=False)


def attempt(epoch: int, state: str = "running", reason: str = "") -> Any:
    return SimpleNamespace(epoch=epoch, state=state, reason=reason)


def job(state: str, *attempts: Any) -> Any:
    return SimpleNamespace(row=SimpleNamespace(state=state), attempts=list(attempts))


def heard(monkeypatch: pytest.MonkeyPatch, jobs: list[Any], texts: dict[int, str]) -> list[tuple[str, str]]:
    """Events of a stream that sees these jobs, one a look, and these logs by attempt."""

    async def part(api: Any, job: Any, rank: int, offset: int, limit: int, epoch: int) -> LogPart:
        text = texts.get(epoch, "")[offset:]
        return LogPart(text=text, offset=offset, next=offset + len(text), size=0, epoch=epoch, rank=rank)

    async def next_job(name: str, token: object) -> Any:
        return jobs.pop(0) if len(jobs) > 1 else jobs[0]

    async def all_of() -> list[str]:
        tokens = SimpleNamespace(who=lambda header: None)
        api = SimpleNamespace(closing=asyncio.Event(), stored=next_job, tokens=tokens)
        call: Any = SimpleNamespace(api=api, request=SimpleNamespace(headers={}))
        return [text async for text in route._follow(call, "j-0", 0, 0, 100)]

    monkeypatch.setattr(route, "_part", part)
    monkeypatch.setattr(route, "FOLLOW_S", 0.0)
    found = []
    for text in asyncio.run(all_of()):
        kind, _, data = text.rpartition("data: ")
        said = json.loads(data)
        found.append((kind.strip().removeprefix("event: "), said.get("message") or said.get("text") or said["state"]))
    return found


def test_a_restart_is_told_once_and_then_the_next_attempt_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    over = attempt(1, "preempted", "moved")
    jobs = [job("running", attempt(1)), job("waiting", over), job("waiting", over), job("starting", over, attempt(2))]
    jobs += [job("finished", over, attempt(2, "finished"))] * 3
    assert heard(monkeypatch, jobs, {1: "one\n", 2: "two\n"}) == [
        ("", "one\n"),
        ("notice", "attempt 1 is over: preempted (moved); the job waits to start again"),
        ("notice", "attempt 2 begins"),
        ("", "two\n"),
        ("end", "finished"),
    ]


def test_a_restart_that_nobody_saw_is_told_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = [job("running", attempt(1)), job("running", attempt(1, "failed", "exit code 1"), attempt(2))]
    jobs += [job("finished", attempt(1, "failed"), attempt(2, "finished"))] * 3
    assert heard(monkeypatch, jobs, {1: "one\n"})[1] == (
        "notice", "attempt 1 is over: failed (exit code 1); attempt 2 begins",
    )  # fmt: skip


def test_the_client_passes_notices_on_and_nothing_of_them_is_of_the_log() -> None:
    notice = 'event: notice\ndata: {"message": "attempt 1 is over"}\n\n'
    stream = 'data: {"text": "a", "next": 1}\n\n' + notice + "event: end\ndata: {}\n\n"
    answers = httpx.MockTransport(lambda request: httpx.Response(200, text=stream))
    told: list[str] = []
    with Client("http://a:1", "x", transport=answers) as client:
        assert "".join(client.follow("j-0", notice=told.append)) == "a"
        assert "".join(client.follow("j-0")) == "a"
    assert told == ["attempt 1 is over"]


# -- nobody fills the service's service_log: lines of one kind have a rate --------------------------------


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
def service_log(tmp_path: Path) -> Iterator[Path]:
    """The file of a service's service_log; handlers and level are as before after the test."""
    root = logging.getLogger()
    before, level = list(root.handlers), root.level
    yield tmp_path / "service.log"
    for handler in set(root.handlers) - set(before):
        root.removeHandler(handler)
        handler.close()
    root.setLevel(level)


def write(service_log: Path, lines: int) -> list[str]:
    """The service_log after so many equal lines."""
    journal.begin_log(service_log)
    for _ in range(lines):
        logging.getLogger("plait.http").info("request")
    return service_log.read_text().splitlines()


def test_the_log_of_a_service_is_bounded(service_log: Path) -> None:
    assert len(write(service_log, 3 * journal.MOST)) <= journal.MOST * 2


def test_lines_that_a_terminal_gets_too_are_counted_once(service_log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = io.StringIO()
    terminal.isatty = lambda: True  # type: ignore[method-assign]
    monkeypatch.setattr("sys.stderr", terminal)
    assert len(write(service_log, journal.MOST)) == journal.MOST
    assert len(terminal.getvalue().splitlines()) == journal.MOST
