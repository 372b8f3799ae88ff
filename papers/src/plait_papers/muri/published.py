"""The numbers of the paper and its artifact that are known, as data with their provenance.

`data/published.csv` has values, `data/ratios.csv` baseline over Muri. Marks: P printed in the paper; S stored by
the authors in the artifact (plotting scripts, testbed logs); R reproduced by an independent implementation of the
artifact's simulator. `policy` is the setting, written as for `plait simulate`, whose run equals the value.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

MARKS = {
    "P": "printed in the paper",
    "S": "stored by the authors in the artifact",
    "R": "reproduced by an independent implementation of the artifact",
}


@dataclass(frozen=True, slots=True)
class Value:
    """One number: a cell of a figure or table, or (`figure` and `bar` empty) a run of the artifact."""

    figure: str
    trace: str
    bar: str
    metric: str
    policy: str
    value: float
    mark: str
    source: str


@dataclass(frozen=True, slots=True)
class Ratio:
    """`over` / `under` in a figure, from `low` to `high`; over all traces of the figure if `trace` is empty."""

    figure: str
    trace: str
    metric: str
    over: str
    under: str
    low: float
    high: float
    mark: str


def _rows(name: str) -> Iterator[dict[str, str]]:
    text = (files("plait_papers.muri") / "data" / name).read_text(encoding="utf-8")
    yield from csv.DictReader(text.splitlines())


@cache
def values() -> tuple[Value, ...]:
    """All values, cells of figures first."""
    return tuple(
        Value(**{**row, "value": float(row["value"])})  # type: ignore[arg-type]
        for row in _rows("published.csv")
    )


@cache
def ratios() -> tuple[Ratio, ...]:
    """All ratios that the paper states, as `ratios.csv` has them."""
    return tuple(
        Ratio(**{**row, "low": float(row["low"]), "high": float(row["high"])})  # type: ignore[arg-type]
        for row in _rows("ratios.csv")
    )


@cache
def _cells() -> dict[tuple[str, str, str, str], Value]:
    return {(v.figure, v.trace, v.bar, v.metric): v for v in values() if v.figure}


@cache
def _runs() -> dict[tuple[str, str, str], Value]:
    return {(v.trace, v.policy, v.metric): v for v in values() if not v.figure}


@cache
def _ratios() -> dict[tuple[str, str, str, str], Ratio]:
    return {(r.figure, r.trace, r.metric, r.over): r for r in ratios()}


def cell(figure: str, trace: str, bar: str, metric: str) -> Value | None:
    """The published value of `metric` for one `bar` of a `figure` on a `trace`; None where none is known.

    >>> cell("9", "trace3", "SRTF", "avg_jct_s").value
    193081.796024
    """
    return _cells().get((figure, trace, bar, metric))


def reference(trace: str, policy: str, metric: str) -> Value | None:
    """The artifact's value of `metric` for a run of `policy` on `trace`; None where it is not known.

    >>> reference("trace3", "muri-s", "avg_jct_s").value
    83242.464513
    """
    return _runs().get((trace, policy, metric))


def ratio(figure: str, trace: str, metric: str, over: str) -> Ratio | None:
    """The ratio of bar `over` to Muri for `metric` in `figure` on `trace`, else its range over traces, else None."""
    found = _ratios().get((figure, trace, metric, over))
    return found or _ratios().get((figure, "", metric, over))
