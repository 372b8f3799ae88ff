"""Tables of the store, the same on SQLite and PostgreSQL, and the rows that others see.

log         what happened, in order, with what the controller commanded: the truth
log_jobs    which jobs an entry of the log is about
snapshots   everything known after an entry, so that a restart need not read the whole log
jobs, attempts, nodes    views for listing, written in the transaction of the entries that change them; the columns of
            jobs and attempts are fields of `plait.live.api.jobs.JobRow` and `JobAttempt`
tokens, projects, meta   who may ask, quotas and weights, and the store's own facts
lease       one row: which service leads, and until when (PostgreSQL only; `plait.live.store.leader_lease`)
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, get_args, get_type_hints

from msgspec import Struct, structs
from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Double,
    Float,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    String,
    Table,
    Text,
    and_,
    cast,
    literal,
    or_,
)
from sqlalchemy.sql.elements import ColumnElement
from sqlalchemy.sql.selectable import FromClause

from plait.live.api.jobs import JobAttempt, JobRow
from plait.live.store.checksums import CRC, Checksums

#: Elements of a list that become JSON in one go.
_PIECE = 100


def pack(state: Mapping[str, Any]) -> bytes:
    """A state as the store keeps it: JSON, compressed. In parts, so that other threads get their turns."""
    packer = zlib.compressobj(1)
    parts = [packer.compress(text.encode()) for text in _parts(state)]
    return b"".join([*parts, packer.flush()])


def _parts(value: Any, depth: int = 4) -> Iterator[str]:
    """The JSON of a value, long lists and objects in pieces."""
    if depth and isinstance(value, Mapping) and value:
        for i, (key, item) in enumerate(value.items()):
            yield f"{',' if i else '{'}{json.dumps(key)}:"
            yield from _parts(item, depth - 1)
        yield "}"
    elif depth and isinstance(value, list) and len(value) > _PIECE:
        for i in range(0, len(value), _PIECE):
            yield ("," if i else "[") + _dump(value[i : i + _PIECE])[1:-1]
        yield "]"
    else:
        yield _dump(value)


def _dump(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


#: Version of these tables, which `meta` has as `schema`.
VERSION = "1"

metadata = MetaData()

meta = Table(
    "meta",
    metadata,
    Column("key", String(64), primary_key=True),
    Column("value", Text, nullable=False),
    Column(CRC, BigInteger),
)

log = Table(
    "log",
    metadata,
    Column("seq", BigInteger, primary_key=True, autoincrement=False),
    Column("at_s", Float, nullable=False),
    Column("type", String(32), nullable=False),
    Column("entry", Text, nullable=False),
    Column("commands", Text, nullable=False),
    Column(CRC, BigInteger),
)

log_jobs = Table(
    "log_jobs",
    metadata,
    Column("job", BigInteger, nullable=False),
    Column("seq", BigInteger, nullable=False),
    Column(CRC, BigInteger),
    PrimaryKeyConstraint("job", "seq"),
)

snapshots = Table(
    "snapshots",
    metadata,
    Column("seq", BigInteger, primary_key=True, autoincrement=False),
    Column("body", LargeBinary, nullable=False),
    Column(CRC, BigInteger),
)

_TYPES: dict[Any, type[Any]] = {int: BigInteger, float: Float}


def fields_of(kind: type[Struct], *derived: str) -> dict[str, str]:
    """Column -> field of a row, for the fields that every row has, but for those `derived` from others."""
    return {one.encode_name: one.name for one in structs.fields(kind) if one.required and one.name not in derived}


def _columns(kind: type[Struct], fields: Mapping[str, str]) -> Iterator[Column[Any]]:
    """Columns of these fields; what is no number is a text."""
    hints = get_type_hints(kind)
    for name, field_name in fields.items():
        kinds = get_args(hints[field_name])
        optional = type(None) in kinds
        yield Column(name, _TYPES.get(kinds[0] if optional else hints[field_name], Text), nullable=optional)


JOB_FIELDS = fields_of(JobRow, "number", "id", "age_s", "jct_s")
ATTEMPT_FIELDS = fields_of(JobAttempt, "nodes", "gpus", "exit_code")

jobs = Table(
    "jobs",
    metadata,
    Column("number", BigInteger, primary_key=True, autoincrement=False),
    *_columns(JobRow, JOB_FIELDS),
    Column("request", Text, nullable=False),
    Column(CRC, BigInteger),
    Index("jobs_by_state", "state", "number"),
    Index("jobs_by_user", "user", "number"),
    Index("jobs_by_array", "array", "number"),
)

attempts = Table(
    "attempts",
    metadata,
    Column("job", BigInteger, nullable=False),
    *_columns(JobAttempt, ATTEMPT_FIELDS),
    Column(CRC, BigInteger),
    PrimaryKeyConstraint("job", "epoch"),
)

nodes = Table(
    "nodes",
    metadata,
    Column("id", String(128), primary_key=True),
    Column("state", String(16), nullable=False),
    Column("info", Text, nullable=False),
    Column(CRC, BigInteger),
)

tokens = Table(
    "tokens",
    metadata,
    Column("hash", String(64), primary_key=True),
    Column("id", String(16), nullable=False, unique=True),
    Column("user", String(128), nullable=False),
    Column("role", String(16), nullable=False),
    Column("project", String(128), nullable=False),
    Column("created_s", Float, nullable=False),
    Column("revoked", Boolean, nullable=False, default=False),
    Column("expires_s", Float),
    Column("node", String(128)),
    Column(CRC, BigInteger),
)

projects = Table(
    "projects",
    metadata,
    Column("name", String(128), primary_key=True),
    Column("gpu_quota", Integer),
    Column("weight", Float, nullable=False),
    Column("default_time_s", Float),
    Column("most_time_s", Float),
    Column("most_idle_s", Float),
    Column(CRC, BigInteger),
)

lease = Table(
    "lease",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("holder", Text, nullable=False),
    Column("url", Text, nullable=False),
    Column("term", BigInteger, nullable=False),
    Column("until_s", Double, nullable=False),
)

#: The checksums of all tables but `lease`, of which nothing outlives its leader.
SUMMED = {
    table.name: Checksums(table) for table in (meta, log, log_jobs, snapshots, jobs, attempts, nodes, tokens, projects)
}

#: every table, in the order in which a restored store needs them
ALL = (*(sums.table for sums in SUMMED.values()), lease)


def jobs_with(jobs: FromClause, text: str, mine: str | None = None) -> ColumnElement[bool]:
    """That a job has this text in its id (j-12), array (a-5), tags, user, project, model, nodes, name or command.

    In any case; `jobs` is the table or an alias of it. With `mine`, only names and commands of this user: commands of
    other users' jobs are private.
    """
    job_id = literal("j-").concat(cast(jobs.c.number, Text))
    columns = (jobs.c[name] for name in ("array", "tags", "user", "project", "model", "nodes"))
    known = job_id, *columns
    own = or_(*(column.icontains(text, autoescape=True) for column in (jobs.c.name, jobs.c.command)))
    if mine is not None:
        own = and_(jobs.c.user == mine, own)
    return or_(own, *(column.icontains(text, autoescape=True) for column in known))


@dataclass(frozen=True, slots=True)
class Entry:
    """One row of the log; `entry` and `commands` are JSON text, `jobs` the numbers it is about."""

    seq: int
    at_s: float
    type: str
    entry: str
    commands: str = "[]"
    jobs: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Token:
    """Who a token stands for; the token itself is known only to its holder.

    `expires_s`: when it ends to be valid, None for never; `node`: of an agent, the only node it may speak for.
    """

    hash: str
    id: str
    user: str
    role: str
    project: str = "default"
    created_s: float = 0.0
    expires_s: float | None = None
    node: str | None = None


@dataclass(frozen=True, slots=True)
class StoredJob:
    """A job as it was submitted, its row as of the last commit, and its attempts, oldest first."""

    row: JobRow
    request: dict[str, Any]
    attempts: list[JobAttempt]


@dataclass(slots=True)
class Views:
    """Rows to be written beside log entries: jobs with their requests, attempts with the numbers of their jobs, nodes,
    projects (None = gone) by name; names of nodes forgotten.
    """

    jobs: list[tuple[JobRow, Mapping[str, Any]]] = field(default_factory=list)
    attempts: list[tuple[int, JobAttempt]] = field(default_factory=list)
    nodes: list[dict[str, Any]] = field(default_factory=list)
    projects: dict[str, dict[str, Any] | None] = field(default_factory=dict)
    forgotten: list[str] = field(default_factory=list)
