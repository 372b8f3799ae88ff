"""`plait reproduce antman`: find out which runs are needed, run them, show and write the comparison."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from plait.cli.experiments.outputs import Outputs
from plait.cli.experiments.request import AntManRequest
from plait.cli.experiments.results import Results
from plait.cli.render.progress import Bar
from plait.core.errors import InputError
from plait.core.version import __version__
from plait.core.words import counted
from plait.live.notes import note
from plait.reproduce.antman.compare import Outcome, points, rows_of
from plait.reproduce.antman.muri_artifact import artifact_cases, artifact_rows
from plait.reproduce.antman.runs import Store, jobs_in, run_all
from plait.reproduce.antman.tables import tables
from plait.reproduce.antman.variants import bases, chosen
from plait.reproduce.muri import runs as muri
from plait.reproduce.muri.artifact.trace import read
from plait.reproduce.store import folder_of
from plait.sim.studies.cases import parse_range

#: Unknowns that concern every ratio.
UNKNOWN = (
    "published: 64 V100 GPUs, another trace; which one, its load and its gangs were not published, so ratios that "
    "differ are no error by themselves"
)


def reproduce_antman(request: AntManRequest) -> None:
    load = _load(request.load)
    bases(request.jobs, load)  # an invalid workload is refused before anything runs
    if request.processes < 1:
        raise InputError(f"--processes must be at least 1, got {request.processes}")
    asked = list(points(chosen(request.study), parse_range(request.seeds, "seeds"), request.jobs, load))
    artifact = artifact_cases(request.data)
    with Outputs() as outputs:
        results = Results(outputs, request.report, request.json)
        folder, more = request.work or folder_of("antman"), partial(_finish, processes=request.processes)
        store = Store(folder, fresh=request.fresh)
        cases = list(dict.fromkeys(case for point in asked for case in point.cases))
        done = more("simulating", cases, store, run_all, lambda case: len(jobs_in(case)))
        kept = muri.Store(folder, fresh=request.fresh)
        own = more("Muri's artifact", list(artifact.values()), kept, muri.run_all, lambda case: len(read(case.trace)))
        facts = {"version": __version__, "jobs": request.jobs, "load": request.load, "seeds": request.seeds}
        outcome = Outcome(
            list(rows_of(asked, done)),
            artifact_rows(artifact, own),
            _notes(artifact),
            len(done) + len(own),
            sum(run.cpu_s for run in (*done.values(), *own.values())),
            facts,
        )
        results.finish(outcome, tables(outcome), lambda path: _write_page(outcome, path))


def _load(text: str) -> float:
    try:
        load = float(text)
    except ValueError:
        load = math.nan
    if not load > 0:
        raise InputError(f"--load is {text!r}; it takes a number above 0, e.g. 1, or inf for all jobs at once")
    return load


def _notes(artifact: Any) -> list[str]:
    notes = [UNKNOWN]
    if not artifact:
        notes.append("the AntMan of Muri's artifact is left out; give --data its folder simulator/trace-data")
    return notes


def _write_page(outcome: Outcome, path: Path) -> None:
    from plait.reproduce.antman.page import write_page  # Jinja only where a page is wanted

    write_page(outcome, path)


def _finish(
    what: str,
    cases: Sequence[Any],
    store: Any,
    make: Callable[..., Iterable[tuple[Any, Any]]],
    jobs: Callable[[Any], int],
    processes: int,
) -> dict[Any, Any]:
    """Every run, from the store or made now; what is made is kept at once."""
    done = {case: found for case in cases if (found := store.get(case)) is not None}
    todo = [case for case in cases if case not in done]
    if not todo:
        return done
    kept = len(done)
    note(f"{what}: {counted(len(todo), 'run')} to make; each is kept in {store.folder} when done")
    try:
        with Bar(what, sum(jobs(case) for case in todo)) as bar:
            done.update(make(todo, store, processes, bar.advance))
    except KeyboardInterrupt:
        note(f"finished runs are kept in {store.folder}; the same command goes on from there")
        raise
    note(f"{what}: {counted(len(todo), 'run')} made, {kept} were kept from before")
    return done
