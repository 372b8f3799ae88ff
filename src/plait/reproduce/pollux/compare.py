"""Runs of each study, and our figures next to the published ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich.table import Table

from plait.core.errors import InputError, suggest
from plait.reproduce.pollux.published import INTERVALS, METRICS, SLOWDOWNS, is_published, reference
from plait.reproduce.pollux.runs import Case, Done
from plait.reproduce.pollux.settings import read_setting

#: Study -> what it varies.
STUDIES: Mapping[str, str] = {
    "load": "0.5, 1, 1.5 and 2 times as many jobs, evenly over the file, each copy at the time of its original",
    "interval": "30 s to 8 min between decisions",
    "interference": "distributed jobs share nodes and lose 0, 25 or 50 % of their speed there",
}
HEAD = ("ours", "lowest seed", "highest seed", "published", "off by")
LOADS = (0.5, 1.0, 1.5, 2.0)
LABELS: Mapping[str, str] = {
    "tiresias": "Tiresias + tuned",
    "optimus": "Optimus + oracle + tuned",
    "pollux": "Pollux, ladder",
    "pollux:exact=on": "Pollux, all sizes",
    "pollux-ga": "Pollux, genetic",
}
LIKE = {"pollux:exact=on": "pollux", "pollux-ga": "pollux"}
"""The published values to compare a policy with."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """One figure of one policy at one point of a study; seconds (restarts: a number), over `seeds` runs.

    `at` is the point as text, empty where nothing varies. `off` is ours over the published value, minus 1.
    """

    workload: str
    study: str
    at: str
    policy: str
    label: str
    metric: str
    ours: float
    low: float
    high: float
    seeds: int
    published: float | None
    off: float | None


@dataclass(frozen=True)
class Outcome:
    """All rows; `cpu_s` is what the runs took when they were made, `cpu_by_policy` the mean of each."""

    rows: Sequence[Comparison]
    notes: Sequence[str]
    runs: int
    cpu_s: float
    cpu_by_policy: Mapping[str, float]
    settings: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """All of it as plain data."""
        costs = {"runs": self.runs, "cpu_s": self.cpu_s, "cpu_by_policy": dict(self.cpu_by_policy)}
        return {**self.settings, **costs, "notes": list(self.notes), "rows": [asdict(row) for row in self.rows]}


@dataclass(frozen=True)
class Point:
    """One policy at one point of a study: its runs, and what was published for them."""

    workload: str
    study: str
    at: str
    policy: str
    cases: tuple[Case, ...]
    metrics: tuple[str, ...]
    published: Mapping[str, float]


def chosen(text: str | None) -> tuple[str, ...]:
    """The studies named, with commas; none by default.

    >>> chosen("load,interval")
    ('load', 'interval')
    """
    names = [name.strip() for name in (text or "").split(",") if name.strip()]
    for name in names:
        if name not in STUDIES:
            raise InputError(f"unknown study {name!r}; {suggest(name, STUDIES)}")
    return tuple(name for name in STUDIES if name in names)


def points(
    workload: Path, data: Path, studies: Sequence[str], seeds: Sequence[int], jobs: int | None = None
) -> Iterator[Point]:
    """All runs on `workload` with measurements in `data`: policies as published, then `studies` with one of `seeds`.

    `jobs` limits the workload. Published values are given only for the complete workload that they belong to.
    """
    known = jobs is None and is_published(workload)

    def point(
        study: str, at: str, policy: str, settings: Sequence[str], value: float | None = None, **more: Any
    ) -> Point:
        cases = tuple(Case(str(workload), str(data), read_setting(text).text, jobs, **more) for text in settings)
        metrics = ("avg_jct_s", "p99_jct_s", "avg_restarts") if study else tuple(METRICS)
        published = {"avg_jct_s": value} if study else {m: reference(LIKE.get(policy, policy), m) for m in metrics}
        found = {metric: v for metric, v in published.items() if known and v is not None}
        return Point(workload.name, study, at, policy, cases, metrics, found)

    for policy in LABELS:
        yield point("", "", policy, [with_seed(policy, s) for s in seeds] if policy == "pollux-ga" else [policy])
    pollux = ("pollux", with_seed("pollux-ga", seeds[0]))
    if "load" in studies:
        for times in LOADS:
            for policy in ("tiresias", "optimus", "pollux"):
                yield point("load", f"{times:g} x", policy, [policy], times=times)
    if "interval" in studies:
        for every, value in INTERVALS.items():
            for policy in pollux:
                name = policy.split(":")[0]
                yield point("interval", f"{every} s", name, [with_option(policy, f"interval={every}")], value)
    if "interference" in studies:
        for share, value in SLOWDOWNS.items():
            setting = with_option(pollux[1], f"avoid=off,interference={share:g}")
            yield point("interference", f"{share:.0%}", "pollux-ga", [setting], value)


def with_seed(policy: str, seed: int) -> str:
    """A policy with a seed."""
    return with_option(policy, f"seed={seed}")


def with_option(policy: str, options: str) -> str:
    """A policy with more options.

    >>> with_option("pollux-ga:seed=1", "interval=30")
    'pollux-ga:seed=1,interval=30'
    """
    return f"{policy}{',' if ':' in policy else ':'}{options}"


def rows_of(point: Point, done: Mapping[Case, Done]) -> Iterator[Comparison]:
    """The figures of a point; means over its runs."""
    runs = [done[case] for case in point.cases]
    for metric in point.metrics:
        values = [run.figures[metric] for run in runs if metric in run.figures]
        if values:
            ours = sum(values) / len(values)
            theirs = point.published.get(metric)
            off = None if theirs is None else ours / theirs - 1
            yield Comparison(
                point.workload, point.study, point.at, point.policy, LABELS[point.policy], metric, ours, min(values),
                max(values), len(values), theirs, off,
            )  # fmt: skip


def tables(outcome: Outcome) -> Iterator[Table]:
    """For the terminal: a table of the policies and one of each study, a workload after the other."""
    for workload in dict.fromkeys(row.workload for row in outcome.rows):
        for study in ("", *STUDIES):
            rows = [row for row in outcome.rows if (row.workload, row.study) == (workload, study)]
            if rows:
                yield _table(workload, study, rows)


def _table(workload: str, study: str, rows: Sequence[Comparison]) -> Table:
    title = f"{workload}: {STUDIES[study] if study else 'as published'} (seconds)"
    grid = Table(title=title, title_justify="left", header_style="bold")
    for name in ("policy", study or "metric"):
        grid.add_column(name)
    shown = [row for row in rows if not study or row.metric == "avg_jct_s"]
    columns = filled(shown)
    for i in columns:
        grid.add_column(HEAD[i], justify="right")
    for i, row in enumerate(shown):
        last = i + 1 == len(shown) or shown[i + 1].policy != row.policy
        grid.add_row(row.label, row.at if study else METRICS[row.metric], *(cells(row)[c] for c in columns),
                     end_section=last and not study)  # fmt: skip
    return grid


def filled(rows: Sequence[Comparison]) -> list[int]:
    """Which of the columns `HEAD` have anything in one of the rows."""
    return [i for i in range(len(HEAD)) if any(cells(row)[i] for row in rows)]


def cells(row: Comparison) -> tuple[str, ...]:
    """Ours, the range over seeds, the published value and how far ours is off, as text."""
    show: Callable[[float], str] = "{:,.2f}".format
    span = (show(row.low), show(row.high)) if row.seeds > 1 else ("", "")
    theirs = "" if row.published is None else show(row.published)
    return show(row.ours), *span, theirs, "" if row.off is None else f"{row.off:+.2%}"
