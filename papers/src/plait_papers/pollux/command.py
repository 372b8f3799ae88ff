"""`plait reproduce pollux`: find out which runs are needed, run them, show and write the comparison."""

from __future__ import annotations

from collections import defaultdict

from plait.core.version import __version__
from plait.sim.studies.cases import parse_range
from plait_papers.evaluation import publish
from plait_papers.pollux.compare import PolluxOutcome, chosen, is_published, points, rows_of, tables
from plait_papers.pollux.page import page
from plait_papers.pollux.runs import EVALUATION
from plait_papers.requests import PolluxRequest


def reproduce_pollux(request: PolluxRequest) -> None:
    seeds, studies = parse_range(request.seeds, "seeds"), chosen(request.study)
    files = list(request.workload or [request.data / "workload-6.csv"])
    asked = [point for file in files for point in points(file, request.data, studies, seeds, request.jobs)]
    foreign = [str(file) for file in files if request.jobs is not None or not is_published(file)]
    notes = [f"no published values for {', '.join(foreign)}: they are of the whole workload-6.csv"] if foreign else []

    def outcome() -> PolluxOutcome:
        done = EVALUATION.finish((case for point in asked for case in point.cases), request)
        cpu_s: dict[str, list[float]] = defaultdict(list)
        for point in asked:
            if not point.study:
                cpu_s[point.policy] += [done[case].cpu_s for case in point.cases]
        return PolluxOutcome.of(
            done.values(),
            {"data": str(request.data), "version": __version__, "seeds": request.seeds, "jobs": request.jobs},
            notes,
            cpu_by_policy={policy: sum(values) / len(values) for policy, values in cpu_s.items()},
            rows=[row for point in asked for row in rows_of(point, done)],
        )

    publish(request, outcome, tables, page)
