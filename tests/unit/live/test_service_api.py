"""The HTTP API over a real engine and store; only the network is left out."""

import asyncio
import json
import textwrap
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.testclient import TestClient

from plait.control.prices import Prices
from plait.core.errors import InputError
from plait.core.jobs import JobSpec
from plait.live.fencing import Fences
from plait.live.layout import Layout
from plait.live.protocol import wire
from plait.live.scheduler.engine import Engine
from plait.live.scheduler.options import Options
from plait.live.service.http.app import Api, make_app
from plait.live.service.http.auth import Tokens, hashed
from plait.live.service.http.limits import LARGEST_BODY
from plait.live.service.http.routes.jobs import _array_states
from plait.live.service.logs import Mailbox
from plait.live.service.what_if import WhatIfService
from plait.live.service.worker import Worker
from plait.live.store import Store
from plait.training.state.checkpoint_store import CheckpointStore


@dataclass
class Service:
    http: TestClient
    store: Store
    engine: Engine
    tokens: dict[str, str]

    def ask(self, method: str, path: str, who: str | None = "admin", **more: Any) -> Any:
        headers = {"Authorization": f"Bearer {self.tokens[who]}"} if who else {}
        return self.http.request(method, path, headers=headers, **more)

    def submit(self, who: str = "ann", **job: Any) -> str:
        answer = self.ask("POST", "/v1/jobs", who, json={"command": ["true"], **job})
        assert answer.status_code == 200, answer.text
        return str(answer.json()["id"])

    def sync(self, *seen: wire.Seen, wait_s: float = 0.0, gpus: int = 2, replies: Any = ()) -> dict[str, Any]:
        told = wire.Observed(
            wire.NodeInfo("n0", gpus), "agent-1", 1, 0, list(seen), wait_s=wait_s, replies=list(replies)
        )
        answer = self.ask("POST", "/agent/v1/sync", "agent", json=wire.to_json(told))
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    store = Store.open(tmp_path / "plait.db")
    begin = time.monotonic()
    options = Options(round_s=0.01, settle_s=0.2, suspect_s=3600.0, lost_s=3600.0)  # no agent while kernels compile
    engine = Engine(store, Fences(Layout(tmp_path)), now_s=0.0, policy="fifo-backfill", options=options)
    tokens, mailbox, broken = Tokens(store, lambda: time.monotonic() - begin), Mailbox(), []
    made = {name: tokens.make(name, role, node="n0" if role == "agent" else None)[0] for name, role in (
        ("admin", "admin"), ("ann", "user"), ("ben", "user"), ("eve", "viewer"), ("agent", "agent")
    )}  # fmt: skip
    loops: list[asyncio.AbstractEventLoop] = []

    def published(versions: dict[str, int]) -> None:
        if loops:
            loops[0].call_soon_threadsafe(mailbox.published, versions)

    worker = Worker(engine, lambda: time.monotonic() - begin, published, broken.append)

    async def note() -> None:
        loops.append(asyncio.get_running_loop())

    with TestClient(make_app(Api(store, worker, tokens, mailbox, begin)), raise_server_exceptions=False) as http:
        http.portal.call(note)
        worker.start()
        yield Service(http, store, engine, made)
        worker.stop()
        worker.join()
    store.close()
    assert not broken


WRITES = [
    ("POST", "/v1/jobs", {"command": ["true"]}, {"admin", "ann", "ben"}),
    ("POST", "/v1/what-if", {"command": ["true"]}, {"admin", "ann", "ben"}),
    ("POST", "/v1/jobs/j-0/forecast", {"start": [1.0, 2.0, None], "end": [3, 4, 5]}, {"admin", "ann"}),
    ("PATCH", "/v1/jobs/j-0", {"priority": 2}, {"admin", "ann"}),
    ("POST", "/v1/jobs/j-0/requeue", None, {"admin", "ann"}),
    ("POST", "/v1/jobs/j-0/clone", None, {"admin", "ann"}),
    ("POST", "/v1/jobs/j-0/consoles/0f3a9c4e", {"command": ["true"]}, {"admin", "ann"}),
    ("DELETE", "/v1/jobs/j-0", None, {"admin", "ann"}),
    ("PUT", "/v1/policy", {"policy": "fifo"}, {"admin"}),
    ("POST", "/v1/nodes/n0/drain", None, {"admin"}),
    ("POST", "/v1/nodes/n0/gone", {"why": "its machine is off"}, {"admin"}),
    ("DELETE", "/v1/nodes/n0", None, {"admin"}),
    ("POST", "/v1/tokens", {"user": "new"}, {"admin"}),
    ("DELETE", "/v1/tokens/t-0", None, {"admin"}),
    ("POST", "/v1/projects", {"name": "p"}, {"admin"}),
    ("DELETE", "/v1/projects/p", None, {"admin"}),
    ("POST", "/v1/reservations", {"nodes": ["n0"], "project": "default", "for_s": 60.0}, {"admin"}),
    ("DELETE", "/v1/reservations/r-0", None, {"admin"}),
    ("POST", "/v1/backup", {"path": "/nonexistent/folder/x"}, {"admin"}),
    ("POST", "/agent/v1/sync", {}, {"agent"}),
]
EVERYBODY = {"admin", "ann", "ben", "eve"}
READS = [
    ("POST", "/v1/what-if/queue", {"nodes": "+1x2"}, EVERYBODY),
    ("GET", "/v1/jobs", None, EVERYBODY),
    ("GET", "/v1/losses", None, EVERYBODY),
    ("GET", "/v1/jobs/j-0", None, {"admin", "ann", "eve"}),
    ("GET", "/v1/jobs/j-0/explain", None, {"admin", "ann", "eve"}),
    ("GET", "/v1/jobs/j-0/events", None, {"admin", "ann", "eve"}),
    ("GET", "/v1/jobs/j-0/logs", None, {"admin", "ann", "eve"}),
    ("GET", "/v1/jobs/j-0/usage", None, {"admin", "ann", "eve"}),
    ("GET", "/v1/costs", None, EVERYBODY),
    ("GET", "/v1/events", None, {"admin", "eve"}),
    ("GET", "/v1/me", None, EVERYBODY),
    ("GET", "/v1/nodes", None, EVERYBODY),
    ("GET", "/v1/network", None, EVERYBODY),
    ("GET", "/v1/queue", None, EVERYBODY),
    ("GET", "/v1/placements?node=n0", None, EVERYBODY),
    ("GET", "/v1/policy", None, EVERYBODY),
    ("GET", "/v1/status", None, EVERYBODY),
    ("GET", "/v1/state", None, EVERYBODY),
    ("GET", "/metrics", None, EVERYBODY),
    ("GET", "/v1/tokens", None, {"admin"}),
    ("GET", "/v1/projects", None, EVERYBODY),
    ("GET", "/v1/reservations", None, EVERYBODY),
]


