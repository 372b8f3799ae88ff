"""Backends by name: plait's own, and backends that other packages bring as entry points."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any

from plait.core.errors import InputError
from plait.live.backends.base import STOP_GRACE_S, BackendNode, NodeBackend, gigabytes, seconds, whole
from plait.live.layout import Layout

if TYPE_CHECKING:
    from plait.live.client.client import Client

#: The group of entry points by which other packages bring backends.
GROUP = "plait.backends"


#: Makes a backend from the home folder, the options of `plait up`, and the grace for jobs at `stop(jobs=True)`.
Factory = Callable[[Layout, Mapping[str, Any], float], NodeBackend]


def open_backend(layout: Layout, options: Mapping[str, Any], stop_grace_s: float = STOP_GRACE_S) -> NodeBackend:
    """The backend that `options["backend"]` names (local, if none); backends of other packages come by entry points.

    Raises `InputError` for an unknown one or options that it cannot use, `MissingExtra` where its library is missing.
    """
    name = str(options.get("backend") or "local")
    if name != "local" and options.get("as-owner"):
        raise InputError(f"--as-owner works with nodes of this machine; with the backend {name} its account runs all")
    factory: Factory | None = OWN.get(name)
    if factory is None:
        found = {entry.name: entry for entry in entry_points(group=GROUP)}
        if name not in found:
            raise InputError(f"no backend {name!r}; there are: {', '.join(sorted({*OWN, *found}))}")
        factory = found[name].load()
    if name == "local" or options.get("cpu-slots") is None:
        return factory(layout, options, stop_grace_s)
    own = factory(layout, {key: value for key, value in options.items() if key != "cpu-slots"}, stop_grace_s)
    return WithSlots(own, _local(layout, {"nodes": 0, "cpu-slots": options["cpu-slots"]}, stop_grace_s))


class WithSlots:
    """The nodes of a backend, and CPU slots of this machine (`own`, `slots`)."""

    def __init__(self, own: NodeBackend, slots: NodeBackend) -> None:
        self.own, self.slots, self.name = own, slots, own.name

    def start(self) -> list[str]:
        """Start the agents of both."""
        return [*self.slots.start(), *self.own.start()]

    def maintain(self, service: Client) -> list[str]:
        """Do what is due for both; the slots first, for trouble of the other backend may pass."""
        return [*self.slots.maintain(service), *self.own.maintain(service)]

    def list_nodes(self) -> list[BackendNode]:
        return [*self.own.list_nodes(), *self.slots.list_nodes()]

    def expected(self) -> int:
        """Nodes of both that join soon."""
        return self.own.expected() + self.slots.expected()

    def expected_gpus(self) -> int:
        """GPUs of nodes that join soon: slots are none."""
        return self.own.expected_gpus()

    def most_gpus(self) -> int:
        """GPUs that nodes may have one day."""
        return self.own.most_gpus()

    def stop(self, jobs: bool) -> None:
        """Take the agents of both away."""
        self.slots.stop(jobs)
        self.own.stop(jobs)


def _local(layout: Layout, options: Mapping[str, Any], stop_grace_s: float) -> NodeBackend:
    from plait.live.backends.local import ElasticLocal, LocalBackend

    most, elastic = whole(options, "max-nodes"), None
    if most is not None:
        elastic = ElasticLocal(most, seconds(options, "idle", ElasticLocal.idle_s), seconds(options, "delay", 0.0))
    cuda = False if options.get("fake") else None
    nodes, gpus = whole(options, "nodes"), whole(options, "gpus-per-node")
    slot_memory_gb = gigabytes(options, "slot-memory")
    return LocalBackend(
        layout, nodes, gpus, cuda, stop_grace_s=stop_grace_s, slot_memory_gb=slot_memory_gb,
        cpu_slots=whole(options, "cpu-slots"), racks=racks_of(options), as_owner=bool(options.get("as-owner")),
        elastic=elastic,
    )  # fmt: skip


#: For `racks` of local nodes: two of them.
HALVES = "halves"


def racks_of(options: Mapping[str, Any]) -> Callable[[int, int], int] | Mapping[str, int]:
    """The rack of each node: by name from a cluster file, else a function of its number and the number of nodes."""
    size, said = whole(options, "rack-size"), str(options.get("racks") or "")
    if "=" in said:
        pairs = (part.partition("=") for part in said.split(","))
        return {name: int(rack) for name, _, rack in pairs}
    if size is not None:
        return lambda node, nodes: node // size
    return lambda node, nodes: node // max(1, (nodes + 1) // 2) if said == HALVES else 0


def _slurm(layout: Layout, options: Mapping[str, Any], stop_grace_s: float) -> NodeBackend:
    from plait.live.backends.slurm.backend import SlurmBackend

    return SlurmBackend(layout, options, stop_grace_s)


def _ray(layout: Layout, options: Mapping[str, Any], stop_grace_s: float) -> NodeBackend:
    from plait.live.backends.ray.backend import RayBackend

    return RayBackend(layout, options, stop_grace_s)


#: Options that nodes of this machine know: those of `plait up`, and those that are given by -o.
UP_OPTIONS = ("backend", "nodes", "gpus-per-node", "cpu-slots", "fake", "address", "rack-size", "as-owner", "racks")
PAIRS = ("delay", "idle", "max-nodes", "slot-memory")
#: Backends that come with plait, by name.
OWN: dict[str, Factory] = {"local": _local, "ray": _ray, "slurm": _slurm}
