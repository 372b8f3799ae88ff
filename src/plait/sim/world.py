"""A world: a physics, what starts and stops cost, and everything else of a simulation that is not a policy.

A start, a stop or a move is charged once, to the job that starts, stops or moves. Worlds have names (`make_world`).
"""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from plait.core.arrays import FloatArray
from plait.core.errors import InputError, TraceError, suggest
from plait.core.jobs import JobBatch
from plait.core.jobs.batch import BATCH_COLUMNS
from plait.sim.physics import Physics, StandardPhysics

if TYPE_CHECKING:
    from plait.sim.training import AdaptiveJobs, Training

#: Seconds that a job runs in a configuration until it has measured it: the paper's interval (Pollux, section 4.1).
INTERVAL_S = 30.0
FIELDS = ("launch_s", "checkpoint_s", "restore_s", "migrate_s")
LAUNCH, CHECKPOINT, RESTORE, MIGRATE = range(4)


@dataclass(frozen=True)
class Overheads:
    """Seconds by (model, GPUs): rows of (gpus, launch, checkpoint, restore, migrate), sizes ascending.

    Model `*` stands for every model without rows of its own; without such rows they cost nothing.
    """

    rows: tuple[tuple[str, tuple[tuple[float, ...], ...]], ...] = ()

    @classmethod
    def measured(cls) -> Overheads:
        """The table that ships with plait; its provenance is in `sim/data/README.md`."""
        with resources.as_file(resources.files("plait.sim") / "data" / "overheads.csv") as path:
            return cls.read(path)

    @classmethod
    def constant(
        cls, launch_s: float = 0, checkpoint_s: float = 0, restore_s: float = 0, migrate_s: float = 0
    ) -> Overheads:
        """The same costs for every job."""
        return cls((("*", ((1.0, launch_s, checkpoint_s, restore_s, migrate_s),)),))

    @property
    def label(self) -> str:
        """In words: `none`, the same for every job, or a table."""
        if not self.rows:
            return "none"
        if [model for model, _ in self.rows] == ["*"] and len(self.rows[0][1]) == 1:
            costs = zip(("launch", "checkpoint", "restore", "migrate"), self.rows[0][1][0][1:], strict=True)
            return ", ".join(f"{name} {seconds:g} s" for name, seconds in costs if seconds) or "none"
        return "measured"

    @classmethod
    def read(cls, path: str | Path) -> Overheads:
        """Read a CSV with the columns model, gpus, launch_s, checkpoint_s, restore_s, migrate_s.

        Raises `TraceError` naming file, line and column.
        """
        table: dict[str, list[tuple[float, ...]]] = {}
        try:
            with open(path, newline="", encoding="utf-8-sig") as file:
                reader = csv.DictReader(file)
                wanted = ("model", "gpus", *FIELDS)
                missing = [c for c in wanted if c not in (reader.fieldnames or ())]
                if missing:
                    raise TraceError(
                        "missing column",
                        file=str(path),
                        line=1,
                        column=missing[0],
                        hint=f"needs {', '.join(wanted)}",
                    )
                for row in reader:
                    values = [_number(row[c], str(path), reader.line_num, c) for c in wanted[1:]]
                    table.setdefault(str(row["model"]), []).append(tuple(values))
        except OSError as error:
            raise TraceError(f"cannot read overheads: {error.strerror}", file=str(path)) from error
        return cls(tuple((model, tuple(sorted(rows))) for model, rows in sorted(table.items())))

    def for_jobs(self, models: Sequence[str], gpus: Sequence[int]) -> FloatArray:
        """Costs in seconds, shape (jobs, 4) in the order of `FIELDS`."""
        tables = dict(self.rows)
        known: dict[tuple[str, int], tuple[float, ...]] = {}
        out = np.zeros((len(gpus), len(FIELDS)))
        if not tables:
            return out
        for i, key in enumerate(zip(models, gpus, strict=True)):
            if key not in known:
                rows = tables.get(key[0]) or tables.get("*") or ((1.0, 0.0, 0.0, 0.0, 0.0),)
                row = next((r for r in rows if r[0] >= key[1]), rows[-1])
                known[key] = row[1:]
            out[i] = known[key]
        return out

    def for_batch(self, jobs: JobBatch) -> FloatArray:
        """Costs of these jobs at the size they ask for, seconds, shape (jobs, 4)."""
        return self.for_jobs(jobs.column("model").tolist(), jobs.gpus.tolist())


def _number(text: str | None, file: str, line: int, column: str) -> float:
    try:
        value = float(text or "")
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value >= 0):
        raise TraceError("not a number of seconds >= 0", file=file, line=line, column=column, value=text)
    return value


