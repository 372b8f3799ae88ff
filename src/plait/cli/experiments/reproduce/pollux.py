"""`plait reproduce pollux`: find out which runs are needed, run them, show and write the comparison."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from plait.cli.experiments.outputs import Outputs
from plait.cli.experiments.request import PolluxRequest
from plait.cli.experiments.results import Results
from plait.cli.render.progress import Bar
from plait.core.errors import InputError
from plait.core.version import __version__
from plait.core.words import counted
from plait.live.notes import note
from plait.reproduce.pollux.compare import Outcome, Point, chosen, points, rows_of, tables
from plait.reproduce.pollux.published import is_published
from plait.reproduce.pollux.runs import Case, Done, Store, count_jobs, run_all, workload_of
from plait.reproduce.store import folder_of
from plait.sim.studies.cases import parse_range


def reproduce_pollux(request: PolluxRequest) -> None:
    seeds, studies = parse_range(request.seeds, "seeds"), chosen(request.study)
    files = list(request.workload or [request.data / "workload-6.csv"])
    asked = [point for file in files for point in points(file, request.data, studies, seeds, request.jobs)]
    with Outputs() as outputs:
        results = Results(outputs, request.report, request.json)
        outcome = _outcome(asked, _finish(asked, request), request, files)
        results.finish(outcome, tables(outcome), lambda path: _write_page(outcome, path))


def _write_page(outcome: Outcome, path: Path) -> None:
    from plait.reproduce.pollux.page import write_page  # Jinja only where a page is wanted

    write_page(outcome, path)


def _finish(asked: Sequence[Point], request: PolluxRequest) -> dict[Case, Done]:
    """Every run, from the store or made now; what is made is kept at once."""
    cases = list(dict.fromkeys(case for point in asked for case in point.cases))
    if request.processes < 1:
        raise InputError(f"--processes must be at least 1, got {request.processes}")
    store = Store(request.work or folder_of("pollux"), fresh=request.fresh)
    done = {case: found for case in cases if (found := store.get(case)) is not None}
    todo = [case for case in cases if case not in done]
    if not todo:
        return done
    lengths = {case: count_jobs(case) for case in todo}
    for case in todo:
        workload_of(case)  # errors in any file come before all runs; each is read once
    kept, jobs = len(done), sum(lengths.values())
    work = f"{counted(len(todo), 'run')} of {counted(jobs, 'job')} in all"
    note(f"{work} to make; each is kept in {store.folder} when done")
    try:
        with Bar("simulating", jobs) as bar:
            for case, found in run_all(todo, store, request.processes, bar.advance):
                done[case] = found
                if not sys.stderr.isatty():  # there the bar shows it
                    far = f"{len(done)} of {counted(len(cases), 'run')} done"
                    note(f"{far}: {case.policy}, {found.cpu_s:.1f} CPU seconds")
    except KeyboardInterrupt:
        note(f"{len(done)} of {len(cases)} runs are kept in {store.folder}; the same command goes on from there")
        raise
    note(f"{counted(len(todo), 'run')} made, {kept} were kept from before")
    return done


def _outcome(asked: Sequence[Point], done: dict[Case, Done], request: PolluxRequest, files: Sequence[Path]) -> Outcome:
    """The comparison, once the runs are done."""
    cpu_s: dict[str, list[float]] = defaultdict(list)
    for point in asked:
        if not point.study:
            cpu_s[point.policy] += [done[case].cpu_s for case in point.cases]
    foreign = [str(file) for file in files if request.jobs is not None or not is_published(file)]
    notes = [f"no published values for {', '.join(foreign)}: they are of the whole workload-6.csv"] if foreign else []
    return Outcome(
        [row for point in asked for row in rows_of(point, done)],
        notes,
        len(done),
        sum(run.cpu_s for run in done.values()),
        {policy: sum(values) / len(values) for policy, values in cpu_s.items()},
        {"data": str(request.data), "version": __version__, "seeds": request.seeds, "jobs": request.jobs},
    )
