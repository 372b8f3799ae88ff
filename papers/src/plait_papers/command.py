"""`plait reproduce`: repeat published evaluations and compare with the authors' results."""

from __future__ import annotations

import typer

from plait.cli.lazy import command
from plait_papers.requests import (
    AntManRequest,
    EverythingRequest,
    InaRequest,
    MuriRequest,
    PolluxRequest,
    TiresiasRequest,
)

app = typer.Typer(help="Repeat a published evaluation and compare with its results.", no_args_is_help=True)


@app.command("muri", no_args_is_help=True)
@command(MuriRequest, "plait_papers.muri.command:reproduce_muri")
def muri() -> None:
    """Muri (SIGCOMM'22): its figures, tables and testbed.

    Figures 9 to 14, tables 4 and 5, and the testbed, on the artifact's traces.

    \b
    plait reproduce muri --data simulator/trace-data --report muri.html
    plait reproduce muri --data simulator/trace-data --figure 9,13

    Stop with Ctrl-C; the same command continues from there.
    """


@app.command("pollux", no_args_is_help=True)
@command(PolluxRequest, "plait_papers.pollux.command:reproduce_pollux")
def pollux() -> None:
    """Pollux (OSDI'21): its simulation and further studies.

    The released simulation under Tiresias, Optimus and Pollux.

    \b
    plait reproduce pollux --data pollux-data --report pollux.html
    plait reproduce pollux --data simulator/traces --workload simulator/workloads/workload-6.csv --seeds 0

    A run of the genetic search takes minutes. Stop with Ctrl-C; the same command continues from there.
    """


@app.command("tiresias", no_args_is_help=True)
@command(TiresiasRequest, "plait_papers.tiresias:reproduce_tiresias")
def tiresias() -> None:
    """Tiresias (NSDI'19): its claims, and studies of its parameters.

    The released 60 jobs and traces derived from Philly's under Tiresias, YARN-CS, Gandiva and policies with perfect
    knowledge; loads, queues, thresholds, promotion, placement, parameter servers and costs of a preemption.

    \b
    plait reproduce tiresias --data data --report tiresias.html
    plait reproduce tiresias --data data --section claims,loads

    Stop with Ctrl-C; the same command continues from there.
    """


@app.command("antman")
@command(AntManRequest, "plait_papers.antman.command:reproduce_antman")
def antman() -> None:
    """AntMan (OSDI'20): its cluster experiment, in plait's world.

    Simulates 64 GPUs, two tenants and nine models under AntMan, YARN-CS with and without preemption, and Gandiva;
    AntMan without each of its parts; and the traces under which the published ratios appear.

    \b
    plait reproduce antman --report antman.html
    plait reproduce antman --study load --data simulator/trace-data

    Stop with Ctrl-C; the same command continues from there.
    """


@app.command("ina")
@command(InaRequest, "plait_papers.ina.command:reproduce_ina")
def ina() -> None:
    """In-network aggregation: figures of a reference, and headlines.

    Packet simulations of SwitchML, ATP, A2TP, ESA and INAlloc next to the figures of an independent simulator, and the
    papers' results next to plait's.

    \b
    plait reproduce ina --report ina.html
    plait reproduce ina --section goodput,straggler

    About three minutes on one core. Stop with Ctrl-C; the same command continues from there.
    """


@app.command("everything")
@command(EverythingRequest, "plait_papers.everything:reproduce_everything")
def everything() -> None:
    """All policies on the same jobs, by what they know of durations.

    Compares the mean completion time under `plait` with the best of the others that know as much, over traces, loads,
    clusters and failures.

    \b
    plait reproduce everything --quick
    plait reproduce everything --data data --processes 2 --report everything.html

    Stop with Ctrl-C; the same command continues from there.
    """
