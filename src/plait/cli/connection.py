"""Shared by all commands that talk to the service: options, the client, times and tables."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from plait.core.words import counted, number

if TYPE_CHECKING:
    from plait.live.api.jobs import JobRow
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
