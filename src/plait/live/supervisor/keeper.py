"""Keeps a cluster of this machine up: starts its service and its agents again when they die. `plait up` starts it.

Nothing depends on it: jobs, agents and the service go on without it, and the next `plait up` starts it again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from plait.core.options import option, parse
from plait.live.backends.base import NodeBackend
from plait.live.layout import Layout
from plait.live.supervisor import daemon as keeping
from plait.live.supervisor.saved_options import remembered_backend
from plait.live.supervisor.services import own_client, service_process
from plait.live.supervisor.up import restart_service

NAME = keeping.KEEPER


@dataclass(frozen=True)
class KeeperOptions:
    """Which cluster is kept."""

    home: str = option("Folder of the service")


def spawn(layout: Layout) -> None:
    """Start the keeper of a home; nothing happens if there is one."""
    keeping.spawn(layout, NAME, "plait.live.supervisor.keeper")


def keep(layout: Layout, until: Callable[[], bool] = lambda: False) -> None:
    """Look after the service, and beside that after its nodes; returns at once if the home has a keeper already.

    A backend may wait long for an engine that does not answer, so the service is another thread's.
    """

    def over() -> bool:
        return until() or not layout.home.is_dir()  # nothing can be kept in a folder that has vanished

    with keeping.only_one(layout, NAME) as mine:
        if not mine:
            return
        backend = remembered_backend(layout)  # kept, for it knows agents that are still being born
        nodes = threading.Thread(
            target=keeping.watch, args=(lambda: maintain_nodes(layout, backend), over), name="nodes", daemon=True
        )
        nodes.start()
        keeping.watch(lambda: keep_service(layout), over)


def keep_service(layout: Layout) -> list[str]:
    """Start the service again if it has died; what was done."""
    if service_process(layout) is not None:
        return []
    with keeping.exclusive(layout):
        if service_process(layout) is not None:  # by somebody else, meanwhile
            return []
        restart_service(layout)
    return ["the service was started again"]


def maintain_nodes(layout: Layout, backend: NodeBackend) -> list[str]:
    """One look of the backend, while there is a service; what was done."""
    if service_process(layout) is None:
        return []
    with own_client(layout) as service:
        return backend.maintain(service)


def main() -> None:
    """Keep the service and the nodes of one home running until a signal to end."""
    keep(Layout.at(parse(KeeperOptions, None, description=__doc__).home))


if __name__ == "__main__":
    main()
