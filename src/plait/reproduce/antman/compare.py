"""Runs of each table, and our figures next to the published ones. Start at `points`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from plait.reproduce.antman.muri_artifact import ArtifactRow
from plait.reproduce.antman.published import KILLED, PRODUCTION, RATIOS
from plait.reproduce.antman.runs import Case, Done
from plait.reproduce.antman.variants import COMPARED, PARTS, Variant, bases, shapes, variants_of
from plait.reproduce.antman.workload import with_seed

#: Figures with ratios.
RATED = ("avg_jct_s", "makespan_s")


@dataclass(frozen=True, slots=True)
class Ratio:
    """A figure over AntMan's: the mean over seeds, the lowest and the highest seed, and what was published."""

    ours: float
    low: float
    high: float
    published: float | None


@dataclass(frozen=True, slots=True)
class Comparison:
    """One variant on one trace of a table (`section`): means over `seeds` runs, in seconds, GPU-hours and shares.

    `jct` and `makespan` are over the row named `over`. `killed_published`: share of opportunistic jobs.
    """

    section: str
    at: str
    variant: str
    policy: str
    over: str
    seeds: int
    figures: Mapping[str, float]
    jct: Ratio | None
    makespan: Ratio | None
    killed_published: float | None


@dataclass(frozen=True, slots=True)
class Point:
    """One variant on one trace: a run for each seed."""

    section: str
    at: str
    variant: Variant
    cases: tuple[Case, ...]


@dataclass(frozen=True)
class Outcome:
    """All rows; `cpu_s` is what the runs took when they were made."""

    rows: Sequence[Comparison]
    artifact: Sequence[ArtifactRow]
    notes: Sequence[str]
    runs: int
    cpu_s: float
    settings: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """All of it as plain data."""
        told: dict[str, Any] = {"runs": self.runs, "cpu_s": self.cpu_s, "notes": list(self.notes)}
        rows = {"rows": [asdict(row) for row in self.rows], "artifact": [asdict(row) for row in self.artifact]}
        return {**self.settings, **told, **rows, "production": dict(PRODUCTION)}


def points(studies: Sequence[str], seeds: Sequence[int], jobs: int, load: float) -> Iterator[Point]:
    """Everything to run: the published comparison and AntMan's parts on two traces, then the studies."""

    def point(section: str, at: str, variant: Variant, workload: Any) -> Point:
        return Point(section, at, variant, tuple(variant.case(with_seed(workload, s)) for s in seeds))

    for at, workload in bases(jobs, load).items():
        for variant in COMPARED:
            yield point("published", at, variant, workload)
    for at, workload in bases(jobs, load).items():
        for variant in PARTS:
            yield point("parts", at, variant, workload)
    for study in studies:
        for at, workload in shapes(study, jobs, load):
            for variant in variants_of(study):
                yield point(study, at, variant, workload)


def rows_of(asked: Sequence[Point], done: Mapping[Case, Done]) -> Iterator[Comparison]:
    """The figures of each point, in order."""
    base = {(p.section, p.at, p.variant.name): p for p in asked}
    for p in asked:
        runs = [done[case] for case in p.cases]
        names = dict.fromkeys(name for run in runs for name in run.figures)
        figures = {name: _mean([r.figures[name] for r in runs if name in r.figures]) for name in names}
        over = [done[case] for case in base[p.section, p.at, p.variant.over].cases]
        same = p.variant.classes != "guaranteed alone"
        jct, makespan = (_ratio(p.variant, metric, runs, over) if same else None for metric in RATED)
        killed = KILLED.get(p.variant.name)
        yield Comparison(
            p.section, p.at, p.variant.name, p.variant.policy, p.variant.over, len(runs), figures, jct, makespan, killed
        )  # fmt: skip


def _ratio(variant: Variant, metric: str, runs: Sequence[Done], over: Sequence[Done]) -> Ratio:
    each = [run.figures[metric] / base.figures[metric] for run, base in zip(runs, over, strict=True)]
    ours = _mean([run.figures[metric] for run in runs]) / _mean([base.figures[metric] for base in over])
    return Ratio(ours, min(each), max(each), RATIOS.get((variant.name, metric)))


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def distance(rows: Sequence[Comparison]) -> float:
    """How far the ratios of a trace are from the published ones: the largest factor between one and its counterpart.

    1 is all equal; infinite if nothing published is there.
    """
    factors = [
        abs(math.log(ratio.ours / ratio.published))
        for row in rows
        for ratio in (row.jct, row.makespan)
        if ratio is not None and ratio.published is not None
    ]
    return math.exp(max(factors)) if factors else math.inf


def nearest(rows: Sequence[Comparison], most: int = 8) -> list[tuple[float, str, list[Comparison]]]:
    """The traces of the study `shapes` whose ratios are nearest to the published ones: (distance, trace, rows)."""
    by_shape: dict[str, list[Comparison]] = {}
    for row in rows:
        if row.section == "shapes":
            by_shape.setdefault(row.at, []).append(row)
    found = sorted(((distance(some), at, some) for at, some in by_shape.items()), key=lambda one: one[:2])
    return found[:most]


def killed(rows: Sequence[Comparison]) -> float | None:
    """The share of opportunistic jobs that preemption killed on a trace of that study."""
    return next((row.figures.get("opportunistic_killed_share") for row in rows if row.killed_published), None)
