"""Reading parts of a log that is being written and turned over.

Offsets count bytes since the process started, over all files of its log. `log.json` has by inode where each file
begins; it names a new file before names change, so files opened first and looked up afterwards are never mixed up.
"""

from __future__ import annotations

import codecs
import os
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from plait.live.agent.processes.runner import FIRST_LOG, NEWEST_LOGS
from plait.live.system.accounts import in_name_of, job_folder
from plait.live.system.procs import open_plain, read_json

MOST_BYTES = 1 << 20
#: Replaces the part that a log no longer has.
DROPPED = "[plait: {count:,} bytes of this log were dropped here; `plait up --log-mb` sets how much is kept]\n"


@dataclass(frozen=True)
class LogPiece:
    """A piece of a log: text, where it begins, where the next piece begins, and the size of the whole log."""

    text: str
    offset: int
    next: int
    size: int


def read_part(folder: Path, offset: int, limit: int) -> LogPiece:
    """At most `limit` bytes from `offset` (negative: that many before the end).

    Where bytes were dropped the piece is a line about that, and the next piece begins after them. A character that is
    cut by the end of the piece is left to the next one. Raises FileNotFoundError if there is no log.
    """
    with in_name_of(job_folder(folder)), ExitStack() as stack:
        files = _open_all(folder, stack)
        index = read_json(folder / "log.json") or {}
        pieces: dict[int, tuple[BinaryIO, int]] = {}
        for file in files:
            status = os.fstat(file.fileno())
            start = index.get(str(status.st_ino))
            if isinstance(start, int) and 0 <= start < 1 << 60:
                pieces[start] = (file, status.st_size)
        if not pieces:
            raise FileNotFoundError(f"no log in {folder}; plait explain has the reason")
        last = max(pieces)
        size = last + pieces[last][1]
        at = min(max(offset if offset >= 0 else size + offset, 0), size)
        dropped_from = max((start + length for start, (_, length) in pieces.items() if start + length <= at), default=0)
        kept_from = min((start for start, (_, length) in pieces.items() if start + length > at), default=size)
        if kept_from > at:
            return LogPiece(DROPPED.format(count=kept_from - dropped_from), at, kept_from, size)
        data = b""
        limit = max(1, min(limit, MOST_BYTES))
        for start in sorted(pieces):
            file, length = pieces[start]
            if start + length > at + len(data) >= start and len(data) < limit:
                file.seek(at + len(data) - start)
                data += file.read(min(limit - len(data), start + length - at - len(data)))
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    text = decoder.decode(data)
    left = len(decoder.getstate()[0])
    if left and (left == len(data) or at + len(data) >= size):  # alone, or the end of what there is so far
        text, left = text + decoder.decode(b"", final=True), 0
    return LogPiece(text, at, at + len(data) - left, size)


def _open_all(folder: Path, stack: ExitStack) -> list[BinaryIO]:
    files: list[BinaryIO] = []
    numbered = (f"out.log.{number}" for number in range(1, NEWEST_LOGS + 2))  # older runners kept one more
    for name in ("out.log", *numbered, FIRST_LOG, "out.log.new"):
        try:
            files.append(stack.enter_context(open_plain(folder / name)))
        except OSError:
            continue
    return files
