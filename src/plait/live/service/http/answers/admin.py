"""Answers about people: whose token it is, tokens, projects; and backups."""

from __future__ import annotations

from typing import Literal

from plait.live.service.http.answers.base import Answer

Role = Literal["admin", "user", "viewer", "agent"]


class Me(Answer):
    """Whose token the request carries."""

    user: str
    role: Role
    project: str


class TokenRow(Answer):
    """A token, without its secret."""

    id: str
    user: str
    role: Role
    project: str
    node: str | None
    """The node that an agent's token is for."""
    created_s: float
    expires_s: float | None
    left_s: float | None
    """Seconds until it expires; null: never."""


class NewToken(TokenRow):
    """A new token."""

    token: str
    """The secret: it is in this answer and nowhere else."""


class RevokedToken(Answer):
    """A token that counts no more."""

    id: str
    revoked: Literal[True]


class ProjectSettings(Answer):
    """Quota and weight of a project."""

    name: str
    quota_gpus: int | None
    """GPUs that its jobs may hold together; null: no limit."""
    weight: float
    """Its share relative to others, in fair policies."""


class ProjectRow(ProjectSettings):
    """A project."""

    gpus: int
    """GPUs that its jobs hold."""


class ProjectGone(Answer):
    """A project whose quota and weight are forgotten."""

    name: str
    gone: Literal[True]


class BackupMade(Answer):
    """A copy of the store."""

    path: str
    """On the machine of the service."""
    bytes: int
