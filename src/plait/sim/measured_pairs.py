"""True costs of sharing by pairs of jobs, from measurements of real pairs on one GPU."""

from __future__ import annotations

import csv
import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from plait.core.errors import TraceError

#: A model runs as one of so many measured jobs, the closest ones in utilisation.
CLOSEST = 5


class MeasuredRun(NamedTuple):
    """A measured job: its model and how it was run, as text."""

    model: str
    run: tuple[str, ...]


@dataclass(frozen=True)
class MeasuredPairs:
    """Slow-down of each job next to another one, as measured by the authors of Lucid (ASPLOS'23).

    `busy`: the part of the time in which each measured job uses its GPU alone; `slower[a, b]`: the logarithm of how
    much longer iterations of a take next to b than alone; `mean` of all. A job of a trace costs as much as a measured
    job: its model is not among them, so one of the `CLOSEST` in utilisation is drawn by the name of its model. Pairs
    without a measurement have the mean of their two models, or of all pairs. An assumption: the measurements are of
    one GPU, and not in lock step.
    """

    busy: Mapping[MeasuredRun, float]
    slower: Mapping[tuple[MeasuredRun, MeasuredRun], float]
    by_model: Mapping[tuple[str, str], float]
    mean: float

    @classmethod
    def read(cls, path: str | Path) -> MeasuredPairs:
        """Read `colocate.csv` and, next to it, `single_data.csv`. Raises `TraceError` with file and line."""
        busy = {
            _job(row): _number(row, "gpu_util", at) / 100 for row, at in _rows(Path(path).with_name("single_data.csv"))
        }
        slower: dict[tuple[MeasuredRun, MeasuredRun], float] = {}
        for row, at in _rows(Path(path)):
            one, other = _job(row, "1"), _job(row, "2")
            slower[one, other] = -math.log(_number(row, "speed1", at))
            slower[other, one] = -math.log(_number(row, "speed2", at))
        models: dict[tuple[str, str], list[float]] = {}
        for (one, other), log in slower.items():
            models.setdefault((one.model, other.model), []).append(log)
        by_model = {pair: math.fsum(logs) / len(logs) for pair, logs in models.items()}
        return cls(busy, slower, by_model, math.fsum(slower.values()) / len(slower))

    def __hash__(self) -> int:
        return id(self)

    @lru_cache(maxsize=4096)  # noqa: B019 - one object a world
    def job(self, model: str, busy: float) -> MeasuredRun:
        """The measured job as which a model runs that uses its GPUs for this part of the time."""
        close = sorted(self.busy, key=lambda one: (abs(self.busy[one] - busy), one))[:CLOSEST]
        return close[hashlib.blake2b(model.encode(), digest_size=8).digest()[0] % len(close)]

    def log(self, one: tuple[str, float], mate: tuple[str, float]) -> float:
        """How much longer iterations of `one` take next to `mate`, as a logarithm; both as (model, busy)."""
        a, b = self.job(*one), self.job(*mate)
        found = self.slower.get((a, b))
        return self.by_model.get((a.model, b.model), self.mean) if found is None else found


def _rows(path: Path) -> list[tuple[dict[str, Any], tuple[str, int]]]:
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            found = [(row, (str(path), reader.line_num)) for row in reader]
    except OSError as error:
        raise TraceError(f"cannot read measured pairs: {error.strerror}", file=str(path)) from error
    if not found:
        raise TraceError("no measurements", file=str(path))
    return found


def _job(row: Mapping[str, Any], number: str = "") -> MeasuredRun:
    fields = tuple(str(row.get(f"{name}{number}", "")) for name in ("dataset", "batchsize", "amp"))
    return MeasuredRun(str(row.get(f"model{number}", "")), fields)


def _number(row: Mapping[str, Any], column: str, at: tuple[str, int]) -> float:
    try:
        value = float(row.get(column) or "")
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value > 0):
        raise TraceError("not a number > 0", file=at[0], line=at[1], column=column, value=row.get(column))
    return value
