"""Figures of a simulation, with a fixed meaning each. Start at `results`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from plait.core.arrays import FloatArray, IntArray
from plait.core.errors import SimulationError
from plait.network.packets.scenario import Scenario
from plait.network.packets.state import EVENTS, LOGGED, WIDTH, Net


@dataclass(frozen=True)
class JobFigures:
    """Figures of one job.

    goodput_bits_per_s  payload of one worker over the time of its exchanges
    start_s, finish_s   first packet of the first worker that has its gradients; last result of the last worker
    exchanges_s         start and finish of each iteration, shape (iterations, 2)
    fallback_share      packets that found no aggregator, of all packets of workers
    aggregated_share    sums that were completed in a switch, of all sums, mean over the switches that add up
    resend_share        packets that were sent again, of all packets of workers
    bypass_share        packets that wanted no aggregator, of all packets of workers
    evicted             contents that packets of higher priority displaced; `aged`: that were too old
    occupancy           time mean of aggregators held, of one of its switches
    holding_s           mean time that an aggregator is held; NaN for dedicated slots and without aggregators
    server_packets      packets that reached its server, for each sum; NaN without a server
    timeouts, gave_up   of its workers; the latter: too often in a row without a result
    met_deadline        whether it finished in time; None without deadline
    """

    protocol: str
    workers: int
    goodput_bits_per_s: float
    start_s: float
    finish_s: float
    exchanges_s: FloatArray
    fallback_share: float
    aggregated_share: float
    resend_share: float
    bypass_share: float
    evicted: int
    aged: int
    occupancy: float
    holding_s: float
    server_packets: float
    timeouts: int
    gave_up: int
    slot_changes: int
    packets: int
    met_deadline: bool | None


@dataclass(frozen=True)
class PacketResults:
    """All figures of a simulation.

    events         that were simulated
    aggregators    of all switches that jobs may use
    bin_s          width of a bin of what is measured over time
    held           jobs x bins: time mean of aggregators held, all switches
    gbps           jobs x bins: payload that one worker receives, Gb/s
    lost, marked   packets lost on links, and marked as congested
    dropped        packets that found the queue of a switch full, and those of background traffic above their room
    paused_s       time for which full queues paused links, summed over links
    log            of the first packets: time (ps), node, type, job, seq (from 0), bitmap, index, flags, priority
    """

    jobs: tuple[JobFigures, ...]
    events: int
    aggregators: int
    bin_s: float
    held: FloatArray
    gbps: FloatArray
    lost: int
    marked: int
    dropped: int
    paused_s: float
    state_bytes: int
    log: IntArray

    @cached_property
    def makespan_s(self) -> float:
        """From the first start to the last finish."""
        return max(job.finish_s for job in self.jobs) - min(job.start_s for job in self.jobs)

    @property
    def goodput_bits_per_s(self) -> float:
        """Mean over jobs."""
        return float(np.mean([job.goodput_bits_per_s for job in self.jobs]))

    @property
    def fallback_share(self) -> float:
        """Of all packets of all workers."""
        packets = sum(job.packets for job in self.jobs)
        return sum(job.fallback_share * job.packets for job in self.jobs) / packets

    @property
    def worker_packets(self) -> int:
        return sum(job.packets for job in self.jobs)

    @property
    def occupancy(self) -> float:
        """Time mean of aggregators that are held, of all, from first start to last finish; 0 without aggregators."""
        held = float(self.held.sum()) * self.bin_s
        return held / self.makespan_s / self.aggregators if self.aggregators else 0.0


def results(scenario: Scenario, net: Net) -> PacketResults:
    """The figures of a simulation that has ended; raises `SimulationError` if a server gave up a sum."""
    broken = int(net.server.jobs["broken"].sum())
    if broken:
        raise SimulationError(f"{broken} sums were given up by servers before they were complete")
    width = int(net.links.info[WIDTH])
    # Of an all-reduce between workers more packets come to a worker than its tensors have, or fewer.
    came = [max(1, int(net.ends.delivered[j].sum())) / job.workers for j, job in enumerate(scenario.jobs)]
    bits = np.array(
        [
            job.bits * job.iterations / came[j] / job.workers
            if job.collective
            else 8 * job.options.payload_bytes / job.workers
            for j, job in enumerate(scenario.jobs)
        ]
    )
    return PacketResults(
        tuple(_job(scenario, net, j) for j in range(len(scenario.jobs))),
        int(net.links.info[EVENTS]),
        len(net.fabric.table),
        width / 1e12,
        net.fabric.held / width,
        net.ends.delivered * bits[:, None] / (width / 1e12) / 1e9,
        int(net.links.channels["lost"].sum()),
        int(net.links.channels["marked"].sum()),
        int(net.links.channels["dropped"].sum()),
        float(net.links.channels["stopped"].sum()) / 1e12,
        state_bytes(net),
        _log(net),
    )


def _log(net: Net) -> IntArray:
    """The log, in which numbers of packets count from the first one of their job."""
    log = net.log[: int(net.links.info[LOGGED])].copy()
    log[:, 4] -= net.ends.tensors[log[:, 3], 0, 0]
    return log


def state_bytes(net: Net) -> int:
    """Bytes of all arrays of a simulation."""
    parts = (*net.links, *net.fabric, *net.ends[:-1], *net.ends.workers, *net.server, *net.peers, net.log)
    return sum(one.nbytes for one in parts)


def _job(scenario: Scenario, net: Net, j: int) -> JobFigures:
    job = scenario.jobs[j]
    times = net.ends.times[j, : job.iterations] / 1e12
    mine = net.ends.workers.state[net.ends.workers.state["job"] == j]
    switches = net.fabric.jobs_at[:, j]
    adding = switches["n_workers"] > 0
    routes = net.fabric.routes[adding, j]
    sums = int(net.ends.tensors[j, len(job.tensors) * job.iterations - 1, 1] - net.ends.tensors[j, 0, 0])
    packets = int(mine["sent"].sum() + mine["resent"].sum())
    span = times[:, 1].max() - times[0, 0]
    held = float(net.fabric.held[j].sum()) / 1e12
    claims = int(routes["claims"].sum())
    finish = float(times[:, 1].max())
    return JobFigures(
        protocol=job.system,
        workers=job.workers,
        goodput_bits_per_s=job.bits * job.iterations / float((times[:, 1] - times[:, 0]).sum()),
        start_s=float(times[0, 0]),
        finish_s=finish,
        exchanges_s=times,
        fallback_share=int(switches["collided"].sum()) / packets if adding.any() else float(job.served),
        aggregated_share=float(switches["aggregated"][adding].mean()) / sums if adding.any() else 0.0,
        resend_share=int(mine["resent"].sum()) / packets,
        bypass_share=int(mine["bypassed"].sum()) / packets,
        evicted=int(switches["evicted"].sum()),
        aged=int(switches["aged"].sum()),
        occupancy=held / span / max(1, int(adding.sum())),
        holding_s=held / claims if claims and not job.dedicated else float("nan"),
        server_packets=int(net.links.jobs[j]["arrived"]) / sums if job.served else float("nan"),
        timeouts=int(mine["all_timeouts"].sum()),
        gave_up=int(net.ends.hosts["gave_up"][net.ends.workers.state["job"] == j].sum()),
        slot_changes=int(mine["slot_changes"].sum()),
        packets=packets,
        met_deadline=None if job.deadline_s is None else finish <= job.deadline_s,
    )
