"""Common parts of the models of answers: attribute docstrings describe fields, and times have one meaning."""

from __future__ import annotations

from typing import Annotated, TypeAlias

from pydantic import BaseModel, ConfigDict, Field

from plait.live.scheduler.explain.views import STATES
from plait.live.scheduler.records.attempts import NODE_STATES


class Answer(BaseModel):
    """An answer, or a part of one. A field with a default may be left out."""

    model_config = ConfigDict(use_attribute_docstrings=True, populate_by_name=True)


JobState: TypeAlias = Annotated[str, Field(json_schema_extra={"enum": list(STATES)})]
NodeState: TypeAlias = Annotated[str, Field(json_schema_extra={"enum": list(NODE_STATES)})]
#: Texts that stand in many answers.
CLOCK = "Seconds on the clock of the service, which began when its store was made."
