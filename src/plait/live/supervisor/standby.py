"""`plait up --standby`: a second service, here or on another machine, that takes over when the first one dies."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from plait.core.errors import InputError
from plait.core.options import option, parse
from plait.live.layout import SECOND, Layout
from plait.live.supervisor import daemon
from plait.live.supervisor.options import remember, remembered
from plait.live.supervisor.services import elsewhere, processes, refuse_elsewhere, refuse_taken_port, start_standby


@dataclass(frozen=True)
class StandbyOptions:
    """Which standby is kept."""

    home: str = option("Folder of the service")
    name: str = option("Name of the standby service")


def start(layout: Layout, given: dict[str, Any], name: str = SECOND) -> str:
    """Start a service that stands by, and its keeper; return its address. `InputError` if it does not start.

    Options that are not given are the previous ones, otherwise the first service's.
    """
    own, here = {**remembered(layout, name), **given}, processes(layout)
    options = _options(layout, own)
    if not str(options.get("db", "")).startswith("postgres"):
        raise InputError(
            "--standby needs a store that several services can reach; start the first with: plait up --db "
            "postgresql://host/name"
        )
    if name in here:
        raise InputError(
            f"service {name} of {layout.home} runs already (process {here[name].pid}); give another --name"
        )
    refuse_elsewhere(layout, name)
    refuse_taken_port(options.get("port"), options.get("host"))
    url = start_standby(layout, options, name)
    remember(layout, own, name)
    daemon.spawn(layout, f"keeper-{name}", "plait.live.supervisor.standby", "--name", name)
    return url


def _options(layout: Layout, own: dict[str, Any]) -> dict[str, Any]:
    """Options of the first service where it has none of its own; the port only if the first one has another machine."""
    first = remembered(layout)
    if not elsewhere(layout):
        first.pop("port", None)
    return {**first, **own}


def keep(layout: Layout, name: str, until: Callable[[], bool] = lambda: False) -> None:
    """Restart standby `name` whenever it has ended, also after a signal, e.g. for an upgrade; stops if `until()`.

    `plait down` ends its keeper first. Returns at once if another process keeps it.
    """
    with daemon.only_one(layout, f"keeper-{name}") as mine:
        if mine:
            daemon.watch(lambda: look(layout, name), until)


def look(layout: Layout, name: str) -> list[str]:
    """Start the service again if it has ended; what was done."""
    if name in processes(layout):
        return []
    with daemon.exclusive(layout):
        if name in processes(layout):  # by another process, meanwhile
            return []
        url = start_standby(layout, _options(layout, remembered(layout, name)), name)
    return [f"service {name} was started again at {url}"]


def main() -> None:
    """Keep one standby running until a signal to end."""
    options = parse(StandbyOptions, None, description=__doc__)
    keep(Layout.at(options.home), options.name)


if __name__ == "__main__":
    main()
