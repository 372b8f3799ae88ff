"""What commands that make runs are asked for: each option once, as a field; `plait.cli.declared` makes the commands."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

#: Policies compared when none is named: no knowledge, learnt, perfect knowledge.
DEFAULT_POLICIES = "fifo,tiresias-l,srsf"

Text = str | None


@dataclass(frozen=True)
class Request:
    """The options of `plait simulate`."""

    traces: Annotated[list[Path], typer.Argument(metavar="TRACE...", help="Traces in any format plait reads.")]
    policy: Annotated[
        str, typer.Option("--policy", "-p", help="Policies, e.g. srsf,tiresias-l:knob=8,mymodule:MyPolicy.")
    ] = DEFAULT_POLICIES
    cluster: Annotated[
        list[str] | None,
        typer.Option(
            "--cluster",
            "-c",
            help="NODESxGPUS, e.g. 8x8, or 4x8:v100,2x8:a100 as one; trace = its own; again: another. [default: 8x8]",
        ),
    ] = None
    round_s: Annotated[float | None, typer.Option("--round", help="Seconds between decisions; 0 = at every event.")] = (
        None
    )
    world: Annotated[str, typer.Option(help="What is true: plait, ideal, ...; `plait worlds` lists them.")] = "plait"
    seed: Annotated[str, typer.Option(help="N, or N..M for several runs.")] = "0"
    placement: Annotated[Text, typer.Option(help="The placement of every policy that has the option.")] = None
    trace_format: Annotated[str, typer.Option("--format", "-f", help="See `plait trace formats`.")] = "auto"
    work: Annotated[Text, typer.Option(help="muri: duration or iterations, what the work of a job is.")] = None
    nodes: Annotated[Path | None, typer.Option(help="openb2023, spot2026: the node list.")] = None
    data: Annotated[Path | None, typer.Option(help="pollux-artifact: the folder with its measurements.")] = None
    assign_models: Annotated[Text, typer.Option(help="Draw models: uniform or by_gpu_hours.")] = None
    opportunistic_share: Annotated[
        float | None, typer.Option(help="Share of jobs made opportunistic, from 0 to 1, by chance.")
    ] = None
    tenants: Annotated[int | None, typer.Option(help="Deal the jobs out to so many projects, by chance.")] = None
    censored: Annotated[str, typer.Option(help="Jobs whose end nobody saw: as_is, drop, extend.")] = "as_is"
    overheads: Annotated[Text, typer.Option(help="Cost of starts and stops: measured, none or a CSV file.")] = None
    spread_slowdown: Annotated[
        float | None, typer.Option(help="Slow-down of sensitive gangs on more nodes than they need, e.g. 1.3.")
    ] = None
    gpu_speed: Annotated[Text, typer.Option(help="Speed by GPU kind, 1 = as profiled: v100=1,a100=2.")] = None
    failures: Annotated[Path | None, typer.Option(help="CSV of node failures: at_s,node,state.")] = None
    node_mtbf: Annotated[float | None, typer.Option(help="Hours between failures of a node, on average.")] = None
    node_mttr: Annotated[float | None, typer.Option(help="Hours until a node is repaired, on average.")] = None
    job_mtbf: Annotated[float | None, typer.Option(help="GPU-hours between failures of a job, on average.")] = None
    profile_noise: Annotated[float | None, typer.Option(help="Estimates are off by up to this share, 0 to 1.")] = None
    plain: Annotated[float | None, typer.Option(help="Share of jobs without checkpoints to go on from.")] = None
    checkpoint_every: Annotated[
        float | None, typer.Option(help="Seconds of work between checkpoints of jobs that fail, or save periodically.")
    ] = None
    preemption: Annotated[
        str,
        typer.Option(help="weighed (against what a stop loses), may-lose-work (also plain jobs), freely (paper)."),
    ] = "weighed"
    window: Annotated[Text, typer.Option(help="Count only jobs submitted from A to B seconds: A..B.")] = None
    jobs: Annotated[int | None, typer.Option(help="Only the first N jobs of each trace.")] = None
    json: Annotated[Text, typer.Option(help="Write all figures as JSON; - for standard output.")] = None
    csv: Annotated[Text, typer.Option(help="Write all figures as CSV; - for standard output.")] = None
    jobs_csv: Annotated[Path | None, typer.Option(help="Write the jobs as CSV, a file a run.")] = None
    report: Annotated[Path | None, typer.Option(help="Write a self-contained HTML report.")] = None
    chrome_trace: Annotated[Path | None, typer.Option(help="Write who ran where, for Perfetto; a file a run.")] = None
    log: Annotated[Path | None, typer.Option(help="Write every event and command (.gz too); a file a run.")] = None
    check: Annotated[bool, typer.Option("--check", help="Verify the invariants after every event (slow).")] = False
    processes: Annotated[int, typer.Option(help="Runs at the same time.")] = 1

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
    policy: Annotated[str, typer.Option("--policy", "-p", help="Policies, as for simulate.")] = DEFAULT_POLICIES
    cluster: Annotated[
        list[str] | None, typer.Option("--cluster", "-c", help="A cluster; give it again for more. [default: 8x8]")
    ] = None
    load: Annotated[Text, typer.Option(help="Offered loads, e.g. 0.8,1.0,1.2. [default: the trace's own]")] = None
    seed: Annotated[str, typer.Option(help="Seeds, e.g. 0..4.")] = "0..2"
    preset: Annotated[str, typer.Option(help="Synthetic trace: philly, philly_heavy, gavel, muri_like, ...")] = "philly"
    jobs: Annotated[int, typer.Option(help="Jobs of a synthetic trace.")] = 1000
    trace: Annotated[Path | None, typer.Option(help="A trace instead of a preset.")] = None
    trace_format: Annotated[str, typer.Option("--format", "-f", help="See `plait trace formats`.")] = "auto"
    assign_models: Annotated[Text, typer.Option(help="Draw models: uniform or by_gpu_hours.")] = None
    world: Annotated[str, typer.Option(help="Worlds, separated by commas.")] = "plait"
    round_s: Annotated[float | None, typer.Option("--round", help="Seconds between decisions.")] = None
    placement: Annotated[Text, typer.Option(help="The placement of every policy that has the option.")] = None
    overheads: Annotated[Text, typer.Option(help="Cost of starts and stops: measured, none or a CSV file.")] = None
    spread_slowdown: Annotated[float | None, typer.Option(help="Slow-down of sensitive gangs when spread.")] = None
    node_mtbf: Annotated[float | None, typer.Option(help="Hours between failures of a node, on average.")] = None
    node_mttr: Annotated[float | None, typer.Option(help="Hours until a node is repaired, on average.")] = None
    job_mtbf: Annotated[float | None, typer.Option(help="GPU-hours between failures of a job, on average.")] = None
    profile_noise: Annotated[float | None, typer.Option(help="Estimates are off by up to this share, 0 to 1.")] = None
    processes: Annotated[int | None, typer.Option(help="Runs at the same time. [default: the CPU cores]")] = None
    json: Annotated[Text, typer.Option(help="Write all results as JSON; - for standard output.")] = None
    csv: Annotated[Text, typer.Option(help="Write all results as CSV; - for standard output.")] = None
    report: Annotated[Path | None, typer.Option(help="Write a page with the comparison of every group.")] = None


@dataclass(frozen=True)
class MuriRequest:
    """The options of `plait reproduce muri`."""

    data: Annotated[Path, typer.Option(help="The folder with the artifact's traces: trace1.csv, trace3.csv, ...")]
    figure: Annotated[
        Text, typer.Option(help="9, 10, 11, 12, 13, 14, tables, testbed; several with commas. [default: all]")
    ] = None
    report: Annotated[Path | None, typer.Option(help="Write a self-contained HTML page with the figures.")] = None
    json: Annotated[Text, typer.Option(help="Write all rows as JSON; - for standard output.")] = None
    work: Annotated[Path | None, typer.Option(help="Where finished runs are kept. [default: the user's cache]")] = None
    fresh: Annotated[bool, typer.Option("--fresh", help="Run everything again.")] = False
    jobs: Annotated[int | None, typer.Option(help="Only the first N jobs of each trace: a quick look.")] = None
    matching: Annotated[str, typer.Option(help="artifact: ties as released; exact: plait's own matching.")] = "artifact"
    own: Annotated[bool, typer.Option(help="Also the same experiments in plait's own world.")] = True
    processes: Annotated[int, typer.Option(help="Runs at the same time.")] = 1


@dataclass(frozen=True)
class PolluxRequest:
    """The options of `plait reproduce pollux`."""

    data: Annotated[Path, typer.Option(help="The folder with the measurements: bert, cifar10, ...")]
    workload: Annotated[
        list[Path] | None, typer.Option(help="A workload; give it several times. [default: DATA/workload-6.csv]")
    ] = None
    study: Annotated[Text, typer.Option(help="load, interval, interference; several with commas.")] = None
    seeds: Annotated[str, typer.Option(help="Seeds of the genetic search, N or N..M.")] = "0..2"
    report: Annotated[Path | None, typer.Option(help="Write a self-contained HTML page with the figures.")] = None
    json: Annotated[Text, typer.Option(help="Write all rows as JSON; - for standard output.")] = None
    work: Annotated[Path | None, typer.Option(help="Where finished runs are kept. [default: the user's cache]")] = None
    fresh: Annotated[bool, typer.Option("--fresh", help="Run everything again.")] = False
    jobs: Annotated[int | None, typer.Option(help="Only the first N jobs of each workload: a quick look.")] = None
    processes: Annotated[int, typer.Option(help="Runs at the same time.")] = 1
