"""Answers about reports of simulations."""

from __future__ import annotations

from plait.live.service.http.answers.base import Answer


class ReportRow(Answer):
    """A report in the folder of the service."""

    name: str
    title: str
    bytes: int
    age_s: float
    """Seconds since it was written."""


class ReportList(Answer):
    """Reports, newest first."""

    reports: list[ReportRow]
    folder: str | None = None
    """Where they are; for administrators only."""
