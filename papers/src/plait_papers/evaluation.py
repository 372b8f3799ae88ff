"""The evaluation of a paper: its runs are made once and kept, then compared, shown and written.

A run is named by its inputs and by the code that it depends on, so a kept run is found again only if it would come out
the same. Start at `Evaluation`, which makes the runs, and `publish`, which shows and writes what was found.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache, partial
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, Generic, Protocol, Self, TypeVar

from rich.table import Table

from plait.cli.experiments.outputs import STDOUT, Outputs
from plait.cli.render.console import Bar, console
from plait.core.codec.values import Codec
from plait.core.errors import InputError
from plait.core.files import replace_file, write_text
from plait.core.words import counted
from plait.live.notes import note
from plait.sim.studies.cases import over_processes
from plait_papers.command import Request

#: Called with the number of further jobs that have ended.
Ended = Callable[[int], None]
_CODEC = Codec(strict=True, closed=True)


class Result(Protocol):
    """A finished run, a data class; `cpu_s` is what it took."""

    @property
    def cpu_s(self) -> float:
        """CPU seconds."""


@dataclass(frozen=True, slots=True)
class Done:
    """Result of a run: figures (seconds, GPU-hours, shares), how many jobs it had, and the CPU seconds it took."""

    figures: dict[str, float]
    jobs: int
    cpu_s: float


C = TypeVar("C")
R = TypeVar("R", bound=Result)


@dataclass(frozen=True)
class Evaluation(Generic[C, R]):
    """How the cases of a paper are run and kept. A case is a frozen data class.

    `run(case, ended)` makes a `result` and calls `ended(n)` whenever `n` more of its `jobs(case)` have ended; `inputs`
    gives plain data that decides the result, beside the modules and packages in `code`.
    """

    paper: str
    run: Callable[..., R]
    result: type[R]
    jobs: Callable[[C], int]
    code: tuple[str, ...]
    inputs: Callable[[C], Any] = asdict  # type: ignore[assignment]
    what: str = "simulating"

    def finish(self, cases: Iterable[C], request: Request, paper: str = "") -> dict[C, R]:
        """Every run, from the folder of runs or made now; each is kept as soon as it has ended.

        `paper`: the one whose folder to use if the request has none, by default this. Raises `InputError` for a folder
        that cannot be written to, and for what `jobs` and `run` refuse.
        """
        processes, wanted = request.processes, list(dict.fromkeys(cases))
        if processes < 1:
            raise InputError(f"--processes must be at least 1, got {processes}")
        folder = request.work or _cache(paper or self.paper)
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"cannot keep runs in {folder}: {error.strerror}; give another folder") from error
        done = {} if request.fresh else {case: kept for case in wanted if (kept := self.kept(case, folder)) is not None}
        todo = [case for case in wanted if case not in done]
        if not todo:
            return done
        before, jobs = len(done), {case: self.jobs(case) for case in todo}  # errors in any input come before all runs
        note(f"{self.what}: {counted(len(todo), 'run')} to make; each is kept in {folder} when done")
        try:
            with Bar(self.what, sum(jobs.values())) as bar:
                here = processes == 1 or len(todo) == 1
                run = partial(self.run, ended=bar.advance if here else None)
                for i, result in over_processes(run, todo, processes):
                    self._keep(todo[i], result, folder)
                    done[todo[i]] = result
                    if not here:
                        bar.advance(jobs[todo[i]])
                    made = len(done) - before
                    tenth = made < len(todo) and 10 * made // len(todo) > 10 * (made - 1) // len(todo)
                    if tenth and not sys.stderr.isatty():  # a terminal has the bar
                        note(f"{self.what}: {made} of {len(todo)} runs made")
        except KeyboardInterrupt:
            note(f"{len(done)} of {len(wanted)} runs are kept in {folder}; the same command goes on from there")
            raise
        note(f"{self.what}: {counted(len(todo), 'run')} made, {before} were kept from before")
        return done

    def kept(self, case: C, folder: Path) -> R | None:
        try:
            return _CODEC.decode(self.result, json.loads(self.file(case, folder).read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            return None

    def _keep(self, case: C, result: R, folder: Path) -> None:
        try:
            replace_file(self.file(case, folder), json.dumps(_CODEC.encode(result)))
        except OSError as error:
            raise InputError(f"cannot keep runs in {folder}: {error.strerror}; give another folder") from error

    def file(self, case: C, folder: Path) -> Path:
        """Where the folder keeps the run."""
        text = json.dumps([self.inputs(case), code_hash(self.code)], sort_keys=True)
        return folder / f"{hashlib.sha256(text.encode()).hexdigest()[:32]}.json"


@cache
def code_hash(names: tuple[str, ...]) -> str:
    """Hash of modules, and of all code and tables in packages."""
    digest = hashlib.sha256()
    for name in names:
        package, _, module = name.rpartition(".")
        file = files(package) / f"{module}.py" if package else files(name)
        for part in [file] if file.is_file() else _parts(files(name)):
            digest.update(part.read_bytes())
    return digest.hexdigest()


def _parts(folder: Traversable) -> Iterator[Traversable]:
    """Code and tables in a folder and its subfolders, by name."""
    for part in sorted(folder.iterdir(), key=lambda one: one.name):
        if part.is_dir() and part.name != "__pycache__":
            yield from _parts(part)
        elif part.name.endswith((".py", ".csv", ".json")):
            yield part


@cache
def file_hash(path: str | Path) -> str:
    """Hash of a file's bytes, for `inputs`."""
    try:
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error


