"""Options that several commands on traces and simulations share: each with its flag, help and bounds, once."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from plait.core.errors import InputError
from plait.core.options import option

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
Nodes = Annotated[Path | None, typer.Option(help="List of nodes, for formats tiresias and openb2023.")]
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
InterferenceOption = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="True costs of sharing by pairs of models: colocate.csv of Lucid (ASPLOS'23)."),
]
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


#: Policies compared when none is named: no knowledge, learnt, perfect knowledge.
DEFAULT_POLICIES = "fifo,tiresias-l,plait"


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
    data: Path | None = option("Folder of measurements, for format pollux-artifact", default=None)
    assign_models: AssignModels = None
    opportunistic_share: OpportunisticShare = None
    tenants: Tenants = None
    censored: Censored = "as_is"
    overheads: OverheadsOption = None
    spread_slowdown: SpreadSlowdown = None
    network: NetworkOption = None
    overlap: Annotated[
        Text,
        typer.Option(
            help="With a network: part of the computation during which gradients are exchanged, or `layers`: each "
            "layer's as the backward pass of the model has them. [default: 0]"
        ),
    ] = None
    phases: Annotated[
        Text,
        typer.Option(
            help="With a network: how exchanges of jobs meet: `random`, all `together`, or `interleaved`. "
            "[default: random]"
        ),
    ] = None
    rates: Annotated[
        Text,
        typer.Option(
            help="With a network: rates of jobs that share memory of switches: by a `law`, by `packets` (two CPU "
            "seconds for each set of exchanges; `packets:background=0.3,cc=aimd,queue_packets=1000,overflow=pause` for "
            "what they meet), or by packets where the law does not hold. [default: auto]"
        ),
    ] = None
    guest_models: Text = option("CSV of models on shared GPUs: quanta, gaps, memory, curves, bursts", default=None)
    interference: InterferenceOption = None
    gpu_memory: float | None = option("Memory in GB of each GPU whose memory the cluster does not give", default=None)
    gpu_speed: Text = option("Speed by GPU kind, 1 = as profiled: v100=1,a100=2", default=None)
    failures: Path | None = option("CSV of failures of nodes and switches: at_s,node,state", default=None)
    reserve: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NODES=PROJECT@FROM..TO", help="Nodes for jobs of a project alone: n0,n1=vision@7200..21600, in s."
        ),
    ] = None
    elastic: Text = option(
        "Nodes of the cluster come and go, by policy (pollux:autoscale=on) or by what jobs request; only "
        "nodes that are up are paid for",
        default=None,
        metavar="LEAST..MOST",
    )
    node_start: Annotated[float, typer.Option(help="With --elastic: seconds until a requested node arrives.")] = 120.0
    node_mtbf: NodeMtbf = None
    node_mttr: NodeMttr = None
    switch_mtbf: SwitchMtbf = None
    switch_mttr: SwitchMttr = None
    job_mtbf: JobMtbf = None
    profile_noise: ProfileNoise = None
    plain: float | None = option("Share of jobs that cannot resume from a checkpoint, 0 to 1", default=None)
    checkpoint_every: float | None = option("Seconds of work between checkpoints of a running job", default=None)
    preemption: Annotated[
        str,
        typer.Option(
            help="Which jobs may be stopped: `weighed` (if it gains more than the stop loses), `may-lose-work` (also "
            "jobs without checkpoints) or `freely` (as in the papers)."
        ),
    ] = "weighed"
    price: Price = None
    currency: Currency = ""
    window: Text = option("Count only jobs submitted from A to B seconds: A..B", default=None)
    jobs: FirstJobs = None
    json: Json = None
    csv: Csv = None
    jobs_csv: Path | None = option("Write the jobs as CSV, one file per run", default=None)
    report: Page = None
    chrome_trace: Path | None = option("Write a timeline of jobs on GPUs for Perfetto, one file per run", default=None)
    log: Path | None = option("Write every event and command, compressed if .gz; one file per run", default=None)
    check: bool = option("Verify the invariants after every event (slow)", default=False)
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
    trace: Path | None = option("A trace instead of a preset", default=None)
    trace_format: TraceFormat = "auto"
    assign_models: AssignModels = None
    world: Annotated[str, typer.Option(metavar="WORLD,...", help="Simulated worlds; `plait worlds` lists them.")] = (
        "plait"
    )
    round_s: RoundS = None
    placement: Placement = None
    overheads: OverheadsOption = None
    spread_slowdown: SpreadSlowdown = None
    interference: InterferenceOption = None
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
    report: Path | None = option("Write an HTML report that compares the runs of each group", default=None)
