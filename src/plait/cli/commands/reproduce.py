"""`plait reproduce`: a published evaluation again, ours beside the authors'."""

from __future__ import annotations

import typer

from plait.cli.declared import command
from plait.cli.experiments.request import MuriRequest, PolluxRequest

app = typer.Typer(help="Run a published evaluation again: ours beside the authors'.", no_args_is_help=True)


def _muri(request: MuriRequest) -> None:
    from plait.cli.experiments.reproduce_muri import reproduce_muri

    reproduce_muri(request)


def _pollux(request: PolluxRequest) -> None:
    from plait.cli.experiments.reproduce_pollux import reproduce_pollux

    reproduce_pollux(request)


@app.command("muri", no_args_is_help=True)
@command(MuriRequest, _muri)
def muri() -> None:
    """Muri (SIGCOMM'22): its figures, tables and testbed.

    Figures 9 to 14, tables 4 and 5, and the testbed, on the artifact's traces.

    \b
    plait reproduce muri --data simulator/trace-data --report muri.html
    plait reproduce muri --data simulator/trace-data --figure 9,13

    Stop with Ctrl-C; the same command continues where it was.
    """


@app.command("pollux", no_args_is_help=True)
@command(PolluxRequest, _pollux)
def pollux() -> None:
    """Pollux (OSDI'21): its simulation, and studies around it.

    The released simulation under Tiresias, Optimus and Pollux.

    \b
    plait reproduce pollux --data pollux-data --report pollux.html
    plait reproduce pollux --data simulator/traces --workload simulator/workloads/workload-6.csv --seeds 0

    A run of the genetic search takes minutes. Stop with Ctrl-C; the same command continues where it was.
    """
