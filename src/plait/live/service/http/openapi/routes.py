"""A route's declaration in the API, in addition to its docstring and its parameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, TypedDict

from fastapi import Path
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

PREFIX = "#/components/schemas/"
#: Roles that may read facts about the whole cluster.
EVERYBODY = ("admin", "user", "viewer")
#: Models of bodies that handlers parse themselves, by name.
BODIES: dict[str, type[BaseModel]] = {}

JobName = Annotated[str, Path(description="Id of a job, j-12, or its name.")]
NodeName = Annotated[str, Path(description="Name of a node.")]


class Described(TypedDict, total=False):
    """Keywords of a router's decorators."""

    response_model: Any
    responses: dict[int | str, dict[str, Any]]
    openapi_extra: dict[str, Any]


def answers(
    answer: Any, *, body: type[BaseModel] | tuple[type[BaseModel], ...] | Mapping[str, Any] | None = None,
    roles: tuple[str, ...] = EVERYBODY, own: bool = False, conflict: str | None = None,
    texts: Mapping[str, str] | None = None, body_required: bool = True,
) -> Described:  # fmt: skip
    """Keywords for the decorator of a route.

    `answer` is the model of its JSON, or a schema; None for none. `texts` are other media types and their contents.
    `body` is the model that it parses, several models, or a schema; it may be left out unless `body_required`. `roles`
    may call it, users only for their `own` jobs. `conflict` describes its answer 409.
    """
    extra: dict[str, Any] = {"x-roles": list(roles), "x-own-jobs": own}
    found: Described = {"openapi_extra": extra, "responses": {}}
    if body is not None:
        extra["requestBody"] = {
            "required": body_required,
            "content": {"application/json": {"schema": _body_schema(body)}},
        }
    if isinstance(answer, Mapping):
        found["responses"][200] = {"content": {"application/json": {"schema": dict(answer)}}}
    elif answer is not None:
        found["response_model"] = answer
    for media_type, meaning in (texts or {}).items():
        content = {media_type: {"schema": {"type": "string", "description": meaning}}}
        found["responses"].setdefault(200, {}).setdefault("content", {}).update(content)
    if conflict:
        found["responses"][409] = {"description": conflict}
    return found


def _body_schema(body: type[BaseModel] | tuple[type[BaseModel], ...] | Mapping[str, Any]) -> dict[str, Any]:
    if isinstance(body, Mapping):
        return dict(body)
    models = body if isinstance(body, tuple) else (body,)
    BODIES.update({model.__name__: model for model in models})
    schemas = [{"$ref": PREFIX + model.__name__} for model in models]
    return schemas[0] if len(schemas) == 1 else {"anyOf": schemas}


def body_schemas() -> dict[str, Any]:
    """Schemas of all bodies, for the components of the description."""
    _, defined = models_json_schema(
        [(model, "validation") for model in BODIES.values()], ref_template=PREFIX + "{model}"
    )
    return dict(defined.get("$defs", {}))
