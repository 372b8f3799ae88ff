"""Schemas of requests."""

from __future__ import annotations

import typing
from collections.abc import Mapping
from dataclasses import MISSING, is_dataclass
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictBool,
    StringConstraints,
    ValidationError,
    create_model,
    field_validator,
    model_validator,
)

from plait.core.errors import InputError
from plait.core.ina_request import fields_of
from plait.core.options import Declared, declared
from plait.live.layout import NODE_NAME
from plait.live.protocol.job import LINE, Job, JobField, key_of, meaning_of
from plait.live.scheduler.requests.changes import CHANGEABLE

Text = Annotated[str, StringConstraints(max_length=LINE["maxLength"], pattern=LINE["pattern"])]
Name = Annotated[str, StringConstraints(min_length=1, max_length=100, pattern=r"^[A-Za-z0-9][A-Za-z0-9._@-]*$")]
Node = Annotated[str, StringConstraints(pattern=f"^{NODE_NAME.pattern}$")]
Positive = Annotated[float, Field(gt=0, le=1e9)]
#: Bounds keep sums and products over many jobs finite: one job must not make decisions fail for all.
Seconds = Annotated[float, Field(ge=0, le=1e12)]
#: Numbers in queries are not larger: every store and every reader of JSON has them whole.
LARGEST = 2**53
M = TypeVar("M", bound=BaseModel)


def whole(value: Any) -> Any:
    """A value that pydantic may take for a whole number; `ValueError` for values that it should not convert."""
    if isinstance(value, (bool, str)):
        raise ValueError("needs a whole number")
    return value


