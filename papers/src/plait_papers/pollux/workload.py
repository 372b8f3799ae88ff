"""The jobs of a workload file of the released simulator: name, time, application, num_replicas, batch_size."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from plait.core.errors import InputError
from plait.traces.delimited import TextRow, read_rows
from plait.traces.files import Pathish, Source
from plait_papers.pollux.tables import APPLICATIONS, Application, Measured

COLUMNS = ("name", "time", "application", "num_replicas", "batch_size")


@dataclass(frozen=True, slots=True)
class Submitted:
    """One row: submission in seconds, and the configuration that was tuned for it (GPUs, whole batch)."""

    name: str
    submit_s: float
    application: Application
    gpus: int
    batch: int


@dataclass(frozen=True)
class Workload:
    """Jobs in the order of the file, and what was measured of their applications."""

    jobs: tuple[Submitted, ...]
    measured: Mapping[str, Measured]

    def __len__(self) -> int:
        return len(self.jobs)


def read_jobs(path: Pathish, jobs: int | None = None) -> tuple[Submitted, ...]:
    """The first `jobs` rows of a workload (all of them by default).

    Raises `TraceError`, an `InputError`, naming file, line and column.
    """
    if jobs is not None and jobs < 1:
        raise InputError(f"jobs must be at least 1, got {jobs}")
    source = Source(path)
    found: dict[str, Submitted] = {}
    for row in read_rows(source, required=COLUMNS):
        job = _job(row)
        if job.name in found:
            raise row.error("another job has this name", column="name")
        found[job.name] = job
        if len(found) == jobs:
            break
    if not found:
        raise source.error("the workload has no jobs")
    return tuple(found.values())


def load(path: Pathish, data: Path, jobs: int | None = None) -> Workload:
    """The jobs and the measurements of their applications in the folder `data`."""
    found = read_jobs(path, jobs)
    if not data.is_dir():
        raise InputError(
            f"no folder {data}; give --data the folder that has {', '.join(APPLICATIONS)} "
            "(github.com/petuum/adaptdl, branch osdi21-artifact, simulator/traces)"
        )
    return Workload(found, {name: Measured(data, APPLICATIONS[name]) for name in used(found)})


def used(jobs: tuple[Submitted, ...]) -> tuple[str, ...]:
    """Names of the applications, each once."""
    return tuple(dict.fromkeys(job.application.name for job in jobs))


def _job(row: TextRow) -> Submitted:
    submit_s = row.number("time")
    if submit_s < 0:
        raise row.error("must not be negative", column="time")
    model = APPLICATIONS[row.choice("application", {name: name for name in APPLICATIONS})]
    batch = row.whole("batch_size")
    if not model.initial <= batch <= model.most:
        raise row.error(
            f"{model.name} was measured with batches of {model.initial} to {model.most}", column="batch_size"
        )
    return Submitted(row.text("name"), submit_s, model, row.gang("num_replicas"), batch)
