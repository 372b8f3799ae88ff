"""The trace formats plait reads, by name, and how to recognise them."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from plait.core.errors import InputError, TraceError, suggest
from plait.traces import canonical, schema  # fmt: skip
from plait.traces.delimited import HEAD_LINES
from plait.traces.files import UNREADABLE, Pathish, Rules, Source
from plait.traces.formats import synergy
from plait.traces.formats.alibaba import OPENB, PAI
from plait.traces.formats.clusters import HELIOS, PHILLY
from plait.traces.formats.managers import COMMAND, KUEUE, SACCT, is_table
from plait.traces.formats.reader import Format, Head
from plait.traces.formats.simulators import GAVEL, MURI, MURI_HEADER, POLLUX, TESTBED, TIRESIAS, TIRESIAS_HEADER
from plait.traces.table import TraceTable

FORMATS: dict[str, Format] = {
    fmt.name: fmt
    for fmt in (
        canonical.FORMAT,
        MURI,
        TESTBED,
        TIRESIAS,
        GAVEL,
        POLLUX,
        synergy.FORMAT,
        PHILLY,
        HELIOS,
        PAI,
        OPENB,
        SACCT,
        KUEUE,
    )
}
"""Every format, by name: adding one is writing its reader and naming it here."""

HEAD_CHARS = 1 << 14


def sniff(path: Pathish, columns: tuple[str, ...] = ()) -> Format:
    """The format of a file, by its header, else by the `columns` of a file without, or by its number of fields.

    Raises TraceError if no format fits, or more than one.
    """
    head = _head(path, columns)
    fitting = [fmt for fmt in FORMATS.values() if fmt.matches(head)]
    if len(fitting) == 1:
        return fitting[0]
    if not fitting:
        _explain_near_miss(path, head)
    problem = f"could be {' or '.join(f.name for f in fitting)}" if fitting else "no known format fits"
    names = ", ".join(FORMATS)
    raise TraceError(problem, file=str(path), hint=f"name one with --format, in Python format=, one of: {names}")


def _explain_near_miss(path: Pathish, head: Head) -> None:
    """Raise `TraceError` with the difference for a header that is almost that of a known format."""
    if is_table(head):
        problem = "the columns of sacct are cut to a fixed width"
        raise TraceError(problem, file=str(path), hint=f"print them whole with -P: {COMMAND}")
    headers = {"canonical": ("job_id", "submit_s", "gpus"), "muri": MURI_HEADER, "tiresias": TIRESIAS_HEADER}
    known = {"canonical": (*schema.JOBS,)}
    shares = {
        name: sum(column in known.get(name, header) for column in head.comma) / max(len(head.comma), len(header))
        for name, header in headers.items()
    }
    name = max(shares, key=lambda n: shares[n])
    missing = [column for column in headers[name] if column not in head.comma]
    if shares[name] >= 0.5 and missing:
        raise TraceError(
            f"looks like format {name}, but a required column is missing",
            file=str(path),
            line=1,
            column=missing[0],
            hint=suggest(missing[0], head.comma),
        )


def _head(path: Pathish, columns: tuple[str, ...]) -> Head:
    where = Path(path)
    if where.is_dir():
        return Head(where, (), "")
    if canonical.is_parquet(where):
        return Head(where, (), "PAR1")
    source = Source(where)
    start = _start(source)
    if not start.strip():
        raise TraceError("the file is empty", file=str(path))
    lines = start.splitlines(keepends=True)
    return Head(where, tuple(lines[:HEAD_LINES]), start, columns)


def _start(source: Source) -> str:
    """The first characters of a file, without reading the rest."""

    class _EnoughError(Exception):
        pass

    start = ""
    try:
        with source.open() as text:
            start = text.read(HEAD_CHARS)
            raise _EnoughError
    except _EnoughError:
        return start


def read_trace(
    path: Pathish,
    format: str = "auto",  # noqa: A002
    *,
    strict: bool = False,
    unreadable: float = UNREADABLE,
    columns: Sequence[str] = (),
    **options: Any,
) -> TraceTable:
    """Reads a trace in any known format into the canonical table.

    `auto` recognises the format by its header. Rows that cannot be read are left out, counted and reported in the
    sidecar, up to the share `unreadable` of all rows; beyond it the first one raises TraceError, naming the place.
    `strict` turns warnings into errors. `columns` name the columns of a file without header. `options` go to the
    format's reader, e.g. `work="iterations"` for muri.
    """
    if format != "auto" and format not in FORMATS:
        raise InputError(f"unknown trace format {format!r}; {suggest(format, ['auto', *FORMATS])}")
    if not Path(path).exists():
        raise TraceError("no such file", file=str(path))
    if not 0 <= unreadable <= 1:
        raise InputError(f"the share of unreadable rows is {unreadable:g}, must lie in [0, 1]")
    rules = Rules(strict, unreadable, tuple(columns))
    chosen = sniff(path, rules.columns) if format == "auto" else FORMATS[format]
    known = [name for name in inspect.signature(chosen.read).parameters if name not in ("path", "rules")]
    for name in options:
        if name not in known:
            raise InputError(f"format {chosen.name} has no option {name!r}; {suggest(name, known)}")
    return chosen.read(path, rules=rules, **options)
