"""What a request can meet that is well formed and still cannot be."""

from __future__ import annotations

from plait.core.errors import InputError


class Conflict(InputError):
    """What was asked for does not go with the state of things, e.g. cancelling a job that has ended."""
