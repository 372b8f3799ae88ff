"""What a backend is: it brings agents to nodes, keeps them there, and takes them away. Nothing else.

Agents talk to the service themselves, whoever started them, so a backend never sees a job: placement, desired state and
truth stay with the service. All nodes see the home folder under the same path.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, Protocol

from plait.core.errors import InputError
from plait.live.layout import Layout

if TYPE_CHECKING:
    from plait.live.client.client import Client

#: States of a node as its backend sees it.
UP, COMING, DEAD, LEAVING = "up", "coming", "dead", "leaving"
#: The group of entry points by which other packages bring backends.
GROUP = "plait.backends"
#: Most seconds that jobs get for a checkpoint when their agents are ended with them.
STOP_GRACE_S = 10.0


@dataclass(frozen=True)
class Place:
    """A node as its backend sees it. `pid` of the agent if that is on this machine and known."""

    name: str
    gpus: int
    state: str
    detail: str = ""
    pid: int | None = None


class Backend(Protocol):
    """Agents on the nodes of some engine. What it must remember it derives from the engine and the home folder."""

    name: str

    def start(self) -> list[str]:
        """Agents for all nodes that have none; the names of nodes whose agent was started now.

        Agents that run already, started by whomever, are kept. Raises `InputError` if the engine cannot be used.
        """

    def tend(self, service: Client) -> list[str]:
        """One look, about every second: start what is missing, tell the service which nodes are dead, grow or shrink.

        Returns what was done, a sentence or name each. Raises `PlaitError` for trouble that may pass.
        """

    def list_nodes(self) -> list[Place]:
        """All nodes that it knows of."""

    def expected(self) -> int:
        """How many nodes join soon after `start`, for whoever waits for them."""

    def most_gpus(self) -> int:
        """How many GPUs its nodes may have one day: jobs that need more are refused, others wait for nodes.

        `ANY_SIZE` if it cannot tell; 0 if there are never more nodes than those that `start` brings.
        """

    def stop(self, jobs: bool) -> None:
        """Take the agents away; with `jobs` their jobs too (gracefully), else those go on to be taken back."""


#: Makes a backend from the home folder, the options of `plait up`, and the grace for jobs at `stop(jobs=True)`.
Factory = Callable[[Layout, Mapping[str, Any], float], Backend]


def open_backend(layout: Layout, options: Mapping[str, Any], stop_grace_s: float = STOP_GRACE_S) -> Backend:
    """The backend that `options["backend"]` names (local, if none); those of others come by entry points.

    Raises `InputError` for an unknown one or options that it cannot use, `MissingExtra` where its library is missing.
    """
    name = str(options.get("backend") or "local")
    factory: Factory | None = OWN.get(name)
    if factory is None:
        found = {entry.name: entry for entry in entry_points(group=GROUP)}
        if name not in found:
            raise InputError(f"no backend {name!r}; there are: {', '.join(sorted({*OWN, *found}))}")
        factory = found[name].load()
    return factory(layout, options, stop_grace_s)


def whole(options: Mapping[str, Any], name: str) -> int | None:
    """An option that is a whole number, which may have come as text; None if it was not given."""
    value = options.get(name)
    try:
        return None if value is None else int(value)
    except ValueError:
        raise InputError(f"{name} is {value!r}, needs a whole number: -o {name}=4") from None


def _local(layout: Layout, options: Mapping[str, Any], stop_grace_s: float) -> Backend:
    from plait.live.backends.local import LocalBackend

    cuda = False if options.get("fake") else None
    nodes, gpus = whole(options, "nodes"), whole(options, "gpus-per-node")
    return LocalBackend(layout, nodes, gpus, cuda, stop_grace_s=stop_grace_s)


def _slurm(layout: Layout, options: Mapping[str, Any], stop_grace_s: float) -> Backend:
    from plait.live.backends.slurm.backend import SlurmBackend

    return SlurmBackend(layout, options, stop_grace_s)


def _ray(layout: Layout, options: Mapping[str, Any], stop_grace_s: float) -> Backend:
    from plait.live.backends.ray.backend import RayBackend

    return RayBackend(layout, options, stop_grace_s)


#: Those that come with plait, by name.
OWN: dict[str, Factory] = {"local": _local, "ray": _ray, "slurm": _slurm}
