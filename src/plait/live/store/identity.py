"""Which files a store on SQLite is: noticed when they are removed or replaced, and never followed by an empty store.

SQLite continues to write to a file that was removed, so acknowledged writes would be lost. Next to the store `plait.db`
lies `plait.id`, which names it: where that exists and the store does not, or is another one, no service begins.
"""

import contextlib
import os
import sqlite3
from pathlib import Path
from typing import IO, Any

from plait.core.files import OWNER_ONLY, is_at_its_path, replace_file
from plait.live.store.errors import StoreError


class Identity:
    """The files of an open store: the database at `path` and its lock, None if it is not locked."""

    def __init__(self, path: Path, lock: IO[Any] | None) -> None:
        """Take the files as they are now."""
        self.path, self._lock, self._file = path, lock, _file_at(path)

    def check(self) -> None:
        """Raise `StoreError` if the database or its lock was removed or replaced since."""
        if _file_at(self.path) != self._file:
            raise StoreError(f"the store {self.path} was removed or replaced while it was in use")
        if self._lock is not None and not is_at_its_path(self._lock):
            raise StoreError(f"the lock of the store {self.path} was removed: another service may write to it")


def _file_at(path: Path) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _mark_of(path: Path) -> Path:
    return path.with_suffix(".id")


def refuse_missing(path: Path) -> None:
    """Raise `StoreError` if there was a store at `path` and none is there now."""
    mark, copies = _mark_of(path), _copies(path)
    if mark.exists() and (not path.exists() or not path.stat().st_size):
        raise StoreError(
            f"the store {path} is missing, and there was one ({mark}); put a copy in its place: plait restore "
            f"{_newest(copies)}, or begin with an empty one: rm {mark}{_listed(copies)}"
        )


def check_mark(path: Path, made_at: str) -> None:
    """Raise `StoreError` if the store at `path`, made at `made_at`, is another one than was there; else mark it."""
    mark, before, copies = _mark_of(path), _marked(path), _copies(path)
    if before and before != made_at:
        raise StoreError(
            f"the store {path} is another one than was there before ({mark}); put the right one in its place: plait "
            f"restore --replace {_newest(copies)}, or keep this one: rm {mark}{_listed(copies)}"
        )
    if not before:
        with contextlib.suppress(OSError):  # a full disk: at the next start
            replace_file(mark, made_at + "\n", mode=OWNER_ONLY)


def _marked(path: Path) -> str:
    """Which store was at `path` last; empty if that is not known."""
    try:
        return _mark_of(path).read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""


def trouble(path: Path) -> str:
    """Why no service begins with a store that was removed or replaced, and what to do; empty if it was neither.

    For readers: nothing is locked or written.
    """
    try:
        refuse_missing(path)
        if not _marked(path):
            return ""
        with contextlib.closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as database:
            (made_at,) = database.execute("SELECT value FROM meta WHERE key = 'made_at'").fetchone()
        check_mark(path, str(made_at))
    except StoreError as error:
        return str(error)
    except (sqlite3.Error, OSError, TypeError):  # a damaged one: its service names what is wrong with it
        return ""
    return ""


def forget_mark(path: Path) -> None:
    """Let the next start take whatever store is at `path`."""
    _mark_of(path).unlink(missing_ok=True)


def rescued(path: Path) -> Path:
    """A free name for the copy of a store that was removed while it was open."""
    return next(
        copy for number in range(1, 1000) if not (copy := path.with_name(f"{path.stem}-rescued-{number}.db")).exists()
    )


def _copies(path: Path) -> list[Path]:
    """Rescued copies, oldest first."""
    found = path.parent.glob(f"{path.stem}-rescued-*.db")
    return sorted(found, key=lambda copy: (len(copy.name), copy.name))


def _newest(copies: list[Path]) -> str:
    return str(copies[-1]) if copies else "COPY"


def _listed(copies: list[Path]) -> str:
    return f"; all rescued copies: {', '.join(map(str, copies))}" if len(copies) > 1 else ""
