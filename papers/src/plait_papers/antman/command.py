"""`plait reproduce antman`: find out which runs are needed, run them, show and write the comparison."""

from __future__ import annotations

import math
from itertools import chain

from plait.core.errors import InputError
from plait.core.version import __version__
from plait.sim.studies.cases import parse_range
from plait_papers.antman.compare import AntManOutcome, points, rows_of
from plait_papers.antman.muri_artifact import artifact_cases, artifact_rows
from plait_papers.antman.page import page, tables
from plait_papers.antman.runs import EVALUATION
from plait_papers.antman.variants import bases, chosen
from plait_papers.evaluation import publish
from plait_papers.muri import runs as muri
from plait_papers.requests import AntManRequest

#: Unknowns that concern every ratio.
UNKNOWN = (
    "published: 64 V100 GPUs, another trace; which one, its load and its gangs were not published, so ratios that "
    "differ are no error by themselves"
)
WITHOUT_ARTIFACT = "the AntMan of Muri's artifact is left out; give --data its folder simulator/trace-data"


def reproduce_antman(request: AntManRequest) -> None:
    load = _load(request.load)
    bases(request.jobs, load)  # an invalid workload is refused before anything runs
    asked = list(points(chosen(request.study), parse_range(request.seeds, "seeds"), request.jobs, load))
    artifact = artifact_cases(request.data)

    def outcome() -> AntManOutcome:
        done = EVALUATION.finish((case for point in asked for case in point.cases), request)
        own = muri.EVALUATION.finish(artifact.values(), request, EVALUATION.paper)
        return AntManOutcome.of(
            chain(done.values(), own.values()),
            {"version": __version__, "jobs": request.jobs, "load": request.load, "seeds": request.seeds},
            [UNKNOWN] if artifact else [UNKNOWN, WITHOUT_ARTIFACT],
            rows=list(rows_of(asked, done)),
            artifact=artifact_rows(artifact, own),
        )

    publish(request, outcome, tables, page)


def _load(text: str) -> float:
    try:
        load = float(text)
    except ValueError:
        load = math.nan
    if not load > 0:
        raise InputError(f"--load is {text!r}; it takes a number above 0, e.g. 1, or inf for all jobs at once")
    return load