@dataclass(frozen=True)
class World:
    """What is true in a simulation. Times in seconds; infinite = never.

    `round_s` 0 decides at every event. Failures are exponential with these means, those of switches in clusters with a
    network whose switches aggregate; `checkpoint_every_s` is
    how often a running job saves its work without stopping. `profile_noise` n lets policies see stage times
    that are off by a factor U[1-n, 1+n]. `plain` is the share of jobs (drawn by the seed) that cannot resume from a
    checkpoint and start over after a stop.
    """

    name: str
    summary: str
    physics: Physics = field(default_factory=StandardPhysics)
    overheads: Overheads = field(default_factory=Overheads)
    round_s: float = 0.0
    checkpoint_every_s: float = 1800.0
    node_mtbf_s: float = math.inf
    node_mttr_s: float = 3600.0
    switch_mtbf_s: float = math.inf
    switch_mttr_s: float = 3600.0
    job_mtbf_s: float = math.inf
    profile_noise: float = 0.0
    plain: float = 0.0

    def __post_init__(self) -> None:
        for name in ("node_mtbf_s", "node_mttr_s", "switch_mtbf_s", "switch_mttr_s", "job_mtbf_s"):
            if not getattr(self, name) > 0:
                raise InputError(f"world {self.name}: {name} must be > 0 seconds, got {getattr(self, name)}")
        if not (self.round_s >= 0 and math.isfinite(self.round_s)):
            raise InputError(f"world {self.name}: round_s must be >= 0 seconds, got {self.round_s}")
        if not 0 <= self.plain <= 1:
            raise InputError(f"world {self.name}: plain must be a share of the jobs from 0 to 1, got {self.plain}")
        if not 0 <= self.profile_noise <= 1:
            raise InputError(f"profile noise must be between 0 and 1, got {self.profile_noise}")


#: How much slower a sensitive gang is on more nodes than it needs. An assumption: no figure
#: has been published for these models; it keeps spreading from being free of cost.
SPREAD_SLOWDOWN = 1.3


def plait_world() -> World:
    """Measured start-up overheads, slower when spread: the world to compare policies in."""
    return World(
        "plait",
        "measured start overheads, sensitive jobs slower when spread, decisions at every event",
        StandardPhysics(spread_slowdown=SPREAD_SLOWDOWN),
        Overheads.measured(),
    )


def ideal_world() -> World:
    """No overheads and no slow-down, as in textbooks."""
    return World("ideal", "no overheads, placement does not matter to speed", StandardPhysics())


def pollux_world() -> World:
    """Every start takes 30 s, the published simulation's figure: the world for adaptive jobs."""
    return World(
        "pollux",
        "30 s a start, decisions when policies ask: for jobs that adapt their batch",
        StandardPhysics(),
        Overheads.constant(launch_s=RESTART_S, restore_s=RESTART_S),
    )


#: What a start or restart costs an adaptive job in the published simulation (Pollux, OSDI'21, section 5.3).
RESTART_S = 30.0

WORLDS = {"plait": plait_world, "ideal": ideal_world, "pollux": pollux_world}


def make_world(name: str) -> World:
    """A world by name; `InputError` with the nearest name otherwise."""
    if name not in WORLDS:
        raise InputError(f"unknown world {name!r}; {suggest(name, WORLDS)}")
    return WORLDS[name]()


@dataclass(frozen=True)
class SimulationSettings:
    """What happens besides the jobs; times in seconds, 0 or infinite means never.

    `checkpoint_every_s`: work since the last periodic checkpoint is lost when a node or process dies.
    `job_mtbf_s`: mean GPU time between process failures, exponential.
    `training`: the truth of adaptive jobs; None takes what ships with plait for their models.
    `measure_s`: how long an adaptive job runs in a configuration until it has measured it; `profile_noise`: its step
    times are off by up to this share.
    """

    physics: Physics = field(default_factory=StandardPhysics)
    overheads: Overheads = field(default_factory=Overheads)
    round_s: float = 0.0
    checkpoint_every_s: float = 1800.0
    job_mtbf_s: float = math.inf
    seed: int = 0
    training: Training | None = None
    measure_s: float = INTERVAL_S
    profile_noise: float = 0.0


def adaptive_jobs(truth: JobBatch, settings: SimulationSettings, per_node: int) -> AdaptiveJobs | None:
    """The jobs whose speed is a model of their size; None if there are none, so the simulation can skip all of it.

    `truth` has the fixed batches of elastic jobs too (`with_fixed_batches`); `per_node`: GPUs of the largest node.
    """
    if not (truth.column("batch_size") > 0).any():
        return None
    from plait.sim.training import AdaptiveJobs, Training

    training = Training.shipped(truth, per_node) if settings.training is None else settings.training
    if not training.adapts.any():
        return None
    return AdaptiveJobs(truth, training, per_node=per_node, noise=settings.profile_noise, seed=settings.seed)


def with_known_batches(truth: JobBatch, adaptive: AdaptiveJobs | None) -> JobBatch:
    """The same jobs, with a fixed batch for those whose adaptive behaviour is unknown."""
    unknown = truth.column("batch_size") > 0
    if adaptive is not None:
        unknown &= ~adaptive.adapts
    if not unknown.any():
        return truth
    return truth.replace(**{name: np.where(unknown, 0, truth.column(name)) for name in BATCH_COLUMNS})
