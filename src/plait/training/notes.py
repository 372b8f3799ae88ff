"""What plait has to say about a process, in a file of its own: the job's log has what the job wrote."""

from __future__ import annotations

import contextlib
import os

#: In the folder of the process, beside its log.
FILE = "plait.log"


def note(folder: str | os.PathLike[str] | None, text: str) -> None:
    """Add a line; nothing where there is no folder, or the disk refuses."""
    if folder:
        with contextlib.suppress(OSError), open(os.path.join(folder, FILE), "a", encoding="utf-8") as file:
            file.write(text + "\n")
