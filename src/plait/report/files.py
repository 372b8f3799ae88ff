"""Files appear whole or not at all: written beside the target, then renamed."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO


@contextmanager
def whole_file(path: str | Path) -> Iterator[TextIO]:
    """A text file to write; takes the place of `path` when the block ends, and leaves nothing if it fails."""
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=".part")
    try:
        os.fchmod(handle, 0o644)
        with open(handle, "w", encoding="utf-8", newline="") as file:
            yield file
        os.replace(name, target)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(name)
        raise


def write_text(path: str | Path, text: str) -> None:
    """Write a whole text file."""
    with whole_file(path) as file:
        file.write(text)
