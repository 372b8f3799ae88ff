"""`plait policies`, `plait policy`, `plait cite`, `plait worlds`: what plait offers, and checks of own policies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from plait.cli.connection import HomeOption, JsonFlag, client, print_json
from plait.core.errors import PlanError
from plait.core.words import counted

if TYPE_CHECKING:
    from plait.policies.catalog import Row

policy = typer.Typer(help="The scheduling policy: show it, change it, check your own.", no_args_is_help=True)


def policies(as_json: JsonFlag = False) -> None:
    """List policies, what they know, and their options."""
    from plait.policies.catalog import COMMON, rows

    known = rows()
    if as_json:
        import json

        typer.echo(json.dumps([{"name": name, **_as_json(row)} for name, row in known.items()], indent=1))
        return
    from rich.markup import escape
    from rich.table import Table

    from plait.cli.render.console import console

    grid = Table("policy", "knows", "preempts", "what it does", "options", "needs")
    for name, row in known.items():
        grid.add_row(name, row.knows, preempts(row), row.summary, " ".join(row.options), escape(needs(row)))
    console().print(grid)
    options = {name: option for row in known.values() for name, option in row.options.items()}
    options |= {f"{name} (every policy)": option for name, option in COMMON.items() if name not in options}
    meanings = Table("option", "meaning", "takes", title="NAME:option=value,...", title_justify="left")
    for name, option in options.items():
        meanings.add_row(name, option.help, option.takes)
    console().print(meanings)


def _as_json(row: Row) -> dict[str, object]:
    return {
        "summary": row.summary,
        "knows": row.knows,
        "preempts": preempts(row),
        "cites": list(row.cites),
        "options": {name: {"meaning": option.help, "takes": option.takes} for name, option in row.options.items()},
        "needs": dict(row.needs),
    }


def preempts(row: Row) -> str:
    """Whether a policy preempts running jobs: yes, no, with an option, or unknown for external ones."""
    if isinstance(row.preempts, str):
        return f"with {row.preempts}"
    return "unknown" if row.preempts is None else "yes" if row.preempts else "no"


def needs(row: Row) -> str:
    """The optional dependencies that a policy needs, and what for."""
    return "; ".join(f"plait[{extra}]{' for ' * bool(what)}{what}" for what, extra in row.needs.items())


#: Printed after the name of a policy that an operator has permitted this.
LOSES = "; it may stop jobs that cannot resume from a checkpoint"


@policy.command("show")
def show(home: HomeOption = None, as_json: JsonFlag = False) -> None:
    """Show the policy that decides in the running cluster."""
    with client(home) as service:
        found = service.policy()
    if as_json:
        print_json(found)
        return
    typer.echo(found.policy + (LOSES if found.may_lose_work else ""))
    if found.error:
        typer.echo(f"plait: its last decision failed, and what runs goes on: {found.error}", err=True)


@policy.command("set", no_args_is_help=True)
def set_policy(
    name: Annotated[str, typer.Argument(metavar="POLICY", help="Policy that `plait policies` lists, with options.")],
    may_lose_work: Annotated[
        bool,
        typer.Option("--may-lose-work", help="Allow the policy to stop jobs that cannot resume from a checkpoint."),
    ] = False,
    home: HomeOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Change the policy of the running cluster.

    Jobs that the new policy places elsewhere are checkpointed and moved.

    Jobs that cannot resume from a checkpoint keep their GPUs until they end, unless --may-lose-work is given.
    """
    from plait.policies.catalog import make_policy

    if "/" not in name and ":" not in name:
        make_policy(name)  # a typing mistake is found here, with a suggestion
    with client(home) as service:
        found = service.set_policy(name, may_lose_work=may_lose_work)
        lost = service.losses().losses if may_lose_work else []
    if as_json:
        import msgspec  # the other commands here need no service

        print_json(msgspec.to_builtins(found) | ({"losses": lost} if lost else {}))
        return
    typer.echo(f"{found.policy} decides from now on{LOSES if found.may_lose_work else ''}")
    for loss in lost:
        typer.echo(f"  if it is stopped now, {loss.text}")


@policy.command("check", no_args_is_help=True)
def check(
    name: Annotated[
        str, typer.Argument(metavar="MODULE:NAME", help="Class or function of your module, or the name of a policy.")
    ],
    seed: Annotated[int, typer.Option(help="Random seed of the workloads.")] = 0,
) -> None:
    """Run the contract suite on a policy.

    Prints one line per contract; contracts broken for the same reason share a line. Exit code 4 if one is broken.
    """
    from plait.policies.catalog import import_from_here, make_policy

    import_from_here()
    make_policy(name)
    from plait.sim.contract import check_policy

    total, broken = 0, dict[str, list[str]]()  # contracts by the reason for which they are broken
    for contract, ok, detail, reason in check_policy(lambda: make_policy(name), seed=seed):
        total += 1
        if not ok:
            broken.setdefault(reason, []).append(contract)
        if ok or len(broken[reason]) == 1:
            typer.echo(f"{'ok    ' if ok else 'BROKEN'} {contract}" + (f": {detail}" if detail else ""))
    for reason, (_, *others) in broken.items():
        if others:
            typer.echo(f"BROKEN {', '.join(others)}: {counted(len(others), 'contract')} more, all by: {reason}")
    if broken:
        count = sum(map(len, broken.values()))
        raise PlanError(f"{name} breaks {count} of {total} contracts")
    typer.echo(f"{name} keeps all {total} contracts")


def cite(name: Annotated[str, typer.Argument(metavar="POLICY", help="Policy that `plait policies` lists.")]) -> None:
    """Print the BibTeX entries of the papers behind a policy."""
    from plait.policies.catalog import citations

    found = citations(name)
    typer.echo("\n\n".join(found) if found else f"% {name} is folklore: there is nothing to cite")


def worlds(as_json: JsonFlag = False) -> None:
    """List the simulated worlds."""
    from plait.sim.published import published_names, published_world
    from plait.sim.world import WORLDS, make_world

    known = {name: make_world(name) for name in WORLDS}
    theirs = {name: published_world(name) for name in published_names()}
    if as_json:
        import json

        rows = [{"name": n, "summary": w.summary, "round_s": w.round_s} for n, w in known.items()]
        rows += [
            {"name": n, "summary": w.summary, "round_s": 0.0, "policies": list(w.policies)} for n, w in theirs.items()
        ]
        typer.echo(json.dumps(rows, indent=1))
        return
    from rich.table import Table

    from plait.cli.render.console import console

    grid = Table("world", "what is true")
    for name, world in known.items():
        grid.add_row(name, world.summary)
    for name, published in theirs.items():
        grid.add_row(name, published.summary)
    console().print(grid)
    for name, published in theirs.items():
        policies = Table("policy", "what it is", title=f"policies of {name}", title_justify="left")
        for policy, text in published.policies.items():
            policies.add_row(policy, text)
        console().print(policies)
        options = Table("option", "meaning", title="NAME:option=value,...", title_justify="left")
        for option, text in published.options.items():
            options.add_row(option, text)
        console().print(options)
