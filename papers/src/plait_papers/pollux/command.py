"""`plait reproduce pollux`: find out which runs are needed, run them, show and write the comparison."""

from __future__ import annotations

import csv
import hashlib
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from markupsafe import Markup
from rich.table import Table

from plait.core.errors import InputError, suggest
from plait.core.version import __version__
from plait.report.charts import GroupedBar, grouped_bars_svg
from plait.sim.studies.cases import parse_range
from plait_papers.command import PolluxRequest
from plait_papers.evaluation import Outcome, publish
from plait_papers.pages import PaperSection, render
from plait_papers.pollux import autoscale
from plait_papers.pollux.runs import AUTOSCALE, EVALUATION, Case, Done
from plait_papers.pollux.settings import read_setting
from plait_papers.pollux.world import PERCENTILE_RULE

# The comparison as one self-contained HTML page.

CHARTS = ("avg_jct_s", "p99_jct_s")


def page(outcome: PolluxOutcome) -> str:
    """The page as text; a function of the outcome."""
    settings = outcome.settings
    facts = [f"{outcome.runs} runs", f"{outcome.cpu_s:.0f} CPU seconds", "64 GPUs", "the artifact's world"]
    return render(
        "pollux.html.j2",
        outcome,
        title="Pollux (OSDI 2021), published and run again",
        data=settings.get("data", ""),
        facts=facts,
        sections=list(_sections(outcome)),
        percentile_rule=PERCENTILE_RULE,
        authors=AUTHORS,
    )


def _sections(outcome: PolluxOutcome) -> Iterator[PaperSection]:
    for number, workload in enumerate(dict.fromkeys(row.workload for row in outcome.rows)):
        for study in ("", *STUDIES):
            rows = [row for row in outcome.rows if (row.workload, row.study) == (workload, study)]
            if rows:
                yield _section(f"{study or 'policies'}-{number}", workload, study, rows)


def _section(name: str, workload: str, study: str, rows: Sequence[Comparison]) -> PaperSection:
    def bars(metric: str) -> list[GroupedBar]:
        return [
            GroupedBar(row.at or METRICS[metric], row.label, row.ours, *_mark(row))
            for row in rows
            if row.metric == metric
        ]

    charts = [Markup(grouped_bars_svg(f"{METRICS[metric]}, s", bars(metric))) for metric in CHARTS]
    what = STUDIES[study] if study else "all policies as published"
    lead = "Seconds."
    if any(row.published is not None for row in rows):
        lead = "Seconds; the line across a bar is the published value, of the genetic search where Pollux is concerned."
    columns = filled(rows)
    short = study or workload
    section = PaperSection(
        name, short, f"{workload}: {what}", lead, charts, ("policy", "at", "metric", *(HEAD[i] for i in columns)), 3
    )
    before = ""
    for row in rows:
        shown: dict[str, Any] = {
            "cells": (row.label, row.at, METRICS[row.metric], *(cells(row)[i] for i in columns)),
            "first": row.label + row.at != before,
        }
        before = row.label + row.at
        section.rows.append(shown)
    return section


def _mark(row: Comparison) -> tuple[float, float]:
    value = float("nan") if row.published is None else row.published
    return value, value


def reproduce_pollux(request: PolluxRequest) -> None:
    seeds, studies = parse_range(request.seeds, "seeds"), chosen(request.study, STUDIES, "study")
    given = request.workload or [request.data / "workload-6.csv"]
    files = [file for path in given for file in (sorted(path.glob("*.csv")) if path.is_dir() else [path])]
    only = chosen(request.policy, LABELS, "policy") or tuple(LABELS)
    every = (point for file in files for point in points(file, request.data, studies, seeds, request.jobs))
    asked: list[Point] = []
    for point in every:
        alone = point.study == "autoscale"  # of no workload, so once
        if (point.policy in only and not alone) or (alone and point not in asked):
            asked.append(point)
    foreign = [str(file) for file in files if request.jobs is not None or not is_published(file)]
    why = "they are of the whole workloads of the artifact"
    notes = [f"no published values for {', '.join(foreign)}: {why}"] if foreign else []

    def outcome() -> PolluxOutcome:
        done = EVALUATION.finish((case for point in asked for case in point.cases), request)
        cpu_s: dict[str, list[float]] = defaultdict(list)
        for point in asked:
            if not point.study:
                cpu_s[point.policy] += [done[case].cpu_s for case in point.cases]
        rows = [row for point in asked for row in rows_of(point, done)]
        return PolluxOutcome.of(
            done.values(),
            {"data": str(request.data), "version": __version__, "seeds": request.seeds, "jobs": request.jobs},
            notes,
            cpu_by_policy={policy: sum(values) / len(values) for policy, values in cpu_s.items()},
            rows=[*rows, *over_workloads(rows)],
        )

    publish(request, outcome, tables, page)


# -- Runs of each study, and our figures next to the published ones ----------------------------------------

