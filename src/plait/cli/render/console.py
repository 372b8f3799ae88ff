"""Where tables go: as wide as the terminal, or as wide as they need in a file or a pipe."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, TextIO

from typer.core import TyperCommand, TyperGroup

from plait.cli.elsewhere import BELOW, COMMANDS, OPTIONS, near
from plait.cli.lazy import Commands, Entry, as_they_are

if TYPE_CHECKING:
    from rich.console import RenderableType

#: Wide enough for every table.
WIDTH = 240


class Printer:
    """Prints what rich renders; without a terminal without colours, line wraps or spaces at the end of lines."""

    def __init__(self, file: TextIO, *, most: int | None = None) -> None:
        """Print to this file, tables that drop columns in at most `most` columns (None: as the terminal, or whole)."""
        from rich.console import Console  # the list of commands below is printed without it

        self._file, self._most = file, most
        self._terminal = Console(file=file)

    def fits(self, what: RenderableType) -> bool:
        """Whether it can be printed without squeezing it."""
        from rich.measure import Measurement

        most = self.width if self._terminal.is_terminal else WIDTH
        needed = Measurement.get(self._terminal, self._terminal.options.update(max_width=WIDTH), what).maximum
        return needed <= min(most, self._most or most)

    @property
    def width(self) -> int:
        """Columns of the terminal, or of a file or pipe."""
        return self._terminal.width if self._terminal.is_terminal else WIDTH

    @property
    def limit(self) -> int | None:
        """Columns that a table may have; None in a file or a pipe."""
        return self._terminal.width if self._terminal.is_terminal else None

    def print(self, what: RenderableType, *, whole: bool = False) -> None:
        """Print it; `whole`: never squeezed, lines longer than the terminal are folded by it."""
        from rich.console import Console
        from rich.measure import Measurement

        wide = self._terminal.options.update(max_width=10**6)
        needed = Measurement.get(self._terminal, wide, what).maximum if whole else 0
        if self._terminal.is_terminal:
            self._terminal.print(what, width=max(needed, self._terminal.width), crop=False)
            return
        plain = Console(file=self._file, width=max(WIDTH, needed), no_color=True)
        with plain.capture() as captured:
            plain.print(what)
        for line in captured.get().splitlines():
            self._file.write(line.rstrip() + "\n")


def console(*, error: bool = False, most: int | None = None) -> Printer:
    """Standard output, or standard error; `most`: see `Printer`."""
    return Printer(sys.stderr if error else sys.stdout, most=most)


# A progress bar on standard error, when that is a terminal.

#: Shortest time between two updates of the display, seconds: a run may end a million jobs.
EVERY_S = 0.1


class Bar:
    """Counts towards a total; is silent unless standard error is a terminal."""

    def __init__(self, what: str, total: int | None, done: int = 0) -> None:
        """`what` is the text in front of the bar; without a total it only counts."""
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        console = Console(stderr=True)
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self._progress = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._task = self._progress.add_task(what, total=total, completed=done)
        self._pending = 0
        self._told = time.monotonic()

    def advance(self, n: int = 1) -> None:
        """`n` more are done."""
        self._pending += n
        now = time.monotonic()
        if now - self._told >= EVERY_S:
            self._progress.advance(self._task, self._pending)
            self._pending, self._told = 0, now

    def __enter__(self) -> Bar:
        self._progress.start()
        return self

    def __exit__(self, *ended: object) -> None:
        self._progress.advance(self._task, self._pending)
        self._progress.stop()


# The list of commands in the help, in panels; plain text, so that `--help` loads nothing to draw with.

#: Where a context keeps the words after the name of a command.
TYPED = "plait.typed"
#: In the order of the help.
JOBS, CLUSTER, ANSWERS, ADMIN, SIMULATE, LIBRARY = (
    "Jobs",
    "Cluster",
    "Why, when, what if",
    "Administration",
    "Simulation",
    "Catalogs and traces",
)
ORDER = (JOBS, CLUSTER, ANSWERS, ADMIN, SIMULATE, LIBRARY)


class Verbatim(TyperCommand):
    """A command whose last argument is a command of the user, options and all; its context keeps what was typed."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the options before the user's command."""
        ctx.meta[TYPED] = tuple(args)
        return super().parse_args(ctx, one_matrix(args))


def one_matrix(args: list[str]) -> list[str]:
    """The words with all of `--matrix lr=0.1,0.01 seed=1,2` as one value, where `--` begins the user's command.

    >>> one_matrix(["--matrix", "a=1,2", "b=3", "--tag", "x", "--", "run"])
    ['--matrix', 'a=1,2 b=3', '--tag', 'x', '--', 'run']
    """
    end = args.index("--") if "--" in args else 0
    if "--matrix" not in args[:end]:
        return args
    first = last = args.index("--matrix") + 1
    while last < end and re.match(r"[A-Za-z_]\w*=", args[last]):
        last += 1
    return [*args[:first], " ".join(args[first:last]), *args[last:]] if last > first else args


def _meant(group: str, name: str, known: Collection[str]) -> str:
    if name in BELOW.get(group, ()):
        return f"in plait: {BELOW[group][name]}"
    return "there are: " + ", ".join(f"plait {group} {one}" for one in near(name, known) or known)


class Panels(TyperGroup):
    """A group whose help lists its commands under the headings of their panels, and builds none of them for it."""

    #: The commands, by name.
    entries: Mapping[str, Entry] = {}

    def __init__(self, **settings: Any) -> None:
        """Have the commands of the entries, whatever typer has found."""
        super().__init__(**settings)
        self.lazy = Commands(self.entries)
        self.commands = self.lazy  # type: ignore[assignment]

    def list_commands(self, ctx: Any) -> list[str]:
        return list(self.lazy)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that the first word names; errors name the command here for one of other tools."""
        if args and args[0][:1].isalnum() and args[0] not in self.lazy:
            name = args[0]
            if name in COMMANDS:
                ctx.fail(f"No such command {name!r}; in plait: {COMMANDS[name]}")
            meant = " or ".join(f"plait {one}" for one in near(name, self.lazy))
            ctx.fail(f"No such command {name!r}" + (f"; did you mean {meant}?" if meant else "; plait -h lists all"))
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Run the command; an error about an unknown option names the one here, or the one that was meant."""
        try:
            return super().invoke(ctx)
        except Exception as error:
            name, at = getattr(error, "option_name", None), getattr(error, "ctx", None)
            unknown = re.match(r"No such command '([^']*)'", str(error))
            if unknown and at is not None and at.command is not self:
                at.fail(f"No such command {unknown[1]!r}; {_meant(at.info_name, unknown[1], at.command.commands)}")
            if name and at is not None and hasattr(error, "possibilities"):
                known = [option for one in at.command.params for option in one.opts]
                error.possibilities = near(name, [option for option in known if option.startswith("--")])
                if name in OPTIONS and at.info_name == "submit":
                    at.fail(f"No such option: {name}; in plait: {OPTIONS[name]}")
            raise

    def get_params(self, ctx: Any) -> list[Any]:
        """The options before the command."""
        return as_they_are(super().get_params(ctx))

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write one section a panel."""
        widest = max(map(len, self.lazy))
        for panel in ORDER:
            rows = [
                (name.ljust(widest), entry.short_help(formatter.width - widest - 6))
                for name, entry in self.lazy.entries.items()
                if entry.panel == panel
            ]
            if rows:
                with formatter.section(panel):
                    formatter.write_dl(rows)
