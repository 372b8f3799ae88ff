"""The instructions of a rehearsed run, from the command to the process that records."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

#: Names the file with the instructions, in the environment of a rehearsed process.
VARIABLE = "PLAIT_REHEARSAL"


@dataclass(frozen=True)
class Order:
    """What a process records, and where it stops.

    `folder` receives `trace-RANK.jsonl` and the copies of files that the script overwrites. After step `stop_at`
    (0: never) the process sends itself SIGTERM; after step `end_at` it exits.
    """

    folder: str
    stop_at: int
    end_at: int

    def write(self, path: Path) -> dict[str, str]:
        """Write the file; returns the environment of the process."""
        path.write_text(json.dumps(asdict(self)))
        return {VARIABLE: str(path)}

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> Order | None:
        """The instructions of this process; None if it is not rehearsed."""
        path = environ.get(VARIABLE)
        return cls(**json.loads(Path(path).read_text())) if path else None


def trace_of(folder: str | os.PathLike[str], rank: int) -> Path:
    """The file of what a rank recorded."""
    return Path(folder) / f"trace-{rank}.jsonl"
