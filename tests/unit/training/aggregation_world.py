"""Clients, a switch and a server in one process and on one clock, joined by links that lose, repeat and delay packets.

Every packet passes the wire format of `header.encode` and `header.decode`, and the very functions of a switch process.
The same seed gives the same run.
"""

from dataclasses import dataclass, field

import numpy as np

from plait.network.protocol import header, server, switch
from plait.network.protocol.addressing import Index, cycle_slots
from plait.network.protocol.options import set_windows
from plait.network.protocol.server import TO_SWITCH
from plait.network.protocol.switch import EVICTED, MULTICAST, TO_SERVER, UNICAST
from plait.runtime.network.grant import NetworkGrant
from plait.training.collectives.aggregation_client import AggregationClient, options_of

STEP_NS = 50_000
#: Directions in which packets are lost.
DIRECTIONS = ("to_switch", "to_server", "from_server", "to_worker")


@dataclass
class Faults:
    """Probabilities for one packet."""

    loss: dict[str, float] = field(default_factory=dict)
    duplicate: float = 0.0
    late: float = 0.0


def grants(count: int, workers: int, index: str, *, slots: int = 96, window: int = 16, **options) -> list[NetworkGrant]:
    """A grant for each of so many jobs that share a switch of so many slots, in one mode of addressing."""
    protocol = {"dedicated": "switchml", "shared_hash": "esa", "shared_cycle": "atp"}.get(index, "inalloc")
    made = {"protocol": protocol, "index": index, "window": window, "payload_bytes": 32, "quantise": "exponent"}
    made |= {"rto_s": 1e-3, "first_rto_s": 2e-3, **options}
    disjoint = index in ("dedicated", "hybrid_modulo")
    size = slots // count if disjoint else slots
    return [
        NetworkGrant(
            version=1, granted=True, job=j, token="00" * 8, n_workers=workers, switch=("127.0.0.1", 1),
            options=made, offset=j * size if disjoint else 0, size=size, slots=slots, priority=10 * j,
        )
        for j in range(count)
    ]  # fmt: skip


class World:
    """Jobs with all their clients."""

    def __init__(self, jobs: list[NetworkGrant], faults: Faults | None = None, seed: int = 0) -> None:
        self.faults, self.chance = faults or Faults(), np.random.default_rng(seed)
        self.jobs = jobs
        self.elements = options_of(jobs[0]).elements
        window = max(options_of(job).window for job in jobs)
        self.table = switch.make_switch(jobs[0].slots, len(jobs), self.elements)
        self.server = server.make_server(len(jobs), window, self.elements, jobs[0].slots)
        for job in jobs:
            self.register(job)
        self.clients = [[AggregationClient(job, rank) for rank in range(job.n_workers)] for job in jobs]
        self.now = 0
        self.flying: list[tuple[int, int, int, str, np.ndarray]] = []  # when, order, job * 64 + rank, direction, row
        self.order = 0
        #: Ranks that send and receive nothing more.
        self.dead: set[tuple[int, int]] = set()
        self.cut = False  # whether the switch answers nobody

    def register(self, job: NetworkGrant) -> None:
        made = options_of(job)
        switch.register(self.table, job.job, server.all_bits(job.n_workers), job.n_workers, made.rules)
        switch.grant(self.table, job.job, job.offset, job.size, job.epoch)
        slots = (
            cycle_slots(job.job, made.cycle_slots, job.size, job.offset) if made.mode is Index.SHARED_CYCLE else None
        )
        server.register(self.server, job.job, job.n_workers, slots, job.offset)
        set_windows(self.server, job.job, made)

    def restart_switch(self) -> None:
        self.table = switch.make_switch(len(self.table.table), len(self.jobs), self.elements)

    def put(self, direction: str, key: int, row: np.ndarray) -> None:
        copies = 1 + (self.chance.random() < self.faults.duplicate)
        for _ in range(copies):
            if self.chance.random() < self.faults.loss.get(direction, 0.0):
                continue
            late = 40 * STEP_NS if self.chance.random() < self.faults.late else 0
            self.order += 1
            self.flying.append((self.now + STEP_NS + late, self.order, key, direction, row.copy()))

    def run(self, gradients: list[list[np.ndarray]], scales: list[float], most_steps: int = 40_000) -> list[list[bool]]:
        """One tensor of each job to its end; returns for each rank whether all sums came."""
        for clients, tensors, scale in zip(self.clients, gradients, scales, strict=True):
            for client, tensor in zip(clients, tensors, strict=True):
                client.start(tensor, scale, self.now)
        gave_up = set(self.dead)
        for _ in range(most_steps):
            working = [
                (j, r) for j, clients in enumerate(self.clients) for r, client in enumerate(clients)
                if not client.finished and (j, r) not in gave_up
            ]  # fmt: skip
            if not working:
                break
            for j, r in working:
                client = self.clients[j][r]
                if self.now >= client.deadline and not client.expire(self.now):
                    gave_up.add((j, r))
                    continue
                while len(rows := client.fill(self.now)):
                    for row in rows.view(np.uint8):
                        self.put("to_switch", 64 * j + r, row)
            self.deliver()
        else:
            raise AssertionError(f"no end after {most_steps} steps")
        return [[c.finished and (j, r) not in gave_up for r, c in enumerate(row)] for j, row in enumerate(self.clients)]

    def deliver(self) -> None:
        """Let time pass, and what is due arrive."""
        self.now += STEP_NS
        due = sorted(one for one in self.flying if one[0] <= self.now)
        self.flying = [one for one in self.flying if one[0] > self.now]
        for _, _, key, direction, row in due:
            if direction == "to_worker":
                if (key // 64, key % 64) not in self.dead:
                    self.clients[key // 64][key % 64].take(row.view(np.uint32).reshape(1, -1), self.now)
            elif not self.cut:
                self.step(direction, row)
        made, values = header.make_packets(64, self.elements)
        swept, _ = switch.sweep(self.table, made, values, 0, len(self.table.table), 0, self.now, 8_000_000)
        for k in range(swept):
            self.put("to_server", 0, encoded(made[k : k + 1], values[k : k + 1]))

    def step(self, direction: str, row: np.ndarray) -> None:
        made, values = header.make_packets(2, self.elements)
        assert header.decode(row.reshape(1, -1), np.array([len(row)]), 1, made, values) == 1
        if direction == "to_server":
            if server.server_step(self.server, made, values, 0, self.now) & TO_SWITCH:
                self.put("from_server", 0, encoded(made[:1], values[:1]))
            return
        actions = switch.switch_step(self.table, made, values, 0, 1, self.now)
        if actions & EVICTED:
            self.put("to_server", 0, encoded(made[1:], values[1:]))
        job = int(made[0]["job"])
        if actions & TO_SERVER:
            self.put("to_server", 0, encoded(made[:1], values[:1]))
        for rank in range(self.jobs[job].n_workers):
            if actions & MULTICAST or (actions & UNICAST and made[0]["bitmap"] >> rank & 1):
                self.put("to_worker", 64 * job + rank, encoded(made[:1], values[:1]))

    def settle(self) -> int:
        """Let everything that flies arrive and everything that is left grow old; returns aggregators still held by
        jobs that share theirs."""
        for _ in range(400):
            self.deliver()
        mine = np.flatnonzero(self.table.jobs["rules"] & switch.DEDICATED == 0)
        return int(self.table.jobs["held"][mine].sum())


def encoded(made: np.ndarray, values: np.ndarray) -> np.ndarray:
    out = np.zeros((1, header.WIRE_BYTES + 4 * values.shape[1]), dtype=np.uint8)
    header.encode(made, values, 1, out)
    return out[0]
