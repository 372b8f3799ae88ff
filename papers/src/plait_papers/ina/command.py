"""`plait reproduce ina`: find out which runs are needed, make them, show and write the comparison."""

from __future__ import annotations

from plait.core.errors import InputError, suggest
from plait.core.version import __version__
from plait_papers.evaluation import publish
from plait_papers.ina.cases import EVALUATION
from plait_papers.ina.compare import SECTIONS, InaOutcome, compared, rows, tables
from plait_papers.ina.page import page
from plait_papers.requests import InaRequest


def reproduce_ina(request: InaRequest) -> None:
    sections = _sections(request.section)
    asked = list(rows(sections))

    def outcome() -> InaOutcome:
        done = EVALUATION.finish((case for row in asked for case in row.cases), request)
        settings = {"version": __version__, "sections": list(sections)}
        return InaOutcome.of(done.values(), settings, rows=list(compared(asked, done)))

    publish(request, outcome, tables, page)


def _sections(text: str | None) -> tuple[str, ...]:
    if not text:
        return tuple(SECTIONS)
    found = tuple(part.strip() for part in text.split(","))
    for part in found:
        if part not in SECTIONS:
            raise InputError(f"--section: {part!r} does not exist; {suggest(part, SECTIONS)}")
    return found
