"""A grid of runs that can be stopped and taken up again.

A folder holds `manifest.json`, what the grid is, and `results.jsonl`, one line a run that is done, in the order they
were done. Starting again does only what is missing; a folder of another grid is refused.

    grid = Grid(policies=("fifo", "srsf"), clusters=("8x8",), loads=(0.8, 1.0), seeds=(0, 1), preset="philly")
    for cell, summary in sweep(grid, "out"): ...
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from plait.control.metrics import Value
from plait.control.prices import Prices
from plait.core.cluster import Cluster
from plait.core.errors import InputError
from plait.core.files import replace_file
from plait.core.jobs import JobBatch
from plait.policies.catalog import make_policy
from plait.sim.studies.cases import Case, Clock, over_processes, policy_text, run_case
from plait.sim.world import World
from plait.traces.assign import assign_models
from plait.traces.formats.registry import read_trace
from plait.traces.load import load_jobs
from plait.traces.synthetic import generate, target_load
from plait.traces.table import offered_load

Summary = Mapping[str, Value | None]

MANIFEST, RESULTS = "manifest.json", "results.jsonl"


@dataclass(frozen=True, slots=True)
class Cell:
    """One run of a grid. `load` None keeps the load of the preset or trace."""

    cluster: str
    load: float | None
    world: str
    policy: str
    seed: int

    @property
    def key(self) -> str:
        """A text that names the cell in its grid."""
        load = "" if self.load is None else f"{self.load:g}"
        return "|".join([self.cluster, load, self.world, self.policy, str(self.seed)])


@dataclass(frozen=True)
class Grid:
    """What is varied, and on which jobs.

    With `trace` the jobs are those of a file, stretched to each load; the seed then only decides what the world
    draws (and models, if assigned). Without, each (cluster size, load, seed) has its own synthetic trace of `jobs`
    jobs. `labels` go into every summary and are part of what the grid is.
    """

    policies: tuple[str, ...]
    worlds: tuple[World, ...]
    clusters: tuple[str, ...] = ("8x8",)
    loads: tuple[float | None, ...] = (None,)
    seeds: tuple[int, ...] = (0,)
    preset: str = "philly"
    jobs: int = 1000
    trace: str | None = None
    trace_format: str = "auto"
    models: str | None = None
    placement: str | None = None
    labels: Mapping[str, Value] = field(default_factory=dict)
    prices: Prices | None = None

    def check(self) -> None:
        """Raise `InputError` for an invalid grid before anything runs."""
        for name in ("policies", "worlds", "clusters", "loads", "seeds"):
            values = getattr(self, name)
            if not values:
                raise InputError(f"a sweep needs at least one of: {name}")
            if len({str(getattr(v, "name", v)) for v in values}) < len(values):
                raise InputError(f"a sweep lists each of its {name} once")
        for text in self.clusters:
            cluster = Cluster.parse(text)
            if self.prices is not None:
                self.prices.refuse_unknown(cluster.kinds)
        for policy in self.policies:
            make_policy(policy_text(policy, self.placement))
        for load in self.loads:
            if load is not None and not 0 < load < float("inf"):
                raise InputError(f"load must be more than 0, got {load:g}")
        if self.trace is None:
            generate(self.preset, 1, 1)  # reports an unknown preset
            if self.jobs < 1:
                raise InputError(f"jobs must be at least 1, got {self.jobs}")
        else:
            _jobs(self, self.clusters[0], self.loads[0], self.seeds[0])

    def cells(self) -> list[Cell]:
        """Every run, in the order of results."""
        worlds = tuple(world.name for world in self.worlds)
        grid = itertools.product(self.clusters, self.loads, worlds, self.policies, self.seeds)
        return [Cell(*point) for point in grid]

    def manifest(self) -> dict[str, Any]:
        """What makes this grid this grid, as JSON takes it."""
        from plait.core.version import __version__

        worlds = {w.name: hashlib.sha256(repr(w).encode()).hexdigest()[:16] for w in self.worlds}
        source: dict[str, Any] = {"preset": self.preset, "jobs": self.jobs}
        if self.trace is not None:
            source = {"trace": Path(self.trace).name, "sha256": _digest(Path(self.trace)), "format": self.trace_format}
        return {
            "plait_sweep": 2,
            "version": __version__,
            **source,
            "policies": list(self.policies),
            "clusters": list(self.clusters),
            "loads": list(self.loads),
            "seeds": list(self.seeds),
            "worlds": worlds,
            "models": self.models,
            "placement": self.placement,
            **({} if self.prices is None else {"prices": str(self.prices)}),
            "labels": {name: str(value) for name, value in self.labels.items()},
        }

    @property
    def source(self) -> str:
        """The trace, or the preset and its size."""
        return self.trace or f"{self.preset}:{self.jobs}"

    def label(self, load: float | None) -> str:
        """What summaries call the trace at this load."""
        return self.source if load is None else f"{self.source} at load {load:g}"


def _digest(path: Path) -> str:
    if not path.is_file():
        return ""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@lru_cache(maxsize=2)
def _table(trace: str, trace_format: str) -> Any:
    return read_trace(trace, trace_format)


def _jobs(grid: Grid, cluster: str, load: float | None, seed: int) -> JobBatch:
    gpus = Cluster.parse(cluster).gpus
    if grid.trace is None:
        table = generate(grid.preset, grid.jobs, gpus, load, seed, models=grid.models)
    else:
        table = _table(grid.trace, grid.trace_format)
        if grid.models is not None:
            table = assign_models(table, seed=seed, mix=grid.models)
        if load is not None:
            table = target_load(table, gpus, load)
    return load_jobs(table, seed=seed).jobs


def run_cell(cell: Cell, *, grid: Grid, clock: Clock | None = None) -> dict[str, Value | None]:
    """The summary of the run `cell` of `grid`; `clock` gives wall seconds, which are unknown without it."""
    jobs = _jobs(grid, cell.cluster, cell.load, cell.seed)
    world = next(w for w in grid.worlds if w.name == cell.world)
    cluster = Cluster.parse(cell.cluster)
    load = offered_load(jobs.submit_s, jobs.gpus, jobs.iterations * jobs.iteration_s, cluster.gpus)
    labels = {
        **grid.labels,
        "load": (round(load, 6) if math.isfinite(load) else float("nan")),
        "source": grid.source,
        "cell": cell.key,
    }
    case = Case(
        grid.label(cell.load),
        jobs,
        cell.policy,
        cluster,
        world,
        cell.seed,
        grid.placement,
        labels=labels,
        prices=grid.prices,
    )
    return {**run_case(case, clock=clock).to_json(), "cluster": cell.cluster}


def sweep(
    grid: Grid, folder: str | Path, *, processes: int = 1, clock: Clock | None = None
) -> Iterator[tuple[Cell, Summary]]:
    """Run what `folder` lacks of `grid` on `processes`, yielding each run once it is on disk.

    `clock` as for `run_case`. Raises `InputError` if the folder belongs to another grid or another sweep is writing to
    it. It can be stopped at any time; nothing that was yielded is lost.
    """
    grid.check()
    with _opened(Path(folder), grid) as file:
        done = finished(grid, folder)
        todo = [cell for cell in grid.cells() if cell.key not in done]
        for i, summary in over_processes(partial(run_cell, grid=grid, clock=clock), todo, processes):
            file.write(json.dumps(summary, allow_nan=False).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
            yield todo[i], summary


def finished(grid: Grid, folder: str | Path) -> dict[str, Summary]:
    """The runs of the grid that the folder has, by key of their cell, in the order of the grid."""
    path = Path(folder) / RESULTS
    found: dict[str, Summary] = {}
    if path.exists():
        for number, line in enumerate(path.read_bytes().splitlines(keepends=True), start=1):
            if not line.endswith(b"\n"):
                break  # the writer died in this line
            try:
                summary = json.loads(line)
                found[summary["cell"]] = summary
            except (ValueError, KeyError, TypeError) as error:
                raise InputError(f"{path}:{number}: not a result of a sweep; remove the line or the folder") from error
    return {cell.key: found[cell.key] for cell in grid.cells() if cell.key in found}


@contextmanager
def _opened(folder: Path, grid: Grid) -> Iterator[Any]:
    """The results file, to append to, locked; the manifest is checked or written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with open(folder / RESULTS, "ab+") as file:
            _lock(file, folder)
            _claim(folder, grid)
            file.seek(0)
            text = file.read()
            file.truncate(text.rfind(b"\n") + 1)  # a line that was cut off
            yield file
    except OSError as error:
        raise InputError(f"cannot use the folder {folder}: {error.strerror or error}") from error


def _lock(file: Any, folder: Path) -> None:
    try:
        import fcntl
    except ImportError:  # no such locks on this system
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        raise InputError(f"another sweep is writing to {folder}") from error


def _claim(folder: Path, grid: Grid) -> None:
    wanted, path = grid.manifest(), folder / MANIFEST
    if not path.exists():
        if (folder / RESULTS).stat().st_size:
            raise InputError(f"{folder} has results but no {MANIFEST}; give an empty folder")
        replace_file(path, json.dumps(wanted, indent=1) + "\n")
        return
    try:
        known = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(f"{path}: not JSON; give another folder") from error
    if known != json.loads(json.dumps(wanted)):
        names = [n for n in {**wanted, **known} if known.get(n) != wanted.get(n)]
        what = "; ".join(f"{n} was {known.get(n)!r}, now {wanted.get(n)!r}" for n in names[:3])
        raise InputError(f"{folder} belongs to another grid ({what}); give another folder")
