"""Everything one `plait reproduce muri` found, and its tables for the terminal."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from rich.table import Table

from plait_papers.evaluation import Outcome
from plait_papers.muri.compare import Comparison
from plait_papers.muri.figures import FIGURES, METRICS
from plait_papers.muri.noise import NoiseRow
from plait_papers.muri.testbed import ErrorRow, TableRow

UNITS = (("s", 1.0), ("h", 3600.0), ("d", 86400.0))
TABLE_METRICS = {**METRICS, "queue_length": "mean queue (figure 8)"}


@dataclass(frozen=True, kw_only=True)
class MuriOutcome(Outcome):
    """Rows by kind."""

    bars: Sequence[Comparison] = ()
    noise: Sequence[NoiseRow] = ()
    tables: Sequence[TableRow] = ()
    testbed: Sequence[ErrorRow] = ()


def tables(outcome: MuriOutcome, fits: Callable[[Table], bool] = lambda table: True) -> Iterator[Table]:
    """One table a figure that has rows; a figure's without the columns least needed until it `fits`."""
    for key, figure in FIGURES.items():
        rows = [row for row in outcome.bars if row.figure == key]
        if rows:
            yield _figure_table(f"Figure {key}: {figure.title.lower()}", rows, figure.note, fits)
    if outcome.noise:
        yield noise_table(outcome.noise)
    if outcome.tables:
        yield _testbed_table(outcome.tables)
    if outcome.testbed:
        yield error_table(outcome.testbed)


def seconds(value: float, largest: float) -> str:
    """Seconds in a unit that suits the largest of them.

    >>> seconds(172800, 172800), seconds(90, 100)
    ('2.00 d', '90 s')
    """
    unit, factor = [u for u in UNITS if largest >= 2 * u[1] or u[1] == 1.0][-1]
    return f"{value / factor:,.2f} {unit}" if factor > 1 else f"{value:,.0f} {unit}"


def paper(low: float | None, high: float | None) -> str:
    """A ratio or a range of ratios.

    >>> paper(1.5, 2.26), paper(2.0, 2.0), paper(None, None)
    ('1.50 to 2.26', '2.00', '')
    """
    if low is None or high is None:
        return ""
    return f"{low:.2f}" if low == high else f"{low:.2f} to {high:.2f}"


def off(ratio: float | None) -> str:
    """How far from 1 a ratio is, in percent.

    >>> off(1.0214), off(1.0000001), off(None)
    ('+2.14 %', '0.00 %', '')
    """
    if ratio is None:
        return ""
    percent = round(100 * (ratio - 1), 2)
    return f"{percent:+.2f} %" if percent else "0.00 %"


def _figure_table(title: str, rows: Sequence[Comparison], note: str, fits: Callable[[Table], bool]) -> Table:
    left_out = set() if any(row.own_ratio is not None for row in rows) else {OWN}
    for name in ("", *LEAST_NEEDED):
        left_out.add(name)
        columns = {text: cell for text, cell in COLUMNS.items() if text not in left_out}
        grid = _grid(title, ("trace", "metric", "bar"), tuple(columns))
        grid.caption = note
        for i, row in enumerate(rows):
            same = [r for r in rows if (r.trace, r.metric) == (row.trace, row.metric)]
            largest = max(r.ours_s for r in same)
            first = row is same[0]
            grid.add_row(
                FIGURES[row.figure].label(row.trace) if first else "",
                METRICS[row.metric] if first else "",
                row.bar,
                *(cell(row, largest) for cell in columns.values()),
                end_section=i + 1 == len(rows) or row is same[-1],
            )
        if fits(grid):
            break
    return grid


OWN = "plait's world,\nover Muri"
#: Columns of a figure's table, and their text, given the row's largest value.
COLUMNS: dict[str, Callable[[Comparison, float], str]] = {
    "ours": lambda row, largest: seconds(row.ours_s, largest),
    "authors'": lambda row, largest: "" if row.published_s is None else seconds(row.published_s, largest),
    "off by": lambda row, largest: off(row.ours_to_published),
    "over Muri": lambda row, largest: f"{row.ratio:.2f}",
    "paper": lambda row, largest: paper(row.paper_low, row.paper_high),
    "guard on": lambda row, largest: seconds(row.consistent_s, largest),
    "guard on,\nover Muri": lambda row, largest: f"{row.consistent_ratio:.2f}",
    OWN: lambda row, largest: paper(row.own_ratio, row.own_ratio),
}
#: Columns to drop when there is no room, the first one first; the page and the JSON have all.
LEAST_NEEDED = ("guard on", "authors'", "ours", "guard on,\nover Muri", "off by")


def noise_table(rows: Sequence[NoiseRow]) -> Table:
    """Figure 14: mean JCT and makespan at each level of profile noise, relative to no noise."""
    title = "Figure 14: profile noise (no published data, only the claim)"
    grid = _grid(
        title, ("policy", "noise"), ("mean JCT over none", "lowest seed", "highest seed", "makespan over none")
    )
    grid.caption = "Paper: mean JCT x1.0 to x1.3 from n = 0 to 1, below 1 % for n <= 0.2; makespan x1."
    for row in rows:
        numbers = (row.jct_ratio, row.jct_low, row.jct_high, row.makespan_ratio)
        grid.add_row(row.policy, f"{row.noise:g}", *(f"{v:.3f}" for v in numbers))
    return grid


def _testbed_table(rows: Sequence[TableRow]) -> Table:
    title = "Tables 4 and 5: the testbed trace, simulated with 360 s rounds, next to the 64-GPU testbed"
    grid = _grid(title, ("metric", "policy"), ("ours", "testbed", "off by", "over Muri", "paper"))
    for row in rows:
        same = [r for r in rows if r.metric == row.metric]
        plain = row.metric == "queue_length"
        largest = max(r.ours for r in same)
        shown = [f"{v:.1f}" if plain else seconds(v, largest) for v in (row.ours, row.published)]
        grid.add_row(
            TABLE_METRICS[row.metric] if row is same[0] else "",
            row.policy,
            *shown,
            off(row.ours / row.published),
            paper(row.ratio, row.ratio),
            paper(row.paper_ratio, row.paper_ratio),
            end_section=row is same[-1],
        )
    return grid


def error_table(rows: Sequence[ErrorRow]) -> Table:
    """How far the simulator is from the testbed's logs."""
    title = "Simulator against the testbed's logs (simulated / logged - 1)"
    columns = ("mean JCT", "makespan", "p99 JCT", "run time", "job p10", "job median", "job p90", "within 5 %")
    grid = _grid(title, ("policy",), columns)
    grid.caption = "job: of each job's completion time; within 5 %: mean JCT and makespan"
    for row in rows:
        spread = (row.avg_jct, row.makespan, row.p99_jct, row.run_time, row.job_p10, row.job_median, row.job_p90)
        grid.add_row(row.policy, *(off(1 + v) for v in spread), "yes" if row.within else "no")
    return grid


def _grid(title: str, texts: Sequence[str], numbers: Sequence[str]) -> Table:
    grid = Table(title=title, title_justify="left", header_style="bold", caption_justify="left")
    for name in texts:
        grid.add_column(name, no_wrap=True)
    for name in numbers:
        grid.add_column(name, justify="right")
    return grid


def known(value: float | None) -> float:
    """NaN for what is not known."""
    return math.nan if value is None else value
