"""Requests of jobs to the manager of switch memory. Start at `Asked` and `request_of`."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from plait.core.aggregation.grants import NetworkGrant
from plait.core.jobs import JobStatus
from plait.core.resources import Resource
from plait.network.fluid.exchanges import HEADER_BYTES, SERVER_S, STRAIGHT, Exchange
from plait.network.fluid.jobs import PlacedJob
from plait.network.gradients import gradient_bytes
from plait.network.memory.records import Lease, Region, Request, Target
from plait.network.protocol.addressing import Index
from plait.network.topology.paths import Graph


@dataclass(frozen=True)
class Asked:
    """A job of the plan that wants aggregation: where its workers and its server are, and who adds them up.

    `at`: for each worker a switch by its number in the graph, or `STRAIGHT`.
    """

    job: JobStatus
    placed: PlacedJob
    at: tuple[int, ...] = ()

    @property
    def number(self) -> int:
        """The number of the job."""
        return self.job.number

    def switches(self, graph: Graph) -> tuple[str, ...]:
        """Switches that see packets of two workers at least: others have nothing to add up.

        And the leaf of the server, if it adds up sums of other racks and there are some.
        """
        several = {v for v in self.at if v != STRAIGHT and self.at.count(v) > 1}
        assert self.placed.server is not None
        top = graph.leaf(self.placed.server)
        switch = graph.network.switches[top - len(graph.nodes)]
        if several - {top} and switch.levels == 2 and switch.usable and switch.id not in graph.network.down:
            several.add(top)
        return tuple(graph.names[v] for v in sorted(several))

    def workers_at(self, graph: Graph, switch: str) -> tuple[int, ...]:
        """The nodes whose packets this switch adds up."""
        placed = zip(self.placed.workers, self.at, strict=True)
        return tuple(sorted(node for node, v in placed if v != STRAIGHT and graph.names[v] == switch))

    def exchange(self, graph: Graph, alone: bool) -> Exchange:
        """Its exchange if all its switches grant it memory, `alone` or shared; a ring if there is none."""
        switches = self.switches(graph)
        if not switches:
            return Exchange(PlacedJob(self.placed.workers))
        at = tuple(v if self.at.count(v) > 1 else STRAIGHT for v in self.at)
        assert self.placed.server is not None
        levels = 2 if graph.names[graph.leaf(self.placed.server)] in switches else 1
        return Exchange(self.placed, "region" if alone else "hash", 2 if alone else 0, at=at, levels=levels)


def request_of(graph: Graph, one: Asked, switches: tuple[str, ...], seed: int) -> Request:
    """Request of a job to the manager: estimates, as policies have them."""
    job, spec, placed = one.job, one.job.spec, one.placed
    assert placed.server is not None
    out = graph.channel_bits_per_s[np.isin(graph.ends[:, 0], placed.workers)]
    link, iteration_s = float(out.min()), iteration_s_of(job)
    bits, exchange_s = exchange_of(job, link, len(placed.workers), seed)
    left = math.nan if spec.iterations is None else max(spec.iterations - job.iterations_done, 0.0)
    return Request(
        job=job.number, switches=switches, need=spec.ina.mode, memory=spec.ina.memory, window=spec.ina.window,
        ttl_s=spec.ina.ttl_s or math.inf, link_bits_per_s=link, rtt_s=_rtt_s(graph, placed),
        gradient_bytes=bits / 8, computation_s=iteration_s - exchange_s, communication_s=exchange_s,
        iterations_left=left, deadline_s=math.inf if spec.deadline_s is None else spec.submit_s + spec.deadline_s,
        remaining_s=left * iteration_s, attained_s=job.attained_gpu_s,
    )  # fmt: skip


def _rtt_s(graph: Graph, placed: PlacedJob) -> float:
    """From a packet to its result over the server, without queues."""
    assert placed.server is not None
    bits = 8.0 * (graph.network.switches[0].payload_bytes + HEADER_BYTES)
    there = max(graph.trip_s(worker, placed.server, bits) for worker in placed.workers)
    back = max(graph.trip_s(placed.server, worker, bits) for worker in placed.workers)
    return there + back + SERVER_S


def exchange_of(job: JobStatus, link_bits_per_s: float, workers: int, seed: int) -> tuple[float, float]:
    """Bits of one gradient, and seconds of its exchange in a ring of that many workers alone.

    The seconds are the network stage of the profile if there is one, and follow from the bits otherwise. An exchange
    takes no longer than the computation: bits that would take longer are cut, as in simulations.
    """
    bits, iteration_s = gradient_bits(job, seed), iteration_s_of(job)
    ring = 2.0 * max(workers - 1, 1) / max(workers, 2)
    stage_s = math.nan if job.profile is None else job.profile.stage_s[Resource.NETWORK]
    exchange_s = ring * bits / link_bits_per_s if math.isnan(stage_s) else stage_s
    exchange_s = max(min(exchange_s, iteration_s / 2), 1e-9)
    return exchange_s * link_bits_per_s / ring, exchange_s


def gradient_bits(job: JobStatus, seed: int) -> float:
    """Bits of one gradient, by its model where the job does not state them."""
    known = job.spec.gradient_bytes
    return 8.0 * (gradient_bytes(job.spec.model or job.spec.id, seed) if known is None else max(known, 4.0))


def iteration_s_of(job: JobStatus) -> float:
    """Seconds of an iteration alone, as far as they are known."""
    return job.profile.iteration_s if job.profile is not None else job.spec.iteration_s or 1.0


def lease_of(request: Request, before: tuple[NetworkGrant, ...]) -> Lease:
    """A lease with the regions that the job has now; none if it moved to other switches, where all begin at once."""
    had = {
        grant.switch: Region(grant.offset, grant.size, Index[grant.mode.upper()], grant.epoch, grant.exclusive)
        for grant in before if grant.size
    }  # fmt: skip
    same = set(request.switches) == had.keys()
    regions = tuple(had[switch] if same else None for switch in request.switches)
    return Lease(request, Target(None), regions, math.inf, max((grant.epoch for grant in before), default=0))
