"""Schemas of messages: entries of the event log, and messages between agents and service.

They are made of the dataclasses that the messages are; see `plait.core.codec.schema`.
"""

from __future__ import annotations

from functools import cache
from typing import Any, get_args

from plait.control import messages
from plait.live.protocol import wire
from plait.live.scheduler.records import notes
from plait.live.service.http.openapi.routes import PREFIX

#: References to what `components` has.
ENTRY, REPORT, ASSIGNMENT = (
    {"$ref": f"{PREFIX}{name}"} for name in ("log.LogEntry", "agent.Observed", "agent.Assignment")
)
ENTRIES: dict[str, Any] = {
    "type": "object", "required": ["events"],
    "properties": {"events": {"type": "array", "items": ENTRY, "description": "Entries, oldest first."}},
}  # fmt: skip


@cache
def components() -> dict[str, Any]:
    """Schemas of all messages by name: `log.` and `agent.` come before the names of the dataclasses."""
    log, said = messages.schemas(f"{PREFIX}log."), notes.schemas(f"{PREFIX}log.")
    events, noted = log.any_of(get_args(messages.Event)), said.any_of(get_args(notes.Note))
    names = {**events["discriminator"]["mapping"], **noted["discriminator"]["mapping"]}
    entry = {
        "type": "object", "required": ["seq", "at_s", "event", "commands"],
        "description": "An event, and the controller's commands because of it.",
        "properties": {
            "seq": {"type": "integer", "description": "Its place in the log, from 1, without gaps."},
            "at_s": {"type": "number", "description": "Seconds on the clock of the service."},
            "event": {
                "oneOf": [*events["oneOf"], *noted["oneOf"]],
                "discriminator": {"propertyName": "type", "mapping": names},
            },
            "commands": {"type": "array", "items": log.any_of(get_args(messages.Command))},
        },
    }  # fmt: skip
    wired = wire.schemas(f"{PREFIX}agent.")
    wired.of(wire.Observed)
    wired.of(wire.Assignment)
    return {
        "log.LogEntry": entry,
        **{f"log.{name}": schema for name, schema in {**log.found, **said.found}.items()},
        **{f"agent.{name}": schema for name, schema in wired.found.items()},
    }
