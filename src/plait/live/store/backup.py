"""Put a backup of a store in its place."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path

import sqlalchemy as sa

from plait.core.files import OWNER_ONLY, replacing
from plait.live.store.checksums import CRC
from plait.live.store.connecting import lock_file, unlock
from plait.live.store.errors import StoreError
from plait.live.store.identity import forget_mark

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
