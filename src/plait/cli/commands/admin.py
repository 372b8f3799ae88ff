"""`plait token`, `project`, `backup`, `restore`, `replay`: commands for administrators."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from plait.cli.connection import HomeOption, JsonFlag, client, print_json, print_table, respond
from plait.cli.policy_modules import AllowForLog, let_load_of_log, only_allowed
from plait.core.errors import InputError, PlanError
from plait.core.words import duration
from plait.live.notes import note
from plait.live.protocol.job_file import parse_seconds

if TYPE_CHECKING:
    from plait.live.api.admin import ProjectRow, TokenRow

token = typer.Typer(help="Tokens: who may use the service.", no_args_is_help=True)
project = typer.Typer(help="Projects: quotas, shares and time limits.", no_args_is_help=True)


@token.command("new", no_args_is_help=True)
def create_token(
    user: Annotated[str, typer.Argument(help="User of the token.")],
    role: Annotated[str, typer.Option(help="`admin`, `user` (own jobs) or `viewer` (read only).")] = "user",
    in_project: Annotated[str | None, typer.Option("--project", help="Project of the user's jobs.")] = None,
    expires: Annotated[str | None, typer.Option(help="Expires after this time: 12h, 30d, 8w; default: never.")] = None,
    home: HomeOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Create a token and print it once."""
    lasts_s = None if expires is None else parse_seconds(expires, "--expires")
    with client(home) as service:
        made, url = service.create_token(user, role, in_project, expires_in_s=lasts_s), service.url
    if as_json:
        print_json(made)
        return
    typer.echo(made.token)
    until = "" if lasts_s is None else f", for {duration(lasts_s)}"
    use = f"export PLAIT_URL={url} PLAIT_TOKEN={made.token}"
    note(f"for {user} ({role}){until}; it is not shown again. They use it with: {use}")


@token.command("ls")
def list_tokens(home: HomeOption = None, as_json: JsonFlag = False) -> None:
    """List tokens, without their secrets."""

    def show(found: list[TokenRow]) -> None:
        rows = [[t.id, t.user, t.role, t.project, t.node, _expiry(t)] for t in found]
        print_table(("id", "user", "role", "project", "node", "expires"), rows, "no tokens")

    respond(home, as_json, lambda service: service.tokens(), show)


def _expiry(token: TokenRow) -> str:
    if token.left_s is None:
        return "never"
    return f"in {duration(token.left_s)}" if token.left_s > 0 else "has expired"


