"""`plait trace`: convert, inspect and generate traces; a live run as a timeline for Perfetto."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from plait.cli.connection import HomeOption, JsonFlag, client, print_json
from plait.cli.experiments import options as shared
from plait.core.errors import InputError
from plait.core.words import counted

if TYPE_CHECKING:
    from plait.traces.table import TraceTable

app = typer.Typer(help="Convert, inspect and generate traces; export a live run.", no_args_is_help=True)

StrictOption = Annotated[bool, typer.Option("--strict", help="Treat warnings as errors.")]
DeadlinesOption = Annotated[
    str | None,
    typer.Option(
        "--deadlines", metavar="FACTOR,...", help="Draw deadlines from these multiples of the duration, e.g. 1.2,2,10."
    ),
]
Throughputs = Annotated[Path | None, typer.Option(help="Throughput table (JSON), for format gavel.")]


@app.command()
def convert(
    source: Annotated[Path, typer.Argument(metavar="IN", help="A trace in any known format (.gz too).")],
    target: Annotated[Path, typer.Argument(metavar="OUT", help="Canonical trace: .csv, .csv.gz or .parquet.")],
    trace_format: shared.TraceFormat = "auto",
    unreadable: shared.Unreadable = shared.UNREADABLE,
    columns: shared.Columns = None,
    time_zone: shared.TimeZone = None,
    work: shared.Work = None,
    split: Annotated[
        str | None,
        typer.Option(help="Only for format muri: data time counts as `storage`, as `cpu`, or `by_model`."),
    ] = None,
    attempts: Annotated[
        str | None,
        typer.Option(help="Only for format philly: `sum` the attempts of a job, keep the `last`, or `split` them."),
    ] = None,
    nodes: shared.Nodes = None,
    throughputs: Throughputs = None,
    models: shared.AssignModels = None,
    deadlines: DeadlinesOption = None,
    opportunistic_share: shared.OpportunisticShare = None,
    tenants: shared.Tenants = None,
    seed: Annotated[int, typer.Option(help="Random seed of models, deadlines, classes and projects.")] = 0,
    strict: StrictOption = False,
) -> None:
    """Convert a trace to the canonical form."""
    from plait.traces.canonical import write_canonical
    from plait.traces.formats.registry import read_trace

    given: dict[str, Any] = {"work": work, "split": split, "attempts": attempts, "nodes": nodes}
    given |= {"throughputs": throughputs}
    options = {name: value for name, value in given.items() if value is not None}
    options |= shared.reading(unreadable, columns, time_zone)
    table = read_trace(source, trace_format, strict=strict, **options)
    if models is not None:
        from plait.traces.assign import assign_models

        table = assign_models(table, seed=seed, mix=models)
    table = _assigned(table, seed, deadlines, opportunistic_share, tenants)
    write_canonical(table, target)
    _say_written(table, target)


@app.command()
def generate(
    target: Annotated[Path, typer.Argument(metavar="OUT", help="Canonical trace: .csv, .csv.gz or .parquet.")],
    preset: Annotated[
        str, typer.Option(help="Kind of trace: philly, gavel, muri_like, lognormal, recurring, pollux, ...")
    ] = "philly",
    jobs: Annotated[int, typer.Option(help="Number of jobs.")] = 1000,
    gpus: Annotated[int, typer.Option(help="GPUs of the cluster to which the load refers.")] = 64,
    load: Annotated[float | None, typer.Option(help=f"{shared.OFFERED_LOAD}. [default: the preset's own]")] = None,
    seed: Annotated[int, typer.Option(help="The same seed gives the same trace.")] = 0,
    max_duration: Annotated[
        float | None, typer.Option(help="Draw durations above this many seconds again. [default: no limit]")
    ] = None,
    recurring: Annotated[
        Path | None, typer.Option("--recurring", help="Work of the habits in this file of `plait trace profile`.")
    ] = None,
    models: shared.AssignModels = None,
    deadlines: DeadlinesOption = None,
    opportunistic_share: shared.OpportunisticShare = None,
    tenants: shared.Tenants = None,
) -> None:
    """Generate a synthetic trace."""
    from plait.traces.canonical import write_canonical
    from plait.traces.synthetic import RECURRING, RecurringWork
    from plait.traces.synthetic import generate as make

    work = RecurringWork() if recurring is None else RecurringWork.read(recurring)
    preset = preset if recurring is None else RECURRING
    table = make(preset, jobs, gpus, load, seed, models=models, max_duration_s=max_duration, work=work)
    table = _assigned(table, seed, deadlines, opportunistic_share, tenants)
    write_canonical(table, target)
    _say_written(table, target)


@app.command()
def profile(
    file: Annotated[Path, typer.Argument(help="A trace in any known format, with users and scripts.")],
    target: Annotated[Path, typer.Argument(metavar="OUT", help="JSON file, for `plait trace generate --recurring`.")],
    trace_format: shared.TraceFormat = "auto",
    unreadable: shared.Unreadable = shared.UNREADABLE,
    columns: shared.Columns = None,
    time_zone: shared.TimeZone = None,
) -> None:
    """Fit the habits of users in a trace, to generate such work."""
    from dataclasses import asdict
    from json import dumps

    from plait.core.files import replace_file
    from plait.traces.formats.registry import read_trace
    from plait.traces.synthetic import fit_recurring

    found = fit_recurring(read_trace(file, trace_format, **shared.reading(unreadable, columns, time_zone)))
    replace_file(target, dumps(asdict(found), indent=1) + "\n")
    for name, value in asdict(found).items():
        typer.echo(f"{name:<16} {value:.4g}" if isinstance(value, float) else f"{name:<16} {value}")


@app.command()
def show(
    file: Annotated[Path, typer.Argument(help="A trace in any known format.")],
    trace_format: shared.TraceFormat = "auto",
    unreadable: shared.Unreadable = shared.UNREADABLE,
    columns: shared.Columns = None,
    time_zone: shared.TimeZone = None,
    cluster_gpus: Annotated[int | None, typer.Option(help="Show the load on a cluster of this many GPUs.")] = None,
    strict: StrictOption = False,
) -> None:
    """Show what is in a trace: sizes, durations, load.

    Also shows the number of jobs, the time span, GPU-hours, and rows that were dropped.
    """
    from rich.console import Console
    from rich.table import Table

    from plait.traces.formats.registry import read_trace
    from plait.traces.table import summary

    table = read_trace(file, trace_format, strict=strict, **shared.reading(unreadable, columns, time_zone))
    grid = Table(title=str(file), title_justify="left", show_header=False)
    for name, value in summary(table, cluster_gpus):
        grid.add_row(name, value)
    Console().print(grid)


@app.command()
def formats() -> None:
    """List the formats plait reads."""
    from rich.console import Console
    from rich.table import Table

    from plait.traces.formats.registry import FORMATS

    grid = Table("format", "units", "published as", "licence")
    for fmt in FORMATS.values():
        grid.add_row(fmt.name, fmt.units, fmt.source, fmt.licence)
    Console().print(grid)


@app.command()
def export(
    target: Annotated[Path | None, typer.Argument(metavar="OUT", help="Timeline to write, e.g. run.json.")] = None,
    log: Annotated[Path | None, typer.Option(help="JSON file of saved events, instead of the service's log.")] = None,
    home: HomeOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Export what ran on a live cluster as a timeline for Perfetto.

    Open the file in ui.perfetto.dev or chrome://tracing: jobs on GPUs and waiting jobs. For those who may read the
    whole log.
    """
    from plait.cli.commands.explain import saved_events
    from plait.outlook.log_replay import read_rows, replay
    from plait.report.charts import write_chrome_trace

    if target is None:
        raise InputError("name the file to write: plait trace export run.json")
    if log is not None:
        entries = saved_events(log)
    else:
        with client(home) as service:
            entries = list(service.all_events())
    write_chrome_trace(replay(read_rows(entries), compare=False).result(), target)
    if as_json:
        print_json({"file": str(target), "entries": len(entries)})
        return
    typer.echo(f"{target}: the jobs of {len(entries):,} entries of the log; open it in ui.perfetto.dev")


def _assigned(
    table: TraceTable, seed: int, deadlines: str | None, opportunistic_share: float | None, tenants: int | None
) -> TraceTable:
    from plait.traces.assign import assign_classes, assign_deadlines, assign_tenants

    if deadlines is not None:
        try:
            factors = [float(text) for text in deadlines.split(",")]
        except ValueError:
            raise InputError(f"--deadlines is {deadlines!r}, needs factors such as 1.2,2,10") from None
        table = assign_deadlines(table, seed=seed, factors=factors)
    if opportunistic_share is not None:
        table = assign_classes(table, seed=seed, opportunistic=opportunistic_share)
    if tenants is not None:
        table = assign_tenants(table, seed=seed, tenants=tenants)
    return table


def _say_written(table: TraceTable, target: Path) -> None:
    dropped = sum(table.meta["rows_dropped"].values())
    typer.echo(f"{target}: {len(table)} jobs" + (f", {counted(dropped, 'row')} dropped" if dropped else ""))
    for reason, count in table.meta["rows_dropped"].items():
        typer.echo(f"  dropped {count}: {reason}")
    for warning in table.meta["warnings"]:
        typer.echo(f"  warning: {warning}", err=True)
