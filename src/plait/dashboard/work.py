"""Long calculations for pages: in a process of low priority each, which reports progress and ends with its answer.

Neither decisions nor other pages wait for one. A module that runs there reads JSON from its input, and prints lines:
`{"progress": [done, of, "words"]}` as often as it wants, then `{"result": ...}` or `{"missing": "why"}`.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

#: Calculations that run at a time, and that are remembered.
AT_ONCE, MOST = 2, 20
#: Bytes of a line that a calculation prints, at most.
LONGEST = 64 * 2**20
_NO_ANSWER = "the calculation ended without an answer"

Progress: TypeAlias = tuple[int, int, str]
Note: TypeAlias = Callable[[Progress], None]
Ask: TypeAlias = Callable[[Note], Awaitable[Any]]


@dataclass
class Work:
    """One calculation: its progress and its result; `missing` has the reason of a failure."""

    begun_s: float
    progress: Progress = (0, 0, "waiting to begin")
    result: Any = None
    missing: str = ""
    task: asyncio.Future[None] | None = field(default=None, repr=False)

    @property
    def over(self) -> bool:
        """Whether there is a result or a reason."""
        return self.result is not None or bool(self.missing)


class Works:
    """The calculations of one service, by key: a running or recent one is shared by its callers."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """None yet. `clock`: seconds."""
        self._clock = clock
        self._known: OrderedDict[tuple[Any, ...], Work] = OrderedDict()
        self._free = asyncio.Semaphore(AT_ONCE)

    def find(self, key: tuple[Any, ...], kept_s: float) -> Work | None:
        """The calculation of this key; None if none runs and the last one is older than `kept_s` seconds."""
        found = self._known.get(key)
        return None if found is None or (found.over and self._clock() - found.begun_s > kept_s) else found

    def begin(self, key: tuple[Any, ...], module: str, ask: Ask, limit_s: float) -> Work:
        """Start `module` on the answer of `ask`, which may report progress; it is ended after `limit_s` seconds."""
        work = self._known[key] = Work(self._clock())
        self._known.move_to_end(key)
        for old in [k for k, one in self._known.items() if one.over][: max(len(self._known) - MOST, 0)]:
            del self._known[old]
        work.task = asyncio.ensure_future(self._do(work, module, ask, limit_s))
        return work

    def age_s(self, work: Work) -> float:
        """Seconds since it began."""
        return self._clock() - work.begun_s

    async def _do(self, work: Work, module: str, ask: Ask, limit_s: float) -> None:
        def note(progress: Progress) -> None:
            work.progress = progress

        try:
            async with self._free:
                work.begun_s = self._clock()
                note((0, 0, "reading"))
                answer = await calculated(module, await ask(note), limit_s, note)
        except Exception as error:
            work.missing = str(error) or type(error).__name__
            return
        work.result = answer.get("result")
        if work.result is None:
            work.missing = str(answer.get("missing") or _NO_ANSWER)


async def calculated(module: str, given: Any, limit_s: float, note: Note = lambda progress: None) -> Mapping[str, Any]:
    """The last line that `python -m module` prints about `given`; `{"missing": why}` if there is none in time."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", module, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL, preexec_fn=_politely, limit=LONGEST,
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        async with asyncio.timeout(limit_s):
            text = await asyncio.to_thread(json.dumps, given)
            process.stdin.write(text.encode())
            process.stdin.close()
            async for line in process.stdout:
                said = json.loads(line)
                if not isinstance(said, dict):
                    raise ValueError(f"{said!r} is no object")
                if "progress" not in said:
                    found: dict[str, Any] = said
                    return found
                done, of, words = said["progress"]
                note((int(done), int(of), str(words)))
            return {"missing": f"the calculation ended with exit code {await process.wait()}"}
    except TimeoutError:
        return {"missing": f"the calculation took longer than {limit_s:g} s"}
    except (ValueError, ConnectionError):
        return {"missing": _NO_ANSWER}
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def _politely() -> None:
    """In the new process: let everything else go first."""
    os.nice(10)
