"""The client goes where the leader is, and asks again only what nobody has taken in or what is known by its key."""

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from plait.live.client import transport as calling
from plait.live.client.client import Client, NotRunning, ServiceError
from sample_answers import answered

A, B = "http://a:1", "http://b:1"


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calling, "PAUSES_S", (0.0, 0.0, 0.0))
    monkeypatch.setattr(calling, "LOOK_S", 0.0)
    monkeypatch.setattr(calling, "LEAD_S", 0.2)


def standby(leader: str | None) -> httpx.Response:
    return httpx.Response(503, json={"role": "standby", "leader": leader, "error": {"message": "stands by"}})


def test_a_standby_names_the_leader_and_a_submission_goes_there() -> None:
    asked = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request.url.host)
        return standby(B) if request.url.host == "a" else httpx.Response(201, json={"id": "j-0", "number": 0})

    with Client(A, "x", transport=httpx.MockTransport(answer)) as client:
        assert client.submit([{"command": ["x"]}])[0].id == "j-0"
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


@pytest.mark.parametrize("change", ["cancel", "requeue", "update", "clone"])
def test_a_change_by_name_means_the_same_job_when_it_is_sent_again(change: str) -> None:
    named, changed = "j-1", []

    def answer(request: httpx.Request) -> httpx.Response:
        nonlocal named
        if request.method == "GET":
            return httpx.Response(200, json=answered("GET", request.url.path, {"id": named}))
        job = request.url.path.split("/")[3]
        changed.append(named if job == "train" else job)
        if len(changed) == 1:
            named = "j-2"  # submitted meanwhile, with the same name
            raise httpx.ReadError("cut off", request=request)
        return httpx.Response(200, json=answered(request.method, request.url.path, {"id": "j-1"}))

    with Client(A, "x", transport=httpx.MockTransport(answer)) as client:
        getattr(client, change)("train", *[{}] * (change == "update"))
    assert changed == ["j-1", "j-1"]


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
            return httpx.Response(201, json=answered(request.method, request.url.path, {"name": "p"}))
        (tmp_path / "service.json").write_text(json.dumps({"url": B, "pid": 2}))  # the other one leads by now
        raise httpx.ConnectError("refused", request=request)

    with Client.at(str(tmp_path)) as client:
        client._http = httpx.Client(base_url=A, transport=httpx.MockTransport(answer))
        if others:  # nobody has taken it in
            assert client.set_project("p").name == "p"
            assert asked == ["a", "b"]
        else:
            with pytest.raises(NotRunning):
                client.set_project("p")
            assert asked == ["a"]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "service.json").write_text(json.dumps({"url": A, "pid": 1}))
    (tmp_path / "token").write_text("x")
    return tmp_path


def test_a_question_to_a_leader_that_sleeps_is_asked_where_the_next_one_is(home: Path) -> None:
    """A submission, too, under the key that the first may have stored it by; others may have been taken in."""
    asked: list[str] = []
    keys: list[str | None] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(f"{request.method} {request.url.host}")
        keys.append(request.headers.get("Idempotency-Key"))
        if request.url.host == "b":
            given = {"term": 2} if request.method == "GET" else {"number": 2}
            return httpx.Response(200, json=answered(request.method, request.url.path, given))
        (home / "service.json").write_text(json.dumps({"url": B, "pid": 2}))
        raise httpx.ReadTimeout("asleep", request=request)

    for ask in ("status", "submit", "reserve", "token"):
        (home / "service.json").write_text(json.dumps({"url": A, "pid": 1}))
        with Client.at(str(home)) as client:
            client._http = httpx.Client(base_url=A, transport=httpx.MockTransport(answer))
            if ask == "status":
                assert client.status().term == 2
            elif ask == "submit":
                assert client.submit([{"command": ["x"]}])[0].number == 2
            elif ask == "reserve":
                assert client.reserve(["n0"], "p", for_s=1.0).id == ""
            else:
                with pytest.raises(NotRunning, match="does not answer"):
                    client.create_token("ann", "user")
    assert asked == ["GET a", "GET b", "POST a", "POST b", "POST a", "POST b", "POST a"]
    assert (keys[2], keys[4]) == (keys[3], keys[5])
    assert None not in keys[2:6]
    assert keys[6] is None


