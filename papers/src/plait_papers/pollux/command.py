"""`plait reproduce pollux`: find out which runs are needed, run them, show and write the comparison."""

from __future__ import annotations

from collections import defaultdict

from plait.core.version import __version__
from plait.sim.studies.cases import parse_range
from plait_papers.evaluation import publish
from plait_papers.pollux.compare import (
    LABELS,
    STUDIES,
    Point,
    PolluxOutcome,
    chosen,
    is_published,
    over_workloads,
    points,
    rows_of,
    tables,
)
from plait_papers.pollux.page import page
from plait_papers.pollux.runs import EVALUATION
from plait_papers.requests import PolluxRequest


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
