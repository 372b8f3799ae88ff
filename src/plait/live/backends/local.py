"""Agents on this machine: one process a node, in sessions of their own, so that they outlive the service.

    backend = LocalBackend(layout, nodes=2, gpus_per_node=4)
    backend.start()      # takes over agents that already run, starts the others
    backend.maintain()   # each second: starts agents that died
    backend.stop(jobs=True)

A node is a share of the machine's GPUs or, where there are none, so many slots of CPU. Several nodes on one machine
behave as several machines would, which is what tests and demonstrations need. With `elastic` nodes come and go as jobs
want them, as those that are rented do.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from plait.core.errors import InputError
from plait.core.resources import CPU_KIND
from plait.core.words import counted
from plait.live.agent.monitor import Gpu, Nvml, cores
from plait.live.backends.base import COMING, STOP_GRACE_S, UP, BackendNode
from plait.live.backends.fitting import PENDING, AllocationLimits, Fitting, Held
from plait.live.backends.host import AgentHost
from plait.live.layout import Layout
from plait.live.system import accounts, procs

if TYPE_CHECKING:
    from plait.live.client.client import Client

#: In the folder of a node: how many slots or which GPUs its last agent had.
_SIZE = "size.json"
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 10.0


@dataclass(frozen=True)
class Machine:
    """The local machine: its GPUs by the driver's names, CPU cores that may be used, whether agents can run."""

    gpus: tuple[Gpu, ...]
    cores: float
    problem: str | None = None


def detect() -> Machine:
    """Look at this machine; `problem` is the reason why agents cannot run on it, if any."""
    if not sys.platform.startswith("linux"):
        return Machine((), float(os.cpu_count() or 1), f"agents need Linux, this is {sys.platform}; use a container")
    problem = None if hasattr(os, "pidfd_open") else "agents need Linux 5.3 or newer (pidfd_open)"
    return Machine(tuple(Nvml().gpus()), cores(), problem)


@dataclass(frozen=True)
class LocalNode:
    """A node of this machine. `cuda`: the machine's numbers of its GPUs, None for slots; `kind`: None: the driver's."""

    name: str
    gpus: int
    cuda: tuple[int, ...] | None
    rack: int = 0
    kind: str | None = None


def divide(machine: Machine, nodes: int | None, gpus_per_node: int | None, cuda: bool | None) -> list[LocalNode]:
    """Divide a machine into nodes: all GPUs in equal parts, or slots (2 nodes of 4 unless given).

    `cuda` None takes GPUs where there are any. Raises InputError for more GPUs than there are.

    >>> [n.cuda for n in divide(Machine((Gpu(0, "a", 1.0), Gpu(1, "a", 1.0)), 8.0), 2, None, None)]
    [(0,), (1,)]
    >>> divide(Machine((), 8.0), None, 1, None)[1]
    LocalNode(name='n1', gpus=1, cuda=None, rack=0, kind=None)
    """
    for value, what in ((nodes, "nodes"), (gpus_per_node, "GPUs a node")):
        if value is not None and not 1 <= value <= 1024:
            raise InputError(f"{value} {what}; needs 1 to 1024")
    there = len(machine.gpus)
    if not (there > 0 if cuda is None else cuda):
        return [LocalNode(f"n{i}", gpus_per_node or 4, None) for i in range(nodes or 2)]
    nodes = nodes or 1
    each = gpus_per_node or there // nodes
    if each < 1 or nodes * each > there:
        raise InputError(
            f"{counted(nodes, 'node')} of {counted(max(each, 1), 'GPU')}; this machine has {there}. Give fewer, or "
            "--fake for slots of CPU"
        )
    numbers = [gpu.index for gpu in machine.gpus]
    return [LocalNode(f"n{i}", each, tuple(numbers[i * each : (i + 1) * each])) for i in range(nodes)]


@dataclass(frozen=True)
class ElasticLocal:
    """Nodes that come and go: at most so many, each `delay_s` after its request, until it is idle for `idle_s`."""

    most: int
    idle_s: float = 300.0
    delay_s: float = 0.0


