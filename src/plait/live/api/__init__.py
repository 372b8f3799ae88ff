"""Types of everything that crosses a border of the service: rows of jobs and nodes, explanations, outlooks, costs.

The engine returns them, routes encode them, the client decodes them, and the description of the HTTP API is made of
their fields and docstrings. Start at `jobs.JobRow`.
"""

import json
from typing import Annotated, Any, TypeAlias

import msgspec


class Answer(msgspec.Struct, frozen=True, omit_defaults=True, rename={"class_": "class"}):
    """A part of an answer. A field with a default is left out of the JSON where it has that value."""


Moment: TypeAlias = Annotated[
    float, msgspec.Meta(description="Seconds on the clock of the service, which began when its store was made.")
]


def _plain(value: Any) -> Any:
    return value.item()


_ENCODER = msgspec.json.Encoder(enc_hook=_plain)


def encoded(value: Any) -> bytes:
    """Compact JSON; NaN and infinities become null, lone surrogates a question mark."""
    try:
        return _ENCODER.encode(value)
    except UnicodeEncodeError:
        plain = msgspec.to_builtins(value, enc_hook=_plain)
        return json.dumps(plain, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "replace")
