"""Figures of one job over time, in bounded memory: where it is full, two intervals become one."""

from __future__ import annotations

import base64
import math
from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

#: Points of a series at most; seconds of an interval at first.
MOST_POINTS, FIRST_INTERVAL_S = 720, 5.0


@dataclass(frozen=True)
class Declared:
    """A series: its unit, what it is, its chart, and whether an interval has the `peak` or else the mean."""

    unit: str
    text: str
    chart: str
    peak: bool = False


SERIES = {
    "gpu_utilisation": Declared("share", "mean of its GPUs", "GPU utilisation"),
    "gpu_least": Declared("share", "the least busy of its GPUs", "GPU utilisation"),
    "gpu_memory_bytes": Declared("bytes", "GPU memory in use", "GPU memory", peak=True),
    "cpus": Declared("cores", "CPU cores in use", "CPU"),
    "memory_bytes": Declared("bytes", "resident memory", "Memory", peak=True),
    "read_bytes_s": Declared("bytes/s", "read", "Disk"),
    "written_bytes_s": Declared("bytes/s", "written", "Disk"),
    "gradient_bytes_s": Declared("bytes/s", "gradients exchanged, sum of ranks", "Network"),
    "iterations_s": Declared("1/s", "iterations a second", "Iterations"),
    "stage_storage_s": Declared("s", "storage", "Stages of an iteration"),
    "stage_cpu_s": Declared("s", "CPU", "Stages of an iteration"),
    "stage_gpu_s": Declared("s", "GPU", "Stages of an iteration"),
    "stage_network_s": Declared("s", "network", "Stages of an iteration"),
    "goodput": Declared("examples/s", "goodput", "Goodput"),
    "throughput": Declared("examples/s", "throughput", "Goodput"),
    "batch_size": Declared("examples", "batch size, all ranks", "Batch size"),
}


@dataclass
class _Open:
    """The interval that is being filled: weighted sum and weight, or the most with weight 1."""

    total: float = 0.0
    weight: float = 0.0

    def add(self, value: float, weight: float, *, peak: bool) -> None:
        if peak:
            self.total, self.weight = max(value, self.total) if self.weight else value, 1.0
        else:
            self.total, self.weight = self.total + value * weight, self.weight + weight

    @property
    def value(self) -> float:
        return self.total / self.weight if self.weight else math.nan


@dataclass
class JobSeries:
    """Figures of one job; interval i lasts from `from_s` + i x `interval_s`, and figures without a measurement are NaN.

    All series have the same intervals, and one without measurements takes no memory.
    """

    from_s: float
    interval_s: float = FIRST_INTERVAL_S
    most: int = MOST_POINTS
    _columns: dict[str, array[float]] = field(default_factory=dict)
    _length: int = 0
    _open: dict[str, _Open] = field(default_factory=dict)

    def add(self, at_s: float, values: Mapping[str, float]) -> None:
        """Take what was measured at a time; one before the interval that is open counts as of that one."""
        index = int((at_s - self.from_s) // self.interval_s)
        while index >= self.most:
            self._halve()
            index = int((at_s - self.from_s) // self.interval_s)
        if index > self._length:
            self._close()
            for column in self._columns.values():
                column.extend([math.nan] * (index - self._length))
            self._length = index
        for name, value in values.items():
            if math.isfinite(value):
                self._open.setdefault(name, _Open()).add(value, 1.0, peak=SERIES[name].peak)

    def values(self) -> dict[str, list[float]]:
        """All series, the interval that is open included; NaN where nothing is known."""
        out = {name: list(column) for name, column in self._columns.items()}
        for name in self._open:
            out.setdefault(name, [math.nan] * self._length)
        if self._open:
            for name, column in out.items():
                column.append(self._open[name].value if name in self._open else math.nan)
        return {name: out[name] for name in SERIES if name in out}

    def thin(self, points: int) -> None:
        """At most so many intervals from now on."""
        self.most = points
        while self._length + bool(self._open) > points:
            self._halve()

    def _close(self) -> None:
        """End the open interval."""
        for name in self._open:
            if name not in self._columns:
                self._columns[name] = array("f", [math.nan]) * self._length
        for name, column in self._columns.items():
            column.append(self._open[name].value if name in self._open else math.nan)
        self._length += 1
        self._open = {}

    def _halve(self) -> None:
        """Merge pairs of intervals. A last one without a partner becomes part of the one that is open."""
        weight = max(self.interval_s / FIRST_INTERVAL_S, 1.0)
        if self._length % 2:
            self._length -= 1
            for name, column in self._columns.items():
                if math.isfinite(last := column.pop()):
                    self._open.setdefault(name, _Open()).add(last, weight, peak=SERIES[name].peak)
        for name, column in self._columns.items():
            self._columns[name] = _pairs(column, peak=SERIES[name].peak)
        self._length //= 2
        self.interval_s *= 2

    def to_json(self) -> dict[str, Any]:
        """All of it, the open interval as if it were over."""
        columns = {
            name: base64.b64encode(array("f", column).tobytes()).decode("ascii")
            for name, column in self.values().items()
        }
        return {"from_s": self.from_s, "interval_s": self.interval_s, "columns": columns}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> JobSeries:
        """Read the values of `to_json`; raises ValueError, KeyError or TypeError for anything else."""
        found = cls(float(data["from_s"]), float(data["interval_s"]))
        if not (math.isfinite(found.from_s) and found.interval_s >= FIRST_INTERVAL_S):
            raise ValueError(f"a series from {found.from_s} in intervals of {found.interval_s} s")
        for name, text in data["columns"].items():
            column = array("f")
            column.frombytes(base64.b64decode(text, validate=True))
            if name in SERIES:
                found._columns[name] = column
        lengths = {len(column) for column in found._columns.values()}
        if len(lengths) > 1 or max(lengths, default=0) > found.most:
            raise ValueError(f"columns of {sorted(lengths)} points")
        found._length = max(lengths, default=0)
        return found


def _pairs(column: array[float], *, peak: bool) -> array[float]:
    """One value for every two of an even number, as far as known."""
    values = np.frombuffer(column, np.float32).reshape(-1, 2)
    first, second = values[:, 0], values[:, 1]
    with np.errstate(invalid="ignore"):
        both = np.maximum(first, second) if peak else (first + second) / 2
    merged = np.where(np.isnan(first), second, np.where(np.isnan(second), first, both))
    return array("f", merged.astype(np.float32).tobytes())
