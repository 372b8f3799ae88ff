"""The comparison as tables for the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.table import Table

from plait.reproduce.antman.compare import Comparison, Outcome, Ratio, killed, nearest
from plait.reproduce.antman.muri_artifact import METRICS, ArtifactRow
from plait.reproduce.antman.published import KILLED, PRODUCTION
from plait.reproduce.antman.variants import PREEMPTING, STUDIES

#: Columns of a table of variants.
HEAD = (
    "mean JCT, h", "guaranteed", "opportunistic", "makespan, h", "JCT / antman", "published", "makespan / antman",
    "published", "killed", "published", "guaranteed stretch", "lost GPU-h",
)  # fmt: skip
TITLES = {
    "published": "The published comparison",
    "parts": "AntMan with parts taken away or added, and others on its terms",
    **{study: f"Study: {what}" for study, what in STUDIES.items()},
}


def tables(outcome: Outcome) -> Iterator[Table]:
    """All of them: the published comparison, the parts, the studies, the artifact, production."""
    for section in TITLES:
        rows = [row for row in outcome.rows if row.section == section]
        if rows and section == "shapes":
            yield _nearest(rows)
        elif rows:
            yield _table(TITLES[section], rows)
    if outcome.artifact:
        yield _artifact(outcome.artifact)
    grid = Table(title="Published of production, for context", title_justify="left", header_style="bold")
    grid.add_column("quantity")
    grid.add_column("value", justify="right")
    for what, value in PRODUCTION.items():
        grid.add_row(what, value)
    yield grid


def _table(title: str, rows: Sequence[Comparison]) -> Table:
    grid = Table(title=title, title_justify="left", header_style="bold")
    grid.add_column("trace")
    grid.add_column("variant")
    columns = filled(rows)
    for i in columns:
        grid.add_column(HEAD[i], justify="right")
    before = ""
    for i, row in enumerate(rows):
        last = i + 1 == len(rows) or rows[i + 1].at != row.at
        shown = cells(row)
        grid.add_row("" if row.at == before else row.at, row.variant, *(shown[c] for c in columns), end_section=last)
        before = row.at
    return grid


def filled(rows: Sequence[Comparison]) -> list[int]:
    """Which of the columns `HEAD` have anything in one of the rows."""
    return [i for i in range(len(HEAD)) if any(cells(row)[i] for row in rows)]


def cells(row: Comparison) -> tuple[str, ...]:
    """The columns `HEAD` as text."""
    f = row.figures
    if row.variant == row.over:
        jct, makespan = ("1", ""), ("1", "")
    else:
        jct, makespan = _ratio(row.jct), _ratio(row.makespan)
    return (
        _hours(f.get("avg_jct_s")), _hours(f.get("avg_jct_guaranteed_s")), _hours(f.get("avg_jct_opportunistic_s")),
        _hours(f.get("makespan_s")), *jct, *makespan, share(f.get("opportunistic_killed_share")),
        share(row.killed_published),
        "" if "stretch_guaranteed" not in f else f"{f['stretch_guaranteed']:.3f}",
        f"{f['lost_work_gpu_h']:,.0f}" if f.get("lost_work_gpu_h") else "",
    )  # fmt: skip


def _hours(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds / 3600:,.2f}"


def _ratio(ratio: Ratio | None) -> tuple[str, str]:
    """Ours with the range over seeds, and the published one."""
    if ratio is None:
        return "", ""
    span = "" if ratio.low == ratio.high else f" ({ratio.low:.2f} to {ratio.high:.2f})"
    return f"{ratio.ours:.2f}{span}", "" if ratio.published is None else f"{ratio.published:.2f}"


def _nearest(rows: Sequence[Comparison]) -> Table:
    grid = Table(title=TITLES["shapes"], title_justify="left", header_style="bold")
    grid.add_column("trace, nearest first")
    for row in (row for row in rows if row.at == rows[0].at and row.jct and row.jct.published):
        for what, ratio in (("JCT", row.jct), ("makespan", row.makespan)):
            assert ratio is not None
            grid.add_column(f"{row.variant}, {what} ({ratio.published:.2f})", justify="right")
    grid.add_column("off by at most a factor of", justify="right")
    grid.add_column(f"killed by preemption ({KILLED[PREEMPTING.name]:.0%})", justify="right")
    for factor, at, some in nearest(rows):
        ratios = [r for row in some for r in (row.jct, row.makespan) if r is not None and r.published is not None]
        grid.add_row(at, *(_ratio(r)[0] for r in ratios), f"{factor:.2f}", share(killed(some)))
    return grid


def share(part: float | None) -> str:
    """A share in percent; empty if unknown."""
    return "" if part is None else f"{part:.0%}"


def _artifact(rows: Sequence[ArtifactRow]) -> Table:
    title = "The unfinished AntMan of Muri's artifact, exact (seconds)"
    grid = Table(title=title, title_justify="left", header_style="bold")
    grid.add_column("trace")
    for metric in METRICS.values():
        grid.add_column(metric, justify="right")
        grid.add_column("authors'", justify="right")
    grid.add_column("guaranteed, mean JCT", justify="right")
    grid.add_column("opportunistic, mean JCT", justify="right")
    for row in rows:
        values = [
            text
            for metric in METRICS
            for text in (f"{row.ours[metric]:,.3f}", _seconds(row.published.get(metric)))
        ]  # fmt: skip
        grid.add_row(row.trace, *values, _seconds(row.guaranteed_s), _seconds(row.opportunistic_s))
    return grid


def _seconds(value: float | None) -> str:
    return "" if value is None else f"{value:,.3f}"
