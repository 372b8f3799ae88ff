"""`plait status`, `nodes`, `events`: what the cluster is doing."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from plait.cli.commands.jobs import stop_text
from plait.cli.connection import HomeOption, JsonFlag, LoseWork, client, print_json, print_table, respond
from plait.cli.render.job_views import cost_text, note_unpriced
from plait.cli.render.tables import plain
from plait.core.errors import InputError, PlaitError
from plait.core.words import counted, duration, number
from plait.live.layout import NODE_NAME
from plait.live.notes import note, time_of_day
from plait.live.protocol.job_file import parse_seconds
from plait.live.protocol.not_current import sentence
from plait.live.scheduler.records.event_words import step_in_words, telling

if TYPE_CHECKING:
    from plait.live.api.cluster import LostWork, NodeRow, ReservationRow
    from plait.live.client.client import Client

#: Of the list of nodes.
NODE_COLUMNS = ("node", "state", "??>GPUs", "??>used", "??>heard of", "?kind", "?>CPU", "?>memory", "~jobs")
#: Seconds between two looks at a node that is to become empty.
LOOK_S = 0.5


def status(home: HomeOption = None, as_json: JsonFlag = False) -> None:
    """Show the service: address, policy, nodes and jobs."""
    with client(home, notices=False) as service:  # it is a line of the status
        found = service.status()
        bill = service.costs(limit=0) if found.prices else None
        url = service.url
    if as_json:
        print_json(found)
        return
    # The status of the service at `url` as lines of text.
    gpus = found.gpus
    # GPUs that guests share, and GPUs held for a waiting job, if there are any.
    shared, reserved = gpus.shared, gpus.reserved_idle
    lent = (f", {shared} shared with guests" if shared else "") + (
        f", {reserved} reserved and idle" if reserved else ""
    )
    # GPUs requested from backends that add and remove nodes, and why.
    why = "" if found.wanted.by == "jobs" else f": {found.wanted.why}"
    wanted = f"; {counted(found.wanted.gpus, 'GPU')} requested{why}"
    lines = [
        f"service   {url}, up {duration(found.uptime_s)}, {found.log_seq:,} entries in its log",
        f"policy    {found.policy}, decides at most every {found.round_s} s"
        + (", may stop jobs that cannot resume from a checkpoint" if found.may_lose_work else ""),
        f"nodes     {_counts(found.nodes) or 'none has joined yet'}",
        f"GPUs      {gpus.held} of {gpus.total} held{lent}{wanted}",
        f"jobs      {_counts(found.jobs) or 'none; plait submit -- python train.py'}",
    ]
    if lost := lost_text(found.lost):
        lines.append(f"lost      {lost}")
    if trouble := found.store_error:
        lines.append(f"TROUBLE   {sentence(trouble, max(found.now_s - (found.stored_s or 0.0), 0.0))}")
    if found.policy_error:
        lines.append(f"TROUBLE   the policy failed, and what runs goes on: {found.policy_error}")
    for line in lines:
        typer.echo(line)
    if bill is not None:
        typer.echo(f"cost      {cost_text(bill)}")
        note_unpriced(bill)


def lost_text(found: LostWork) -> str:
    """Work lost since the cluster began, by reason, and the cost of restarts; empty for none.

    >>> from plait.live.api.cluster import LostWork
    >>> lost_text(LostWork({"preempted": 30.0, "failed": 12.0}, restarts_gpu_s=8.0))
    '42.0 GPU-seconds of work (30.0 preempted, 12.0 failed), and 8.0 GPU-seconds in restarts'
    """
    by, restarts_s = found.work_gpu_s, found.restarts_gpu_s
    parts = []
    if by:
        each = ", ".join(f"{gpu_s:,.1f} {why}" for why, gpu_s in sorted(by.items(), key=lambda one: -one[1]))
        parts.append(f"{sum(by.values()):,.1f} GPU-seconds of work ({each})")
    if restarts_s > 0:
        parts.append(f"{restarts_s:,.1f} GPU-seconds in restarts")
    return ", and ".join(parts)


def _counts(by_state: Mapping[Any, int]) -> str:
    return ", ".join(f"{count} {state}" for state, count in by_state.items() if count)


nodes = typer.Typer(help="List the nodes; drain, reserve and forget them.", invoke_without_command=True)


@nodes.callback()
def list_nodes(context: typer.Context, home: HomeOption = None, as_json: JsonFlag = False) -> None:
    """List the nodes; drain, reserve and forget them."""
    context.obj = home
    if context.invoked_subcommand is not None:
        return
    with client(home) as service:
        found, reserved = service.nodes(), service.reservations()
    if as_json:
        print_json(found)
        return
    print_table(
        NODE_COLUMNS, (_node_row(node) for node in found), "no nodes yet; an agent joins within seconds of plait up"
    )
    for line in (*node_lines(found), *map(reservation_line, reserved)):
        typer.echo(line)


def reservation_line(row: ReservationRow) -> str:
    """A reservation as a line: its nodes, its time, and the jobs in its way.

    >>> from plait.live.api.cluster import ReservationRow
    >>> reservation_line(ReservationRow("r-1", ["n1", "n2"], "vision", 3600, 7200, 0, 600, "ann", [], ["j-3"]))
    'n1, n2 reserved for project vision for another 10 min 0 s (r-1, by ann); j-3 has no checkpoint: it stays there'
    """
    now_s = time.time()
    begins, ends = (time_of_day(now_s + left_s, now_s) for left_s in (row.in_s, row.left_s))
    when = f"from {begins} to {ends}, in {duration(row.in_s)}" if row.in_s else f"for another {duration(row.left_s)}"
    text = f"{', '.join(row.nodes)} reserved for project {row.project} {when} ({row.id}, by {row.by})"
    if row.leave:
        text += f"; {', '.join(row.leave)} {'is' if len(row.leave) == 1 else 'are'} stopped then, after a checkpoint"
    if row.stay:
        has, stays = ("has", "it stays") if len(row.stay) == 1 else ("have", "they stay")
        text += f"; {', '.join(row.stay)} {has} no checkpoint: {stays} there"
    return text


def node_lines(found: Sequence[NodeRow]) -> list[str]:
    """One line for each node that takes no work because it is silent or gone."""
    lines = []
    for node in found:
        name, state = node.id, node.state
        if state == "suspect":
            lines.append(f"{name} has not reported lately: nothing new starts there, and running jobs stay")
        elif state in ("lost", "left"):
            what = "is lost" if state == "lost" else "has left"
            lines.append(f"{name} {what}; if it will not come back: plait nodes forget {name}")
    return lines


def _node_row(node: NodeRow) -> list[object]:
    states = node.job_states
    state = "draining" if node.state == "drained" and node.jobs else node.state
    cpu, memory = number(node.usage.cpu), number(node.usage.memory_bytes)
    return [
        node.id,
        state,
        node.gpus,
        node.gpus_used,
        f"{duration(node.silent_s)} ago",
        node.gpu_kind,
        f"{cpu:.0%}" if cpu == cpu else None,
        f"{memory / 1e9:.1f} GB" if memory == memory else None,
        ", ".join(f"{job} {states[job]}" if job in states else job for job in node.jobs),
    ]


@nodes.command("enrol", no_args_is_help=True)
def enrol(
    node: Annotated[str, typer.Argument(help="Name of the new node.")],
    expires: Annotated[str | None, typer.Option(help="Expires after this time: 12h, 30d; default: never.")] = None,
    home: HomeOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Create the token of another node.

    It is valid for that node only.
    """
    if not NODE_NAME.fullmatch(node):
        raise InputError(f"NODE is {node[:80]!r}, needs at most 64 letters, digits and . _ -, the first no sign")
    with client(home) as service:
        made = service.create_token(
            node, "agent", expires_in_s=None if expires is None else parse_seconds(expires, "--expires"), node=node
        )
    if as_json:
        print_json(made)
        return
    typer.echo(made.token)
    note(f"it is not shown again; on that machine it goes, for its owner alone, into HOME/nodes/{node}/enrol")