class LocalBackend:
    """Starts, watches and stops the agents of this machine's nodes."""

    name = "local"

    def __init__(
        self,
        layout: Layout,
        nodes: int | None = None,
        gpus_per_node: int | None = None,
        cuda: bool | None = None,
        *,
        stop_grace_s: float = STOP_GRACE_S,
        slot_memory_gb: float | None = None,
        cpu_slots: int | None = None,
        racks: Callable[[int, int], int] | Mapping[str, int] = lambda node, nodes: 0,
        as_owner: bool = False,
        elastic: ElasticLocal | None = None,
    ) -> None:
        """Nothing is started yet. `stop_grace_s`: most seconds that jobs get at `stop(jobs=True)`.

        `slot_memory_gb`: memory that each CPU slot is declared to have, for jobs that share it; None: not limited.
        `cpu_slots`: jobs without GPUs of one core that one more node has room for; None: there is no such node.
        `nodes`: 0 for none but that one. `racks`: the rack of each node by its name (others: 0), or by its number and
        the number of nodes.
        `as_owner`: jobs run as the accounts of their owners. `elastic`: more nodes than `nodes` (1 unless given) come
        and go.

        Raises InputError if the machine cannot be divided so, or cannot run agents, or not with the rights of this one.
        """
        machine = detect()
        if problem := machine.problem or (as_owner and accounts.refusal()):
            raise InputError(problem)
        self._as_owner = as_owner
        self.layout, self.stop_grace_s = layout, stop_grace_s
        self._slot_memory_gb = slot_memory_gb
        least = 1 if elastic and nodes is None else nodes
        if elastic and not (nodes != 0 and (least or 1) <= elastic.most):
            raise InputError(f"max-nodes={elastic.most} with --nodes {least}; needs 1 <= nodes <= max-nodes")
        found = [] if nodes == 0 else divide(machine, elastic.most if elastic else nodes, gpus_per_node, cuda)
        rack = [racks(i, len(found)) if callable(racks) else racks.get(one.name, 0) for i, one in enumerate(found)]
        self.nodes = {one.name: replace(one, rack=number) for one, number in zip(found, rack, strict=True)}
        if cpu_slots is not None:
            self.nodes[CPU_KIND] = LocalNode(CPU_KIND, cpu_slots, None, kind=CPU_KIND)
        self._host = AgentHost(layout, stop_grace_s)
        self._next_s: dict[str, tuple[float, float]] = {}
        self.elastic, self._fitting, self._coming = elastic, Fitting(layout, time.monotonic), dict[str, float]()
        self._least, self._spare = least or len(found), dict[str, LocalNode]()
        for name in [one.name for one in found[self._least :]] if elastic else []:
            # Those that another keeper has started are there; a full disk may have kept no file of the size.
            if not (self._size_file(name).exists() or self._host.runs(name) or self._host.has_jobs(name)):
                self._spare[name] = self.nodes.pop(name)

    def start(self) -> list[str]:
        """Start agents for all nodes; running ones are kept. Return the names of nodes whose agent was started now.

        Agents of nodes that are no more are ended with their jobs; one of another size is replaced. Raises `InputError`
        for another size of a node that still runs jobs.
        """
        self._check_sizes()
        for name in self._known():
            record = procs.read_json(self.layout.node(name) / "agent.json") or {}
            node = self.nodes.get(name)
            if node is None:
                self._end([name], jobs=True)
            elif self._host.runs(name) and (record.get("gpus"), record.get("cuda"), record.get("rack", 0)) != (
                node.gpus,
                None if node.cuda is None else list(node.cuda),
                node.rack,
            ):
                self._end([name], jobs=False)
        return [name for name in self.nodes if self.ensure_node_agent(name)]

    def _check_sizes(self) -> None:
        """Refuse to change nodes under the jobs that run on them."""
        for name, node in self.nodes.items():
            record = procs.read_json(self._size_file(name)) or {}
            before, cuda = record.get("gpus"), None if node.cuda is None else list(node.cuda)
            if not isinstance(before, int) or (before, record.get("cuda")) == (node.gpus, cuda):
                continue
            if self._host.has_jobs(name):
                has = counted(before, "slot" if record.get("cuda") is None else "GPU")
                raise InputError(
                    f"node {name} has {has} and still runs jobs, so it cannot have {node.gpus} now; stop them first "
                    "(those with checkpoints go on from there): plait down --stop-jobs, or keep the size: "
                    f"plait up --gpus-per-node {before}"
                )

    def ensure_node_agent(self, name: str) -> bool:
        """Start the agent of a node unless it runs; whether it was started."""
        if self._host.runs(name):
            return False
        node = self.nodes[name]
        memory = {} if node.cuda is not None else {"slot-memory": self._slot_memory_gb}
        account = {"as-owner": True} if self._as_owner else {}
        self._host.spawn(node.name, {**_size(node), **memory, **account})
        with contextlib.suppress(OSError):  # a full disk: then the next size is not compared with this one
            procs.write_json(self._size_file(node.name), {"gpus": node.gpus, "cuda": node.cuda})
        return True

    def _size_file(self, name: str) -> Path:
        return self.layout.node(name) / _SIZE

    def maintain(self, service: Client | None = None) -> list[str]:
        """Start agents that died, later each time if they die again soon; with `elastic` fit the nodes to the jobs.

        No report is needed: the agents report to the service themselves.
        """
        started = []
        if self.elastic is not None and service is not None:
            started += self._fit(service, self.elastic)
        for name in self.nodes:
            now = time.monotonic()
            at, pause_s = self._next_s.get(name, (0.0, _FIRST_PAUSE_S))
            if now >= at and self.ensure_node_agent(name):
                soon = now - at < 2 * _LONGEST_PAUSE_S
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S) if soon else _FIRST_PAUSE_S
                self._next_s[name] = (now + pause_s, pause_s)
                started.append(f"the agent of {name} was started")
        return started

    def _fit(self, service: Client, elastic: ElasticLocal) -> list[str]:
        """Request, start, drain and end nodes as jobs want them."""
        now, said = time.monotonic(), []
        for name in [name for name, at_s in self._coming.items() if at_s <= now]:
            del self._coming[name]
            self.nodes[name] = self._spare.pop(name)
        rows = {row.id: row for row in service.nodes()}
        held = [Held(_number(name), PENDING) for name in self._coming]
        held += [self._fitting.held(_number(name), rows.get(name)) for name in self.nodes if name != CPU_KIND]
        gpus = next(node.gpus for node in (*self.nodes.values(), *self._spare.values()) if node.kind != CPU_KIND)
        limits = AllocationLimits(gpus, self._least, elastic.most, elastic.idle_s)
        moves = self._fitting.moves(service.status().wanted, held, limits)
        free = [name for name in self._spare if name not in self._coming and name not in rows]
        for name in sorted(free, key=_number)[::-1][: moves.submit]:
            self._coming[name] = now + elastic.delay_s
            said.append(f"node {name} is requested" + (f", and comes in {elastic.delay_s:g} s" * (elastic.delay_s > 0)))
        for number in moves.cancel:
            del self._coming[f"n{-number}"]
        for number in moves.drain:
            said += self._fitting.drain(service, f"n{-number}")
        released = (f"n{-number}" for number in moves.release)
        for name in filter(lambda name: self._fitting.mark(name).exists(), released):
            self._spare[name] = self.nodes.pop(name)
            self._end([name], jobs=True)
            self._size_file(name).unlink(missing_ok=True)
            said.append(f"node {name} is given back")
        self._fitting.forget(service, rows.keys() & self._spare.keys())
        return said

    def expected(self) -> int:
        """How many nodes the service waits for: all that are started at once."""
        return len(self.nodes)

    def expected_gpus(self) -> int:
        """GPUs of all nodes that are started at once."""
        return sum(node.gpus for node in self.nodes.values())

    def most_gpus(self) -> int:
        """GPUs of all nodes that may come; 0 where all are there from the start."""
        there = (*self.nodes.values(), *self._spare.values()) if self.elastic else ()
        return sum(node.gpus for node in there if node.kind != CPU_KIND)

    def list_nodes(self) -> list[BackendNode]:
        """All nodes, with the pid of the agent where there is one."""
        return [
            BackendNode(name, node.gpus, UP if self._host.agent(name) else COMING, pid=self._host.pid(name))
            for name, node in self.nodes.items()
        ]

    def stop(self, jobs: bool) -> None:
        """End all agents of the home; with `jobs` their jobs too (gracefully), otherwise jobs run on."""
        self._end(sorted({*self.nodes, *self._known()}), jobs)
        if jobs:  # no group is left, and no agent that could make one
            for name in self._known():
                self._size_file(name).unlink(missing_ok=True)
            shutil.rmtree(self.layout.gates, ignore_errors=True)
            if self.layout.gates.parent != self.layout.home:
                shutil.rmtree(self.layout.gates.parent, ignore_errors=True)

    def _known(self) -> list[str]:
        names = (path.name for path in self.layout.home.glob("nodes/*"))
        return sorted(name for name in names if re.fullmatch(rf"n\d+|{CPU_KIND}", name))

    def _end(self, names: list[str], jobs: bool) -> None:
        self._host.stop_grace_s = self.stop_grace_s
        self._host.end(names, jobs, lambda name: _size(self.nodes.get(name, LocalNode(name, 1, None))))


def _number(name: str) -> int:
    """A node's number for the plan, by which the last of the nodes go first."""
    return -int(name[1:])


def _size(node: LocalNode) -> dict[str, object]:
    """The options of the node's agent, by flag; its service is on this machine."""
    rack = {"rack": node.rack} if node.rack else {}
    if node.cuda is None:
        return {"gpus": node.gpus, "parks": True, **rack, **({"gpu-kind": node.kind} if node.kind else {})}
    return {"cuda": ",".join(map(str, node.cuda)), "parks": True, **rack}
