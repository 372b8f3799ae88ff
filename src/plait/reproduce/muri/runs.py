"""Runs of the artifact's world as values, and a folder of finished ones.

A run is named by what decides its result: the bytes of the trace, the setting, and the code of this package. So a
kept run is found again only if it would come out the same.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cache, partial
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

from plait.core.errors import InputError
from plait.reproduce.muri.artifact.settings import read_setting
from plait.reproduce.muri.artifact.trace import PERCENTILE_RULE
from plait.reproduce.muri.noise_model import noisy
from plait.reproduce.store import RunStore, folder_of
from plait.sim.studies.cases import over_processes

COLUMNS = ("row", "gpus", "submit_s", "first_start_s", "end_s", "jct_s", "attained_s", "starts")
GPUS = 64
#: Modules of this package that no result of a run depends on.
PRESENTATION = {f"{name}.py" for name in ("compare", "figures", "noise", "outcome", "page", "published", "testbed")}


@dataclass(frozen=True, slots=True)
class Case:
    """One run: a trace file (its first `jobs` rows), a policy with options, and what is not as released.

    `noise` n lets the policy see stage times off by a factor U[1-n, 1+n], drawn with `seed`; speeds stay true.
    In the world `plait` (see `own`) the policy is one of plait's catalog and only `jobs` counts of the rest.
    """

    trace: str
    policy: str
    jobs: int | None = None
    round_s: float = 0.0
    overhead: Literal["every_event", "at_start"] = "every_event"
    noise: float = 0.0
    seed: int = 0
    world: Literal["artifact", "plait"] = "artifact"

    def key(self) -> str:
        """Its name in the store."""
        own = self.world == "plait"
        policy = self.policy if own else read_setting(self.policy).text
        inputs = {**asdict(self), "trace": hash_of(self.trace), "policy": policy}
        text = json.dumps([inputs, code_hash(own)], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:32]


@dataclass(frozen=True, slots=True)
class Done:
    """Result of a run: figures in seconds, one entry a job in the columns, in the order of the trace."""

    avg_jct_s: float
    makespan_s: float
    p99_jct_s: float
    avg_queue_length: float
    blocking_index_mean: float
    blocking_index_median: float
    events: int
    cpu_s: float
    columns: dict[str, list[float]]

    @property
    def jobs(self) -> int:
        """How many jobs there were; all have finished."""
        return len(self.columns["jct_s"])

    @property
    def whole(self) -> bool:
        """Whether every figure is a number and every column has one entry a job."""
        figures = (value for name, value in asdict(self).items() if name != "columns")
        if not isinstance(self.columns, dict) or not all(isinstance(value, (int, float)) for value in figures):
            return False
        lengths = {len(self.columns.get(name, ())) for name in COLUMNS}
        return len(lengths) == 1 and lengths != {0}

    @property
    def starts_per_job(self) -> float:
        """Starts of all jobs over their number."""
        return sum(self.columns["starts"]) / self.jobs


@cache
def hash_of(path: str) -> str:
    """Hash of a file's bytes."""
    try:
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error


@cache
def code_hash(own: bool) -> str:
    """Hash of the code and tables that runs depend on: of all of plait in its own world."""
    digest = hashlib.sha256()
    packages = ["plait.reproduce.muri", "plait.core", "plait.grouping", "plait.sim", "plait.traces"]
    if own:
        packages += ["plait.control", "plait.placement", "plait.policies"]
    for package in packages:
        parts = sorted((p for p in files(package).iterdir() if p.name.endswith(".py")), key=lambda p: p.name)
        for part in parts:
            digest.update(part.read_bytes())
    digest.update(files("plait.sim").joinpath("data", "overheads.csv").read_bytes())
    return digest.hexdigest()


def run_case(case: Case, ended: Callable[[int], None] | None = None) -> Done:
    """Run it; `ended(n)` is called whenever `n` more jobs have ended."""
    if case.world == "plait":
        from plait.reproduce.muri.fair_world import simulate_own

        return Done(**simulate_own(case.trace, case.policy, case.jobs, ended))
    from plait.reproduce.muri.artifact.engine import run
    from plait.reproduce.muri.artifact.trace import read

    trace = read(case.trace, case.jobs)
    setting = read_setting(case.policy)
    begin = time.process_time()
    result = run(
        trace,
        setting.policy,
        setting.options,
        ended=None if ended is None else partial(_more, ended, [0]),
        round_s=case.round_s,
        overhead=case.overhead,
        seen=noisy(trace, case.noise, case.seed) if case.noise else None,
    )
    columns = {
        "row": trace.row,
        "gpus": trace.gpus,
        "submit_s": result.submit_s,
        "first_start_s": result.first_start_s,
        "end_s": result.end_s,
        "jct_s": result.jct_s,
        "attained_s": result.attained_s,
        "starts": result.starts,
    }
    return Done(
        result.mean_jct_s,
        result.makespan_s,
        result.p99_jct_s,
        result.mean_queue,
        result.mean_blocking,
        result.median_blocking,
        result.events,
        time.process_time() - begin,
        {name: column.tolist() for name, column in columns.items()},
    )


def _more(ended: Callable[[int], None], before: list[int], done: int) -> None:
    """From jobs ended so far to jobs ended since."""
    ended(done - before[0])
    before[0] = done


class Store(RunStore[Done]):
    """A folder of finished runs, one small file each, written whole or not at all."""

    def __init__(self, folder: Path, *, fresh: bool = False) -> None:
        """Use this folder, created if necessary; `fresh` ignores existing runs."""
        super().__init__(folder, Done, lambda done: done.whole, fresh=fresh)


def default_folder() -> Path:
    """The default folder of runs, in the user's cache."""
    return folder_of("muri")


def run_all(
    cases: Sequence[Case], store: Store, processes: int = 1, ended: Callable[[int], None] | None = None
) -> Iterator[tuple[Case, Done]]:
    """Run cases that are not in the store, and keep each as soon as it is done.

    `ended(n)` is called as jobs end; with several processes, as runs end.
    """
    here = processes == 1 or len(cases) == 1
    work = partial(run_case, ended=ended if here else None)
    for i, done in over_processes(work, cases, processes):
        store.put(cases[i], done)
        if not here and ended is not None:
            ended(done.jobs)
        yield cases[i], done


def summary_of(done: Done) -> dict[str, Any]:
    """The figures under the names that all of plait's results have."""
    return {
        "jobs": done.jobs,
        "finished": done.jobs,
        "failed": 0,
        "cancelled": 0,
        "refused": 0,
        "unfinished": 0,
        "avg_jct_s": done.avg_jct_s,
        "p99_jct_s": done.p99_jct_s,
        "makespan_s": done.makespan_s,
        "avg_queue_length": done.avg_queue_length,
        "blocking_index_mean": done.blocking_index_mean,
        "blocking_index_median": done.blocking_index_median,
        "avg_restarts": done.starts_per_job - 1,
        "gpus": GPUS,
        "percentile_rule": PERCENTILE_RULE,
        "events": done.events,
    }
