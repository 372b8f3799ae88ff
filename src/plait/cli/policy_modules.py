"""Policies of a user's own modules: where the service finds them, and which ones commands may import.

`plait up --policy module:Class` names a module on the machine of the service. plait saves its folder and name: the
service finds the module after every restart, `plait policy set` may use it, and commands on this machine may import it
to simulate the queue. Modules that a remote service or a log names are never imported without permission; readers of a
log give it with `--allow-policy`.
"""

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from plait.core.errors import InputError

AllowForLog = Annotated[
    list[str] | None,
    typer.Option(
        "--allow-policy",
        metavar="MODULE",
        help="Allow importing policies from MODULE that the log names; may be repeated.",
    ),
]


def module_of(policy: str) -> str | None:
    """The module of `module:Class[:options]`; None for a policy of the catalog or of an installed package.

    >>> module_of("mine:Best:k=2"), module_of("tiresias-l:thresholds=1/2"), module_of("fifo")
    ('mine', None, None)
    """
    name, colon, rest = policy.partition(":")
    if not colon or "=" in rest.partition(":")[0]:
        return None
    from plait.policies.catalog import rows

    return None if name in rows() else name


def named_modules(given: Mapping[str, Any]) -> dict[str, Any]:
    """Service options for the policy modules that the options of `plait up` name: their names and their folder."""
    module = module_of(str(given.get("policy", "")))
    named = list(dict.fromkeys([*given.get("allow-policy", ()), *([module] if module else [])]))
    if not named:
        return {}
    found: dict[str, Any] = {"allow-policy": named}
    tops = [name.partition(".")[0] for name in named]
    if any(Path(f"{top}.py").is_file() or Path(top).is_dir() for top in tops):
        found["policy-path"] = str(Path.cwd())
    return found


def let_load(policy: str, remembered: Mapping[str, Any]) -> None:
    """Let this process import the module of a policy if the saved options of `plait up` allow it.

    Raises `InputError` for any other module: a remote service must not decide which code runs here.
    """
    module = module_of(policy)
    if module is None:
        return
    if module not in remembered.get("allow-policy", ()):
        raise InputError(
            f"policy {policy[:100]} is of a module that was not named on this machine; ask where `plait up` was run"
        )
    folder = remembered.get("policy-path")
    if folder and folder not in sys.path:
        sys.path.append(str(folder))


def let_load_of_log(policy: str, allowed: Sequence[str], remembered: Mapping[str, Any] | None = None) -> None:
    """Let this process import the module of a policy that a log names.

    `allowed`: modules that the user named; `remembered`: saved options of `plait up`, if the log is that of this home's
    service. Raises `InputError` for any other module, and for names in these modules that are not policies: a log may
    come from anywhere.
    """
    from plait.policies.catalog import check_named

    module = module_of(policy)
    if module is None:
        return
    if module in allowed:
        if str(Path.cwd()) not in sys.path:
            sys.path.append(str(Path.cwd()))
        check_named(policy, [module], Path.cwd())
        return
    if remembered is not None and module in remembered.get("allow-policy", ()):
        let_load(policy, remembered)
        check_named(policy, [module], Path.cwd())
        return
    raise InputError(
        f"the log names policy {policy[:100]!r}, and a log runs nothing that you did not name; "
        f"if module {module[:100]!r} is yours, add: --allow-policy {module[:100]}"
    )


def only_allowed(
    rows: Iterable[Mapping[str, Any]], allowed: Sequence[str], remembered: Mapping[str, Any] | None = None
) -> Iterator[Mapping[str, Any]]:
    """The rows of a live log; raises `InputError` before one whose policy this process may not import."""
    for row in rows:
        entry = row.get("event")
        if isinstance(entry, Mapping) and entry.get("type") == "PolicySet":
            let_load_of_log(str(entry.get("policy", "")), allowed, remembered)
        yield row
