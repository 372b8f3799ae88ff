"""`plait reproduce`: a published evaluation again, ours beside the authors'."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(help="Run a published evaluation again: ours beside the authors'.", no_args_is_help=True)

Text = str | None


@app.command("muri", no_args_is_help=True)
def muri(
    data: Annotated[Path, typer.Option(help="The folder with the artifact's traces: trace1.csv, trace3.csv, ...")],
    figure: Annotated[
        Text, typer.Option(help="9, 10, 11, 12, 13, 14, tables, testbed; several with commas. [default: all]")
    ] = None,
    report: Annotated[Path | None, typer.Option(help="Write a self-contained HTML page with the figures.")] = None,
    json: Annotated[Text, typer.Option(help="Write all rows as JSON; - for standard output.")] = None,
    work: Annotated[Path | None, typer.Option(help="Where finished runs are kept. [default: the user's cache]")] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Run everything again.")] = False,
    jobs: Annotated[int | None, typer.Option(help="Only the first N jobs of each trace: a quick look.")] = None,
    matching: Annotated[
        str, typer.Option(help="artifact: ties as released; exact: plait's own matching.")
    ] = "artifact",
    own: Annotated[bool, typer.Option(help="Also the same experiments in plait's own world.")] = True,
    processes: Annotated[int, typer.Option(help="Runs at the same time.")] = 1,
) -> None:
    """Muri (SIGCOMM'22): its figures, tables and testbed.

    Figures 9 to 14, tables 4 and 5, and the testbed, on the artifact's traces.

    \b
    plait reproduce muri --data simulator/trace-data --report muri.html
    plait reproduce muri --data simulator/trace-data --figure 9,13

    Stop with Ctrl-C; the same command goes on where it was.
    """
    given = dict(locals())
    from plait.cli.experiments.reproduce_muri import MuriRequest, reproduce_muri

    reproduce_muri(MuriRequest(**given))


@app.command("pollux", no_args_is_help=True)
def pollux(
    data: Annotated[Path, typer.Option(help="The folder with the measurements: bert, cifar10, ...")],
    workload: Annotated[
        list[Path] | None, typer.Option(help="A workload; give it several times. [default: DATA/workload-6.csv]")
    ] = None,
    study: Annotated[Text, typer.Option(help="load, interval, interference; several with commas.")] = None,
    seeds: Annotated[str, typer.Option(help="Seeds of the genetic search, N or N..M.")] = "0..2",
    report: Annotated[Path | None, typer.Option(help="Write a self-contained HTML page with the figures.")] = None,
    json: Annotated[Text, typer.Option(help="Write all rows as JSON; - for standard output.")] = None,
    work: Annotated[Path | None, typer.Option(help="Where finished runs are kept. [default: the user's cache]")] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Run everything again.")] = False,
    jobs: Annotated[int | None, typer.Option(help="Only the first N jobs of each workload: a quick look.")] = None,
    processes: Annotated[int, typer.Option(help="Runs at the same time.")] = 1,
) -> None:
    """Pollux (OSDI'21): its simulation, and studies around it.

    The released simulation under Tiresias, Optimus and Pollux.

    \b
    plait reproduce pollux --data pollux-data --report pollux.html
    plait reproduce pollux --data simulator/traces --workload simulator/workloads/workload-6.csv --seeds 0

    A run of the genetic search takes minutes. Stop with Ctrl-C; the same command goes on where it was.
    """
    given = dict(locals())
    from plait.cli.experiments.reproduce_pollux import PolluxRequest, reproduce_pollux

    reproduce_pollux(PolluxRequest(**given))
