"""Pollux and Sia workloads: CSV, seconds, elastic jobs. Durations are not given: they follow from measured
tables.
"""

from __future__ import annotations

import difflib

from plait.goodput.model.shipped import shipped
from plait.traces.delimited import TextRow
from plait.traces.files import RULES, Pathish, Rules, Source
from plait.traces.formats.reader import Format, Head, TableBuilder
from plait.traces.table import TraceTable

HEADER = ("name", "time", "application", "num_replicas", "batch_size")


def read(path: Pathish, *, rules: Rules = RULES) -> TraceTable:
    """Reads a workload; `gpus` and `batch_size` (total) are from the tuned configuration, durations are null.

    An application with nearly the name of a known one is a `TraceError`: a typing mistake would lose the job.
    """
    return _read(FORMAT, path, rules)


def read_sia(path: Pathish, *, rules: Rules = RULES) -> TraceTable:
    """Reads a Sia workload, which has the columns of Pollux; further ones are ignored."""
    return _read(SIA, path, rules)


def _read(fmt: Format, path: Pathish, rules: Rules) -> TraceTable:
    source = Source(path, rules)
    builder = TableBuilder(source)

    def add(row: TextRow) -> None:
        if fmt is FORMAT:
            _refuse_misspelt(row)
        builder.keep(
            row.line,
            job_id=row.text("name"),
            submit_s=row.number("time"),
            gpus=row.gang("num_replicas"),
            model=row.text("application"),
            model_source="trace",
            batch_size=row.whole("batch_size"),
            batch_scope="total",
        )

    builder.read_rows(add, required=HEADER, optional=())
    return builder.finish(fmt)


def _refuse_misspelt(row: TextRow) -> None:
    """Raise for a name that is close to that of a shipped model; other names are jobs of unknown length."""
    name, known = row.text("application"), shipped()
    near = [] if name in known else difflib.get_close_matches(name.lower(), known, 1)
    if near:
        raise row.error("unknown value", column="application", hint=f"did you mean {near[0]!r}?")


def _matches(head: Head) -> bool:
    return head.has(*HEADER)


FORMAT = Format(
    "pollux",
    read,
    _matches,
    units="seconds; batch sizes of the whole job",
    source="petuum/adaptdl, branch osdi21-artifact",
    licence="none stated for the data: do not redistribute",
    citation="Qiao et al., OSDI'21",
)
SIA = Format(
    "sia",
    read_sia,
    lambda head: False,  # the columns of pollux: use format="sia" to record the right source
    units="seconds; batch sizes of the whole job",
    source="siasosp23/artifacts",
    licence="none stated: do not redistribute",
    citation="Jayaram Subramanya et al., SOSP'23",
)
