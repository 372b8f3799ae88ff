"""Options that several commands on traces and simulations share: each with its flag, help and bounds, once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

Text = str | None

# -- traces ------------------------------------------------------------------------------------------------

TraceFormat = Annotated[
    str, typer.Option("--format", "-f", help="Format of the trace; `plait trace formats` lists them.")
]
Unreadable = Annotated[
    str,
    typer.Option(
        "--unreadable", metavar="SHARE", help="Largest share of rows that may be left out because they cannot be read."
    ),
]  # fmt: skip
Columns = Annotated[Text, typer.Option(help="Columns of a file without header, separated by commas.")]
TimeZone = Annotated[
    Text,
    typer.Option("--time-zone", metavar="ZONE", help="Zone of local stamps of sacct and helios, e.g. Europe/Berlin."),
]  # fmt: skip
Work = Annotated[
    Text, typer.Option(help="Only for format muri: measure a job's work in `duration` or in `iterations`.")
]
Nodes = Annotated[Path | None, typer.Option(help="List of nodes, for formats tiresias, openb2023 and spot2026.")]
AssignModels = Annotated[
    Text, typer.Option("--assign-models", help="Draw the model of each job: `uniform` or `by_gpu_hours`.")
]
OpportunisticShare = Annotated[
    float | None,
    typer.Option("--opportunistic-share", help="Share of jobs drawn at random to be opportunistic, 0 to 1."),
]
Tenants = Annotated[int | None, typer.Option(help="Distribute the jobs at random over this many projects.")]
Censored = Annotated[
    str, typer.Option(help="Jobs without a recorded end: `as_is`, `drop`, or `extend` to a longer known duration.")
]
FirstJobs = Annotated[int | None, typer.Option(help="Only the first N jobs of each trace.")]

#: As the options of `Unreadable` give it.
UNREADABLE = "1%"

#: Explains `--load`; `plait.traces.table` is the definition.
OFFERED_LOAD = (
    "GPU time due while jobs are submitted, over that of the cluster: at 1 it is just busy, above 1 the queue grows"
)


def reading(unreadable: str, columns: str | None, time_zone: str | None) -> dict[str, Any]:
    """The options of `read_trace` that these options of the command line stand for; raises `InputError`."""
    from plait.core.errors import InputError

    try:
        share = float(unreadable.removesuffix("%")) / (100 if unreadable.endswith("%") else 1)
    except ValueError:
        share = -1.0
    if not 0 <= share <= 1:
        raise InputError(f"--unreadable is {unreadable!r}, needs a share of rows such as 1% or 0.01")
    names = tuple(name.strip() for name in (columns or "").split(",") if name.strip())
    return {"unreadable": share, "columns": names, **({} if time_zone is None else {"time_zone": time_zone})}


# -- the simulated world -----------------------------------------------------------------------------------

Placement = Annotated[Text, typer.Option(help="Placement for every policy that has this option.")]
RoundS = Annotated[
    float | None,
    typer.Option("--round", help="Seconds between decisions; 0 = decide at every event. [default: the world's]"),
]
OverheadsOption = Annotated[Text, typer.Option(help="Cost of starts and stops: `measured`, `none` or a CSV file.")]
SpreadSlowdown = Annotated[
    float | None,
    typer.Option(help="Slow-down of sensitive gangs on more nodes than they need, at least 1, e.g. 1.3."),
]
NetworkOption = Annotated[
    Text,
    typer.Option(
        "--network",
        help="Switches and links that jobs share, e.g. leaf-spine:oversubscription=2,aggregators=20000; "
        "`plait network topologies` lists them. [default: that of a cluster file, else links have no limits]",
    ),
]
NodeMtbf = Annotated[float | None, typer.Option(help="Mean hours between failures of a node.")]
NodeMttr = Annotated[float | None, typer.Option(help="Mean hours until a failed node is repaired.")]
SwitchMtbf = Annotated[
    float | None, typer.Option(help="Mean hours between failures of a switch that adds up gradients.")
]
SwitchMttr = Annotated[float | None, typer.Option(help="Mean hours until a failed switch adds up again.")]
JobMtbf = Annotated[float | None, typer.Option(help="Mean GPU-hours between failures of a job.")]
ProfileNoise = Annotated[float | None, typer.Option(help="Largest relative error of estimated profiles, 0 to 1.")]

Price = Annotated[
    list[str] | None,
    typer.Option(
        "--price", metavar="KIND=PRICE", help="Price of a GPU-hour, by GPU kind (a100=2.5) or of every kind (2.5); may "
        "be repeated. Results then have costs by job, user and project.",
    ),
]  # fmt: skip
Currency = Annotated[str, typer.Option(help="Label of prices, printed unchanged, e.g. EUR.")]

# -- results -----------------------------------------------------------------------------------------------

Json = Annotated[Text, typer.Option(help="Write all results as JSON to this file; - for standard output.")]
Csv = Annotated[Text, typer.Option(help="Write all results as CSV to this file; - for standard output.")]
Page = Annotated[Path | None, typer.Option(help="Write a self-contained HTML report.")]
WorkFolder = Annotated[Path | None, typer.Option(help="Folder that keeps finished runs. [default: the user's cache]")]
Fresh = Annotated[bool, typer.Option("--fresh", help="Run everything again.")]
Processes = Annotated[int, typer.Option(help="Number of runs at the same time.")]
