"""`plait reproduce`: repeat published evaluations and compare with the authors' results.

A command is a class: its docstring is the help, its fields are the options.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import typer

from plait.cli.experiments.options import Fresh, Json, Page, Processes, Text, WorkFolder
from plait.cli.lazy import command
from plait.core.options import option


@dataclass(frozen=True)
class MuriRequest:
    """Muri (SIGCOMM'22): its figures, tables and testbed.

    Figures 9 to 14, tables 4 and 5, and the testbed, on the artifact's traces.

    \b
    plait reproduce muri --data simulator/trace-data --report muri.html
    plait reproduce muri --data simulator/trace-data --figure 9,13

    Stop with Ctrl-C; the same command continues from there.
    """

    data: Annotated[Path, typer.Option(help="Folder with the artifact's traces: trace1.csv, trace3.csv, ...")]
    figure: Annotated[
        Text, typer.Option(metavar="FIGURE,...", help="8 to 14, tables, testbed, table1 or themis. [default: all]")
    ] = None
    report: Page = None
    json: Json = None
    work: WorkFolder = None
    fresh: Fresh = False
    jobs: int | None = option("Only the first N jobs of each trace, for a quick look", default=None)
    matching: Annotated[
        str, typer.Option(help="`artifact`: ties broken as in the released code; `exact`: plait's own matching.")
    ] = "artifact"
    own: Annotated[bool, typer.Option(help="Repeat the experiments in plait's own world.")] = True
    processes: Processes = 1


@dataclass(frozen=True)
class PolluxRequest:
    """Pollux (OSDI'21): its simulation and further studies.

    The released simulation under Tiresias, Optimus and Pollux.

    \b
    plait reproduce pollux --data pollux-data --report pollux.html
    plait reproduce pollux --data simulator/traces --workload simulator/workloads/workload-6.csv --seeds 0

    A run of the genetic search takes minutes. Stop with Ctrl-C; the same command continues from there.
    """

    data: Annotated[Path, typer.Option(help="Folder with the measurements: bert, cifar10, ...")]
    workload: Annotated[
        list[Path] | None,
        typer.Option(help="Workload file, or folder of them; may be repeated. [default: DATA/workload-6.csv]"),
    ] = None
    study: Text = option(
        "load, interval, interference, p, exploration, untuned or autoscale", default=None, metavar="STUDY,..."
    )
    policy: Annotated[
        Text, typer.Option(metavar="POLICY,...", help="Only these, e.g. tiresias,optimus,pollux. [default: all]")
    ] = None
    seeds: Annotated[str, typer.Option(help="Seeds of the genetic search, N or N..M.")] = "0..2"
    report: Page = None
    json: Json = None
    work: WorkFolder = None
    fresh: Fresh = False
    jobs: int | None = option("Only the first N jobs of each workload, for a quick look", default=None)
    processes: Processes = 1


@dataclass(frozen=True)
class TiresiasRequest:
    """Tiresias (NSDI'19): its claims, and studies of its parameters.

    The released 60 jobs and traces derived from Philly's under Tiresias, YARN-CS, Gandiva and policies with perfect
    knowledge; loads, queues, thresholds, promotion, placement, parameter servers and costs of a preemption.

    \b
    plait reproduce tiresias --data data --report tiresias.html
    plait reproduce tiresias --data data --section claims,loads

    Stop with Ctrl-C; the same command continues from there.
    """

    data: Annotated[Path, typer.Option(help="Folder with tiresias/60_job.csv, muri/trace3.csv and muri/trace1.csv.")]
    section: Annotated[
        Text, typer.Option(metavar="SECTION,...", help="claims, loads, studies, servers or preemption. [default: all]")
    ] = None
    report: Page = None
    json: Json = None
    work: WorkFolder = None
    fresh: Fresh = False
    jobs: int | None = option("Only the first N jobs of each trace, for a quick look", default=None)
    processes: Processes = 1


@dataclass(frozen=True)
class AntManRequest:
    """AntMan (OSDI'20): its cluster experiment, in plait's world.

    Simulates 64 GPUs, two tenants and nine models under AntMan, YARN-CS with and without preemption, and Gandiva;
    AntMan without each of its parts; and the traces under which the published ratios appear.

    \b
    plait reproduce antman --report antman.html
    plait reproduce antman --study load --data simulator/trace-data

    Stop with Ctrl-C; the same command continues from there.
    """

    data: Path | None = option(
        "Folder with the traces of Muri's artifact, to compare with its own version of AntMan", default=None
    )
    study: Annotated[
        Text,
        typer.Option(
            metavar="STUDY,...", help="load, share, longest, gangs, mix, split or shapes; or none. [default: all]"
        ),
    ] = None
    jobs: Annotated[int, typer.Option(help="Number of jobs of each trace.")] = 500
    load: Annotated[
        str, typer.Option(help="GPU time of all jobs over that of 64 GPUs while they are submitted; inf: all at once.")
    ] = "1"
    seeds: Annotated[str, typer.Option(help="Seeds of the traces, N or N..M.")] = "0..2"
    report: Page = None
    json: Json = None
    work: WorkFolder = None
    fresh: Fresh = False
    processes: Processes = 1


@dataclass(frozen=True)
class InaRequest:
    """In-network aggregation: figures of a reference, and headlines.

    Packet simulations of SwitchML, ATP, A2TP, ESA and INAlloc next to the figures of an independent simulator, and the
    papers' results next to plait's.

    \b
    plait reproduce ina --report ina.html
    plait reproduce ina --section goodput,straggler

    About three minutes on one core. Stop with Ctrl-C; the same command continues from there.
    """

    section: Annotated[
        Text,
        typer.Option(
            metavar="SECTION,...",
            help="goodput, fallback, aggregated, spread, other, straggler, deadlines, loss or "
            "headlines. [default: all]",
        ),
    ] = None
    report: Page = None
    json: Json = None
    work: WorkFolder = None
    fresh: Fresh = False
    processes: Processes = 1


@dataclass(frozen=True)
class EverythingRequest:
    """All policies on the same jobs, by what they know of durations.

    Compares the mean completion time under `plait` with the best of the others that know as much, over traces, loads,
    clusters and failures.

    \b
    plait reproduce everything --quick
    plait reproduce everything --data data --processes 2 --report everything.html

    Stop with Ctrl-C; the same command continues from there.
    """

    data: Path | None = option(
        "Folder with recorded traces: muri/trace1.csv, openb2023/...; left out if none", default=None
    )
    knows: Text = option("Only rows with this knowledge: exact, predicted or nothing", default=None)
    quick: bool = option("200 jobs, one seed, load 1, one cluster", default=False)
    jobs: Annotated[int | None, typer.Option(help="Number of jobs of each run. [default: 500, or 200]")] = None
    seeds: Annotated[str, typer.Option(help="Seeds of the traces, N or N..M.")] = "0..2"
    report: Page = None
    json: Json = None
    work: WorkFolder = None
    fresh: Fresh = False
    processes: Processes = 1


Request: TypeAlias = MuriRequest | PolluxRequest | TiresiasRequest | AntManRequest | InaRequest | EverythingRequest
COMMANDS: tuple[tuple[type[Any], str], ...] = (
    (MuriRequest, "plait_papers.muri.command:reproduce_muri"),
    (PolluxRequest, "plait_papers.pollux.command:reproduce_pollux"),
    (TiresiasRequest, "plait_papers.tiresias:reproduce_tiresias"),
    (AntManRequest, "plait_papers.antman.command:reproduce_antman"),
    (InaRequest, "plait_papers.ina.command:reproduce_ina"),
    (EverythingRequest, "plait_papers.everything:reproduce_everything"),
)
NEED_DATA = (MuriRequest, PolluxRequest, TiresiasRequest)

app = typer.Typer(help="Repeat a published evaluation and compare with its results.", no_args_is_help=True)
for request, run in COMMANDS:
    name = request.__name__.removesuffix("Request").lower()
    app.command(name, no_args_is_help=request in NEED_DATA)(command(request, run)(request))
