"""What `plait simulate` does: read traces, make a case of each combination, run them, show and write the results."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from plait.cli.experiments.outputs import STDOUT, Outputs, names_of_runs
from plait.cli.experiments.request import Request
from plait.cli.render.console import Printer, console
from plait.cli.render.progress import Bar
from plait.control.metrics import RunResult, Value, Window
from plait.core.cluster import Cluster
from plait.core.errors import InputError
from plait.core.jobs import JobBatch
from plait.core.preemption import rule_named
from plait.core.version import __version__
from plait.live.notes import note
from plait.placement import SkewAware, unknown_models
from plait.policies.catalog import import_from_here, make_policy, split_policies
from plait.policies.parts.ignored_requests import remarks
from plait.sim.failures import read_failures
from plait.sim.overheads import Overheads
from plait.sim.physics import StandardPhysics
from plait.sim.run import with_round
from plait.sim.studies.cases import Case, has_placement, over_processes, parse_range, policy_text, run_case
from plait.sim.world import World, make_world
from plait.traces.adaptive import no_larger_than
from plait.traces.formats.registry import read_trace
from plait.traces.load import cluster_of, load_jobs
from plait.traces.synthetic.assign import assign_models
from plait.traces.table import TraceTable

#: What plait's own worlds run on when nothing else is asked for.
DEFAULT_CLUSTER = "8x8"


def answer(request: Request) -> None:
    """Do what was asked."""
    import_from_here()
    from plait.cli.experiments.published import published_runs, run_published

    with Outputs() as outputs:
        published = published_runs(request)
        cases = make_cases(request) if published is None else []
        names: list[tuple[str, ...]] = [(c.policy, c.world.name, str(c.seed), c.trace, str(c.cluster)) for c in cases]
        names += [(r.policy, r.world, "0", str(r.trace), "") for r in published or ()]
        files = _reserve(request, names, outputs)
        if request.log is not None:
            cases = [
                replace(c, log=str(outputs.path(p)))
                for c, p in zip(cases, names_of_runs(request.log, names), strict=True)
            ]
        results = (
            run_all(cases, request.processes) if published is None else run_published(published, request.processes)
        )
        _write(results, files, outputs)
        if STDOUT in (request.json, request.csv):
            show(results, console(error=True))
            outputs.commit()
        else:
            show(results, console())
            for path in outputs.commit():
                note(f"wrote {path}")


# -- cases -----------------------------------------------------------------------------------------------


def make_cases(request: Request) -> list[Case]:
    """One case a (cluster, trace, policy, world, seed), in this order; all is checked before anything runs."""
    for text in request.clusters:
        if "," in text:
            note(
                f"{text} is one cluster of {len(text.split(','))} kinds of nodes; to compare clusters give each by "
                "itself: " + " ".join(f"-c {part.strip()}" for part in text.split(","))
            )
    return [
        case for text in request.clusters or (DEFAULT_CLUSTER,) for case in _cases_on(replace(request, cluster=[text]))
    ]


def _cases_on(request: Request) -> list[Case]:
    """The cases on its one cluster."""
    given = None if request.clusters == ("trace",) else Cluster.parse(request.clusters[0])
    if request.data is not None:
        raise InputError(f"world {request.world} uses no --data; of the worlds only pollux-artifact does")
    policies = split_policies(request.policy)
    if not policies:
        raise InputError("no policy given; `plait policies` lists them")
    for policy in policies:
        make_policy(policy_text(policy, request.placement))
        if request.placement is not None and not has_placement(policy):
            note(f"warning: {policy} places jobs in its own way; --placement does not change it")
    worlds = [make_asked_world(name.strip(), request) for name in request.world.split(",")]
    window = None if request.window is None else read_window(request.window)
    seeds, rule = parse_range(request.seed, "seed"), rule_named(request.preemption)
    cases = []
    for path in request.traces:
        table = _table(path, request)
        cluster = given or cluster_of(table)
        changes = None if request.failures is None else read_failures(request.failures, cluster)
        drawn = request.assign_models is not None or request.censored == "extend"
        loads = {seed: _workload(table, path, request, seed, cluster) for seed in (seeds if drawn else seeds[:1])}
        _say_unknown_skew(path, [policy_text(p, request.placement) for p in policies], loads[seeds[0]][0])
        for policy in policies:
            _say_ignored(path, policy, loads[seeds[0]][0])
            for world in worlds:
                for seed in seeds:
                    jobs, about = loads.get(seed) or loads[seeds[0]]
                    labels = {**about, **settings(world, request)}
                    cases.append(
                        Case(str(path), jobs, policy, cluster, world, seed, request.placement, window, changes,
                             request.check, None, labels, rule)
                    )  # fmt: skip
    return cases


def _say_ignored(path: Path, policy: str, jobs: JobBatch) -> None:
    """Priorities and deadlines that a trace has and a policy does not look at."""
    priority = next((p for p in jobs.column("priority").tolist() if p), 0.0)
    deadline_s = next((d for d in jobs.column("deadline_s").tolist() if not math.isnan(d)), None)
    for remark in remarks(policy, make_policy(policy), priority, deadline_s):
        note(f"warning: {path}: {remark}")


def _say_unknown_skew(path: Path, policies: Sequence[str], jobs: JobBatch) -> None:
    """Models whose tensor sizes nobody knows, where a policy places by them."""
    if any(isinstance(getattr(make_policy(text), "place", None), SkewAware) for text in policies):
        remark = unknown_models(jobs.column("model"), jobs.column("skew"), jobs.gpus)
        if remark:
            note(f"{path}: {remark}")


def make_asked_world(name: str, request: Request) -> World:
    """The named world with the options of the command line."""
    world = with_round(make_world(name), request.round_s)
    asked: dict[str, Any] = {}
    if request.overheads is not None:
        known = {"measured": Overheads.measured, "none": Overheads}
        make = known.get(request.overheads)
        asked["overheads"] = make() if make else Overheads.read(request.overheads)
    if request.spread_slowdown is not None or request.gpu_speed is not None:
        asked["physics"] = asked_physics(world, request)
    for option, value in (
        ("node_mtbf", request.node_mtbf),
        ("node_mttr", request.node_mttr),
        ("job_mtbf", request.job_mtbf),
    ):
        if value is not None:
            asked[f"{option}_s"] = value * 3600
    if request.failures is not None and request.node_mtbf is not None:
        raise InputError("give --failures or --node-mtbf, not both")
    if request.profile_noise is not None:
        asked["profile_noise"] = request.profile_noise
    if request.plain is not None:
        asked["plain"] = request.plain
    if request.checkpoint_every is not None:
        asked["checkpoint_every_s"] = request.checkpoint_every
    return replace(world, **asked)


def read_window(text: str) -> Window:
    """Read `A..B` (seconds of submission) or `jobs:A..B` (numbers in order of submission).

    >>> read_window("0..3600").stop
    3600.0
    """
    numbered = text.startswith("jobs:")
    first, dots, last = text.removeprefix("jobs:").partition("..")
    try:
        if not dots:
            raise ValueError
        start, stop = float(first or 0), float(last or "inf")
    except ValueError:
        raise InputError(f"window {text!r} is not A..B; write e.g. 0..86400 or jobs:100..900") from None
    return Window(start, stop, "number" if numbered else "submit_s")


def _table(path: Path, request: Request) -> TraceTable:
    given = {"work": request.work, "nodes": request.nodes}
    options: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    table = read_trace(path, request.trace_format, **options)
    if request.jobs is not None:
        if request.jobs < 1:
            raise InputError(f"--jobs must be at least 1, got {request.jobs}")
        import numpy as np

        table = table.select(np.arange(min(request.jobs, len(table))))
    for text in table.meta["warnings"]:
        note(f"warning: {path}: {text}")
    _say_dropped(path, table.meta["rows_dropped"], "while reading")
    return table


def read_workload(path: Path, request: Request, seed: int, cluster: Cluster) -> JobBatch:
    """The jobs of one trace, with everything a reader should know said."""
    return _workload(_table(path, request), path, request, seed, cluster)[0]


def _workload(
    table: TraceTable, path: Path, request: Request, seed: int, cluster: Cluster
) -> tuple[JobBatch, dict[str, Value]]:
    if request.assign_models is not None:
        table = assign_models(table, seed=seed, mix=request.assign_models)
    try:
        work = load_jobs(table, censored=request.censored, seed=seed)
    except InputError as error:
        hint = "; `plait trace convert` can add what the file lacks" if "no_duration" in str(error) else ""
        raise InputError(f"{path}: {error}{hint}") from None
    if seed == parse_range(request.seed, "seed")[0]:
        _say_dropped(path, work.dropped, "of the simulation", work.first_dropped)
        for text in work.warnings:
            note(f"warning: {path}: {text}")
    jobs = no_larger_than(work.jobs, cluster)
    span_s = float(jobs.submit_s[-1] - jobs.submit_s[0])
    gpu_s = float((jobs.gpus * jobs.iterations * jobs.iteration_s).sum())
    dropped = sum(work.dropped.values()) + sum(table.meta["rows_dropped"].values())
    load = round(gpu_s / (span_s * cluster.gpus), 6) if span_s > 0 else math.nan
    about: dict[str, Value] = {"load": load, "dropped": dropped}
    if request.clusters == ("trace",):  # as text it may be as long as the list of nodes
        about["cluster"] = f"of the trace: {len(cluster.nodes)} nodes, {cluster.gpus} GPUs"
    return jobs, about


#: What the reasons mean for which rows are left out before a simulation.
LEFT_OUT = {
    "cpu_only": "no GPU",
    "no_duration": "no duration, nor a model from which it follows",
    "censored": "nobody saw the end",
}


def _say_dropped(path: Path, dropped: Mapping[str, int], when: str, first: Mapping[str, str] | None = None) -> None:
    if not dropped:
        return
    reasons = []
    for reason, count in dropped.items():
        job = f" (the first is job {first[reason]!r})" if first and reason in first else ""
        reasons.append(f"{count} {LEFT_OUT.get(reason, reason)}{job}")
    total = sum(dropped.values())
    note(f"{path}: {total} row{'s' if total != 1 else ''} left out {when}: {', '.join(reasons)}")


def asked_physics(world: World, request: Request) -> StandardPhysics:
    """The world's physics with the spread slow-down and GPU speeds of the command line."""
    physics = world.physics
    if not isinstance(physics, StandardPhysics):
        raise InputError(f"world {world.name} has no spread slow-down and no GPU speeds")
    if request.spread_slowdown is not None:
        if not (math.isfinite(request.spread_slowdown) and request.spread_slowdown >= 1):
            raise InputError(f"--spread-slowdown must be at least 1, got {request.spread_slowdown}")
        physics = replace(physics, spread_slowdown=request.spread_slowdown)
    if request.gpu_speed is not None:
        physics = replace(physics, kind_speed=read_speeds(request.gpu_speed))
    return physics


