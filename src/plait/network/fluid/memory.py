"""Steady rates of jobs, some of whose gradients are added up in switches, by how they share memory there.

Our design; start at `steady_rates`. A switch that n packets of a sequence number reach, and that adds up the share f of
sequence numbers in full, sends on f + n (1 - f) packets; those whose aggregator is taken go on by themselves, to the
next switch that adds up (`topology.trees`) or to the parameter server, which adds up the rest. The result returns once
over each link. Laws of f, with rho the aggregators that jobs would hold (rate * holding time) over those there are:

    hash    1 / (1 + rho): an aggregator is taken with the probability that it is occupied
    cycle   the same without the job's own part of rho: no two packets of a job share an aggregator. Not validated
    hard    min(1, 1 / rho): jobs collide only when the memory is full
            With priorities (ESA) a packet finds taken only what jobs of at least its priority hold; what an eviction
            adds to the load of a server is left out. Not validated
    region  1: aggregators of the job's own, of which half is its window
    dedicated  the same, and a switch answers, not a server

Sums that are complete nowhere until workers send again stall windows (`_stalls`), so fewer packets are under way
(`_under_way`); what is sent again is not counted. Where a job has its workers unevenly in racks, a window that comes at
once stalls more of its sums than one that comes bit by bit (`_Bursts`). Where more than half a sum of a window stalls,
the law does not hold, and packets are followed (`network.measured`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from plait.core.arrays import BoolArray, FloatArray, IntArray
from plait.core.errors import InputError, SimulationError, suggest
from plait.network.fluid.exchanges import CYCLE, HARD, HASH, JITTER_S, SERVER_S, Adders, Exchange, prepared
from plait.network.fluid.jobs import PlacedJob
from plait.network.fluid.max_min import Uses, max_min
from plait.network.topology.paths import Graph

#: The laws of memory that all jobs share.
SHARED_LAWS = ("hash", "cycle", "hard")
#: A fixed point is found when no share of aggregated sequence numbers would change by more.
NEAR, MOST_STEPS = 1e-6, 500
#: After so many steps this is near enough: where two channels are as full, queues change between them.
LOOSE = 1e-2
#: The least step towards what is wanted, where there are bursts: smaller ones would not arrive.
LEAST_STEP = 0.02
#: A solution is found when no burst would change by more, over its window.
NEAR_BURST = 1e-3
#: A channel counts as no fuller than this where bursts queue: beyond, its rate limits jobs, not bursts of others.
FULLEST = 0.8
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
        if self.packets < 1:
            raise InputError(f"a window of {self.packets} packets; needs at least 1")


@dataclass(frozen=True)
class SteadyRates:
    """What `steady_rates` finds.

    `bits_per_s`: payload of each job at each worker while it exchanges; `channel`: its bottleneck, the first of its
    bundle, or -1 for its window or its path alone; `aggregated`: mean over its workers of the share of sequence numbers
    that the first switch which adds up their packets completes; `server_packets`: packets to its end for each sequence
    number (0 where no switch aggregates); `stalled`: sums of a window that stall; `steps` of the iteration; `share`: of
    each adder, a start for the next solution.
    """

    bits_per_s: FloatArray
    channel: IntArray
    aggregated: FloatArray
    server_packets: FloatArray
    stalled: FloatArray
    steps: int
    share: FloatArray


def aggregated_rates(graph: Graph, jobs: Sequence[PlacedJob], windows: Windows, law: str) -> SteadyRates:
    """The steady rates of jobs that exchange gradients all the time, all by one law of shared memory.

    Raises `InputError` for an unknown law, a job without a parameter server, or a node with several switches.
    """
    if law not in SHARED_LAWS:
        raise InputError(f"memory law {law!r} is unknown; {suggest(law, SHARED_LAWS)}")
    parts = [
        prepared(graph, Exchange(job, law, 0, windows.packets, windows.server_s, jitter_s=windows.jitter_s, pick=j))
        for j, job in enumerate(jobs)
    ]
    return steady_rates(graph, Adders.of(parts), rtt_s=windows.rtt_s, off_s=windows.off_s)


def steady_rates(
    graph: Graph,
    adders: Adders,
    busy: FloatArray | None = None,
    *,
    apart: bool = False,
    start: FloatArray | None = None,
    near: float = NEAR,
    rtt_s: float | None = None,
    off_s: float | None = None,
) -> SteadyRates:
    """The max-min fair rates of exchanges (`Adders.of` those prepared), of which each goes on for part of the time.

    `busy`, shape (jobs,), is that part, over 0 and at most 1 (default: all the time): a job takes as much of channels
    and memory on average, as if jobs exchanged one after the other wherever there is time; none is faster than alone.
    `apart`: the rates of all jobs without the others. `start`: `share` of a similar solution. `near`: a solution is
    found when no share would change by more. `rtt_s` and `off_s` replace those of the topology. Raises
    `SimulationError` if no steady state is found.
    """
    count, capacity = len(adders.parts), graph.channel_bits_per_s
    busy = np.ones(count) if busy is None else busy
    payload, rtt, window, _ = adders.by_job
    rtt = rtt if rtt_s is None else np.full(count, rtt_s)
    off = adders.off_s if off_s is None else np.full(len(adders.job), off_s)
    share = adders.own.astype(np.float64) if start is None else start
    holding = rtt[adders.job] - off
    found, weight = payload / np.maximum(rtt, 1e-12), np.ones(count)
    nowhere = np.full(count, -1, dtype=np.int64)
    bursts = _Bursts(adders, capacity, np.zeros(count) if apart else busy)
    damping, least, before = 0.5, LEAST_STEP if bursts.some else 0.0, np.inf
    steps = 0
    while True:
        steps += 1
        uses = adders.uses_at(adders.sent(share))
        alone, tightest = _alone(capacity, uses)
        by_window = np.where(window > 0, window * payload / np.maximum(rtt, 1e-12), np.inf)
        steady = _stalls(adders, share, holding, found / payload)
        stalls, moved = bursts.stalls(uses, share, holding, found, window, steady, damping)
        # What a stall leaves free of a link goes to others there.
        limit = busy / (1 / np.minimum(by_window, NO_FASTER * alone) + stalls * rtt / payload)
        rate, channel = (limit, nowhere) if apart else max_min(capacity, uses, busy * weight, limit)
        channel = np.where((channel < 0) & (alone < by_window), tightest, channel)
        found = rate / busy
        under_way = _under_way(window, stalls)
        queue = np.where(window > 0, np.maximum(under_way * payload / found - rtt, 0.0), 0.0)
        held = rtt[adders.job] + np.where(_queues_before(adders, channel), 0.0, queue[adders.job]) - off
        holding = holding + damping * (held - holding)
        wanted = _share(adders, (found / payload)[adders.job] * holding, np.zeros(count) if apart else busy)
        change = float(np.abs(wanted - share).max(initial=0.0))
        far = max(change / near, moved / NEAR_BURST)
        if far <= 1 or (steps == MOST_STEPS and change <= LOOSE):
            break
        if steps == MOST_STEPS:
            raise SimulationError(f"shares of aggregated packets still change by {change:g} after {steps} steps")
        # Smaller steps where it swings.
        damping = max(0.7 * damping, least) if far > before else min(1.1 * damping, 0.5)
        before = far
        share = share + damping * (wanted - share)
        # Packets share a queue as they come: a job has as much of the link as it has under way.
        usual = float(under_way.sum()) / max(int((window > 0).sum()), 1)
        weight = weight + damping * (np.where(window > 0, under_way / max(usual, 1e-12), 1.0) - weight)
    workers = np.bincount(adders.job, adders.workers, minlength=count)
    with np.errstate(invalid="ignore"):
        mean = np.bincount(adders.job, adders.workers * share, minlength=count) / workers
    return SteadyRates(found, channel, np.nan_to_num(mean), _arriving(adders, share), stalls * window, steps, share)


class _Bursts:
    """The sums that stall of jobs whose packets reach an adder over unequal ways: those of its workers in two racks.

    Until the first of its sums that stalls has been sent again, a worker sends nothing; then what lies between it and
    the next one, at once. So a window of which few sums stall is followed by long bursts: these queue longer on one way
    than on the other, their sums are long in coming and many of them stall; and the next window, sent bit by bit
    between those, loses few. Windows of even and of odd number have stalls of their own here, those of one follow from
    the bursts that the other makes, and a job has the mean of both. They begin unlike each other; where bursts matter
    little, both end the same. `busy`: as for `steady_rates`, 0 for jobs that meet no others.
    """

    def __init__(self, adders: Adders, capacity: FloatArray, busy: FloatArray) -> None:
        self.adders, self.capacity, self.busy = adders, capacity, busy
        self.some = bool(adders.uneven.any())
        self.each = np.stack([np.zeros(len(adders.parts)), adders.uneven])
        self.longer_s, self.waits_s = np.zeros(len(adders.job)), np.zeros(len(adders.job))

    def stalls(
        self, uses: Uses, share: FloatArray, holding_s: FloatArray, bits_per_s: FloatArray, window: FloatArray,
        steady: FloatArray, damping: float,
    ) -> tuple[FloatArray, float]:  # fmt: skip
        """The stalls of jobs of which `steady` come without bursts; and how far a burst still is off, over its window.

        The times by which sums spread move by the part `damping` towards what these rates make of them, and the stalls
        of each window move as far.
        """
        if not self.some:
            return steady, 0.0
        payload = self.adders.by_job[0]
        job = np.repeat(np.arange(len(uses)), np.diff(uses.first))
        all_of, at = self.capacity[uses.resource], uses.resource
        load = np.bincount(at, (uses.amount * (bits_per_s * self.busy)[job]), minlength=len(self.capacity))[at] / all_of
        own = uses.amount * bits_per_s[job] / all_of
        left = np.maximum(1 - load + own * self.busy[job], 1 - FULLEST)
        sum_s = uses.amount * payload[job] / all_of
        self.longer_s += damping * (self.adders.longer_s(sum_s / left) - self.longer_s)
        # Packets that come while a burst of another job passes wait for all of it: windows that met once meet again.
        bursts = np.array([_burst(window, one) for one in self.each])
        mean = (bursts * -np.expm1(-self.each * window)).mean(axis=0)
        passing = own * self.busy[job] * mean[job] * sum_s
        others = np.bincount(at, passing, minlength=len(self.capacity))[at] - passing
        waits_s = self.adders.apart_s(others / (1 - np.minimum(load, FULLEST)))
        self.waits_s += damping * (waits_s - self.waits_s)
        tight_s = np.maximum.reduceat(sum_s / left, uses.first[:-1])
        held = (bits_per_s / payload)[self.adders.job] * holding_s
        wanted = np.array([steady + self._stalls(share, holding_s, held, tight_s, burst) for burst in bursts[::-1]])
        moved = np.abs(np.array([_burst(window, one) for one in wanted]) - bursts) / np.maximum(window, 1.0)
        self.each = self.each + damping * (wanted - self.each)
        return self.each.mean(axis=0), float(moved.max(initial=0.0))

    def _stalls(
        self, share: FloatArray, holding_s: FloatArray, held: FloatArray, tight_s: FloatArray, burst: FloatArray
    ) -> FloatArray:
        """The part of sums that stalls because bursts of so many come over unequal ways.

        Packets of a burst meet more of their own than the `held` aggregators that the job has on average.
        """
        adders = self.adders
        apart_s = self.longer_s * burst[adders.job] / 2 + self.waits_s
        longer_s = holding_s + apart_s
        more = np.maximum(np.minimum(longer_s / tight_s[adders.job], burst[adders.job]) - held, 0.0)
        shared = (adders.memory > 0) & (adders.law == HASH) & (share > 0)
        found = 1 / (1 / np.where(shared, share, 1.0) + more / np.where(shared, adders.memory, 1.0))
        freed = apart_s / np.maximum(longer_s, 1e-12)
        stalled = np.where(shared, (1 - found) * freed, 0.0)
        return np.bincount(adders.job, stalled, minlength=len(adders.parts)).astype(np.float64)


def _burst(window: FloatArray, stalls: FloatArray) -> FloatArray:
    """Sums that a worker sends at once, where so many of a window stall: as many as lie between two of those."""
    at = stalls * window
    found: FloatArray = window * np.where(at > 1e-9, -np.expm1(-at) / np.maximum(at, 1e-9), 1.0)
    return found


def _arriving(adders: Adders, share: FloatArray) -> FloatArray:
    """Packets that reach the end of each job for a sequence number."""
    last = adders.parent < 0
    straight = adders.by_job[3]
    found: FloatArray = straight + np.bincount(adders.job[last], adders.sent(share)[last], minlength=len(adders.parts))
    return found


def _queues_before(adders: Adders, channel: IntArray) -> BoolArray:
    """Whether the packets of each adder's job queue before they hold its aggregators: at the bottleneck `channel`."""
    found = np.zeros(len(adders.job), dtype=np.bool_)
    found[adders.near[adders.near_channel == channel[adders.job[adders.near]]]] = True
    return found


