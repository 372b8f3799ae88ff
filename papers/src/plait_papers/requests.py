"""The options of `plait reproduce`, each a field; `plait.cli.lazy` makes the commands."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from plait.cli.experiments.options import Fresh, Json, Page, Processes, Text, WorkFolder
from plait.core.options import option


@dataclass(frozen=True)
class MuriRequest:
    """The options of `plait reproduce muri`."""

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
    """The options of `plait reproduce pollux`."""

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
    """The options of `plait reproduce tiresias`."""

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
    """The options of `plait reproduce antman`."""

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
    """The options of `plait reproduce ina`."""

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
    """The options of `plait reproduce everything`."""

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
