"""Answers about people and files: errors, whose token it is, tokens, projects, backups, reports."""

from typing import Literal

from plait.live.api import Answer


class Problem(Answer, frozen=True):
    """An error: its cause, the field, and the remedy."""

    message: str
    """A sentence for people."""
    field: str | None = None
    """The field or parameter that is wrong: batch.initial."""
    next: str | None = None
    """A command to run, or what to do."""


class ErrorAnswer(Answer, frozen=True):
    """Every answer of 400 and above."""

    error: Problem
    role: str | None = None
    """standby: this service does not lead; ask the leader, or again in a few seconds."""
    leader: str | None = None
    """Address of the leader, as far as a standby knows it."""
    term: int | None = None
    """Number of the leader's term."""


Role = Literal["admin", "user", "viewer", "agent"]


class Me(Answer, frozen=True):
    """Whose token the request carries."""

    user: str
    role: Role
    project: str


class TokenRow(Answer, frozen=True):
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


class NewToken(TokenRow, frozen=True):
    """A new token."""

    token: str
    """The secret: it is in this answer and nowhere else."""


class RevokedToken(Answer, frozen=True):
    """A token that counts no more."""

    id: str
    revoked: Literal[True]


class ProjectSettings(Answer, frozen=True):
    """Quota, weight and time limits of a project."""

    name: str
    quota_gpus: int | None
    """GPUs that its jobs may hold together; null: no limit."""
    weight: float
    """Its share relative to others, in fair policies."""
    default_time_s: float | None
    """The time limit of its jobs that state none; null: `most_time_s`."""
    most_time_s: float | None
    """The longest time limit that its jobs may state; null: any, or none."""
    most_idle_s: float | None
    """Its jobs are ended when their GPUs were all unused for so long; null: they are not."""


class ProjectRow(ProjectSettings, frozen=True):
    """A project."""

    gpus: int
    """GPUs that its jobs hold."""
    used_gpu_s: float | None = None
    """GPU-seconds that still count, where the policy shares by past use."""


class ProjectGone(Answer, frozen=True):
    """A project whose quota and weight are forgotten."""

    name: str
    gone: Literal[True]


class BackupMade(Answer, frozen=True):
    """A copy of the store."""

    path: str
    """On the machine of the service."""
    bytes: int
