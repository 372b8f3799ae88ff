"""The errors that every package of plait raises on purpose, and their root.

    PlaitError
      InputError       the user's file, option or value is wrong           (exit code 2)
        TraceError     ... in a trace: names file, line and column
        MissingExtra   an optional dependency is not installed
        Conflict       the request contradicts the current state
      PlanError        a policy proposed an impossible plan                (exit code 4)
      SimulationError  a run cannot continue: stuck jobs, a broken invariant  (exit code 4)

Other packages define further errors next to the code that raises them. A message names the thing, the given value, and
what would work.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

#: Characters of a value that a message quotes at most, and of a whole message.
MOST_QUOTED, MOST_SAID = 200, 4000
#: A value in quotes, as `repr` writes it, that is too long; and one without, of which a path may be longer.
_LONG = re.compile(
    rf"""(?<!\w)(['"])(?:(?!\1)[^\\]|\\.){{{MOST_QUOTED},}}?\1(?!\w)"""
    rf"""|[^\s/]{{{MOST_QUOTED},}}|\S{{{MOST_SAID // 4},}}""",
    re.DOTALL,
)


def shortened(message: str) -> str:
    """A message whose values have at most `MOST_QUOTED` characters each, and that has `MOST_SAID` at most.

    >>> shortened("name is '" + "x" * 70_000 + "', needs a name")[190:]
    'xxxxxxxxxxxxxxxxxx... (70,002 characters), needs a name'
    """
    if len(message) <= MOST_QUOTED:
        return message
    message = _LONG.sub(lambda found: f"{found[0][:MOST_QUOTED]}... ({len(found[0]):,} characters)", message)
    half = MOST_SAID // 2
    if len(message) > MOST_SAID:
        message = f"{message[:half]} ... ({len(message) - 2 * half:,} characters left out) ... {message[-half:]}"
    return message


class PlaitError(Exception):
    """Base of all errors raised on purpose; `exit_code` is what the command line returns.

    Messages quote values that others gave: they are `shortened`, independent of the caller.
    """

    exit_code = 1

    def __init__(self, *details: object) -> None:
        super().__init__(*(shortened(detail) if isinstance(detail, str) else detail for detail in details))


class InputError(PlaitError):
    """Something the user gave is wrong."""

    exit_code = 2


class TraceError(InputError):
    """A trace file is wrong at a known place."""

    def __init__(
        self,
        problem: str,
        *,
        file: str,
        line: int | None = None,
        column: str | None = None,
        value: object = None,
        hint: str | None = None,
    ) -> None:
        self.problem, self.file, self.line, self.column = problem, file, line, column
        self.value, self.hint = value, hint
        where = file if line is None else f"{file}:{line}"
        text = f"{where}: " + (f"column {column!r}: " if column else "") + problem
        if value is not None:
            text += f" (got {value!r})"
        if hint:
            text += f"; {hint}"
        super().__init__(text)


class PlanError(PlaitError):
    """An impossible plan; the message names the policy, the job and the GPU."""

    exit_code = 4


class SimulationError(PlaitError):
    """The simulated run cannot continue, or broke one of its invariants."""

    exit_code = 4


class Conflict(InputError):
    """The request contradicts the current state, e.g. cancelling a job that has ended."""


class MissingExtra(InputError):
    """An optional dependency is needed; the message has the command to install it."""

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        super().__init__(f"{purpose} needs {package}; install it with: pip install 'plait[{extra}]'")


def suggest(name: str, known: Iterable[str], otherwise: str = "") -> str:
    """The tail of an 'unknown name' message; `otherwise`: what else would work.

    >>> suggest("tiresas-l", ["fifo", "tiresias-l"])
    "did you mean 'tiresias-l'?"
    >>> suggest("zzz", ["fifo", "srsf"], "name your own as module:Class")
    'known: fifo, srsf; or name your own as module:Class'
    """
    options = list(known)
    near = difflib.get_close_matches(name, options, n=1, cutoff=0.5)
    if near:
        return f"did you mean {near[0]!r}?" + (f" Otherwise {otherwise}" if otherwise else "")
    return "known: " + ", ".join(options) + (f"; or {otherwise}" if otherwise else "")