def read_speeds(text: str) -> dict[str, float]:
    """GPU speeds from `kind=factor,...`."""
    speeds: dict[str, float] = {}
    for part in text.split(","):
        kind, _, factor = part.strip().partition("=")
        try:
            speeds[kind] = float(factor)
        except ValueError:
            speeds[kind] = math.nan
        if not kind or not (math.isfinite(speeds[kind]) and speeds[kind] > 0):
            raise InputError(f"--gpu-speed {part.strip()!r}: write kind=factor, e.g. v100=1,a100=2")
    return speeds


def settings(world: World, request: Request) -> dict[str, Value]:
    """What a result must state so that it can be judged and repeated."""
    physics = world.physics
    return {
        "placement": request.placement or "",
        "round_s": world.round_s,
        "overheads": request.overheads or world.overheads.label,
        "spread_slowdown": physics.spread_slowdown if isinstance(physics, StandardPhysics) else math.nan,
        "gpu_speed": request.gpu_speed or "",
        "checkpoint_every_s": world.checkpoint_every_s,
        "node_failures": "" if request.failures is None else str(request.failures),
        "node_mtbf_s": _or_unknown(world.node_mtbf_s),
        "node_mttr_s": world.node_mttr_s,
        "job_mtbf_s": _or_unknown(world.job_mtbf_s),
        "profile_noise": world.profile_noise,
        "plain": world.plain,
        "preemption": request.preemption,
        "models": request.assign_models or "",
        "censored": request.censored,
        "version": __version__,
    }


