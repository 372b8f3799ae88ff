"""Numbers and times in sentences."""

from __future__ import annotations

import math
from typing import Any


def counted(number: int, what: str) -> str:
    """A number and its noun, which is in the plural unless there is one.

    >>> counted(1, "GPU"), counted(2, "GPU"), counted(1200, "job")
    ('1 GPU', '2 GPUs', '1,200 jobs')
    """
    return f"{number:,} {what}" + "s" * (number != 1)


def number(value: Any) -> float:
    """A number, or NaN for null and missing values."""
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else math.nan


def duration(seconds: Any) -> str:
    """Seconds for people.

    >>> [duration(s) for s in (0.234, 75, 7530, 200000, None)]
    ['0.2 s', '1 min 15 s', '2 h 5 min', '2 d 7 h', '-']
    """
    s = number(seconds)
    if not math.isfinite(s):
        return "-"
    if s < 60:
        return f"{s:.1f} s"
    whole = int(s)
    for unit, name, small, small_name in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= unit:
            return f"{whole // unit} {name} {whole % unit // small} {small_name}"
    return f"{s:.1f} s"
