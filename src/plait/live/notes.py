"""Lines for people at a terminal, on standard error and never among the results; and dates."""

from __future__ import annotations

import sys
import time


def note(text: str) -> None:
    """Print a line for people, apart from the results."""
    print(f"plait: {text}", file=sys.stderr)


def time_of_day(date_s: float, now_s: float, *, seconds: bool = False) -> str:
    """A date (seconds since 1970) as the local time, with the day unless it is that of `now_s`.

    >>> time_of_day(3600.0 * 24 * 40, 3600.0 * 24 * 40 + 5)[2]
    ':'
    """
    then, now = time.localtime(date_s), time.localtime(now_s)
    day = "" if then[:3] == now[:3] else "%b %d " if then[0] == now[0] else "%Y-%m-%d "
    return time.strftime(day + ("%H:%M:%S" if seconds else "%H:%M"), then)
