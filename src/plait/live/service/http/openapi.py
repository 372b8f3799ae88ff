"""The description of the HTTP API at `/openapi.json`, made of the routes and of the types of their answers and bodies.

`examples.json` is recorded from a service by `tests/unit/live/test_openapi.py`. Start at `description`.
"""

import ast
import inspect
import json
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from plait.control import messages
from plait.core.version import __version__
from plait.live.api.admin import ErrorAnswer
from plait.live.api.cluster import Health
from plait.live.protocol import wire
from plait.live.scheduler.records import notes
from plait.live.service.http.api import KEY, Route
from plait.live.service.http.bodies import COMPONENTS, PREFIX, Schema

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
#: Parts of paths.
_PATHS = {
    "job": "Id of a job, j-12, or its name.", "node": "Name of a node.", "action": "drain or resume.",
    "token_id": "Its `id`: t-1f2e3d4c.", "reservation": "Its `id`: r-1.", "name": "Its name.",
    "console": "A name that the client makes up, of 8 to 64 letters, digits and dashes.",
}  # fmt: skip
_METHODS = ("get", "put", "post", "delete", "patch")
_EXAMPLES = Path(__file__).with_name("examples.json")


def description(routes: Iterable[Route]) -> dict[str, Any]:
    """The API as an OpenAPI 3.1 document."""
    known = list(routes)
    kinds = [kind for route in known for kind in (route.answer, route.body, route.query) if _is_type(kind)]
    schemas, components = _schemas([*kinds, ErrorAnswer, Health])
    found = dict(zip(map(repr, kinds), schemas, strict=False))
    paths: dict[str, dict[str, Any]] = {}
    for route in known:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, found, components)
    paths["/v1/health"] = {"get": _health()}
    for kind in {route.query.__name__ for route in known if route.query is not None}:
        components.pop(kind, None)
    document = {
        "openapi": "3.1.0",
        "info": {"title": "plait", "version": __version__, "description": ABOUT},
        "tags": [{"name": name, "description": text} for name, text in TAGS.items()],
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "schemas": {**components, **COMPONENTS, **_messages()},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }
    for name, operation in operations(document):
        _show(examples()["operations"].get(name, {}), operation)
    return document


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


# -- types --------------------------------------------------------------------------------------------------


def _is_type(kind: Any) -> bool:
    """Whether msgspec makes the schema of an answer, body or query; the others are schemas already."""
    return kind is not None and not isinstance(kind, (Mapping, Schema))


def _schemas(kinds: list[Any]) -> tuple[tuple[dict[str, Any], ...], dict[str, Any]]:
    """A schema for each type, and all structs by name, their fields described by the docstrings below them."""
    schemas, components = msgspec.json.schema_components(kinds, ref_template=PREFIX + "{name}")
    structs = {one.__name__: one for one in _structs(msgspec.Struct)}
    for name, schema in components.items():
        kind = structs[name]
        names = {one.name: one.encode_name for one in msgspec.structs.fields(kind)}
        for field, text in _docstrings(kind).items():
            schema["properties"][names[field]].setdefault("description", text)
    return schemas, components


def _structs(kind: type[Any]) -> Iterator[type[Any]]:
    for one in kind.__subclasses__():
        yield one
        yield from _structs(one)


def _docstrings(kind: type[Any]) -> dict[str, str]:
    """The texts that stand below the fields of a struct and of its bases."""
    found: dict[str, str] = {}
    for part in reversed(kind.__mro__[: kind.__mro__.index(msgspec.Struct)]):
        (tree,) = ast.parse(textwrap.dedent(inspect.getsource(part))).body
        assert isinstance(tree, ast.ClassDef)
        for field, text in zip(tree.body, tree.body[1:], strict=False):
            if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
                assert isinstance(field.target, ast.Name)
                found[field.target.id] = inspect.cleandoc(str(text.value.value))
    return found


def _messages() -> dict[str, Any]:
    """Schemas of entries of the log and of the messages of agents, made of the dataclasses that these are.

    `log.` and `agent.` come before the names of the dataclasses; see `plait.core.codec.schema`.
    """
    log, noted = messages.schemas(f"{PREFIX}log."), notes.schemas(f"{PREFIX}log.")
    events, own = log.any_of(messages.Event.__subclasses__()), noted.any_of(notes.Note.__subclasses__())
    entry = {
        "type": "object", "required": ["seq", "at_s", "event", "commands"],
        "description": "An event, and the controller's commands because of it.",
        "properties": {
            "seq": {"type": "integer", "description": "Its place in the log, from 1, without gaps."},
            "at_s": {"type": "number", "description": "Seconds on the clock of the service."},
            "event": {
                "oneOf": [*events["oneOf"], *own["oneOf"]],
                "discriminator": {
                    "propertyName": "type",
                    "mapping": {**events["discriminator"]["mapping"], **own["discriminator"]["mapping"]},
                },
            },
            "commands": {"type": "array", "items": log.any_of(messages.Command.__subclasses__())},
        },
    }  # fmt: skip
    wired = wire.schemas(f"{PREFIX}agent.")
    wired.of(wire.Observed)
    wired.of(wire.Assignment)
    return {
        "log.LogEntry": entry,
        **{f"log.{name}": schema for name, schema in {**log.found, **noted.found}.items()},
        **{f"agent.{name}": schema for name, schema in wired.found.items()},
    }


