"""Numbers and times in sentences."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from typing import Any

#: Between a reason and the lines of the log that it quotes.
QUOTED = "; last lines of the log: "
_BINARY = ("B", "KiB", "MiB", "GiB", "TiB")


def counted(number: int, what: str) -> str:
    """A number and its noun, which is in the plural unless there is one.

    >>> counted(1, "GPU"), counted(2, "GPU"), counted(1200, "job")
    ('1 GPU', '2 GPUs', '1,200 jobs')
    """
    return f"{number:,} {what}" + "s" * (number != 1)


def noted(reason: str, note: str) -> str:
    """A reason with a note behind its cause, before the lines of the log that it quotes.

    >>> noted("KeyError: 'a' (exit code 1); last lines of the log: x | KeyError: 'a'", "not retried")
    "KeyError: 'a' (exit code 1); not retried; last lines of the log: x | KeyError: 'a'"
    """
    head, quoted, lines = reason.partition(QUOTED)
    return f"{head}; {note}{quoted}{lines}"


#: Characters of a command line that are stored and shown.
COMMAND_CHARS = 200


def command_line(command: Sequence[str]) -> str:
    """A command as one line for storage and display, cut to `COMMAND_CHARS`; `arguments` takes it apart."""
    return shlex.join(command)[:COMMAND_CHARS]


def arguments(line: str) -> list[str]:
    """A command line as `shlex.join` writes it, taken apart again; one cut inside quotes, at its spaces.

    >>> arguments("python 'my train.py' -x"), arguments("python 'my tr")
    (['python', 'my train.py', '-x'], ['python', "'my", 'tr'])
    """
    if not any(mark in line for mark in "'\"\\"):
        return line.split()  # long lists have thousands of lines
    try:
        return shlex.split(line)
    except ValueError:
        return line.split()


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


def gpu_hours(hours: Any) -> str:
    """GPU-hours with two decimals, so that the values of a column compare.

    >>> gpu_hours(1234.567), gpu_hours(0.000853), gpu_hours(0), gpu_hours(None)
    ('1,234.57', '< 0.01', '0', '-')
    """
    value = number(hours)
    return "-" if math.isnan(value) else "0" if value == 0 else f"{value:,.2f}" if value >= 0.005 else "< 0.01"


def in_unit(value: Any, unit: str) -> str:
    """A value with its unit, short; units are share (0 to 1), bytes, bytes/s, s, and others, which are left out.

    >>> in_unit(0.256, "share"), in_unit(3 * 2**30, "bytes"), in_unit(0.0123, "s"), in_unit(float("nan"), "s")
    ('26 %', '3.0 GiB', '12.3 ms', '-')
    """
    value = number(value)
    if not math.isfinite(value):
        return "-"
    if unit == "share":
        return f"{100 * value:.0f} %"
    if unit.startswith("bytes"):
        power = min(int(math.log(value, 1024)), len(_BINARY) - 1) if value >= 1 else 0
        return f"{value / 1024**power:.{1 if power else 0}f} {_BINARY[power]}" + unit.removeprefix("bytes")
    if unit == "s":
        return f"{1000 * value:.3g} ms" if value < 1 else f"{value:.3g} s"
    return f"{value:.4g}"
