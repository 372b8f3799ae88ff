"""Output of `plait network simulate`: a row for each run, the jobs of a single one, and all as JSON values."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from plait.cli.connection import print_table
from plait.control.compare import bootstrap
from plait.network.packets.results import PacketResults
from plait.report.packets import COLUMNS, job_cells, run_cells, shown

#: Columns that also a narrow terminal gets.
NEEDED = 4


def show_runs(found: Mapping[str, Sequence[PacketResults]]) -> None:
    """Print a table of runs, each with several seeds, and, if there is one alone, of its jobs."""
    _print("run", {name: [run_cells(one) for one in seeds] for name, seeds in found.items()})
    seeds = next(iter(found.values()))
    if len(seeds) > 1:
        print(f"\nMeans of {len(seeds)} seeds, with 95 % bootstrap intervals.")
    elif len(found) == 1:
        (one,) = seeds
        mixed = len({job.protocol for job in one.jobs}) > 1
        jobs = {f"job {j}{f', {job.protocol}' * mixed}": [job_cells(job)] for j, job in enumerate(one.jobs)}
        late = [f"job {j}" for j, job in enumerate(one.jobs) if job.met_deadline is False]
        print()
        _print("job", jobs)
        if late:
            print(f"Missed their deadlines: {', '.join(late)}.")


def _print(what: str, rows: Mapping[str, Sequence[Mapping[str, float]]]) -> None:
    """Print rows of figures; a narrow terminal gets the first columns."""
    heads = [f"{name}, {unit}" if unit else name for name, (unit, _) in COLUMNS.items()]
    marked = [f"?>{head}" if i >= NEEDED else f">{head}" for i, head in enumerate(heads)]
    lines = [[label, *(_cell([one[name] for one in cells]) for name in COLUMNS)] for label, cells in rows.items()]
    print_table([what, *marked], lines, nothing="no jobs")


def _cell(values: Sequence[float]) -> str:
    """A figure, or the mean over seeds and its interval."""
    if len(values) == 1 or not all(map(math.isfinite, values)):
        return shown(values[0])
    mean, low, high = map(shown, bootstrap(values))
    return mean if low == high else f"{mean} ({low} to {high})"


def as_values(found: Mapping[str, Sequence[PacketResults]], seed: int) -> list[dict[str, Any]]:
    """The runs as JSON values: figures of runs and jobs, and what was measured over time. Null for what is unknown.

    `seed`: of the first run of each name.
    """
    return [
        {
            "protocol": name,
            "seed": seed + k,
            "goodput_gbps": one.goodput_bits_per_s / 1e9,
            "makespan_s": one.makespan_s,
            "fallback_share": one.fallback_share,
            "occupancy": one.occupancy,
            "aggregators": one.aggregators,
            "events": one.events,
            "lost": one.lost,
            "marked": one.marked,
            "dropped": one.dropped,
            "paused_s": one.paused_s,
            "jobs": [_plain(asdict(job)) for job in one.jobs],
            "bin_s": one.bin_s,
            "held": one.held.round(6).tolist(),
            "gbps": one.gbps.round(6).tolist(),
        }
        for name, seeds in found.items()
        for k, one in enumerate(seeds)
    ]


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    made = {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in values.items()}
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value for name, value in made.items()
    }
