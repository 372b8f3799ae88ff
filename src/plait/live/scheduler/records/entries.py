"""Entries of the log: events of the controller and notes of the service; their JSON, and the jobs they are about."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from plait.control.messages import (
    Command,
    Event,
    JobSubmitted,
    from_json,
    to_json,
)
from plait.live.scheduler.records.notes import (
    KINDS,
    Note,
    note_from_json,
    note_to_json,
)

Entry: TypeAlias = Event | Note


def jobs_of(message: Event | Command) -> list[int]:
    """Numbers of the jobs a message is about."""
    if isinstance(message, JobSubmitted):
        return list(range(message.first, message.first + len(message.jobs)))
    groups = getattr(message, "groups", None)
    jobs = groups.jobs if groups is not None else getattr(message, "jobs", ())
    return [int(job) for job in jobs]


def entry_to_json(entry: Entry) -> dict[str, Any]:
    """The JSON object that stands for an entry in the log."""
    return note_to_json(entry) if isinstance(entry, Note) else to_json(entry)


def entry_from_json(data: Mapping[str, Any]) -> Entry:
    """The entry that `entry_to_json` wrote; raises `InputError` for one that is not of this version."""
    return note_from_json(data) if data.get("type") in KINDS else from_json(data)  # type: ignore[return-value]
