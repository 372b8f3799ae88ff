"""A cluster made by hand: an engine with a clock that tests move, and agents that do as they are told."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from plait.control.controller import Controller
from plait.live.fencing import Fences
from plait.live.layout import Layout
from plait.live.protocol import wire
from plait.live.scheduler.engine import Engine
from plait.live.scheduler.options import Options
from plait.live.store import Store
from plait.live.store.schema import StoredJob
from plait.network.topology.declared import read_network

Key = tuple[int, int, int]


class Node:
    """An agent: starts what it is told to, and says so; what ends is up to the test."""

    def __init__(self, cluster: Cluster, name: str, gpus: int, kind: str = "gpu", rack: int = 0) -> None:
        self.cluster, self.info, self.agent = cluster, wire.NodeInfo(name, gpus, kind, rack=rack), f"{name}-a"
        #: How often its switch has started (0: it does not work), and whether it takes the leases that it is told.
        self.starts, self.leases = 1, True
        self.seen: dict[Key, wire.Seen] = {}
        self.answer: wire.Assignment | None = None
        self.obeys = True
        self.usage = wire.Usage()

    def observed(self) -> wire.Observed:
        answer = self.answer
        term, reached = (0, 0) if answer is None else (answer.term, answer.version)
        seen = list(self.seen.values())
        return wire.Observed(self.info, self.agent, term, reached, seen, self.usage, switch=self.switch())

    def switch(self) -> wire.SwitchSeen:
        order = None if self.answer is None else self.answer.switch
        if order is None:
            return wire.SwitchSeen()
        leases = [wire.LeaseSeen(one.job, one.epoch) for one in order.leases] if self.leases else []
        incarnation = f"{self.info.id}-{self.starts}" if self.starts else ""
        return wire.SwitchSeen(order.name, "", incarnation, "", 4000, 4001, order.aggregators, 0.0, leases=leases)

    def sync(self) -> wire.Assignment:
        """Tell and hear; processes start at once, and stop (with a checkpoint) when told to."""
        told = self.observed()
        answer = self.cluster.engine.observe(told, self.cluster.now)
        listed = {key(run): run for run in answer.attempts}
        for one in told.attempts:
            if one.state == wire.ENDED and (one.job, one.epoch, one.rank) not in listed:
                self.seen.pop((one.job, one.epoch, one.rank), None)
        self.answer = answer
        if self.obeys:
            self._obey(listed)
        return answer

    def _obey(self, listed: dict[Key, wire.Run]) -> None:
        for k, run in listed.items():
            if k not in self.seen:
                self.seen[k] = (
                    wire.Seen(*k, wire.RUNNING, pid=100 + run.job, saves="yes")
                    if not run.stop
                    else ended(k, wire.PREEMPTED)
                )
            elif run.stop and self.seen[k].state != wire.ENDED:
                self.seen[k] = replace(self.seen[k], state=wire.ENDED, exit_code=wire.PREEMPTED)
        for k, one in self.seen.items():
            if k not in listed and one.state != wire.ENDED:
                self.seen[k] = replace(one, state=wire.ENDED, exit_code=wire.PREEMPTED)

    def end(
        self, job: int, exit_code: int | None = 0, rank: int | None = None, then_s: float = 0.0, **more: Any
    ) -> None:
        """Processes of a job end; `then_s` seconds pass."""
        for k, one in self.seen.items():
            if k[0] == job and one.state != wire.ENDED and rank in (None, k[2]):
                self.seen[k] = replace(one, state=wire.ENDED, exit_code=exit_code, **more)
        self.cluster.pass_s(then_s)

    def report(self, job: int, then_s: float = 0.0, **values: Any) -> None:
        """Processes of a job report these values from now on; `then_s` seconds pass."""
        for k, one in self.seen.items():
            if k[0] == job and one.state != wire.ENDED:
                self.seen[k] = replace(one, **values)
        self.cluster.pass_s(then_s)

    def jobs(self) -> set[int]:
        return {k[0] for k, one in self.seen.items() if one.state == wire.RUNNING}


class Cluster:
    """An engine on a store of its own, and its agents."""

    def __init__(
        self, home: Path, nodes: Sequence[int] = (2,), policy: str = "fifo-backfill",
        network: str | None = None, racks: Sequence[int] = (), kinds: Sequence[str] = (),
        jobs: Sequence[dict[str, Any]] = (), then_s: float = 1.1, **options: Any,
    ) -> None:  # fmt: skip
        """`jobs` are submitted once the nodes have joined, and `then_s` seconds pass."""
        self.home, self.now, self.network = home, 0.0, read_network(network)
        self.options = Options(**{"round_s": 1.0, "lost_s": 15.0, "lease_s": 12.0, **options})
        self.store = Store.open(home / "plait.db")
        self.engine = self._engine(policy)
        rack, kind = dict(enumerate(racks)), dict(enumerate(kinds))
        self.nodes = [Node(self, f"n{i}", gpus, kind.get(i, "gpu"), rack.get(i, 0)) for i, gpus in enumerate(nodes)]
        self.pass_s(0.1)
        if jobs:
            self.submit(*jobs, then_s=then_s)

    def _engine(self, policy: str | None) -> Engine:
        return Engine(
            self.store, Fences(Layout(self.home)), now_s=self.now, policy=policy, options=self.options,
            network=self.network, secret=b"home",
        )  # fmt: skip

    @property
    def controller(self) -> Controller:
        assert self.engine.state.controller is not None
        return self.engine.state.controller

    def restart(self, then_s: float = 0.0) -> None:
        """Another engine continues from the store; `then_s` seconds pass."""
        self.store.close()
        self.store = Store.open(self.home / "plait.db")
        self.engine = self._engine(None)
        self.pass_s(then_s)

    def submit(self, *requests: dict[str, Any], owner: str = "ann", then_s: float = 0.0) -> list[int]:
        """Jobs that ask for retries, unless they say otherwise: else one that fails at once is not started again.

        After them `then_s` seconds pass.
        """
        jobs = [{"command": ["true"], "retries": 3, **request} for request in requests]
        numbers = self.engine.submit(jobs, owner=owner, now_s=self.now)
        self.pass_s(then_s)
        return numbers

    def pass_s(self, seconds: float = 1.1, silent: Sequence[str] = ()) -> None:
        """Time passes; every agent that is not silent syncs twice a second."""
        until = self.now + seconds
        while self.now < until - 1e-9:
            self.now = min(self.now + 0.5, until)
            self.engine.tick(self.now)
            for node in self.nodes:
                if node.info.id not in silent:
                    node.sync()

    def stored(self, job: int) -> StoredJob:
        stored = self.store.job(job)
        assert stored is not None
        return stored

    def state(self, job: int) -> str:
        return str(self.stored(job).row.state)

    def types(self) -> list[str]:
        return [entry.type for entry in self.store.entries()]


def key(run: wire.Run) -> Key:
    return run.job, run.epoch, run.rank


def ended(k: Key, exit_code: int | None, **more: Any) -> wire.Seen:
    return wire.Seen(*k, wire.ENDED, exit_code=exit_code, **more)
