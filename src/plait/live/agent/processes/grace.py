"""The grace in the stop.json of a job's folder. Runners read it, which import nothing that is installed."""

from __future__ import annotations

import math
from pathlib import Path

from plait.live.system import procs

_MOST_S = 1e6


def read_grace_s(path: Path, usual_s: float) -> float:
    """Seconds of grace in a stop.json."""
    return grace_of((procs.read_json(path) or {}).get("grace_s"), usual_s)


def grace_of(value: object, usual_s: float) -> float:
    """A grace that can be waited for.

    >>> grace_of(1e308, 60.0), grace_of("x", 60.0), grace_of(3, 60.0)
    (60.0, 60.0, 3.0)
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) <= _MOST_S:
        return usual_s
    return max(float(value), 0.0) if math.isfinite(value) else usual_s
