"""`plait reproduce muri`: find out which runs are needed, run them, show and write the comparison."""

from __future__ import annotations

from pathlib import Path

from rich.table import Table

from plait.cli.experiments.outputs import Outputs
from plait.cli.experiments.request import MuriRequest
from plait.cli.experiments.results import Results
from plait.cli.render.console import Printer, console
from plait.cli.render.progress import Bar
from plait.core.errors import InputError, suggest
from plait.core.version import __version__
from plait.live.notes import note
from plait.reproduce.muri import noise, testbed
from plait.reproduce.muri.artifact.interleaved import MATCHINGS
from plait.reproduce.muri.artifact.trace import read
from plait.reproduce.muri.compare import Folder, cases_of, figures, missing, rows_of
from plait.reproduce.muri.figures import NOISE_TRACE, chosen
from plait.reproduce.muri.outcome import Outcome, tables
from plait.reproduce.muri.runs import Case, Done, Store, default_folder, run_all


def reproduce_muri(request: MuriRequest) -> None:
    asked = _Asked(request)
    with Outputs() as outputs:
        results = Results(outputs, request.report, request.json)
        outcome = asked.outcome(_finish(asked.cases, request))
        results.fill(outcome.to_json(), lambda path: _write_page(outcome, path))
        _show(outcome, console(error=results.to_stdout))
        for path in outputs.commit():
            note(f"wrote {path}")


def _write_page(outcome: Outcome, path: Path) -> None:
    from plait.reproduce.muri.page import write_page  # Jinja only where a page is wanted

    write_page(outcome, path)


class _Asked:
    """The requested figures, as far as the data folder has their files."""

    def __init__(self, request: MuriRequest) -> None:
        if request.matching not in MATCHINGS:
            raise InputError(f"--matching {request.matching!r}; {suggest(request.matching, MATCHINGS)}")
        if request.jobs is not None and request.jobs < 1:
            raise InputError(f"--jobs must be at least 1, got {request.jobs}")
        keys = chosen(request.figure)
        self.request = request
        self.folder = Folder(request.data, request.jobs, request.matching, request.own)
        self.figures = figures(keys)
        self.notes = [
            f"figure {figure.key} is without {', '.join(names)}: not in {request.data}"
            for figure in self.figures
            if (names := missing(figure, self.folder))
        ]
        self.notes += [
            f"{trace}.csv is left out of plait's own world: {why}"
            for trace in dict.fromkeys(trace for figure in self.figures for trace in figure.traces)
            if (why := self.folder.not_in_own(trace))
        ]
        self.noise = "14" in keys and self._there("figure 14", not self.folder.has(NOISE_TRACE), [f"{NOISE_TRACE}.csv"])
        # The testbed's trace is short and its logs are whole, so it is always run whole.
        self.bed = Folder(request.data, None, request.matching)
        names = testbed.missing(self.bed, logs=False)
        self.tables = "tables" in keys and self._there("tables 4 and 5", bool(names), names)
        names = testbed.missing(self.bed, logs=True)
        self.testbed = "testbed" in keys and self._there("the comparison with the testbed", bool(names), names)
        wanted = [case for figure in self.figures for case in cases_of(figure, self.folder)]
        wanted += noise.cases(self.folder) if self.noise else []
        wanted += testbed.cases(self.bed).values() if self.tables or self.testbed else []
        self.cases = list(dict.fromkeys(wanted))
        if not self.cases:
            raise InputError(
                f"nothing to run: {request.data} has none of the files of what was asked for ({self.notes[0]}"
                f"{'; and so on' if self.notes[1:] else ''}); they are in github.com/Rivendile/Muri"
            )

    def _there(self, what: str, lacks: bool, names: list[str]) -> bool:
        if lacks:
            self.notes.append(f"{what} is left out without {', '.join(names)}: not in {self.request.data}")
        return not lacks

    def outcome(self, done: dict[Case, Done]) -> Outcome:
        """The comparison, once the runs are done."""
        facts = {"data": str(self.request.data), "version": __version__, "matching": self.request.matching}
        return Outcome(
            [row for figure in self.figures for row in rows_of(figure, self.folder, done)],
            noise.rows_of(self.folder, done) if self.noise else [],
            testbed.table_rows(self.bed, done) if self.tables else [],
            testbed.error_rows(self.bed, done) if self.testbed else [],
            self.notes,
            len(done),
            sum(run.cpu_s for run in done.values()),
            {**facts, "jobs": self.request.jobs},
        )


def _finish(cases: list[Case], request: MuriRequest) -> dict[Case, Done]:
    """Every run, from the store or made now; what is made is kept at once."""
    store = Store(request.work or default_folder(), fresh=request.fresh)
    done = {case: found for case in cases if (found := store.get(case)) is not None}
    todo = [case for case in cases if case not in done]
    if not todo:
        return done
    lengths = {trace: len(read(trace, request.jobs)) for trace in {case.trace for case in todo}}
    kept = len(done)
    try:
        with Bar("simulating", sum(lengths[case.trace] for case in todo)) as bar:
            done |= run_all(todo, store, request.processes, bar.advance)
    except KeyboardInterrupt:
        note(f"{len(done)} of {len(cases)} runs are kept in {store.folder}; the same command goes on from there")
        raise
    note(f"{len(todo)} runs made, {kept} were kept from before")
    return done


def _show(outcome: Outcome, printer: Printer) -> None:
    squeezed = False

    def fits(table: Table) -> bool:
        nonlocal squeezed
        squeezed |= not (fitting := printer.fits(table))
        return fitting

    for table in tables(outcome, fits):
        printer.print(table)
    if squeezed:
        note("a wider terminal shows more columns; --json and --report have all of them")
    for text in outcome.notes:
        note(text)
    note(f"{outcome.runs} runs, {outcome.cpu_s:.1f} CPU seconds when they were made")
