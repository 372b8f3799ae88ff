"""What `plait network simulate` prints: a row for each run, the jobs of a single one, and all as JSON values."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
from rich.table import Table

from plait.cli.render.console import console
from plait.network.packets.results import PacketResults
from plait.report.packets import COLUMNS, job_cells, run_cells, shown


def show_runs(found: Mapping[str, PacketResults]) -> None:
    """Print a table of runs and, if there is one, of its jobs."""
    runs = {name: run_cells(one) for name, one in found.items()}
    console().print(_table("run, means over jobs", runs))
    if len(found) == 1:
        (one,) = found.values()
        jobs = {f"job {j}": job_cells(job) for j, job in enumerate(one.jobs)}
        late = [f"job {j}" for j, job in enumerate(one.jobs) if job.met_deadline is False]
        console().print(_table("job", jobs))
        if late:
            console().print(f"Missed their deadlines: {', '.join(late)}.")


def _table(what: str, rows: Mapping[str, Mapping[str, float]]) -> Table:
    grid = Table(what)
    for name, (unit, _) in COLUMNS.items():
        grid.add_column(f"{name}, {unit}" if unit else name, justify="right")
    for label, cells in rows.items():
        grid.add_row(label, *(shown(cells[name]) for name in COLUMNS))
    return grid


def as_values(found: Mapping[str, PacketResults]) -> list[dict[str, Any]]:
    """The runs as JSON values: figures of runs and jobs, and what was measured over time. Null for what is unknown."""
    return [
        {
            "protocol": name,
            "goodput_gbps": one.goodput_bits_per_s / 1e9,
            "makespan_s": one.makespan_s,
            "fallback_share": one.fallback_share,
            "occupancy": one.occupancy,
            "aggregators": one.aggregators,
            "events": one.events,
            "lost": one.lost,
            "marked": one.marked,
            "jobs": [_plain(asdict(job)) for job in one.jobs],
            "bin_s": one.bin_s,
            "held": one.held.round(6).tolist(),
            "gbps": one.gbps.round(6).tolist(),
        }
        for name, one in found.items()
    ]


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    made = {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in values.items()}
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value for name, value in made.items()
    }