@nodes.command("drain")
def drain(
    context: typer.Context,
    node: Annotated[str, typer.Argument(help="Node that `plait nodes` lists.")],
    wait: Annotated[
        str | None, typer.Option(help="Wait up to this long until no job is left there, e.g. 120s.")
    ] = None,
    may_lose_work: LoseWork = False,
    home: HomeOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Start no new jobs on a node and move its jobs away.

    Its jobs checkpoint and resume elsewhere. If one of them would lose work, because it has no checkpoint to resume
    from, nothing is done unless --may-lose-work is given.
    """
    within_s = None if wait is None else parse_seconds(wait, "--wait")
    with client(home or context.obj) as service:
        jobs = [job for n in service.nodes() if n.id == node for job in n.jobs]
        lost = {one.id: one.text for one in service.losses(nodes=[node]).losses} if may_lose_work else {}
        moved = {job: lost.get(job) or f"{job} {_stop_said(service, job)}" for job in jobs}
        answer = service.drain(node, may_lose_work=may_lose_work)
        if moved and not as_json:
            typer.echo(f"{node} stops {', '.join(moved)} now; each starts elsewhere as soon as there is room:")
            for text in moved.values():
                typer.echo(f"  {text}")
        if within_s is not None:
            # Wait until no job has a process on the node; `InputError` if some remain after `within_s` seconds.
            until = time.monotonic() + within_s
            while left := [job for found in service.nodes() if found.id == node for job in found.jobs]:
                if time.monotonic() > until:
                    raise InputError(
                        f"{', '.join(left)} still on {node} after {duration(within_s)}; look at: plait nodes"
                    )
                time.sleep(LOOK_S)
    if as_json:
        print_json({**msgspec.to_builtins(answer), "stops": moved})
        return
    state = "is draining" if within_s is None else "has no jobs any more"
    typer.echo(f"{node} {state}; give it work again with: plait nodes resume {node}")


def _stop_said(service: Client, job: str) -> str:
    """The cost of a coming stop of a job that is not stopping yet."""
    try:
        stops = service.job(job).stops
    except PlaitError:  # it has just ended, or is another user's
        return "is stopped"
    return stop_text(msgspec.structs.replace(stops, kept=False)) if stops else "is stopped"


@nodes.command("resume")
def resume(
    context: typer.Context,
    node: Annotated[str, typer.Argument(help="Node that `plait nodes` lists.")],
    home: HomeOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Return a drained node to service."""
    respond(home or context.obj, as_json, lambda service: service.resume(node), f"{node} takes work again")


@nodes.command("forget")
def forget(
    context: typer.Context,
    node: Annotated[str, typer.Argument(help="Node that is lost or has left.")],
    home: HomeOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Remove a node that will not come back.

    An agent that reports under its name later joins as a new node.
    """
    respond(home or context.obj, as_json, lambda service: service.forget_node(node), f"{node} is forgotten")


@nodes.command("reserve", no_args_is_help=True)
def reserve(
    context: typer.Context,
    names: Annotated[str, typer.Argument(metavar="NODES", help="Nodes, separated by commas: n1,n2.")],
    project: Annotated[str, typer.Option(help="Project whose jobs may use them.")],
    lasts: Annotated[str, typer.Option("--for", help="How long: 4h, 2d.")],
    begins: Annotated[
        str, typer.Option("--from", help="When it begins: 18:00, 'tomorrow 09:00', 2026-12-24T18:00, 2h; default: now.")
    ] = "now",
    home: HomeOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Reserve nodes for a project and a time.

    Until it begins, jobs of other projects start there only if they have surely left by then: by their --time, or
    because they resume from a checkpoint. When it begins, jobs that resume from a checkpoint are stopped and start
    elsewhere; others stay until they end.

    \b
    plait nodes reserve n1,n2 --project vision --from 'tomorrow 09:00' --for 4h
    """
    from plait.cli.submission import parse_begin

    lasts_s = parse_seconds(lasts, "--for", above_zero=True)
    in_s = 0.0 if begins == "now" else parse_begin(begins, option="--from")
    nodes_given = [name for one in names.split(",") if (name := one.strip())]
    with client(home or context.obj) as service:
        row = service.reserve(nodes_given, project, for_s=lasts_s, in_s=in_s)
    if as_json:
        print_json(row)
        return
    until = "; until then jobs without a --time or a checkpoint do not start there" if row.in_s else ""
    typer.echo(f"{reservation_line(row)}{until}; cancel it with: plait nodes unreserve {row.id}")


@nodes.command("reservations")
def list_reservations(context: typer.Context, home: HomeOption = None, as_json: JsonFlag = False) -> None:
    """List reservations of nodes."""

    def show(found: list[ReservationRow]) -> None:
        for row in found:
            typer.echo(reservation_line(row))
        if not found:
            typer.echo("no node is reserved; plait nodes reserve --help shows how")

    respond(home or context.obj, as_json, lambda service: service.reservations(), show)


@nodes.command("unreserve")
def unreserve(
    context: typer.Context,
    reservation: Annotated[str, typer.Argument(help="Reservation that `plait nodes reservations` lists.")],
    home: HomeOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Cancel a reservation of nodes."""
    gone = f"{reservation} is cancelled"
    respond(home or context.obj, as_json, lambda service: service.cancel_reservation(reservation), gone)


def events(
    job: Annotated[
        str | None, typer.Argument(metavar="[JOB]", help="Only events of the job of this id or name.")
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Keep printing new events.")] = False,
    limit: Annotated[int, typer.Option("--last", min=1, help="Print the newest N events.")] = 50,
    all_kinds: Annotated[
        bool, typer.Option("--all", help="Include measurements, estimates and decisions that change nothing.")
    ] = False,
    home: HomeOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Print the event log: what happened and what was decided."""
    with client(home) as service:
        if job is not None:
            job = service.id_of(job)
            if as_json:
                print_json(service.job_events(job, newest=limit))
                return
            found = [step for step in service.job_events(job) if all_kinds or _telling(step)]
            _print_steps(found[-limit:], _clock(service), all_kinds)
            return
        steps = [step for step in service.all_events() if all_kinds or _telling(step)]
        after = max((int(step["seq"]) for step in steps), default=0)
        clock = None if as_json else _clock(service)
        _print_steps(steps[-limit:], clock, all_kinds)
        while follow:
            time.sleep(0.5)
            for step in service.all_events(after):
                after = int(step["seq"])
                if all_kinds or _telling(step):
                    _print_steps([step], clock and _clock(service), all_kinds)


def _telling(step: dict[str, Any]) -> bool:
    return telling(step["event"], step.get("commands") or ())


def _clock(service: Client) -> tuple[float, float]:
    """The service's time and the date of the same moment, seconds."""
    return service.status().now_s, time.time()


def _print_steps(steps: list[dict[str, Any]], clock: tuple[float, float] | None, all_kinds: bool) -> None:
    """Print a line an entry; as JSON without a `clock`."""
    import json

    for step in steps:
        if clock is None:
            typer.echo(json.dumps(step, ensure_ascii=False))
            continue
        event, commands = step["event"], step.get("commands") or []
        ago_s = max(0.0, clock[0] - float(step["at_s"]))
        when = f"{time_of_day(clock[1] - ago_s, clock[1], seconds=True)}  {duration(ago_s):>11} ago"
        typer.echo(f"{step['seq']:>6}  {when}  {plain(step_in_words(event, commands, whole=all_kinds))}")