def _met(adders: Adders, held: FloatArray) -> FloatArray:
    """Aggregators of its switch that each adder finds taken: by all jobs, or by those of at least its priority."""
    if not len(held):
        return held
    if adders.ranks is None:
        return np.asarray(np.bincount(adders.switch, held)[adders.switch], dtype=np.float64)
    rank, first, count = adders.ranks
    by_rank = np.bincount(rank, held, minlength=int(count[0]))
    so_far = np.cumsum(by_rank)
    found: FloatArray = (so_far - (so_far - by_rank)[first])[rank]
    return found


def _stalls(adders: Adders, share: FloatArray, holding_s: FloatArray, packets_per_s: FloatArray) -> FloatArray:
    """The part of the sums of each job that is complete nowhere until its workers send again.

    The first packet of a sum found its aggregator taken; before the last one came it was free, and was claimed for a
    sum that can never be complete. It becomes free between those packets with the probability of the time between them
    over the holding time; half of that, as packets arrive all along. Such a sum stalls its window for a round trip
    without queues: what has queued before is sent meanwhile.
    """
    if not len(adders.job):
        return np.zeros(len(adders.parts))
    spread = adders.spread_s(packets_per_s, adders.sent(share))
    claimed = 0.5 * (adders.memory > 0) * (1 - share) * spread / np.maximum(holding_s, 1e-12)
    return np.bincount(adders.job, claimed, minlength=len(adders.parts)).astype(np.float64)


