"""Errors of requests that are well formed and still impossible."""

from __future__ import annotations

from plait.core.errors import InputError


class Conflict(InputError):
    """The request contradicts the current state, e.g. cancelling a job that has ended."""
