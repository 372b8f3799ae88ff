"""Runs of the artifact's world as values, and the folder of finished ones."""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from importlib.resources import files
from pathlib import Path
from typing import Any

from plait.core.errors import InputError
from plait.reproduce.pollux.settings import read_setting
from plait.reproduce.pollux.workload import Submitted, Workload, load, read_jobs, used
from plait.reproduce.pollux.world import figures, simulate
from plait.reproduce.store import RunStore
from plait.sim.studies.cases import over_processes

#: Modules of this package that no result of a run depends on.
PRESENTATION = {f"{name}.py" for name in ("compare", "page", "published")}


@dataclass(frozen=True, slots=True)
class Case:
    """One run: a workload file (its first `jobs` rows, `times` as many), the measurements, a policy with options."""

    workload: str
    data: str
    policy: str
    jobs: int | None = None
    times: float = 1.0

    def key(self) -> str:
        """Its name in the store: the bytes of all that is read, the setting, and the code."""
        inputs = {**asdict(self), "workload": _hash(Path(self.workload)), "policy": read_setting(self.policy).text}
        names = used(read_jobs(self.workload, self.jobs))
        inputs["data"] = [_hash(path) for name in names for path in sorted(Path(self.data, name).glob("*.csv"))]
        return hashlib.sha256(json.dumps([inputs, code_hash()], sort_keys=True).encode()).hexdigest()[:32]


@dataclass(frozen=True, slots=True)
class Done:
    """Result of a run: its figures, completion times in the order of the file, and the CPU seconds it took."""

    figures: dict[str, Any]
    jct_s: list[float]
    cpu_s: float


def multiplied(jobs: tuple[Submitted, ...], times: float) -> tuple[Submitted, ...]:
    """`times` as many jobs, evenly over the file: job i comes floor((i+1) t) - floor(i t) times, at its own time.

    >>> [(i, math.floor((i + 1) * 0.5) - math.floor(i * 0.5)) for i in range(4)]
    [(0, 0), (1, 1), (2, 0), (3, 1)]
    """
    found = [
        replace(job, name=job.name if copy == 0 else f"{job.name}+{copy}")
        for i, job in enumerate(jobs)
        for copy in range(math.floor((i + 1) * times) - math.floor(i * times))
    ]
    if not found:
        raise InputError(f"{times:g} times {len(jobs)} jobs is no job; give a larger workload")
    return tuple(found)


def workload_of(case: Case) -> Workload:
    """The jobs of a case, and what was measured of them."""
    whole = load_once(case.workload, case.data, case.jobs)
    return replace(whole, jobs=multiplied(whole.jobs, case.times))


def count_jobs(case: Case) -> int:
    """How many jobs a case has; reads no measurements."""
    return len(multiplied(read_jobs(case.workload, case.jobs), case.times))


@cache
def load_once(workload: str, data: str, jobs: int | None) -> Workload:
    """`load` of the first `jobs` of `workload` with measurements in `data`, which take long to read: cached."""
    return load(workload, Path(data), jobs)


def run_case(case: Case, ended: Callable[[int], None] | None = None) -> Done:
    """Run it; `ended(n)` is called whenever `n` more jobs have ended."""
    workload = workload_of(case)
    begin = time.process_time()
    done = simulate(workload, read_setting(case.policy), ended)
    cpu_s = time.process_time() - begin
    return Done(figures(workload.jobs, done), done.jct_s.tolist(), cpu_s)


class Store(RunStore[Done]):
    """A folder of finished runs."""

    def __init__(self, folder: Path, *, fresh: bool = False) -> None:
        """Use this folder, created if necessary; `fresh` ignores existing runs."""
        super().__init__(folder, Done, _whole, fresh=fresh)


def _whole(done: Done) -> bool:
    whole = isinstance(done.figures, dict) and isinstance(done.jct_s, list)
    return whole and len(done.jct_s) == done.figures.get("jobs")


def run_all(
    cases: Sequence[Case], store: Store, processes: int = 1, ended: Callable[[int], None] | None = None
) -> Iterator[tuple[Case, Done]]:
    """Run them and keep each as soon as it is done; call `ended(n)` as jobs end; with processes, as runs end."""
    here = processes == 1 or len(cases) == 1
    work = partial(run_case, ended=ended if here else None)
    for i, done in over_processes(work, cases, processes):
        store.put(cases[i], done)
        if not here and ended is not None:
            ended(len(done.jct_s))
        yield cases[i], done


@cache
def _hash(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error


@cache
def code_hash() -> str:
    """Hash of the code that runs depend on."""
    digest = hashlib.sha256()
    for package in ("plait.reproduce.pollux", "plait.core", "plait.goodput", "plait.placement"):
        parts = (p for p in files(package).iterdir() if p.name.endswith(".py"))
        for part in sorted(parts, key=lambda p: p.name):
            if package != "plait.reproduce.pollux" or part.name not in PRESENTATION:
                digest.update(part.read_bytes())
    return digest.hexdigest()
