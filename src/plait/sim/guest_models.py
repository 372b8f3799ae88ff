"""How the jobs of a model behave on a shared GPU, from a table of models, and what memory does to their speed.

The memory law of `plait.sharing` is not run here: `use` is where it settles. Guests have their persistent bytes; what
is left goes to them in the order of what each byte brings, and a guest's missing bytes are in host memory. A burst of a
host takes from its guests what it needs, for as long as the law holds it back; it costs the host one slow step and
every guest of the GPU a shrink and a growth. Start at `GuestModels`.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import numpy as np

from plait.core.arrays import BoolArray, FloatArray, IntArray
from plait.core.errors import InputError, TraceError
from plait.core.jobs import JobBatch
from plait.core.plan import Groups
from plait.sharing.macro_model import NOISE
from plait.sharing.memory_law import (
    CONTEXT_BYTES,
    FOOTPRINT_STEPS,
    HEADROOM,
    HOLD_S,
    LEAST_HEADROOM_BYTES,
    MARGIN_BYTES,
)

#: Points (part of the memory, relative speed) of the two models whose loss is published (AntMan, section 3): with 90 %
#: less memory SR loses 25 % of its speed, with 10 % less ResNet-50 loses 60 %.
CURVES: Mapping[str, tuple[tuple[float, float], ...]] = {"sr": ((0.1, 0.75),), "resnet": ((0.9, 0.4),)}
#: The model of a table that stands for all that it does not name.
ANY = "*"
#: What a shrink and a growth take, seconds (AntMan, section 5: 17 and 115 ms for ResNet-50).
SHRINK_S, GROW_S = 0.017, 0.115
#: How much longer a step takes with all of its memory on the host; that of the micro model.
SPILL_COST = 4.0


@dataclass(frozen=True, slots=True)
class GuestModel:
    """How a job of a model behaves on a shared GPU.

    quantum_s         GPU work that it starts without a look at its share, seconds; as a guest
    gaps              times in a step that it waits for the GPU; as a host
    noise             coefficient of variation of its steps; as a host
    memory_bytes      the most it takes of a GPU when nobody limits it, where the job does not say it; 0: unknown
    persistent_bytes  the part of that kept from step to step; with less it cannot run
    curve             points (part of its memory, relative speed), growing; straight lines between them, from (0, 0)
                      to (1, 1)
    burst_every_s     seconds of running between two bursts, steps in which it takes `burst_bytes` more; infinite: none

    Raises `InputError` for invalid values.
    """

    quantum_s: float = 0.002
    gaps: int = 1
    noise: float = NOISE
    memory_bytes: float = 0.0
    persistent_bytes: float = 0.0
    curve: tuple[tuple[float, float], ...] = CURVES["resnet"]
    burst_every_s: float = math.inf
    burst_bytes: float = 0.0

    def __post_init__(self) -> None:
        if not (0 < self.quantum_s < math.inf and self.gaps >= 1):
            raise InputError(f"quantum_s must be > 0 and gaps >= 1, got {self.quantum_s:g} and {self.gaps}")
        if not 0 <= self.noise < math.inf:
            raise InputError(f"noise must be a number >= 0, got {self.noise:g}")
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
        """Read a CSV of the column `model` and any of `_COLUMNS`.

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
    "noise": ("noise", 1),
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


# -- memory ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Use:
    """By group: bytes that it has of each of its GPUs, bytes in host memory, relative speed and slowdown by bursts.

    `slower` is >= 1: of a host the slow steps, of a guest the time of shrinks, growths and of less memory in between.
    """

    granted_bytes: FloatArray
    spill_bytes: FloatArray
    speed: FloatArray
    slower: FloatArray


