"""The whole description: what FastAPI knows of the routes, and what follows from their form."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from fastapi import FastAPI

from plait.live.service.http.answers.cluster import Health
from plait.live.service.http.answers.errors import ErrorAnswer
from plait.live.service.http.openapi import messages
from plait.live.service.http.openapi.routes import PREFIX, body_schemas

ABOUT = """A scheduler for deep-learning clusters: submit jobs, see why they wait, operate the cluster.

Send a token as `Authorization: Bearer TOKEN`; its role decides what it may do. Times (`..._s`) are seconds, moments are
seconds on the clock of the service, memory is in bytes. Every answer of 400 and above is an error with a sentence, and
where it helps with the field that is wrong and with what to do. Answers may have more fields in later versions.
"""
#: Statuses of errors and what they mean.
MEANINGS = {
    400: "The body is not JSON.",
    401: "No token, or an invalid, revoked or expired one.",
    403: "The role of the token, or its user, may not do this.",
    404: "There is nothing of that name.",
    408: "The body did not come in time.",
    409: "It cannot be done in this state.",
    413: "The body has too many bytes.",
    422: "A field or a parameter is wrong.",
    500: "An error in the service; its log has more.",
    503: "This service does not lead, or a part of it did not answer; retry at the leader, or in a few seconds.",
    507: "The disk of the service is full; nothing was stored.",
}
TAGS = {
    "jobs": "Submit, list, explain and cancel jobs; read their logs and history.",
    "cluster": "Nodes, queue, policy, network, figures and the event log.",
    "administration": "Tokens, projects and backups.",
    "agents": "Requests of the agents of nodes.",
}
_METHODS = ("get", "put", "post", "delete", "patch")
_EXAMPLES = Path(__file__).with_name("examples.json")


def description(app: FastAPI) -> dict[str, Any]:
    """The API as an OpenAPI 3.1 document."""
    found = FastAPI.openapi(app)
    schemas = found["components"]["schemas"]
    schemas.update(body_schemas() | messages.components())
    schemas |= _models(ErrorAnswer, Health)
    for unused in ("HTTPValidationError", "ValidationError"):
        schemas.pop(unused, None)
    found["info"]["description"] = ABOUT
    found["tags"] = [{"name": name, "description": text} for name, text in TAGS.items()]
    found["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
    found["security"] = [{"token": []}]
    found["paths"]["/v1/health"] = {"get": _health()}
    for name, operation in operations(found):
        _complete(name, operation)
    return found


def operations(document: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each operation with its name: GET /v1/jobs."""
    for path, methods in document["paths"].items():
        for method in _METHODS:
            if method in methods:
                yield f"{method.upper()} {path}", methods[method]


@cache
def examples() -> dict[str, Any]:
    """Recorded requests and answers of a service: by operation `query`, `request` and `answer`, and `errors`."""
    found: dict[str, Any] = json.loads(_EXAMPLES.read_text(encoding="utf-8"))
    return found


def _models(*kinds: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for kind in kinds:
        schema = kind.model_json_schema(ref_template=PREFIX + "{model}", mode="serialization")
        found |= {**schema.pop("$defs", {}), kind.__name__: schema}
    return found


def _health() -> dict[str, Any]:
    """The route that `plait.live.service.http.gateway` answers, for no token and by standbys as well."""
    answer = {"application/json": {"schema": {"$ref": f"{PREFIX}Health"}}}
    return {
        "tags": ["cluster"], "operationId": "health", "security": [],
        "description": "Whether this service leads: 200 if it does, 503 if it stands by.",
        "responses": {
            "200": {"description": "It leads.", "content": answer},
            "503": {"description": "It stands by.", "content": answer},
        },
    }  # fmt: skip


def _complete(name: str, operation: dict[str, Any]) -> None:
    """Summary, roles, errors and examples of one operation."""
    text = operation.get("description", "")
    first, _, rest = text.partition("\n\n")
    operation["summary"] = " ".join(first.split()).rstrip(".")
    known = examples()["operations"].get(name, {})
    operation["description"] = "\n\n".join(filter(None, [" ".join(first.split()), rest.strip(), _who(operation)]))
    if operation.get("security") != []:
        for status in _errors(name, operation):
            _error(status, operation["responses"].setdefault(str(status), {}))
    _show(known, operation)


def _who(operation: dict[str, Any]) -> str:
    roles = operation.get("x-roles")
    if not roles:
        return ""
    own = "; users only for jobs of their own" if operation.pop("x-own-jobs", False) and "user" in roles else ""
    return f"Roles: {', '.join(roles)}{own}."


def _errors(name: str, operation: dict[str, Any]) -> list[int]:
    """Which errors a request of this form can get."""
    method, path = name.split(" ")
    asked = "requestBody" in operation or any(p["in"] != "path" for p in operation.get("parameters", ()))
    operation["responses"].pop("422", None)  # of another form, and declared for names in paths as well
    found = {401, 403, 500, 503, *(int(code) for code in operation["responses"] if int(code) >= 400)}
    found |= {404} if "{" in path else set()
    found |= {422} if asked else set()
    found |= {400, 408, 413} if "requestBody" in operation else set()
    found |= {507} if method != "GET" else set()
    return sorted(found)


def _error(status: int, response: dict[str, Any]) -> None:
    response["description"] = response.get("description") or MEANINGS[status]
    content: dict[str, Any] = {"schema": {"$ref": f"{PREFIX}ErrorAnswer"}}
    if (example := examples()["errors"].get(str(status))) is not None:
        content["example"] = example
    response["content"] = {"application/json": content}


def _show(known: dict[str, Any], operation: dict[str, Any]) -> None:
    """Put examples where they belong."""
    for parameter in operation.get("parameters", ()):
        if parameter["name"] in known.get("parameters", {}):
            parameter["example"] = known["parameters"][parameter["name"]]
    if "requestBody" in operation and "request" in known:
        operation["requestBody"]["content"]["application/json"]["example"] = known["request"]
    answer = operation["responses"]["200"]
    answer["description"] = {"Successful Response": "Done."}.get(
        answer.get("description", ""), answer.get("description")
    )
    for media_type, content in answer.get("content", {}).items():
        if media_type in known.get("answers", {}):
            content["example"] = known["answers"][media_type]
