"""`plait reproduce ina`: find out which runs are needed, make them, show and write the comparison."""

from __future__ import annotations

from pathlib import Path

from plait.cli.experiments.outputs import Outputs
from plait.cli.experiments.request import InaRequest
from plait.cli.experiments.results import Results
from plait.cli.render.progress import Bar
from plait.core.errors import InputError, suggest
from plait.core.version import __version__
from plait.core.words import counted
from plait.live.notes import note
from plait.reproduce.ina.cases import Case, Done, Store, run_all
from plait.reproduce.ina.compare import SECTIONS, Outcome, compared, rows
from plait.reproduce.ina.tables import tables
from plait.reproduce.store import folder_of


def reproduce_ina(request: InaRequest) -> None:
    sections = _sections(request.section)
    if request.processes < 1:
        raise InputError(f"--processes must be at least 1, got {request.processes}")
    asked = list(rows(sections))
    with Outputs() as outputs:
        results = Results(outputs, request.report, request.json)
        store = Store(request.work or folder_of("ina"), fresh=request.fresh)
        cases = list(dict.fromkeys(case for row in asked for case in row.cases))
        done = _finish(cases, store, request.processes)
        outcome = Outcome(
            list(compared(asked, done)), [], len(done), sum(run.cpu_s for run in done.values()),
            {"version": __version__, "sections": list(sections)},
        )  # fmt: skip
        results.finish(outcome, tables(outcome), lambda path: _write_page(outcome, path))


def _sections(text: str | None) -> tuple[str, ...]:
    if not text:
        return tuple(SECTIONS)
    found = tuple(part.strip() for part in text.split(","))
    for part in found:
        if part not in SECTIONS:
            raise InputError(f"--section: {part!r} does not exist; {suggest(part, SECTIONS)}")
    return found


def _write_page(outcome: Outcome, path: Path) -> None:
    from plait.reproduce.ina.page import write_page  # Jinja only where a page is wanted

    write_page(outcome, path)


def _finish(cases: list[Case], store: Store, processes: int) -> dict[Case, Done]:
    """Every run, from the store or made now; what is made is kept at once."""
    done = {case: found for case in cases if (found := store.get(case)) is not None}
    todo = [case for case in cases if case not in done]
    if not todo:
        return done
    kept = len(done)
    note(f"simulating packets: {counted(len(todo), 'run')} to make; each is kept in {store.folder} when done")
    try:
        with Bar("simulating packets", len(todo)) as bar:
            done.update(run_all(todo, store, processes, bar.advance))
    except KeyboardInterrupt:
        note(f"finished runs are kept in {store.folder}; the same command goes on from there")
        raise
    note(f"simulating packets: {counted(len(todo), 'run')} made, {kept} were kept from before")
    return done
