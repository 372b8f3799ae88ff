"""Implementation of `plait simulate` and `plait sweep`: make the cases, run them, show and write the results."""

import csv
import dataclasses
import json
import math
import os
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

from plait.cli.experiments.cases import make_asked_world, make_cases, settings
from plait.cli.experiments.options import Request, SweepRequest
from plait.cli.experiments.outputs import STDOUT, Outputs, names_of_runs
from plait.cli.render.console import Bar, Printer, console
from plait.cli.render.forecast_lines import print_comparison
from plait.control.metrics import RunResult, Value
from plait.control.prices import Prices
from plait.core.errors import InputError, SimulationError, suggest
from plait.live.notes import note
from plait.policies.catalog import import_from_here, split_policies
from plait.sim.published import PublishedRun, published_names, published_world
from plait.sim.studies.cases import Case, over_processes, parse_range, run_case
from plait.sim.studies.sweep import Grid, Summary, finished
from plait.sim.studies.sweep import sweep as run_grid
from plait.sim.world import WORLDS


def answer(request: Request, *, most: int | None = None) -> None:
    """Run the simulations, print the comparison in at most `most` columns, and write the files of the request."""
    import_from_here()

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
    check_finished([result.summary for result in results])


def run_all(cases: Sequence[Case], processes: int) -> list[RunResult]:
    """Results in the order of the cases, with a progress bar by jobs ended (by runs, over processes)."""
    return _with_bar(partial(run_case, clock=time.perf_counter), cases, [len(case.jobs) for case in cases], processes)


def _with_bar(
    work: Callable[..., RunResult], runs: Sequence[Any], jobs: Sequence[int], processes: int
) -> list[RunResult]:
    results: dict[int, RunResult] = {}
    with Bar("simulating", sum(jobs)) as bar:
        here = processes == 1 or len(runs) == 1
        for i, result in over_processes(partial(work, ended=bar.advance if here else None), runs, processes):
            results[i] = result
            if not here:
                bar.advance(jobs[i])
    return [results[i] for i in range(len(runs))]


#: Options of `plait simulate` that mean something in every published world.
ASKS = ("traces", "policy", "world")
OUTPUTS = ("json", "csv", "jobs_csv", "processes")


def published_runs(request: Request) -> list[PublishedRun] | None:
    """The runs, policy by policy on each trace, all checked; None if the world is one of plait's own."""
    names = [name.strip() for name in request.world.split(",")]
    known = published_names()
    for world_name in names:
        if world_name not in (*WORLDS, *known):
            raise InputError(f"unknown world {world_name!r}; {suggest(world_name, [*WORLDS, *known])}")
    name = next((name for name in names if name in known), None)
    if name is None:
        return None
    world = published_world(name)
    if len(names) > 1:
        raise InputError(f"world {name} has policies of its own and is not compared with others; give it alone")
    if len(request.clusters) > 1:
        raise InputError(f"world {name} has its own cluster, {world.cluster}; give one --cluster, or none")
    allowed: dict[str, object] = {"cluster": [world.cluster], "trace_format": world.trace_format}
    options = (*world.takes, *OUTPUTS)
    for field in dataclasses.fields(Request):
        value = getattr(request, field.name)
        if field.name in (*ASKS, *options) or value == field.default or value == allowed.get(field.name):
            continue
        option, *takes = (_option(o) for o in (field.name, *options))
        paper = name.removesuffix("-artifact")
        hint = f"; `plait reproduce {paper} --report` writes a page" if option == "--report" else ""
        if option == "--cluster":
            hint = f"; its cluster is {world.cluster}"
            hint += ", of another size with the policy's option nodes=N" if "nodes" in world.options else ""
        raise InputError(f"world {name} is as published and has no {option}; it takes {', '.join(takes)}{hint}")
    if request.overheads is not None and request.overheads not in world.overheads:
        raise InputError(
            f"world {name}: --overheads {request.overheads!r}; {suggest(request.overheads, world.overheads)}"
        )
    round_s = request.round_s or 0.0
    policies = split_policies(request.policy)
    if not policies:
        raise InputError(f"no policy given; world {name} has {', '.join(world.policies)}")
    for policy in policies:
        world.check(policy)
    return [
        PublishedRun(name, trace, policy, request.jobs, round_s, request.overheads, request.data)
        for trace in request.traces
        for policy in policies
    ]


def _option(field: str) -> str:
    return "--" + {"trace_format": "format", "round_s": "round"}.get(field, field).replace("_", "-")


def run_published(runs: list[PublishedRun], processes: int) -> list[RunResult]:
    """Results in the order of the runs, with a progress bar by jobs ended (by runs, over processes)."""
    return _with_bar(_run, runs, [published_world(run.world).jobs(run) for run in runs], processes)


def _run(run: PublishedRun, ended: Callable[[int], None] | None = None) -> RunResult:
    begin = time.perf_counter()
    result = published_world(run.world).run(run, ended)
    wall_s = round(time.perf_counter() - begin, 3)
    return dataclasses.replace(result, summary={**result.summary, "wall_s": wall_s})


