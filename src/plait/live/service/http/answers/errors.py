"""The answer to what could not be done."""

from __future__ import annotations

from plait.live.service.http.answers.base import Answer


class Problem(Answer):
    """An error: its cause, the field, and the remedy."""

    message: str
    """A sentence for people."""
    field: str | None = None
    """The field or parameter that is wrong: batch.initial."""
    next: str | None = None
    """A command to run, or what to do."""


class ErrorAnswer(Answer):
    """Every answer of 400 and above."""

    error: Problem
    role: str | None = None
    """standby: this service does not lead; ask the leader, or again in a few seconds."""
    leader: str | None = None
    """Address of the leader, as far as a standby knows it."""
    term: int | None = None
    """Number of the leader's term."""