@pytest.mark.parametrize(("method", "path", "body", "allowed"), [*READS, *WRITES])
def test_who_may_do_what(service: Service, method: str, path: str, body: Any, allowed: set[str]) -> None:
    assert service.submit() == "j-0"
    for who in ("ben", "eve", "agent", "ann", "admin"):  # those who may change something last
        status = service.ask(method, path, who, json=body).status_code
        assert (status == 403) == (who not in allowed), (who, status)
        assert status != 401
    assert service.ask(method, path, None, json=body).status_code == 401
    for wrong in ("Bearer nonsense", "Basic abc", "Bearer", service.tokens["admin"]):
        answer = service.http.request(method, path, headers={"Authorization": wrong}, json=body)
        assert answer.status_code == 401
        assert "message" in answer.json()["error"]


def test_every_path_is_in_the_matrix(service: Service) -> None:
    listed = {p.split("?")[0].replace("j-0", "{job}").replace("t-0", "{token_id}") for _, p, _, _ in READS + WRITES}
    listed |= {
        "/v1/jobs/{job}/consoles/{console}",
        "/v1/projects/{name}",
        "/v1/reservations/{reservation}",
        "/v1/nodes/{node}/{action}",
        "/v1/nodes/{node}/gone",
        "/v1/nodes/{node}",
    }
    schema = service.http.get("/openapi.json").json()
    assert set(schema["paths"]) - {"/v1/health"} <= listed  # which needs no token


def test_a_submission_asked_again_gets_the_jobs_of_the_first(service: Service) -> None:
    def submit(key: str | None, who: str = "ann", **job: Any) -> Any:
        headers = {"Authorization": f"Bearer {service.tokens[who]}"} | ({"Idempotency-Key": key} if key else {})
        return service.http.post("/v1/jobs", headers=headers, json={"command": ["true"], **job})

    assert submit("a").json() == submit("a").json() == {"id": "j-0", "number": 0}
    assert submit("b").json()["number"] == 1
    assert submit("a", who="ben").json()["number"] == 2  # keys are each user's own
    assert submit(None).json()["number"] == 3
    other = submit("a", gpus=2)
    assert (other.status_code, "another submission" in other.text) == (409, True)
    assert submit("x" * 101).status_code == submit("a b").status_code == 422
    several = {"jobs": [{"command": ["true"]}] * 3}
    for _ in range(2):
        headers = {"Authorization": f"Bearer {service.tokens['ann']}", "Idempotency-Key": "c"}
        found = service.http.post("/v1/jobs", headers=headers, json=several).json()
        assert [job["number"] for job in found] == [4, 5, 6]
    assert len(service.ask("GET", "/v1/jobs").json()) == 7