def _cache(paper: str) -> Path:
    """The default folder of runs of a paper's evaluation, in the user's cache."""
    home = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(home) / "plait" / f"reproduce-{paper}"


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What an evaluation found; the one of each paper adds its rows.

    `notes` name omissions and unknowns, `cpu_s` is what the runs took when they were made, `settings` is what was
    asked for.
    """

    settings: Mapping[str, Any]
    runs: int
    cpu_s: float
    notes: Sequence[str] = ()

    @classmethod
    def of(cls, runs: Iterable[Result], settings: Mapping[str, Any], notes: Sequence[str] = (), **rows: Any) -> Self:
        cpu_s = [run.cpu_s for run in runs]
        return cls(settings=settings, runs=len(cpu_s), cpu_s=sum(cpu_s), notes=notes, **rows)

    def to_json(self) -> dict[str, Any]:
        """All of it as plain data."""
        values = asdict(self)
        return {**values.pop("settings"), **values}


O = TypeVar("O", bound=Outcome)  # noqa: E741


def publish(
    request: Request,
    made: Callable[[], O],
    tables: Callable[[O], Iterable[Table]],
    page: Callable[[O], str],
) -> None:
    """Make an outcome, write it to the requested files and print its tables.

    Files that cannot be written are refused before the runs, which may take hours, and appear together at the end.
    """
    with Outputs() as outputs:
        to_page = None if request.report is None else outputs.path(request.report)
        to_stdout = request.json == STDOUT
        to_json = None if request.json is None or to_stdout else outputs.path(request.json)
        outcome = made()
        text = json.dumps(outcome.to_json(), indent=1, allow_nan=False) + "\n"
        if to_json is not None:
            outputs.fill(to_json, partial(write_text, text=text))
        if to_stdout:
            outputs.print_later(partial(write_text, text=text))
        if to_page is not None:
            outputs.fill(to_page, partial(write_text, text=page(outcome)))
        printer = console(error=to_stdout)
        for table in tables(outcome):
            printer.print(table)
        for remark in outcome.notes:
            note(remark)
        note(f"{counted(outcome.runs, 'run')}, {outcome.cpu_s:.1f} CPU seconds when they were made")
        for path in outputs.commit():
            note(f"wrote {path}")
