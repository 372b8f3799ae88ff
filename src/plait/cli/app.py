"""The commands, put together."""

from __future__ import annotations

from typing import Annotated

import typer

from plait.cli import (
    admin,
    catalog,
    cluster,
    demo,
    doctor,
    jobs,
    ray,
    reproduce,
    run_here,
    simulate,
    sweep,
    trace,
    tune,
    watch,
    why,
)
from plait.cli.panels import ADMIN, ANSWERS, CLUSTER, JOBS, LIBRARY, SIMULATE, Panels

HELP = "A scheduler for deep-learning clusters: runs jobs, explains itself, and simulates what would have been."

app = typer.Typer(
    name="plait",
    cls=Panels,
    help=HELP,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog="Exit codes: 0 done, 1 unexpected or (wait) a job failed, 2 wrong input, 4 plan or simulation error, "
    "130 interrupted.",
)

#: The rest of the line is the user's command, options and all.
VERBATIM = {"allow_interspersed_args": False}


def _version(wanted: bool) -> None:
    if wanted:
        from plait import __version__

        typer.echo(f"plait {__version__}")
        raise typer.Exit


@app.callback(help=HELP)
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and leave.")
    ] = False,
) -> None:
    """Options before the command."""


app.command("submit", rich_help_panel=JOBS, no_args_is_help=True, context_settings=VERBATIM)(jobs.submit)
app.command("ls", rich_help_panel=JOBS)(jobs.ls)
app.command("show", rich_help_panel=JOBS, no_args_is_help=True)(jobs.show)
app.command("logs", rich_help_panel=JOBS, no_args_is_help=True)(jobs.logs)
app.command("wait", rich_help_panel=JOBS, no_args_is_help=True)(jobs.wait)
app.command("cancel", rich_help_panel=JOBS, no_args_is_help=True)(jobs.cancel)
app.command("history", rich_help_panel=JOBS)(jobs.history)
app.command("run", rich_help_panel=JOBS, no_args_is_help=True, context_settings=VERBATIM)(run_here.run)

app.command("up", rich_help_panel=CLUSTER)(cluster.up)
app.command("down", rich_help_panel=CLUSTER)(cluster.down)
app.command("status", rich_help_panel=CLUSTER)(watch.status)
app.command("top", rich_help_panel=CLUSTER)(watch.top)
app.add_typer(watch.nodes, name="nodes", rich_help_panel=CLUSTER)
app.add_typer(ray.app, name="ray", rich_help_panel=CLUSTER)
app.command("doctor", rich_help_panel=CLUSTER)(doctor.doctor)
app.command("demo", rich_help_panel=CLUSTER)(demo.demo)

app.command("explain", rich_help_panel=ANSWERS, no_args_is_help=True)(why.explain)
app.command("events", rich_help_panel=ANSWERS)(watch.events)
app.command("replay", rich_help_panel=ANSWERS)(admin.replay)
app.command("fidelity", rich_help_panel=ANSWERS)(why.fidelity)

app.add_typer(catalog.policy, name="policy", rich_help_panel=ADMIN)
app.add_typer(admin.token, name="token", rich_help_panel=ADMIN)
app.add_typer(admin.project, name="project", rich_help_panel=ADMIN)
app.command("backup", rich_help_panel=ADMIN, no_args_is_help=True)(admin.backup)
app.command("restore", rich_help_panel=ADMIN, no_args_is_help=True)(admin.restore)

app.command("simulate", rich_help_panel=SIMULATE, no_args_is_help=True)(simulate.simulate)
app.command("sweep", rich_help_panel=SIMULATE, no_args_is_help=True)(sweep.sweep)
app.command("tune", rich_help_panel=SIMULATE, no_args_is_help=True)(tune.tune)
app.add_typer(reproduce.app, name="reproduce", rich_help_panel=SIMULATE)

app.command("policies", rich_help_panel=LIBRARY)(catalog.policies)
app.command("cite", rich_help_panel=LIBRARY)(catalog.cite)
app.command("worlds", rich_help_panel=LIBRARY)(catalog.worlds)
app.add_typer(trace.app, name="trace", rich_help_panel=LIBRARY)
