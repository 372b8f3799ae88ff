"""The description of the API: complete, valid, and true of what a service answers.

With PLAIT_RECORD=1 the examples of the description are recorded again from the service that is asked here.
"""

import json
import os
import random
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from jsonschema import Draft202012Validator
from openapi_spec_validator import validate
from starlette.testclient import TestClient
from test_service_api import READS, WRITES, Service
from test_service_api import service as service  # a fixture

from plait.live.protocol.wire import ENDED, RUNNING, ConsoleReply, NodeInfo, Observed, Reply, Seen, to_json
from plait.live.service.http import openapi
from plait.live.service.http.app import ROUTES
from plait.live.service.http.limits import Gateway
from plait.live.service.http.openapi import operations
from plait.live.store import NoRoom, StoreError

METHODS = ("get", "put", "post", "delete", "patch")
#: Statuses that no request to a service in memory gets.
NOT_HERE = {408}
#: What routes of the service itself answer, in front of the application.
GATEWAY = {"GET /v1/health"}
WORDS = {"token": "plait_" + "x" * 43, "path": "/backup/plait.db", "folder": "/srv/plait/reports"}


def closed(schema: Any) -> Any:
    """The same schema, which refuses fields that it does not name."""
    if isinstance(schema, list):
        return [closed(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    out = {name: closed(value) for name, value in schema.items()}
    if "properties" in schema and isinstance(schema["properties"], dict) and schema.get("type") == "object":
        out.setdefault("additionalProperties", False)
    return out


class Described:
    """Asks a service; each answer must be what the description says."""

    def __init__(self, asked: Service) -> None:
        self.service, self.document = asked, asked.http.get("/openapi.json").json()
        self.operations = dict(operations(self.document))
        self.strict = {"components": closed(self.document["components"])}
        self.asked: dict[str, dict[str, Any]] = {}
        self.errors: dict[str, Any] = {}
        self.wrong: list[str] = []

    def check(self, schema: dict[str, Any], value: Any, what: str) -> None:
        for error in Draft202012Validator({**closed(schema), **self.strict}).iter_errors(value):
            nested = [f"{c.json_path}: {c.message[:150]}" for c in error.context or ()][:6]
            self.wrong.append(f"{what}: {error.json_path}: {error.message[:300]} {nested}")

    def ask(self, operation: str, path: str = "", who: str = "admin", status: int = 200, **more: Any) -> Any:
        method, template = operation.split(" ")
        answer = self.service.ask(method, path or template, who, **more)
        assert answer.status_code == status, (operation, answer.text)
        said = self.operations[operation]["responses"]
        assert str(status) in said, f"{operation} answers {status}, which is not described: {answer.text}"
        kind = answer.headers["content-type"].split(";")[0]
        body = answer.json() if kind == "application/json" else answer.text
        self.check(said[str(status)]["content"][kind]["schema"], body, operation)
        if status >= 400:
            self.errors.setdefault(str(status), body)
        elif operation not in self.asked or kind not in self.asked[operation]["answers"]:
            self._note(operation, path or template, more, kind, body)
        return body

    def _note(self, operation: str, path: str, more: dict[str, Any], kind: str, body: Any) -> None:
        template = re.sub(r"{(\w+)}", r"(?P<\1>[^/?]+)", operation.split(" ")[1])
        named = re.fullmatch(template, path.split("?")[0])
        assert named is not None, (operation, path)
        note = self.asked.setdefault(operation, {"parameters": {}, "answers": {}})
        note["parameters"] |= named.groupdict() | more.get("params", {})
        if "json" in more:
            schema = self.operations[operation]["requestBody"]["content"]["application/json"]["schema"]
            self.check(schema, more["json"], f"request of {operation}")
            note.setdefault("request", more["json"])
        note["answers"][kind] = body if kind == "application/json" else body[:400]


@pytest.fixture
def described(service: Service) -> Described:
    return Described(service)


def test_it_is_valid_and_leaves_no_route_out(described: Described) -> None:
    validate(described.document)
    assert {route.path for route in ROUTES} | {"/v1/health"} == set(described.document["paths"])
    for name, operation in described.operations.items():
        assert operation["summary"], name
        assert operation["tags"][0] in openapi.TAGS, f"{name} has no tag"
        assert "Roles: " in operation["description"] or name in GATEWAY, f"{name}"
        for parameter in operation.get("parameters", ()):
            assert parameter.get("description"), f"{name}: parameter {parameter['name']} has no description"
        for media_type in operation["responses"]["200"]["content"].values():
            assert media_type["schema"], f"{name}: the answer has no schema"
            assert "example" in media_type, f"{name}: no example; ask it in this file and record (PLAIT_RECORD=1)"
        if "requestBody" in operation and name != "POST /agent/v1/sync":
            assert "example" in operation["requestBody"]["content"]["application/json"], name
        for status, response in operation["responses"].items():
            assert response["description"], (name, status)
            if int(status) >= 400 and int(status) not in NOT_HERE and name not in GATEWAY:
                assert "example" in response["content"]["application/json"], f"{name}: no example of {status}"


def test_examples_are_what_their_schemas_say(described: Described) -> None:
    seen = 0
    for name, operation in described.operations.items():
        bodies = {200: operation["responses"]["200"]["content"], "request": {}}
        bodies |= {s: r["content"] for s, r in operation["responses"].items() if "content" in r}
        bodies["request"] = operation.get("requestBody", {}).get("content", {})
        for status, content in bodies.items():
            for media_type in content.values():
                if "example" in media_type:
                    described.check(media_type["schema"], media_type["example"], f"example of {name}, {status}")
                    seen += 1
    assert not described.wrong, "\n".join(described.wrong)
    assert seen > 100


def test_roles_are_those_that_are_let_in(described: Described) -> None:
    roles = {"admin": "admin", "ann": "user", "eve": "viewer", "agent": "agent"}
    for method, path, _, allowed in READS + WRITES:
        template = (
            path.partition("?")[0]
            .replace("j-0", "{job}")
            .replace("t-0", "{token_id}")
            .replace("0f3a9c4e", "{console}")
            .replace("r-0", "{reservation}")
            .replace("n0/drain", "{node}/{action}")
        )
        template = template.replace("n0", "{node}").replace("projects/p", "projects/{name}")
        operation = described.operations[f"{method} {template}"]
        assert set(operation["x-roles"]) == {roles[who] for who in allowed if who in roles}, (method, path)


def test_answers_are_what_the_description_says(described: Described, tmp_path: Path, monkeypatch: Any) -> None:
    ask, it = described.ask, described.service
    train = {
        "command": ["python", "train.py"], "workdir": "/home/ann/resnet", "gpus": 1, "iterations": 200,
        "model": "resnet50", "name": "first",
    }  # fmt: skip
    ask("POST /v1/jobs", who="ann", json=train)
    ask(
        "POST /v1/jobs", who="ann", json={"jobs": [{**train, "gpus": 2}, {**train, "gpus": 64, "wait_for_nodes": True}]}
    )
    ask("POST /v1/jobs", who="ann", json={**train, "batch": {"initial": 32, "most": 256}, "max_gpus": 2, "priority": 3})
    ask("GET /v1/state")
    ask("GET /v1/jobs/{job}/explain", "/v1/jobs/j-0/explain")
    running = _run(described)
    _use_console(described, running)
    ask("GET /v1/nodes")
    ask("GET /v1/placements", params={"node": ["n0"], "limit": 5})
    ask("GET /v1/placements", status=422)
    ask("GET /v1/jobs", params={"state": "running,waiting", "user": "ann", "limit": 10, "offset": 0})
    ask("GET /v1/jobs", who="ben")
    for job in ("j-0", "j-1", "j-2", "j-3"):
        ask("GET /v1/jobs/{job}", f"/v1/jobs/{job}")
        ask("GET /v1/jobs/{job}/explain", f"/v1/jobs/{job}/explain")
        ask("GET /v1/jobs/{job}/events", f"/v1/jobs/{job}/events", params={"after": 0, "limit": 5})
    for read in ("status", "state", "queue", "network", "policy", "me", "tokens", "projects", "events"):
        ask(f"GET /v1/{read}")
    ask("GET /metrics")
    ask(
        "POST /v1/jobs/{job}/forecast",
        "/v1/jobs/j-1/forecast",
        "ann",
        json={"start": [5, 9, 60], "end": [60, 90, None]},
    )
    ask("GET /v1/costs", params={"hours": 24, "limit": 3})
    ask("PATCH /v1/jobs/{job}", "/v1/jobs/j-2", "ann", json={"priority": 2, "deadline_s": 3600})
    ask("POST /v1/jobs/{job}/clone", "/v1/jobs/j-0/clone", "ann", json={"gpus": 2, "name": "second"})
    ask("GET /v1/jobs/{job}/logs", "/v1/jobs/j-1/logs", params={"rank": 0, "offset": 0, "limit": 100})
    ask("GET /v1/jobs/{job}/usage", "/v1/jobs/j-0/usage", params={"points": 60})
    ask("POST /v1/what-if", who="ann", json={**train, "gpus": 2})
    ask("POST /v1/what-if/queue", json={"policy": "srtf", "nodes": "+1x2"})
    it.sync(Seen(0, running, 0, RUNNING, pid=7, steps=200.0, held_s=100.0, saves="nothing"))
    ask("GET /v1/losses", params={"job": ["j-0"], "node": ["n0"]})
    ask("POST /v1/nodes/{node}/{action}", "/v1/nodes/n0/drain", status=409)
    it.sync(Seen(0, running, 0, ENDED, exit_code=0, steps=200.0))
    ask("GET /v1/jobs/{job}/explain", "/v1/jobs/j-0/explain")
    ask("POST /v1/jobs/{job}/requeue", "/v1/jobs/j-1/requeue", "ann", json={"may_lose_work": True})
    ask("DELETE /v1/jobs/{job}", "/v1/jobs/j-1", "ann")
    ask("DELETE /v1/jobs/{job}", "/v1/jobs/j-2", "ann")
    ask("GET /v1/jobs/{job}/logs", "/v1/jobs/j-2/logs", params={"follow": True})
    ask("DELETE /v1/jobs/{job}", "/v1/jobs/j-0", status=409)
    _operate(described, tmp_path)
    _health(described)
    _fail(described, monkeypatch)
    assert not described.wrong, "\n".join(described.wrong)
    missing = set(described.operations) - set(described.asked)
    assert not missing, f"ask these routes in this file: {', '.join(sorted(missing))}"
    if os.environ.get("PLAIT_RECORD"):
        _record(described)


def _run(described: Described) -> int:
    """Let a node have a job run; the epoch of its attempt."""
    for _ in range(200):
        runs = described.service.sync(wait_s=0.2)["attempts"]
        if runs:
            break
    seen = [Seen(r["job"], r["epoch"], r["rank"], RUNNING, pid=7, steps=20.0, step_s=0.5, held_s=10.0,
                 stage_s=[0.1, 0.1, 0.3, 0.1], total_steps=200.0, saves="yes") for r in runs]  # fmt: skip
    report = to_json(Observed(NodeInfo("n0", 2), "agent-1", 1, 0, seen, wait_s=0.0))
    described.ask("POST /agent/v1/sync", who="agent", json=report)
    first: int = next(r["epoch"] for r in runs if r["job"] == 0)
    return first


def _use_console(described: Described, epoch: int) -> None:
    """A console of j-0, which its agent answers."""
    operation, path = "POST /v1/jobs/{job}/consoles/{console}", "/v1/jobs/j-0/consoles/0f3a9c4e"
    report = Seen(0, epoch, 0, RUNNING, pid=7, steps=20.0, saves="yes")
    with ThreadPoolExecutor() as pool:
        body = {"command": ["nvidia-smi", "-L"], "output_at": 0}
        asked = pool.submit(described.ask, operation, path, "ann", json=body)
        asks: list[Any] = []
        while not asks and not asked.done():
            asks = described.service.sync(report, wait_s=0.2)["ask"]
        assert asks[0]["console"]["command"] == ["nvidia-smi", "-L"], asks
        reply = Reply(asks[0]["id"], console=ConsoleReply("R1BVIDA6IEExMDAK", 0, 0, 0))
        described.service.sync(report, replies=[reply])
        assert asked.result()["exit_code"] == 0
    described.ask(operation, path, "ann", status=404, json={"rank": 7})
    described.ask(operation, "/v1/jobs/j-2/consoles/0f3a9c4e", "ann", status=409, json={"command": ["true"]})


def _operate(described: Described, tmp_path: Path) -> None:
    ask = described.ask
    ask("PUT /v1/policy", json={"policy": "srtf"})
    ask("POST /v1/nodes/{node}/{action}", "/v1/nodes/n0/drain", json={"may_lose_work": True})
    ask("POST /v1/nodes/{node}/{action}", "/v1/nodes/n0/paint", status=404)
    ask("POST /v1/nodes/{node}/gone", "/v1/nodes/n0/gone", json={"why": "its machine is off", "certain": True})
    ask("DELETE /v1/nodes/{node}", "/v1/nodes/n0", status=409)
    described.service.tokens["n1"] = ask("POST /v1/tokens", json={"user": "n1", "role": "agent", "node": "n1"})["token"]
    for leaving_s in (None, 0.0):  # comes, and goes
        report = Observed(NodeInfo("n1", 2), "agent-2", 1, 0, [], wait_s=0.0, leaving_s=leaving_s)
        ask("POST /agent/v1/sync", who="n1", json=to_json(report))
    ask("DELETE /v1/nodes/{node}", "/v1/nodes/n1")
    new = ask("POST /v1/tokens", json={"user": "new", "role": "user", "expires_in_s": 3600})
    ask("DELETE /v1/tokens/{token_id}", f"/v1/tokens/{new['id']}")
    ask(
        "POST /v1/projects",
        json={
            "name": "vision",
            "quota_gpus": 8,
            "weight": 2.0,
            "default_time_s": 14400.0,
            "most_time_s": 172800.0,
            "most_idle_s": 1800.0,
        },
    )
    ask("GET /v1/projects")
    reserved = {"nodes": ["n0"], "project": "vision", "in_s": 3600.0, "for_s": 14400.0}
    ask("POST /v1/reservations", json=reserved)
    ask("POST /v1/reservations", status=409, json=reserved)
    ask("GET /v1/reservations")
    ask("DELETE /v1/reservations/{reservation}", "/v1/reservations/r-1")
    ask("DELETE /v1/projects/{name}", "/v1/projects/vision")
    ask("POST /v1/backup", json={"path": "copy.db"})


def _health(described: Described) -> None:
    """What stands in front of the application answers whether it leads."""
    gateway = Gateway(None)
    http, schema = TestClient(gateway), {"$ref": "#/components/schemas/Health"}  # no lifespan
    standby = http.get("/v1/health")
    gateway.app = described.service.http.app
    leader = http.get("/v1/health")
    assert (standby.status_code, leader.status_code) == (503, 200)
    for answer in (standby, leader):
        described.check(schema, answer.json(), "GET /v1/health")
    described.asked["GET /v1/health"] = {"parameters": {}, "answers": {"application/json": leader.json()}}


def _fail(described: Described, monkeypatch: Any) -> None:
    """Each status of an error, once."""
    ask, api = described.ask, described.service.http.app.state.api  # type: ignore[attr-defined]
    ask("GET /v1/jobs/{job}", "/v1/jobs/j-99", status=404)
    ask("GET /v1/jobs/{job}", "/v1/jobs/j-1", "ben", status=403)
    ask("POST /v1/jobs", json={"command": ["true"], "gpus": -1}, status=422)
    ask("GET /v1/queue", params={"limit": 0}, status=422)
    ask("POST /v1/jobs", content=b"no json", status=400)
    ask("POST /v1/jobs", content=b" " * 1_000_001, status=413)
    described.service.tokens["nobody"] = "plait_unknown"
    ask("GET /v1/me", who="nobody", status=401)
    for error, status in ((NoRoom("no space left on /srv/plait"), 507), (StoreError("the store is damaged"), 500)):

        async def refuse(*args: Any, error: Exception = error) -> Any:
            raise error

        with monkeypatch.context() as patch:
            patch.setattr(api.worker, "call", refuse)
            ask("POST /v1/jobs", json={"command": ["true"]}, status=status)
    described.service.http.app.state.api.worker.stop()  # type: ignore[attr-defined]
    ask("GET /v1/status", status=503)


def _record(described: Described) -> None:
    text = json.dumps({"operations": described.asked, "errors": described.errors}, indent=1, sort_keys=True)
    for name, word in WORDS.items():
        text = re.sub(rf'("{name}": )"[^"{{]*"', rf'\1"{word}"', text)
    Path(openapi.__file__).with_name("examples.json").write_text(text + "\n", encoding="utf-8")


# -- random requests, made from the service's own description of itself and from what breaks programs: never a 500 ---


REQUESTS = 5000 if os.environ.get("PLAIT_SLOW") else 300
#: Values that are none, or too much: numbers beyond 64 bits, what JSON does not know, half characters, paths.
ODD: list[Any] = [
    0, -1, 1, 2**31, 2**63 - 1, 2**63, 2**64, -(2**63) - 1, 10**30, 10**300, 10**4299, 1e308, -1e308, 5e-324, 0.5,
    float("inf"), float("-inf"), float("nan"), True, False, None, "", "a", "0", "-1", "1e999", "9" * 25, "9" * 4301,
    "\0", "\ud800", "é" * 300, "j-0", "j-" + "9" * 18, "j-" + "9" * 30, "j--1", "n0", "../..", "/", "/dev/null",
    "/proc/self/mem", "/nonexistent/x", "a" * 300, "a" * 70_000, "os:system", "os:system:command=true", "fifo:",
    "fifo:x=1", ":", "tiresias-g:sizes=/dev/zero", "las:quantum_s=" + "9" * 4301, "las:quantum_s=nan",
    "muri-l:max_jobs=1e308", "muri-s:order=\ud800", [], {}, [[]], [None] * 3, {"a": 1}, {"gpu": 1e308}, {"initial":
    2**63}, ["true"], ["sleep", "1"],
]  # fmt: skip


def definitions(value: Any) -> dict[str, Any]:
    """Everything that has a name in a description."""
    found: dict[str, Any] = {}
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        if key in ("$defs", "schemas"):
            found |= inner
        found |= definitions(inner)
    return found


class Maker:
    """Requests as the description has them, with something odd here and there."""

    def __init__(self, description: Any, seed: int) -> None:
        self.named, self.draw = definitions(description), random.Random(seed)
        self.calls = [
            (method, path, call) for path, ways in description["paths"].items() for method, call in ways.items()
        ]

    def value(self, schema: Any, depth: int = 0) -> Any:
        draw = self.draw
        if isinstance(schema, dict) and "$ref" in schema:
            schema = self.named[schema["$ref"].rpartition("/")[2]]
        if draw.random() < 0.15 or depth > 5 or not isinstance(schema, dict):
            return draw.choice(ODD)
        for several in ("anyOf", "oneOf"):
            if several in schema:
                return self.value(draw.choice(schema[several]), depth)
        if "enum" in schema:
            return draw.choice(schema["enum"])
        kind = schema.get("type")
        if kind == "object":
            known = schema.get("properties", {})
            need = set(schema.get("required", ()))
            return {n: self.value(s, depth + 1) for n, s in known.items() if n in need or draw.random() < 0.25}
        if kind == "array":
            return [self.value(schema.get("items", {}), depth + 1) for _ in range(draw.randrange(4))]
        if kind == "integer":
            return draw.choice([0, 1, 2, 3, 100, 10_000, 2**40])
        if kind == "number":
            return draw.choice([0, 0.5, 1.0, 3.0, 1e6, 1e9])
        if kind == "boolean":
            return draw.random() < 0.5
        return draw.choice(["a", "true", "fifo", "default", "n0", "user", "agent"])

    def request(self) -> tuple[str, str, dict[str, str], bytes | None]:
        draw = self.draw
        method, path, call = draw.choice(self.calls)
        query, headers = [], {}
        for parameter in call.get("parameters", ()):
            value = self.value(parameter.get("schema", {})) if draw.random() < 0.6 else draw.choice(ODD)
            text = str(value)[:5000] if not isinstance(value, int) else f"{value:#x}" if value > 10**400 else str(value)
            text = text.encode("utf-8", "replace").decode()
            if parameter["in"] == "path":
                text = draw.choice(["j-0", "n0", "default", "drain", "t-0", text, text])
                path = path.replace("{" + parameter["name"] + "}", quote(text, safe="") or "x")
            elif parameter["in"] == "query" and draw.random() < 0.5:
                query.append(f"{parameter['name']}={quote(text, safe='')}")
            elif parameter["in"] == "header" and draw.random() < 0.5:
                headers[parameter["name"]] = quote(text)[:2000] or "x"
        body = None
        if method in ("post", "put"):
            described = call.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
            body = self.body(self.value(described or self.guess(path)))
        return method.upper(), path + ("?" + "&".join(query) if query else ""), headers, body

    def guess(self, path: str) -> Any:
        """Bodies that the description leaves out."""
        fields = {
            "/v1/policy": ["policy"], "/v1/tokens": ["user", "role", "project", "expires_in_s", "node"],
            "/v1/projects": ["name", "quota_gpus", "weight"], "/v1/backup": ["path", "path", "path"],
            "/agent/v1/sync": ["node", "agent", "term", "reached", "attempts", "usage", "replies", "wait_s", "v"],
        }.get(path, ["why"])  # fmt: skip
        return {"type": "object", "properties": {f: {} for f in fields}, "required": fields[:1]}

    def body(self, value: Any) -> bytes:
        way = self.draw.random()
        if way < 0.03:
            return b"[" * 3000 + b"]" * 3000
        if way < 0.05:
            return b'{"command": ["a"], "gpus": ' + b"9" * 4301 + b"}"
        if way < 0.07:
            return self.draw.randbytes(50)
        try:
            return json.dumps(value).encode("utf-8", "surrogatepass")
        except ValueError:  # more digits than Python writes
            return b"1e5000"


def test_random_requests_are_never_answered_with_an_error_of_the_service(
    service: Service,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("plait.live.service.warmup.warm_up", lambda policy: None)
    service.sync(gpus=2)
    service.submit()
    maker = Maker(service.http.get("/openapi.json").json(), 15)
    found: dict[int, int] = {}
    bad = []
    for number in range(REQUESTS):
        method, path, headers, body = maker.request()
        if "follow=" in path:
            path = path.replace("follow=", "limit=")
        who = "agent" if path.startswith("/agent") else maker.draw.choice(["admin", "admin", "ann", "eve"])
        headers["Authorization"] = f"Bearer {service.tokens[who]}"
        answer = service.http.request(method, path, headers=headers, content=body)
        found[answer.status_code] = found.get(answer.status_code, 0) + 1
        if answer.status_code >= 500 and answer.status_code != 503:
            bad.append((number, method, path[:300], (body or b"")[:300], answer.text[:300]))
    assert not bad, f"{len(bad)} of {REQUESTS}: {bad[:12]}"
    assert found[200] > REQUESTS / 20, found  # it is not all refused at the door
    assert service.ask("GET", "/v1/status").status_code == 200
