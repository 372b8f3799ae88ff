"""The list of commands in the help, in panels; plain text, so that `--help` loads nothing to draw with."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from typer.core import TyperCommand, TyperGroup

from plait.cli.elsewhere import COMMANDS, OPTIONS, near
from plait.cli.lazy import Commands, Entry, as_they_are

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
        """The names of all commands."""
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
