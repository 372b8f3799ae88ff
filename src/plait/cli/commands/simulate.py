"""`plait simulate`: traces under policies, side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

#: Those compared when none is named: no knowledge, learnt, perfect knowledge.
DEFAULT_POLICIES = "fifo,tiresias-l,srsf"

Text = str | None


def simulate(
    traces: Annotated[list[Path], typer.Argument(metavar="TRACE...", help="Traces in any format plait reads.")],
    policy: Annotated[
        str, typer.Option("--policy", "-p", help="Policies, e.g. srsf,tiresias-l:knob=8,mymodule:MyPolicy.")
    ] = DEFAULT_POLICIES,
    cluster: Annotated[
        list[str] | None,
        typer.Option(
            "--cluster",
            "-c",
            help="NODESxGPUS, e.g. 8x8, or 4x8:v100,2x8:a100 as one; trace = its own; again: another. [default: 8x8]",
        ),
    ] = None,
    round_s: Annotated[
        float | None, typer.Option("--round", help="Seconds between decisions; 0 = at every event.")
    ] = None,
    world: Annotated[str, typer.Option(help="What is true: plait, ideal, ...; `plait worlds` lists them.")] = "plait",
    seed: Annotated[str, typer.Option(help="N, or N..M for several runs.")] = "0",
    placement: Annotated[Text, typer.Option(help="The placement of every policy that has the option.")] = None,
    trace_format: Annotated[str, typer.Option("--format", "-f", help="See `plait trace formats`.")] = "auto",
    work: Annotated[Text, typer.Option(help="muri: duration or iterations, what the work of a job is.")] = None,
    nodes: Annotated[Path | None, typer.Option(help="openb2023, spot2026: the node list.")] = None,
    data: Annotated[Path | None, typer.Option(help="pollux-artifact: the folder with its measurements.")] = None,
    assign_models: Annotated[Text, typer.Option(help="Draw models: uniform or by_gpu_hours.")] = None,
    censored: Annotated[str, typer.Option(help="Jobs whose end nobody saw: as_is, drop, extend.")] = "as_is",
    overheads: Annotated[Text, typer.Option(help="Cost of starts and stops: measured, none or a CSV file.")] = None,
    spread_slowdown: Annotated[
        float | None, typer.Option(help="Slow-down of sensitive gangs on more nodes than they need, e.g. 1.3.")
    ] = None,
    gpu_speed: Annotated[Text, typer.Option(help="Speed by GPU kind, 1 = as profiled: v100=1,a100=2.")] = None,
    failures: Annotated[Path | None, typer.Option(help="CSV of node failures: at_s,node,state.")] = None,
    node_mtbf: Annotated[float | None, typer.Option(help="Hours between failures of a node, on average.")] = None,
    node_mttr: Annotated[float | None, typer.Option(help="Hours until a node is repaired, on average.")] = None,
    job_mtbf: Annotated[float | None, typer.Option(help="GPU-hours between failures of a job, on average.")] = None,
    profile_noise: Annotated[float | None, typer.Option(help="Estimates are off by up to this share, 0 to 1.")] = None,
    plain: Annotated[float | None, typer.Option(help="Share of jobs without checkpoints to go on from.")] = None,
    checkpoint_every: Annotated[
        float | None, typer.Option(help="Seconds of work between checkpoints of jobs that fail, or save periodically.")
    ] = None,
    preemption: Annotated[
        str,
        typer.Option(help="weighed (against what a stop loses), may-lose-work (also plain jobs), freely (paper)."),
    ] = "weighed",
    window: Annotated[Text, typer.Option(help="Count only jobs submitted from A to B seconds: A..B.")] = None,
    jobs: Annotated[int | None, typer.Option(help="Only the first N jobs of each trace.")] = None,
    json: Annotated[Text, typer.Option(help="Write all figures as JSON; - for standard output.")] = None,
    csv: Annotated[Text, typer.Option(help="Write all figures as CSV; - for standard output.")] = None,
    jobs_csv: Annotated[Path | None, typer.Option(help="Write the jobs as CSV, a file a run.")] = None,
    report: Annotated[Path | None, typer.Option(help="Write a self-contained HTML report.")] = None,
    chrome_trace: Annotated[Path | None, typer.Option(help="Write who ran where, for Perfetto; a file a run.")] = None,
    log: Annotated[Path | None, typer.Option(help="Write every event and command (.gz too); a file a run.")] = None,
    check: Annotated[bool, typer.Option("--check", help="Verify the invariants after every event (slow).")] = False,
    processes: Annotated[int, typer.Option(help="Runs at the same time.")] = 1,
) -> None:
    """Simulate traces under one or more policies and compare them.

    \b
    plait simulate trace.csv --policy fifo,srsf --cluster 8x8
    plait simulate trace.csv -p tiresias-l:thresholds=3250/7200 --seed 0..4 --report out.html
    plait simulate trace.csv --policy srsf --cluster 8x8 --cluster 16x4
    """
    given = dict(locals())
    asked = list(dict.fromkeys(cluster or ()))
    given |= {"cluster": asked[0] if asked else None, "clusters": tuple(asked) if len(asked) > 1 else ()}
    from plait.cli.experiments.request import Request
    from plait.cli.experiments.simulation import answer

    answer(Request(**given))
