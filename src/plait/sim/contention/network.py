"""The physics of a cluster whose jobs share a network: everyone's pace depends on everyone else. See `NetworkPhysics`.

A trace says how long an iteration takes alone. That is taken to be on as few nodes as the job needs, in an otherwise
idle network, with a ring all-reduce; contention and distance make a job slower than its trace says, aggregation in
switches may make it faster.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace

import numpy as np

from plait.core.arrays import BoolArray, FloatArray, IntArray
from plait.core.cluster import Cluster
from plait.core.errors import InputError
from plait.core.jobs import JobBatch
from plait.core.network_grants import NetworkFigures, NetworkGrant
from plait.core.plan import Gate, Groups
from plait.core.resources import Resource
from plait.network.fluid.exchanges import Exchange, Prepared, prepared
from plait.network.fluid.granted import granted_exchange
from plait.network.fluid.iterations import PHASES, IterationTimes, beside, exposed_s, iterations
from plait.network.fluid.jobs import PlacedJob
from plait.network.fluid.memory import SteadyRates
from plait.network.gradients import MOST_EXCHANGE, gradient_bytes, overlap_of_layers
from plait.network.measured import Measured, rates_of
from plait.network.topology.paths import Graph
from plait.placement.servers import by_rule, link_loads, server_parts
from plait.sim.physics import Granted, StandardPhysics

#: Where the workers of a job are, by numbers of nodes, and its grants: all that its way through the network depends on.
Way = tuple[tuple[int, ...], tuple[NetworkGrant, ...]]


def with_gradient_bytes(jobs: JobBatch, seed: int) -> JobBatch:
    """The same jobs, with the size of their gradients by model, or drawn by `seed` where that is not known.

    Jobs without a model are drawn by name (see `network.gradients`).
    """
    known = jobs.column("gradient_bytes")
    unknown = np.flatnonzero(np.isnan(known)).tolist()
    if not unknown:
        return jobs
    found = known.copy()
    models, names = jobs.column("model"), jobs.id
    found[unknown] = [gradient_bytes(models[i] or str(names[i]), seed) for i in unknown]
    return jobs.replace(gradient_bytes=found)


@dataclass(frozen=True)
class NetworkPhysics:
    """Groups as in `inner`; between nodes, jobs exchange gradients over links that they share (`network.fluid`).

    Our design. Computation takes what an iteration alone leaves beside its exchange, which is the network stage of its
    profile, or follows from its gradient bytes; then it takes at most the part `MOST_EXCHANGE` of an iteration, and
    sizes of gradients are cut to that (`cut_jobs`). `overlap` (0 to 1) is the part of the computation beside which a
    job exchanges, or `LAYERS`: each model as its layers have gradients; `phases` says how exchanges of different
    groups meet (`network.fluid.iterations`), `rates` where the rates of jobs with shared memory come from
    (`network.measured`). Members that take turns at a barrier never exchange at the same time. Jobs that adapt their
    batch exchange as their own throughput says, and use no links. A job with parameter servers exchanges as
    `placement.servers` says. The spread slow-down of `inner` is not used: distance costs what links do.
    """

    inner: StandardPhysics = field(default_factory=StandardPhysics)
    overlap: float | str = 0.0
    phases: str = "random"
    rates: str = "auto"
    # Not of `init`: `dataclasses.replace` would give the rates under these conditions to a copy under others.
    _known: dict[object, object] = field(default_factory=dict, init=False, compare=False, repr=False)
    _measured: dict[tuple[Exchange, ...], FloatArray | None] = field(
        default_factory=dict, init=False, compare=False, repr=False
    )

    def __post_init__(self) -> None:
        """Check the options; the command line words them."""
        assert self.overlap == LAYERS if isinstance(self.overlap, str) else 0 <= self.overlap <= 1
        assert self.phases in PHASES
        rates_of(self.rates)
        object.__setattr__(self, "inner", replace(self.inner, spread_slowdown=1.0))

    def controlled(self, cc: str) -> NetworkPhysics:
        """The same with this congestion control, whose windows follow single packets: there is no law of them."""
        source, met = rates_of(self.rates)
        if source == "law":
            raise InputError(f"rates=law has no congestion control, which {cc} needs; use rates=auto or rates=packets")
        options = [f"{name}={value}" for name, value in asdict(replace(met, cc=cc)).items()]
        return replace(self, rates=f"packets:{','.join(options)}")

    def iteration_s(self, truth: JobBatch, groups: Groups, cluster: Cluster) -> FloatArray:
        """Seconds an iteration if these groups were all there are, and no switch aggregated."""
        return self.paces(truth, groups, cluster, {})

    def paces(self, truth: JobBatch, running: Groups, cluster: Cluster, granted: Granted) -> FloatArray:
        """See `Contends`."""
        alone = self.inner.alone_s(truth, running, cluster)
        stage_s = truth.stage_s[running.jobs] * (alone / truth.iteration_s[running.jobs])[:, None]
        found = self.exchanges(truth, running, cluster, granted, alone)
        rows = np.array(sorted(found), dtype=np.int64)
        if len(rows):
            compute_s, exchange_s = np.array([found[row] for row in rows.tolist()]).T[:2]
            alone = alone.copy()
            alone[rows] = exposed_s(compute_s, exchange_s, self._overlap(truth, running.jobs[rows]))
            stage_s[rows, Resource.NETWORK] = np.where(np.isnan(stage_s[rows, Resource.NETWORK]), np.nan, exchange_s)
        return self.inner.together_s(truth, running, cluster, alone, stage_s)

    def figures(self, truth: JobBatch, running: Groups, cluster: Cluster, granted: Granted) -> NetworkFigures:
        """See `Contends`. Packets that found no aggregator are those that jobs with shared memory send in vain."""
        found = self.exchanges(truth, running, cluster, granted, self.inner.alone_s(truth, running, cluster))
        rows = sorted(found, key=lambda m: int(running.jobs[m]))
        jobs = running.jobs[rows]
        aggregated, rate = np.array([found[m][2:] for m in rows], dtype=np.float64).reshape(-1, 2).T
        shares = np.array([any(not one.exclusive for one in granted.get(job, ())) for job in jobs.tolist()], dtype=bool)
        return NetworkFigures(jobs, rate, aggregated, np.where(shares, 1 - aggregated, 0.0))

    def exchanges(
        self, truth: JobBatch, running: Groups, cluster: Cluster, granted: Granted, alone_s: FloatArray
    ) -> dict[int, tuple[float, float, float, float]]:
        """Members that exchange between nodes, by their entry of `running.jobs`.

        Each with its seconds of computation and of exchange, the share of packets that switches add up, and payload
        bits a second while it exchanges. `alone_s` is what an iteration takes on these GPUs without others.
        """
        graph = self._graph(cluster)
        nodes = [
            tuple(np.unique(cluster.gpu_node[gpus]).tolist())
            for gpus in np.split(running.gpus, running.first_gpu[1:-1])
        ]
        barrier = np.zeros(len(running), dtype=bool) if running.gate is None else running.gate == int(Gate.BARRIER)
        group = running.group_of_member().tolist()
        members = np.where(barrier, np.diff(running.first_job), 1)[group]
        turns = np.stack([members, np.arange(len(group)) - running.first_job[group]])
        bits, compute_s = self._work(truth, running, cluster, alone_s, np.array([len(n) for n in nodes])[group])
        rows = [m for m, g in enumerate(group) if len(nodes[g]) > 1 and bits[m] > 0]
        ways = {m: (nodes[group[m]], _alike(granted.get(int(running.jobs[m]), ()))) for m in rows}
        parts = {m: self._prepared(graph, way) for m, way in ways.items()}
        out: dict[int, tuple[float, float, float, float]] = {}
        for together in _apart(parts):
            solved = self._solved(
                graph,
                cluster,
                tuple(ways[m] for m in together),
                [parts[m] for m in together],
                bits[together],
                compute_s[together],
                turns[:, together],
                self._overlap(truth, running.jobs[together]),
            )
            for i, m in enumerate(together):
                exchange_s = float(solved.exchange_s[i])
                out[m] = float(compute_s[m]), exchange_s, float(solved.aggregated[i]), float(bits[m]) / exchange_s
        return out

    def _work(
        self, truth: JobBatch, running: Groups, cluster: Cluster, alone_s: FloatArray, nodes: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        """Bits of one gradient and seconds of computation of each member; see the class for how they follow."""
        jobs = running.jobs
        asked_s = truth.iteration_s[jobs]
        bits, exchange_s, _ = _alone(truth, jobs, self._graph(cluster), cluster)
        compute_s = asked_s  # the most whose `exposed_s` is what was asked for
        with np.errstate(invalid="ignore", divide="ignore"):
            for left, rest in self._overlap(truth, jobs):
                compute_s = np.fmin(compute_s, (asked_s - left * exchange_s) / (1 - rest))
        compute_s = np.maximum(compute_s, LEAST_COMPUTE * asked_s)
        adapts = truth.column("batch_size")[jobs] > 0
        served = np.flatnonzero(truth.column("servers")[jobs] > 0)
        for m in served.tolist():
            g = int(running.group_of_member()[m])
            node = cluster.gpu_node[running.gpus[running.first_gpu[g] : running.first_gpu[g + 1]]]
            alone = _even(int(truth.gpus[jobs[m]]), int(cluster.node_gpus.max()))  # as in `_alone`
            bits[m] *= _over_ring(truth, int(jobs[m]), np.unique(node, return_counts=True)[1])
            bits[m] /= _over_ring(truth, int(jobs[m]), alone)
        return np.where((nodes > 1) & ~adapts, bits, 0.0), compute_s * alone_s / asked_s

    def _solved(
        self, graph: Graph, cluster: Cluster, ways: tuple[Way, ...], parts: list[Prepared], bits: FloatArray,
        compute_s: FloatArray, turns: IntArray, overlap: FloatArray,
    ) -> IterationTimes:  # fmt: skip
        """Iteration times of jobs that meet; kept, as most of them stay when one job comes or goes."""
        key = (ways, bits.tobytes(), compute_s.tobytes(), turns.tobytes(), overlap.tobytes())
        found = self._known.get(key)
        if not isinstance(found, IterationTimes):
            if len(self._known) > MOST_KNOWN:
                self._known.clear()
            measured = Measured(cluster, graph, *rates_of(self.rates), self._measured)
            exchanges = [_exchange(graph, way) for way in ways]

            def corrected(rows: Sequence[int], law: SteadyRates) -> FloatArray:
                some, these = [exchanges[i] for i in rows], list(rows)
                factors = measured.factors(some, [parts[i] for i in rows], law.bits_per_s[these], law.stalled[these])
                if factors is None:
                    warnings.warn(DOUBTFUL, RuntimeWarning, stacklevel=2)
                    return np.ones(len(some))
                return factors

            found = iterations(
                graph, parts, bits, compute_s, overlap=overlap, phases=self.phases, turns=turns,
                corrected=corrected,
            )  # fmt: skip
            self._known[key] = found
        return found

    def _overlap(self, truth: JobBatch, jobs: IntArray) -> FloatArray:
        """Of these jobs, as `exposed_s` takes it."""
        if isinstance(self.overlap, str):
            return overlap_of_layers([str(model) for model in truth.column("model")[jobs]])
        return beside(self.overlap)

    def _prepared(self, graph: Graph, way: Way) -> Prepared:
        known = self._known.get(way)
        if not isinstance(known, Prepared):
            known = self._known[way] = prepared(graph, _exchange(graph, way))
        return known

    def _graph(self, cluster: Cluster) -> Graph:
        names = tuple(node.id for node in cluster.nodes)
        known = self._known.get("graph")
        network = cluster.network  # lost switches do not add up: jobs have no grants there; links stay
        if (
            isinstance(known, Graph)
            and network is not None
            and (known.network.links is network.links and known.network.switches is network.switches)
            and known.nodes == names
        ):
            return known
        self._known.clear()
        self._measured.clear()
        found = self._known["graph"] = Graph.of(cluster)
        return found


def cut_jobs(jobs: JobBatch, cluster: Cluster) -> int:
    """How many jobs have gradients that are cut: the exchange alone would take over `MOST_EXCHANGE` of an iteration."""
    cut = _alone(jobs, np.arange(len(jobs)), Graph.of(cluster), cluster)[2]
    return int(cut[jobs.column("batch_size") <= 0].sum())


def _alone(truth: JobBatch, jobs: IntArray, graph: Graph, cluster: Cluster) -> tuple[FloatArray, FloatArray, BoolArray]:
    """Bits of one gradient of each of `jobs`, seconds of its exchange alone, and whether the bits were cut.

    Alone is on as few nodes as the job needs, in a ring, at the size and on the GPUs that were asked for: another
    number or kind changes the computation alone.
    """
    out = graph.ends[:, 0] < len(graph.nodes)
    link = float(np.median(np.bincount(graph.ends[out, 0], graph.channel_bits_per_s[out])))  # all of a node
    needs = -(-truth.gpus[jobs] // int(cluster.node_gpus.max()))
    ring = np.where(needs > 1, 2.0 * (needs - 1) / needs, 1.0)  # gradients that a worker sends
    asked_s, measured_s = truth.iteration_s[jobs], truth.stage_s[jobs, Resource.NETWORK]
    wanted_s = ring * np.nan_to_num(8.0 * truth.column("gradient_bytes")[jobs]) / link
    for i in np.flatnonzero(truth.column("servers")[jobs] > 0).tolist():
        wanted_s[i] *= _over_ring(truth, int(jobs[i]), _even(int(truth.gpus[jobs[i]]), int(cluster.node_gpus.max())))
    measured = ~np.isnan(measured_s) & (needs > 1)
    exchange_s = np.where(measured, np.minimum(measured_s, asked_s), np.minimum(wanted_s, MOST_EXCHANGE * asked_s))
    cut: BoolArray = ~measured & (wanted_s > MOST_EXCHANGE * asked_s)
    return exchange_s * link / ring, np.where(needs > 1, exchange_s, 0.0), cut


def _even(gpus: int, most: int) -> IntArray:
    """Workers on each of the fewest nodes."""
    nodes = -(-gpus // most)
    return np.full(nodes, gpus // nodes) + (np.arange(nodes) < gpus % nodes)


def _over_ring(truth: JobBatch, job: int, workers: IntArray) -> float:
    """What the busiest link of a job with parameter servers carries, over that of a ring on the same nodes (nodes,).

    An exchange ends when the busiest link has carried its part. Other links of the job are taken to be as busy, which
    is too much where one server has most of the parameters.
    """
    if len(workers) < 2:
        return 1.0
    parts = server_parts(float(truth.column("skew")[job]), int(truth.column("servers")[job]))
    loads = link_loads(workers, parts, by_rule(workers, parts))
    return float(loads.max() / (2.0 * (len(workers) - 1) / len(workers)))


#: Value of `overlap`: gradients go layer by layer, by the models of the jobs.
LAYERS = "layers"
#: Of an iteration alone, the least computation: the times of jobs are those of a cycle of both.
LEAST_COMPUTE = 1e-6
#: Warning about rates by the law of memory where it does not hold.
DOUBTFUL = (
    "plait: rates of jobs that share nodes, or memory of switches in several racks, may be wrong by more than half: "
    "they are by the law, not by packets, which --rates auto follows for up to 64 workers; see "
    "docs/explanation/network.md"
)
#: Solutions and paths that are kept.
MOST_KNOWN = 20_000


def _exchange(graph: Graph, way: Way) -> Exchange:
    nodes, grants = way
    return granted_exchange(graph, nodes, grants) if grants else Exchange(PlacedJob(nodes))


def _alike(grants: tuple[NetworkGrant, ...]) -> tuple[NetworkGrant, ...]:
    """The grants without what makes no difference to an exchange: whose they are, and how many there were before."""
    return tuple(replace(grant, job=0, epoch=0) for grant in grants)


def _apart(parts: Mapping[int, Prepared]) -> list[list[int]]:
    """The members divided into those that share a channel or a leaf with each other, directly or through others."""
    root: dict[int, int] = {m: m for m in parts}

    def find(m: int) -> int:
        while root[m] != m:
            root[m] = root[root[m]]
            m = root[m]
        return m

    user: dict[tuple[str, int], int] = {}
    for m, part in parts.items():
        for place in [("c", c) for c in part.channel.tolist()] + [("s", at) for at in part.switch.tolist()]:
            other = user.setdefault(place, m)
            a, b = find(m), find(other)
            root[max(a, b)] = min(a, b)
    together: dict[int, list[int]] = {}
    for m in parts:
        together.setdefault(find(m), []).append(m)
    return list(together.values())
