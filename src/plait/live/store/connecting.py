"""Where a store is, how it is reached, the lock that keeps a second service from it, and restoring a backup."""

import fcntl
import os
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import IO, Any

import sqlalchemy as sa
from sqlalchemy.exc import ArgumentError

from plait.core.files import OWNER_ONLY, replacing
from plait.live.store.errors import StoreError
from plait.live.store.identity import forget_mark
from plait.live.store.leader_lease import take_lock
from plait.live.store.schema import CRC

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


# Put a backup of a store in its place.

#: Terms left free for the services of a store between its copy and its being put back.
_TERMS = 1_000_000


def restore_backup(source: str | Path, target: str | Path) -> None:
    """Put a backup in the place of an SQLite store that no service uses; the old one stays as `<target>.old`."""
    path = Path(target).expanduser().resolve()
    lock = lock_file(sa.make_url(f"sqlite:///{path}"))
    try:
        with closing(sqlite3.connect(f"{Path(source).expanduser().resolve().as_uri()}?mode=ro", uri=True)) as backup:
            sound = backup.execute("PRAGMA integrity_check").fetchone()[0]
            backup.execute("SELECT count(*) FROM log").fetchone()
            if sound != "ok":
                raise StoreError(f"{source} is damaged: {sound}")
            with replacing(path, mode=OWNER_ONLY) as part:
                with closing(sqlite3.connect(part)) as copy:
                    backup.backup(copy)
                    # Agents refuse terms below the highest they have seen, which the copy knows nothing of.
                    copy.execute("UPDATE meta SET value = CAST(value AS INTEGER) + ? WHERE key = 'term'", (_TERMS,))
                    copy.execute(f"UPDATE meta SET {CRC} = NULL WHERE key = 'term'")  # set at the next start
                    copy.commit()
                # Keep an old store, with the files next to it, as `<path>.old`
                if path.exists():
                    with closing(sqlite3.connect(path)) as old:
                        old.execute("PRAGMA wal_checkpoint(TRUNCATE)")
                    os.replace(path, path.with_name(path.name + ".old"))
                for extra in ("-wal", "-shm"):
                    path.with_name(path.name + extra).unlink(missing_ok=True)
                forget_mark(path)
    except (OSError, sqlite3.Error) as error:
        raise StoreError(f"{source} is not a backup of a store: {error}") from error
    finally:
        unlock(lock)
