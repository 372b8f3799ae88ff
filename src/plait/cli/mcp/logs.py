"""Tools that read what a job wrote: the end of a log, any part of it, and lines that match a pattern."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any

from mcp.server.mcpserver.exceptions import ToolError
from pydantic import Field

from plait.cli.mcp.arguments import MOST_BYTES, PART_BYTES, Attempt, Job, Rank
from plait.cli.mcp.service import Asking, fields
from plait.cli.render.tables import plain_lines
from plait.live.client.client import Client

#: Bytes of a log that one search reads at most, and characters of a line that it looks at and returns.
SEARCHED_BYTES, LINE_CHARACTERS = 32_000_000, 2_000


@dataclass(frozen=True)
class Logs:
    """Tools that read logs. Offsets and sizes are bytes since the process started; terminal escapes are removed."""

    asking: Asking

    def read_log(
        self,
        job: Job,
        offset: Annotated[
            int | None,
            Field(description="Where to begin, bytes; `next` of an earlier answer goes on there. Default: the end."),
        ] = None,
        limit: Annotated[int, Field(description="Most bytes to return.", ge=1, le=MOST_BYTES)] = PART_BYTES,
        rank: Rank = 0,
        attempt: Attempt = None,
    ) -> dict[str, Any]:
        """Read what a job wrote: by default the last 16 KiB of its newest attempt.

        `next` is where the next part begins, `size` how much there is now. A job that never started has size 0.
        """
        with self.asking.service() as service:
            if offset is None:
                size = service.logs(job, rank=rank, limit=1, epoch=attempt).size
                offset = max(0, size - limit)
            part = service.logs(job, rank=rank, offset=max(0, offset), limit=limit, epoch=attempt)
        return {**fields(part), "text": plain_lines(part.text)}

    def search_log(
        self,
        job: Job,
        pattern: Annotated[str, Field(description="Regular expression (Python's).", min_length=1, max_length=500)],
        ignore_case: Annotated[bool, Field(description="Take upper and lower case as the same.")] = True,
        context: Annotated[int, Field(description="Lines to return before each match.", ge=0, le=20)] = 2,
        limit: Annotated[int, Field(description="Most matches to return: the newest ones.", ge=1, le=200)] = 20,
        offset: Annotated[int, Field(description="Where to begin, bytes.", ge=0)] = 0,
        rank: Rank = 0,
        attempt: Attempt = None,
    ) -> dict[str, Any]:
        """Search a log for lines that match a pattern: {matches: [{line, text, before}], found, next, size}.

        `line` counts from 1 at `offset`; `found` counts all matches, of which the newest are returned. One search reads
        at most 32 MB; if `next` is less than `size`, continue with `offset` = `next`.
        """
        try:
            wanted = re.compile(pattern, re.IGNORECASE if ignore_case else 0)
        except (re.error, OverflowError, RecursionError) as error:
            raise ToolError(f"pattern {pattern!r} is not a regular expression: {error}; \\ escapes a sign") from error
        matches: deque[dict[str, Any]] = deque(maxlen=limit)
        before: deque[str] = deque(maxlen=context)
        found, end = 0, {"next": offset, "size": 0}
        with self.asking.service() as service:
            for number, line in enumerate(_lines(service, job, rank, offset, attempt, end), start=1):
                if wanted.search(line):
                    found += 1
                    matches.append({"line": number, "text": line, "before": list(before)})
                before.append(line)
        return {"matches": list(matches), "found": found, **end}


def _lines(
    service: Client, job: str, rank: int, offset: int, attempt: int | None, end: dict[str, int]
) -> Iterator[str]:
    """Lines of a log from `offset` on; `end` gets where the reading ended, and the size of the log."""
    began, rest = offset, ""
    while True:
        part = service.logs(job, rank=rank, offset=offset, limit=1_000_000, epoch=attempt)
        attempt = attempt or part.epoch or None  # a new attempt that begins meanwhile has another log
        lines = (rest + part.text).split("\n")
        rest = lines.pop()[-LINE_CHARACTERS:]
        for line in lines:
            yield plain_lines(line[:LINE_CHARACTERS])
        over = part.next <= offset or part.next >= part.size or part.next - began >= SEARCHED_BYTES
        offset = part.next
        end |= {"next": offset, "size": part.size}
        if over:
            break
    if rest:
        yield plain_lines(rest)
