"""Resource use of a job over time, for the page of the job."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from plait.core.words import in_unit, number

#: Points of a chart at most.
POINTS = 240


@dataclass(frozen=True)
class Row:
    """A series in words: its chart, what it is, and its least, mean, most and last value."""

    chart: str
    text: str
    values: tuple[str, ...]


def charts(usage: Mapping[str, Any]) -> dict[str, Any]:
    """Data of the charts: series as a list, since an order of names would be lost on the way."""
    return {"interval_s": usage["interval_s"], "series": list(usage["series"].values())}


def rows(usage: Mapping[str, Any]) -> list[Row]:
    """A row for each series of an answer of `GET /v1/jobs/{id}/usage`.

    >>> one = {"unit": "share", "text": "mean", "chart": "GPU", "values": [0.5, None, 1.0]}
    >>> rows({"series": {"gpu_utilisation": one}})[0].values
    ('50 %', '75 %', '100 %', '100 %')
    """
    found = []
    for one in usage["series"].values():
        known = [value for value in map(number, one["values"]) if not math.isnan(value)]
        if known:
            figures = min(known), math.fsum(known) / len(known), max(known), known[-1]
            found.append(Row(one["chart"], one["text"], tuple(in_unit(value, one["unit"]) for value in figures)))
    return found