def use(
    groups: Groups,
    guest: BoolArray,
    models: Sequence[GuestModel],
    memory_bytes: FloatArray,
    step_s: FloatArray,
    capacity_bytes: FloatArray,
) -> Use:
    """The memory of hosts and guests.

    groups          all that share GPUs; guest (groups,) flags
    models          of each group; memory_bytes (groups,) what it takes of a GPU when nobody limits it, 0 unknown
    step_s          of each group alone, seconds
    capacity_bytes  of each entry of `groups.gpus`; infinite where not known
    """
    n, first = len(groups), groups.first_gpu.tolist()
    granted, speed, slower = memory_bytes.copy(), np.ones(n), np.ones(n)
    owner = np.repeat(np.arange(n), groups.gpu_count())
    gpus, capacity = groups.gpus.tolist(), capacity_bytes.tolist()
    here: dict[int, list[int]] = {}
    for at, group in enumerate(owner.tolist()):
        here.setdefault(gpus[at], []).append(group)
    room = {gpu: capacity[at] for at, gpu in enumerate(gpus)}
    shared = {gpu: found for gpu, found in here.items() if any(guest[g] for g in found)}
    for gpu, found in shared.items():
        hosts, guests = [g for g in found if not guest[g]], [g for g in found if guest[g]]
        slack = room[gpu] - MARGIN_BYTES - len(found) * CONTEXT_BYTES - sum(_footprint(memory_bytes[g]) for g in hosts)
        for g, size in _given(guests, slack, models, memory_bytes).items():
            granted[g] = min(granted[g], size)  # a gang has what it has on its fullest GPU
    for g in np.flatnonzero(guest & (memory_bytes > 0)).tolist():
        speed[g] = models[g].speed(granted[g], memory_bytes[g])
    for gpu, found in shared.items():
        for host in found:
            model = models[host]
            if guest[host] or not model.burst_bytes or not model.burst_every_s < np.inf:
                continue
            spare = room[gpu] - MARGIN_BYTES - len(found) * CONTEXT_BYTES - float(granted[found].sum())
            missing = model.burst_bytes - spare
            if missing <= 0:
                continue
            lost_s = SPILL_COST * missing / (memory_bytes[host] + model.burst_bytes) * step_s[host]
            slower[host] = max(slower[host], 1.0 + lost_s / model.burst_every_s)
            for g in found:
                if guest[g]:
                    held_s = min(max(HOLD_S, FOOTPRINT_STEPS * step_s[host]), model.burst_every_s)
                    slower[g] = max(slower[g], _after_burst(models[g], granted, memory_bytes, g, missing, found, guest,
                                                            held_s, model.burst_every_s, speed[g]))  # fmt: skip
    spill = np.where(guest, np.maximum(memory_bytes - granted, 0.0), 0.0)
    assert first[-1] == len(gpus)
    return Use(granted, spill, speed, slower)


def _footprint(memory_bytes: float) -> float:
    """What the law keeps for a host."""
    return memory_bytes + max(HEADROOM * memory_bytes, LEAST_HEADROOM_BYTES) if memory_bytes else 0.0


def _given(
    guests: list[int], slack: float, models: Sequence[GuestModel], memory_bytes: FloatArray
) -> dict[int, float]:  # fmt: skip
    """What each guest of a GPU gets of its slack: persistent bytes in their order, the rest where it brings most."""
    out = dict.fromkeys(guests, 0.0)
    for g in guests:
        if models[g].persistent_bytes <= slack:
            out[g] = models[g].persistent_bytes
            slack -= out[g]
    worth = {g: (1.0 - models[g].speed(out[g], memory_bytes[g])) / (memory_bytes[g] - out[g])
             for g in guests if memory_bytes[g] > out[g] >= models[g].persistent_bytes}  # fmt: skip
    for g in sorted(worth, key=lambda g: -worth[g]):
        more = min(memory_bytes[g] - out[g], max(slack, 0.0))
        out[g] += more
        slack -= more
    return out


def _after_burst(
    model: GuestModel,
    granted: FloatArray,
    memory_bytes: FloatArray,
    g: int,
    missing: float,
    found: list[int],
    guest: BoolArray,
    held_s: float,
    every_s: float,
    speed: float,
) -> float:
    """How much longer a guest takes for its shrinks, growths, and for the memory that a burst keeps from it."""
    theirs = sum(granted[other] for other in found if guest[other])
    if not theirs or not speed:
        return 1.0
    left = granted[g] - min(missing, theirs) * granted[g] / theirs
    low = model.speed(left, memory_bytes[g]) if left >= model.persistent_bytes else 0.0
    done_s = (every_s - held_s) * speed + held_s * low - (SHRINK_S + GROW_S) * speed
    return every_s * speed / max(done_s, 1e-3 * every_s * speed)
