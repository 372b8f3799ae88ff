"""The list of commands in the help, in panels; plain text, so that `--help` loads nothing to draw with."""

from __future__ import annotations

from typing import Any

from typer.core import TyperGroup

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


class Panels(TyperGroup):
    """A group whose help lists its commands under the headings of their panels."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write one section a panel."""
        shown = [(name, self.commands[name]) for name in self.list_commands(ctx) if not self.commands[name].hidden]
        widest = max(len(name) for name, _ in shown)
        for panel in ORDER:
            rows = [
                (name.ljust(widest), command.get_short_help_str(formatter.width - widest - 6))
                for name, command in shown
                if getattr(command, "rich_help_panel", None) == panel
            ]
            if rows:
                with formatter.section(panel):
                    formatter.write_dl(rows)