@token.command("revoke", no_args_is_help=True)
def revoke_token(
    which: Annotated[str, typer.Argument(metavar="TOKEN", help="Id of the token, from `plait token ls`.")],
    home: HomeOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Revoke a token."""
    respond(home, as_json, lambda service: service.revoke_token(which), f"{which} is revoked")


@project.command("ls")
def list_projects(home: HomeOption = None, as_json: JsonFlag = False) -> None:
    """List projects."""

    def show(found: list[ProjectRow]) -> None:
        columns = ("name", "quota_gpus", "weight", "default time", "max time", "max idle", "gpus", "used")
        rows = []
        for row in found:
            times = (limit and duration(limit) for limit in (row.default_time_s, row.most_time_s, row.most_idle_s))
            use = None if row.used_gpu_s is None else f"{row.used_gpu_s / 3600:.3g} GPU-hours"
            rows.append([row.name, row.quota_gpus, row.weight, *times, row.gpus, use])
        print_table(columns, rows, "no projects")

    respond(home, as_json, lambda service: service.projects(), show)


@project.command("set", no_args_is_help=True)
def set_project(
    name: Annotated[str, typer.Argument(help="Name of a new or existing project.")],
    quota_gpus: Annotated[
        int | None, typer.Option(min=0, help="Largest number of GPUs that its jobs may hold together.")
    ] = None,
    weight: Annotated[float | None, typer.Option(help="Weight of the project in fair-sharing policies.")] = None,
    default_time: Annotated[
        str | None, typer.Option(help="Time limit of its jobs that state none, e.g. 4h; none lifts it.")
    ] = None,
    max_time: Annotated[
        str | None, typer.Option(help="Longest time limit that its jobs may state, e.g. 2d; none lifts it.")
    ] = None,
    max_idle: Annotated[
        str | None, typer.Option(help="End its jobs if their GPUs are unused for so long, e.g. 30m; none lifts it.")
    ] = None,
    home: HomeOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Create a project, or change its quota, weight and limits."""
    given: dict[str, float | None] = {"quota_gpus": quota_gpus, "weight": weight}
    given = {field: value for field, value in given.items() if value is not None}
    for field, text, option in (
        ("default_time_s", default_time, "--default-time"), ("most_time_s", max_time, "--max-time"),
        ("most_idle_s", max_idle, "--max-idle"),
    ):  # fmt: skip
        if text is not None:
            given[field] = None if text == "none" else parse_seconds(text, option, above_zero=True)
    respond(home, as_json, lambda service: service.set_project(name, **given), f"project {name} is set")


@project.command("rm", no_args_is_help=True)
def remove_project(
    name: Annotated[str, typer.Argument(help="Project that `plait project ls` lists.")],
    home: HomeOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Remove a project."""
    respond(home, as_json, lambda service: service.delete_project(name), f"project {name} is gone")


def backup(
    target: Annotated[Path, typer.Argument(metavar="FILE", help="New file for the copy.")],
    home: HomeOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Copy the store while the service runs."""
    path = target.expanduser().resolve()
    if path.exists():
        raise InputError(f"{path} is there already; give another name")
    with client(home) as service:
        answer = service.backup(path.name)
    written = Path(answer.path)
    try:
        shutil.move(written, path)
    except FileNotFoundError:  # the service is on another machine, and the copy stays there
        path = written
    except OSError as error:
        raise InputError(f"the copy is {written}, and cannot be moved to {path}: {error.strerror}") from error
    if as_json:
        print_json(msgspec.structs.replace(answer, path=str(path)))
        return
    typer.echo(f"{path}: the store; put it back with: plait restore {target if path != written else written}")


def restore(
    source: Annotated[Path, typer.Argument(metavar="FILE", help="File written by `plait backup`.")],
    home: HomeOption = None,
    replace: Annotated[bool, typer.Option("--replace", help="Overwrite the existing store.")] = False,
) -> None:
    """Restore the store from a backup; the service must be down."""
    import sqlite3

    from plait.live.layout import Layout, make_private
    from plait.live.store.connecting import restore_backup
    from plait.live.supervisor.services import any_service_process

    layout = Layout.at(home)
    if any_service_process(layout) is not None:
        raise InputError(f"the service in {layout.home} runs; stop it with: plait down")
    try:
        with sqlite3.connect(f"{source.expanduser().resolve().as_uri()}?mode=ro&immutable=1", uri=True) as database:
            sound = database.execute("PRAGMA integrity_check").fetchone()[0]
            tables = {row[0] for row in database.execute("SELECT name FROM sqlite_master")}
    except sqlite3.Error as error:
        raise InputError(f"{source} is not a backup of a store: {error}") from error
    if sound != "ok" or "log" not in tables:
        raise InputError(f"{source} is not a sound backup of a store: {sound if sound != 'ok' else 'it has no log'}")
    if layout.database.exists() and not replace:
        raise InputError(f"{layout.database} is there; add --replace to overwrite it")
    make_private(layout.home)
    restore_backup(source, layout.database)
    typer.echo(f"restored {layout.database}; go on with: plait up")


def replay(
    log: Annotated[
        Path | None,
        typer.Argument(
            metavar="[LOG]", help="Event log from `plait simulate --log`; default: the running service's log."
        ),
    ] = None,
    verify: Annotated[bool, typer.Option("--verify", help="Exit code 4 if a decision differs.")] = False,
    allow_policy: AllowForLog = None,
    home: HomeOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Repeat every decision of an event log and compare."""
    if log is not None:
        from plait.control.log import read_log
        from plait.control.replay import replay as replay_log
        from plait.policies.catalog import make_policy

        run = read_log(log)
        let_load_of_log(str(run.header["policy"]), allow_policy or ())
        controller, found = replay_log(run, make_policy(str(run.header["policy"])))
        count, last_s, difference = len(run.steps), controller.now_s, None if found is None else str(found)
    else:
        from plait.live.layout import Layout
        from plait.live.supervisor.options import remembered
        from plait.outlook import log_replay

        with client(home) as service:
            rows = only_allowed(service.all_events(), allow_policy or (), remembered(Layout.at(home)))
            answer = log_replay.replay(log_replay.read_rows(rows))
        count, last_s = answer.entries, answer.state.now_s
        difference = None if answer.difference is None else str(answer.difference)
    if as_json:
        print_json({"entries": count, "last_s": last_s, "same": difference is None, "difference": difference})
    if difference is not None and verify:
        raise PlanError(f"the replay makes another decision at {difference}")
    if as_json:
        return
    what = "every decision is the same" if difference is None else f"another decision at {difference}"
    typer.echo(f"{count:,} entries over {duration(last_s)}: {what}")
