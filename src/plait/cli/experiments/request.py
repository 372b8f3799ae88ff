"""The options of commands that run simulations, each a field; `plait.cli.declared` makes the commands.

Options that several commands have are declared in `plait.cli.experiments.options`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from plait.cli.experiments.options import (
    OFFERED_LOAD,
    UNREADABLE,
    AssignModels,
    Censored,
    Columns,
    Csv,
    Currency,
    FirstJobs,
    Fresh,
    JobMtbf,
    Json,
    NetworkOption,
    NodeMtbf,
    NodeMttr,
    Nodes,
    OpportunisticShare,
    OverheadsOption,
    Page,
    Placement,
    Price,
    Processes,
    ProfileNoise,
    RoundS,
    SpreadSlowdown,
    SwitchMtbf,
    SwitchMttr,
    Tenants,
    Text,
    TimeZone,
    TraceFormat,
    Unreadable,
    Work,
    WorkFolder,
)

#: Policies compared when none is named: no knowledge, learnt, perfect knowledge.
DEFAULT_POLICIES = "fifo,tiresias-l,srsf"


@dataclass(frozen=True)
class Request:
    """The options of `plait simulate`."""

    traces: Annotated[list[Path], typer.Argument(metavar="TRACE...", help="Traces in any format that plait reads.")]
    policy: Annotated[
        str,
        typer.Option(
            "--policy", "-p", metavar="POLICY,...", help="Policies, e.g. srsf,tiresias-l:knob=8,mymodule:MyPolicy."
        ),
    ] = DEFAULT_POLICIES
    cluster: Annotated[
        list[str] | None,
        typer.Option(
            "--cluster",
            "-c",
            help="NODESxGPUS, e.g. 8x8, or 4x8:v100,2x8:a100 for one cluster of several GPU kinds; a cluster file "
            "(.toml); or `trace`: the trace's own cluster. Repeat the option to compare clusters. [default: 8x8]",
        ),
    ] = None
    round_s: RoundS = None
    world: Annotated[
        str, typer.Option(metavar="WORLD,...", help="Simulated worlds, e.g. plait or ideal; `plait worlds` lists them.")
    ] = "plait"
    seed: Annotated[str, typer.Option(help="Random seed N, or N..M for several runs.")] = "0"
    placement: Placement = None
    trace_format: TraceFormat = "auto"
    unreadable: Unreadable = UNREADABLE
    columns: Columns = None
    time_zone: TimeZone = None
    work: Work = None
    nodes: Nodes = None
    data: Annotated[Path | None, typer.Option(help="Folder of measurements, for format pollux-artifact.")] = None
    assign_models: AssignModels = None
    opportunistic_share: OpportunisticShare = None
    tenants: Tenants = None
    censored: Censored = "as_is"
    overheads: OverheadsOption = None
    spread_slowdown: SpreadSlowdown = None
    network: NetworkOption = None
    overlap: Annotated[
        float | None,
        typer.Option(help="With a network: part of the computation during which gradients are exchanged. [default: 0]"),
    ] = None
    phases: Annotated[
        Text,
        typer.Option(
            help="With a network: how exchanges of jobs meet: `random`, all `together`, or `interleaved`. "
            "[default: random]"
        ),
    ] = None
    guest_models: Annotated[
        Text, typer.Option(help="CSV of models on shared GPUs: quanta, gaps, memory, curves, bursts.")
    ] = None
    gpu_memory: Annotated[
        float | None, typer.Option(help="Memory in GB of each GPU whose memory the cluster does not give.")
    ] = None
    gpu_speed: Annotated[Text, typer.Option(help="Speed by GPU kind, 1 = as profiled: v100=1,a100=2.")] = None
    failures: Annotated[Path | None, typer.Option(help="CSV of failures of nodes and switches: at_s,node,state.")] = (
        None
    )
    node_mtbf: NodeMtbf = None
    node_mttr: NodeMttr = None
    switch_mtbf: SwitchMtbf = None
    switch_mttr: SwitchMttr = None
    job_mtbf: JobMtbf = None
    profile_noise: ProfileNoise = None
    plain: Annotated[float | None, typer.Option(help="Share of jobs that cannot resume from a checkpoint, 0 to 1.")] = (
        None
    )
    checkpoint_every: Annotated[
        float | None, typer.Option(help="Seconds of work between checkpoints of a running job.")
    ] = None
    preemption: Annotated[
        str,
        typer.Option(
            help="Which jobs may be stopped: `weighed` (if it gains more than the stop loses), `may-lose-work` (also "
            "jobs without checkpoints) or `freely` (as in the papers)."
        ),
    ] = "weighed"
    price: Price = None
    currency: Currency = ""
    window: Annotated[Text, typer.Option(help="Count only jobs submitted from A to B seconds: A..B.")] = None
    jobs: FirstJobs = None
    json: Json = None
    csv: Csv = None
    jobs_csv: Annotated[Path | None, typer.Option(help="Write the jobs as CSV, one file per run.")] = None
    report: Page = None
    chrome_trace: Annotated[
        Path | None, typer.Option(help="Write a timeline of jobs on GPUs for Perfetto, one file per run.")
    ] = None
    log: Annotated[
        Path | None, typer.Option(help="Write every event and command, compressed if .gz; one file per run.")
    ] = None
    check: Annotated[bool, typer.Option("--check", help="Verify the invariants after every event (slow).")] = False
    processes: Processes = 1

    @property
    def clusters(self) -> tuple[str, ...]:
        """The clusters that were named, each once."""
        return tuple(dict.fromkeys(self.cluster or ()))


@dataclass(frozen=True)
class SweepRequest:
    """The options of `plait sweep`."""

    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="Folder of the results; the same command continues there.")
    ]
    policy: Annotated[
        str, typer.Option("--policy", "-p", metavar="POLICY,...", help="Policies, as for `plait simulate`.")
    ] = DEFAULT_POLICIES
    cluster: Annotated[
        list[str] | None,
        typer.Option("--cluster", "-c", help="Cluster, e.g. 8x8. Repeat the option for more. [default: 8x8]"),
    ] = None
    load: Annotated[
        Text,
        typer.Option(metavar="LOAD,...", help=f"{OFFERED_LOAD}. E.g. 0.8,1.0,1.2. [default: the trace's own]"),
    ] = None
    seed: Annotated[str, typer.Option(help="Random seed N, or N..M for several runs.")] = "0..2"
    preset: Annotated[str, typer.Option(help="Synthetic trace: philly, philly_heavy, gavel, muri_like, ...")] = "philly"
    jobs: Annotated[int, typer.Option(help="Number of jobs of a synthetic trace.")] = 1000
    trace: Annotated[Path | None, typer.Option(help="A trace instead of a preset.")] = None
    trace_format: TraceFormat = "auto"
    assign_models: AssignModels = None
    world: Annotated[str, typer.Option(metavar="WORLD,...", help="Simulated worlds; `plait worlds` lists them.")] = (
        "plait"
    )
    round_s: RoundS = None
    placement: Placement = None
    overheads: OverheadsOption = None
    spread_slowdown: SpreadSlowdown = None
    node_mtbf: NodeMtbf = None
    node_mttr: NodeMttr = None
    job_mtbf: JobMtbf = None
    profile_noise: ProfileNoise = None
    price: Price = None
    currency: Currency = ""
    processes: Annotated[int | None, typer.Option(help="Number of runs at the same time. [default: the CPU cores]")] = (
        None
    )
    json: Json = None
    csv: Csv = None
    report: Annotated[Path | None, typer.Option(help="Write an HTML report that compares the runs of each group.")] = (
        None
    )


@dataclass(frozen=True)
class MuriRequest:
    """The options of `plait reproduce muri`."""

    data: Annotated[Path, typer.Option(help="Folder with the artifact's traces: trace1.csv, trace3.csv, ...")]
    figure: Annotated[Text, typer.Option(metavar="FIGURE,...", help="9 to 14, tables or testbed. [default: all]")] = (
        None
    )
    report: Page = None
    json: Json = None
    work: WorkFolder = None
    fresh: Fresh = False
    jobs: Annotated[int | None, typer.Option(help="Only the first N jobs of each trace, for a quick look.")] = None
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
        list[Path] | None, typer.Option(help="Workload file; may be repeated. [default: DATA/workload-6.csv]")
    ] = None
    study: Annotated[Text, typer.Option(metavar="STUDY,...", help="load, interval or interference.")] = None
    seeds: Annotated[str, typer.Option(help="Seeds of the genetic search, N or N..M.")] = "0..2"
    report: Page = None
    json: Json = None
    work: WorkFolder = None
    fresh: Fresh = False
    jobs: Annotated[int | None, typer.Option(help="Only the first N jobs of each workload, for a quick look.")] = None
    processes: Processes = 1


@dataclass(frozen=True)
class AntManRequest:
    """The options of `plait reproduce antman`."""

    data: Annotated[
        Path | None,
        typer.Option(help="Folder with the traces of Muri's artifact, to compare with its own version of AntMan."),
    ] = None
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
