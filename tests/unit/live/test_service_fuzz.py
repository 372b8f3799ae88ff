"""Random requests, made from the service's own description of itself and from what breaks programs: never a 500."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from test_service_api import Service, service  # noqa: F401 - a fixture

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
    service: Service,  # noqa: F811
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