class Model(BaseModel):
    """No unknown fields, no guessing of types."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True, strict=False, use_attribute_docstrings=True)


def _model_of(kind: type[Any]) -> Any:
    """A model of `plait.live.protocol.job.Job`, or of a part of it. Flags that are missing or off are not kept."""
    made: dict[str, Any] = {}
    for one in declared(kind):
        rules = typing.cast("JobField", one.option)
        hint, default = Annotated[_typed(one, rules), Field(description=meaning_of(one))], one.default
        if default is MISSING:
            made[one.name] = hint, ...
        elif typing.get_origin(one.type) is dict:
            made[one.name] = hint, {}
        elif default is None or one.type is bool:
            made[one.name] = hint | None, None
        else:
            made[one.name] = hint, default
        if key_of(one) != one.name:
            made[one.name] = Annotated[made[one.name][0], Field(alias=key_of(one))], made[one.name][1]
    return create_model(f"{kind.__name__}In", __base__=Model, __doc__=kind.__doc__, **made)


#: Limits of numbers, lists and texts: JSON Schema's name -> pydantic's.
_LIMITS = {
    "minimum": "ge", "exclusiveMinimum": "gt", "maximum": "le", "minItems": "min_length", "maxItems": "max_length",
    "maxProperties": "max_length", "minLength": "min_length", "maxLength": "max_length", "pattern": "pattern",
}  # fmt: skip


def _limits(rule: Mapping[str, Any]) -> dict[str, Any]:
    return {_LIMITS[name]: value for name, value in rule.items()}


def _typed(one: Declared, rules: JobField) -> Any:
    """The type of a field with its limits."""
    text: Any = Annotated[str, StringConstraints(**_limits(rules.items))]
    if is_dataclass(one.type):
        return _model_of(typing.cast("type[Any]", one.type))
    if one.type is bool:
        return StrictBool
    if one.type is str:
        return Annotated[str, StringConstraints(**_limits(rules.rule))]
    if one.type is int:
        return Annotated[int, Field(**_limits(rules.rule)), BeforeValidator(whole)]
    if typing.get_origin(one.type) is list:
        return Annotated[list[text], Field(**_limits(rules.rule))]
    if typing.get_origin(one.type) is dict:
        name: Any = Annotated[str, StringConstraints(**_limits(rules.names))]
        return Annotated[dict[name, text], Field(**_limits(rules.rule))]
    return Annotated[one.type, Field(**_limits(rules.rule))] if rules.rule else one.type


class JobIn(_model_of(Job)):  # type: ignore[misc]
    """A job as it is submitted; its fields are those of `plait.live.protocol.job.Job`."""

    @field_validator("command")
    @classmethod
    def _program(cls, command: list[str]) -> list[str]:
        if not command[0].strip():
            raise ValueError("the program's name is empty")
        return command

    @field_validator("ina", mode="before")
    @classmethod
    def _short(cls, ina: Any) -> Any:
        try:
            return fields_of(ina) if isinstance(ina, str) else ina
        except InputError as error:
            raise ValueError(str(error)) from None

    @field_validator("profile")
    @classmethod
    def _some(cls, profile: Any) -> Any:
        if profile and not (profile.storage + profile.cpu + profile.gpu + profile.network) > 0:
            raise ValueError("all stages take 0 s")
        return profile

    def request(self) -> dict[str, Any]:
        """The stored form: every field that was given."""
        said: dict[str, Any] = self.model_dump(by_alias=True, exclude_none=True)
        return said


def _changes() -> Any:
    """A model of the fields of a job that may change while it waits or runs; all of them may be left out, or null."""
    made: dict[str, Any] = {}
    for one in declared(Job):
        if (key := key_of(one)) in CHANGEABLE:
            hint = _typed(one, typing.cast("JobField", one.option)) | None
            made[one.name] = Annotated[hint, Field(alias=key, description=meaning_of(one))], None
    return create_model("_Changes", __base__=Model, **made)


class UpdateIn(_changes()):  # type: ignore[misc]
    """Changes of a job; null: as if the field had not been given. A missing field stays."""

    may_lose_work: StrictBool = False
    """Whether it may begin at the beginning, as it cannot resume from a checkpoint."""

    @model_validator(mode="after")
    def _some(self) -> UpdateIn:
        if not self.fields():
            raise ValueError(f"nothing is to change; give one of {', '.join(CHANGEABLE)}")
        return self

    def fields(self) -> dict[str, Any]:
        """The changed fields, by the names of the fields of a job."""
        said: dict[str, Any] = self.model_dump(by_alias=True, exclude_unset=True, exclude={"may_lose_work"})
        return said


class RequeueIn(Model):
    """A job goes back to the queue."""

    may_lose_work: StrictBool = False
    """Whether it may begin at the beginning, as it cannot resume from a checkpoint."""


class DrainIn(Model):
    """A node takes no new work."""

    may_lose_work: StrictBool = False
    """Whether jobs there may lose work, as they cannot resume from a checkpoint."""


class JobsIn(Model):
    """Several jobs, all or none."""

    jobs: Annotated[list[JobIn], Field(min_length=1, max_length=10_000)]


class PolicyIn(Model):
    """A policy of the catalog, with options: muri-l:quantum_s=60."""

    policy: Annotated[str, StringConstraints(min_length=1, max_length=500)]
    may_lose_work: StrictBool = False
    """Whether it may stop jobs that cannot resume from a checkpoint."""


class ForecastIn(Model):
    """Early end, middle and late end of what is expected, seconds from now; null for never."""

    start: Annotated[list[Seconds | None], Field(min_length=3, max_length=3)] | None = None
    """null for a job that runs."""
    end: Annotated[list[Seconds | None], Field(min_length=3, max_length=3)]


class ChoiceIn(Model):
    """Changes to assume: another policy, nodes (`+2x8`), nodes that were not there, priorities by job."""

    policy: Annotated[str, StringConstraints(min_length=1, max_length=500)] | None = None
    """The policy that would decide; null: the current one."""
    nodes: Annotated[str, StringConstraints(min_length=1, max_length=200)] | None = None
    """Nodes more: +2x8 is two with 8 GPUs each."""
    without: Annotated[list[Text], Field(max_length=1000)] = []
    """Names of nodes that would be gone."""
    priority: Annotated[
        dict[Annotated[str, StringConstraints(pattern=r"^j-[0-9]{1,15}$")], Annotated[float, Field(ge=-1e9, le=1e9)]],
        Field(max_length=1000),
    ] = {}
    """Name of a job -> the priority that it would have."""


class GoneIn(Model):
    """How a backend knows that a node is dead."""

    why: Text = ""
    certain: bool = True
    """Whether it is certain that nothing runs there any more; otherwise its lease is waited for."""


class TokenIn(Model):
    """The user and role of a new token."""

    user: Name
    role: Literal["admin", "user", "viewer", "agent"] = "user"
    project: Name = "default"
    expires_in_s: Annotated[float, Field(gt=0, le=1e10)] | None = None
    """Seconds until the token expires; null: never."""
    node: Node | None = None
    """The node that an agent's token is for; of the role agent only."""

    @model_validator(mode="after")
    def _node(self) -> TokenIn:
        if (self.role == "agent") != (self.node is not None):
            raise ValueError("an agent's token names its node, and no other does")
        return self


class ProjectIn(Model):
    """A project: GPUs that its jobs may hold together (null: no limit), and its share relative to others."""

    name: Name
    quota_gpus: Annotated[int, Field(ge=0, le=1_000_000)] | None = None
    weight: Positive | None = None


class BackupIn(Model):
    """Where the copy goes, on the machine of the service."""

    path: Annotated[str, StringConstraints(min_length=1, max_length=4096, pattern=r"^[^\x00]*$")]


class Invalid(Exception):
    """A request that is not well formed; `status` 400 for no JSON, 422 for a wrong field."""

    def __init__(self, message: str, field: str | None = None, status: int = 422) -> None:
        super().__init__(message)
        self.field, self.status = field, status


def parse(model: type[M], data: Any) -> M:
    """The request as this model; raises `Invalid` that names the first wrong field."""
    try:
        return model.model_validate(data)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        loc = first["loc"][:-2] if first["loc"][-1:] == ("[key]",) else first["loc"]
        where = ".".join(str(part) for part in loc) or None
        message = first["msg"].removeprefix("Value error, ")
        given = first.get("input")
        if first["type"] not in ("missing", "extra_forbidden") and not isinstance(given, (dict, list)):
            message += f" (got {str(given)[:60]!r})"
        raise Invalid(message, where) from None
