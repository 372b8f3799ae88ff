"""What is simulated: jobs, where they are, the network between them and what goes wrong in it. Checked values.

Start at `Scenario`; `one_switch` and `two_levels` make those of spec and tests.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from plait.core.cluster import Cluster
from plait.core.errors import InputError
from plait.network.packets.collectives import check_collective
from plait.network.protocol.addressing import Index
from plait.network.protocol.header import MOST_WORKERS
from plait.network.protocol.options import Options
from plait.network.topology.paths import Graph
from plait.network.topology.read import networked
from plait.network.topology.trees import Tree

MIB = 1 << 20
#: What becomes of a packet that finds the queue of a switch full: it is dropped, or the link over which it came is
#: paused until half of the queue has left (priority flow control).
OVERFLOWS = ("drop", "pause")
#: Limits of switches: none, or those of a Tofino in the released systems: bitmaps of 32 workers, values of ATP's 40,000
#: cells of 31 registers of 32 bits, and 256 bytes of payload in a pass; a packet with more recirculates
#: through a port of the switch, at the rate of its fastest link.
PIPELINES = ("none", "tofino")
#: Sizes of flows of other traffic: packets of 1,460 bytes, and the share of flows up to that. `even`: each packet is a
#: flow. Web search is that of DCTCP, data mining that of VL2, as `conf/CDF_dctcp.txt` and `conf/CDF_vl2.txt` of
#: github.com/HKUST-SING/TrafficGenerator (635190aa) have them; with their means, 1,138 and 5,117 packets, simulators
#: of RepFlow and PIAS count 1,460 bytes each.
FLOW_SIZES = {
    "even": ((1, 0.0), (1, 1.0)),
    "websearch": (
        (6, 0.15), (13, 0.2), (19, 0.3), (33, 0.4), (53, 0.53), (133, 0.6), (667, 0.7), (1333, 0.8), (3333, 0.9),
        (6667, 0.97), (20000, 1.0),
    ),
    "datamining": (
        (1, 0.5), (2, 0.6), (3, 0.7), (7, 0.8), (267, 0.9), (2107, 0.95), (66667, 0.99), (666667, 1.0),
    ),
}  # fmt: skip
TOFINO_WORKERS, TOFINO_BYTES, TOFINO_MEMORY = 32, 256, 40_000 * 31 * 4


def check_background(background: float, flows: str) -> None:
    """Raise `InputError` for flows of other traffic of which there is none."""
    if flows != "even" and not background:
        raise InputError(f"background_flows is {flows} and background 0; give a background, e.g. 0.3")


@dataclass(frozen=True)
class PacketJob:
    """A job: in each iteration its workers compute, then the sum of each tensor goes to all of them.

    tensors     bytes of each tensor of an iteration, in the order in which they are sent: the last layer first
    compute_s   seconds of computation before each exchange
    memory      aggregators of its own region, for dedicated slots and regions. None: an equal part of what no other
                job has (dedicated slots; at most two for each packet of its window), or the rest together with others
    first       first aggregator of a region of INAlloc, which may overlap other regions and the rest; None: no other
                job has any of its `memory`
    priority    of its packets, 0 to 255; None: after the description of ESA, from layer, times and iterations left
    exponents   packets of each tensor that carry exponents alone (SwitchML as released: a window of them)
    deadline_s  for its last iteration, from the start of the simulation
    collective  one of `collectives.COLLECTIVES`: an all-reduce between its workers, without switches and server
    label       in place of the name of its system
    nodes       of its workers, by number; `server`: that of its parameter server. Without them the next free ones
    tree        who adds up its packets, and their way; None: by `Options.adds`
    """

    options: Options = field(default_factory=Options)
    workers: int = 8
    tensors: tuple[int, ...] = (2 * MIB,)
    iterations: int = 1
    compute_s: float = 0.0
    start_s: float = 0.0
    memory: int | None = None
    first: int | None = None
    priority: int | None = None
    exponents: int = 0
    deadline_s: float | None = None
    collective: str = ""
    label: str = ""
    nodes: tuple[int, ...] = ()
    server: int | None = None
    tree: Tree | None = None

    @property
    def dedicated(self) -> bool:
        """Whether it has slots of its own, and no server."""
        return self.options.mode == Index.DEDICATED

    @property
    def served(self) -> bool:
        return not self.dedicated and not self.collective

    @property
    def system(self) -> str:
        """The name of its system, or of its collective."""
        return self.label or self.collective or self.options.protocol

    @property
    def packets(self) -> tuple[int, ...]:
        """Packets of each tensor of an iteration, without those of exponents."""
        return tuple(math.ceil(size / self.options.payload_bytes) for size in self.tensors)

    @property
    def bits(self) -> int:
        """Payload of an iteration of one worker."""
        return 8 * sum(self.tensors)

    def check(self, j: int) -> None:
        """Raise `InputError` that names job `j` for values that do not work."""
        if not 1 <= self.workers <= MOST_WORKERS:
            raise InputError(f"job {j}: {self.workers} workers; a job may have 1 to {MOST_WORKERS}")
        if self.collective:
            try:
                check_collective(self.collective, self.workers)
            except InputError as error:
                raise InputError(f"job {j}: {error}") from error
        if not self.tensors or min(self.tensors) < 1:
            raise InputError(f"job {j}: tensors of {list(self.tensors)} bytes; it takes one or more, each of 1 or more")
        if self.iterations < 1:
            raise InputError(f"job {j}: {self.iterations} iterations; it takes 1 or more")
        for name in ("compute_s", "start_s"):
            if not 0 <= getattr(self, name) < math.inf:
                raise InputError(f"job {j}: {name} is {getattr(self, name):g}; it takes 0 or more seconds")
        if self.priority is not None and not 0 <= self.priority <= 255:
            raise InputError(f"job {j}: priority {self.priority}; it takes 0 to 255")
        if self.memory is not None and self.memory < 0:
            raise InputError(f"job {j}: memory of {self.memory} aggregators; it takes 0 or more")
        falls_back = self.options.mode in (Index.HYBRID_REGION, Index.HYBRID_MODULO)
        if self.first is not None and (self.first < 0 or self.memory is None or not falls_back):
            raise InputError(
                f"job {j}: first aggregator {self.first}; it takes 0 or more, a memory, and index hybrid_region or "
                "hybrid_modulo"
            )
        if not 0 <= self.exponents <= min(self.packets):
            raise InputError(f"job {j}: {self.exponents} packets of exponents; it takes 0 to {min(self.packets)}")
        if self.deadline_s is not None and not self.deadline_s > self.start_s:
            raise InputError(f"job {j}: deadline {self.deadline_s:g} s; it takes more than its start, {self.start_s:g}")
        if self.nodes and len(self.nodes) != self.workers:
            raise InputError(f"job {j}: {len(self.nodes)} nodes for {self.workers} workers; it takes one each")
        if sum(self.packets) * self.iterations + self.exponents * len(self.tensors) * self.iterations >= 1 << 31:
            raise InputError(f"job {j}: more packets than the 2^31 numbers of one job; take fewer iterations")


@dataclass(frozen=True)
class Straggler:
    """A worker that is slower than others for some time: other traffic on its link, or a slower computation.

    share    of the rate of its link that is left to it
    compute  factor of its computation, all of the time
    """

    job: int
    rank: int = 0
    share: float = 1.0
    from_s: float = 0.0
    until_s: float = math.inf
    compute: float = 1.0

    def check(self, jobs: Sequence[PacketJob]) -> None:
        """Raise `InputError` for a worker that does not exist and for impossible values."""
        if not 0 <= self.job < len(jobs) or not 0 <= self.rank < jobs[self.job].workers:
            raise InputError(f"straggler: worker {self.rank} of job {self.job} does not exist")
        if not 0 < self.share <= 1:
            raise InputError(f"straggler of job {self.job}: share is {self.share:g}; it takes more than 0, at most 1")
        if not 1 <= self.compute < math.inf:
            raise InputError(f"straggler of job {self.job}: compute is {self.compute:g}; it takes 1 or more")
        if not 0 <= self.from_s < self.until_s:
            raise InputError(f"straggler of job {self.job}: from {self.from_s:g} to {self.until_s:g} s is no time")


@dataclass(frozen=True)
class Scenario:
    """A simulation. All randomness is of `seed`.

    cluster       with its network; all delays and rates of links and switches are there
    jitter_s      most delay of a packet in its host, before the link: uniform from 0
    server_s      time of a packet in a parameter server
    mark_packets  packets in the queue of a switch from which on packets are marked as congested
    queue_packets packets that a queue of a switch has room for, 0: any number; `overflow`: see `OVERFLOWS`
    pipeline      limits of switches, see `PIPELINES`
    loss_up       probability that a packet to a server is lost on one hop; `loss_down`: one from there
    background    share of the rate of its link that each node sends to another one, by a random cycle of all nodes
    background_flows  their sizes, one of `FLOW_SIZES`: a flow goes at the rate of the link, and the next one later
    until_s       a simulation that takes longer is an error
    log           how many packets are logged, from the start
    elements      int32 of payload that are simulated, and checked; 0: times alone
    """

    jobs: tuple[PacketJob, ...]
    cluster: Cluster
    seed: int = 0
    jitter_s: float = 0.2e-6
    server_s: float = 1e-6
    mark_packets: int = 100
    queue_packets: int = 0
    overflow: str = "drop"
    pipeline: str = "none"
    loss_up: float = 0.0
    loss_down: float = 0.0
    stragglers: tuple[Straggler, ...] = ()
    background: float = 0.0
    background_flows: str = "even"
    until_s: float = 1000.0
    log: int = 0
    elements: int = 0

    def __post_init__(self) -> None:
        if not self.jobs:
            raise InputError("no jobs; give one or more")
        for j, job in enumerate(self.jobs):
            job.check(j)
        for straggler in self.stragglers:
            straggler.check(self.jobs)
        for name in ("loss_up", "loss_down"):
            if not 0 <= getattr(self, name) < 1:
                raise InputError(f"{name} is {getattr(self, name):g}; it takes 0 to less than 1")
        for name in ("jitter_s", "server_s", "until_s"):
            if not 0 <= getattr(self, name) < 9e5:
                raise InputError(f"{name} is {getattr(self, name):g}; it takes 0 to 900,000 seconds")
        if not 0 <= self.background < 1:
            raise InputError(f"background is {self.background:g}; it takes 0 to less than 1")
        check_background(self.background, self.background_flows)
        self._check_lossless()
        for name, known in (("overflow", OVERFLOWS), ("pipeline", PIPELINES), ("background_flows", FLOW_SIZES)):
            if getattr(self, name) not in known:
                raise InputError(f"{name} is {getattr(self, name)!r}; it takes {' or '.join(known)}")
        for j, job in enumerate(self.jobs):
            if self.pipeline == "tofino" and job.workers > TOFINO_WORKERS:
                raise InputError(
                    f"job {j}: {job.workers} workers; switches of pipeline tofino have bitmaps of {TOFINO_WORKERS}, "
                    "take fewer workers or pipeline none"
                )
        for one in self.cluster.network.switches if self.pipeline == "tofino" and self.cluster.network else ():
            if one.aggregators * one.payload_bytes > TOFINO_MEMORY:
                raise InputError(
                    f"switch {one.id}: {one.aggregators:,} aggregators of {one.payload_bytes} bytes; registers of "
                    f"pipeline tofino have room for {TOFINO_MEMORY // one.payload_bytes:,}; give fewer"
                )
        for name, most in (
            ("mark_packets", 1 << 31),
            ("queue_packets", 1 << 31),
            ("log", 10**7),
            ("elements", 1024),
            ("seed", 1 << 31),
        ):
            if not 0 <= getattr(self, name) <= most:
                raise InputError(f"{name} is {getattr(self, name)}; it takes 0 to {most:,}")
        self.placement  # noqa: B018  (raises where jobs do not fit)

    def _check_lossless(self) -> None:
        """Raise `InputError` where packets may be lost that nobody sends again."""
        lossy = "loss_up" if self.loss_up else "loss_down" if self.loss_down else ""
        lossy = lossy or ("overflow drop" if self.queue_packets and self.overflow == "drop" else "")
        for j, job in enumerate(self.jobs):
            if job.collective and lossy:
                raise InputError(
                    f"job {j}: {job.collective} sends no packet again, and {lossy} loses some; take queues without "
                    "end, or overflow pause"
                )

    def passes(self, job: PacketJob) -> int:
        """How often a packet of a job goes through a switch that adds it up."""
        return 1 if self.pipeline == "none" else math.ceil(job.options.payload_bytes / TOFINO_BYTES)

    @cached_property
    def graph(self) -> Graph:
        """The network by number."""
        return Graph.of(self.cluster)

    @cached_property
    def placement(self) -> tuple[tuple[tuple[int, ...], int | None], ...]:
        """The nodes of the workers of each job, and that of its server; None for dedicated slots."""
        count = len(self.cluster.nodes)
        taken = {node for job in self.jobs for node in (*job.nodes, *(() if job.server is None else (job.server,)))}
        free = iter([node for node in range(count) if node not in taken])
        found = []
        for j, job in enumerate(self.jobs):
            nodes = job.nodes or tuple(next(free, -1) for _ in range(job.workers))
            server = None if not job.served else next(free, -1) if job.server is None else job.server
            for node in (*nodes, *(() if server is None else (server,))):
                if not 0 <= node < count:
                    raise InputError(
                        f"job {j}: no node for a worker or its server; the cluster has {count} nodes, each of which "
                        "takes one of them unless jobs name their nodes"
                    )
            found.append((nodes, server))
        return tuple(found)


def nodes_needed(jobs: Sequence[PacketJob]) -> int:
    """Nodes of a network in which every worker and every server has its own."""
    return sum(job.workers + job.served for job in jobs)


def one_switch(
    jobs: Sequence[PacketJob], aggregators: int, *, gbps: float = 100.0, delay_us: float = 1.0, switch_us: float = 1.0,
    **more: object,
) -> Scenario:  # fmt: skip
    """All jobs on one switch, every worker and server on a link of its own; `more` are fields of `Scenario`."""
    payload = max((job.options.payload_bytes for job in jobs), default=248)
    text = (
        f"single-switch:aggregators={aggregators},payload={payload},link_gbps={gbps!r},link_delay_us={delay_us!r},"
        f"switch_delay_us={switch_us!r}"
    )
    made = networked(Cluster.parse(f"{max(1, nodes_needed(jobs))}x1"), text)
    return Scenario(tuple(jobs), made, **more)  # type: ignore[arg-type]


def racks(
    jobs: Sequence[PacketJob], aggregators: int, per_rack: int, *, levels: int = 2, spines: int = 1,
    oversubscription: float = 1.0, gbps: float = 100.0, **more: object,
) -> Scenario:  # fmt: skip
    """Jobs over the racks of a leaf-spine network: the workers of each over several racks, servers in the last one.

    Every rack has `per_rack` workers of each job, as far as there are any; the servers of all jobs have a rack.
    """
    payload = max((job.options.payload_bytes for job in jobs), default=248)
    count = max(math.ceil(job.workers / per_rack) for job in jobs)
    size = max(per_rack * len(jobs), len(jobs))
    placed = []
    for j, job in enumerate(jobs):
        nodes = tuple(rank // per_rack * size + j * per_rack + rank % per_rack for rank in range(job.workers))
        placed.append(replace(job, nodes=nodes, server=count * size + j if job.served else None))
    text = (
        f"leaf-spine:aggregators={aggregators},payload={payload},link_gbps={gbps!r},levels={levels},spines={spines},"
        f"oversubscription={oversubscription!r},aggregating=all"
    )
    made = networked(Cluster.parse(f"{(count + 1) * size}x1@{size}"), text)
    return Scenario(tuple(placed), made, **more)  # type: ignore[arg-type]