def reserve(request: Request, names: list[tuple[str, ...]], outputs: Outputs) -> list[tuple[str, int, Path | None]]:
    """Reserve every requested output: (kind, run or -1 for all, path; None for standard output).

    `names`: of the runs, for files of which there is one per run; `outputs`: where the files are reserved.
    """
    files: list[tuple[str, int, Path | None]] = []
    for kind, target in (("json", request.json), ("csv", request.csv), ("report", request.report)):
        if target is not None:
            out = str(target) == STDOUT
            if out and kind == "report":
                raise InputError("a report cannot go to standard output; give a file name")
            files.append((kind, -1, None if out else outputs.path(target)))
    for kind, path in (("jobs_csv", request.jobs_csv), ("chrome_trace", request.chrome_trace)):
        if path is not None:
            files += [(kind, i, outputs.path(p)) for i, p in enumerate(names_of_runs(path, names))]
    return files


def write_all(results: Sequence[RunResult], files: Sequence[tuple[str, int, Path | None]], outputs: Outputs) -> None:
    """Fill the files that `reserve` gave; what goes to standard output is printed by `outputs.commit`."""
    from plait.report import tables
    from plait.report.charts import write_chrome_trace

    for kind, run, path in files:
        if kind == "report" and path is not None:
            from plait.report.html import write_html

            outputs.fill(path, lambda p: write_html(results, p, settings=stated(results)))
        elif kind == "jobs_csv" and path is not None:
            outputs.fill(path, partial(tables.write_jobs_csv, results[run]))
        elif kind == "chrome_trace" and path is not None:
            outputs.fill(path, partial(write_chrome_trace, results[run]))
        else:
            writer = partial(tables.write_json if kind == "json" else tables.write_csv, results)
            if path is None:
                outputs.print_later(writer)
            else:
                outputs.fill(path, writer)


def stated(results: Sequence[RunResult]) -> dict[str, str]:
    """The settings that the report shows, where they are not empty."""
    names = {
        "load": "Offered load, by requested GPUs", "placement": "Placement", "round_s": "Round (s)",
        "overheads": "Overheads",
        "network": "Network", "phases": "Phases of exchanges", "overlap": "Overlap with computation",
        "spread_slowdown": "Spread slow-down", "interference": "Interference", "profile_noise": "Profile noise",
        "models": "Models", "censored": "Censored jobs", "node_failures": "Node failures",
        "reserved": "Reserved nodes",
    }  # fmt: skip
    out = {}
    for name, label in names.items():
        values = list(dict.fromkeys(str(r.summary.get(name, "")) for r in results))
        if any(values):
            out[label] = ", ".join(v or "-" for v in values)
    return out


def show(results: Sequence[RunResult], printer: Printer) -> None:
    """The comparison table, then what a reader must know to trust it."""
    from plait.cli.render.forecast_lines import print_comparison

    if print_comparison(results, printer):
        note("a wider terminal shows more figures; --json, --csv and --report have all of them")
    if any(result.costs is not None for result in results):
        from plait.control.compare import compare, is_of
        from plait.report.tables import cost_tables, labels

        groups = compare(results)
        first = [next(r for r in results if is_of(r, group)) for group in groups]
        for table in cost_tables(first, labels(groups)):
            printer.print(table)
    warn_about_jobs(results)


def warn_about_jobs(results: Sequence[RunResult]) -> None:
    """Name jobs that were refused or failed; averages leave them out."""
    printed: Counter[tuple[str, tuple[str, ...]]] = Counter()
    for result in results:
        jobs, summary = result.jobs, result.summary
        for state in ("refused", "failed"):
            count = int(summary[state])
            if not count:
                continue
            hit = [i for i, s in enumerate(jobs["state"].tolist()) if s == state]
            lines = tuple(f"  {jobs['id'][i]}: {jobs['reason'][i]}" for i in hit[:5])
            if len(hit) > 5:
                lines += (f"  and {len(hit) - 5} more",)
            head = f"{count} of {summary['jobs']} jobs {state}"
            if not printed[(head, lines)]:
                finished = f"averages are over the {summary['finished']} that finished"
                note("\n".join([f"warning: {summary['trace']}, {summary['policy']}: {head}; {finished}", *lines]))
            printed[(head, lines)] += 1


def check_finished(summaries: Sequence[Mapping[str, Value | None]]) -> None:
    """Raise `SimulationError` if no job of a run finished, so that the run has no figures; cancelled jobs never do."""
    empty = [s for s in summaries if not s["finished"] and s["jobs"] != s["cancelled"]]
    if empty:
        runs = dict.fromkeys(f"{s['trace']} under {s['policy']} on {s['cluster']}" for s in empty)
        raise SimulationError(f"no job finished in {len(empty)} of {len(summaries)} runs: {', '.join(runs)}")


# Implementation of `plait sweep`: make the grid, run missing cases, show_sweep and write all of it.


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
        show_sweep(summaries, to_error=STDOUT in (request.json, request.csv))
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
        prices=Prices.given(request.price, request.currency),
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
    return RunResult(figures, {}, {}, cast("Any", None))


def groups(summaries: Sequence[Summary]) -> dict[str, list[RunResult]]:
    """Runs that compete: the same trace at the same load, cluster and world."""
    found: dict[str, list[RunResult]] = {}
    for summary in summaries:
        title = ", ".join(f"{name} {summary[name]}" for name in ("trace", "cluster", "world"))
        found.setdefault(title, []).append(as_result(summary))
    return found


def show_sweep(summaries: Sequence[Summary], *, to_error: bool) -> None:
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