#: Study -> what it varies.
STUDIES: Mapping[str, str] = {
    "load": "0.5, 1, 1.5 and 2 times as many jobs: the authors' files in workloads-0.5 and so on, otherwise copies",
    "interval": "30 s to 8 min between decisions",
    "p": "exponent of the mean of speed-ups that is made largest",
    "exploration": "jobs that measure themselves, and jobs that know their throughput from the start",
    "untuned": "GPUs and batches as users request them, by the file of the same name in workloads-realistic",
    "autoscale": "one ImageNet job on nodes that come and go, in plait's own simulator (GPU-hours for the cost)",
    "interference": "distributed jobs share nodes and lose 0, 25 or 50 % of their speed there",
}
HEAD = ("ours", "low", "high", "published", "off by")
INTERVALS, SLOWDOWNS, EXPONENTS = (30, 60, 120, 240, 480), (0.0, 0.25, 0.5), (-10.0, -1.0, 1.0)
FAIRNESS, COST = ("worst_rho", "rho_under_2"), ("cost", "mean_nodes")
LOADS = (0.5, 1.0, 1.5, 2.0)
LABELS: Mapping[str, str] = {
    "tiresias": "Tiresias + tuned",
    "optimus": "Optimus + oracle + tuned",
    "pollux": "Pollux, ladder",
    "pollux:exact=on": "Pollux, all sizes",
    "pollux-ga": "Pollux, genetic",
}
SHOWN: Mapping[str, tuple[str, ...]] = {"p": FAIRNESS, "autoscale": COST}
"""Figures of a study next to the mean completion time."""

LIKE = {"pollux:exact=on": "pollux", "pollux-ga": "pollux"}
"""The published values to compare a policy with."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """One figure of one policy at one point of a study; seconds (restarts, fairness: a number), over `seeds` runs.

    `low` and `high` are of runs with other seeds; over several workloads they are the 95 % interval of the mean. `at`
    is the point as text, empty where nothing varies. `off` is ours over the published value, minus 1.
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


def chosen(text: str | None, known: Mapping[str, str], what: str) -> tuple[str, ...]:
    """The names in a text, with commas, that are `known`, in their order there; none by default.

    >>> chosen("load,interval", STUDIES, "study")
    ('load', 'interval')
    """
    names = [name.strip() for name in (text or "").split(",") if name.strip()]
    for name in names:
        if name not in known:
            raise InputError(f"unknown {what} {name!r}; {suggest(name, known)}")
    return tuple(name for name in known if name in names)


def points(
    workload: Path, data: Path, studies: Sequence[str], seeds: Sequence[int], jobs: int | None = None
) -> Iterator[Point]:
    """All runs on `workload` with measurements in `data`: policies as published, then `studies` with one of `seeds`.

    `jobs` limits the workload. Published values are given only for the complete workload that they belong to.
    """
    known = jobs is None and is_published(workload)
    user = data / "workloads-realistic" / workload.name

    def point(study: str, at: str, policy: str, settings: Sequence[str], file: Path = workload, **more: Any) -> Point:
        cases = tuple(Case(str(file), str(data), read_setting(text).text, jobs, **more) for text in settings)
        metrics = ("avg_jct_s", "p99_jct_s", "avg_restarts", *FAIRNESS, *COST) if study else tuple(METRICS)
        like = LIKE.get(policy, policy)
        own = ("", "") if study == "load" else (study, at)  # the authors' files of other loads are workloads themselves
        published = {m: reference(like, m, *own, workload=file) for m in metrics}
        found = {m: v for m, v in published.items() if v is not None and known and "times" not in more}
        return Point(workload.name, study, at, policy, cases, metrics, found)

    for policy in LABELS:
        yield point("", "", policy, [with_seed(policy, s) for s in seeds] if policy == "pollux-ga" else [policy])
    pollux = ("pollux", with_seed("pollux-ga", seeds[0]))
    if "load" in studies:
        own_load = next((times for times in LOADS if workload.parent.name == f"workloads-{times:.1f}"), 1.0)
        for times in LOADS:
            theirs = data / (f"workloads-{times:.1f}" if times != 1 else "workloads") / workload.name
            more = {"file": theirs} if known and theirs.is_file() else {"times": times / own_load}
            more = {} if times == own_load else more
            for policy in ("tiresias", "optimus", "pollux"):
                yield point("load", f"{times:g} x", policy, [policy], **more)
    if "interval" in studies:
        for every in INTERVALS:
            for policy in pollux:
                name = policy.split(":")[0]
                yield point("interval", f"{every} s", name, [with_option(policy, f"interval={every}")])
    if "interference" in studies:
        for share in SLOWDOWNS:
            setting = with_option(pollux[1], f"avoid=off,interference={share:g}")
            yield point("interference", f"{share:.0%}", "pollux-ga", [setting])
    if "p" in studies:
        for p in EXPONENTS:
            yield point("p", f"{p:g}", "pollux", [with_option("pollux", f"p={p:g}")])
    if "exploration" in studies:
        for name in ("off", "on"):
            yield point("exploration", f"oracle {name}", "pollux", [with_option("pollux", f"oracle={name}")])
    if "autoscale" in studies:
        for policy in autoscale.LABELS:
            case = Case(str(workload), str(data), f"{AUTOSCALE}{policy}", 1)
            yield Point("imagenet", "autoscale", "1 to 16 nodes", policy, (case,), ("avg_jct_s", *COST), {})
    if "untuned" in studies:
        for policy in ("tiresias", "optimus"):  # Pollux uses neither GPUs nor batch of a workload
            yield point("untuned", "as requested", policy, [policy], user)


