"""Write messages of plait about a process to plait.log; the job's own log has only what the job wrote."""

from __future__ import annotations

import contextlib
import os

#: In the folder of the process, beside its log.
FILE = "plait.log"


def note(folder: str | os.PathLike[str] | None, text: str) -> None:
    """Append the line; does nothing without a folder, or if writing fails."""
    if folder:
        with contextlib.suppress(OSError), open(os.path.join(folder, FILE), "a", encoding="utf-8") as file:
            file.write(text + "\n")
