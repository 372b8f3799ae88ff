"""Steady rates of jobs, some of whose gradients are added up in leaf switches, by how they share memory there.

Our design; start at `steady_rates`. Every leaf adds up the packets of the workers of a job below it; a packet whose
aggregator is taken goes to the parameter server by itself, which adds up the rest. Of a rack with n workers in which
the share f of sequence numbers is aggregated, f + n (1 - f) packets reach the server for each sequence number. The
result returns once to each rack and from its leaf to the workers. Laws of f, with rho the aggregators that jobs would
hold (rate * holding time) over those there are:

    hash    1 / (1 + rho): an aggregator is taken with the probability that it is occupied
    cycle   the same without the job's own part of rho: no two packets of a job share an aggregator. Not validated
    hard    min(1, 1 / rho): jobs collide only when the memory is full
            With priorities (ESA) a packet finds taken only what jobs of at least its priority hold; what an eviction
            adds to the load of a server is left out. Not validated
    region  1: aggregators of the job's own, of which half is its window; in one rack the leaf answers, not a server

Sums that are complete nowhere until workers send again stall windows (`_stalls`); what is sent again is not counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from plait.core.arrays import FloatArray, IntArray
from plait.core.errors import InputError, SimulationError, suggest
from plait.network.fluid.exchanges import CYCLE, HARD, JITTER_S, REGION, SERVER_S, Exchange, Racks, prepared
from plait.network.fluid.jobs import PlacedJob
from plait.network.fluid.max_min import Uses, max_min
from plait.network.topology.paths import Graph

#: The laws of memory that all jobs share.
SHARED_LAWS = ("hash", "cycle", "hard")
#: A fixed point is found when no share of aggregated sequence numbers would change by more.
NEAR, MOST_STEPS = 1e-6, 2000
#: A hair above one, so that a channel which alone limits a job is reached before this limit, and named.
NO_FASTER = 1 + 1e-9


@dataclass(frozen=True)
class Windows:
    """How jobs send: at most `packets` of a worker are under way.

    `rtt_s`: time from a packet's start to its result without queues; `off_s`: the part of it before the first packet is
    at the leaf and after the result has left it. Both follow from the topology where they are None; `server_s` is then
    the time that a packet spends in the parameter server. `jitter_s`: see `Exchange`.
    """

    packets: int
    rtt_s: float | None = None
    off_s: float | None = None
    server_s: float = SERVER_S
    jitter_s: float = JITTER_S

    def __post_init__(self) -> None:
        """Raise `InputError` for a window without packets."""
        if self.packets < 1:
            raise InputError(f"a window of {self.packets} packets; needs at least 1")


@dataclass(frozen=True)
class SteadyRates:
    """What `steady_rates` finds.

    `bits_per_s`: payload of each job at each worker while it exchanges; `channel`: its bottleneck, the first of its
    bundle, or -1 for its window or its path alone; `aggregated`: mean over its workers of the share of sequence numbers
    that their leaf adds up in full; `server_packets`: packets to its server for each sequence number (0 where no switch
    aggregates); `steps` of the iteration; `share`: of each rack, a start for the next solution.
    """

    bits_per_s: FloatArray
    channel: IntArray
    aggregated: FloatArray
    server_packets: FloatArray
    steps: int
    share: FloatArray


def aggregated_rates(graph: Graph, jobs: Sequence[PlacedJob], windows: Windows, law: str) -> SteadyRates:
    """The steady rates of jobs that exchange gradients all the time, all by one law of shared memory.

    Raises `InputError` for an unknown law, a job without a parameter server, or a node with several switches.
    """
    if law not in SHARED_LAWS:
        raise InputError(f"memory law {law!r} is unknown; {suggest(law, SHARED_LAWS)}")
    parts = [
        prepared(graph, Exchange(job, law, 0, windows.packets, windows.server_s, jitter_s=windows.jitter_s))
        for job in jobs
    ]
    return steady_rates(graph, Racks.of(parts), rtt_s=windows.rtt_s, off_s=windows.off_s)


def steady_rates(
    graph: Graph,
    racks: Racks,
    busy: FloatArray | None = None,
    *,
    apart: bool = False,
    start: FloatArray | None = None,
    near: float = NEAR,
    rtt_s: float | None = None,
    off_s: float | None = None,
) -> SteadyRates:
    """The max-min fair rates of exchanges (`Racks.of` those prepared), of which each goes on for part of the time.

    `busy`, shape (jobs,), is that part, over 0 and at most 1 (default: all the time): a job takes as much of channels
    and memory on average, as if jobs exchanged one after the other wherever there is time; none is faster than alone.
    `apart`: the rates of all jobs without the others. `start`: `share` of a similar solution. `near`: a solution is
    found when no share would change by more. `rtt_s` and `off_s` replace those of the topology. Raises
    `SimulationError` if no steady state is found.
    """
    count, capacity = len(racks.parts), graph.channel_bits_per_s
    busy = np.ones(count) if busy is None else busy
    payload, rtt, off, window = racks.by_job
    rtt = rtt if rtt_s is None else np.full(count, rtt_s)
    off = off if off_s is None else np.full(count, off_s)
    by_window = np.where(window > 0, window * payload / np.maximum(rtt, 1e-12), np.inf)
    share = (racks.law == REGION).astype(np.float64) if start is None else start
    nowhere = np.full(count, -1, dtype=np.int64)
    damping, before = 0.5, np.inf
    steps = 0
    while True:
        steps += 1
        uses = racks.uses_at(share)
        limit = busy * np.minimum(by_window, NO_FASTER * _alone(capacity, uses))
        rate, channel = (limit, nowhere) if apart else max_min(capacity, uses, busy, limit)
        packets = rate / busy / payload
        holding = np.where(window > 0, np.maximum(rtt, window / packets), rtt) - off
        wanted = _share(racks, packets * holding, np.zeros(count) if apart else busy)
        change = float(np.abs(wanted - share).max(initial=0.0))
        if change <= near:
            break
        if steps == MOST_STEPS:
            raise SimulationError(f"shares of aggregated packets still change by {change:g} after {steps} steps")
        if change > before:  # it swings: smaller steps
            damping *= 0.7
        before = change
        share = share + damping * (wanted - share)
    workers = np.bincount(racks.job, racks.workers, minlength=count)
    with np.errstate(invalid="ignore"):
        mean = np.bincount(racks.job, racks.workers * share, minlength=count) / workers
    arrive = np.bincount(racks.job, share + racks.workers * (1 - share), minlength=count)
    # Where a link limits, other packets of the window use it during a stall; the square was found by packet simulation.
    found = rate / busy
    by_stalls = window * _stalls(racks, share, holding) * np.minimum(found / by_window, 1.0) ** 2
    found = found / (1 + by_stalls)
    return SteadyRates(found, channel, np.nan_to_num(mean), np.asarray(arrive, dtype=np.float64), steps, share)


def _met(racks: Racks, held: FloatArray) -> FloatArray:
    """Aggregators of its switch that each rack finds taken: by all jobs, or by those of at least its priority."""
    if not len(held):
        return held
    if racks.ranks is None:
        return np.asarray(np.bincount(racks.leaf, held)[racks.leaf], dtype=np.float64)
    rank, first, count = racks.ranks
    by_rank = np.bincount(rank, held, minlength=int(count[0]))
    so_far = np.cumsum(by_rank)
    found: FloatArray = (so_far - (so_far - by_rank)[first])[rank]
    return found


def _stalls(racks: Racks, share: FloatArray, holding_s: FloatArray) -> FloatArray:
    """The part of the sums of each job that is complete nowhere until its workers send again.

    The first packet of a sum found its aggregator taken; before the last one came it was free, and was claimed for a
    sum that can never be complete. It becomes free between those packets with the probability of the time between them
    over the holding time; half of that, as packets arrive all along. Such a sum stalls a window for a round trip.
    """
    if not len(racks.job):
        return np.zeros(len(racks.parts))
    claimed = 0.5 * (racks.memory > 0) * (1 - share) * racks.spread_s / np.maximum(holding_s[racks.job], 1e-12)
    return np.bincount(racks.job, claimed, minlength=len(racks.parts)).astype(np.float64)


def _alone(capacity: FloatArray, uses: Uses) -> FloatArray:
    """The rate of each job without the others: what the tightest of its channels gives."""
    return np.minimum.reduceat(capacity[uses.resource] / uses.amount, uses.first[:-1])


def _share(racks: Racks, held: FloatArray, busy: FloatArray) -> FloatArray:
    """The share of sequence numbers aggregated in each rack; 0 without memory.

    Jobs hold so many aggregators while they exchange, and others meet them for the part `busy` of the time. The packets
    of a lone worker need no aggregator: there is nothing to add.
    """
    alone, own_region = racks.workers == 1, racks.law == REGION
    own = np.where(alone | own_region, 0.0, held[racks.job])
    met = own * busy[racks.job]
    others = _met(racks, met) - met
    has = racks.memory > 0
    rho = np.where(racks.law == CYCLE, others, others + own) / np.where(has, racks.memory, 1.0)
    found = np.where(racks.law == HARD, 1 / np.maximum(rho, 1.0), 1 / (1 + rho))
    return np.where(own_region, 1.0, np.where(has, np.where(alone, 1.0, found), 0.0))
