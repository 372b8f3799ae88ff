"""Our runs next to the published values, one row a bar and metric, and the runs needed for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plait.core.errors import InputError
from plait_papers.muri import published
from plait_papers.muri.artifact.themis import SHARES
from plait_papers.muri.fair_world import POLICIES, unreadable
from plait_papers.muri.figures import FIGURES, METRICS, Bar, Figure
from plait_papers.muri.runs import Case, Done


@dataclass(frozen=True, slots=True)
class Comparison:
    """One bar under one metric. Seconds; None where something is not known.

    `ours_s` is under the setting behind the published bar (`policy`), `consistent_s` with the guard on and continuous
    order. A `ratio` is over the figure's Muri in the same setting. `paper_low` and `paper_high` are equal where the
    paper's ratio on this trace is known, else the range over the figure's traces. `mark` and `source` name the origin
    of the published value.
    """

    figure: str
    trace: str
    metric: str
    bar: str
    policy: str
    ours_s: float
    published_s: float | None
    mark: str
    source: str
    ours_to_published: float | None
    ratio: float
    paper_low: float | None
    paper_high: float | None
    consistent_policy: str
    consistent_s: float
    consistent_ratio: float
    own_policy: str = ""
    own_s: float | None = None
    own_ratio: float | None = None


@dataclass(frozen=True)
class Folder:
    """The data folder; requested files that are missing are recorded. `own`: also run in plait's own world."""

    path: Path
    jobs: int | None = None
    matching: str = "artifact"
    own: bool = False

    def __post_init__(self) -> None:
        if not self.path.is_dir():
            raise InputError(
                f"no folder {self.path}; give --data the folder with trace1.csv, trace3.csv, ... "
                "of Muri's artifact (github.com/Rivendile/Muri, simulator/trace-data)"
            )

    def has(self, trace: str) -> bool:
        return (self.path / f"{trace}.csv").is_file()

    def case(self, trace: str, policy: str, **more: Any) -> Case:
        if self.matching != "artifact" and policy.startswith("muri"):
            policy += f"{',' if ':' in policy else ':'}matching={self.matching}"
        return Case(self._file(trace), policy, self.jobs, **more)

    def own_case(self, trace: str, bar: str, **more: Any) -> Case | None:
        """The run of the bar of this name in plait's own world, if requested and if plait has the policy."""
        policy = POLICIES.get(bar)
        if not self.own or policy is None or unreadable(self._file(trace)):
            return None
        return Case(self._file(trace), policy, self.jobs, world="plait", **more)

    def not_in_own(self, trace: str) -> str:
        """Why an existing trace is not run in plait's own world although requested; empty if it is."""
        return unreadable(self._file(trace)) if self.own and self.has(trace) else ""

    def _file(self, trace: str) -> str:
        return str(self.path / f"{trace}.csv")


@dataclass(frozen=True, slots=True)
class ThemisRow:
    """A published cell of Themis, seconds, and our run over it for each way of `SHARES`."""

    trace: str
    metric: str
    published_s: float
    ratios: tuple[float, ...]


def themis_cases(folder: Folder) -> dict[tuple[str, str], Case]:
    """By trace and way, the runs of Themis on the traces of the folder whose cells are published."""
    return {
        (trace, way): folder.case(trace, f"themis:shares={way}")
        for trace in FIGURES["10"].traces
        if folder.has(trace) and published.cell("10", trace, "Themis", "avg_jct_s") is not None
        for way in SHARES
    }


def themis_rows(folder: Folder, done: Mapping[Case, Done]) -> list[ThemisRow]:
    """Each cell next to all ways."""
    cases = themis_cases(folder)
    cells = [
        published.cell("10", trace, "Themis", metric)
        for trace in dict.fromkeys(t for t, _ in cases)
        for metric in METRICS
    ]
    return [
        ThemisRow(
            cell.trace, cell.metric, cell.value,
            tuple(getattr(done[cases[cell.trace, way]], cell.metric) / cell.value for way in SHARES),
        )
        for cell in cells if cell is not None
    ]  # fmt: skip


def missing(figure: Figure, folder: Folder) -> list[str]:
    """Names of trace files that the figure has and the folder does not."""
    return [f"{trace}.csv" for trace in figure.traces if not folder.has(trace)]


def cases_of(figure: Figure, folder: Folder) -> list[Case]:
    """Every run the figure needs, each once."""
    wanted: dict[Case, None] = {}
    for trace in figure.traces:
        if folder.has(trace):
            for bar in figure.bars:
                for metric in figure.metrics:
                    wanted[folder.case(trace, figure.setting(bar, trace, metric))] = None
                wanted[folder.case(trace, bar.consistent or bar.policy)] = None
                own = folder.own_case(trace, bar.name)
                if own is not None:
                    wanted[own] = None
    return list(wanted)


def rows_of(figure: Figure, folder: Folder, done: Mapping[Case, Done]) -> list[Comparison]:
    """The rows of `figure`, trace by trace, metric by metric, from `done` runs on traces of `folder`."""
    return [
        _row(figure, bar, trace, metric, folder, done)
        for trace in figure.traces
        if folder.has(trace)
        for metric in figure.metrics
        for bar in figure.bars
    ]


def _row(figure: Figure, bar: Bar, trace: str, metric: str, folder: Folder, done: Mapping[Case, Done]) -> Comparison:
    base = next(b for b in figure.bars if b.name == bar.over)

    def ours(policy: str) -> float:
        return float(getattr(done[folder.case(trace, policy)], metric))

    policy = figure.setting(bar, trace, metric)
    consistent = bar.consistent or bar.policy
    ours_s, consistent_s = ours(policy), ours(consistent)
    own, own_base = folder.own_case(trace, bar.name), folder.own_case(trace, base.name)
    own_s = None if own is None else float(getattr(done[own], metric))
    whole = folder.jobs is None
    cell = published.cell(figure.key, trace, bar.name, metric) if whole else None
    paper = published.ratio(figure.key, trace, metric, bar.name) if whole else None
    return Comparison(
        figure.key,
        trace,
        metric,
        bar.name,
        policy,
        ours_s,
        cell.value if cell else None,
        cell.mark if cell else "",
        cell.source if cell else "",
        ours_s / cell.value if cell else None,
        ours_s / ours(figure.setting(base, trace, metric)),
        paper.low if paper else None,
        paper.high if paper else None,
        consistent,
        consistent_s,
        consistent_s / ours(base.consistent or base.policy),
        "" if own is None else own.policy,
        own_s,
        None if own_s is None or own_base is None else own_s / float(getattr(done[own_base], metric)),
    )


def figures(keys: Sequence[str]) -> list[Figure]:
    """The ones of the keys that are bars over traces."""
    return [FIGURES[key] for key in keys if key in FIGURES]