def _or_unknown(value: float) -> float:
    """Infinite means never, and is null in JSON."""
    return value if math.isfinite(value) else math.nan


# -- running ---------------------------------------------------------------------------------------------


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


# -- results ---------------------------------------------------------------------------------------------


def _reserve(request: Request, names: list[tuple[str, ...]], outputs: Outputs) -> list[tuple[str, int, Path | None]]:
    """Every output that is asked for, as (kind, run or -1 for all, path); those to standard output have none."""
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


def _write(results: Sequence[RunResult], files: Sequence[tuple[str, int, Path | None]], outputs: Outputs) -> None:
    from plait.report import tables
    from plait.report.timeline import write_chrome_trace

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
    """The settings that the report shows, where they say something."""
    names = {
        "load": "Offered load, by GPUs asked for", "placement": "Placement", "round_s": "Round (s)",
        "overheads": "Overheads",
        "spread_slowdown": "Spread slow-down", "profile_noise": "Profile noise", "models": "Models",
        "censored": "Censored jobs", "node_failures": "Node failures",
    }  # fmt: skip
    out = {}
    for name, label in names.items():
        values = list(dict.fromkeys(str(r.summary.get(name, "")) for r in results))
        if any(values):
            out[label] = ", ".join(v or "-" for v in values)
    return out


def show(results: Sequence[RunResult], printer: Printer) -> None:
    """The comparison table, then what a reader must know to trust it."""
    from plait.cli.render.comparison import print_comparison

    if print_comparison(results, printer):
        note("a wider terminal shows more figures; --json, --csv and --report have all of them")
    warn_about_jobs(results)


def warn_about_jobs(results: Sequence[RunResult]) -> None:
    """Name jobs that were refused or failed; averages leave them out."""
    said: Counter[tuple[str, tuple[str, ...]]] = Counter()
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
            if not said[(head, lines)]:
                finished = f"averages are over the {summary['finished']} that finished"
                note("\n".join([f"warning: {summary['trace']}, {summary['policy']}: {head}; {finished}", *lines]))
            said[(head, lines)] += 1
