"""Keeps a cluster of this machine up: starts its service and its agents again when they die. `plait up` starts it.

Nothing depends on it: jobs, agents and the service run without it, and the next `plait up` starts it again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from plait.core.errors import PlaitError
from plait.core.options import option, parse
from plait.live.backends.base import NodeBackend
from plait.live.layout import Layout
from plait.live.supervisor import daemon as keeping
from plait.live.supervisor.options import remembered_backend
from plait.live.supervisor.services import answers, any_service_process, end, own_client, service_process
from plait.live.supervisor.up import restart_service
from plait.live.system.procs import Patience, Process, main_thread

NAME = keeping.KEEPER
#: Looks without an answer at which the service's main thread slept, after which the service is stuck; CPU time below
#: `_TICKS` (1/100 s) in a look counts as sleep, and as much as `_STUCK_TICKS` without an answer as a loop without end.
SILENT_LOOKS, _TICKS, _STUCK_TICKS = 30, 5, 12_000


@dataclass(frozen=True)
class KeeperOptions:
    """Which cluster is kept."""

    home: str = option("Folder of the service")


def spawn(layout: Layout) -> None:
    """Start the keeper of a home; nothing happens if there is one."""
    keeping.spawn(layout, NAME, "plait.live.supervisor.keeper")


def keep(layout: Layout, until: Callable[[], bool] = lambda: False) -> None:
    """Look after the service and after its nodes; return at once if the home has a keeper already.

    A backend may wait long for an engine that does not answer, so the service is another thread's. On a full disk it
    tries again until it can begin. It ends when its lock is removed: another keeper may have the home then.
    """
    pause_s = keeping.FIRST_S
    while not until() and layout.home.is_dir():
        try:
            with keeping.only_one(layout, NAME) as claim:
                if claim:
                    _watch(layout, lambda: until() or not claim.holds())
                return
        except (OSError, PlaitError) as error:
            keeping.log_line(f"cannot begin: {error}; next try in {pause_s:g} s")
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, keeping.MOST_S)


def _watch(layout: Layout, over: Callable[[], bool]) -> None:
    backend = remembered_backend(layout)  # kept, for it knows agents that are still being born
    nodes = threading.Thread(
        target=keeping.watch, args=(lambda: maintain_nodes(layout, backend), over), name="nodes", daemon=True
    )
    nodes.start()
    keeping.watch(ServiceKeeper(layout).look, over)


class ServiceKeeper:
    """Starts the service of a home again when it has ended, or lives and answers nothing."""

    def __init__(self, layout: Layout, states: Callable[[int], tuple[bytes, int]] = main_thread) -> None:
        """Nothing is known of the service. `states`: of a process's main thread, as for `Patience`."""
        self._layout, self._states = layout, states
        self._heard()

    def _heard(self, process: Process | None = None) -> None:
        """The service has answered, or there is a new one."""
        self._patience = Patience(SILENT_LOOKS, self._states, least_ticks=_TICKS)
        self._process = process
        self._used = None if process is None else self._states(process.pid)[1]

    def look(self) -> list[str]:
        """Start the service again if that is needed; what was done."""
        process = any_service_process(self._layout)
        if process is not None and not self._silent(process):
            return []
        with keeping.exclusive(self._layout):
            if any_service_process(self._layout) != process:  # another process has been at work meanwhile
                return []
            if process is not None:
                keeping.log_line(f"the service (process {process.pid}) lives and does not answer; it is ended")
                end(process)
            restart_service(self._layout)
        self._heard()
        return ["the service was started again"]

    def _silent(self, process: Process) -> bool:
        """Whether the service has not answered for so long that it is stuck: by what it did, not by time."""
        if process != self._process or answers(self._layout, process):
            self._heard(process)
            return False
        stuck = self._states(process.pid)[1] - (self._used or 0) > _STUCK_TICKS
        return self._patience.over([process.pid]) or stuck


def maintain_nodes(layout: Layout, backend: NodeBackend) -> list[str]:
    """One look of the backend, while there is a service; what was done."""
    if service_process(layout) is None:
        return []
    with own_client(layout) as service:
        return backend.maintain(service)


def main() -> None:
    """Keep the service and the nodes of one home running until a signal to end, or until its options are removed."""
    layout = Layout.at(parse(KeeperOptions, None, description=__doc__).home)
    keep(layout, lambda: not layout.options_file().exists())  # also of a home that was emptied before this has begun


if __name__ == "__main__":
    main()