# -- operations ---------------------------------------------------------------------------------------------


def _operation(route: Route, schemas: Mapping[str, dict[str, Any]], components: Mapping[str, Any]) -> dict[str, Any]:
    """One route with its parameters, body, answers and errors."""
    first, _, rest = inspect.cleandoc(route.handler.__doc__ or "").partition("\n\n")
    summary = " ".join(first.split())
    own = "; users only for jobs of their own" if route.own and "user" in route.roles else ""
    roles = f"Roles: {', '.join(route.roles)}{own}."
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}, "description": _PATHS[name]}
        for name in (part[1:-1] for part in route.path.split("/") if part.startswith("{"))
    ]
    if route.query is not None:
        known = components[route.query.__name__]
        parameters += [
            {"name": name, "in": "query", "required": name in known.get("required", ()), "schema": schema,
             "description": schema.pop("description", "")}
            for name, schema in json.loads(json.dumps(known["properties"])).items()
        ]  # fmt: skip
    if route.key:
        schema = {"type": "string", "maxLength": 100, "pattern": "^[!-~]+$"}
        text = "Chosen by the client."
        parameters.append({"name": KEY, "in": "header", "required": False, "schema": schema, "description": text})

    def schema_of(kind: Any) -> Any:
        return kind.schema if isinstance(kind, Schema) else schemas[repr(kind)] if _is_type(kind) else kind

    content = {kind: {"schema": {"type": "string", "description": text}} for kind, text in route.texts}
    if route.answer is not None:
        content = {"application/json": {"schema": schema_of(route.answer)}, **content}
    operation: dict[str, Any] = {
        "tags": [route.tag],
        "operationId": f"{route.handler.__name__}",
        "summary": summary.rstrip("."),
        "description": "\n\n".join(filter(None, [summary, rest.strip(), roles])),
        "x-roles": list(route.roles),
        "responses": {"200": {"description": "Done.", "content": content}},
    }
    if parameters:
        operation["parameters"] = parameters
    if route.body is not None:
        operation["requestBody"] = {
            "required": route.body_required,
            "content": {"application/json": {"schema": schema_of(route.body)}},
        }
    # Which errors a request of this form can get.
    possible = {401, 403, 500, 503}
    possible |= {404} if "{" in route.path else set()
    possible |= {409} if route.conflict else set()
    possible |= {422} if route.body is not None or route.query is not None or route.key else set()
    possible |= {400, 408, 413} if route.body is not None else set()
    possible |= {507} if route.method != "GET" else set()
    for status in sorted(possible):
        content = {"application/json": {"schema": {"$ref": f"{PREFIX}ErrorAnswer"}}}
        if (example := examples()["errors"].get(str(status))) is not None:
            content["application/json"]["example"] = example
        text = route.conflict if status == 409 else MEANINGS[status]
        operation["responses"][str(status)] = {"description": text, "content": content}
    return operation


def _health() -> dict[str, Any]:
    """The route that `plait.live.service.http.limits` answers, for no token and by standbys as well."""
    answer = {"application/json": {"schema": {"$ref": f"{PREFIX}Health"}}}
    text = "Whether this service leads: 200 if it does, 503 if it stands by."
    return {
        "tags": ["cluster"], "operationId": "health", "security": [], "summary": text.rstrip("."), "description": text,
        "responses": {
            "200": {"description": "It leads.", "content": answer},
            "503": {"description": "It stands by.", "content": json.loads(json.dumps(answer))},
        },
    }  # fmt: skip


def _show(known: dict[str, Any], operation: dict[str, Any]) -> None:
    for parameter in operation.get("parameters", ()):
        if parameter["name"] in known.get("parameters", {}):
            parameter["example"] = known["parameters"][parameter["name"]]
    if "requestBody" in operation and "request" in known:
        operation["requestBody"]["content"]["application/json"]["example"] = known["request"]
    for media_type, content in operation["responses"]["200"]["content"].items():
        if media_type in known.get("answers", {}):
            content["example"] = known["answers"][media_type]
