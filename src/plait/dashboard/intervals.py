"""Intervals of forecasts as small drawings: a wide band for four in five, a narrow one for one in two, a middle."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

#: Width of a drawing; what never comes lies at its right end.
WIDTH = 240.0


@dataclass(frozen=True)
class Band:
    """Positions from the left: of the wide band, of the narrow one, and of the middle."""

    wide: tuple[float, float]
    half: tuple[float, float]
    middle: float


def horizon_s(times: Iterable[Mapping[str, Any] | None]) -> float:
    """The latest of these moments, seconds from now; at least one second.

    >>> horizon_s([{"middle_s": 5.0, "half_s": [4.0, 6.0], "wide_s": [1.0, None]}, None])
    6.0
    """
    said: list[float] = [
        s for one in times if one for s in (one["middle_s"], *one["half_s"], *one["wide_s"]) if s is not None
    ]
    return max([1.0, *said])


def band(times: Mapping[str, Any], most_s: float) -> Band:
    """Where the intervals of a start or an end lie if the right end is `most_s` seconds from now.

    >>> band({"middle_s": 5.0, "half_s": [4.0, 6.0], "wide_s": [0.0, None]}, 10.0)
    Band(wide=(0.0, 240.0), half=(96.0, 144.0), middle=120.0)
    """

    def at(s: float | None) -> float:
        return WIDTH if s is None else round(min(s / most_s, 1.0) * WIDTH, 1)

    def both(ends: Sequence[float | None]) -> tuple[float, float]:
        return at(ends[0]), at(ends[1])

    return Band(both(times["wide_s"]), both(times["half_s"]), at(times["middle_s"]))
