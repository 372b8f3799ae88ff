"""The client goes where the leader is, and only with what nobody has taken in."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
import pytest

from plait.live import client as client_module
from plait.live.client import Client, NotRunning, ServiceError

A, B = "http://a:1", "http://b:1"


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "PAUSES_S", (0.0, 0.0, 0.0))
    monkeypatch.setattr(client_module, "LOOK_S", 0.0)
    monkeypatch.setattr(client_module, "LEAD_S", 0.2)


def standby(leader: str | None) -> httpx.Response:
    return httpx.Response(503, json={"role": "standby", "leader": leader, "error": {"message": "stands by"}})


def test_a_follower_names_the_leader_and_a_submission_goes_there() -> None:
    asked = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request.url.host)
        return standby(B) if request.url.host == "a" else httpx.Response(201, json={"id": "j-0", "number": 0})

    with Client(A, "x", transport=httpx.MockTransport(answer)) as client:
        assert client.submit([{"command": ["x"]}])[0]["id"] == "j-0"
    assert asked == ["a", "b"]
    assert client.url == B


def test_nobody_leads_for_too_long() -> None:
    with (
        Client(A, "x", transport=httpx.MockTransport(lambda request: standby(None))) as client,
        pytest.raises(ServiceError, match="stands by"),
    ):
        client.submit([{"command": ["x"]}])


def test_a_token_that_went_encrypted_does_not_follow_in_the_clear() -> None:
    asked = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(str(request.url.host))
        return standby(B)

    with Client("https://a:1", "x", transport=httpx.MockTransport(answer)) as client, pytest.raises(ServiceError):
        client.status()
    assert set(asked) == {"a"}


@pytest.mark.parametrize("others", [False, True])
def test_a_dead_leader_is_looked_for_in_the_home_folder(tmp_path: Path, others: bool) -> None:
    (tmp_path / "service.json").write_text(json.dumps({"url": A, "pid": 1}))
    (tmp_path / "service-1.json").write_text(json.dumps({"url": A, "pid": 1}))
    (tmp_path / "token").write_text("x")
    if others:
        (tmp_path / "service-2.json").write_text(json.dumps({"url": B, "pid": 2}))
    asked = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request.url.host)
        if request.url.host == "b":
            return httpx.Response(201, json={"id": "j-0", "number": 0})
        (tmp_path / "service.json").write_text(json.dumps({"url": B, "pid": 2}))  # the other one leads by now
        raise httpx.ConnectError("refused", request=request)

    with Client.at(str(tmp_path)) as client:
        client._http = httpx.Client(base_url=A, transport=httpx.MockTransport(answer))
        if others:
            assert client.submit([{"command": ["x"]}])[0]["number"] == 0
            assert asked == ["a", "b"]
        else:
            with pytest.raises(NotRunning):
                client.submit([{"command": ["x"]}])
            assert asked == ["a"]
