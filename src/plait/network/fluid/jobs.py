"""From placed jobs to the channels that they use, and their rates. Start at `rates`.

The rate of a job is that at which one gradient is exchanged: bits a second of gradient at each worker. One worker a
node: GPUs of a node add up their gradients first. Streams are split equally over shortest paths.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from plait.core.arrays import FloatArray, IntArray
from plait.core.errors import InputError
from plait.network.fluid.max_min import Uses, max_min
from plait.network.topology.paths import Graph, Shares


@dataclass(frozen=True)
class PlacedJob:
    """A job by the numbers of its nodes: a worker on each, and a parameter server, or None for a ring all-reduce."""

    workers: tuple[int, ...]
    server: int | None = None

    def __post_init__(self) -> None:
        if not self.workers or len(set(self.workers)) < len(self.workers):
            raise InputError(f"workers on nodes {self.workers}: needs one or more, each on a node of its own")


def channels(graph: Graph, job: PlacedJob) -> Shares:
    """What channels carry when the job exchanges gradients at rate 1, without aggregation in switches.

    Of each bundle of channels (`Graph.bundle`) only the first is listed; the others carry the same.
    With a parameter server every worker sends its gradient there and receives the result. In a ring of W workers each
    sends 2 (W - 1) / W gradients to the next.
    """
    out: Shares = {}
    if job.server is not None:
        streams = [(worker, job.server) for worker in job.workers] + [(job.server, worker) for worker in job.workers]
        volume = 1.0
    else:
        streams = list(zip(job.workers, (*job.workers[1:], job.workers[0]), strict=True))
        volume = 2.0 * (len(job.workers) - 1) / len(job.workers)
    for source, target in streams:
        if source != target:
            for channel, share in graph.bundled_shares(source, target).items():
                out[channel] = out.get(channel, 0.0) + volume * share
    return out


@dataclass(frozen=True)
class Rates:
    """Rates of jobs in bits a second, and the bottleneck of each (the first of its bundle), or -1 for none.

    `load`: the share of each channel that is in use, shape (channels,).
    """

    bits_per_s: FloatArray
    channel: IntArray
    load: FloatArray


def rates(graph: Graph, jobs: Sequence[PlacedJob]) -> Rates:
    """The max-min fair rates of jobs that exchange gradients all the time, without aggregation in switches."""
    uses = Uses.of([channels(graph, job) for job in jobs])
    capacity = graph.channel_bits_per_s
    rate, bottleneck = max_min(capacity, uses)
    load = uses.load(np.where(np.isfinite(rate), rate, 0.0), len(capacity)) / capacity
    return Rates(rate, bottleneck, load[graph.bundle])
