"""`plait simulate --world NAME` for a published world: its own policies on its own traces."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from functools import partial

from plait.cli.experiments.request import Request
from plait.cli.render.progress import Bar
from plait.control.metrics import RunResult
from plait.core.errors import InputError, suggest
from plait.policies.catalog import split_policies
from plait.reproduce.published import PublishedRun, PublishedWorld
from plait.reproduce.worlds import SUMMARIES, published_world
from plait.sim.studies.cases import over_processes
from plait.sim.world import WORLDS

#: Options of `plait simulate` that mean something in every published world.
ASKS = ("traces", "policy", "world")
OUTPUTS = ("json", "csv", "jobs_csv", "processes")


def published_runs(request: Request) -> list[PublishedRun] | None:
    """The runs, policy by policy on each trace, all checked; None if the world is one of plait's own."""
    names = [name.strip() for name in request.world.split(",")]
    for asked in names:
        if asked not in (*WORLDS, *SUMMARIES):
            raise InputError(f"unknown world {asked!r}; {suggest(asked, [*WORLDS, *SUMMARIES])}")
    name = next((name for name in names if name in SUMMARIES), None)
    world = None if name is None else published_world(name)
    if name is None or world is None:
        return None
    if len(names) > 1:
        raise InputError(f"world {name} has policies of its own and is not compared with others; give it alone")
    if len(request.clusters) > 1:
        raise InputError(f"world {name} has its own cluster, {world.cluster}; give one --cluster, or none")
    _refuse(request, name, world)
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


def _refuse(request: Request, name: str, world: PublishedWorld) -> None:
    """Name the first option that means nothing in this world."""
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


def _option(field: str) -> str:
    """An option of the command line by its field in the request."""
    return "--" + {"trace_format": "format", "round_s": "round"}.get(field, field).replace("_", "-")


def run_published(runs: list[PublishedRun], processes: int) -> list[RunResult]:
    """Results in the order of the runs, with a progress bar by jobs ended (by runs, over processes)."""
    jobs = [_world(run).jobs(run) for run in runs]
    results: dict[int, RunResult] = {}
    with Bar("simulating", sum(jobs)) as bar:
        here = processes == 1 or len(runs) == 1
        work = partial(_run, ended=bar.advance if here else None)
        for i, result in over_processes(work, runs, processes):
            results[i] = result
            if not here:
                bar.advance(jobs[i])
    return [results[i] for i in range(len(runs))]


def _run(run: PublishedRun, ended: Callable[[int], None] | None = None) -> RunResult:
    begin = time.perf_counter()
    result = _world(run).run(run, ended)
    wall_s = round(time.perf_counter() - begin, 3)
    return dataclasses.replace(result, summary={**result.summary, "wall_s": wall_s})


def _world(run: PublishedRun) -> PublishedWorld:
    world = published_world(run.world)
    if world is None:
        raise InputError(f"unknown world {run.world!r}; {suggest(run.world, SUMMARIES)}")
    return world
