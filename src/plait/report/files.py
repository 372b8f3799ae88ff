"""Text files of a report: their folder is made, and they appear whole or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from plait.core.files import replacing


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
