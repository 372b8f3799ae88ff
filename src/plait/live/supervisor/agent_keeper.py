"""Keeps agents on the nodes of a backend, and nothing else: where something other than `plait up` keeps the service.

    python -m plait.live.service --home /srv/plait --backend ray ...                    # in one container
    python -m plait.live.supervisor.agent_keeper --home /srv/plait --backend ray --address 10.0.0.1:6379    # in another

It looks for the service in the home folder at each look, so that it follows whichever leads.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from plait.core.errors import PlaitError
from plait.core.options import option, parse, same
from plait.live.backends.base import NodeBackend
from plait.live.backends.registry import open_backend
from plait.live.layout import Layout
from plait.live.supervisor import daemon
from plait.live.supervisor.options import UpOptions, pairs
from plait.live.supervisor.services import own_client


@dataclass(frozen=True)
class AgentKeeperOptions:
    """Whose nodes have agents, and for which service."""

    home: str = option("Folder of the service, on a file system that all nodes share")
    backend: str = option("Backend of the nodes, as for `plait up`")
    address: str | None = same(UpOptions, "address")
    pairs: list[str] | None = same(UpOptions, "pairs")


def read_options(argv: Sequence[str] | None = None) -> AgentKeeperOptions:
    """The options of a command line; ends the process for unknown ones."""
    about = {"prog": "plait.live.supervisor.agent_keeper", "description": (__doc__ or "").partition("\n")[0]}
    return parse(AgentKeeperOptions, argv, **about)


def main(argv: Sequence[str] | None = None, until: Callable[[], bool] = lambda: False) -> int:
    """Poll until a signal to end; returns 2 for options that no backend understands."""
    args = read_options(argv)
    layout, options = Layout.at(args.home), {"backend": args.backend, "address": args.address}
    try:
        given = {name: value for name, value in {**options, **pairs(args.pairs or ())}.items() if value is not None}
        nodes = Nodes(layout, open_backend(layout, given))
    except PlaitError as error:
        print(f"agent_keeper: {error}", file=sys.stderr)
        return error.exit_code
    said = False
    while not until():
        with daemon.only_one(layout, daemon.KEEPER) as mine:  # two would start all nodes twice
            if mine:
                daemon.watch(nodes.look, until)
        if not (mine or said):
            daemon.log_line(f"another process keeps the nodes of {layout.home}; waits until that one has ended")
            said = True
        if not mine:
            time.sleep(daemon.LOOK_S)
    return 0


class Nodes:
    """Nodes of one backend, under any leader."""

    def __init__(self, layout: Layout, backend: NodeBackend) -> None:
        self.layout, self.backend, self.started = layout, backend, False

    def look(self) -> list[str]:
        """Start agents where none run, then do what the backend does at each look; what was done."""
        with own_client(self.layout) as service:
            service.status()  # agents without a service would have no receiver for reports
            first = [] if self.started else [f"started the agent of {name}" for name in self.backend.start()]
            said = first + self.backend.maintain(service)
        self.started = True
        return said


if __name__ == "__main__":
    sys.exit(main())
