"""How well the laws of switch memory (`network.fluid`) agree with packets, at points that are fixed here.

Goodput of jobs with shared memory, by `steady_rates` and by the packet simulator. `PUBLISHED` are the points of the
specification, `GRID` others, on which the law of stalls was found, and `HELD_OUT` points that were simulated for the
first time when the law stood. Start at `compared`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from statistics import median

from plait.network.fluid.exchanges import Exchange, Racks, prepared
from plait.network.fluid.jobs import PlacedJob
from plait.network.fluid.memory import steady_rates
from plait.network.packets.run import simulate
from plait.network.packets.scenario import MIB, PacketJob, Scenario, one_switch, racks
from plait.network.protocol.options import preset


@dataclass(frozen=True)
class Point:
    """Jobs with `workers` each that share `aggregators`, on one switch or, with `per_rack`, in racks.

    `window` packets are under way; `cc` controls congestion; `delay_us` is that of each link; `levels` of aggregation.
    """

    aggregators: int
    workers: tuple[int, ...] = (8,) * 8
    window: int = 245
    delay_us: float = 1.0
    cc: str = "none"
    per_rack: int = 0
    levels: int = 1
    size: int = 2 * MIB

    @property
    def name(self) -> str:
        """Its unusual settings."""
        several = f"{len(self.workers)} jobs of {'/'.join(str(w) for w in sorted(set(self.workers)))}"
        more = [f"window {self.window}"] if self.window != 245 else []
        more += [f"{self.delay_us:g} us"] if self.delay_us != 1 else []
        more += [self.cc] if self.cc != "none" else []
        more += [f"racks, {self.levels} level{'s' * (self.levels > 1)}"] if self.per_rack else []
        return ", ".join([f"{self.aggregators} aggregators", several, *more])

    def scenario(self, seed: int = 1) -> Scenario:
        """The packet simulation."""
        options = preset("atp", window=self.window, payload_bytes=248, cc=self.cc)
        jobs = [PacketJob(options, workers, (self.size,)) for workers in self.workers]
        if self.per_rack:
            return racks(jobs, self.aggregators, self.per_rack, levels=self.levels, seed=seed)
        return one_switch(jobs, self.aggregators, delay_us=self.delay_us, seed=seed)


@dataclass(frozen=True)
class Compared:
    """Mean goodput of a point, bits a second, and the share of sums that switches complete, by both."""

    point: Point
    packets: float
    fluid: float
    shares: tuple[float, float]
    error: float

    @property
    def share_error(self) -> float:
        """Fluid minus packets."""
        return self.shares[1] - self.shares[0]


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
    lambda a: Point(a, cc="aimd"),
    lambda a: Point(a, (2, 2, 4, 4, 8, 8, 16, 16)),
    lambda a: Point(a, per_rack=4, levels=2),
    lambda a: Point(a, per_rack=4),
)
GRID = tuple(change(a) for a in (1024, 4096, 16384) for change in _CHANGES)
HELD_OUT = (
    *(Point(a, (w,) * jobs, window, delay, size=3 * MIB) for a, jobs, w, window, delay in (
        (700, 3, 3, 90, 1.0), (3000, 6, 12, 180, 1.0), (12000, 12, 3, 300, 1.5), (700, 6, 5, 300, 0.3),
        (6000, 5, 6, 120, 2.0), (1500, 10, 4, 50, 1.0), (20000, 7, 10, 400, 1.0), (2500, 2, 2, 500, 2.0),
        (500, 12, 3, 200, 1.0), (9000, 3, 16, 245, 1.0),
    )),
    *(Point(a, (3, 5, 6, 12), 180, size=3 * MIB) for a in (900, 5000, 20000)),
    *(Point(a, (6,) * 5, 180, per_rack=3, levels=2, size=3 * MIB) for a in (900, 5000, 20000)),
)  # fmt: skip

#: The links of servers limit most of these, and one packet for each sum goes over them instead of one a rack.
TWO_LEVELS = tuple(
    Point(a, (8,) * jobs, per_rack=rack, levels=2, size=2 * MIB)
    for a, jobs, rack in ((20000, 1, 2), (20000, 3, 2), (3000, 3, 2), (1000, 3, 2), (8000, 2, 4))
)


def compared(points: Iterable[Point], seed: int = 1, law: str = "hash") -> Iterator[Compared]:
    """Each point by packets and by fluid; the error is the median over its jobs, relative to packets."""
    for point in points:
        scenario = point.scenario(seed)
        found = simulate(scenario).jobs
        exchanges = [
            Exchange(PlacedJob(workers, server), law, window=point.window) for workers, server in scenario.placement
        ]
        fluid = steady_rates(scenario.graph, Racks.of([prepared(scenario.graph, one) for one in exchanges]))
        goodput, rates = [job.goodput_bits_per_s for job in found], fluid.bits_per_s.tolist()
        errors = [abs(rate / packets - 1) for rate, packets in zip(rates, goodput, strict=True)]
        shares = sum(job.aggregated_share for job in found) / len(found), float(fluid.aggregated.mean())
        yield Compared(point, sum(goodput) / len(goodput), sum(rates) / len(rates), shares, median(errors))
