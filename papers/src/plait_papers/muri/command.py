"""`plait reproduce muri`: find out which runs are needed, run them, show and write the comparison."""

from __future__ import annotations

from collections.abc import Iterator

from rich.table import Table

from plait.cli.experiments.outputs import STDOUT
from plait.cli.render.console import console
from plait.core.errors import InputError, suggest
from plait.core.version import __version__
from plait.live.notes import note
from plait_papers.evaluation import publish
from plait_papers.muri import noise, resources, testbed
from plait_papers.muri.artifact.interleaved import MATCHINGS
from plait_papers.muri.compare import Folder, cases_of, figures, missing, rows_of, themis_cases, themis_rows
from plait_papers.muri.figures import NOISE_TRACE, chosen
from plait_papers.muri.outcome import MuriOutcome, tables
from plait_papers.muri.page import page
from plait_papers.muri.runs import EVALUATION, Case, Done
from plait_papers.requests import MuriRequest


def reproduce_muri(request: MuriRequest) -> None:
    asked, printer = _Asked(request), console(error=request.json == STDOUT)

    def shown(outcome: MuriOutcome) -> Iterator[Table]:
        squeezed = False

        def fits(table: Table) -> bool:
            nonlocal squeezed
            squeezed |= not (fitting := printer.fits(table))
            return fitting

        yield from tables(outcome, fits)
        if squeezed:
            note("a wider terminal shows more columns; --json and --report have all of them")

    publish(request, lambda: asked.outcome(EVALUATION.finish(asked.cases, request)), shown, page)


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
        self.bed = Folder(request.data, None, request.matching, request.own)
        names = testbed.missing(self.bed, logs=False)
        self.tables = "tables" in keys and self._there("tables 4 and 5", bool(names), names)
        self.over_time = "8" in keys and self._there("figure 8", bool(names), names)
        self.models = "table1" in keys
        self.themis = "themis" in keys and request.jobs is None and bool(themis_cases(self.bed))
        names = testbed.missing(self.bed, logs=True)
        self.testbed = "testbed" in keys and self._there("the comparison with the testbed", bool(names), names)
        wanted = [case for figure in self.figures for case in cases_of(figure, self.folder)]
        wanted += noise.cases(self.folder) if self.noise else []
        wanted += testbed.cases(self.bed).values() if self.tables or self.testbed else []
        wanted += resources.cases(self.bed) if self.over_time else []
        wanted += themis_cases(self.bed).values() if self.themis else []
        self.cases = wanted
        if not wanted and keys != ("table1",):
            raise InputError(
                f"nothing to run: {request.data} has none of the files of what was asked for ({self.notes[0]}"
                f"{'; and so on' if self.notes[1:] else ''}); they are in github.com/Rivendile/Muri"
            )

    def _there(self, what: str, lacks: bool, names: list[str]) -> bool:
        if lacks:
            self.notes.append(f"{what} is left out without {', '.join(names)}: not in {self.request.data}")
        return not lacks

    def outcome(self, done: dict[Case, Done]) -> MuriOutcome:
        """The comparison, once the runs are done."""
        facts = {"data": str(self.request.data), "version": __version__, "matching": self.request.matching}
        return MuriOutcome.of(
            done.values(),
            {**facts, "jobs": self.request.jobs},
            self.notes,
            bars=[row for figure in self.figures for row in rows_of(figure, self.folder, done)],
            noise=noise.rows_of(self.folder, done) if self.noise else [],
            tables=testbed.table_rows(self.bed, done) if self.tables else [],
            testbed=testbed.error_rows(self.bed, done) if self.testbed else [],
            over_time=resources.over_time(self.bed, done) if self.over_time else [],
            models=resources.models() if self.models else [],
            themis=themis_rows(self.bed, done) if self.themis else [],
        )
