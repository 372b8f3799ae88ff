"""How well the laws of switch memory (`network.fluid`) agree with packets, at points that are fixed here.

Goodput of every job by `steady_rates`, corrected by `Measured`, and by the packet simulator, while all jobs exchange.
`PUBLISHED` are the points of the specification, `GRID`, `NARROW` and `MIXES` others, on which the laws were found,
`RACKS` those over narrow links of racks, `BURSTS` and `CROWDS` those that are measured, `SLOW` jobs one worker of which
has a slower link, `FRESH` points that were simulated for the first time when the laws stood, and `SYSTEMS` several
systems on one network. Start at `compared`; `phased` compares iterations of jobs that compute between exchanges.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import cycle

import numpy as np

from plait.core.arrays import FloatArray
from plait.core.cluster import Cluster
from plait.network.fluid.exchanges import Adders, Exchange, Prepared, prepared
from plait.network.fluid.iterations import iterations
from plait.network.fluid.jobs import PlacedJob
from plait.network.fluid.memory import SteadyRates, steady_rates
from plait.network.measured import ENDLESS, Measured, rates_of
from plait.network.packets.regions import regions
from plait.network.packets.results import JobFigures
from plait.network.packets.run import flow, simulate
from plait.network.packets.scenario import PacketJob, Scenario, one_switch, racks
from plait.network.protocol.addressing import dedicated_window
from plait.network.protocol.options import preset
from plait.network.topology.read import networked

#: Windows of the slowest job that are simulated, and those of them before rates are measured.
WINDOWS, WARM_UP = 60, 10
#: Where a job is off by more, packets are followed ten times as long: rates over 60 windows differ between seeds.
LONGER = 0.1


@dataclass(frozen=True)
class Point:
    """Jobs of a `system`, or of several in turn (`atp+inalloc`), with `workers` each on one switch or, with `per_rack`,
    in racks.

    `window` packets are under way; `delay_us` is that of each link; `levels` of aggregation, `oversubscription` and
    `spines` of racks; `tree` as in `ina_request.TREES`, or that of the system. With `crowd` workers and servers are
    drawn from so many nodes, which jobs share, in racks of `per_rack`; with `scattered`, no two from one node. The
    first worker of the first job has the part `slow` of its link. `cc`: congestion control; there is no law of it.
    """

    aggregators: int
    workers: tuple[int, ...] = (8,) * 8
    window: int = 245
    delay_us: float = 1.0
    per_rack: int = 0
    levels: int = 1
    system: str = "atp"
    oversubscription: float = 1.0
    spines: int = 1
    gbps: float = 100.0
    tree: str = "auto"
    crowd: int = 0
    slow: float = 1.0
    scattered: int = 0
    cc: str = "none"

    @property
    def name(self) -> str:
        """Its unusual settings."""
        jobs, sizes = len(self.workers), "/".join(map(str, sorted(set(self.workers))))
        several = f"{jobs} job{'s' * (jobs > 1)} of {sizes}"
        more = [self.system] if self.system != "atp" else []
        more += [f"window {self.window}"] if self.window != 245 else []
        more += [f"{self.delay_us:g} us"] if self.delay_us != 1 else []
        more += [f"{self.gbps:g} Gb/s"] if self.gbps != 100 else []
        more += [self.tree] if self.tree != "auto" else []
        more += [f"on {self.crowd} nodes"] if self.crowd else []
        more += [f"scattered over {self.scattered} nodes"] if self.scattered else []
        more += [f"one link at {self.slow:g}"] if self.slow != 1 else []
        more += [self.cc] if self.cc != "none" else []
        if self.per_rack:
            more += [f"{self.per_rack} a rack", f"{self.levels} level{'s' * (self.levels > 1)}"]
            more += [f"oversubscription {self.oversubscription:g}"] if self.oversubscription != 1 else []
            more += [f"{self.spines} spines"] if self.spines != 1 else []
        return ", ".join([f"{self.aggregators} aggregators", several, *more])

    def scenario(self) -> Scenario:
        """The packet simulation, of jobs that do not end."""
        jobs = [
            PacketJob(
                preset(system, window=self.window, payload_bytes=248, tree=self.tree, cc=self.cc), workers, (ENDLESS,),
                memory=self.aggregators // len(self.workers) if system == "inalloc" else None,
                priority=0 if system == "esa" else None,
            )
            for system, workers in zip(cycle(self.system.split("+")), self.workers, strict=False)
        ]  # fmt: skip
        if self.crowd or self.scattered:
            return self._crowded(jobs)
        if self.per_rack:
            return racks(
                jobs, self.aggregators, self.per_rack, levels=self.levels, spines=self.spines,
                oversubscription=self.oversubscription, gbps=self.gbps,
            )  # fmt: skip
        made = one_switch(jobs, self.aggregators, delay_us=self.delay_us, gbps=self.gbps)
        network = made.cluster.network
        assert network is not None
        links = [
            replace(one, bits_per_s=one.bits_per_s * self.slow ** ("n0" in (one.a, one.b))) for one in network.links
        ]
        return replace(made, cluster=replace(made.cluster, network=replace(network, links=tuple(links))))

    def _crowded(self, jobs: Sequence[PacketJob]) -> Scenario:
        rng, count = random.Random(self.name), self.crowd or self.scattered
        drawn = [rng.sample(range(count), job.workers + 1) for job in jobs]
        if self.scattered:
            free = iter(rng.sample(range(count), sum(map(len, drawn))))
            drawn = [[next(free) for _ in nodes] for nodes in drawn]
        placed = [replace(job, nodes=tuple(nodes[1:]), server=nodes[0]) for job, nodes in zip(jobs, drawn, strict=True)]
        text = f"aggregators={self.aggregators},payload=248,link_gbps={self.gbps!r}"
        if not self.per_rack:
            text = f"single-switch:{text}"
        else:
            text = (
                f"leaf-spine:{text},levels={self.levels},spines={self.spines},oversubscription={self.oversubscription!r},"
                "aggregating=all"
            )
        return Scenario(tuple(placed), networked(Cluster.parse(f"{count}x1@{self.per_rack or count}"), text))


@dataclass(frozen=True)
class Compared:
    """Goodput of every job of a point, bits a second, and mean share of sums that switches complete, by both."""

    point: Point
    packets: tuple[float, ...]
    fluid: tuple[float, ...]
    shares: tuple[float, float]

    @property
    def errors(self) -> list[float]:
        """Fluid over packets, less 1, of every job."""
        return [fluid / packets - 1 for fluid, packets in zip(self.fluid, self.packets, strict=True)]

    @property
    def worst(self) -> float:
        """The error of the job that is farthest off, with its sign."""
        return max(self.errors, key=abs)

    @property
    def share_error(self) -> float:
        """Fluid minus packets."""
        return self.shares[1] - self.shares[0]


def exchanges(scenario: Scenario, law: str = "hash") -> list[Exchange]:
    """The exchanges of the jobs of a packet simulation; `law`: of memory that they share."""
    memory = regions(scenario.jobs, min(one.usable for one in scenario.graph.network.switches if one.usable))
    found = []
    for j, (job, (workers, server)) in enumerate(zip(scenario.jobs, scenario.placement, strict=True)):
        own = "dedicated" if job.dedicated else "region" if job.memory is not None else ""
        size, window = (memory[j][1] if own else 0), job.options.window
        if job.dedicated:
            window = dedicated_window(window, size)
        found.append(
            Exchange(
                PlacedJob(workers, server), own or law, size, window, scenario.server_s, jitter_s=scenario.jitter_s,
                adds=job.options.adds, pick=j, priority=job.priority or 0,
            )
        )  # fmt: skip
    return found


PUBLISHED = (
    *(Point(a) for a in (256, 512, 1024, 2048, 4096, 8192, 16384, 65536)),
    *(Point(4096, (8,) * jobs) for jobs in (1, 2, 4, 16)),
)
_CHANGES: tuple[Callable[[int], Point], ...] = (
    lambda a: Point(a, (2,) * 8),
    lambda a: Point(a, (4,) * 8),
    lambda a: Point(a, (16,) * 8),
    lambda a: Point(a, window=150, delay_us=0.5),
    lambda a: Point(a, window=600, delay_us=3.0),
    lambda a: Point(a, window=64),
    lambda a: Point(a, window=128),
    lambda a: Point(a, (2, 2, 4, 4, 8, 8, 16, 16)),
    lambda a: Point(a, per_rack=4, levels=2),
    lambda a: Point(a, per_rack=4),
)
GRID = tuple(change(a) for a in (1024, 4096, 16384) for change in _CHANGES)
#: Racks with narrow links to the spines: regions that a switch answers, regions with a server, and shared memory.
RACKS = tuple(
    Point(8000, (8,) * 3, 200, per_rack=rack, levels=levels, system=system, oversubscription=narrow)
    for system in ("switchml", "inalloc", "atp")
    for levels in (1, 2)
    for narrow, rack in ((1.0, 4), (2.0, 2), (4.0, 4), (8.0, 2))
)
#: Narrow links, jobs of several widths, little memory.
NARROW = (
    *(Point(a, workers, 220, per_rack=rack, levels=levels, oversubscription=narrow, spines=spines)
      for a, workers, rack, levels, narrow, spines in (
        (1500, (6, 6, 12), 3, 2, 2.0, 2), (9000, (16,) * 4, 4, 2, 4.0, 2), (600, (4,) * 6, 2, 1, 2.0, 1),
        (2500, (9, 3, 6), 3, 2, 8.0, 1), (5000, (5, 10, 20), 5, 2, 1.0, 1), (900, (8,) * 2, 2, 2, 4.0, 2),
    )),
    *(Point(a, workers, window, delay) for a, workers, window, delay in (
        (800, (2, 6, 24), 160, 1.0), (6000, (3, 3, 9, 30), 260, 1.5), (350, (5,) * 7, 140, 0.7),
        (30000, (7,) * 9, 350, 2.0), (1200, (4, 12), 500, 2.5),
    )),
)  # fmt: skip
#: Jobs with shared memory that are spread over racks unevenly, in which more than half a sum of a window stalls.
BURSTS = tuple(
    Point(a, workers, window, per_rack=rack, levels=2, oversubscription=narrow, spines=spines)
    for a, workers, window, rack, narrow, spines in (
        (2500, (9, 3, 6), 220, 3, 8.0, 1), (804, (12, 4, 3, 8), 400, 3, 4.0, 1), (672, (6, 8, 6), 400, 4, 4.0, 2),
        (508, (8, 4), 300, 3, 4.0, 1), (479, (3, 4, 6, 4), 200, 2, 4.0, 1), (3178, (4, 4, 3, 3), 250, 3, 4.0, 2),
        (2102, (3, 12, 6), 250, 2, 8.0, 2), (2063, (4, 12, 6, 6), 400, 2, 2.0, 2), (799, (4, 6, 8, 12), 150, 3, 8.0, 1),
        (1024, (8,) * 8, 245, 4, 1.0, 1),
    )
)  # fmt: skip


#: Jobs that share nodes: their workers and servers are next to those of others.
CROWDS = tuple(
    Point(a, workers, window, per_rack=rack, levels=levels, oversubscription=narrow, crowd=nodes)
    for a, workers, window, rack, levels, narrow, nodes in (
        (700, (4,) * 2, 245, 0, 1, 1.0, 8), (700, (4,) * 4, 200, 0, 1, 1.0, 8), (2000, (4, 6, 3), 200, 0, 1, 1.0, 9),
        (20000, (4,) * 6, 245, 0, 1, 1.0, 12), (20000, (8,) * 3, 200, 0, 1, 1.0, 16),
        (8000, (5,) * 8, 200, 4, 1, 4.0, 32), (20000, (5,) * 8, 200, 4, 2, 4.0, 32),
        (1500, (4,) * 4, 245, 4, 2, 2.0, 16), (20000, (4,) * 8, 245, 4, 2, 1.0, 16),
    )
) + tuple(Point(a, workers, 200, crowd=nodes, system="inalloc") for a, workers, nodes in (
    (2000, (4,) * 4, 8), (4000, (4, 6, 3), 9),
))  # fmt: skip


#: Jobs with nodes of their own, scattered over racks: some workers are in the rack of their server, others not.
SCATTERED = tuple(
    Point(
        a, workers, 200, per_rack=rack, levels=levels, oversubscription=narrow, spines=2, system=system,
        scattered=4 * rack,
    )
    for a, workers, rack, levels, narrow, system in (
        (1600, (3, 3), 6, 2, 1.0, "atp"), (2100, (3, 6), 8, 2, 1.0, "atp"), (17000, (4, 6, 3), 4, 1, 1.0, "atp"),
        (1600, (8, 3, 6), 6, 1, 4.0, "esa+atp"), (5800, (3, 4, 4, 6), 8, 2, 4.0, "esa"),
        (4100, (6, 3), 6, 2, 2.0, "atp"), (9000, (6, 8, 4), 8, 2, 2.0, "inalloc+atp"),
        (4000, (3, 8), 4, 2, 4.0, "inalloc"), (12000, (8, 6, 6), 6, 1, 2.0, "atp"),
        (800, (4, 8, 3), 6, 2, 8.0, "atp"), (20000, (5, 5, 5, 5), 8, 2, 4.0, "atp"),
        (3000, (4, 4, 8), 5, 1, 1.0, "esa+inalloc"),
    )
)  # fmt: skip
#: Jobs one worker of which has a slower link than the others.
SLOW = tuple(
    Point(a, workers, window, system=system, slow=slow)
    for a, workers, window, system, slow in (
        (2378, (4, 8), 200, "atp", 0.5), (10682, (3, 3), 200, "atp", 0.35), (2348, (4, 8), 200, "atp", 0.35),
        (673, (6, 4), 200, "esa", 0.35), (20000, (8, 8, 8), 245, "atp", 0.8), (1024, (8,) * 4, 245, "atp", 0.2),
        (4000, (8, 8, 4), 200, "inalloc", 0.2), (4000, (4, 4, 8), 200, "switchml", 0.1),
        (6000, (8, 4, 6), 200, "atp+switchml", 0.5),
    )
)  # fmt: skip


def drawn(seed: int, count: int = 24) -> tuple[Point, ...]:
    """So many points at random: jobs of several widths, in racks or on one switch; narrow links; all systems."""
    rng, found = random.Random(seed), []
    for _ in range(count):
        kind = rng.choice(("mix", "mix", "racks", "racks", "equal", "own"))
        window, delay = rng.choice((100, 150, 200, 250, 300, 400)), rng.choice((0.5, 1.0, 1.5, 2.0))
        memory = int(2 ** rng.uniform(8.5, 14.5))
        if kind == "mix":
            jobs = tuple(rng.choice((2, 3, 4, 6, 8, 12, 16, 24)) for _ in range(rng.randint(2, 7)))
            found.append(Point(memory, jobs, window, delay))
        else:
            narrow, levels, rack = rng.choice((1.0, 2.0, 4.0, 8.0)), rng.choice((1, 2)), rng.choice((2, 3, 4))
            spines, system = rng.choice((1, 2)), "atp"
            if kind == "racks":
                jobs = tuple(rng.choice((3, 4, 6, 8, 12)) for _ in range(rng.randint(2, 5)))
            elif kind == "equal":
                jobs = (rng.choice((4, 6, 8, 12)),) * rng.randint(1, 6)
            else:
                jobs = tuple(rng.choice((4, 6, 8, 12)) for _ in range(rng.randint(2, 4)))
                system, memory = rng.choice(("switchml", "inalloc")), max(memory, 4000)
            found.append(
                Point(
                    memory, jobs, window, per_rack=rack, levels=levels, system=system, oversubscription=narrow,
                    spines=spines,
                )
            )  # fmt: skip
    return tuple(found)


def _pace(job: JobFigures, until_s: float) -> float:
    """Iterations a second until a job has left; the first exchange, at once after the computation, is not counted."""
    ends_s = job.exchanges_s[:, 1]
    last = int(np.searchsorted(ends_s, until_s, "right")) - 1
    return last / float(ends_s[last] - ends_s[0])


#: Several systems at once on one switch and over racks, of one and two levels, each narrower.
SYSTEMS = tuple(
    Point(a, workers, 200, per_rack=rack, levels=levels, system=system, oversubscription=narrow)
    for a, workers, rack, levels, narrow, system in (
        (6000, (8, 4, 6, 8), 0, 1, 1.0, "switchml+atp"), (6000, (4, 8, 3, 12), 0, 1, 1.0, "inalloc+atp"),
        (9000, (4, 4, 8, 8, 6), 0, 1, 1.0, "switchml+inalloc+atp"), (3000, (6, 6, 6), 0, 1, 1.0, "inalloc+atp+atp"),
        (8000, (6, 8, 4, 6), 3, 2, 1.0, "switchml+atp"), (8000, (8, 8, 8), 4, 2, 2.0, "inalloc+atp"),
        (6000, (4, 6, 8), 2, 2, 4.0, "switchml+atp+atp"), (9000, (8, 4, 12), 4, 2, 8.0, "switchml+inalloc+atp"),
        (8000, (6, 6, 9, 3), 3, 1, 2.0, "inalloc+atp"), (8000, (8, 8, 4), 4, 1, 4.0, "switchml+atp"),
        (5000, (4, 8, 6), 2, 1, 8.0, "atp+inalloc"), (4000, (12, 4, 8), 4, 1, 1.0, "switchml+inalloc+atp"),
    )
)  # fmt: skip
#: Jobs that compute between exchanges, on one switch and over racks.
PHASES = (
    *(Point(a, workers, 200) for a, workers in ((4000, (4, 4)), (1000, (4, 4, 4, 4)), (20000, (2, 4, 8, 6)))),
    *(Point(20000, workers, 200, per_rack=rack, levels=levels, oversubscription=narrow, system=system)
      for workers, rack, levels, narrow, system in (
        ((6, 6, 6), 3, 1, 1.0, "atp"), ((8, 4, 6), 2, 1, 2.0, "atp"), ((4, 8, 8), 4, 2, 4.0, "atp"),
        ((4, 6, 8), 2, 2, 8.0, "atp"), ((8, 8, 8), 4, 2, 4.0, "switchml"), ((6, 6, 9), 3, 1, 2.0, "inalloc+atp"),
    )),
)  # fmt: skip
#: Windows that follow marks: rates are those of packets.
AIMD = tuple(
    Point(a, workers, window, delay, per_rack=rack, levels=levels, oversubscription=narrow, cc="aimd")
    for a, workers, window, delay, rack, levels, narrow in (
        (500, (6,) * 6, 400, 2.0, 0, 1, 1.0),
        (1024, (8,) * 8, 245, 1.0, 0, 1, 1.0),
        (4096, (8,) * 8, 245, 1.0, 0, 1, 1.0),
        (3000, (2, 8, 16), 300, 1.0, 0, 1, 1.0),
        (20000, (4, 4, 8), 250, 1.0, 0, 1, 1.0),
        (4000, (8,) * 3, 200, 1.0, 4, 1, 2.0),
        (4000, (8,) * 3, 200, 1.0, 4, 2, 4.0),
        (1500, (4, 6, 12), 250, 1.0, 2, 1, 8.0),
        (8000, (6, 6), 300, 1.0, 3, 2, 1.0),
    )
)
#: Twelve points of equal jobs, four of racks with one level and five with two, four with congestion control and two
#: mixes: the kinds of points at which an earlier law was up to 61 % off.
KINDS = (
    *(Point(a, workers, window, delay) for a in (400, 1000, 3000, 10000) for workers, window, delay in (
        ((6,) * 6, 400, 2.0), ((12,) * 3, 150, 1.0), ((4,) * 10, 300, 0.5),
    )),
    *(Point(a, (8,) * jobs, 200, per_rack=4, levels=levels) for a, jobs, levels in (
        (700, 3, 1), (2000, 5, 1), (6000, 2, 1), (20000, 6, 1),
        (700, 2, 2), (2000, 3, 2), (4000, 1, 2), (6000, 5, 2), (20000, 4, 2),
    )),
    *AIMD[:4], Point(2000, (2, 8, 32), 200), Point(6000, (3, 5, 9, 20), 300, 1.5),
)  # fmt: skip
MIXES = drawn(101) + drawn(202)
#: Simulated for the first time when the law and the limit of stalls stood.
FRESH = drawn(707) + drawn(808)


def compared(points: Iterable[Point], seeds: Sequence[int] = (1, 2), law: str = "hash") -> Iterator[Compared]:
    """Each point by packets, mean of these seeds, and by fluid."""
    for point in points:
        scenario = point.scenario()
        given = exchanges(scenario, law)
        parts = [prepared(scenario.graph, one) for one in given]
        adders = Adders.of(parts)
        fluid = steady_rates(scenario.graph, adders)
        measured = Measured(
            scenario.cluster, scenario.graph, *rates_of(f"packets:cc={point.cc}" if point.cc != "none" else "auto")
        )
        factors = measured.factors(given, parts, fluid.bits_per_s, fluid.stalled)
        assert factors is not None
        by_law = factors * fluid.bits_per_s
        window_s = float((adders.by_job[0] * adders.by_job[2] / by_law).max())
        for windows in (WINDOWS, 10 * WINDOWS):
            scenarios = [replace(scenario, seed=seed) for seed in seeds]
            runs = [flow(one, WARM_UP * window_s, windows * window_s) for one in scenarios]
            goodput = np.mean([one.bits_per_s for one in runs], axis=0)
            if (np.abs(by_law / goodput - 1) < LONGER).all():
                break
        shares = (
            float(np.mean([one.aggregated for one in runs])),
            float(fluid.share.mean()) if len(fluid.share) else 0.0,
        )
        yield Compared(point, tuple(goodput.tolist()), tuple(by_law.tolist()), shares)


#: Iterations of each job that packets are followed for where jobs compute between exchanges, and bytes of a gradient.
ITERATIONS, GRADIENT_BYTES = 24, 1 << 20


def phased(points: Iterable[Point], seeds: Sequence[int] = (1, 2)) -> Iterator[Compared]:
    """Iterations a second of jobs that compute between exchanges, by packets and by `iterations`; times 1e9.

    Computations take 0.6 to 1.9 times the exchange alone, no two the same, so phases drift: the `random` ones.
    """
    for point in points:
        scenario = point.scenario()
        given = exchanges(scenario)
        parts = [prepared(scenario.graph, one) for one in given]
        bits = np.full(len(parts), 8.0 * GRADIENT_BYTES)
        alone_s = bits / steady_rates(scenario.graph, Adders.of(parts), apart=True).bits_per_s
        compute_s = alone_s * (0.6 + 1.3 * (0.618034 * np.arange(len(parts)) % 1))
        measured = Measured(scenario.cluster, scenario.graph)

        def corrected(
            rows: Sequence[int], law: SteadyRates, measured: Measured = measured, given: list[Exchange] = given,
            parts: list[Prepared] = parts,
        ) -> FloatArray:  # fmt: skip
            these = list(rows)
            some = [given[i] for i in rows], [parts[i] for i in rows]
            factors = measured.factors(*some, law.bits_per_s[these], law.stalled[these])
            assert factors is not None
            return factors

        law = iterations(scenario.graph, parts, bits, compute_s, corrected=corrected)
        jobs = tuple(
            replace(job, tensors=(GRADIENT_BYTES,), iterations=ITERATIONS, compute_s=float(pause_s))
            for job, pause_s in zip(scenario.jobs, compute_s, strict=True)
        )
        runs = [simulate(replace(scenario, jobs=jobs, seed=seed, until_s=100.0)) for seed in seeds]
        each = [[_pace(job, min(one.finish_s for one in run.jobs)) for job in run.jobs] for run in runs]
        shares = float(np.mean([job.aggregated_share for job in runs[0].jobs])), float(law.aggregated.mean())
        yield Compared(
            point, tuple((1e9 * np.mean(each, axis=0)).tolist()), tuple((1e9 / law.iteration_s).tolist()), shares
        )
