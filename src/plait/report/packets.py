"""The page of packet simulations: aggregators held and goodput over time, figures of runs and jobs, first packets."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup

from plait.core.arrays import FloatArray
from plait.core.files import write_text
from plait.network.packets.results import JobFigures, PacketResults
from plait.network.protocol.header import COLLIDED, DATA, EVICT, EXPONENT, RESEND, RESULT
from plait.report.charts import STYLE, ChartLine, series_svg, text_at, unit_of_time
from plait.report.sections import Section, sections_page

#: Column of a table of runs or jobs -> (unit, meaning).
COLUMNS: Mapping[str, tuple[str, str]] = {
    "goodput": ("Gb/s", "Payload of one worker over the time of its exchanges; of a run the mean over jobs"),
    "finish": ("us", "When the last worker has its last result; of a run the time from first start to last finish"),
    "fallback": ("%", "Packets that found no aggregator, of all packets of workers"),
    "aggregated": ("%", "Sums that were completed in switches"),
    "resent": ("%", "Packets that workers sent again, of all their packets"),
    "evicted": ("", "Contents of aggregators that packets of higher priority displaced"),
    "aggregators": ("", "Time mean of aggregators held; of a run by all jobs"),
    "holding": ("us", "Mean time that an aggregator is held"),
    "at server": ("", "Packets that reach the server, for each sum"),
    "timeouts": ("", "Of all workers"),
}
#: Maximum points of a line over time: with more, the lines of five jobs that stall and resume hide each other.
POINTS = 64
#: Kinds of marks in the picture of the first packets: colour and meaning.
_MARKS = {
    "sent": ("#2b83ba", "packet of a worker at the switch"),
    "again": ("#c0609c", "sent again, at the switch"),
    "fell back": ("#e0692a", "packet without aggregator at the server"),
    "sum": ("#7a67d0", "content of an aggregator at the server"),
    "result": ("#1f9d76", "result at a worker"),
}


def write_packets_page(
    runs: Mapping[str, PacketResults], path: str | Path, *, nodes: int, settings: Mapping[str, str]
) -> None:
    """Write the page of runs by name; `nodes`: how many there are before switches in their logs."""
    write_text(path, packets_page(runs, nodes=nodes, settings=settings))


def packets_page(runs: Mapping[str, PacketResults], *, nodes: int, settings: Mapping[str, str]) -> str:
    """The page as text; `settings` are shown as given."""
    sections = [_overview(runs)] if len(runs) > 1 else []
    sections += [_one(name, found) for name, found in runs.items()]
    sections += [_first_window(name, found, nodes) for name, found in runs.items() if len(found.log)]
    facts = [f"{name} {value}" for name, value in settings.items()]
    return sections_page(
        sections, title="In-network aggregation, packet by packet", brand="packet simulation", facts=facts,
        lead="Simulated; every run is the same for the same seed. Hover over a heading to see what it means.",
    )  # fmt: skip


def run_cells(found: PacketResults) -> dict[str, float]:
    """The figures of a run, by column."""
    jobs = found.jobs
    return {
        "goodput": found.goodput_bits_per_s / 1e9,
        "finish": 1e6 * found.makespan_s,
        "fallback": 100 * found.fallback_share,
        "aggregated": 100 * _mean([job.aggregated_share for job in jobs]),
        "resent": 100 * sum(job.resend_share * job.packets for job in jobs) / found.worker_packets,
        "evicted": sum(job.evicted for job in jobs),
        "aggregators": found.occupancy * found.aggregators,
        "holding": 1e6 * _mean([job.holding_s for job in jobs]),
        "at server": _mean([job.server_packets for job in jobs]),
        "timeouts": sum(job.timeouts for job in jobs),
    }


def job_cells(job: JobFigures) -> dict[str, float]:
    return {
        "goodput": job.goodput_bits_per_s / 1e9,
        "finish": 1e6 * job.finish_s,
        "fallback": 100 * job.fallback_share,
        "aggregated": 100 * job.aggregated_share,
        "resent": 100 * job.resend_share,
        "evicted": job.evicted,
        "aggregators": job.occupancy,
        "holding": 1e6 * job.holding_s,
        "at server": job.server_packets,
        "timeouts": job.timeouts,
    }


def shown(value: float) -> str:
    """A figure as text; a dash for what does not exist."""
    if not math.isfinite(value):
        return "–"
    return f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"


def _mean(values: Sequence[float]) -> float:
    known = [value for value in values if math.isfinite(value)]
    return sum(known) / len(known) if known else math.nan


def _columns() -> list[dict[str, Any]]:
    return [{"label": name, "unit": unit, "meaning": meaning} for name, (unit, meaning) in COLUMNS.items()]


def _row(label: str, cells: Mapping[str, float]) -> dict[str, Any]:
    made = [{"text": shown(cells[name]), "best": False, "interval": ""} for name in COLUMNS]
    return {"label": label, "cells": made}


def _over_time(found: PacketResults, values: FloatArray, name: str) -> ChartLine:
    """A line over the bins until the last finish, each point the mean of so many bins that there are few points."""
    bins = math.ceil(max(job.finish_s for job in found.jobs) / found.bin_s)
    step = math.ceil(bins / POINTS)
    parts = [values[b : min(b + step, bins)] for b in range(0, bins, step)]
    times = [(b + 0.5 * len(part)) * found.bin_s for b, part in zip(range(0, bins, step), parts, strict=True)]
    return ChartLine(name, times, [float(part.mean()) for part in parts])


def _overview(runs: Mapping[str, PacketResults]) -> Section:
    held = [
        _over_time(found, 100 * found.held.sum(axis=0) / max(1, found.aggregators), name)
        for name, found in runs.items()
    ]
    goodput = [_over_time(found, found.gbps.mean(axis=0), name) for name, found in runs.items()]
    figures = [
        Markup(series_svg("Aggregators held", held, "% of all")),
        Markup(series_svg("Goodput, mean over jobs", goodput, "Gb/s")),
    ]
    rows = [_row(name, run_cells(found)) for name, found in runs.items()]
    return Section("All runs", figures, columns=_columns(), rows=rows, heads=("Run",))


def _one(name: str, found: PacketResults) -> Section:
    jobs = range(len(found.jobs))
    figures = [
        Markup(series_svg(title, [_over_time(found, values[j], f"job {j}") for j in jobs], label))
        for title, values, label in (
            ("Aggregators held, by job", found.held, "aggregators"),
            ("Goodput, by job", found.gbps, "Gb/s"),
        )
    ]
    rows = [_row(f"job {j}, {job.protocol}", job_cells(job)) for j, job in enumerate(found.jobs)]
    drawn = min(len(found.jobs), 5)
    notes = [f"Pictures show the first {drawn} of {len(found.jobs)} jobs."] if drawn < len(found.jobs) else []
    notes.append(
        f"{found.events:,} events; {found.lost:,} packets lost, {found.dropped:,} dropped, {found.marked:,} marked."
    )
    return Section(name, figures, columns=_columns(), rows=rows, heads=("Job",), notes=notes)


#: Sequence numbers in the picture of a job's first packets.
WINDOW = 48


def _first_window(name: str, found: PacketResults, nodes: int) -> Section:
    picture = Markup(timeline_svg(found, nodes))
    keys = [{"colour": colour, "name": meaning} for colour, meaning in _MARKS.values()]
    notes = [f"Job 0: a row for each of its first {WINDOW} sequence numbers, from its first packet to its last result."]
    return Section(f"First packets, {name}", [picture], keys=keys, notes=notes, wide=True)


def _marks(found: PacketResults, nodes: int) -> Iterator[tuple[int, float, str]]:
    """(Row, seconds, kind of mark) of the first packets of job 0 in the log."""
    for time, node, kind, job, seq, bitmap, _, flags, _ in found.log.tolist():
        if job != 0 or seq >= WINDOW:
            continue
        if kind == RESULT:
            if node < nodes:
                yield seq, time / 1e12, "result"
        elif node >= nodes:
            if kind in (DATA, EXPONENT, RESEND):
                yield seq, time / 1e12, "again" if kind == RESEND else "sent"
        else:
            alone = bitmap & (bitmap - 1) == 0 and kind != EVICT
            yield seq, time / 1e12, "fell back" if alone and flags & COLLIDED else "sum"


def timeline_svg(found: PacketResults, nodes: int) -> str:
    """The first packets of job 0: a row for each sequence number, a mark where one of its packets arrives."""
    marks = list(_marks(found, nodes))
    begin = min((time for _, time, _ in marks), default=0.0)
    rows = np.array([row for row, _, _ in marks], dtype=np.int64)
    times = np.array([time for _, time, _ in marks]) - begin
    # The picture ends when most are finished: one that waits for its timer would make all others a point.
    last = [float(times[rows == row].max()) for row in range(WINDOW) if (rows == row).any()]
    end = 1.1 * float(np.median(last)) * 2 if last else 1.0
    end = min(end, 1.05 * float(times.max())) if len(times) else end
    seconds, unit = unit_of_time(end)
    width, left, right, top, step = 960, 40, 944, 24, 9
    height = top + step * WINDOW + 40
    scale = (right - left) / (end or 1.0)
    parts = [text_at(4, 14, "seq", "class='soft'")]
    for row in range(WINDOW):
        y = top + step * row + 4
        mine = times[rows == row]
        if row % 8 == 0:
            parts.append(text_at(left - 6, y + 4, str(row), "class='soft' text-anchor='end'"))
        if len(mine):
            ends = [left + min(end, float(t)) * scale for t in (mine.min(), mine.max())]
            parts.append(f"<path class='axis' d='M{ends[0]:.1f} {y}H{ends[1]:.1f}'/>")
    for (row, _, kind), time in zip(marks, times.tolist(), strict=True):
        if time <= end:
            x, y = left + time * scale, top + step * row
            parts.append(f"<rect x='{x - 1:.1f}' y='{y}' width='2' height='8' fill='{_MARKS[kind][0]}'/>")
    for i in range(6):
        x = left + i * (right - left) / 5
        parts.append(
            text_at(x, height - 20, f"{i * end / 5 / seconds:.3g} {unit}", "class='soft' text-anchor='middle'")
        )
    label = escape("Packets of the first sequence numbers over time")
    head = f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {width} {height}' width='{width}' height='{height}'"
    body = "\n".join(parts)
    return f"{head} role='img' class='lines'>\n<title>{label}</title>\n<style>{STYLE}</style>\n{body}\n</svg>\n"
