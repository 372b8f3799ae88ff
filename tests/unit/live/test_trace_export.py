"""A live run as a Chrome trace, and the page about incidents: both from the log of a real engine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from test_service_api import Service
from test_service_api import service as service  # a fixture

from documented_code import PAGES, blocks
from plait.cli import main
from plait.cli.commands import trace as command
from plait.live.client.client import Client
from plait.live.protocol.wire import ENDED, PREEMPTED, RUNNING, Seen
from plait.live.store import Store

Event = dict[str, Any]


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
    return found


def test_who_held_gpus_and_who_waited_is_there(ran: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events = export(monkeypatch, ran, "eve", str(tmp_path / "run.json"))
    spans = [(e["name"], e["args"]["gpus"], e["args"]["then"]) for e in events if e["ph"] == "X"]
    # j-2 starts with the last entry of the log, so nothing is known of it yet
    assert sorted(spans) == [*[("j-0", 2, "finished")] * 2, *[("j-0", 2, "stopped")] * 2]
    names = {e["args"].get("name") for e in events if e["ph"] == "M"}
    assert names >= {"queue", "node n0", "GPU 0"}
    assert [e["args"]["jobs"] for e in events if e["ph"] == "C"][-1] == 0
    with client(ran, "eve") as asked:
        entries = list(asked.all_events())
    (tmp_path / "log.json").write_text(json.dumps(entries), encoding="utf-8")
    found = export(monkeypatch, ran, "eve", str(tmp_path / "again.json"), "--log", str(tmp_path / "log.json"))
    assert [e for e in found if e["ph"] == "M"] == [e for e in events if e["ph"] == "M"]


def test_the_story_of_a_lost_node_and_the_replay_of_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = next(page for page in PAGES if page.stem == "debug-an-incident")
    look, story = [block.text for block in blocks(page) if block.language == "python"]
    names: dict[str, Any] = {}
    exec(story, names)
    names["test_a_job_survives_its_node"](tmp_path)
    monkeypatch.chdir(tmp_path)
    store = Store.open(Path("plait.db"))
    store.backup("incident.db")
    store.close()
    exec(look, {})
    assert capsys.readouterr().out.startswith("3.25 [0]")
