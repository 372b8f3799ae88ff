"""The commands, put together."""

from __future__ import annotations

from typing import Annotated

import typer

from plait.cli import catalog, reproduce, simulate, sweep, trace, tune

app = typer.Typer(
    name="plait",
    help="Schedulers for deep-learning clusters, and a simulator to compare them on real traces.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog="Exit codes: 0 done, 1 unexpected, 2 wrong input, 4 plan or simulation error, 130 interrupted.",
)


def _version(wanted: bool) -> None:
    if wanted:
        from plait import __version__

        typer.echo(f"plait {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and leave.")
    ] = False,
) -> None:
    """Schedulers for deep-learning clusters, and a simulator to compare them on real traces."""


app.command("simulate", no_args_is_help=True)(simulate.simulate)
app.command("sweep", no_args_is_help=True)(sweep.sweep)
app.command("tune", no_args_is_help=True)(tune.tune)
app.add_typer(reproduce.app, name="reproduce")
app.command("policies")(catalog.policies)
app.add_typer(catalog.policy, name="policy")
app.command("cite")(catalog.cite)
app.command("worlds")(catalog.worlds)
app.add_typer(trace.app, name="trace")
