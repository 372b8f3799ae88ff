"""Tables of the store, the same on SQLite and PostgreSQL, and the rows that others see.

log         what happened, in order, with what the controller commanded: the truth
log_jobs    which jobs an entry of the log is about
snapshots   everything known after an entry, so that a restart need not read the whole log
jobs, attempts, nodes    views for listing, written in the transaction of the entries that change them; the columns of
            jobs and attempts are fields of `plait.live.api.jobs.JobRow` and `JobAttempt`
tokens, projects, meta   who may ask, quotas and weights, and the store's own facts
lease       one row: which service leads, and until when (PostgreSQL only; `plait.live.store.leader_lease`)
"""

import json
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, get_args, get_type_hints

import sqlalchemy as sa
from msgspec import Struct, structs
from sqlalchemy.sql.elements import ColumnElement
from sqlalchemy.sql.selectable import FromClause

from plait.live.api.jobs import JobAttempt, JobRow

# Checksums of rows: a bit that a disk or memory flipped is found, and the row that has it is named.
#
# SQLite and PostgreSQL notice damage to their own structure, not to a value.

#: The column of a row's checksum; null in rows of versions that wrote none.
CRC = "crc"


def _float(value: Any) -> float | None:
    """A number as every store gives it back: without NaN, and without the sign of zero."""
    return None if value is None or value != value else float(value) + 0.0


def _converter(column: sa.Column[Any]) -> Callable[[Any], Any]:
    if isinstance(column.type, sa.Float):
        return _float
    if isinstance(column.type, sa.LargeBinary):
        return zlib.crc32
    if isinstance(column.type, sa.Boolean):
        return bool
    return (lambda value: None if value is None else int(value)) if isinstance(column.type, sa.Integer) else str


