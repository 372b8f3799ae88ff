"""Files that appear whole or not at all: written next to their target, then renamed. Start at `replace_file`.

Exempt are files that appear under several conditions at once: the outputs of a command, which appear together, a log
that is turned over, and the file with the end of a job, whose room on the disk is taken beforehand.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, TextIO

#: Mode of a file for its owner alone, and of a file that only the umask restricts.
OWNER_ONLY, SHARED = 0o600, 0o666


def replace_file(
    path: str | os.PathLike[str], data: str | bytes | bytearray, *, mode: int = SHARED, durable: bool = False
) -> None:
    """Replace a file as a whole, or create it: a reader sees the old content or the new one.

    Text is encoded as UTF-8. `mode` is that of the new file, less the umask. With `durable` content and name are on the
    disk when this returns. Raises `OSError`, and then leaves the old file and nothing else.
    """
    with replacing(path, mode=mode, durable=durable) as part, open(part, "wb") as file:
        file.write(data.encode() if isinstance(data, str) else data)


def create_file(
    path: str | os.PathLike[str], data: str | bytes | bytearray, *, mode: int = SHARED, durable: bool = False
) -> bool:
    """Create a file as a whole, unless it is there; returns whether this call has.

    Of several writers at once one succeeds, and no reader sees a part of it. Arguments and errors as for
    `replace_file`.
    """
    target = Path(path)
    part = _new_beside(target, mode)
    try:
        with open(part, "wb") as file:
            file.write(data.encode() if isinstance(data, str) else data)
        if durable:
            flush_to_disk(part)
        os.link(part, target)
    except FileExistsError:
        return False
    finally:
        with suppress(OSError):
            part.unlink()
    if durable:
        flush_to_disk(target.parent)
    return True


@contextmanager
def replacing(path: str | os.PathLike[str], *, mode: int = SHARED, durable: bool = False) -> Iterator[Path]:
    """An empty file next to `path` to write to; it replaces `path` when the block ends, or goes if it fails.

    Arguments and errors as for `replace_file`. Writers of the same path do not disturb each other.
    """
    target = Path(path)
    part = _new_beside(target, mode)
    try:
        yield part
        if durable:
            flush_to_disk(part)
        os.replace(part, target)
    except BaseException:
        with suppress(OSError):
            part.unlink()
        raise
    if durable:
        flush_to_disk(target.parent)


def open_private(path: str, flags: int) -> int:
    """An opener for `open` that creates files for their owner only."""
    return os.open(path, flags, OWNER_ONLY)


def is_at_its_path(file: IO[Any]) -> bool:
    """Whether the file that is open is still the one at its path; False once that is removed or replaced."""
    try:
        at_path, opened = os.stat(file.name), os.fstat(file.fileno())
    except OSError:
        return False
    return (at_path.st_dev, at_path.st_ino) == (opened.st_dev, opened.st_ino)


def _new_beside(target: Path, mode: int) -> Path:
    """A new file in the folder of `target`, under a name that no other process or thread has."""
    for number in itertools.count():
        part = target.with_name(f".{target.name}.{os.getpid()}-{number}.part")
        try:
            os.close(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode))
        except FileExistsError:
            continue
        return part
    raise AssertionError("unreachable")


def flush_to_disk(path: str | os.PathLike[str]) -> None:
    """Return once the content of a file, or the names in a folder, are on the disk; raises `OSError`."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# -- Text files of a report: their folder is made, and they appear whole or not at all ---------------------


@contextmanager
def whole_file(path: str | Path) -> Iterator[TextIO]:
    """A text file to write; takes the place of `path` when the block ends, and leaves nothing if it fails."""
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    with replacing(target) as part, open(part, "w", encoding="utf-8", newline="") as file:
        yield file


def write_text(path: str | Path, text: str) -> None:
    with whole_file(path) as file:
        file.write(text)