def _under_way(window: FloatArray, stalls: FloatArray) -> FloatArray:
    """Packets of a worker under way, mean over time: the window, less what waits in it for a sum that stalls.

    While one of N packets under way stalls, those behind it come back and none follows: a loss of N for each of the
    `stalls` N in a window. So N = window - stalls N^2.
    """
    found: FloatArray = 2 * window / (1 + np.sqrt(1 + 4 * stalls * window))
    return found


def _alone(capacity: FloatArray, uses: Uses) -> tuple[FloatArray, IntArray]:
    """The rate of each job without the others, what the tightest of its channels gives; and that channel."""
    each = capacity[uses.resource] / uses.amount
    alone = np.minimum.reduceat(each, uses.first[:-1])
    place = np.where(each <= np.repeat(alone, np.diff(uses.first)), np.arange(len(each)), len(each))
    return alone, uses.resource[np.minimum.reduceat(place, uses.first[:-1])]


def _share(adders: Adders, held: FloatArray, busy: FloatArray) -> FloatArray:
    """The share of sequence numbers aggregated by each adder; 0 without memory.

    Jobs hold so many aggregators while they exchange, and others meet them for the part `busy` of the time.
    """
    own = np.where(adders.own, 0.0, held)
    met = own * busy[adders.job]
    others = _met(adders, met) - met
    has = adders.memory > 0
    rho = np.where(adders.law == CYCLE, others, others + own) / np.where(has, adders.memory, 1.0)
    found = np.where(adders.law == HARD, 1 / np.maximum(rho, 1.0), 1 / (1 + rho))
    return np.where(adders.own, 1.0, np.where(has, found, 0.0))
