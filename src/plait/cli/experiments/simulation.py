"""Implementation of `plait simulate`: make the cases, run them, show and write the results."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from plait.cli.experiments.cases import make_cases
from plait.cli.experiments.outputs import STDOUT, Outputs, names_of_runs
from plait.cli.experiments.request import Request
from plait.cli.experiments.run_outputs import reserve, show, write_all
from plait.cli.render.console import console
from plait.cli.render.progress import Bar
from plait.control.metrics import RunResult
from plait.live.notes import note
from plait.policies.catalog import import_from_here
from plait.sim.studies.cases import Case, over_processes, run_case


def answer(request: Request, *, most: int | None = None) -> None:
    """Run the simulations, print the comparison in at most `most` columns, and write the files of the request."""
    import_from_here()
    from plait.cli.experiments.published import published_runs, run_published

    with Outputs() as outputs:
        published = published_runs(request)
        cases = make_cases(request) if published is None else []
        names: list[tuple[str, ...]] = [(c.policy, c.world.name, str(c.seed), c.trace, str(c.cluster)) for c in cases]
        names += [(r.policy, r.world, "0", str(r.trace), "") for r in published or ()]
        files = reserve(request, names, outputs)
        if request.log is not None:
            cases = [
                replace(c, log=str(outputs.path(p)))
                for c, p in zip(cases, names_of_runs(request.log, names), strict=True)
            ]
        results = (
            run_all(cases, request.processes) if published is None else run_published(published, request.processes)
        )
        write_all(results, files, outputs)
        if STDOUT in (request.json, request.csv):
            show(results, console(error=True))
            outputs.commit()
        else:
            show(results, console(most=most))
            for path in outputs.commit():
                note(f"wrote {path}")


def run_all(cases: Sequence[Case], processes: int) -> list[RunResult]:
    """Results in the order of the cases, with a progress bar by jobs ended (by runs, over processes)."""
    total = sum(len(case.jobs) for case in cases)
    results: list[RunResult | None] = [None] * len(cases)
    with Bar("simulating", total) as bar:
        here = processes == 1 or len(cases) == 1
        ended = bar.advance if here else None
        for i, result in over_processes(partial(run_case, clock=time.perf_counter, ended=ended), cases, processes):
            results[i] = result
            if not here:
                bar.advance(len(cases[i].jobs))
    return [r for r in results if r is not None]
