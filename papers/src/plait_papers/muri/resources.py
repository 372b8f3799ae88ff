"""How busy each resource is: by model (table 1), and over time on the testbed's trace (figure 8)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from plait.control.metrics import UTILISATION
from plait.core.resources import Resource
from plait.report.charts import ChartLine, series_svg
from plait.traces.assign import catalogue
from plait_papers.muri import published, testbed
from plait_papers.muri.compare import Folder
from plait_papers.muri.runs import Case, Done
from plait_papers.pages import PaperSection

#: Table 1 is of one size; it is not named, and exchanges need more than one node.
MODEL_GPUS = 16
#: Our figure -> its label, the figure of the paper, and how many of its units are one of ours: None where it counts
#: something else (bytes of a disk), so that only ratios compare.
FIGURE_8: Mapping[str, tuple[str, str, float | None]] = {
    "queue_length": ("jobs that wait", "queue_length", 1.0),
    "blocking_index": ("blocking index", "blocking_index", 1.0),
    UTILISATION[Resource.GPU]: ("GPU in use", "gpu_percent", 100.0),
    UTILISATION[Resource.CPU]: ("CPU in use", "cpu_percent", 100.0),
    UTILISATION[Resource.STORAGE]: ("storage in use", "disk_mb_per_s_per_node", None),
    UTILISATION[Resource.NETWORK]: ("network in use", "", None),  # not measured, for reasons of hardware
}


@dataclass(frozen=True, slots=True)
class ModelRow:
    """A model alone: seconds of an iteration, and the part in which each resource is busy, in `Resource` order."""

    model: str
    gpus: int
    iteration_s: float
    busy: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class OverTimeRow:
    """One figure of one policy in both worlds: the mean of a run, ours over Muri's, and the same of the testbed.

    `series` has what plait's world, or else the artifact's, measures at `at_s`; None or empty: not known.
    """

    metric: str
    policy: str
    over: str
    artifact: float | None
    own: float | None
    ratio: float | None
    published: float | None
    paper_ratio: float | None
    at_s: Sequence[float]
    series: Sequence[float]


def models() -> list[ModelRow]:
    """Table 1 from the profiles that ship with plait, for all their models."""
    found = [catalogue().profile(model, MODEL_GPUS) for model in catalogue().models]
    return [
        ModelRow(
            p.model, p.gpus, p.iteration_s,
            tuple(s / p.iteration_s for s in (p.storage_s, p.cpu_s, p.gpu_s, p.network_s)),
        )
        for p in found
    ]  # fmt: skip


def cases(folder: Folder) -> Iterable[Case]:
    """The runs of figure 8: the testbed's trace in both worlds."""
    yield from testbed.cases(folder).values()
    yield from filter(None, (folder.own_case(testbed.TRACE, name) for name in testbed.POLICIES))


def over_time(folder: Folder, done: Mapping[Case, Done]) -> list[OverTimeRow]:
    """The rows of figure 8, metric by metric."""
    artifact = {name: done[case] for name, case in testbed.cases(folder).items()}
    owns = {name: folder.own_case(testbed.TRACE, name) for name in testbed.POLICIES}
    own = {name: done[case] for name, case in owns.items() if case is not None}
    rows = []
    for metric, (_, theirs, unit) in FIGURE_8.items():
        for name, (_, _, muri) in testbed.POLICIES.items():
            in_artifact, in_own = _mean(artifact[name], metric), _mean(own.get(name), metric)
            cells = [published.cell("8", testbed.TRACE, one, theirs) for one in (name, muri)]
            value, base = (None if cell is None else cell.value / (unit or 1.0) for cell in cells)
            ratio, mine = _over(in_own, _mean(own.get(muri), metric)), own.get(name) or artifact[name]
            at_s, series = mine.series["at_s"], mine.series.get(metric, [])
            rows.append(
                OverTimeRow(
                    metric, name, muri, in_artifact, in_own, ratio, value, _over(value, base), at_s, series
                )
            )  # fmt: skip
    return rows


def _mean(run: Done | None, metric: str) -> float | None:
    values = [] if run is None else [v for v in run.series.get(metric, ()) if math.isfinite(v)]
    return sum(values) / len(values) if values else None


def _over(value: float | None, base: float | None) -> float | None:
    return value / base if value is not None and base else None


def models_section(rows: Sequence[ModelRow]) -> PaperSection:
    """Table 1 as it is shown."""
    return PaperSection.of(
        "table-1", "Table 1: part of an iteration in which each resource is busy",
        f"From the profiles of the artifact, on {MODEL_GPUS} GPUs. Stages of one job overlap, so parts may sum to more "
        "than 100 %. That data time is storage for models that read files and CPU for models that simulate is an "
        "assumption. The paper's cells are not published as data.",
        ("model", "GPUs", "iteration", *(r.name.lower() for r in Resource), "bottleneck"), 1,
        [
            (r.model, str(r.gpus), f"{r.iteration_s:.3f} s", *(f"{part:.0%}" for part in r.busy),
             Resource(r.busy.index(max(r.busy))).name.lower())
            for r in rows
        ],
    )  # fmt: skip


def over_time_section(rows: Sequence[OverTimeRow]) -> PaperSection:
    """Figure 8 as it is shown: over time, durations known on the left and unknown on the right."""
    charts = []
    for metric, (label, _, _) in FIGURE_8.items():
        for muri in ("Muri-S", "Muri-L"):
            lines = [
                ChartLine(r.policy, r.at_s, r.series) for r in rows if (r.metric, r.over) == (metric, muri) and r.series
            ]
            charts += [Markup(series_svg(f"{label}, {muri} and baselines", lines, label))] if lines else []
    return PaperSection.of(
        "figure-8", "Figure 8: the testbed's trace over time",
        "Means of runs; charts show plait's world. The testbed measures what its machines report, plait the time in "
        "which stages hold a resource: ratios compare, levels do not. Bytes of disks are MB/s a node. In plait's world "
        "each ratio of the blocking index is capped, as one job that is nearly done makes a mean explode.",
        ("figure", "policy", "artifact's world", "plait's world", "over Muri", "testbed", "over Muri"), 2,
        [
            (FIGURE_8[r.metric][0], r.policy, *(_shown(r.metric, v) for v in (r.artifact, r.own)), _text(r.ratio),
             f"{r.published:g} MB/s" if r.published is not None and FIGURE_8[r.metric][2] is None
             else _shown(r.metric, r.published), _text(r.paper_ratio))
            for r in rows
        ],
        charts,
    )  # fmt: skip


def _shown(metric: str, value: float | None) -> str:
    return "" if value is None else f"{value:.1%}" if FIGURE_8[metric][2] != 1.0 else f"{value:.1f}"


def _text(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"
