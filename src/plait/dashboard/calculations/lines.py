"""Protocol between a calculation and the service that started it: JSON in, a line of JSON for each message."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

from plait.core.errors import PlaitError


def say(**line: Any) -> None:
    """Print one line."""
    print(json.dumps(line, allow_nan=False), flush=True)


def note(done: int, of: int, words: str) -> None:
    """Report the progress."""
    say(progress=[done, of, words])


def answer(calculate: Callable[[Any], Any], failed: str) -> int:
    """Calculate from the input and print the result, or that it `failed` and why; return the exit code."""
    try:
        result = calculate(json.load(sys.stdin))
    except Exception as error:  # a policy's module may raise anything
        say(missing=f"{failed}: {error if isinstance(error, PlaitError) else f'{type(error).__name__}: {error}'}")
    else:
        say(result=result)
    return 0
