"""Where a store is, how it is reached, and the lock that keeps a second service from it."""

from __future__ import annotations

import fcntl
import os
import sqlite3
from pathlib import Path
from typing import IO, Any

import sqlalchemy as sa
from sqlalchemy.exc import ArgumentError

from plait.live.store.errors import StoreError
from plait.live.store.leader_lease import take_lock

_BUSY_S = 10


def parse_url(url: str | Path) -> sa.URL:
    """Where a store is; raises `StoreError` for what is no place of one."""
    text = str(url)
    if "://" not in text:
        text = f"sqlite:///{Path(text).expanduser().resolve()}"
    try:
        parsed = sa.make_url(text)
    except ArgumentError as error:
        raise StoreError(
            f"cannot read the store's URL {text!r}; write sqlite:///file or postgresql://host/db"
        ) from error
    backend = parsed.get_backend_name()
    if backend == "postgresql":
        return parsed.set(drivername="postgresql+psycopg")
    if backend != "sqlite":
        raise StoreError(f"cannot store on {backend!r}; write sqlite:///file or postgresql://host/db")
    if not parsed.database or parsed.database == ":memory:":
        raise StoreError("the store needs a file: sqlite:///file")
    return parsed


def sqlite_engines(url: sa.URL) -> tuple[sa.Engine, sa.Engine]:
    """The one writer and the readers of an SQLite file, which is made if it is not there."""
    path = Path(str(url.database))
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    if not path.exists():
        os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
    # A file that was removed is not made again, empty, by the next connection.
    address = path.resolve().as_uri() + "?mode=rw"

    def connect() -> sqlite3.Connection:
        return sqlite3.connect(address, uri=True, check_same_thread=False, timeout=_BUSY_S)

    writer = sa.create_engine(url, creator=connect, poolclass=sa.StaticPool)
    readers = sa.create_engine(url, creator=connect, pool_size=4, max_overflow=8)
    for engine, begin in ((writer, "BEGIN IMMEDIATE"), (readers, "BEGIN")):
        sa.event.listen(engine, "connect", _prepare)
        sa.event.listen(engine, "begin", lambda connection, words=begin: connection.exec_driver_sql(words))
    return writer, readers


def _prepare(connection: Any, record: object) -> None:
    connection.isolation_level = None  # plait begins transactions itself
    for pragma in ("journal_mode=WAL", "synchronous=NORMAL", f"busy_timeout={_BUSY_S * 1000}", "foreign_keys=ON"):
        connection.execute(f"PRAGMA {pragma}").close()


def lock_file(url: sa.URL) -> IO[bytes]:
    """Lock an SQLite store for this process; raises `StoreError` if another has it."""
    path = Path(str(url.database))
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    lock = open(path.with_name(path.name + ".lock"), "wb")  # noqa: SIM115 - held as long as the store
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        lock.close()
        raise StoreError(f"the store {path} is in use by another service; stop that one first: plait down") from None
    return lock


def lock_server(engine: sa.Engine) -> sa.Connection:
    """Lock a store of PostgreSQL for one session; raises `StoreError` if another has it."""
    connection = engine.connect()
    taken = take_lock(connection)
    connection.commit()  # the lock belongs to the session, not to the transaction
    if not taken:
        connection.close()
        raise StoreError(f"the store {engine.url!r} is in use by another service; stop that one first")
    return connection


def unlock(lock: IO[bytes] | sa.Connection | None) -> None:
    """Let the store go; None: it was not locked."""
    if isinstance(lock, sa.Connection):
        lock.invalidate()  # closes the session, and with it the lock
    if lock is not None:
        lock.close()