def test_a_policy_named_over_http_runs_nothing(
    service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Refused before anything is imported, called or read; the module that the machine allows is loaded."""
    monkeypatch.syspath_prepend(tmp_path)
    effect = tmp_path / "effect"
    module = f"""
        from os import system
        from plait.policies.compose import Composed
        from plait.policies.compose import by_arrival
        with open({str(effect)!r}, "a") as file:
            file.write("imported ")
        class Mine(Composed):
            pass
        def made(quantum_s=1.0):
            return Composed("mine", by_arrival, quantum_s=quantum_s)
    """
    for name in ("named_elsewhere", "named_here"):
        (tmp_path / f"{name}.py").write_text(textwrap.dedent(module))

    def put(policy: str) -> tuple[int, str]:
        answer = service.ask("PUT", "/v1/policy", json={"policy": policy})
        return answer.status_code, answer.text

    for policy in (
        f"os:system:command=touch {effect}", f"subprocess:getoutput:cmd=touch {effect}", "named_elsewhere:made",
        f"builtins:open:file={effect},mode=w", "os.path:join", "named_here:Mine:x=1",
    ):  # fmt: skip
        status, text = put(policy)
        assert status == 422, text
        assert "plait up --allow-policy" in text
    assert not effect.exists()
    engine = service.engine
    engine.options = replace(engine.options, policy_modules=("named_here",))
    assert put(f"named_here:system:command=touch {effect}2")[0] == 422
    assert put("named_elsewhere:made")[0] == 422
    assert not Path(f"{effect}2").exists()
    assert put("named_here:made:quantum_s=7")[0] == 200
    assert effect.read_text() == "imported "


def test_options_of_a_policy_named_over_http_read_only_files_of_the_home(service: Service, tmp_path: Path) -> None:
    outside = tmp_path.parent / f"{tmp_path.name}-sizes.txt"
    for file in (outside, tmp_path / "sizes.txt"):
        file.write_text("100\n200\n")
    for path in (str(outside), "/etc/passwd", "../" + outside.name, "missing.txt", "/dev/zero"):
        answer = service.ask("PUT", "/v1/policy", json={"policy": f"tiresias-g:sizes={path}"})
        assert answer.status_code == 422
        assert "plait up --policy" in answer.text
        assert "root:" not in answer.text
    path = tmp_path / "sizes.txt"
    assert service.ask("PUT", "/v1/policy", json={"policy": f"tiresias-g:sizes={path}"}).status_code == 200
    for wrong in ("fifo:", "las:quantum_s=abc", "muri-s:max_jobs=1e308", f"las:quantum_s={'9' * 4400}", "pollux:p=off"):
        assert service.ask("PUT", "/v1/policy", json={"policy": wrong}).status_code in (200, 422), wrong


def test_tokens_are_stored_as_hashes_and_can_be_revoked(service: Service, tmp_path: Path) -> None:
    made = service.ask("POST", "/v1/tokens", json={"user": "cyn", "role": "user"}).json()
    headers = {"Authorization": f"Bearer {made['token']}"}
    assert service.http.get("/v1/status", headers=headers).status_code == 200
    listed = service.ask("GET", "/v1/tokens").json()
    assert not any("token" in row or "hash" in row for row in listed)
    assert hashed(made["token"]) in {t.hash for t in service.store.tokens()}
    for file in tmp_path.glob("plait.db*"):
        assert made["token"].encode() not in file.read_bytes()
    assert service.ask("DELETE", f"/v1/tokens/{made['id']}").json()["revoked"]
    assert service.http.get("/v1/status", headers=headers).status_code == 401
    assert service.ask("DELETE", f"/v1/tokens/{made['id']}").status_code == 404


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "command"),
        ({"command": []}, "command"),
        ({"command": "rm -rf /"}, "command"),
        ({"command": ["  "]}, "command"),
        ({"command": ["a\0b"]}, "command.0"),
        ({"command": ["x"], "gpus": -1}, "gpus"),
        ({"command": ["x"], "gpus": True}, "gpus"),
        ({"command": ["x"], "gpus": 1.5}, "gpus"),
        ({"command": ["x"], "gpu": 1}, "gpu"),
        ({"command": ["x"], "iterations": -1}, "iterations"),
        ({"command": ["x"], "class": "royal"}, "class"),
        ({"command": ["x"], "env": {"A=B": "c"}}, "env"),
        ({"command": ["x"], "env": {"A": 3}}, "env.A"),
        ({"command": ["x"], "env": {"": "c"}}, "env"),
        ({"command": ["x"], "profile": {"gpu": 1e308}}, "profile.gpu"),
        ({"command": ["x"], "iterations": 1e308}, "iterations"),
        ({"command": ["x"], "priority": 1e308}, "priority"),
        ({"command": ["x"], "project": "../../etc"}, "project"),
        ({"command": ["x"], "name": "a\nb"}, "name"),
        ({"command": ["x"], "skew": 2}, "skew"),
        ({"command": ["x"], "profile": {"gpu": 0}}, "profile"),
        ({"command": ["x"], "profile": {"tpu": 1}}, "profile.tpu"),
        ({"jobs": [{"command": ["x"]}, {"command": ["x"], "gpus": -1}]}, "jobs.1.gpus"),
        ({"jobs": []}, "jobs"),
        ([], None),
        ("x", None),
    ],
)  # fmt: skip
def test_wrong_fields_are_named_and_nothing_is_stored(service: Service, body: Any, field: str | None) -> None:
    answer = service.ask("POST", "/v1/jobs", "ann", json=body)
    assert answer.status_code == 422
    assert answer.json()["error"].get("field") == field
    assert service.store.jobs() == []


@pytest.mark.parametrize("body", [b"", b"{", b"\xff\xfe", b"[" * 100_000, b"NaN}"])
def test_what_is_not_json(service: Service, body: bytes) -> None:
    answer = service.ask("POST", "/v1/jobs", "ann", content=body)
    assert answer.status_code == 400
    assert "not JSON" in answer.json()["error"]["message"]


def test_bodies_that_are_too_large(service: Service) -> None:
    big = json.dumps({"command": ["x" * LARGEST_BODY]}).encode()
    assert service.ask("POST", "/v1/jobs", "ann", content=big).status_code == 413

    def drip() -> Iterator[bytes]:  # no length is said beforehand
        for _ in range(20):
            yield b"x" * (LARGEST_BODY // 10)

    assert service.ask("POST", "/v1/jobs", "ann", content=drip()).status_code == 413
    assert service.store.jobs() == []


@pytest.mark.parametrize("name", ["j-1", "j--1", "j-0x0", "..%2f..%2fetc%2fpasswd", "j-0%2f..%2fj-0", "j-" + "9" * 40])
def test_jobs_that_are_none(service: Service, name: str) -> None:
    service.submit()
    for path in (f"/v1/jobs/{name}", f"/v1/jobs/{name}/logs", f"/v1/jobs/{name}/explain"):
        answer = service.ask("GET", path)
        assert answer.status_code == 404
        assert "error" in answer.json()


@pytest.mark.parametrize("query", ["rank=-1", "rank=../../x", "offset=-5", "limit=0", "limit=99999999", "epoch=0"])
def test_wrong_questions_for_logs(service: Service, query: str) -> None:
    service.submit()
    assert service.ask("GET", f"/v1/jobs/j-0/logs?{query}", "ann").status_code == 422
    assert service.ask("GET", "/v1/jobs/j-0/logs?rank=7", "ann").status_code == 404


@pytest.mark.parametrize(
    "job", [{"command": ["\\ud800"]}, {"env": {"\\ud800": "x"}}, {"env": {"A": "\\ud800"}}, {"\\ud800": 1}]
)
def test_half_characters_are_refused_and_no_agent_is_cut_off(service: Service, job: Any) -> None:
    """An answer that cannot be written would keep the assignments of all other jobs from their node."""
    body = json.dumps({"command": ["true"], **job}).replace("\\\\", "\\")
    answer = service.ask("POST", "/v1/jobs", "ann", content=body)
    assert answer.status_code == 422
    assert answer.json()["error"]["message"]
    assert service.store.jobs() == []
    service.sync()


def test_what_others_run_is_not_shown(service: Service) -> None:
    secret = {"command": ["train", "--key=hush"], "env": {"KEY": "hush"}, "name": "hush"}
    service.submit("ann", **secret)
    assert "hush" in service.ask("GET", "/v1/jobs", "ann").text
    assert "hush" in service.ask("GET", "/v1/jobs/j-0", "ann").text
    for path in ("/v1/jobs", "/v1/jobs/j-0", "/v1/state", "/v1/nodes", "/metrics"):
        assert "hush" not in service.ask("GET", path, "ben").text
    assert '"KEY"' not in service.ask("GET", "/v1/events", "eve").text
    assert '"KEY"' not in service.ask("GET", "/v1/jobs/j-0", "eve").text


def test_why_a_job_failed_is_told_to_those_who_may_read_its_log(service: Service) -> None:
    service.submit("ann", retries=0)
    run = assigned(service)
    over = wire.Seen(run["job"], run["epoch"], run["rank"], wire.ENDED, pid=7, exit_code=1, reason="last lines: hush")
    for _ in range(3):
        service.sync(over)
    assert "hush" in service.ask("GET", "/v1/jobs", "ann").text
    for path in ("/v1/jobs", "/v1/state", "/v1/status", "/v1/nodes"):
        assert "hush" not in service.ask("GET", path, "ben").text


def test_commands_are_in_the_listings_of_those_who_may_see_them(service: Service) -> None:
    for i in range(4):
        service.submit("ann", name=f"n{i}", gpus=1 + i % 2, command=["my train", "--text", "a 'b'  c", str(i)])
    run = assigned(service)
    service.sync(wire.Seen(run["job"], run["epoch"], run["rank"], wire.RUNNING, pid=7, steps=3.0, step_s=0.5))
    for who in ("ann", "ben", "eve"):
        rows = service.ask("GET", "/v1/jobs", who).json()
        assert rows[0]["command"] == (["my train", "--text", "a 'b'  c", "3"] if who != "ben" else [])
        assert service.ask("GET", "/v1/jobs?user=nobody", who).json() == []


def test_names_and_commands_of_others_are_not_found_by_a_search_or_in_the_queue(service: Service) -> None:
    service.submit("ann", name="merger", model="gpt2", command=["train", "--key", "abc"])
    assigned(service)
    for who, found in (("ann", 1), ("eve", 1), ("ben", 0)):
        for text in ("MERGER", "--key"):
            assert len(service.ask("GET", f"/v1/jobs?text={text}", who).json()) == found
        assert len(service.ask("GET", "/v1/jobs?text=gpt2", who).json()) == 1
        assert len(service.ask("GET", "/v1/jobs?text=j-0", who).json()) == 1
        (job,) = service.ask("GET", "/v1/queue", who).json()["jobs"]
        assert job["name"] == ("merger" if found else "")


def assigned(service: Service) -> dict[str, Any]:
    """The first process that the node is asked for, once it is."""
    deadline = time.monotonic() + 20
    while not (runs := service.sync()["attempts"]):
        assert time.monotonic() < deadline
    found: dict[str, Any] = runs[0]
    return found


def test_users_stay_in_their_project(service: Service) -> None:
    answer = service.ask("POST", "/v1/jobs", "ann", json={"command": ["x"], "project": "other"})
    assert answer.status_code == 403
    service.ask("POST", "/v1/projects", json={"name": "other", "quota_gpus": 1, "weight": 2.5})
    assert service.ask("POST", "/v1/jobs", json={"command": ["x"], "project": "other", "gpus": 2}).status_code == 422
    none = {"name": "other", "weight": 2.5, "default_time_s": None, "most_time_s": None, "most_idle_s": None, "gpus": 0}
    assert {**none, "quota_gpus": 1} in service.ask("GET", "/v1/projects").json()
    service.ask("POST", "/v1/projects", json={"name": "other", "quota_gpus": None})
    assert {**none, "quota_gpus": None} in service.ask("GET", "/v1/projects").json()
    service.ask("POST", "/v1/projects", json={"name": "other", "default_time_s": 60.0, "most_time_s": 3600.0})
    service.ask("POST", "/v1/projects", json={"name": "other", "default_time_s": None})
    assert {**none, "quota_gpus": None, "most_time_s": 3600.0} in service.ask("GET", "/v1/projects").json()
    refused = service.ask("POST", "/v1/projects", json={"name": "other", "default_time_s": 7200.0})
    assert refused.status_code == 422
    assert "(--default-time) is 2 h 0 min, longer than the longest (--max-time), 1 h 0 min" in refused.text


def test_a_project_is_not_removed_while_tokens_name_it(service: Service) -> None:
    service.ask("POST", "/v1/projects", json={"name": "vision", "quota_gpus": 1})
    given = {"user": "zoe", "role": "user", "project": "vision"}
    token = service.ask("POST", "/v1/tokens", json=given).json()["id"]
    service.ask("POST", "/v1/tokens", json={**given, "expires_in_s": 1e-6})
    refused = service.ask("DELETE", "/v1/projects/vision")
    why = f"1 token of project 'vision': {token} of zoe; revoke with: plait token revoke"
    assert (refused.status_code, why in refused.text) == (409, True)
    service.ask("DELETE", f"/v1/tokens/{token}")
    assert service.ask("DELETE", "/v1/projects/vision").status_code == 200


def test_a_job_from_submission_to_its_end(service: Service) -> None:
    assert service.sync()["attempts"] == []
    ids = service.ask("POST", "/v1/jobs", "ann", json={"jobs": [{"command": ["a"]}, {"command": ["b"]}]}).json()
    assert ids == [{"id": "j-0", "number": 0}, {"id": "j-1", "number": 1}]
    answer = service.sync(wait_s=1.0)
    deadline = time.monotonic() + 20
    while len(answer["attempts"]) < 2:
        assert time.monotonic() < deadline
        answer = service.sync(wait_s=0.2)
    runs = [wire.Seen(r["job"], r["epoch"], r["rank"], wire.RUNNING, pid=7, steps=3.0) for r in answer["attempts"]]
    service.sync(*runs)
    shown = service.ask("GET", "/v1/jobs/j-0", "ann").json()
    assert (shown["state"], shown["iterations_done"], shown["nodes"]) == ("running", 3.0, ["n0"])
    assert service.ask("GET", "/v1/jobs?state=running,waiting&limit=1", "ann").json()[0]["id"] == "j-1"
    assert service.ask("GET", "/v1/jobs?state=runing", "ann").status_code == 422
    node = service.ask("GET", "/v1/nodes", "ann").json()[0]
    assert (node["id"], node["gpus_used"], node["jobs"]) == ("n0", 2, ["j-0", "j-1"])
    service.sync(wire.Seen(0, 1, 0, wire.ENDED, pid=7, exit_code=0), runs[1])
    assert service.ask("GET", "/v1/jobs/j-0", "ann").json()["state"] == "finished"
    assert service.ask("DELETE", "/v1/jobs/j-1", "ben").status_code == 403
    assert service.ask("DELETE", "/v1/jobs/j-1", "ann").json()["state"] == "stopping"
    assert service.ask("DELETE", "/v1/jobs/j-1", "ann").status_code == 200  # twice is the same as once
    assert service.ask("DELETE", "/v1/jobs/j-0", "ann").status_code == 409
    assert service.ask("GET", "/v1/jobs/j-0/explain", "ann").json()["state"] == "finished"
    types = [e["event"]["type"] for e in service.ask("GET", "/v1/jobs/j-0/events", "ann").json()["events"]]
    assert types[0] == "Requested"
    assert types[-1] == "JobFinished"
    found = service.ask("GET", "/v1/events?after=2&limit=3").json()["events"]
    assert [e["seq"] for e in found] == [3, 4, 5]
    assert b'plait_jobs{state="finished"} 1.0' in service.ask("GET", "/metrics").content


def test_the_sizes_of_an_adaptive_job_are_told_when_it_has_ended(service: Service) -> None:
    service.sync()
    service.ask("POST", "/v1/jobs", "ann", json={"command": ["a"], "batch": {"initial": 16, "most": 64}})
    deadline = time.monotonic() + 20
    while not service.sync(wait_s=0.2)["attempts"]:
        assert time.monotonic() < deadline
    said = {"pid": 7, "steps": 3.0, "adaptive": wire.Adaptive(9.0, 10.0, 48.0)}
    service.sync(wire.Seen(0, 1, 0, wire.RUNNING, **said))
    service.sync(wire.Seen(0, 1, 0, wire.ENDED, exit_code=0, **said))
    told = service.ask("GET", "/v1/jobs/j-0/explain", "ann").json()
    assert (told["state"], told["summary"]) == ("finished", "")
    assert [(one["gpus"], one["batch_size"]) for one in told["attempts"]] == [(1, 48.0)]
    assert told["attempts"] == service.ask("GET", "/v1/jobs/j-0", "ann").json()["attempts"]


def test_a_submission_says_what_the_policy_ignores(service: Service) -> None:
    job = {"command": ["true"], "priority": 5, "deadline_s": 60}
    answer = service.ask("POST", "/v1/jobs", "ann", json=job).json()
    assert answer["remarks"] == ["policy fifo-backfill ignores deadlines; fifo-backfill:deadlines=on orders by them"]
    both = service.ask("POST", "/v1/jobs", "ann", json={"jobs": [job, {"command": ["true"]}]}).json()
    assert ["remarks" in one for one in both] == [True, False]
    guest = service.ask("POST", "/v1/jobs", "ann", json={"command": ["true"], "class": "opportunistic"}).json()
    assert guest["remarks"][0].startswith("policy fifo-backfill ignores job classes and treats all jobs as guaranteed")
    assert service.ask("PUT", "/v1/policy", json={"policy": "drf"}).status_code == 200
    remarks = service.ask("POST", "/v1/jobs", "ann", json=job).json()["remarks"]
    assert [remark.partition(";")[0] for remark in remarks] == [
        "policy drf ignores priorities",
        "policy drf ignores deadlines",
    ]


def test_a_job_is_changed_requeued_and_cloned(service: Service) -> None:
    service.sync()
    name = service.submit(gpus=2, name="first", env={"A": "1"})
    other = service.submit(gpus=1)
    answer = service.ask("PATCH", f"/v1/jobs/{other}", "ann", json={"priority": 3, "deadline_s": 60, "gpus": 2})
    assert answer.status_code == 200, answer.text
    assert answer.json()["id"] == other
    assert any("deadline" in one for one in answer.json()["remarks"])
    found = service.ask("GET", f"/v1/jobs/{other}").json()
    assert (found["priority"], found["deadline_s"], found["gpus"]) == (3.0, 60.0, 2)
    assert service.ask("PATCH", f"/v1/jobs/{other}", json={"deadline_s": None}).status_code == 200
    assert "deadline_s" not in service.ask("GET", f"/v1/jobs/{other}").json()
    events = service.ask("GET", f"/v1/jobs/{other}/events").json()["events"]
    assert [one["event"]["by"] for one in events if one["event"]["type"] == "UpdateAsked"] == ["ann", "admin"]
    assert service.ask("POST", f"/v1/jobs/{name}/requeue", "ann").status_code == 200
    copy = service.ask("POST", f"/v1/jobs/{name}/clone", "ann", json={"gpus": 1, "name": None}).json()["id"]
    request = service.engine.state.jobs[int(copy[2:])].request
    assert (request["gpus"], request["env"], request.get("name")) == (1, {"A": "1"}, None)
    assert service.ask("DELETE", f"/v1/jobs/{name}", "ann").status_code == 200
    refused = service.ask("POST", f"/v1/jobs/{name}/requeue", "ann")
    assert refused.status_code == 409
    assert f"plait clone {name}" in refused.json()["error"]["message"]
    service.ask("DELETE", f"/v1/jobs/{copy}", "ann")
    path, start = f"/v1/jobs/{copy}/clone", {"from_checkpoint": True}
    assert "has no complete checkpoint" in service.ask("POST", path, "ann", json=start).text
    store = CheckpointStore(service.engine.layout.job(int(copy[2:])) / "checkpoints")
    (store.begin(7) / "rank0.pkl").write_bytes(b"state")
    store.commit(store.begin(7), 7)
    made = service.ask("POST", path, "ann", json=start).json()
    assert service.engine.state.jobs[made["number"]].request["env"] == {"A": "1", "PLAIT_FROM_JOB": copy}
    assert "has not ended" in service.ask("POST", f"/v1/jobs/{made['id']}/clone", "ann", json=start).text
    assert service.ask("POST", path, "admin", json=start).status_code == 403  # another user's
    again = {"headers": {"Authorization": f"Bearer {service.tokens['ann']}", "Idempotency-Key": "k"}}
    made = [service.http.post(f"/v1/jobs/{name}/clone", **again).json()["number"] for _ in range(2)]
    assert made[0] == made[1]


@pytest.mark.parametrize(
    ("body", "field", "message"),
    [
        ({}, None, "nothing is to change; give one of priority, class"),
        ({"priority": "high"}, "priority", "is 'high', needs a number"),
        ({"class": "best"}, "class", "guaranteed"),
        ({"gpus": -1}, "gpus", "needs at least 0"),
        ({"command": ["x"]}, "command", "cannot be given here"),
        ({"min_gpus": 3}, None, "needs min_gpus <= gpus"),
    ],
)
def test_changes_that_cannot_be(service: Service, body: Any, field: str | None, message: str) -> None:
    service.submit()
    answer = service.ask("PATCH", "/v1/jobs/j-0", "ann", json=body)
    assert answer.status_code == 422
    assert message in answer.json()["error"]["message"]
    assert answer.json()["error"].get("field") == field


def test_a_job_is_found_by_its_name_where_it_is_by_its_id(service: Service) -> None:
    def state(name: str, who: str = "ann") -> Any:
        return service.ask("GET", f"/v1/jobs/{name}", who).json()

    old = service.submit(name="train")
    assert service.ask("DELETE", "/v1/jobs/train", "ann").json() == {"id": old, "state": "cancelled"}
    assert state("train")["id"] == old, "one that has ended, as there is no other"
    new, other = service.submit(name="train"), service.submit("ben", name="train")
    assert state("train")["id"] == new, "the one that has not ended"
    assert state("train", "ben")["id"] == other, "of each user the own ones"
    assert "'train' have not ended: j-2, j-1" in state("train", "eve")["error"]["message"], "of viewers those of all"
    for path in ("explain", "events", "logs", "usage"):
        assert service.ask("GET", f"/v1/jobs/train/{path}", "ann").status_code == 200, path
    assert service.ask("GET", "/v1/jobs/train/usage", "ann").json()["id"] == new
    assert service.ask("PATCH", "/v1/jobs/train", "ann", json={"priority": 3}).json()["id"] == new
    assert service.ask("GET", "/v1/losses", "ann", params={"job": ["train"]}).status_code == 200
    third = service.ask("POST", "/v1/jobs/train/clone", "ann").json()["id"]
    refused = service.ask("DELETE", "/v1/jobs/train", "ann")
    assert refused.status_code == 404
    assert f"2 jobs named 'train' have not ended: {third}, {new}" in refused.json()["error"]["message"]
    mine = service.submit("ben", name="only-bens")
    assert service.ask("GET", "/v1/jobs/only-bens", "ann").status_code == 404
    assert state("only-bens", "eve")["id"] == mine
    odd = service.submit(name="j-1")
    assert state("j-1")["id"] == new != odd, "an id is an id"


def test_logs_come_from_the_agent(service: Service) -> None:
    service.sync()
    service.submit()
    deadline = time.monotonic() + 20
    while not service.sync(wait_s=0.2)["attempts"]:
        assert time.monotonic() < deadline
    from concurrent.futures import ThreadPoolExecutor

    def answered(seen: list[wire.Seen], *reply: Any, **more: str) -> Any:
        service.sync(*seen)
        with ThreadPoolExecutor() as pool:
            asked = pool.submit(service.ask, "GET", "/v1/jobs/j-0/logs?offset=2&limit=5", "ann")
            asks: list[dict[str, Any]] = []
            while not asks:
                assert time.monotonic() < deadline
                asks = service.sync(*seen, wait_s=0.2)["ask"]
            assert [asks[0][name] for name in ("job", "epoch", "rank", "offset", "limit")] == [0, 1, 0, 2, 5]
            service.sync(*seen, replies=[wire.Reply(asks[0]["id"], *reply, **more)])
            return asked.result()

    none = {"text": "", "offset": 2, "next": 2, "size": 0, "epoch": 1, "rank": 0}
    assert answered([], error="no log in here").json() == none, "it has not begun to write"
    running = [wire.Seen(0, 1, 0, wire.RUNNING, pid=7)]
    assert answered(running, "llo", 2, 5, 12).json() == {**none, "text": "llo", "next": 5, "size": 12}
    assert "node n0: no log in here" in answered(running, error="no log in here").json()["error"]["message"]


def test_who_follows_a_log_hears_something_while_its_agent_is_silent(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("plait.live.service.logs.PATIENCE_S", 0.02)
    monkeypatch.setattr("plait.live.service.http.routes.logs.FOLLOW_S", 0.001)
    monkeypatch.setattr("plait.live.service.http.routes.logs.QUIET_S", 0.01)
    service.sync()
    service.submit("ann")
    deadline = time.monotonic() + 20
    while not service.sync(wait_s=0.2)["attempts"]:
        assert time.monotonic() < deadline
    answer = service.ask("GET", "/v1/jobs/j-0/logs?follow=1", "ann")
    assert answer.text.startswith(": still here")
    assert "the agent of node n0 does not answer" in answer.text


def test_a_followed_log_ends_when_the_token_is_revoked(service: Service) -> None:
    service.submit("ann")
    mine = next(t["id"] for t in service.ask("GET", "/v1/tokens").json() if t["user"] == "ann")
    threading.Timer(0.6, lambda: service.ask("DELETE", f"/v1/tokens/{mine}")).start()
    answer = service.ask("GET", "/v1/jobs/j-0/logs?follow=1", "ann")  # of a job that never starts: there is no node
    assert answer.text.startswith("event: error")
    assert "revoked" in answer.text


def test_agents_speak_for_their_own_node(service: Service) -> None:
    told = wire.to_json(wire.Observed(wire.NodeInfo("n1", 1), "a"))
    answer = service.ask("POST", "/agent/v1/sync", "agent", json=told)
    assert answer.status_code == 403
    assert "for node n0; it cannot speak for 'n1'" in answer.json()["error"]["message"]
    assert service.ask("GET", "/v1/nodes").json() == []
    made = service.ask("POST", "/v1/tokens", json={"user": "n1", "role": "agent", "node": "n1"}).json()
    headers = {"Authorization": f"Bearer {made['token']}"}
    assert service.http.post("/agent/v1/sync", headers=headers, json=told).status_code == 200
    for wrong in ({"role": "agent"}, {"node": "n1"}, {"role": "agent", "node": "../x"}, {"expires_in_s": 0}):
        assert service.ask("POST", "/v1/tokens", json={"user": "x", **wrong}).status_code == 422


def test_tokens_that_expire_are_listed(service: Service) -> None:
    made = service.ask("POST", "/v1/tokens", json={"user": "cyn", "expires_in_s": 0.2}).json()
    assert 0 < made["left_s"] <= 0.2
    headers = {"Authorization": f"Bearer {made['token']}"}
    deadline = time.monotonic() + 20
    while service.http.get("/v1/status", headers=headers).status_code != 401:
        assert time.monotonic() < deadline
    (row,) = [t for t in service.ask("GET", "/v1/tokens").json() if t["id"] == made["id"]]
    assert row["left_s"] <= 0


def test_invented_methods_are_counted_together(service: Service) -> None:
    for i in range(20):
        service.http.request(f"BREW{i}", "/v1/jobs")
    text = service.ask("GET", "/metrics").text
    assert "BREW" not in text
    assert 'method="other"' in text


def test_policy_and_nodes(service: Service) -> None:
    service.sync()
    assert service.ask("PUT", "/v1/policy", json={"policy": "fifo"}).json()["policy"] == "fifo"
    wrong = service.ask("PUT", "/v1/policy", json={"policy": "fifoo"})
    assert wrong.status_code == 422
    assert "did you mean 'fifo'" in wrong.json()["error"]["message"]
    assert service.ask("POST", "/v1/nodes/n0/drain").json()["state"] == "drained"
    assert service.ask("POST", "/v1/nodes/n0/resume").json()["state"] == "ready"
    assert service.ask("POST", "/v1/nodes/n7/drain").status_code == 404
    assert service.ask("POST", "/v1/nodes/n0/explode").status_code == 404


def test_agents_that_talk_nonsense(service: Service) -> None:
    for body in ({}, {"node": 3, "agent": "x"}, {"v": 99, "node": {"id": "a", "gpus": 1}, "agent": "x"}):
        assert service.ask("POST", "/agent/v1/sync", "agent", json=body).status_code == 422
    told = wire.to_json(wire.Observed(wire.NodeInfo("../x", 1), "a"))
    assert service.ask("POST", "/agent/v1/sync", "agent", json=told).status_code == 403


def test_backup_is_a_store(service: Service, tmp_path: Path) -> None:
    service.submit()
    target = tmp_path / "backups" / "copy.db"
    answer = service.ask("POST", "/v1/backup", json={"path": "copy.db"})
    assert answer.json()["path"] == str(target)
    assert target.stat().st_mode & 0o777 == 0o600
    assert service.ask("POST", "/v1/backup", json={"path": str(target)}).status_code == 422
    copy = Store.open(target)
    assert [row.number for row in copy.jobs()] == [0]
    copy.close()


@pytest.mark.parametrize("path", ["/etc/cron.d/x", "../x", "a/../../x", "link/x", ".", "../backups-of-others/x", "~/x"])
def test_backups_go_below_their_folder_alone(service: Service, tmp_path: Path, path: str) -> None:
    (tmp_path / "backups").mkdir()
    (tmp_path / "backups-of-others").mkdir()
    (tmp_path / "backups" / "link").symlink_to(tmp_path)
    before = sorted(tmp_path.iterdir())
    answer = service.ask("POST", "/v1/backup", json={"path": path})
    assert answer.status_code == 422
    if path != "~/x":  # a folder of that name, which is not there
        assert "backups go below" in answer.json()["error"]["message"]
        assert "--backup-folder" in answer.json()["error"]["message"]
    assert sorted(tmp_path.iterdir()) == before
    assert [file.name for file in (tmp_path / "backups").iterdir()] == ["link"]


@pytest.mark.parametrize("character", ["\x1b", "\x9b", "\x85", "\u202e", "\u2066", "\u200f", "\u2028", "\x7f"])
def test_names_hold_nothing_that_a_terminal_or_page_obeys(service: Service, character: str) -> None:
    for field in ("name", "model"):
        answer = service.ask("POST", "/v1/jobs", json={"command": ["true"], field: f"a{character}b"})
        assert answer.status_code == 422, field
        assert answer.json()["error"]["field"].endswith(field)
    assert (
        service.ask("POST", "/v1/jobs", json={"command": ["true"], "name": "naïve 日本 שלום 👩‍🔬"}).status_code == 200
    )


def test_agents_of_another_version_are_refused(service: Service) -> None:
    import json

    golden = Path(__file__).parents[2] / "golden" / "wire"
    asked = json.loads((golden / "observed_v1.json").read_text()) | {"wait_s": 0.0}
    answer = service.ask("POST", "/agent/v1/sync", "agent", json=asked)
    assert (answer.status_code, answer.json()["v"]) == (200, 1)
    assert set(answer.json()) == set(json.loads((golden / "assignment_v1.json").read_text()))
    refused = service.ask("POST", "/agent/v1/sync", "agent", json={**asked, "v": 3})
    assert refused.status_code == 422
    assert (
        "Observed has version 3; this plait speaks version 1: install the same plait on all machines"
        in refused.json()["error"]["message"]
    )


def test_one_that_leads_no_more_sends_clients_on_as_a_standby_does(service: Service) -> None:
    worker = service.http.app.state.api.worker  # type: ignore[attr-defined]
    worker.stop()
    worker.join()
    refused = service.ask("POST", "/v1/jobs", "ann", json={"command": ["true"]})
    assert (refused.status_code, refused.json()["role"]) == (503, "standby")


def test_a_node_that_is_forgotten_while_it_is_drained_is_not_there(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    service.sync()
    monkeypatch.setattr(Engine, "nodes", lambda engine, now_s: [])
    answer = service.ask("POST", "/v1/nodes/n0/drain")
    assert answer.status_code == 404
    assert "no node 'n0' any more" in answer.text


def test_every_reference_of_the_description_resolves(service: Service) -> None:
    described = service.ask("GET", "/openapi.json").json()
    references: set[str] = set()

    def walk(value: Any) -> None:
        if isinstance(value, dict):
            if isinstance(value.get("$ref"), str):
                references.add(value["$ref"])
            for one in value.values():
                walk(one)
        elif isinstance(value, list):
            for one in value:
                walk(one)

    walk(described)
    assert {"#/components/schemas/JobIn", "#/components/schemas/JobRow"} <= references
    for reference in references:
        assert reference.startswith("#/")
        found = described
        for part in reference[2:].split("/"):
            assert part in found, reference
            found = found[part]
    fields = described["components"]["schemas"]["JobIn"]["properties"]
    assert {"command", "gpus", "profile"} <= fields.keys()


def test_usage_over_time_is_that_of_the_reports(service: Service) -> None:
    job = service.submit()
    assert service.ask("GET", f"/v1/jobs/{job}/usage", "ann").json()["series"] == {}
    run = service.sync()["attempts"] or until_it_runs(service)
    seen = wire.Seen(
        0, run[0]["epoch"], 0, wire.RUNNING, steps=40.0, step_s=0.5, stage_s=[0.1, 0.1, 0.2, 0.1], held_s=20.0,
        last_step_s=19.9, resources=wire.Resources(1.5, 2e9, 3e6, None), memory=wire.Memory(6e9, 1e9),
    )  # fmt: skip
    recorder = service.http.app.state.api.usage  # type: ignore[attr-defined]
    for busy in (0.01, 0.9):
        told = wire.Observed(
            wire.NodeInfo("n0", 2), "agent-1", 1, 0, [seen], wire.Usage(means=[wire.GpuMean(busy), wire.GpuMean(busy)])
        )
        service.ask("POST", "/agent/v1/sync", "agent", json=wire.to_json(replace(told, wait_s=0.0)))
        service.http.portal.call(recorder.sample)
    found = service.ask("GET", f"/v1/jobs/{job}/usage?points=10", "ann").json()
    last = {name: one["values"][-1] for name, one in found["series"].items()}
    assert last == {
        "gpu_utilisation": pytest.approx(0.455), "gpu_least": pytest.approx(0.455), "gpu_memory_bytes": 6e9,
        "cpus": 1.5, "memory_bytes": 2e9, "read_bytes_s": 3e6, "iterations_s": 2.0, "stage_storage_s": 0.1,
        "stage_cpu_s": 0.1, "stage_gpu_s": 0.2, "stage_network_s": 0.1,
    }  # fmt: skip
    (rank,) = found["ranks"]
    assert (rank["node"], rank["gpu_utilisation"], rank["cpus"], rank["written_bytes_s"]) == ("n0", 0.9, 1.5, None)
    assert found["series"]["cpus"]["unit"] == "cores"
    assert 0 <= found["idle_gpu_s"] <= found["known_gpu_s"] <= found["held_gpu_s"] + 0.1
    schema = service.http.get("/openapi.json").json()["components"]["schemas"]["UsageOfJob"]
    assert set(schema["properties"]) == set(found)


def until_it_runs(service: Service) -> list[dict[str, Any]]:
    for _ in range(200):
        time.sleep(0.02)
        if found := service.sync()["attempts"]:
            return list(found)
    raise AssertionError("it did not start")


def test_costs_add_up_and_users_see_their_own(service: Service) -> None:
    for who in ("ann", "ben"):
        service.submit(who)
    until_it_runs(service)
    service.http.app.state.api.costs.prices = Prices.parse(["2.5"], "EUR")  # type: ignore[attr-defined]
    time.sleep(0.2)
    found = service.ask("GET", "/v1/costs?hours=1").json()
    for unit in ("gpu_h", "cost"):
        parts = found["jobs"][unit] + found["idle"][unit] + found["down"][unit]
        assert found["total"][unit] == pytest.approx(parts, abs=3e-6)
        assert sum(row["held"][unit] for row in found["by_user"]) == pytest.approx(found["jobs"][unit], abs=3e-6)
    hours = found["now_s"] - found["from_s"]
    assert found["total"]["cost"] == pytest.approx(2 * hours / 3600 * 2.5, abs=1e-5)
    assert found["jobs"]["cost"] > 0
    assert {row["id"] for row in found["by_job"]} == {"j-0", "j-1"}
    mine = service.ask("GET", "/v1/costs?hours=1", "ann").json()
    assert [row["user"] for row in mine["by_user"]] == ["ann"]
    assert [row["id"] for row in mine["by_job"]] == ["j-0"]
    assert mine["total"] == found["total"]
    schema = service.http.get("/openapi.json").json()["components"]["schemas"]["Costs"]
    assert set(schema["properties"]) == set(found)
    text = service.ask("GET", "/metrics").text
    assert 'plait_cost_last_day{currency="EUR",part="idle"}' in text
    assert "plait_gpus_held_idle 0.0" in text
    assert "plait_reserved_idle_gpu_seconds_total 0.0" in text


def test_an_array_is_one_job_of_the_list_and_is_changed_as_one(service: Service) -> None:
    service.sync()
    body = {
        "command": ["train", "{lr}"],
        "matrix": {"lr": [0.1, 0.01, 1]},
        "array": "%1",
        "tags": ["sweep"],
        "name": "n",
    }
    answer = service.ask("POST", "/v1/jobs", "ann", json=body).json()
    assert (answer["id"], answer["number"], answer["jobs"]) == ("a-0", 0, 3)
    other = service.submit(name="n", tags=["Sweep"])
    service.sync()
    while service.ask("GET", "/v1/jobs/j-0").json()["state"] == "waiting":
        service.sync()
    rows = service.ask("GET", "/v1/jobs", "ann", params={"arrays": True}).json()
    assert [(row["id"], row["state"], row["gpus"], row["reason"]) for row in rows] == [
        (other, rows[0]["state"], 1, rows[0]["reason"]), ("a-0", "starting", 1, "1 starting, 2 waiting"),
    ]  # fmt: skip
    assert rows[1]["members"] == {"waiting": 2, "starting": 1}
    listed = service.ask("GET", "/v1/jobs", params={"array": "a-0"}).json()
    assert [row["command"] for row in listed] == [["train", "1"], ["train", "0.01"], ["train", "0.1"]]
    assert service.ask("GET", "/v1/jobs/a-0.1").json()["id"] == "j-1"
    why = service.ask("GET", "/v1/jobs/a-0.1/explain").json()["summary"]
    assert why == "its array a-0 runs at most 1 job at once"
    refused = service.ask("GET", "/v1/jobs/a-0")
    assert refused.status_code == 409
    assert "an array of 3 jobs; name one of them, as plait ls --array a-0" in refused.text

    assert service.ask("PATCH", "/v1/jobs/a-0", "ben", json={"hold": True}).status_code == 403
    assert service.ask("DELETE", "/v1/jobs/a-0", "ben").status_code == 403
    assert service.ask("DELETE", "/v1/jobs/a-1", "ann").status_code == 404
    held = service.ask("PATCH", "/v1/jobs/a-0", "ann", json={"hold": True}).json()
    assert held["id"] == "a-0"
    assert held["remarks"] == ["job j-0 is running and cannot be held; send it to the queue first: plait requeue j-0"]
    assert service.ask("GET", "/v1/jobs/j-2").json()["hold"] is True
    key = {"Authorization": f"Bearer {service.tokens['ann']}", "Idempotency-Key": "k"}
    for _ in range(2):
        answer = service.http.patch("/v1/jobs/a-0", json={"priority": 3}, headers=key)
        assert answer.status_code == 200, answer.text
    assert [service.ask("GET", f"/v1/jobs/j-{n}").json()["priority"] for n in range(3)] == [3.0, 3.0, 3.0]
    cloned = service.ask("POST", "/v1/jobs/a-0.2/clone", "ann").json()["id"]
    assert service.ask("GET", f"/v1/jobs/{cloned}").json()["array"] is None

    for _ in range(2):
        assert service.ask("DELETE", "/v1/jobs/a-0", "ann").json()["id"] == "a-0"
    assert {service.ask("GET", f"/v1/jobs/j-{n}").json()["state"] for n in (1, 2)} == {"cancelled"}
    tagged = service.ask("GET", "/v1/jobs", params={"tag": "sweep", "arrays": True}).json()
    assert [row["id"] for row in tagged] == [cloned, other, "a-0"]
    assert service.ask("PATCH", "/v1/jobs/a-0", "ann", json={"priority": 4}).status_code == 409


def test_a_job_that_ends_while_its_array_is_counted_is_counted() -> None:
    over: list[bool] = []

    def ended(arrays: list[str]) -> dict[str, dict[str, int]]:
        over.append(bool(over))
        return {"a-0": {"finished": 1} if over[-1] else {}}

    async def look(_: object) -> dict[str, Counter[str]]:
        over.append(bool(over))
        return {"a-0": Counter() if over[-1] else Counter(running=1, gpus=2)}

    api = SimpleNamespace(store=SimpleNamespace(ended_members=ended), worker=SimpleNamespace(look=look))
    assert asyncio.run(_array_states(api, {"a-0"}))["a-0"] == {"running": 1, "finished": 1, "gpus": 2}


def test_the_time_limit_of_a_project_is_that_of_forecasts_and_of_no_clone(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    service.sync()
    service.ask("POST", "/v1/projects", json={"name": "default", "default_time_s": 7200.0})
    service.ask("POST", "/v1/projects", json={"name": "short", "most_time_s": 60.0})
    limits: list[float | None] = []

    def submission(self: WhatIfService, copy: object, spec: JobSpec, *rest: object) -> None:
        limits.append(spec.time_limit_s)
        raise InputError("stop here")

    monkeypatch.setattr(WhatIfService, "submission", submission)
    assert service.ask("POST", "/v1/what-if", "ann", json={"command": ["true"], "signal_s": 9}).status_code == 422
    assert limits == [7200.0]

    def cloned_limit(job: str, **different: Any) -> float:
        answer = service.ask("POST", f"/v1/jobs/{job}/clone", json=different)
        assert answer.status_code == 200, answer.text
        return float(service.ask("GET", f"/v1/jobs/{answer.json()['id']}").json()["time_limit_s"])

    given, stated = service.submit(), service.submit(time_limit_s=30.0)
    assert [cloned_limit(given), cloned_limit(given, project="short")] == [7200.0, 60.0]
    assert cloned_limit(stated, project="short") == 30.0
    service.ask("PATCH", f"/v1/jobs/{given}", json={"time_limit_s": 50.0})  # now it is the user's
    assert cloned_limit(given, project="short") == 50.0


def test_arrays_that_cannot_be_are_refused_by_field(service: Service) -> None:
    for fields, field in (
        ({"array": "3-1"}, "array"),
        ({"matrix": {"lr": 1}}, "matrix.lr"),
        ({"tags": [""]}, "tags.0"),
    ):
        answer = service.ask("POST", "/v1/jobs", "ann", json={"command": ["x"], **fields})
        assert (answer.status_code, answer.json()["error"]["field"]) == (422, field)
    outlook = service.ask("POST", "/v1/what-if", "ann", json={"command": ["true"], "array": "0-3"})
    assert outlook.status_code in (200, 404), outlook.text
