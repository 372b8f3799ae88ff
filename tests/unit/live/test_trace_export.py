"""What ran on a live cluster as a Chrome trace, made of the log of a real engine."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import httpx
import pytest
from test_service_api import Service
from test_service_api import service as service  # a fixture

from plait.cli import main
from plait.cli.commands import trace as command
from plait.cli.render.trace_events import trace_events
from plait.live.client.client import Client
from plait.live.protocol.wire import ENDED, PREEMPTED, RUNNING, Seen

Event = dict[str, Any]


def check(events: list[Event]) -> None:
    """Raise if this is no trace in the Chrome trace-event format (Google, "Trace Event Format", 2016)."""
    open_spans: dict[tuple[str, Any], int] = {}
    slices: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    named = {(e["pid"], e["tid"]) for e in events if e["ph"] == "M" and e["name"] == "thread_name"}
    processes = {e["pid"] for e in events if e["ph"] == "M" and e["name"] == "process_name"}
    for e in events:
        assert e["ph"] in "MXCbei", e
        assert isinstance(e["name"], str)
        assert e["pid"] in processes
        if e["ph"] != "M":
            assert isinstance(e["ts"], int), e
            assert e["ts"] >= 0
        if e["ph"] == "X":
            assert e["dur"] >= 0
            assert (e["pid"], e["tid"]) in named
            slices[e["pid"], e["tid"]].append((e["ts"], -e["dur"]))
        elif e["ph"] == "C":
            assert all(isinstance(value, int) and value >= 0 for value in e["args"].values())
        elif e["ph"] == "i":
            assert e["s"] in "gpt"
        elif e["ph"] == "b":
            open_spans[e["cat"], e["id"]] = e["ts"]
        elif e["ph"] == "e":
            assert open_spans.pop((e["cat"], e["id"])) < e["ts"]
    assert not open_spans
    for found in slices.values():  # on one track, slices lie one after the other or one in the other
        ends: list[int] = []
        for from_us, dur in sorted(found):
            while ends and ends[-1] <= from_us:
                ends.pop()
            assert not ends or from_us - dur <= ends[-1]
            ends.append(from_us - dur)


def client(service: Service, who: str) -> Client:
    def forward(request: httpx.Request) -> httpx.Response:
        given = {"params": dict(request.url.params), "content": request.content, "headers": dict(request.headers)}
        answer = service.http.request(request.method, request.url.path, **given)
        return httpx.Response(answer.status_code, content=answer.content, headers=dict(answer.headers))

    return Client("http://a:1", service.tokens[who], transport=httpx.MockTransport(forward))


def settled(service: Service, seen: dict[tuple[int, int, int], Seen], until: str, job: int) -> None:
    """The node does what it is asked until the job is in this state."""
    for _ in range(200):
        told = service.sync(*seen.values())
        listed = {(run["job"], run["epoch"], run["rank"]): run for run in told["attempts"]}
        for key in [key for key in seen if key not in listed]:
            del seen[key]
        for key, run in listed.items():
            old = seen.setdefault(key, Seen(*key, RUNNING, pid=7, first_step_s=0.001))
            if run.get("stop") and old.state != ENDED:
                seen[key] = Seen(*key, ENDED, exit_code=PREEMPTED)
        if service.ask("GET", f"/v1/jobs/j-{job}").json()["state"] == until:
            return
    raise AssertionError(f"j-{job} is not {until}: {service.ask('GET', f'/v1/jobs/j-{job}').json()}")


@pytest.fixture
def ran(service: Service) -> Service:
    """j-0 was sent back once and finished, j-1 of another user was cancelled while it waited, j-2 runs."""
    seen: dict[tuple[int, int, int], Seen] = {}
    service.submit("ann", name="first", gpus=2)
    settled(service, seen, "running", 0)
    service.submit("ben", name="second", gpus=2)
    service.ask("POST", "/v1/jobs/j-0/requeue", "ann", json={"may_lose_work": True})
    service.ask("DELETE", "/v1/jobs/j-1", "ben")
    for _ in range(400):
        settled(service, seen, "running", 0)
        if service.ask("GET", "/v1/jobs/j-0").json()["epoch"] == 2:
            break
    for rank in (0, 1):
        seen[0, 2, rank] = Seen(0, 2, rank, ENDED, exit_code=0)
    settled(service, seen, "finished", 0)
    service.submit("ann", name="third")
    settled(service, seen, "running", 2)
    return service


def export(monkeypatch: pytest.MonkeyPatch, service: Service, who: str, *words: str) -> list[Event]:
    monkeypatch.setattr(command, "client", lambda home: client(service, who))
    with pytest.raises(SystemExit) as left:
        main(["trace", "export", *words])
    assert not left.value.code
    found: list[Event] = json.loads(Path(words[0]).read_text(encoding="utf-8"))["traceEvents"]
    check(found)
    return found


def test_attempts_waits_and_stops_are_there(ran: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = str(tmp_path / "run.json")
    events = export(monkeypatch, ran, "eve", target)
    attempts = [e for e in events if e.get("cat") == "attempt"]
    assert {(e["name"], e["args"]["attempt"]) for e in attempts} == {("j-0", 1), ("j-0", 2), ("j-2", 1)}
    assert sorted(e["args"]["gpus"] for e in attempts) == [1, 2, 2, 2, 2]  # a slice on each GPU
    by = {(e["name"], e["args"]["attempt"]): e["args"] for e in attempts}
    assert by["j-0", 2]["outcome"] == "finished"
    assert by["j-2", 1]["outcome"] == "still runs"
    assert by["j-0", 1]["user"] == "ann"
    waits = {(e["name"], e["args"]["then"]) for e in events if e["ph"] == "b"}
    assert ("j-1 waits", "cancelled") in waits
    assert not any(name == "j-0 waits" and not then.startswith("attempt") for name, then in waits)
    assert not any(then == "still waits" for _, then in waits)
    stops = [e for e in events if e.get("cat") == "stop"]
    assert [e["name"].split(":")[0] for e in stops] == ["j-0 stops"]
    counters = {e["name"]: list(e["args"].values())[0] for e in events if e["ph"] == "C"}  # noqa: RUF015
    assert counters == {"waiting jobs": 0, "GPUs held": 1}
    assert any(e.get("cat") == "cluster" and "n0" in e["name"] for e in events)


def test_users_get_their_own_jobs_and_single_jobs(
    ran: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = str(tmp_path / "run.json")
    own = export(monkeypatch, ran, "ann", target)
    assert {e["name"] for e in own if e.get("cat") == "attempt"} == {"j-0", "j-2"}
    assert "j-1" not in json.dumps([e for e in own if e["ph"] in "Xb"])
    one = export(monkeypatch, ran, "ann", target, "--job", "j-2")
    assert {e["name"] for e in one if e.get("cat") == "attempt"} == {"j-2"}


def test_a_saved_log_is_the_same(ran: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with client(ran, "eve") as asked:
        entries = list(asked.all_events())
    (tmp_path / "log.json").write_text(json.dumps(entries), encoding="utf-8")
    found = export(monkeypatch, ran, "eve", str(tmp_path / "run.json"), "--log", str(tmp_path / "log.json"))
    assert found == trace_events(entries)


def test_a_job_that_failed_waits_for_its_next_attempt_only() -> None:
    def entry(kind: str, at_s: float, **more: Any) -> dict[str, Any]:
        return {"seq": 1, "at_s": at_s, "event": {"type": kind, "at_s": at_s, **more}}

    attempts = []
    for epoch, at_s in ((1, 1.0), (2, 4.0)):
        began = {"job": 3, "epoch": epoch, "gpus": [0], "ranks": [["n0", 0]]}
        over = {"job": 3, "epoch": epoch, "outcome": "failed", "ended_s": at_s + 1, "first_step_s": 0.25}
        attempts += [entry("AttemptBegan", at_s, **began), entry("AttemptOver", at_s + 1.5, **over)]
        attempts.append(
            entry("JobFailed", at_s + 2, jobs=[3], reason="exit code 1", **({"again": False} if epoch == 2 else {}))
        )
    events = trace_events([entry("Requested", 0.0, first=3, owner="ann", requests=[{"name": "x"}]), *attempts])
    check(events)
    waits = [(e["ts"], e["args"]["then"]) for e in events if e["ph"] == "b"]
    assert waits == [(0, "attempt 1"), (2_000_000, "attempt 2")]
    never = [
        entry("Requested", 0.0, first=3, owner="ann", requests=[{}]),
        entry("JobFailed", 2.0, jobs=[3], again=False),
    ]
    assert [e["args"]["then"] for e in trace_events(never) if e["ph"] == "b"] == ["failed"]
    starts = [(e["ts"], e["dur"]) for e in events if e["name"] == "start-up"]
    assert starts == [(1_000_000, 250_000), (4_000_000, 250_000)]


def test_jobs_that_share_a_gpu_lie_side_by_side() -> None:
    def began(seq: int, job: int, at_s: float) -> dict[str, Any]:
        event = {"type": "AttemptBegan", "at_s": at_s, "job": job, "epoch": 1, "gpus": [0], "ranks": [["n0", 0]]}
        return {"seq": seq, "at_s": at_s, "event": event}

    over = {"type": "AttemptOver", "at_s": 3.0, "job": 1, "epoch": 1, "outcome": "failed", "ended_s": 3.0}
    events = trace_events([began(1, 1, 1.0), began(2, 2, 2.0), {"seq": 3, "at_s": 3.0, "event": over}], now_s=4.0)
    check(events)
    slices = {e["name"]: e for e in events if e["ph"] == "X"}
    assert slices["j-1"]["tid"] != slices["j-2"]["tid"]
    assert [e["args"]["GPUs"] for e in events if e["name"] == "GPUs held"] == [1, 1, 1]
    assert (slices["j-2"]["ts"], slices["j-2"]["dur"]) == (2_000_000, 2_000_000)