class Checksums:
    """Checksums of one table's rows."""

    def __init__(self, table: sa.Table) -> None:
        self.table = table
        self._columns = [(column.name, _converter(column)) for column in table.c if column.name != CRC]
        self._keys = [column.name for column in table.primary_key.columns]

    def of(self, row: Mapping[Any, Any]) -> int:
        """The CRC-32 of a row; a column that is missing counts as null."""
        return zlib.crc32(repr([convert(row.get(name)) for name, convert in self._columns]).encode())

    def add(self, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [{**row, CRC: self.of(row)} for row in rows]

    def problem(self, row: Mapping[Any, Any]) -> str:
        """Which row of the table does not match its checksum; "" if it does, or has none."""
        try:
            if row[CRC] is None or row[CRC] == self.of(row):
                return ""
        except (ValueError, TypeError, OverflowError):  # a text where a number was
            pass
        key = ", ".join(f"{name} {row[name]!r}" for name in self._keys)
        return f"row {key} of table {self.table.name} does not match its checksum"


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

metadata = sa.MetaData()

meta = sa.Table(
    "meta",
    metadata,
    sa.Column("key", sa.String(64), primary_key=True),
    sa.Column("value", sa.Text, nullable=False),
    sa.Column(CRC, sa.BigInteger),
)

log = sa.Table(
    "log",
    metadata,
    sa.Column("seq", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("at_s", sa.Float, nullable=False),
    sa.Column("type", sa.String(32), nullable=False),
    sa.Column("entry", sa.Text, nullable=False),
    sa.Column("commands", sa.Text, nullable=False),
    sa.Column(CRC, sa.BigInteger),
)

log_jobs = sa.Table(
    "log_jobs",
    metadata,
    sa.Column("job", sa.BigInteger, nullable=False),
    sa.Column("seq", sa.BigInteger, nullable=False),
    sa.Column(CRC, sa.BigInteger),
    sa.PrimaryKeyConstraint("job", "seq"),
)

snapshots = sa.Table(
    "snapshots",
    metadata,
    sa.Column("seq", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("body", sa.LargeBinary, nullable=False),
    sa.Column(CRC, sa.BigInteger),
)

_TYPES: dict[Any, type[Any]] = {int: sa.BigInteger, float: sa.Float}


def fields_of(kind: type[Struct], *derived: str) -> dict[str, str]:
    """Column -> field of a row, for the fields that every row has, but for those `derived` from others."""
    return {one.encode_name: one.name for one in structs.fields(kind) if one.required and one.name not in derived}


def _columns(kind: type[Struct], fields: Mapping[str, str]) -> Iterator[sa.Column[Any]]:
    """Columns of these fields; what is no number is a text."""
    hints = get_type_hints(kind)
    for name, field_name in fields.items():
        kinds = get_args(hints[field_name])
        optional = type(None) in kinds
        yield sa.Column(name, _TYPES.get(kinds[0] if optional else hints[field_name], sa.Text), nullable=optional)


JOB_FIELDS = fields_of(JobRow, "number", "id", "age_s", "jct_s")
ATTEMPT_FIELDS = fields_of(JobAttempt, "nodes", "gpus", "exit_code")

jobs = sa.Table(
    "jobs",
    metadata,
    sa.Column("number", sa.BigInteger, primary_key=True, autoincrement=False),
    *_columns(JobRow, JOB_FIELDS),
    sa.Column("request", sa.Text, nullable=False),
    sa.Column(CRC, sa.BigInteger),
    sa.Index("jobs_by_state", "state", "number"),
    sa.Index("jobs_by_user", "user", "number"),
    sa.Index("jobs_by_array", "array", "number"),
)

attempts = sa.Table(
    "attempts",
    metadata,
    sa.Column("job", sa.BigInteger, nullable=False),
    *_columns(JobAttempt, ATTEMPT_FIELDS),
    sa.Column(CRC, sa.BigInteger),
    sa.PrimaryKeyConstraint("job", "epoch"),
)

nodes = sa.Table(
    "nodes",
    metadata,
    sa.Column("id", sa.String(128), primary_key=True),
    sa.Column("state", sa.String(16), nullable=False),
    sa.Column("info", sa.Text, nullable=False),
    sa.Column(CRC, sa.BigInteger),
)

tokens = sa.Table(
    "tokens",
    metadata,
    sa.Column("hash", sa.String(64), primary_key=True),
    sa.Column("id", sa.String(16), nullable=False, unique=True),
    sa.Column("user", sa.String(128), nullable=False),
    sa.Column("role", sa.String(16), nullable=False),
    sa.Column("project", sa.String(128), nullable=False),
    sa.Column("created_s", sa.Float, nullable=False),
    sa.Column("revoked", sa.Boolean, nullable=False, default=False),
    sa.Column("expires_s", sa.Float),
    sa.Column("node", sa.String(128)),
    sa.Column(CRC, sa.BigInteger),
)

projects = sa.Table(
    "projects",
    metadata,
    sa.Column("name", sa.String(128), primary_key=True),
    sa.Column("gpu_quota", sa.Integer),
    sa.Column("weight", sa.Float, nullable=False),
    sa.Column("default_time_s", sa.Float),
    sa.Column("most_time_s", sa.Float),
    sa.Column("most_idle_s", sa.Float),
    sa.Column(CRC, sa.BigInteger),
)

lease = sa.Table(
    "lease",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("holder", sa.Text, nullable=False),
    sa.Column("url", sa.Text, nullable=False),
    sa.Column("term", sa.BigInteger, nullable=False),
    sa.Column("until_s", sa.Double, nullable=False),
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
    job_id = sa.literal("j-").concat(sa.cast(jobs.c.number, sa.Text))
    columns = (jobs.c[name] for name in ("array", "tags", "user", "project", "model", "nodes"))
    known = job_id, *columns
    own = sa.or_(*(column.icontains(text, autoescape=True) for column in (jobs.c.name, jobs.c.command)))
    if mine is not None:
        own = sa.and_(jobs.c.user == mine, own)
    return sa.or_(own, *(column.icontains(text, autoescape=True) for column in known))


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
