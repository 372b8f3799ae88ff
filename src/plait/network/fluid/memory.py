"""Rates of jobs whose gradients are added up in leaf switches, by how they share the memory of a switch.

Our design; start at `aggregated_rates`. Every leaf adds up the packets of the workers of a job below it; a packet whose
aggregator is taken goes to the parameter server by itself, which adds up the rest. Of a rack with n workers in which
the share f of sequence numbers is aggregated, f + n (1 - f) packets reach the server for each sequence number. The
result returns once to each rack and from its leaf to the workers. Laws of f, with rho the aggregators that jobs would
hold (rate * holding time) over those there are:

    hash    1 / (1 + rho): an aggregator is taken with the probability that it is occupied
    cycle   the same without the job's own part of rho: no two packets of a job share an aggregator. Not validated
    hard    min(1, 1 / rho): jobs collide only when the memory is full

`hash` and `cycle` know nothing of stalls and of packets sent again; rates are upper estimates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from plait.core.arrays import FloatArray, IntArray
from plait.core.errors import InputError, SimulationError, suggest
from plait.network.fluid.jobs import PlacedJob
from plait.network.fluid.max_min import Uses, max_min
from plait.network.topology.paths import Graph

LAWS = ("hash", "cycle", "hard")
#: Bytes of a packet beside its payload.
HEADER_BYTES = 58
#: A fixed point is found when no share of aggregated sequence numbers would change by more.
NEAR, MOST_STEPS = 1e-6, 2000


@dataclass(frozen=True)
class Windows:
    """How jobs send: at most `packets` of a worker are under way.

    `rtt_s`: time from a packet's start to its result without queues; `off_s`: the part of it before the first packet is
    at the leaf and after the result has left it. Both follow from the topology where they are None; `server_s` is then
    the time that a packet spends in the parameter server.
    """

    packets: int
    rtt_s: float | None = None
    off_s: float | None = None
    server_s: float = 1e-6

    def __post_init__(self) -> None:
        """Raise `InputError` for a window without packets."""
        if self.packets < 1:
            raise InputError(f"a window of {self.packets} packets; needs at least 1")


@dataclass(frozen=True)
class AggregatedRates:
    """What `aggregated_rates` finds, with its law.

    `bits_per_s`: payload of each job at each worker; `channel`: its bottleneck, the first of its bundle, or -1 for its
    window; `aggregated`: mean over its workers of the share of sequence numbers that their leaf adds up in full;
    `server_packets`: packets to its server for each sequence number; `steps` of the iteration.
    """

    law: str
    bits_per_s: FloatArray
    channel: IntArray
    aggregated: FloatArray
    server_packets: FloatArray
    steps: int


@dataclass(frozen=True)
class _Racks:
    """The racks of all jobs, one after the other: columns by rack, and what they use of channels.

    Entry k of `uses` is `fixed[k]`, less `per_share[i] * f[of_rack[i]]` for each i with `entry[i] = k`.
    """

    job: IntArray
    leaf: IntArray
    workers: FloatArray
    memory: FloatArray
    payload_bits: FloatArray
    uses: Uses
    fixed: FloatArray
    entry: IntArray
    of_rack: IntArray
    per_share: FloatArray

    def uses_at(self, share: FloatArray) -> Uses:
        """What jobs use of channels where these shares of sequence numbers are aggregated in each rack."""
        saved = np.bincount(self.entry, self.per_share * share[self.of_rack], minlength=len(self.fixed))
        return Uses(self.uses.first, self.uses.resource, self.fixed - saved)


def aggregated_rates(graph: Graph, jobs: Sequence[PlacedJob], windows: Windows, law: str) -> AggregatedRates:
    """The steady rates of jobs that exchange gradients all the time through aggregating leaves.

    Raises `InputError` for an unknown law, a job without a parameter server, or a node with several switches.
    """
    if law not in LAWS:
        raise InputError(f"memory law {law!r} is unknown; {suggest(law, LAWS)}")
    assert jobs
    racks = _racks(graph, jobs)
    rtt_s, off_s = _times(graph, jobs, windows)
    count = len(jobs)
    payload = np.zeros(count)
    payload[racks.job] = racks.payload_bits
    limit = windows.packets * payload / rtt_s
    share = np.zeros(len(racks.job))
    damping, before = 0.5, np.inf
    steps = 0
    while True:
        steps += 1
        rate, channel = max_min(graph.channel_bits_per_s, racks.uses_at(share), limit=limit)
        packets = rate / payload
        held = packets * (np.maximum(rtt_s, windows.packets / packets) - off_s)  # aggregators, by job
        wanted = _share(racks, held, law)
        change = float(np.abs(wanted - share).max(initial=0.0))
        if change <= NEAR:
            break
        if steps == MOST_STEPS:
            raise SimulationError(f"memory law {law}: shares still change by {change:g} after {steps} steps")
        if change > before:  # it swings: smaller steps
            damping *= 0.7
        before = change
        share = share + damping * (wanted - share)
    workers = np.bincount(racks.job, racks.workers, minlength=count)
    mean = np.bincount(racks.job, racks.workers * share, minlength=count) / workers
    arrive = np.bincount(racks.job, share + racks.workers * (1 - share), minlength=count)
    return AggregatedRates(law, rate, channel, mean, np.asarray(arrive, dtype=np.float64), steps)


def _share(racks: _Racks, held: FloatArray, law: str) -> FloatArray:
    """The share of sequence numbers aggregated in each rack where jobs hold so many aggregators; 0 without memory.

    The packets of a lone worker need no aggregator: there is nothing to add.
    """
    alone = racks.workers == 1
    own = np.where(alone, 0.0, held[racks.job])
    total = np.bincount(racks.leaf, own)[racks.leaf]
    has = racks.memory > 0
    rho = (total - own if law == "cycle" else total) / np.where(has, racks.memory, 1.0)
    found = 1 / (1 + rho) if law != "hard" else 1 / np.maximum(rho, 1.0)
    return np.where(has, np.where(alone, 1.0, found), 0.0)


def _racks(graph: Graph, jobs: Sequence[PlacedJob]) -> _Racks:
    """The racks of jobs and the channels that they use."""
    switches, first_switch = graph.network.switches, len(graph.nodes)
    columns: list[tuple[int, int, int, int, float]] = []
    rows: list[dict[int, float]] = []
    savings: list[tuple[int, int, int, float]] = []  # job, channel, rack, amount for each unit of share
    for j, job in enumerate(jobs):
        if job.server is None:
            raise InputError(f"job {j} has no parameter server; aggregation in switches needs one")
        row: dict[int, float] = {}
        rows.append(row)
        below: dict[int, list[int]] = {}
        for worker in job.workers:
            below.setdefault(graph.leaf(worker), []).append(worker)
        for leaf, workers in below.items():
            switch = switches[leaf - first_switch]
            n, wire = len(workers), 1 + HEADER_BYTES / switch.payload_bytes
            copies = 1 if switch.usable else n  # a switch that does not aggregate sends no result to several workers
            for worker in workers:
                _add(row, graph.bundled_shares(worker, leaf), wire)
                _add(row, graph.bundled_shares(leaf, worker), wire)
            for channel, share in graph.bundled_shares(leaf, job.server).items():
                _add(row, {channel: share}, n * wire)
                if n > 1:
                    savings.append((j, channel, len(columns), (n - 1) * share * wire))
            _add(row, graph.bundled_shares(job.server, leaf), copies * wire)
            columns.append((j, leaf, n, switch.usable, 8.0 * switch.payload_bytes))
    uses = Uses.of(rows)
    place = {(j, int(uses.resource[k])): k for j in range(len(rows)) for k in range(uses.first[j], uses.first[j + 1])}
    job_of, leaf_of, n_of, memory_of, payload_of = (np.array(column) for column in zip(*columns, strict=True))
    return _Racks(
        job_of.astype(np.int64), leaf_of.astype(np.int64), n_of.astype(np.float64), memory_of.astype(np.float64),
        payload_of.astype(np.float64), uses, uses.amount,
        np.array([place[j, channel] for j, channel, _, _ in savings], dtype=np.int64),
        np.array([rack for _, _, rack, _ in savings], dtype=np.int64),
        np.array([amount for *_, amount in savings], dtype=np.float64),
    )  # fmt: skip


def _add(row: dict[int, float], shares: dict[int, float], amount: float) -> None:
    for channel, share in shares.items():
        row[channel] = row.get(channel, 0.0) + amount * share


def _times(graph: Graph, jobs: Sequence[PlacedJob], windows: Windows) -> tuple[FloatArray, FloatArray]:
    """Time to the result and the part of it that holds no aggregator, of each job: those of its farthest worker."""
    rtt, off = np.zeros(len(jobs)), np.zeros(len(jobs))
    for j, job in enumerate(jobs):
        assert job.server is not None
        for worker in job.workers:
            there, back = graph.path(worker, job.server), graph.path(job.server, worker)
            delays = [graph.delay_s(path) + _serialisation_s(graph, path) for path in (there, back)]
            near = [graph.delay_s(path) + _serialisation_s(graph, path) for path in (there[:1], back[-1:])]
            rtt[j], off[j] = max(rtt[j], sum(delays) + windows.server_s), max(off[j], sum(near))
    if windows.rtt_s is not None:
        rtt[:] = windows.rtt_s
    if windows.off_s is not None:
        off[:] = windows.off_s
    return rtt, off


def _serialisation_s(graph: Graph, path: tuple[int, ...]) -> float:
    """Seconds that the bits of one packet take on the channels of a path."""
    bits = 8.0 * (HEADER_BYTES + graph.network.switches[0].payload_bytes)
    return float((bits / graph.channel_bits_per_s[list(path)]).sum())