def test_a_leader_that_does_not_answer_is_left_after_seconds_one_that_works_is_waited_for(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calling, "SILENT_S", 0.05)
    (home / "service-2.json").write_text(json.dumps({"url": B, "pid": 2}))
    done, works, asked = threading.Event(), [False], []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append((request.url.host, request.url.path))
        if request.url.host == "b":
            return httpx.Response(200, json=answered("GET", "/v1/status", {"term": 2}))
        if request.url.path == "/v1/health":
            if works[0]:
                done.set()
                return httpx.Response(200, json={"role": "leader"})
            (home / "service.json").write_text(json.dumps({"url": B, "pid": 2}))
            raise httpx.ReadTimeout("asleep", request=request)
        done.wait(20.0)
        return httpx.Response(200, json=answered("GET", "/v1/status", {"term": 1}))

    for works[0] in (True, False):
        done.clear()
        asked.clear()
        (home / "service.json").write_text(json.dumps({"url": A, "pid": 1}))
        with Client.at(str(home)) as client:
            client._http = httpx.Client(base_url=A, transport=httpx.MockTransport(answer))
            assert client.status().term == (1 if works[0] else 2)
        done.set()
        assert asked[:2] == [("a", "/v1/status"), ("a", "/v1/health")]
        assert (("b", "/v1/status") in asked) is not works[0]


class Broken(httpx.SyncByteStream):
    """Some of a log, then nothing for longer than a client waits."""

    def __init__(self, *texts: str) -> None:
        self.texts = texts

    def __iter__(self) -> Iterator[bytes]:
        yield from map(str.encode, self.texts)
        raise httpx.ReadTimeout("nothing more")


def test_a_log_is_followed_where_the_next_leader_is(home: Path) -> None:
    asked = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append((request.url.host, request.url.params["offset"]))
        if request.url.host == "a":
            (home / "service.json").write_text(json.dumps({"url": B, "pid": 2}))
            return httpx.Response(200, stream=Broken('data: {"text": "one ", "next": 4}\n\n'))
        return httpx.Response(200, text='data: {"text": "two", "next": 7}\n\nevent: end\ndata: {}\n\n')

    with Client.at(str(home)) as client:
        client._http = httpx.Client(base_url=A, transport=httpx.MockTransport(answer))
        assert "".join(client.follow("j-0")) == "one two"
        assert asked == [("a", "0"), ("b", "4")]


def test_a_log_of_a_service_that_sleeps_is_not_waited_for_without_end(home: Path) -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        raise httpx.ReadTimeout("asleep", request=request)

    with Client.at(str(home)) as client:
        client._http = httpx.Client(base_url=A, transport=httpx.MockTransport(answer))
        with pytest.raises(NotRunning, match="does not answer"):
            list(client.follow("j-0"))


def test_a_log_that_is_followed_is_not_waited_for_without_end(home: Path) -> None:
    waits = []

    def answer(request: httpx.Request) -> httpx.Response:
        waits.append(request.extensions["timeout"]["read"])
        return httpx.Response(200, text="event: end\ndata: {}\n\n")

    with Client(A, "x", transport=httpx.MockTransport(answer)) as client:
        assert list(client.follow("j-0")) == []
    assert waits == [calling.SILENT_S]


def test_a_log_is_waited_for_as_long_as_somebody_says_so(home: Path) -> None:
    asked, waited = [0], [0]

    def answer(request: httpx.Request) -> httpx.Response:
        asked[0] += request.url.path.endswith("logs")
        if asked[0] < 12:
            raise httpx.ConnectError("nobody is there", request=request)
        return httpx.Response(200, text='data: {"text": "one", "next": 3}\n\nevent: end\ndata: {}\n\n')

    def waits() -> bool:
        waited[0] += 1
        return waited[0] < limit

    with Client.at(str(home)) as client:
        client._http = httpx.Client(base_url=A, transport=httpx.MockTransport(answer))
        limit = 3
        with pytest.raises(NotRunning):
            list(client.follow("j-0", waits=waits))
        limit = 100
        assert "".join(client.follow("j-0", waits=waits)) == "one"
    assert waited[0] > 3
