"""Implementation of `plait sweep`: make the grid, run missing cases, show and write all of it."""

from __future__ import annotations

import csv
import json
import math
import os
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

from plait.cli.experiments.cases import make_asked_world, read_prices, settings
from plait.cli.experiments.options import Request, SweepRequest
from plait.cli.experiments.outputs import STDOUT, Outputs
from plait.cli.experiments.simulation import check_finished
from plait.cli.render.console import Bar, console
from plait.cli.render.forecast_lines import print_comparison
from plait.control.metrics import RunResult
from plait.core.errors import InputError
from plait.live.notes import note
from plait.policies.catalog import import_from_here, split_policies
from plait.sim.studies.cases import parse_range
from plait.sim.studies.sweep import Grid, Summary, finished
from plait.sim.studies.sweep import sweep as run_grid


def run_sweep(request: SweepRequest) -> None:
    import_from_here()
    grid = make_grid(request)
    grid.check()
    cells = grid.cells()
    with Outputs() as outputs:
        wanted = (("json", request.json), ("csv", request.csv), ("report", request.report))
        files = [
            (kind, None if str(target) == STDOUT else outputs.path(target))
            for kind, target in wanted
            if target is not None
        ]
        done = len(finished(grid, request.folder)) if request.folder.is_dir() else 0
        if done:
            note(f"{done} of {len(cells)} runs are in {request.folder} already")
        processes = request.processes if request.processes is not None else os.cpu_count() or 1
        try:
            with Bar("sweeping", len(cells), done) as bar:
                for _ in run_grid(grid, request.folder, processes=processes, clock=time.perf_counter):
                    bar.advance()
        except KeyboardInterrupt:
            note(f"stopped; {request.folder} has what is done, and the same command goes on from there")
            raise
        summaries = list(finished(grid, request.folder).values())
        for kind, path in files:
            writer = partial(_WRITERS[kind], summaries)
            if path is None:
                outputs.print_later(writer)
            else:
                outputs.fill(path, writer)
        show(summaries, to_error=STDOUT in (request.json, request.csv))
        for path in outputs.commit():
            note(f"wrote {path}")
    check_finished(summaries)


def make_grid(request: SweepRequest) -> Grid:
    """The grid of a request; names and numbers are checked by `Grid.check`."""
    world_options = Request(
        [], "", round_s=request.round_s, overheads=request.overheads, spread_slowdown=request.spread_slowdown,
        interference=request.interference,
        node_mtbf=request.node_mtbf, node_mttr=request.node_mttr, job_mtbf=request.job_mtbf,
        profile_noise=request.profile_noise, placement=request.placement, assign_models=request.assign_models,
    )  # fmt: skip
    worlds = tuple(make_asked_world(name.strip(), world_options) for name in request.world.split(","))
    given = [settings(world, world_options) for world in worlds]
    shared = {name: value for name, value in given[0].items() if len({str(g[name]) for g in given}) == 1}
    return Grid(
        policies=tuple(split_policies(request.policy)),
        worlds=worlds,
        clusters=tuple(request.cluster or ("8x8",)),
        loads=read_loads(request.load),
        seeds=parse_range(request.seed, "seed"),
        preset=request.preset,
        jobs=request.jobs,
        trace=None if request.trace is None else str(request.trace),
        trace_format=request.trace_format,
        models=request.assign_models,
        placement=request.placement,
        prices=read_prices(request.price, request.currency),
        labels=shared,
    )


def read_loads(text: str | None) -> tuple[float | None, ...]:
    """Read `0.8,1.0`; None is the load of the trace.

    >>> read_loads("0.8,1")
    (0.8, 1.0)
    """
    if text is None:
        return (None,)
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise InputError(f"load {text!r} is not a list of numbers; write e.g. 0.8,1.0,1.2") from None


# -- results ---------------------------------------------------------------------------------------------


def as_result(summary: Summary) -> RunResult:
    """A result with figures only, which is all that comparisons look at."""
    figures = {name: math.nan if value is None else value for name, value in summary.items()}
    return RunResult(figures, {}, {}, cast(Any, None))


def groups(summaries: Sequence[Summary]) -> dict[str, list[RunResult]]:
    """Runs that compete: the same trace at the same load, cluster and world."""
    found: dict[str, list[RunResult]] = {}
    for summary in summaries:
        title = ", ".join(f"{name} {summary[name]}" for name in ("trace", "cluster", "world"))
        found.setdefault(title, []).append(as_result(summary))
    return found


def show(summaries: Sequence[Summary], *, to_error: bool) -> None:
    """A table of each group, and what jobs averages leave out."""
    printer = console(error=to_error)
    for results in groups(summaries).values():
        print_comparison(results, printer)
    left = [s for s in summaries if s["finished"] != s["jobs"]]
    if left:
        note(f"warning: in {len(left)} of {len(summaries)} runs some jobs did not finish; averages leave them out")


def write_json(summaries: Sequence[Summary], path: Path) -> None:
    """A list of summaries, one object a run."""
    path.write_text(json.dumps(summaries, indent=1, allow_nan=False, ensure_ascii=False) + "\n", encoding="utf-8")


def write_csv(summaries: Sequence[Summary], path: Path) -> None:
    """One row a run, one column a figure, empty for what is unknown."""
    names = list(dict.fromkeys(name for summary in summaries for name in summary))
    with open(path, "w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, names, lineterminator="\n")
        writer.writeheader()
        writer.writerows(cast("list[Mapping[str, Any]]", summaries))


def write_page(summaries: Sequence[Summary], path: Path) -> None:
    """One HTML page that needs nothing else: charts and a table of each group."""
    from plait.core.files import write_text
    from plait.report.sections import sweep_page

    write_text(path, sweep_page(groups(summaries), len(summaries)))


_WRITERS = {"json": write_json, "csv": write_csv, "report": write_page}
