"""Shared by all commands that talk to the service: options, the client, patience, times and tables."""

from __future__ import annotations

import json
import math
import os
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from plait.core.words import counted, number
from plait.live.notes import note

if TYPE_CHECKING:
    from plait.live.api.jobs import JobRow, WholeJob
    from plait.live.client.client import Client

T = TypeVar("T")
# Importing httpx brings its own command line along, and with it half of the time of `plait ls`.
sys.modules.setdefault("httpx._main", None)  # type: ignore[arg-type]

HomeOption = Annotated[
    str | None, typer.Option("--home", help="Folder of the service; default: PLAIT_HOME, else ~/.plait.")
]
JsonFlag = Annotated[bool, typer.Option("--json", help="Print JSON.")]
LoseWork = Annotated[
    bool, typer.Option("--may-lose-work", help="Also if jobs would lose work: they have no checkpoint to resume from.")
]


def client(home: str | None, *, notices: bool = True) -> Client:
    """The client of the service that serves this home folder.

    `notices`: print, once, that what the service shows is not current.
    """
    from plait.live.client.client import Client
    from plait.live.notes import note

    made = Client.at(home)
    if notices:
        made.notices = note
    return made


def respond(home: str | None, as_json: bool, request: Callable[[Client], T], show: str | Callable[[T], object]) -> None:
    """Send a request to the service and print its answer: as JSON, or as the sentence or by the function `show`."""
    with client(home) as service:
        answer = request(service)
    if as_json:
        print_json(answer)
    elif isinstance(show, str):
        typer.echo(show)
    else:
        show(answer)


def print_json(value: Any) -> None:
    """Print a value, such as an answer of the service, as JSON for other programs."""
    typer.echo(json.dumps(value, indent=1, ensure_ascii=False, default=_plain))


def _plain(one: Any) -> Any:
    """An answer of the service as mappings and lists, a number of NumPy as one of Python."""
    if hasattr(one, "item"):
        return one.item()
    import msgspec  # an installation without the extra [live] has no answers

    return msgspec.to_builtins(one)


def progress(job: JobRow) -> str:
    """Completed iterations, as a share of the total if it is known."""
    if (
        adaptive := job.adaptive
    ) is not None and adaptive.total_progress:  # its steps are worth more, or less, as its batch changes
        done, total = number(adaptive.progress), adaptive.total_progress
        return f"{min(done / total, 1.0) if math.isfinite(done) else 0.0:4.0%} of {total:,.0f}"
    done, total = job.iterations_done, number(job.iterations or job.total_steps)
    if math.isfinite(total) and total > 0:
        share = min(done / total, 1.0) if math.isfinite(done) else 0.0
        return f"{share:4.0%} of {total:,.0f}"
    return counted(int(done), "step") if math.isfinite(done) and done > 0 else "-"


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]], nothing: str, most_lines: int = 3) -> None:
    """Print a table, or the sentence `nothing` if there are no rows.

    `columns`: headings with the marks of `plait.cli.render.tables`; `rows`: a cell per column; `most_lines`: largest
    number of lines of a cell.
    """
    from plait.cli.render.tables import piped, table

    lines = list(rows)
    if not lines:
        typer.echo(nothing)
        return
    # These make rich draw for a terminal where there is none.
    if not (sys.stdout.isatty() or any(os.environ.get(name) for name in ("FORCE_COLOR", "TTY_COMPATIBLE"))):
        sys.stdout.writelines(line + "\n" for line in piped(columns, lines, most_lines))
        return
    from plait.cli.render.console import console

    printer = console()
    printer.print(table(columns, lines, printer.limit, most_lines), whole=True)


# Waiting for a service that does not answer for a moment: jobs continue, and its keeper restarts it.

#: Seconds between two looks.
LOOK_S = 0.3
#: A keeper restarts a service within this many seconds.
STARTED_S = 60.0
#: After this many seconds without a failed request, the service must have answered in between.
AGAIN_S = 10.0


def patiently(service: Client, job: str) -> WholeJob:
    """The job; waits up to a minute for a service that does not answer, since jobs continue without it."""
    from plait.live.client.client import NotRunning

    until = time.monotonic() + STARTED_S
    while True:
        try:
            return service.job(job)
        except NotRunning:
            if time.monotonic() > until:
                raise
            time.sleep(1)


def while_it_is_started(home: str | None) -> Callable[[], bool]:
    """A function: whether to keep waiting for a silent service, up to a minute and while its keeper runs."""
    from plait.live.layout import Layout
    from plait.live.supervisor import daemon

    until = asked = -math.inf

    def waits() -> bool:
        nonlocal until, asked
        if daemon.running(Layout.at(home), daemon.KEEPER) is None:
            return False
        now = time.monotonic()
        if now > asked + AGAIN_S:  # it answered in between
            until = now + STARTED_S
            note("the service does not answer; its keeper starts it again, and the log goes on then")
        asked = now
        return now < until

    return waits


def last_state(job: str, home: str | None) -> str | None:
    """The state of a job in the store of a stopped service; None if the store is not on this machine."""
    import contextlib
    import sqlite3

    from plait.live.layout import Layout, job_number

    path = Layout.at(home).database
    if os.environ.get("PLAIT_URL") or not path.exists():
        return None
    try:
        with contextlib.closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as database:
            found = database.execute("SELECT state FROM jobs WHERE number = ?", (job_number(job),)).fetchone()
    except sqlite3.Error:
        return None
    return None if found is None else str(found[0])


def awaited(ask: Callable[[], T], waits: Callable[[], bool]) -> T:
    """The answer of `ask`; retries while the service does not answer and `waits` returns True."""
    from plait.live.client.client import NotRunning

    while True:
        try:
            return ask()
        except NotRunning:
            if not waits():
                raise
            time.sleep(LOOK_S)
