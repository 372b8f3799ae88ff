"""`plait advise`: what other policies, cluster sizes and quotas would have changed."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from plait.cli.connection import HomeOption
from plait.cli.experiments.options import (
    UNREADABLE,
    Columns,
    Currency,
    FirstJobs,
    Json,
    Page,
    Price,
    Text,
    TimeZone,
    TraceFormat,
    Unreadable,
    reading,
)
from plait.cli.lazy import command
from plait.cli.policy_modules import AllowForLog
from plait.core.errors import InputError
from plait.core.words import counted


@dataclass(frozen=True)
class AdviseRequest:
    """The options of `plait advise`."""

    history: Annotated[
        Path | None,
        typer.Argument(
            metavar="[HISTORY]", help="Output of `sacct -X -P`, Workloads of Kueue, a log of `plait simulate --log`, "
            "saved events, or a trace with recorded starts and ends. [default: the log of the running service]",
        ),
    ] = None  # fmt: skip
    policy: Annotated[
        Text,
        typer.Option("--policy", "-p", help="The policy that was used. [default: that of a log, else the closest]"),
    ] = None
    cluster: Annotated[
        Text,
        typer.Option("--cluster", "-c", help="NODESxGPUS, or a cluster file. [default: of the history, else inferred]"),
    ] = None
    candidates: Annotated[
        Text, typer.Option(metavar="POLICY,...", help="Policies to compare. [default: sixteen of the catalog]")
    ] = None
    nodes: Annotated[
        str,
        typer.Option(metavar="NODES,...", help="Other cluster sizes, nodes more or fewer: +2,-1,+10%; empty for none."),
    ] = "-10%,+10%"
    quota: Annotated[
        list[str] | None, typer.Option(help="Quotas to try, e.g. vision=32/speech=16; may be repeated.")
    ] = None
    trace_format: TraceFormat = "auto"
    unreadable: Unreadable = UNREADABLE
    columns: Columns = None
    time_zone: TimeZone = None
    price: Price = None
    currency: Currency = ""
    jobs: FirstJobs = None
    budget: Annotated[
        int, typer.Option(help="About how many jobs to simulate; more are slower and surer.", min=1000)
    ] = 200_000
    seed: Annotated[int, typer.Option(help="Random seed of the intervals.", min=0)] = 0
    processes: Annotated[int | None, typer.Option(help="Number of runs at the same time. [default: the CPU cores]")] = (
        None
    )
    json: Json = None
    report: Page = None
    allow_policy: AllowForLog = None
    home: HomeOption = None

    @property
    def name(self) -> str:
        """Name of the history in messages and on the page."""
        return SERVICE if self.history is None else self.history.name


def answer(request: AdviseRequest) -> None:
    import os

    from plait.cli.experiments.outputs import STDOUT, Outputs
    from plait.cli.render.console import Bar, console
    from plait.control.prices import Prices
    from plait.live.notes import note
    from plait.outlook.advice import AdviceRequest, advise
    from plait.policies.catalog import import_from_here, split_policies

    import_from_here()
    with Outputs() as outputs:
        to_stdout = request.json == STDOUT
        rows = None if request.json is None or to_stdout else outputs.path(request.json)
        page = None if request.report is None else outputs.path(request.report)
        prices = Prices.given(request.price, request.currency)  # refused before a long history is read
        past = read_past(request)
        for remark in past.remarks:
            note(f"{request.history or request.name}: {remark}")
        more = {} if request.candidates is None else {"policies": tuple(split_policies(request.candidates))}
        asked = AdviceRequest(
            policy=request.policy or "", nodes=tuple(part.strip() for part in request.nodes.split(",") if part.strip()),
            quotas=tuple(request.quota or ()), prices=prices,
            budget=request.budget, processes=request.processes or os.cpu_count() or 1, seed=request.seed, **more,
        )  # fmt: skip
        with Bar("simulating", min(request.budget, len(past.jobs) * (len(asked.policies) + 8))) as bar:
            advice = advise(past, asked, bar.advance)
        text = json.dumps(advice.to_json(), indent=1, allow_nan=False, ensure_ascii=False) + "\n"
        from plait.core.files import write_text

        if rows is not None:
            outputs.fill(rows, partial(write_text, text=text))
        if to_stdout:
            outputs.print_later(partial(write_text, text=text))
        if page is not None:
            from plait.outlook.page import advice_page

            outputs.fill(page, partial(write_text, text=advice_page(advice, request.name)))
        show(advice, console(error=to_stdout))
        for path in outputs.commit():
            note(f"wrote {path}")


def read_past(request: AdviseRequest) -> Any:
    """The past that a request names: in a file, else of the running service."""
    from plait.outlook.past import first_jobs

    if request.jobs is not None and request.jobs < 1:
        raise InputError(f"--jobs must be at least 1, got {request.jobs}")
    allowed = request.allow_policy or ()
    if request.history is not None:
        how = reading(request.unreadable, request.columns, request.time_zone)
        past = past_of_file(request.history, request.cluster, request.trace_format, request.seed, allowed, **how)
    elif request.cluster is not None:
        raise InputError("the service knows its cluster; leave out --cluster, or name a HISTORY")
    else:
        past = past_of_service(request.home, allowed)
    return past if request.jobs is None else first_jobs(past, request.jobs)


def show(advice: Any, printer: Any) -> None:
    """The fit, the ranking and the recommendation."""
    from rich.table import Table
    from rich.text import Text as Plain

    from plait.outlook.page import LEFT_EARLY, summary_rows

    fit = advice.fit
    said = "as given" if fit.given else "the closest of those tried"
    title = (
        f"{fit.choice.policy} ({said}) on {advice.past.cluster}: mean completion time {fit.simulated_s / 3600:.2f} h "
        f"simulated, {fit.recorded_s / 3600:.2f} h recorded ({fit.error:+.1%}), "
        f"of {fit.jobs:,} of {len(advice.past.jobs):,} jobs"
    )
    table = Table(title=title, title_justify="left", header_style="bold", caption_justify="left")
    heads = {"choice": "choice", "mean": "mean JCT (h)", "change": "change", "interval": "95 % interval",
             "p99": "p99 JCT (h)", "idle": "idle (GPU h)", "cost": "cost", "worst": "loses most",
             "jobs": "jobs"}  # fmt: skip
    rows = summary_rows(advice)
    shown = [name for name in heads if any(row[name] for row in rows)]
    for name in shown:
        table.add_column(heads[name], justify="left" if name in ("choice", "worst") else "right")
    for row in rows:
        table.add_row(*(Plain(row[name]) for name in shown))
    captions = []
    if any(row["choice"].endswith(" *") for row in rows):
        captions.append("* knows the run times of jobs: a bound, not a recommendation")
    if not all(advice.whole_sample(one) for one in advice.effects):
        captions.append(LEFT_EARLY)
    table.caption = "\n".join(captions) or None
    printer.print(table)
    for sentence in advice.sentences:
        printer.print(Plain(sentence))


if TYPE_CHECKING:
    from plait.outlook.past import Past

#: Name of the log of a service in errors.
SERVICE = "the log of the service"


def past_of_file(
    path: Path, cluster: str | None, trace_format: str, seed: int, allowed: Sequence[str], **reading: Any
) -> Past:
    """The past in a file: a log of plait, simulated or of a service, else a trace, with options of `read_trace`.

    Raises `InputError` naming file, line and field of what is wrong.
    """
    from plait.cli.hardware import read_cluster
    from plait.outlook.past import past_of, past_of_log
    from plait.policies.catalog import make_policy
    from plait.traces.formats.registry import read_trace

    kind = kind_of_log(path)
    if kind and cluster is not None:
        raise InputError(f"{path}: a log of plait has its cluster in it; leave out --cluster")
    if kind == "simulated":
        return past_of_log(path, make_policy)
    if kind == "live":
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise InputError(f"cannot read the log {path}: {error}; is the file cut short?") from error
        for i, row in enumerate(data, start=1):
            if not isinstance(row, dict) or not {"seq", "event"} <= row.keys():
                raise InputError(f"{path}: entry {i} has no seq and event, as the events of a service have")
        rows: list[Mapping[str, Any]] = data
        return past_of_rows(rows, str(path), allowed, None)
    return past_of(
        read_trace(path, trace_format, **reading), None if cluster is None else read_cluster(cluster), seed=seed
    )


def past_of_service(home: str | None, allowed: Sequence[str]) -> Past:
    """The past of the service that runs; raises `InputError` if none does, or nothing has finished."""
    from plait.cli.connection import client
    from plait.live.layout import Layout
    from plait.live.supervisor.options import remembered

    with client(home) as service:
        return past_of_rows(service.all_events(), SERVICE, allowed, remembered(Layout.at(home)))


def past_of_rows(
    rows: Iterable[Mapping[str, Any]], where: str, allowed: Sequence[str], options: Mapping[str, Any] | None
) -> Past:
    """The past in rows of `GET /v1/events`; `where` names it in errors, `allowed` are modules of policies.

    Work is the observed run time of jobs. Nodes are the ones that are up at the end.
    """
    from dataclasses import replace

    from plait.cli.policy_modules import only_allowed
    from plait.control.messages import NodeLost
    from plait.core.cluster import Cluster
    from plait.outlook.log_replay import LoggedEntry, read_rows, replay
    from plait.outlook.past import past_of_controller

    policies: list[str] = []
    lost = 0

    def note(state: Any, row: LoggedEntry) -> None:
        nonlocal lost
        lost += isinstance(row.event, NodeLost)
        if state.policy_text not in policies[-1:]:
            policies.append(state.policy_text)

    state = replay(read_rows(only_allowed(rows, allowed, options)), compare=False, observe=note).state
    controller = state.controller
    if controller is None:
        raise InputError(f"{where}: no node ever joined this cluster; start one with: plait up")
    cluster = controller.cluster
    up = tuple(node for node, is_up in zip(cluster.nodes, cluster.node_up.tolist(), strict=True) if is_up)
    remarks = [f"cluster of the log: {counted(len(up or cluster.nodes), 'node')}"]
    gaps = []
    if len(up) not in (0, len(cluster.nodes)):
        remarks.append(f"{counted(len(cluster.nodes) - len(up), 'node')} left out: not up at the end of the log")
    if lost:
        gaps.append(f"nodes that were lost: {lost} times")
    if len(policies) > 1:
        gaps.append(f"policies that changed: {', '.join(policies)}; the last is taken as used")
    past = past_of_controller(controller, Cluster(up or cluster.nodes), state.policy_text, measured=True)
    return replace(past, remarks=(*remarks, *past.remarks), gaps=(*past.gaps, *gaps))


def kind_of_log(path: Path) -> str:
    """`simulated` for a log of `plait simulate`, `live` for saved events of a service, "" for neither."""
    try:
        with open(path, "rb") as file:
            start = file.read(2)
        with gzip.open(path, "rb") if start == b"\x1f\x8b" else open(path, "rb") as file:
            head = file.read(4096)
    except (OSError, EOFError):
        return ""  # the reader of traces raises the error
    if head.startswith(b'{"plait_log":'):
        return "simulated"
    return "live" if head.lstrip()[:1] == b"[" and b'"seq"' in head and b'"event"' in head else ""


@command(AdviseRequest, answer)
def advise() -> None:
    """Show what other choices would have changed in a history.

    The default HISTORY is the running service's. Choices are policies, cluster sizes and quotas. First the policy that
    was used is simulated; if its mean completion time is more than 5 % off what happened, it exits with 4 and lists
    possible causes.

    \b
    sacct -a -X -P -S 2024-03-01 -E 2024-04-01 -o JobID,User,Account,Submit,Start,End,State,AllocTRES,NNodes > march.txt
    plait advise march.txt --cluster 16x8 --price 2.5 --report advice.html
    """
