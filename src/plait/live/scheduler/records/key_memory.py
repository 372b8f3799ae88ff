"""Changes of jobs by the keys that clients gave their requests: a repeated request does nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from plait.live.scheduler.errors import Conflict
from plait.live.scheduler.records.notes import RequeueAsked, UpdateAsked
from plait.live.scheduler.records.submissions import digest

#: Keys remembered; the oldest go.
MOST = 10_000


class KeyMemory:
    """The change that each user requested under each key. Part of the state: made from the log alone."""

    def __init__(self, rows: Sequence[Sequence[str]] = ()) -> None:
        self._known = {(by, key): what for by, key, what in rows}

    def rows(self) -> list[list[str]]:
        """Plain values: user, key, digest of the change."""
        return [[by, key, what] for (by, key), what in self._known.items()]

    def add(self, note: RequeueAsked | UpdateAsked) -> None:
        """Remember a change by its key, if it has one."""
        if note.key is not None:
            fields = note.fields if isinstance(note, UpdateAsked) else None
            self._known[note.by, note.key] = _change(note.job, fields)
            if len(self._known) > MOST:
                del self._known[next(iter(self._known))]

    def done(self, by: str, key: str | None, job: int, fields: Mapping[str, Any] | None) -> bool:
        """Whether this change of `job` (`fields` None: a requeue) was made before.

        Raises `Conflict` if the key was that of another one.
        """
        found = None if key is None else self._known.get((by, key))
        if found is None:
            return False
        if found != _change(job, fields):
            raise Conflict("this Idempotency-Key was used for another change; give each its own")
        return True


def _change(job: int, fields: Mapping[str, Any] | None) -> str:
    return digest([{"job": job, "fields": None if fields is None else dict(fields)}])
