"""The unfinished AntMan of Muri's artifact, run exactly, next to the values of its authors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from plait.core.errors import InputError
from plait_papers.muri import published
from plait_papers.muri.artifact.trace import read
from plait_papers.muri.figures import AT_ONCE, LABELS, TRACES
from plait_papers.muri.runs import Case, Done

POLICY, FIGURE, BAR = "antman", "10", "AntMan"
METRICS = {"avg_jct_s": "mean JCT", "makespan_s": "makespan", "p99_jct_s": "p99 JCT"}


@dataclass(frozen=True, slots=True)
class ArtifactRow:
    """One trace, seconds; `published` by metric where known, `guaranteed_s` and `opportunistic_s` are mean JCTs."""

    trace: str
    ours: Mapping[str, float]
    published: Mapping[str, float]
    guaranteed_s: float | None
    opportunistic_s: float | None


def artifact_cases(folder: Path | None) -> dict[str, Case]:
    """The run of each trace that is in the folder; none without a folder. Raises `InputError` if it is not there."""
    if folder is None:
        return {}
    if not folder.is_dir():
        raise InputError(
            f"no folder {folder}; give --data the folder with trace1.csv, trace3.csv, ... of Muri's artifact "
            "(github.com/Rivendile/Muri, simulator/trace-data), or leave it out"
        )
    found = {trace: folder / f"{trace}.csv" for trace in (*TRACES, *AT_ONCE) if (folder / f"{trace}.csv").is_file()}
    if not found:
        raise InputError(f"{folder} has none of trace1.csv, trace1_pr.csv, ..., trace4_pr.csv of Muri's artifact")
    return {trace: Case(str(path), POLICY) for trace, path in found.items()}


def artifact_rows(cases: Mapping[str, Case], done: Mapping[Case, Done]) -> list[ArtifactRow]:
    return [_row(trace, case, done[case]) for trace, case in cases.items()]


def _row(trace: str, case: Case, run: Done) -> ArtifactRow:
    values = {m: published.cell(FIGURE, trace, BAR, m) or published.reference(trace, POLICY, m) for m in METRICS}
    high = (read(case.trace).priority == 0).tolist()
    means: list[float | None] = []
    for wanted in (True, False):
        some = [jct_s for jct_s, is_high in zip(run.columns["jct_s"], high, strict=True) if is_high is wanted]
        means.append(sum(some) / len(some) if some else None)
    return ArtifactRow(
        LABELS[trace],
        {metric: float(getattr(run, metric)) for metric in METRICS},
        {metric: value.value for metric, value in values.items() if value is not None},
        *means,
    )
