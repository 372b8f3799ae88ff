"""What requests must look like."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StrictBool,
    StringConstraints,
    ValidationError,
    field_validator,
    model_validator,
)

from plait.live.layout import NODE_NAME

Text = Annotated[str, StringConstraints(max_length=200, pattern=r"^[^\x00-\x1f]*$")]
Name = Annotated[str, StringConstraints(min_length=1, max_length=100, pattern=r"^[A-Za-z0-9][A-Za-z0-9._@-]*$")]
Node = Annotated[str, StringConstraints(pattern=f"^{NODE_NAME.pattern}$")]
Word = Annotated[str, StringConstraints(max_length=65_536, pattern=r"^[^\x00]*$")]
Positive = Annotated[float, Field(gt=0, le=1e9)]
#: Bounds keep sums and products over many jobs finite: one job must not make decisions fail for all.
Size = Annotated[float, Field(ge=0, le=1e18)]
Seconds = Annotated[float, Field(ge=0, le=1e12)]
StageSeconds = Annotated[float, Field(ge=0, le=1e6)]
Variable = Annotated[str, StringConstraints(min_length=1, max_length=1000, pattern=r"^[^\x00=]*$")]
Examples = Annotated[int, Field(ge=1, le=10**9)]
#: Numbers in queries are not larger: every store and every reader of JSON has them whole.
LARGEST = 2**53
M = TypeVar("M", bound=BaseModel)


def whole(value: Any) -> Any:
    """A value that pydantic may take for a whole number; `ValueError` for those that it should not."""
    if isinstance(value, (bool, str)):
        raise ValueError("needs a whole number")
    return value


class Model(BaseModel):
    """No unknown fields, no guessing of types."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True, strict=False)


class ProfileIn(Model):
    """Seconds an iteration spends on each resource, alone."""

    storage: StageSeconds = 0.0
    cpu: StageSeconds = 0.0
    gpu: StageSeconds = 0.0
    network: StageSeconds = 0.0
    iteration_s: Annotated[float, Field(gt=0, le=1e6)] | None = None


class BatchIn(Model):
    """Bounds of the batch of an adaptive job, in examples; see `plait.core.goodput.BatchLimits`."""

    initial: Examples
    most: Examples | None = None
    least_local: Examples | None = None
    most_local: Examples | None = None
    accumulation: StrictBool | None = None

    @field_validator("initial", "most", "least_local", "most_local", mode="before")
    @classmethod
    def _whole(cls, value: Any) -> Any:
        return whole(value)


class JobIn(Model):
    """A job as it is submitted; see `plait.live` job.schema.json."""

    command: Annotated[list[Word], Field(min_length=1, max_length=4096)]
    name: Text | None = None
    workdir: Annotated[str, StringConstraints(max_length=4096, pattern=r"^[^\x00]*$")] | None = None
    python: Annotated[str, StringConstraints(min_length=1, max_length=4096, pattern=r"^/[^\x00]*$")] | None = None
    container: Annotated[str, StringConstraints(max_length=4096, pattern=r"^[^\x00-\x20-][^\x00-\x20]*$")] | None = None
    env: Annotated[dict[Variable, Word], Field(max_length=1000)] = {}
    gpus: Annotated[int, Field(ge=1, le=100_000)] = 1
    wait_for_nodes: StrictBool | None = None
    min_gpus: Annotated[int, Field(ge=1, le=100_000)] | None = None
    max_gpus: Annotated[int, Field(ge=1, le=100_000)] | None = None
    batch: BatchIn | None = None
    processes_per_gpu: Annotated[int, Field(ge=1, le=64)] = 1
    iterations: Annotated[float, Field(gt=0, le=1e15)] | None = None
    model: Text | None = None
    job_class: Annotated[Literal["guaranteed", "opportunistic"], Field(alias="class")] = "guaranteed"
    retries: Annotated[int, Field(ge=0, le=1000)] | None = None
    gpu_memory: Size | None = None
    cpus: Size | None = None
    memory: Size | None = None
    deadline_s: Annotated[float, Field(gt=0, le=1e12)] | None = None
    checkpoint_s: Annotated[float, Field(gt=0, le=1e9)] = 60.0
    merge: StrictBool | None = None
    project: Name | None = None
    priority: Annotated[float, Field(ge=-1e9, le=1e9)] | None = None
    profile: ProfileIn | None = None
    skew: Annotated[float, Field(ge=0, le=1)] | None = None

    @field_validator("command")
    @classmethod
    def _program(cls, command: list[str]) -> list[str]:
        if not command[0].strip():
            raise ValueError("the program's name is empty")
        return command

    @field_validator("gpus", "min_gpus", "max_gpus", "processes_per_gpu", "retries", mode="before")
    @classmethod
    def _whole(cls, value: Any) -> Any:
        return whole(value)

    @field_validator("profile")
    @classmethod
    def _some(cls, profile: ProfileIn | None) -> ProfileIn | None:
        if profile and not (profile.storage + profile.cpu + profile.gpu + profile.network) > 0:
            raise ValueError("all stages take 0 s")
        return profile

    def request(self) -> dict[str, Any]:
        """What is stored: everything that was said."""
        return self.model_dump(by_alias=True, exclude_none=True)


class JobsIn(Model):
    """Several jobs, all or none."""

    jobs: Annotated[list[JobIn], Field(min_length=1, max_length=10_000)]


class JobOut(BaseModel):
    """A stored job."""

    id: str
    number: int
    remarks: list[str] = []


class PolicyIn(Model):
    """A policy of the catalog, with options: muri-l:quantum_s=60."""

    policy: Annotated[str, StringConstraints(min_length=1, max_length=500)]
    may_lose_work: StrictBool = False


class ForecastIn(Model):
    """Early end, middle and late end of what is expected, seconds from now; null for never."""

    start: Annotated[list[Seconds | None], Field(min_length=3, max_length=3)] | None = None
    end: Annotated[list[Seconds | None], Field(min_length=3, max_length=3)]


class GoneIn(Model):
    """How a backend knows that a node is dead."""

    why: Text = ""
    certain: bool = True


class TokenIn(Model):
    """Whom a new token is for."""

    user: Name
    role: Literal["admin", "user", "viewer", "agent"] = "user"
    project: Name = "default"
    expires_in_s: Annotated[float, Field(gt=0, le=1e10)] | None = None
    node: Node | None = None

    @model_validator(mode="after")
    def _node(self) -> TokenIn:
        if (self.role == "agent") != (self.node is not None):
            raise ValueError("an agent's token names its node, and no other does")
        return self


class ProjectIn(Model):
    """A project: GPUs that its jobs may hold together (null: no limit), and its share beside others."""

    name: Name
    quota_gpus: Annotated[int, Field(ge=0, le=1_000_000)] | None = None
    weight: Positive | None = None


class BackupIn(Model):
    """Where the copy goes, on the machine of the service."""

    path: Annotated[str, StringConstraints(min_length=1, max_length=4096, pattern=r"^[^\x00]*$")]


class ErrorBody(BaseModel):
    """What went wrong, in which field, and what to do."""

    message: str
    field: str | None = None
    next: str | None = None


class ErrorOut(BaseModel):
    """Every answer of 400 and above."""

    error: ErrorBody


class Invalid(Exception):
    """A request that is not well formed; `status` 400 for no JSON, 422 for a wrong field."""

    def __init__(self, message: str, field: str | None = None, status: int = 422) -> None:
        """Name the field."""
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
