"""Requests of jobs to the manager of switch memory. Start at `Asked` and `request_of`."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from plait.core.aggregation.grants import NetworkGrant
from plait.core.errors import InputError
from plait.core.jobs import JobStatus
from plait.core.resources import Resource
from plait.network.fluid.exchanges import Exchange, prepared
from plait.network.fluid.jobs import PlacedJob
from plait.network.gradients import MOST_EXCHANGE, gradient_bytes
from plait.network.memory.records import Lease, Region, Request, Target
from plait.network.protocol.addressing import Index
from plait.network.topology.paths import Graph
from plait.network.topology.trees import STRAIGHT, Tree, tree


@dataclass(frozen=True)
class Asked:
    """A job of the plan that wants aggregation: where its workers and its server are, and who adds them up.

    `adds`: the tree (`topology.trees.TREES`); `answers`: a switch of it does so in the place of a server. `at`: of a
    route that was chosen, for each worker a switch by its number in the graph, or `STRAIGHT`.
    """

    job: JobStatus
    placed: PlacedJob
    adds: str
    answers: bool = False
    at: tuple[int, ...] = ()

    @property
    def number(self) -> int:
        """The number of the job."""
        return self.job.number

    def pick(self, graph: Graph) -> int:
        """Which of several equal ways its packets take."""
        return self.number % graph.most_ways

    @property
    def named(self) -> tuple[int, ...]:
        """The switches of a chosen route that see packets of two workers at least: others have nothing to add up."""
        return tuple(v if self.at.count(v) > 1 else STRAIGHT for v in self.at)

    def tree(self, graph: Graph) -> Tree:
        """Who adds up; raises `InputError` where a switch has to answer and none can."""
        adds: str | tuple[int, ...] = self.adds
        named = self.named
        if self.answers and named:  # one switch for all answers itself; otherwise switches in a hierarchy do
            if set(self.at) == {STRAIGHT}:
                raise InputError("its route has no switch that adds up")
            adds, named = (self.at[:1] if len(set(self.at)) == 1 else adds), ()
        return tree(
            graph, self.placed.workers, self.placed.server, adds, answers=self.answers, at=named,
            pick=self.pick(graph), down=graph.network.down,
        )  # fmt: skip

    def workers_at(self, graph: Graph, switch: str) -> tuple[int, ...]:
        """The nodes whose packets a chosen switch adds up first; none where a switch answers."""
        placed = zip(self.placed.workers, () if self.answers else self.named, strict=False)
        return tuple(sorted(node for node, v in placed if v != STRAIGHT and graph.names[v] == switch))

    def exchange(self, graph: Graph, alone: bool) -> Exchange:
        """Its exchange if all its switches grant it memory, `alone` or shared; a ring if there is none."""
        try:
            adders = self.tree(graph).adders
        except InputError:
            adders = ()
        if not adders:
            return Exchange(PlacedJob(self.placed.workers))
        law = "dedicated" if self.answers else "region" if alone else "hash"
        return Exchange(
            self.placed, law, 2 if alone else 0, at=() if self.answers else self.named, adds=tuple(sorted(adders)),
            pick=self.pick(graph),
        )  # fmt: skip


def request_of(graph: Graph, one: Asked, switches: tuple[str, ...], seed: int) -> Request:
    """Request of a job to the manager: estimates, as policies have them."""
    job, spec, placed = one.job, one.job.spec, one.placed
    out = graph.channel_bits_per_s[np.isin(graph.ends[:, 0], placed.workers)]
    link, iteration_s = float(out.min()), iteration_s_of(job)
    bits, exchange_s = exchange_of(job, link, len(placed.workers), seed)
    left = math.nan if spec.iterations is None else max(spec.iterations - job.iterations_done, 0.0)
    return Request(
        job=job.number, switches=switches, need=spec.ina.mode, memory=spec.ina.memory, window=spec.ina.window,
        ttl_s=spec.ina.ttl_s or math.inf, link_bits_per_s=link,
        # Over a server where there is one, and no switch on the way answers sooner: the more of a window there is.
        rtt_s=prepared(graph, replace(one, answers=placed.server is None).exchange(graph, alone=True)).rtt_s,
        gradient_bytes=bits / 8, computation_s=iteration_s - exchange_s, communication_s=exchange_s,
        iterations_left=left, deadline_s=math.inf if spec.deadline_s is None else spec.submit_s + spec.deadline_s,
        remaining_s=left * iteration_s, attained_s=job.attained_gpu_s,
    )  # fmt: skip


def exchange_of(job: JobStatus, link_bits_per_s: float, workers: int, seed: int) -> tuple[float, float]:
    """Bits of one gradient, and seconds of its exchange in a ring of that many workers alone.

    The seconds are the network stage of the profile if there is one, and follow from the bits otherwise, which are then
    cut as in simulations (`MOST_EXCHANGE`).
    """
    bits, iteration_s = gradient_bits(job, seed), iteration_s_of(job)
    ring = 2.0 * max(workers - 1, 1) / max(workers, 2)
    stage_s = math.nan if job.profile is None else job.profile.stage_s[Resource.NETWORK]
    follows_s = min(ring * bits / link_bits_per_s, MOST_EXCHANGE * iteration_s)
    exchange_s = max(follows_s if math.isnan(stage_s) else min(stage_s, iteration_s), 1e-9)
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
