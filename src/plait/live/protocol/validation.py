"""Limits of numbers and texts that come from jobs, and what replaces invalid ones."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from plait.core.errors import InputError

#: Seconds of an iteration or a stage, and iterations of a job, at most; seconds of an iteration at least.
LONGEST_S, MOST_STEPS, SHORTEST_S = 1e6, 1e15, 1e-9
#: Examples of a step at most.
MOST_EXAMPLES = 1e9
#: Bytes of a device at most; jobs that share a GPU that are named.
MOST_BYTES, MOST_NEIGHBOURS = 1e15, 64
#: Jobs that one switch serves at most.
MOST_LEASES = 4096
#: CPU cores of a node at most.
MOST_CORES = 1e6
#: Bytes of gradients that a process can have exchanged.
MOST_TRANSFERRED = 1e21
#: Characters of a reason at most.
LONGEST_REASON = 2000
#: The largest number of a process; seconds that anything can have lasted.
MOST_PID, MOST_SECONDS = 1 << 22, 1e10
#: Times that were read one after the other differ by so much at most, seconds.
CLOCKS_S = 1.0
#: Characters that a terminal or page would obey: control characters but tabs and ends of lines, and marks of direction.
_CONTROLS = re.compile(r"[\x01-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")
#: Whole numbers of a store have 64 bits.
MOST_STORED = (1 << 63) - 1
#: Stands for an impossible exit code.
NONSENSE = 255


def sane_text(text: str) -> str:
    r"""Characters that every store and every answer can hold and no terminal obeys; of a long text the ends.

    >>> sane_text("\x1b[31mred\x1b[0m\x07 and a\0b")
    '[31mred[0m and a b'
    """
    if len(text) <= LONGEST_REASON and text.isascii() and text.isprintable():
        return text  # nearly all of them
    if len(text) > LONGEST_REASON:
        half = (LONGEST_REASON - 60) // 2
        text = f"{text[:half]} ... (cut: {len(text)} characters) ... {text[-half:]}"
    return _CONTROLS.sub("", text.replace("\0", " ")).encode("utf-8", "replace").decode()


def sane_code(code: int) -> int:
    """An exit code that a process can end with (-n for signal n)."""
    return code if -128 <= code <= NONSENSE else NONSENSE


def check_entry(entry: Mapping[str, Any]) -> None:
    """Raise `InputError` for a note of the log with a number that JSON or a table of the store cannot hold.

    >>> check_entry({"type": "RankEnded", "epoch": 10**30})
    Traceback (most recent call last):
        ...
    plait.core.errors.InputError: RankEnded: epoch is 1000000000000000000000000000000, no number that can be stored
    """
    for name, value in entry.items():
        numbers = value if isinstance(value, (list, tuple)) else (value,)
        for number in numbers:
            if isinstance(number, (int, float)) and not -MOST_STORED <= number <= MOST_STORED:
                raise InputError(f"{entry['type']}: {name} is {number!r:.40}, no number that can be stored")


def between(value: float, low: float, high: float) -> bool:
    """Whether a number is in these bounds, which are finite."""
    return low <= value <= high  # NaN compares false


def number_or_none(value: float | None, most: float, least: float = 0.0) -> float | None:
    """The number if it is in these bounds, None otherwise."""
    return value if value is not None and least <= value <= most else None
