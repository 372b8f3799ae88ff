"""`plait sweep`: a grid of runs over processes, which can be stopped and taken up again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from plait.cli.commands.simulate import DEFAULT_POLICIES

Text = str | None


def sweep(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Where results go; run again to go on.")],
    policy: Annotated[str, typer.Option("--policy", "-p", help="Policies, as for simulate.")] = DEFAULT_POLICIES,
    cluster: Annotated[
        list[str] | None, typer.Option("--cluster", "-c", help="A cluster; give it again for more. [default: 8x8]")
    ] = None,
    load: Annotated[Text, typer.Option(help="Offered loads, e.g. 0.8,1.0,1.2. [default: the trace's own]")] = None,
    seed: Annotated[str, typer.Option(help="Seeds, e.g. 0..4.")] = "0..2",
    preset: Annotated[
        str, typer.Option(help="Synthetic trace: philly, philly_heavy, gavel, muri_like, ...")
    ] = "philly",
    jobs: Annotated[int, typer.Option(help="Jobs of a synthetic trace.")] = 1000,
    trace: Annotated[Path | None, typer.Option(help="A trace instead of a preset.")] = None,
    trace_format: Annotated[str, typer.Option("--format", "-f", help="See `plait trace formats`.")] = "auto",
    assign_models: Annotated[Text, typer.Option(help="Draw models: uniform or by_gpu_hours.")] = None,
    world: Annotated[str, typer.Option(help="Worlds, separated by commas.")] = "plait",
    round_s: Annotated[float | None, typer.Option("--round", help="Seconds between decisions.")] = None,
    placement: Annotated[Text, typer.Option(help="The placement of every policy that has the option.")] = None,
    overheads: Annotated[Text, typer.Option(help="Cost of starts and stops: measured, none or a CSV file.")] = None,
    spread_slowdown: Annotated[float | None, typer.Option(help="Slow-down of sensitive gangs when spread.")] = None,
    node_mtbf: Annotated[float | None, typer.Option(help="Hours between failures of a node, on average.")] = None,
    node_mttr: Annotated[float | None, typer.Option(help="Hours until a node is repaired, on average.")] = None,
    job_mtbf: Annotated[float | None, typer.Option(help="GPU-hours between failures of a job, on average.")] = None,
    profile_noise: Annotated[float | None, typer.Option(help="Estimates are off by up to this share, 0 to 1.")] = None,
    processes: Annotated[int | None, typer.Option(help="Runs at the same time. [default: the CPU cores]")] = None,
    json: Annotated[Text, typer.Option(help="Write all results as JSON; - for standard output.")] = None,
    csv: Annotated[Text, typer.Option(help="Write all results as CSV; - for standard output.")] = None,
    report: Annotated[Path | None, typer.Option(help="Write a page with the comparison of every group.")] = None,
) -> None:
    """Run a grid of policies, loads, seeds and clusters.

    Stop and go on at will.

    \b
    plait sweep out --preset philly --jobs 1000 --load 0.8,1.0,1.2 --seed 0..4 -p fifo,srsf,tiresias-l
    """
    given = dict(locals())
    from plait.cli.experiments.sweep_runner import SweepRequest, run_sweep

    run_sweep(SweepRequest(**given))
