"""How the jobs of a model behave on a shared GPU: from a table of models that a simulation reads."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import numpy as np

from plait.core.arrays import FloatArray, IntArray
from plait.core.errors import InputError, TraceError
from plait.core.jobs import JobBatch

#: Points (part of the memory, relative speed) of the two models whose loss is published (AntMan, section 3): with 90 %
#: less memory SR loses 25 % of its speed, with 10 % less ResNet-50 loses 60 %.
CURVES: Mapping[str, tuple[tuple[float, float], ...]] = {"sr": ((0.1, 0.75),), "resnet": ((0.9, 0.4),)}
#: The model of a table that stands for all that it does not name.
ANY = "*"


@dataclass(frozen=True, slots=True)
class GuestModel:
    """How a job of a model behaves on a shared GPU.

    quantum_s         GPU work that it starts without a look at its share, seconds; as a guest
    gaps              times in a step that it waits for the GPU; as a host
    memory_bytes      the most it takes of a GPU when nobody limits it, where the job does not say it; 0: unknown
    persistent_bytes  the part of that kept from step to step; with less it cannot run
    curve             points (part of its memory, relative speed), growing; straight lines between them, from (0, 0)
                      to (1, 1)
    burst_every_s     seconds of running between two bursts, steps in which it takes `burst_bytes` more; infinite: none

    Raises `InputError` for invalid values.
    """

    quantum_s: float = 0.002
    gaps: int = 1
    memory_bytes: float = 0.0
    persistent_bytes: float = 0.0
    curve: tuple[tuple[float, float], ...] = CURVES["resnet"]
    burst_every_s: float = math.inf
    burst_bytes: float = 0.0

    def __post_init__(self) -> None:
        """Check the values."""
        if not (0 < self.quantum_s < math.inf and self.gaps >= 1):
            raise InputError(f"quantum_s must be > 0 and gaps >= 1, got {self.quantum_s:g} and {self.gaps}")
        if not (self.burst_every_s > 0 and self.burst_bytes >= 0 and self.persistent_bytes >= 0):
            raise InputError("burst_every_s must be > 0, burst_bytes and persistent_bytes >= 0")
        if 0 < self.memory_bytes < self.persistent_bytes:
            raise InputError(
                f"its memory of {self.memory_bytes / 1e9:g} GB is less than the {self.persistent_bytes / 1e9:g} GB "
                "that are persistent; a job needs at least those to run"
            )
        parts, speeds = [part for part, _ in self.curve], [speed for _, speed in self.curve]
        inside = all(0 < value <= 1 for value in (*parts, *speeds))
        if not inside or parts != sorted(set(parts)) or speeds != sorted(speeds):
            raise InputError(f"a curve has growing parts and speeds over 0 and at most 1, got {self.curve}")

    def speed(self, granted_bytes: float, memory_bytes: float) -> float:
        """Relative speed, 0 to 1, with so much of `memory_bytes`; 0 with less than its persistent bytes."""
        if granted_bytes < self.persistent_bytes:
            return 0.0
        parts, speeds = zip((0.0, 0.0), *self.curve, (1.0, 1.0), strict=True)
        return float(np.interp(granted_bytes / memory_bytes, parts, speeds))


#: By job: its model, and what takes part in arithmetic over many jobs.
Columns = tuple[list[GuestModel], FloatArray, IntArray, FloatArray]


@dataclass(frozen=True)
class GuestModels:
    """`GuestModel`s by name of the model, sorted; `*` stands for all others."""

    rows: tuple[tuple[str, GuestModel], ...] = field(default=())

    @classmethod
    def read(cls, path: str | Path) -> GuestModels:
        """Read a CSV: `model`, and any of quantum_ms, gaps, memory_gb, persistent_gb, curve, burst_every_s, burst_gb.

        A curve is `sr`, `resnet`, or points as in `0.2=0.5/0.6=0.9`. Empty cells have the defaults. Raises `TraceError`
        naming file, line and column.
        """
        found: dict[str, GuestModel] = {}
        try:
            with open(path, newline="", encoding="utf-8-sig") as file:
                reader = csv.DictReader(file)
                names = reader.fieldnames or ()
                strange = next((name for name in names if name not in ("model", *_COLUMNS)), None)
                if "model" not in names or strange is not None:
                    problem = "missing column" if strange is None else "unknown column"
                    hint = f"it has the columns model, {', '.join(_COLUMNS)}; all but model may be left out"
                    raise TraceError(problem, file=str(path), line=1, column=strange or "model", hint=hint)
                for row in reader:
                    found[str(row["model"])] = _row(row, str(path), reader.line_num)
        except OSError as error:
            raise TraceError(f"cannot read the table of models: {error.strerror}", file=str(path)) from error
        return cls(tuple(sorted(found.items())))

    def with_memory(self, jobs: JobBatch) -> JobBatch:
        """The same jobs; those that ask for no GPU memory ask for that of their model.

        Raises `InputError` for a job that asks for less than its model keeps.
        """
        return jobs.replace(gpu_memory_bytes=self.columns(jobs)[3])

    def columns(self, truth: JobBatch) -> Columns:
        """The model of each job, its quantum in seconds, its gaps, and its memory in bytes (0: unknown)."""
        return _columns(self, truth)


@lru_cache(maxsize=4)
def _columns(models: GuestModels, truth: JobBatch) -> Columns:
    known = dict(models.rows)
    rest = known.get(ANY, GuestModel())
    each = [known.get(name, rest) for name in truth.column("model").tolist()]
    asked = truth.column("gpu_memory_bytes")
    memory, least = np.array([m.memory_bytes for m in each]), np.array([m.persistent_bytes for m in each])
    bad = (asked > 0) & (asked < least)
    if bad.any():
        job = int(np.argmax(bad))
        raise InputError(
            f"job {truth.id[job]!r} asks for {asked[job] / 1e9:g} GB of GPU memory, less than the {least[job] / 1e9:g} "
            f"GB that model {truth.column('model')[job]!r} keeps from step to step; raise the one or lower the other"
        )
    return (
        each,
        np.array([m.quantum_s for m in each]),
        np.array([m.gaps for m in each], dtype=np.int64),
        np.where(asked > 0, asked, memory),
    )


#: Columns of the file: field and unit.
_COLUMNS: Mapping[str, tuple[str, float]] = {
    "quantum_ms": ("quantum_s", 1e-3),
    "gaps": ("gaps", 1),
    "memory_gb": ("memory_bytes", 1e9),
    "persistent_gb": ("persistent_bytes", 1e9),
    "curve": ("curve", 1),
    "burst_every_s": ("burst_every_s", 1),
    "burst_gb": ("burst_bytes", 1e9),
}


def _row(row: Mapping[str, str | None], file: str, line: int) -> GuestModel:
    values: dict[str, object] = {}
    for column, (name, unit) in _COLUMNS.items():
        text = (row.get(column) or "").strip()
        if not text:
            continue
        try:
            value = read_curve(text) if column == "curve" else int(text) if column == "gaps" else float(text) * unit
        except ValueError:
            hint = "write sr, resnet or 0.2=0.5/0.6=0.9" if column == "curve" else "write a number"
            raise TraceError("cannot be read", file=file, line=line, column=column, value=text, hint=hint) from None
        values[name] = value
    try:
        return GuestModel(**values)  # type: ignore[arg-type]
    except InputError as error:
        raise TraceError(f"model {row['model']}: {error}", file=file, line=line) from None


def read_curve(text: str) -> tuple[tuple[float, float], ...]:
    """The points of a curve by name, or as `part=speed/...`; `ValueError` if it is neither.

    >>> read_curve("0.2=0.5/0.6=0.9")
    ((0.2, 0.5), (0.6, 0.9))
    """
    if text in CURVES:
        return CURVES[text]
    pairs = [point.partition("=") for point in text.split("/")]
    return tuple((float(part), float(speed)) for part, _, speed in pairs)
