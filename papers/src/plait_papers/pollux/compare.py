"""Runs of each study, and our figures next to the published ones."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from plait.core.errors import InputError, suggest
from plait_papers.evaluation import Outcome
from plait_papers.pollux.runs import Case, Done
from plait_papers.pollux.settings import read_setting

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


@dataclass(frozen=True, kw_only=True)
class PolluxOutcome(Outcome):
    """All rows; `cpu_by_policy` is the mean of each policy as published."""

    cpu_by_policy: Mapping[str, float]
    rows: Sequence[Comparison]


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


def tables(outcome: PolluxOutcome) -> Iterator[Table]:
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


WORKLOAD = "d6517c4d57c72e4f362f9e99f285e4f7fee0348913287033f11f02f5cb88f074"
"""SHA-256 of the workload that the values are for; they apply to no other."""

METRICS: Mapping[str, str] = {
    "avg_jct_s": "mean JCT",
    "p50_jct_s": "median JCT",
    "p99_jct_s": "p99 JCT",
    "last_completion_s": "last completion",
    "avg_jct_s_bert": "mean JCT, bert",
    "avg_jct_s_cifar10": "mean JCT, cifar10",
    "avg_jct_s_deepspeech2": "mean JCT, deepspeech2",
    "avg_jct_s_imagenet": "mean JCT, imagenet",
    "avg_jct_s_ncf": "mean JCT, ncf",
    "avg_jct_s_yolov3": "mean JCT, yolov3",
    "avg_restarts": "restarts a job",
}
"""Figures of a run that are compared, and what they are called."""

_COLUMNS = tuple(METRICS)[:10]
_RUNS: Mapping[str, tuple[float, ...]] = {
    "tiresias": (3469.69375, 1247.5, 46335.52, 78609, 3761.0, 2470.418, 5521.625, 49761.0, 357.0, 15262.2),
    "optimus": (5301.875, 2494, 44771.26, 66299, 9375.0, 3375.806, 13261.75, 48640.667, 105.889, 23533.6),
    "pollux": (2446.13125, 981, 36393.89, 58642, 2890.3, 1269.9, 4857.3, 38835.7, 110.3, 12551.8),
}

INTERVALS: Mapping[int, float] = {30: 2463.9, 60: 2446.1, 120: 2510.9, 240: 2693.2, 480: 3126.9}
"""Mean JCT in seconds by the seconds between decisions."""

SLOWDOWNS: Mapping[float, float] = {0.0: 2442.0, 0.25: 2808.4, 0.5: 3457.0}
"""Mean JCT in seconds without avoiding interference, by what it costs."""

AUTHORS = "the authors' run of the released simulator"


def is_published(workload: Path) -> bool:
    """Whether this is the workload that the published values are for."""
    try:
        return hashlib.sha256(workload.read_bytes()).hexdigest() == WORKLOAD
    except OSError as error:
        raise InputError(f"cannot read {workload}: {error.strerror}; give --workload a file that is there") from error


def reference(policy: str, metric: str) -> float | None:
    """The published value of a policy (pollux: of its genetic search) on that workload; None if there is none."""
    if policy not in _RUNS or metric not in _COLUMNS:
        return None
    return _RUNS[policy][_COLUMNS.index(metric)]
