"""One writer, many readers, one transaction for everything that an operation changes.

    store = Store.open("sqlite:////home/me/.plait/plait.db")
    store.commit(entries, views, snapshot)
    snapshot, tail = store.load()

SQLite runs in WAL mode with `synchronous=NORMAL`: a killed process loses nothing that was committed, and only a machine
that loses power may lose the last moments. Two services never write to one store: a lock file next to SQLite's, an
advisory lock in PostgreSQL. From `next_term` on every transaction that writes checks that the term is still this
store's own: a service that was replaced while it slept changes nothing any more.
"""

from __future__ import annotations

import errno
import json
import math
import os
import secrets
import sqlite3
import threading
import time
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import fields
from pathlib import Path
from typing import IO, Any

import msgspec
import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError

from plait.core.errors import InputError, MissingExtra
from plait.core.words import arguments, command_line
from plait.live.api.jobs import FINAL, JobAttempt, JobRow, RankOfAttempt
from plait.live.layout import job_name
from plait.live.store import schema
from plait.live.store.connecting import lock_file, lock_server, parse_url, sqlite_engines, unlock
from plait.live.store.errors import NoRoom, Replaced, StoreError, first_line
from plait.live.store.identity import Identity, check_mark, refuse_missing, rescued
from plait.live.store.leader_lease import LeaderLease
from plait.live.store.schema import CRC, Checksums, Entry, StoredJob, Token, Views, pack

_KEPT_SNAPSHOTS = 2
#: Rows that `Store.damaged` reads at a time.
SLICE = 200
#: Bytes that a disk has to take before it counts as one with room.
_ROOM = 1 << 18
_RANKS = msgspec.json.Decoder(list[RankOfAttempt])
#: Errors of a disk without room, or of a user who may not have more of it.
_FULL = (errno.ENOSPC, errno.EDQUOT)


