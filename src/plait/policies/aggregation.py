"""Memory of switches for the jobs of any policy, as a policy around a policy. Start at `WithAggregation`.

The policy inside assigns GPUs to jobs. For each of its jobs on several nodes this one chooses the node of the parameter
server and the switches that add up its gradients (`network.routing`), and a manager divides their memory
(`network.memory`). A job without a grant exchanges gradients without aggregation, and a note has the reason; one that
requires it waits. Our design; the managers and routes cite their sources.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import compress

import numpy as np

from plait.core.arrays import FloatArray, IntArray
from plait.core.errors import InputError
from plait.core.ina_request import TREES, InaRequest
from plait.core.jobs import JobStatus
from plait.core.network_grants import NetworkGrant, by_job
from plait.core.plan import Groups, Plan
from plait.core.policy import DEADLINE, Policy, UsesRequests, View, has_guests, has_preemption, layers
from plait.core.resources import Resource
from plait.network.fluid.exchanges import Exchange, prepared
from plait.network.fluid.jobs import PlacedJob
from plait.network.gradients import MOST_EXCHANGE, gradient_bytes
from plait.network.memory.catalog import MANAGERS, OF_PROTOCOL, make_manager
from plait.network.memory.inalloc import Inalloc
from plait.network.memory.manager import Manager
from plait.network.memory.partition import EqualPartition
from plait.network.memory.records import Lease, Memory, Region, Request, Target
from plait.network.memory.shared import Shared
from plait.network.protocol.addressing import Index
from plait.network.routing import GradientFlow, JobRoute, Problem, grid, improved, shortest
from plait.network.steady_state import SteadyState, best_server
from plait.network.topology.paths import Graph
from plait.network.topology.trees import PUBLISHED, STRAIGHT, Tree, tree


@dataclass(frozen=True)
class AggregatedJob:
    """A job of the plan that wants aggregation: where its workers and its server are, and who adds them up.

    `adds`: the tree (`ina_request.TREES`); `answers`: a switch of it does so in the place of a server. `route`: that
    was chosen; without one workers have the switches of the tree, and the number of the job picks among equal paths.
    """

    job: JobStatus
    placed: PlacedJob
    adds: str
    answers: bool = False
    route: JobRoute | None = None

    @property
    def number(self) -> int:
        return self.job.number

    def pick(self, graph: Graph) -> int:
        """Which of several equal ways its packets take."""
        return self.number % graph.most_ways if self.route is None else self.route.pick

    @property
    def at(self) -> tuple[int, ...]:
        """Of a chosen route the switch of each worker, by its number in the graph, or `STRAIGHT`."""
        return () if self.route is None else self.route.at

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


def request_of(graph: Graph, one: AggregatedJob, switches: tuple[str, ...], seed: int) -> Request:
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


#: Exchanges whose channels are kept.
MOST_KNOWN = 20_000


def manager_of(text: str) -> Manager:
    """The manager `NAME[/option=value...]`, by its own name or that of a system such as `atp`.

    >>> manager_of("inalloc/margin=1.2").margin
    1.2
    """
    name, *options = text.split("/")
    known = dict.fromkeys((*OF_PROTOCOL, *MANAGERS))
    if name not in known:
        raise InputError(f"ina: {name!r} is unknown; it takes {', '.join(known)}")
    return make_manager(":".join(filter(None, (OF_PROTOCOL.get(name, name), ",".join(options)))))


@dataclass(frozen=True)
class WithAggregation:
    """A policy whose jobs get memory of switches from a manager; `routing` is one of `ROUTES`, `seed` for its draws.

    `system`: what the switches run, by the name that was given to `ina=`; jobs that request another get none.
    `review_s`: seconds after which a plan with grants is made again, so that priorities and deadlines follow the
    progress of jobs; infinite: when something happens.
    """

    policy: Policy
    manager: Manager
    routing: str = "auto"
    seed: int = 0
    system: str = ""
    review_s: float = math.inf
    _graphs: dict[str, Graph] = field(default_factory=dict, compare=False, repr=False)
    _parts: dict[Exchange, tuple[IntArray, FloatArray]] = field(default_factory=dict, compare=False, repr=False)

    @property
    def name(self) -> str:
        return str(getattr(self.policy, "name", "") or type(self.policy).__name__)

    @property
    def uses(self) -> frozenset[str]:
        """The requests that the policy inside uses, and deadlines where the manager does."""
        own = self.policy.uses if isinstance(self.policy, UsesRequests) else frozenset()
        return own | {DEADLINE} if isinstance(self.manager, Inalloc) else own

    @property
    def guests(self) -> bool:
        """Whether plans of the policy inside have guests."""
        return has_guests(self.policy)

    @property
    def preempts(self) -> bool:
        """Whether the policy inside stops running jobs for jobs ahead of them."""
        return has_preemption(self.policy)

    @property
    def grants(self) -> bool:
        """Plans grant memory of switches."""
        return True

    def decide(self, view: View) -> Plan:
        """The inner policy's plan, with grants for its jobs on several nodes."""
        if view.cluster.network is None:
            raise InputError(
                f"policy {self.name} grants memory of switches, and this cluster has no network; give it one, e.g. "
                "--network leaf-spine:aggregators=20000"
            )
        graph = self._graph(view)
        if not graph.single_links:
            raise InputError(
                f"policy {self.name} grants memory of switches, and nodes of this network have several links "
                f"({view.cluster.network}); leave out ina=, or give a network with one link a node"
            )
        plan = self.policy.decide(view)
        notes: dict[int, str] = {}
        wanting = list(self._wanting(view, plan, notes))
        asked = self._served(view, graph, wanting)
        if self.routing == "grid":
            asked = self._by_program(view, graph, asked)
        memory, grants = self._granted(view, graph, asked, notes)
        due_s = min(plan.valid_until_s, self.manager.review_due_s(memory, view.now_s))
        due_s = min(due_s, view.now_s + self.review_s) if grants else due_s
        plan = replace(plan, grants=tuple(grants), settled=False, valid_until_s=due_s)
        return self._without_required(view, plan, notes)

    @property
    def _answers(self) -> bool:
        """Whether slots are dedicated: a switch answers, and there is no server."""
        return isinstance(self.manager, EqualPartition)

    @property
    def _tree(self) -> str:
        """The tree of all jobs: that of the option, or that of the first system of the manager."""
        if self.routing in TREES:
            return self.routing
        return next(PUBLISHED[name] for name, one in OF_PROTOCOL.items() if MANAGERS[one] is type(self.manager))

    def _graph(self, view: View) -> Graph:
        network, names = view.cluster.network, tuple(node.id for node in view.cluster.nodes)
        known = self._graphs.get("graph")
        if known is None or known.network is not network or known.nodes != names:
            known = self._graphs["graph"] = Graph.of(view.cluster)
            self._parts.clear()
        return known

    def _wanting(self, view: View, plan: Plan, notes: dict[int, str]) -> Iterable[tuple[JobStatus, tuple[int, ...]]]:
        """Jobs that may be aggregated and their nodes, by number; `notes` get the reasons for the others."""
        row = {number: i for i, number in enumerate(view.jobs.number.tolist())}
        hosts = plan.groups.hosts
        found: list[tuple[JobStatus, tuple[int, ...]]] = []
        for number in plan.groups.guests.jobs.tolist():
            if view.jobs[row[number]].spec.ina.required:
                notes[number] = "it would run as a guest, and guests get no memory of switches"
        for group in hosts:
            nodes = tuple(np.unique(view.cluster.gpu_node[list(group.gpus)]).tolist())
            for member in group.members:
                job = view.jobs[row[member.job]]
                why = self._why_not(job.spec.ina, len(nodes))
                if why is None:
                    found.append((job, nodes))
                elif why:
                    notes[job.number] = why
        return sorted(found, key=lambda pair: pair[0].number)

    def _why_not(self, ina: InaRequest, nodes: int) -> str | None:
        """Why a job is not aggregated, "" where that needs no word; None if it may be."""
        if ina.mode == "off" or (nodes == 1 and not ina.required):
            return ""
        if nodes == 1:
            return "requires aggregation in switches, and has all its GPUs on one node: nothing passes a switch"
        return self.other_system(ina)

    def other_system(self, ina: InaRequest) -> str | None:
        """That a job asks for another system than the switches run; None where it does not."""
        runs = {self.system, *(name for name, manager in OF_PROTOCOL.items() if manager == self.system)}
        if ina.protocol is not None and self.system and ina.protocol not in runs:
            return f"asks for {ina.protocol}; the switches run {self.system}"
        return None

    def never_serves(self, ina: InaRequest) -> str | None:
        """Why a job that requires another system can never run, and what to do; None if it may."""
        other = self.other_system(ina) if ina.required else None
        return None if other is None else f"the job {other}; leave protocol out, or submit it with auto"

    def _served(
        self, view: View, graph: Graph, wanting: list[tuple[JobStatus, tuple[int, ...]]]
    ) -> list[AggregatedJob]:
        """With a parameter server each: that it has while it stays on its nodes, else where its rate is best.

        Dedicated slots need none, unless the tree says that the leaf of one adds up.
        """
        adds = self._tree
        if self._answers and not adds.endswith("server") and self.routing != "grid":
            return [AggregatedJob(job, PlacedJob(nodes), adds, answers=True) for job, nodes in wanting]
        before = {job: grants[0].server for job, grants in by_job(view.grants).items()}
        where = {
            int(job): tuple(np.unique(view.cluster.gpu_node[list(group.gpus)]).tolist())
            for group in view.running for job in (member.job for member in group.members)
        }  # fmt: skip
        up = np.flatnonzero(view.cluster.node_up).tolist()
        known = {
            job.number: before[job.number]
            for job, nodes in wanting
            if before.get(job.number, -1) in up and where.get(job.number) == nodes
        }
        law = "hash" if isinstance(self.manager, Shared) else "hard"  # regions have no collisions
        state = SteadyState.of(
            graph,
            {job.number: Exchange(PlacedJob(nodes, known[job.number]), law, adds=adds)
             for job, nodes in wanting if job.number in known},
        )  # fmt: skip
        crowd = Counter([*known.values(), *(node for _, nodes in wanting for node in nodes)])
        found = []
        racks_of = {job.number: {graph.leaf(worker) for worker in nodes} for job, nodes in wanting}
        for job, nodes in sorted(wanting, key=lambda pair: len(racks_of[pair[0].number])):  # who has least choice first
            server, racks = known.get(job.number), racks_of[job.number]
            if server is None:
                # Candidates for a server: of each rack the worker and the other node with fewest users. Jobs whose
                # servers are still to be chosen are users: next to a worker a server has half of the link. Where a
                # switch answers, routes are only named after a server, which is in a rack of the job.
                best: dict[tuple[int, bool], int] = {}
                reserved = view.cluster.reserved
                barred = view.jobs.columns["barred"][job.number] if reserved else ()
                closed = frozenset[str]().union(*compress(reserved, barred))
                for node in (node for node in up if graph.nodes[node] not in closed):
                    leaf = graph.leaf(node)
                    key = leaf, node in nodes
                    if (leaf in racks or not self._answers) and (key not in best or crowd[node] < crowd[best[key]]):
                        best[key] = node
                here = sorted(best.values()) or up
                server, state = best_server(state, job.number, nodes, here, law, adds=adds)
                crowd[server] += 1
            found.append(AggregatedJob(job, PlacedJob(nodes, server), adds, self._answers))
        return sorted(found, key=lambda one: one.number)

    def _by_program(self, view: View, graph: Graph, asked: list[AggregatedJob]) -> list[AggregatedJob]:
        """With the routes of GRID's program, then what exchanges really use made shorter, job after job."""
        network = view.cluster.network
        assert network is not None
        there = [one.id for one in network.switches if one.usable and one.id not in network.down]
        if not asked or not there:
            return asked
        link = float(np.median(graph.channel_bits_per_s[graph.ends[:, 0] < len(graph.nodes)]))
        flows = [
            GradientFlow(
                one.placed,
                exchange_of(one.job, link, len(one.placed.workers), self.seed)[0] / iteration_s_of(one.job),
                one.pick(graph),
            )
            for one in asked
        ]
        problem, alone = Problem.of(graph, flows, there), not isinstance(self.manager, Shared)

        def uses_of(j: int, route: JobRoute) -> tuple[IntArray, FloatArray]:
            exchange = replace(asked[j], route=route).exchange(graph, alone)
            if exchange not in self._parts:
                if len(self._parts) > MOST_KNOWN:
                    self._parts.clear()
                part = prepared(graph, exchange)
                carried = np.bincount(part.entry, part.carried, minlength=len(part.channel))
                self._parts[exchange] = part.channel, part.fixed + carried
            return self._parts[exchange]

        required = {j for j, one in enumerate(asked) if one.job.spec.ina.required}
        leaves = shortest(problem).choice
        # Rings, too: from leaves jobs hardly become rings, because the first to move gains little alone.
        rings = tuple(
            route if j in required else JobRoute((STRAIGHT,) * len(route.at), route.pick)
            for j, route in enumerate(leaves)
        )
        starts = grid(problem, self.seed).choice, leaves, rings
        choice = improved(problem, starts, uses_of, required)
        return [replace(one, route=route) for one, route in zip(asked, choice, strict=True)]

    def _granted(
        self, view: View, graph: Graph, asked: list[AggregatedJob], notes: dict[int, str]
    ) -> tuple[Memory, list[NetworkGrant]]:
        """The memory when this manager has decided, and its grants for these jobs; `notes` get the reasons for none."""
        assert view.cluster.network is not None
        before = by_job(view.grants)
        leases = []
        servers: dict[int, int] = {}
        by_number = {one.number: one for one in asked}
        for one in asked:
            switches: tuple[str, ...] = ()
            why = "no switch with free memory sees packets of two of its workers"
            try:
                switches = tuple(graph.names[at] for at in sorted(one.tree(graph).adders))
            except InputError as error:
                why = str(error)
            if not switches:
                ends = {*one.placed.workers, *([] if one.placed.server is None else [one.placed.server])}
                lost = sorted({graph.names[graph.leaf(node)] for node in ends} & set(graph.network.down))
                gone = f"; {', '.join(lost)} {'is' if len(lost) == 1 else 'are'} lost" if lost else ""
                notes[one.number] = why + gone
                continue
            servers[one.number] = -1 if one.placed.server is None else one.placed.server
            leases.append(lease_of(request_of(graph, one, switches, self.seed), before.get(one.number, ())))
        memory = replace(Memory.of(view.cluster.network), leases=tuple(leases))
        memory = self.manager.settle(self.manager.review(memory, view.now_s)[0])
        grants = []
        for lease in memory.leases:
            answer = self.manager.answer(memory, lease.request.job)
            if not answer.grants:
                notes[answer.job] = answer.reason
            for given in answer.grants:
                region = given.region
                whole = region.mode in (Index.SHARED_HASH, Index.SHARED_CYCLE)
                by = by_number[answer.job]
                pick = by.pick(graph)
                grants.append(
                    NetworkGrant(
                        answer.job, given.switch, 0 if whole else region.offset, 0 if whole else region.size,
                        region.mode.name.lower(), region.exclusive, given.window, answer.priority,  # type: ignore[arg-type]
                        region.epoch, servers[answer.job], (pick,) if pick else (),
                        by.workers_at(graph, given.switch), answer.reason,
                    )
                )  # fmt: skip
        return memory, grants

    def _without_required(self, view: View, plan: Plan, notes: Mapping[int, str]) -> Plan:
        """The plan without jobs that require aggregation and do not get it: these wait, and mates run on."""
        granted = {grant.job for grant in plan.grants}
        row = {number: i for i, number in enumerate(view.jobs.number.tolist())}
        held = {
            number: f"requires aggregation in switches: {notes.get(number, 'no switch has memory for it')}"
            for number in plan.groups.jobs.tolist()
            if number not in granted and view.jobs[row[number]].spec.ina.required
        }
        if held:
            rest = ((group, tuple(m for m in group.members if m.job not in held)) for group in plan.groups)
            plan = replace(
                plan, groups=Groups.of(replace(group, members=members) for group, members in rest if members),
                reasons={**plan.reasons, **held},
            )  # fmt: skip
        running = set(plan.groups.jobs.tolist())
        return replace(plan, network_notes={job: why for job, why in notes.items() if job in running})


def aggregation_of(policy: object) -> WithAggregation | None:
    """The policy that grants memory of switches: this one or one inside it; None where there is none."""
    return next((one for one in layers(policy) if isinstance(one, WithAggregation)), None)
