"""`plait logs`: what a job wrote."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from plait.cli.commands.jobs import JobArgument
from plait.cli.connection import HomeOption, JsonFlag, client, print_json
from plait.cli.patience import awaited, last_state, while_it_is_started
from plait.cli.render.tables import plain, plain_lines
from plait.live.notes import note

if TYPE_CHECKING:
    from plait.live.client.client import Client

#: Bytes at the end of a log that are read first for its last lines, and at most.
CHUNK, MOST_BYTES = 1 << 16, 1_000_000


def logs(
    job: JobArgument,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Keep printing until the job ends.")] = False,
    rank: Annotated[int, typer.Option(min=0, help="Rank of the process whose log is printed.")] = 0,
    tail: Annotated[int | None, typer.Option("--tail", min=1, metavar="N", help="Print only the last N lines.")] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Keep terminal escape sequences.")] = False,
    home: HomeOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Print the log of a job's newest attempt.

    Escape sequences, which a terminal at the end of a pipe would obey too, are removed unless --raw is given. --json
    prints one part, of at most 1 MB, with its place in the log in bytes: the last --tail lines, else the beginning.
    """
    from plait.core.errors import InputError

    if as_json:
        if follow:
            raise InputError("--json and --follow exclude each other; --follow prints the log as it comes")
        _print_part(job, rank, tail, home)
        return
    shown = str if raw else plain_lines

    with client(home) as service:
        patience = while_it_is_started(home) if follow else lambda: False
        if not follow:
            found = service.job(job)
            if never := _never_ran(found):
                note(never)
                return
            if waits := _between_attempts(found):
                note(f"{waits}; plait logs -f {job} shows its next attempt as it comes")
        offset = 0
        if tail is not None:
            part = awaited(lambda: last_lines(service, job, rank, tail), patience)
            typer.echo(shown(part["text"]), nl=False)
            offset = part["next"]
        if follow:
            from plait.live.client.client import NotRunning

            wrote = tail is not None and part["size"] > 0
            try:
                for text in service.follow(
                    job, rank=rank, offset=offset, notice=lambda text: note(f"{job}: {text}"), waits=patience
                ):
                    typer.echo(shown(text), nl=False)
                    wrote = True
                if not wrote and (never := _never_ran(service.job(job))):
                    note(never)
            except NotRunning:
                if not service.answered:
                    raise
                _without_service(job, home)
            return
        while True:
            part = service.logs(job, rank=rank, offset=offset)
            text = str(part.get("text", ""))
            if not text:
                return
            typer.echo(shown(text), nl=False)
            offset = int(part.get("next", part["offset"] + len(text.encode())))
            if offset >= int(part["size"]):
                return


def _print_part(job: str, rank: int, tail: int | None, home: str | None) -> None:
    """Print a part of a log as JSON."""
    with client(home) as service:
        if tail is None:
            print_json(service.logs(job, rank=rank, limit=MOST_BYTES))
        else:
            print_json(last_lines(service, job, rank, tail))


def last_lines(service: Client, job: str, rank: int, count: int) -> dict[str, Any]:
    """The last `count` lines of a log, of at most 1 MB, as a part: {text, offset, next, size}, in bytes."""
    size, reach = int(service.logs(job, rank=rank, limit=1)["size"]), CHUNK
    while True:
        at = start = max(size - reach, 0)
        text, part = "", {}
        while at < size:
            part = service.logs(job, rank=rank, offset=at, limit=size - at)
            if int(part["next"]) <= at:
                break
            text, at = text + part["text"], int(part["next"])
        if start == 0 or reach >= MOST_BYTES or text.count("\n", 0, -1) >= count:
            break
        reach = min(4 * reach, MOST_BYTES)
    begins = [0, *(match.end() for match in re.finditer("\n", text) if match.end() < len(text))]
    kept = text[begins[-count:][0] :]
    return {**part, "text": kept, "offset": size - len(kept.encode()), "next": size, "size": size}


def _without_service(job: str, home: str | None) -> None:
    """After the service stopped answering: print how the followed job ended; exit code 1 if it has not ended."""
    from plait.live.client.client import FINAL

    state = last_state(job, home)
    if state in FINAL:
        note(f"{job} has {state}" if state != "cancelled" else f"{job} was cancelled")
        return
    known = f", and {job} had not ended" if state else ""
    note(f"the service does not answer any more{known}; go on with: plait up, then plait logs -f {job}")
    raise typer.Exit(1)


def _never_ran(found: Mapping[str, Any]) -> str:
    """Why a job that has ended has no log; empty if it has one, or has not ended."""
    from plait.live.client.client import FINAL

    if found["state"] not in FINAL or found.get("attempts") != []:
        return ""
    why = f" ({plain(found['reason'])})" if found.get("reason") and found["reason"] != found["state"] else ""
    return f"{found['id']} has no log, because it never started: {found['state']}{why}"


def _between_attempts(found: Mapping[str, Any]) -> str:
    """Why an unfinished job writes no log now; empty if it does."""
    attempts = found.get("attempts") or ()
    if found["state"] == "waiting" and not attempts:
        return f"{found['id']} has not started yet; plait explain {found['id']} says why"
    if found["state"] not in ("waiting", "starting") or not attempts:
        return ""
    last = attempts[-1]
    if found["state"] == "starting" and last["state"] == "running":
        return f"{found['id']} is starting: attempt {last['epoch']}" if len(attempts) > 1 else ""
    why = f" ({plain(last['reason'])})" if last.get("reason") and last["reason"] != last["state"] else ""
    return f"{found['id']} waits to start again; this is attempt {last['epoch']}, which is over: {last['state']}{why}"