class Store:
    """The service's memory on disk; `Store.open` makes one."""

    def __init__(
        self,
        engine: sa.Engine,
        readers: sa.Engine,
        lock: IO[bytes] | sa.Connection | None,
        lease: LeaderLease | None = None,
        identity: Identity | None = None,
    ) -> None:
        """Take open engines; the tables are there. `identity`: of the files of an SQLite store."""
        self._identity = identity
        self._engine, self._readers, self._lock, self._lease = engine, readers, lock, lease
        # Tokens are written outside the engine's thread, and SQLite's writer is one connection for all of them.
        self._writes = threading.Lock()
        #: Where the content of a store whose file was removed went.
        self._saved: str | None = None
        #: The term of the service that writes by this store; None for one that never leads.
        self.term: int | None = None
        # Rows are taken from the driver itself in places, so its own errors may come too.
        self._errors: tuple[type[Exception], ...] = (SQLAlchemyError, engine.dialect.loaded_dbapi.Error)
        #: A damaged text is no UTF-8, a damaged flag neither 0 nor 1.
        self._read_errors = (*self._errors, ValueError)
        self._insert = {
            table.name: sa.insert(table) for table in (schema.log, schema.log_jobs, schema.snapshots, schema.tokens)
        }
        self._upsert = {
            table.name: _upsert(engine.dialect.name, table) for table in (schema.jobs, schema.attempts, schema.nodes)
        }

    @classmethod
    def open(cls, url: str | Path, *, exclusive: bool = True, lease: LeaderLease | None = None) -> Store:
        """Open or make the store at a URL (`sqlite:///file`, `postgresql://...`) or a path of an SQLite file.

        `exclusive`: refuse if another service writes to it; `lease`: it holds the lock. Raises `StoreError` with
        one sentence.
        """
        parsed = parse_url(url)
        lock: IO[bytes] | sa.Connection | None
        identity = None
        with ExitStack() as undo:
            try:
                if parsed.get_backend_name() == "sqlite":
                    lock = lock_file(parsed) if exclusive else None
                    undo.callback(unlock, lock)
                    path = Path(str(parsed.database))
                    refuse_missing(path)
                    engine, readers = sqlite_engines(parsed)
                    identity = Identity(path, lock)
                else:
                    options = {} if lease is None else lease.options()
                    engine = readers = sa.create_engine(parsed, pool_pre_ping=True, connect_args=options)
                undo.callback(engine.dispose)
                undo.callback(readers.dispose)
                if engine is readers:
                    lock = lock_server(engine) if exclusive and lease is None else None
                    undo.callback(unlock, lock)
                with engine.begin() as connection:
                    prepare_tables(connection, parsed)
                if identity is not None and exclusive:
                    with engine.connect() as connection:
                        check_mark(identity.path, str(read_fact(connection, "made_at")))
            except (SQLAlchemyError, OSError, ValueError) as error:
                if identity is not None and getattr(_room_error(identity.path), "errno", None) in _FULL:
                    raise NoRoom(
                        f"cannot open the store {identity.path}: its disk is full; free some space, then: plait up"
                    ) from error
                raise StoreError(f"cannot open the store {parsed!r}: {first_line(error)}") from error
            except ImportError as error:
                raise MissingExtra("psycopg", "postgres", "a store on PostgreSQL") from error
            undo.pop_all()
        return cls(engine, readers, lock, lease, identity)

    # -- writing --------------------------------------------------------------------------------------

    def commit(
        self,
        entries: Sequence[Entry],
        views: Views | None = None,
        snapshot: tuple[int, Mapping[str, Any] | bytes] | None = None,
    ) -> None:
        """Append to the log, update the views, and keep a snapshot: the state after the entry of that number, packed or
        not.
        """
        with self._writing() as connection:
            if entries:
                rows = [
                    {"seq": e.seq, "at_s": e.at_s, "type": e.type, "entry": e.entry, "commands": e.commands}
                    for e in entries
                ]
                connection.execute(self._insert["log"], schema.SUMMED["log"].add(rows))
                about = [{"job": job, "seq": e.seq} for e in entries for job in sorted(set(e.jobs))]
                if about:
                    connection.execute(self._insert["log_jobs"], schema.SUMMED["log_jobs"].add(about))
            if views is not None:
                self._write(connection, views)
            if snapshot is not None:
                self._keep(connection, *snapshot)

    @contextmanager
    def _writing(self) -> Iterator[sa.Connection]:
        """A transaction; any error of the driver becomes a `StoreError`."""
        try:
            with self._writes, self._engine.begin() as connection:
                self._check_term(connection)
                yield connection
        except self._errors as error:
            self.check()
            if "disk is full" in str(error) or not self.has_room():
                raise NoRoom(f"cannot write to the store {self._engine.url.database}: its disk is full") from error
            raise StoreError(f"cannot write to the store: {first_line(error)}") from error
        self.check()

    def check(self) -> None:
        """Raise `StoreError` if files of an SQLite store were removed or replaced; the content is saved next to
        them.
        """
        if self._identity is None:
            return
        try:
            self._identity.check()
        except StoreError as error:
            saved = self._rescue(self._identity.path)
            raise StoreError(f"{error}; {saved}") from None

    def _rescue(self, path: Path) -> str:
        """Save what is still open, once; what became of it."""
        with self._writes:
            if self._saved is None:
                try:  # by the writer, which has the file open
                    self._saved = f"saved as {self._copy(self._engine, rescued(path))}: plait restore puts that back"
                except (InputError, OSError) as error:
                    self._saved = f"nothing could be saved: {error}"
            return self._saved

    def has_room(self) -> bool:
        """Whether something can be written where an SQLite store is; True for any other."""
        if self._engine.dialect.name != "sqlite":
            return True
        return _room_error(Path(str(self._engine.url.database))) is None

    def _check_term(self, connection: sa.Connection) -> None:
        """No transaction of ours ends after another has raised the term: it waits for ours, or ours sees it."""
        if self.term is None:
            return
        found = int(read_fact(connection, "term", lock={"read": True}) or 0)
        if found != self.term:
            raise Replaced(f"this service, of term {self.term}, was replaced by a leader of term {found}")

    def _write(self, connection: sa.Connection, views: Views) -> None:
        jobs = [
            {
                "number": row.number, **{name: getattr(row, field) for name, field in schema.JOB_FIELDS.items()},
                "command": command_line(request["command"]), "nodes": " ".join(row.nodes), "tags": " ".join(row.tags),
                "request": json.dumps(request, separators=(",", ":")),
            }
            for row, request in views.jobs
        ]  # fmt: skip
        attempts = [
            {
                "job": number, **{name: getattr(one, field) for name, field in schema.ATTEMPT_FIELDS.items()},
                "ranks": msgspec.json.encode(one.ranks).decode(),
            }
            for number, one in views.attempts
        ]  # fmt: skip
        for name, rows in (("jobs", jobs), ("attempts", attempts), ("nodes", views.nodes)):
            if rows:
                connection.execute(self._upsert[name], schema.SUMMED[name].add(rows))
        if views.forgotten:
            connection.execute(sa.delete(schema.nodes).where(schema.nodes.c.id.in_(views.forgotten)))
        table = schema.projects
        for name, project in views.projects.items():
            connection.execute(sa.delete(table).where(table.c.name == name))
            if project is not None:
                connection.execute(sa.insert(table), schema.SUMMED["projects"].add([{"name": name, **project}]))

    def _keep(self, connection: sa.Connection, seq: int, state: Mapping[str, Any] | bytes) -> None:
        body = state if isinstance(state, bytes) else pack(state)
        table = schema.snapshots
        connection.execute(sa.delete(table).where(table.c.seq == seq))
        connection.execute(self._insert["snapshots"], schema.SUMMED["snapshots"].add([{"seq": seq, "body": body}]))
        newest = connection.execute(
            sa.select(table.c.seq).order_by(table.c.seq.desc()).limit(_KEPT_SNAPSHOTS)
        ).scalars()
        connection.execute(sa.delete(table).where(table.c.seq < min(newest)))

    def next_term(self) -> int:
        """A number larger than all earlier ones, for a service that begins to lead: take it before loading."""
        self.term = None
        with self._writing() as connection:
            term = int(read_fact(connection, "term", lock={}) or 0) + 1
            write_fact(connection, "term", str(term))
            if self._lease is not None and not self._lease.begin(connection, term):
                raise Replaced("another service became the leader before this one started")
        self.term = term
        if self._lease is not None:
            self._lease.keep()
        return term

    # -- reading --------------------------------------------------------------------------------------

    @contextmanager
    def reading(self) -> Iterator[sa.Connection]:
        """A connection that sees one consistent state."""
        try:
            with self._readers.connect() as connection:
                yield connection
        except self._read_errors as error:
            raise StoreError(f"cannot read the store: {first_line(error)}") from error

    @property
    def made_at(self) -> float:
        """When the store was made, seconds since 1970: the origin of its time."""
        made_at = self.fact("made_at")
        if made_at is None:
            raise self._damage("its time of making is missing")
        return float(made_at)

    def load(self) -> tuple[dict[str, Any] | None, Iterator[Entry]]:
        """The newest snapshot (None if there is none) and the entries of the log after it."""
        table = schema.snapshots
        with self.reading() as connection:
            row = connection.execute(sa.select(table).order_by(table.c.seq.desc()).limit(1)).first()
        if row is None:
            return None, self.entries()
        self._verify(table, row)
        try:
            state = json.loads(zlib.decompress(row.body))
        except (zlib.error, ValueError) as error:
            raise self._damage(f"snapshot {row.seq} cannot be unpacked: {error}") from error
        return state, self.entries(after=row.seq)

    def entries(
        self, after: int = 0, limit: int | None = None, job: int | None = None, newest: bool = False
    ) -> Iterator[Entry]:
        """Entries of the log after a number, in order; of one job only, if given; the first ones or the `newest`."""
        table, about = schema.log, schema.log_jobs
        query = sa.select(table).where(table.c.seq > after).order_by(table.c.seq.desc() if newest else table.c.seq)
        if job is not None:
            query = query.join(about, about.c.seq == table.c.seq).where(about.c.job == job)
        if limit is not None:
            query = query.limit(limit)
        with self.reading() as connection:
            rows = connection.execution_options(yield_per=2000).execute(query)
            for row in reversed(rows.all()) if newest else rows:
                self._verify(table, row)
                yield Entry(row.seq, row.at_s, row.type, row.entry, row.commands)

    def entries_of(self, types: Sequence[str], after: int = 0) -> Iterator[tuple[int, str]]:
        """Number and text of the entries of these types after a number, in order."""
        table = schema.log
        query = sa.select(table).where(table.c.seq > after, table.c.type.in_(types)).order_by(table.c.seq)
        with self.reading() as connection:
            yield from ((row.seq, row.entry) for row in connection.execute(query) if self._verify(table, row))

    def attempts_since(self, at_s: float) -> list[tuple[JobRow, JobAttempt]]:
        """Attempts that were not over at a time, with the rows of their jobs."""
        tries = schema.attempts
        return self._attempts(lambda query: query.where(sa.or_(tries.c.ended_s.is_(None), tries.c.ended_s > at_s)))

    def attempts_on(
        self, nodes: Sequence[str], from_s: float, to_s: float, limit: int
    ) -> list[tuple[JobRow, JobAttempt]]:
        """Attempts with a process on one of these nodes in a time, newest first, with the rows of their jobs."""
        tries = schema.attempts
        there = sa.or_(*(tries.c.ranks.contains(f'"node":{json.dumps(n)},', autoescape=True) for n in nodes))
        return self._attempts(
            lambda query: (
                query.where(
                    tries.c.started_s <= to_s, sa.or_(tries.c.ended_s.is_(None), tries.c.ended_s >= from_s), there
                )
                .order_by(tries.c.started_s.desc(), tries.c.job.desc())
                .limit(limit)
            )
        )

    def _attempts(self, chosen: Callable[[sa.Select[Any]], sa.Select[Any]]) -> list[tuple[JobRow, JobAttempt]]:
        tries, jobs = schema.attempts, schema.jobs
        own = [c.label(f"job_{c.name}") for c in jobs.c if c.name not in ("request", CRC)]
        query = chosen(sa.select(tries, *own).join(jobs, jobs.c.number == tries.c.job))
        with self.reading() as connection:
            rows = [row._mapping for row in connection.execute(query)]
        return [
            (_job({name: row[f"job_{name}"] for name in ("number", *schema.JOB_FIELDS)}), _attempt(row)) for row in rows
        ]

    def jobs(
        self,
        *,
        states: Sequence[str] = (),
        user: str | None = None,
        text: str = "",
        mine: str | None = None,
        tags: Sequence[str] = (),
        array: str | None = None,
        one_each: bool = False,
        limit: int = 1000,
        offset: int = 0,
        now_s: float = math.nan,
    ) -> list[JobRow]:
        """Rows of jobs, newest first; see `schema.jobs_with` for `text` and `mine`. Their ages are those at `now_s`.

        `tags`: only jobs with all of these, in any case; `array`: only its members. `one_each`: of each array only the
        newest of these jobs.
        """

        def matching(jobs: sa.FromClause) -> Iterator[sa.ColumnElement[bool]]:
            if states:
                yield jobs.c.state.in_(states)
            if user is not None:
                yield jobs.c.user == user
            if text:
                yield schema.jobs_with(jobs, text, mine)
            if array is not None:
                yield jobs.c.array == array
            for tag in tags:
                yield (" " + jobs.c.tags + " ").icontains(f" {tag} ", autoescape=True)

        table = schema.jobs
        query = sa.select(*(c for c in table.c if c.name not in ("request", CRC))).where(*matching(table))
        if one_each:
            other = table.alias()
            newer = sa.select(other.c.number).where(
                other.c.array == table.c.array, other.c.number > table.c.number, *matching(other)
            )
            query = query.where(sa.or_(table.c.array.is_(None), ~newer.exists()))
        query = query.order_by(table.c.number.desc()).limit(limit).offset(offset)
        with self.reading() as connection:
            result = connection.execute(query)
            # Numbers and texts need no translation: the driver's rows will do, at half the time.
            names = tuple(result.keys())
            return [_job(dict(zip(names, row, strict=True)), now_s) for row in result.cursor.fetchall()]

    def members(self, arrays: Collection[str]) -> dict[str, dict[int, int]]:
        """Numbers of the jobs of each of these arrays by their indexes."""
        table, out = schema.jobs, {array: dict[int, int]() for array in arrays}
        query = sa.select(table.c.array, table.c.array_index, table.c.number)
        for row in self._rows_in(query, table.c.array, arrays):
            out[row.array][row.array_index] = row.number
        return out

    def states(self, numbers: Collection[int]) -> dict[int, str]:
        query = sa.select(schema.jobs.c.number, schema.jobs.c.state)
        return {row.number: row.state for row in self._rows_in(query, schema.jobs.c.number, numbers)}

    def _rows_in(self, query: sa.Select[Any], column: sa.Column[Any], values: Collection[Any]) -> Iterator[sa.Row[Any]]:
        """Rows whose column has one of these values; databases take a limited number of values in a query."""
        chosen = sorted(values)
        with self.reading() as connection:
            for start in range(0, len(chosen), 1000):
                yield from connection.execute(query.where(column.in_(chosen[start : start + 1000])))

    def ended_members(self, arrays: Sequence[str]) -> dict[str, dict[str, int]]:
        """How many jobs of each of these arrays have ended in each state."""
        table, out = schema.jobs, {array: dict[str, int]() for array in arrays}
        counted = sa.select(table.c.array, table.c.state, sa.func.count()).where(table.c.state.in_(FINAL))
        with self.reading() as connection:
            rows = connection.execute(counted.where(table.c.array.in_(arrays)).group_by(table.c.array, table.c.state))
            for array, state, count in rows:
                out[array][state] = count
        return out

    def jobs_named(self, name: str, last: Sequence[str], user: str | None, limit: int = 20) -> list[dict[str, Any]]:
        """Number and state of the jobs with this name, newest first, jobs in the states `last` after all others.

        `user`: only jobs of this user; None: of all.
        """
        table = schema.jobs
        query = sa.select(table.c.number, table.c.state).where(table.c.name == name)
        if user is not None:
            query = query.where(table.c.user == user)
        over = table.c.state.in_(last)
        with self.reading() as connection:
            rows = connection.execute(query.order_by(over, table.c.number.desc()).limit(limit))
            return [dict(row._mapping) for row in rows]

    def job(self, number: int, now_s: float = math.nan) -> StoredJob | None:
        """One job with its request and its attempts, or None; its age is that at `now_s`."""
        with self.reading() as connection:
            row = connection.execute(sa.select(schema.jobs).where(schema.jobs.c.number == number)).first()
            if row is None:
                return None
            self._verify(schema.jobs, row)
            tries = connection.execute(
                sa.select(schema.attempts).where(schema.attempts.c.job == number).order_by(schema.attempts.c.epoch)
            )
            attempts = [_attempt(t._mapping) for t in tries if self._verify(schema.attempts, t)]
        values = {name: row._mapping[name] for name in ("number", *schema.JOB_FIELDS)}
        return StoredJob(_job(values, now_s), json.loads(row.request), attempts)

    def damaged(self, rest: Callable[[], object] = lambda: None) -> Iterator[str]:
        """Rows that do not match their checksums, and pages of SQLite that do not fit together, a sentence each.

        Reads `SLICE` rows at a time, each slice in a transaction of its own, and calls `rest` after it.
        """
        for part in (self._damaged_pages(), *map(self._damaged_rows, schema.SUMMED.values())):
            try:
                for problems in part:
                    yield from problems
                    rest()
            except StoreError as error:
                yield str(error)

    def _damaged_pages(self) -> Iterator[Iterable[str]]:
        if self._engine.dialect.name == "sqlite":
            with self.reading() as connection:
                said = connection.exec_driver_sql("PRAGMA integrity_check(20)").scalars().all()
            yield [str(line) for line in said if line != "ok"]

    def _damaged_rows(self, sums: Checksums) -> Iterator[Iterable[str]]:
        keys = list(sums.table.primary_key.columns)
        last: tuple[Any, ...] | None = None
        ends: set[tuple[Any, ...]] = set()  # of slices, in the order of the database, which need not be Python's
        query = sa.select(sums.table).order_by(*keys).limit(SLICE)
        while True:
            after = query if last is None else query.where(sa.tuple_(*keys) > last)
            with self.reading() as connection:
                rows = connection.execute(after).mappings().all()
            yield filter(None, map(sums.problem, rows))
            if len(rows) < SLICE:
                return
            last = tuple(rows[-1][key.name] for key in keys)
            if last in ends:
                yield [f"rows of table {sums.table.name} are out of order at {last}"]
                return
            ends.add(last)

    def _verify(self, table: sa.Table, row: sa.Row[Any]) -> bool:
        """True; raises `StoreError` for a row that does not match its checksum."""
        if problem := schema.SUMMED[table.name].problem(row._mapping):
            raise self._damage(problem)
        return True

    def _damage(self, what: str) -> StoreError:
        return damage(self._engine.url.database, what)

    def counts(self) -> dict[str, int]:
        """Number of jobs in each state."""
        table = schema.jobs
        with self.reading() as connection:
            rows = connection.execute(sa.select(table.c.state, sa.func.count()).group_by(table.c.state))
            return {state: int(count) for state, count in rows}

    # -- tokens ---------------------------------------------------------------------------------------

    def tokens(self) -> list[Token]:
        """All tokens that are valid; none of a row that does not match its checksum."""
        table, sums = schema.tokens, schema.SUMMED["tokens"]
        names = [f.name for f in fields(Token)]
        query = sa.select(table).where(table.c.revoked == sa.false()).order_by(table.c.created_s)
        with self.reading() as connection:
            rows = [row._mapping for row in connection.execute(query)]
        return [Token(*(row[name] for name in names)) for row in rows if not sums.problem(row)]

    def add_token(self, token: Token) -> None:
        """Remember a token by its hash."""
        row = {f.name: getattr(token, f.name) for f in fields(Token)}
        with self._writing() as connection:
            connection.execute(self._insert["tokens"], schema.SUMMED["tokens"].add([{**row, "revoked": False}]))

    def revoke_token(self, name: str) -> bool:
        """Forget a token by its id; False if there is none."""
        table = schema.tokens
        valid = sa.and_(table.c.id == name, table.c.revoked == sa.false())
        with self._writing() as connection:
            row = connection.execute(sa.select(table).where(valid).with_for_update()).first()
            if row is not None:
                gone = {**row._mapping, "revoked": True}
                crc = schema.SUMMED["tokens"].of(gone)
                connection.execute(sa.update(table).where(valid).values({"revoked": True, CRC: crc}))
        return row is not None

    def knows_token(self, digest: str) -> bool:
        """Whether there is, or was, a token of this hash."""
        table = schema.tokens
        with self.reading() as connection:
            return connection.execute(sa.select(table.c.id).where(table.c.hash == digest)).first() is not None

    def fact(self, key: str) -> str | None:
        """One of the store's own facts, or None; raises `StoreError` for one that does not match its checksum."""
        with self.reading() as connection:
            return read_fact(connection, key)

    def set_fact(self, key: str, value: str) -> None:
        """Store a value under a key; an earlier one is replaced."""
        with self._writing() as connection:
            write_fact(connection, key, value)

    def backup(self, target: str | Path) -> Path:
        """Write a consistent copy of an SQLite store to a new file, while it is in use."""
        return self._copy(self._readers, target)

    def _copy(self, engine: sa.Engine, target: str | Path) -> Path:
        if self._engine.dialect.name != "sqlite":
            raise StoreError("a store on PostgreSQL is backed up with its own tool: pg_dump")
        try:
            path = Path(target).expanduser().resolve()
            part = path.with_name(f".{path.name[:100]}.{secrets.token_hex(4)}.part")
            os.close(os.open(part, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
        except (OSError, ValueError, RuntimeError) as error:  # a user that is not there is a RuntimeError
            raise InputError(
                f"cannot write the backup {str(target)[:300]!r}: {first_line(error)}; give another path"
            ) from error
        try:
            with engine.connect() as source, closing(sqlite3.connect(part)) as copy:
                source.connection.driver_connection.backup(copy)  # type: ignore[union-attr]
            os.link(part, path)  # unlike a rename this does not replace what is there
        except FileExistsError as error:
            raise InputError(f"{path} is there already; give another name") from error
        except (OSError, sqlite3.Error, SQLAlchemyError) as error:
            if getattr(error, "errno", None) == errno.ENAMETOOLONG:
                raise InputError(f"cannot write the backup {str(path)[:300]!r}: its name is too long") from error
            raise StoreError(f"cannot write the backup {path}: {first_line(error)}") from error
        finally:
            part.unlink(missing_ok=True)
        return path

    def close(self) -> None:
        """Let others open it."""
        unlock(self._lock)
        self._lock = None
        self._readers.dispose()
        self._engine.dispose()


def _room_error(path: Path) -> OSError | None:
    """The error that prevents writing where the SQLite file `path` is; None without one."""
    tried = Path(f"{path}.room")
    try:
        tried.write_bytes(bytes(_ROOM))
    except OSError as error:
        return error
    finally:
        with suppress(OSError):
            tried.unlink()
    return None


def _job(values: dict[str, Any], now_s: float = math.nan) -> JobRow:
    """A row of the table `jobs`, without its request; its age is that at `now_s`."""
    created_s, ended_s, class_ = values["created_s"], values["ended_s"], values.pop("class")
    values["command"], values["nodes"] = arguments(values["command"]), values["nodes"].split()
    values["tags"] = values["tags"].split()
    return JobRow(
        **values,
        class_=class_,
        id=job_name(values["number"]),
        age_s=round(now_s - created_s, 3),
        jct_s=None if ended_s is None else round(ended_s - created_s, 3),
    )


def _attempt(row: Mapping[Any, Any]) -> JobAttempt:
    values = {name: row[name] for name in schema.ATTEMPT_FIELDS}
    return JobAttempt.of(**{**values, "ranks": _RANKS.decode(row["ranks"])})


def prepare_tables(connection: sa.Connection, url: sa.URL) -> None:
    """Make the tables of an empty store; raises `StoreError` for tables of another version."""
    names = set(sa.inspect(connection).get_table_names())
    if not names & set(schema.metadata.tables):
        schema.metadata.create_all(connection)
        for key, value in (("schema", schema.VERSION), ("made_at", repr(time.time())), ("term", "0")):
            write_fact(connection, key, value)
        return
    found = None if "alembic_version" in names else read_fact(connection, "schema")
    if found != schema.VERSION:
        known = f"version {found}" if found else "no version"
        raise StoreError(
            f"store {url!r} has tables of {known}, and this plait reads version {schema.VERSION}; use the plait that "
            "wrote it, or move it away and begin with an empty store: plait up"
        )
    # Add the checksum of the term, which a store that was put back from a backup lacks
    for row in connection.execute(sa.select(schema.meta).where(schema.meta.c.crc.is_(None))).mappings().all():
        changed = sa.update(schema.meta).where(schema.meta.c.key == row["key"])
        connection.execute(changed.values({CRC: schema.SUMMED["meta"].of(row)}))


def _upsert(dialect: str, table: sa.Table) -> Any:
    if dialect == "sqlite":
        from sqlalchemy.dialects.sqlite import insert
    else:
        from sqlalchemy.dialects.postgresql import insert  # type: ignore[assignment]
    statement = insert(table)
    keys = list(table.primary_key.columns)
    changed = {c.name: statement.excluded[c.name] for c in table.c if not c.primary_key}
    return statement.on_conflict_do_update(index_elements=keys, set_=changed)


# The store's own facts: rows of `meta`, each with its checksum.

_META, _SUMS = schema.meta, schema.SUMMED["meta"]


def read_fact(connection: sa.Connection, key: str, lock: Mapping[str, Any] | None = None) -> str | None:
    """The value of a key, or None; raises `StoreError` for a row that does not match its checksum.

    `lock`: options of FOR UPDATE, for a row that this transaction continues from.
    """
    query = sa.select(_META).where(_META.c.key == key)
    row = connection.execute(query if lock is None else query.with_for_update(**lock)).mappings().first()
    if row is None:
        return None
    if problem := _SUMS.problem(row):
        raise damage(connection.engine.url.database, problem)
    return str(row["value"])


def write_fact(connection: sa.Connection, key: str, value: str) -> None:
    """Store a value under a key; an earlier one is replaced."""
    row = {"key": key, "value": value}
    changed = connection.execute(
        sa.update(_META).where(_META.c.key == key).values({"value": value, CRC: _SUMS.of(row)})
    )
    if not changed.rowcount:
        connection.execute(sa.insert(_META), _SUMS.add([row]))


def damage(store: str | None, what: str) -> StoreError:
    """The error of a store of which a row does not match its checksum."""
    return StoreError(f"the store {store} is damaged: {what}; put a backup back: plait restore")
