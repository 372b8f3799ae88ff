"""Types of the arguments of tools; their descriptions and bounds become the schemas that agents read."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, WithJsonSchema

from plait.live.protocol.job_file import schema

#: Bytes of a log that one call returns by default, and at most.
PART_BYTES, MOST_BYTES = 16_384, 262_144
#: Longest wait of one call, seconds: hosts give up on calls that take longer.
MOST_WAIT_S = 300.0

_JOB_SCHEMA = {key: value for key, value in schema().items() if not key.startswith("$")}

Job = Annotated[str, Field(description="Id of the job, e.g. j-12, or its name.", min_length=1, max_length=200)]
JobFields = Annotated[dict[str, Any], WithJsonSchema(_JOB_SCHEMA)]
MaybeJobFields = Annotated[
    JobFields | None,
    Field(
        description="The job as fields. `workdir` and `python` default to folder and environment of this MCP server. "
        "Give this or `job_file`."
    ),
]
JobFile = Annotated[
    str | None,
    Field(description="Text of a job file: one job, or `jobs:` with a list of them. Give this or `job`."),
]
Format = Annotated[Literal["yaml", "toml", "json"], Field(description="Format of `job_file`.")]
Key = Annotated[
    str | None,
    Field(
        description="Idempotency key of your own: a second call with the same key does nothing more, so a call "
        "whose answer was lost can be repeated. Default: a new one.",
        min_length=1,
        max_length=200,
    ),
]
State = Annotated[
    Literal["waiting", "starting", "running", "stopping", "unreachable", "finished", "failed", "cancelled"] | None,
    Field(description="Only jobs in this state. Default: all."),
]
User = Annotated[str | None, Field(description="Only jobs of this user. Default: of all.")]
Limit = Annotated[int, Field(description="Most entries to return.", ge=1, le=500)]
Offset = Annotated[int, Field(description="Entries to skip, from the beginning of the list.", ge=0)]
Rank = Annotated[int, Field(description="Process of the job whose log is read; 0 is the first.", ge=0)]
Attempt = Annotated[
    int | None,
    Field(description="Number of the attempt (`epoch` of show_job), from 1. Default: the newest.", ge=1),
]
LoseWork = Annotated[
    bool,
    Field(description="Do it also if the job has no checkpoint and would begin at the beginning."),
]
