"""Who follows a log hears why it stands still: an attempt is over, the next one begins."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from plait.live.api.jobs import LogPart
from plait.live.client.client import Client
from plait.live.service.http.routes import logs as route


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
