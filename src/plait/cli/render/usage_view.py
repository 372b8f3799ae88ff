"""Use of a job over time, as lines of text: a small chart a series."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from plait.core.words import duration, in_unit, number

if TYPE_CHECKING:
    from plait.live.api.costs import UsageOfJob

#: Characters of a chart.
WIDTH = 48
_BARS = "▁▂▃▄▅▆▇█"


def rows(usage: UsageOfJob) -> list[list[object]]:
    """A row a series: its chart, name, chart of characters, and its least, mean, most and last value."""
    out: list[list[object]] = []
    for one in usage.series.values():
        values = [number(value) for value in one.values]
        known = [value for value in values if not math.isnan(value)]
        if known:
            figures = (min(known), math.fsum(known) / len(known), max(known), known[-1])
            out.append([one.chart, one.text, sparkline(values), *(in_unit(value, one.unit) for value in figures)])
    return out


def rank_rows(usage: UsageOfJob) -> list[list[object]]:
    """A row a process that runs now."""
    units = {"gpu_utilisation": "share", "gpu_memory_bytes": "bytes", "cpus": "cores", "memory_bytes": "bytes"}
    units |= {"read_bytes_s": "bytes/s", "written_bytes_s": "bytes/s"}
    return [
        [one.rank, one.node, one.gpu, *(in_unit(number(getattr(one, name)), unit) for name, unit in units.items())]
        for one in usage.ranks
    ]


def headline(usage: UsageOfJob) -> str:
    """For how long it was measured, and how much of its GPUs it held idle."""
    if not usage.series:
        return "nothing has been measured yet; a job that runs is measured every 5 s"
    points = max(len(one.values) for one in usage.series.values())
    text = f"over {duration(points * usage.interval_s)}, one point every {duration(usage.interval_s)}"
    if usage.known_gpu_s > 0:
        idle, known = usage.idle_gpu_s, usage.known_gpu_s
        text += f"; of {known / 3600:.3g} GPU-hours measured {100 * idle / known:.1f} % idle (less than 5 % busy)"
    return text


def sparkline(values: Sequence[float], width: int = WIDTH) -> str:
    """Values as bars from 0 to the largest; a blank where nothing is known.

    >>> sparkline([0.0, 1.0, float("nan"), 7.0])
    '▁▂ █'
    """
    if len(values) > width:
        cuts = [round(i * len(values) / width) for i in range(width + 1)]
        values = [_mean(values[a:b]) for a, b in pairwise(cuts)]
    most = max((value for value in values if not math.isnan(value)), default=0.0)
    scale = (len(_BARS) - 1) / most if most > 0 else 0.0
    return "".join(" " if math.isnan(value) else _BARS[round(max(value, 0.0) * scale)] for value in values)


def _mean(values: Sequence[float]) -> float:
    known = [value for value in values if not math.isnan(value)]
    return math.fsum(known) / len(known) if known else math.nan
