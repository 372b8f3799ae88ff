"""The comparison in a terminal: as many figures as there is room for."""

from __future__ import annotations

from collections.abc import Sequence

from plait.cli.render.console import Printer
from plait.control.compare import compare
from plait.control.metrics import RunResult
from plait.report.metrics import METRICS
from plait.report.tables import comparison_table, known

#: Figures that go first when there is no room for all: the last one goes first.
LEAST_NEEDED = (
    "p50_jct_s", "preemptions", "avg_slowdown", "unfair_share", "max_fairness", "avg_queue_length", "gpu_busy",
)  # fmt: skip


def print_comparison(results: Sequence[RunResult], printer: Printer) -> bool:
    """Print the table without the figures that do not fit; whether there were any."""
    chosen = there = known(compare(results), [m for m in METRICS if m.main])
    table = comparison_table(results, chosen)
    for name in reversed(LEAST_NEEDED):
        if printer.fits(table):
            break
        chosen = [m for m in chosen if m.key != name]
        table = comparison_table(results, chosen)
    if not printer.fits(table):
        fitting = chosen[:1]
        for metric in chosen[1:]:
            if printer.fits(comparison_table(results, [*fitting, metric])):
                fitting.append(metric)
        chosen, table = fitting, comparison_table(results, fitting)
    printer.print(table)
    return len(chosen) < len(there)