def with_seed(policy: str, seed: int) -> str:
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
    labels = autoscale.LABELS if point.study == "autoscale" else LABELS
    for metric in point.metrics:
        values = [run.figures[metric] for run in runs if metric in run.figures]
        if values:
            ours = sum(values) / len(values)
            theirs = point.published.get(metric)
            off = None if theirs is None else ours / theirs - 1
            yield Comparison(
                point.workload, point.study, point.at, point.policy, labels[point.policy], metric, ours, min(values),
                max(values), len(values), theirs, off,
            )  # fmt: skip


def over_workloads(rows: Sequence[Comparison]) -> Iterator[Comparison]:
    """The mean of each figure over the workloads, with its 95 % interval by Student's t; nothing for one workload."""
    from scipy.special import stdtrit

    groups: dict[tuple[str, str, str, str], list[Comparison]] = defaultdict(list)
    for row in rows:
        groups[row.study, row.at, row.policy, row.metric].append(row)
    for (study, at, policy, metric), some in groups.items():
        if len(some) < 2:
            continue
        values = [row.ours for row in some]
        ours, half = fmean(values), float(stdtrit(len(some) - 1, 0.975)) * stdev(values) / math.sqrt(len(some))
        known = [row.published for row in some if row.published is not None]
        theirs = fmean(known) if len(known) == len(some) else None
        off = None if theirs is None else ours / theirs - 1
        name = f"mean of {len(some)} workloads"
        yield Comparison(
            name, study, at, policy, some[0].label, metric, ours, ours - half, ours + half, len(some), theirs, off
        )


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
    metrics = ("avg_jct_s", *SHOWN.get(study, ())) if study else tuple(METRICS)
    shown = [row for row in rows if row.metric in metrics]
    columns = filled(shown)
    for i in columns:
        grid.add_column(HEAD[i], justify="right")
    for i, row in enumerate(shown):
        last = i + 1 == len(shown) or shown[i + 1].policy != row.policy
        what = f"{row.at} {METRICS[row.metric]}" if study in SHOWN else row.at or METRICS[row.metric]
        grid.add_row(row.label, what, *(cells(row)[c] for c in columns), end_section=last and not study)
    return grid


def filled(rows: Sequence[Comparison]) -> list[int]:
    """Which of the columns `HEAD` have anything in one of the rows."""
    return [i for i in range(len(HEAD)) if any(cells(row)[i] for row in rows)]


def cells(row: Comparison) -> tuple[str, ...]:
    """Ours, the range over seeds, the published value and how far ours is off, as text."""
    show: Callable[[float], str] = ("{:.1%}" if row.metric == "rho_under_2" else "{:,.2f}").format
    span = (show(row.low), show(row.high)) if row.seeds > 1 else ("", "")
    theirs = "" if row.published is None else show(row.published)
    return show(row.ours), *span, theirs, "" if row.off is None else f"{row.off:+.2%}"


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
    "worst_rho": "largest finish-time fairness",
    "rho_under_2": "share of jobs with a fairness under 2",
    "cost": "GPU-hours paid for",
    "mean_nodes": "mean number of nodes",
}
"""Figures of a run that are compared, and what they are called."""

AUTHORS = "the authors' runs of the released simulator"


@cache
def _published() -> Mapping[tuple[str, str, str, str], Mapping[str, str]]:
    """Rows of the published values by the hash of the workload, study, point and policy."""
    with (resources.files("plait_papers.pollux") / "published.csv").open(encoding="utf-8") as file:
        return {(row["sha256"], row["study"], row["at"], row["policy"]): row for row in csv.DictReader(file)}


@cache
def _hash(workload: Path) -> str:
    try:
        return hashlib.sha256(workload.read_bytes()).hexdigest()[:16]
    except OSError as error:
        raise InputError(f"cannot read {workload}: {error.strerror}; give --workload a file that is there") from error


def is_published(workload: Path) -> bool:
    """Whether there are published values for this workload."""
    return any(known[0] == _hash(workload) for known in _published())


def reference(policy: str, metric: str, study: str = "", at: str = "", *, workload: Path) -> float | None:
    """The published value of a policy (pollux: of its genetic search) on a workload; None if there is none."""
    if (study, at) == ("p", "-1"):
        study = at = ""  # as published
    value = _published().get((_hash(workload), study, at, policy), {}).get(metric)
    return float(value) if value else None
