"""Submissions and changes of jobs by the keys that clients gave them: a repeated request does nothing more."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from plait.live.protocol.arrays import all_members
from plait.live.scheduler.errors import Conflict
from plait.live.scheduler.records.notes import Requested, RequeueAsked, UpdateAsked

#: Maximum number of keys of each kind; the oldest ones are dropped.
MOST = 10_000


class Submissions:
    """Submitted requests by key and owner. Part of the state: made from the log alone."""

    def __init__(self, rows: Sequence[Sequence[Any]] = ()) -> None:
        self._known = {(owner, key): (first, count, what) for owner, key, first, count, what in rows}

    def rows(self) -> list[list[Any]]:
        """Plain values: owner, key, first number, how many jobs, digest of the request."""
        return [[*who, *what] for who, what in self._known.items()]

    def add(self, note: Requested) -> None:
        """Remember a submission by its key, if it has one."""
        if note.key is not None:
            self._known[note.owner, note.key] = note.first, len(note.requests), digest(note.requests)
            if len(self._known) > MOST:
                del self._known[next(iter(self._known))]

    def find(self, owner: str, key: str | None, requests: Sequence[Mapping[str, Any]]) -> list[int] | None:
        """Numbers of the jobs that this submission made before; `Conflict` if the key was another one's."""
        found = None if key is None else self._known.get((owner, key))
        if found is None:
            return None
        first, count, before = found
        if before != digest(all_members(requests, first)):
            raise Conflict("this Idempotency-Key was used for another submission; give each its own")
        return list(range(first, first + count))


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


def digest(requests: Sequence[Mapping[str, Any]]) -> str:
    """A short text that stands for these values, of jobs of whole nodes without the size, which the service sets."""
    sizes = ("gpus", "nodes")
    kept = [{k: v for k, v in r.items() if not (r.get("exclusive") and k in sizes)} for r in requests]
    text = json.dumps(kept, sort_keys=True)
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
