"""Memory of switches for the jobs of any policy, as a policy around a policy. Start at `WithAggregation`.

The policy inside says who runs where. For each of its jobs on several nodes this one chooses the node of the parameter
server and the switches that add up its gradients (`network.routing`), and a manager divides their memory
(`network.memory`). A job that gets none exchanges gradients without aggregation, and a note says why; one that requires
it waits. Our design; the managers and routes say what they are after.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from plait.core.aggregation.grants import NetworkGrant, by_job
from plait.core.aggregation.request import InaRequest
from plait.core.errors import InputError
from plait.core.jobs import JobStatus
from plait.core.plan import Plan
from plait.core.policy import DEADLINE, Policy, UsesRequests, View, has_guests
from plait.network.fluid.exchanges import STRAIGHT, Exchange
from plait.network.fluid.jobs import PlacedJob
from plait.network.gradients import gradient_bytes
from plait.network.memory.catalog import OF_PROTOCOL, make_manager
from plait.network.memory.inalloc import Inalloc
from plait.network.memory.manager import Manager
from plait.network.memory.records import Lease, Memory, Region, Request, Target
from plait.network.protocol.addressing import Index
from plait.network.routing.grid import grid
from plait.network.routing.problem import GradientFlow, Problem
from plait.network.routing.shortest import shortest
from plait.network.steady_state import SteadyState, best_server
from plait.network.topology.paths import Graph

#: At which switch a worker's packets are added up: its leaf, that of the server, or one of a linear program (GRID).
ROUTES = ("leaf", "server", "grid")


def manager_of(text: str) -> Manager:
    """The manager `NAME[/option=value...]`, by its own name or that of a system such as `atp`.

    >>> manager_of("inalloc/margin=1.2").margin
    1.2
    """
    name, *options = text.split("/")
    return make_manager(":".join(filter(None, (OF_PROTOCOL.get(name, name), ",".join(options)))))


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
        """Switches that see packets of two workers at least: others have nothing to add up."""
        several = sorted({v for v in self.at if v != STRAIGHT and self.at.count(v) > 1})
        return tuple(graph.names[v] for v in several)


@dataclass(frozen=True)
class WithAggregation:
    """A policy whose jobs get memory of switches from a manager; `routing` is one of `ROUTES`, `seed` for its draws."""

    policy: Policy
    manager: Manager
    routing: str = "leaf"
    seed: int = 0
    _graphs: dict[str, Graph] = field(default_factory=dict, compare=False, repr=False)

    @property
    def name(self) -> str:
        """The name of the policy inside."""
        return str(getattr(self.policy, "name", "") or type(self.policy).__name__)

    @property
    def uses(self) -> frozenset[str]:
        """What the policy inside takes into account, and deadlines where the manager does."""
        own = self.policy.uses if isinstance(self.policy, UsesRequests) else frozenset()
        return own | {DEADLINE} if isinstance(self.manager, Inalloc) else own

    @property
    def guests(self) -> bool:
        """Whether plans of the policy inside have guests."""
        return has_guests(self.policy)

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
        plan = self.policy.decide(view)
        graph = self._graph(view)
        notes: dict[int, str] = {}
        wanting = list(self._wanting(view, plan, notes))
        asked = self._routed(view, graph, self._served(view, graph, wanting))
        grants = self._granted(view, graph, asked, notes)
        return self._without_required(view, replace(plan, grants=tuple(grants), settled=False), notes)

    def _graph(self, view: View) -> Graph:
        """The graph of the cluster, made once for a network."""
        network, names = view.cluster.network, tuple(node.id for node in view.cluster.nodes)
        known = self._graphs.get("graph")
        if known is None or known.network is not network or known.nodes != names:
            known = self._graphs["graph"] = Graph.of(view.cluster)
        return known

    def _wanting(self, view: View, plan: Plan, notes: dict[int, str]) -> Iterable[tuple[JobStatus, tuple[int, ...]]]:
        """Jobs that may be aggregated and their nodes, by number; `notes` say of the others why not."""
        row = {number: i for i, number in enumerate(view.jobs.number.tolist())}
        hosts = plan.groups.hosts
        found: list[tuple[JobStatus, tuple[int, ...]]] = []
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
        runs = next(name for name in OF_PROTOCOL if isinstance(self.manager, type(manager_of(name))))
        if ina.protocol is not None and not isinstance(self.manager, type(manager_of(ina.protocol))):
            return f"asks for {ina.protocol}; the switches run {runs}"
        return None

    def _served(self, view: View, graph: Graph, wanting: list[tuple[JobStatus, tuple[int, ...]]]) -> list[Asked]:
        """With a parameter server each: that it has while it stays on its nodes, else where its rate is best."""
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
        state = SteadyState.of(
            graph,
            {job.number: Exchange(PlacedJob(nodes, known[job.number]), "hash")
             for job, nodes in wanting if job.number in known},
        )  # fmt: skip
        found = []
        for job, nodes in wanting:
            server = known.get(job.number)
            if server is None:
                server, state = best_server(state, job.number, nodes, up)
            found.append(Asked(job, PlacedJob(nodes, server)))
        return found

    def _routed(self, view: View, graph: Graph, asked: list[Asked]) -> list[Asked]:
        """With the switch of each worker."""
        network = view.cluster.network
        assert network is not None
        there = [one.id for one in network.switches if one.usable and one.id not in network.down]
        if not asked or not there:
            return [replace(one, at=(STRAIGHT,) * len(one.placed.workers)) for one in asked]
        flows = [GradientFlow(one.placed, self._bits(one.job) / self._iteration_s(one.job)) for one in asked]
        problem = Problem.of(graph, flows, there)
        routing = grid(problem, self.seed) if self.routing == "grid" else shortest(problem, self.routing)
        return [replace(one, at=row) for one, row in zip(asked, routing.choice, strict=True)]

    def _granted(self, view: View, graph: Graph, asked: list[Asked], notes: dict[int, str]) -> Iterable[NetworkGrant]:
        """What the manager gives these jobs; `notes` say of those without why."""
        assert view.cluster.network is not None
        before = by_job(view.grants)
        leases = []
        servers: dict[int, int] = {}
        for one in asked:
            switches = one.switches(graph)
            if not switches:
                notes[one.number] = "no switch with free memory sees packets of two of its workers"
                continue
            assert one.placed.server is not None
            servers[one.number] = one.placed.server
            leases.append(self._lease(self._request(view, graph, one, switches), before.get(one.number, ())))
        if not leases:
            return []
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
                grants.append(
                    NetworkGrant(
                        answer.job, given.switch, 0 if whole else region.offset, 0 if whole else region.size,
                        region.mode.name.lower(), region.exclusive, given.window, answer.priority,  # type: ignore[arg-type]
                        region.epoch, servers[answer.job], reason=answer.reason,
                    )
                )  # fmt: skip
        return grants

    def _request(self, view: View, graph: Graph, one: Asked, switches: tuple[str, ...]) -> Request:
        """What the manager is told of a job: estimates, as policies have them."""
        job, spec, placed = one.job, one.job.spec, one.placed
        assert placed.server is not None
        out = graph.channel_bits_per_s[np.isin(graph.ends[:, 0], placed.workers)]
        link, bits, iteration_s = float(out.min()), self._bits(job), self._iteration_s(job)
        ceiling = link * 248 / 306
        exchange_s = min(bits / ceiling, iteration_s / 2)
        left = math.nan if spec.iterations is None else max(spec.iterations - job.iterations_done, 0.0)
        return Request(
            job=job.number, switches=switches, need=spec.ina.mode, memory=spec.ina.memory, window=spec.ina.window,
            ttl_s=spec.ina.ttl_s or math.inf, link_bits_per_s=link, rtt_s=self._rtt_s(graph, placed),
            gradient_bytes=bits / 8, computation_s=iteration_s - exchange_s, communication_s=exchange_s,
            iterations_left=left, deadline_s=math.inf if spec.deadline_s is None else spec.submit_s + spec.deadline_s,
            remaining_s=left * iteration_s, attained_s=job.attained_gpu_s,
        )  # fmt: skip

    def _rtt_s(self, graph: Graph, placed: PlacedJob) -> float:
        """From a packet to its result over the server, without queues."""
        assert placed.server is not None
        farthest = max(graph.delay_s(graph.path(worker, placed.server)) for worker in placed.workers)
        return 2 * farthest + 2e-6  # and a microsecond each for the server and the bits of the packet

    def _bits(self, job: JobStatus) -> float:
        """Bits of one gradient, by its model where the job does not say."""
        known = job.spec.gradient_bytes
        return 8.0 * (gradient_bytes(job.spec.model or job.spec.id, self.seed) if known is None else max(known, 4.0))

    def _iteration_s(self, job: JobStatus) -> float:
        return job.profile.iteration_s if job.profile is not None else job.spec.iteration_s or 1.0

    def _lease(self, request: Request, before: tuple[NetworkGrant, ...]) -> Lease:
        """A lease with the regions that the job has now."""
        had = {
            grant.switch: Region(grant.offset, grant.size, Index[grant.mode.upper()], grant.epoch, grant.exclusive)
            for grant in before if grant.size
        }  # fmt: skip
        regions = tuple(had.get(switch) for switch in request.switches)
        return Lease(request, Target(None), regions, math.inf, max((grant.epoch for grant in before), default=0))

    def _without_required(self, view: View, plan: Plan, notes: Mapping[int, str]) -> Plan:
        """The plan without groups of jobs that require aggregation and do not get it: these wait."""
        granted = {grant.job for grant in plan.grants}
        row = {number: i for i, number in enumerate(view.jobs.number.tolist())}
        held = {
            number: f"requires aggregation in switches: {notes.get(number, 'no switch has memory for it')}"
            for number in plan.groups.jobs.tolist()
            if number not in granted and view.jobs[row[number]].spec.ina.required
        }
        if held:
            group = plan.groups.group_of_member()
            out = {int(g) for g, job in zip(group, plan.groups.jobs.tolist(), strict=True) if job in held}
            keep = np.array([g for g in range(len(plan.groups)) if g not in out], dtype=np.int64)
            gone = set(plan.groups.jobs.tolist()) - set(plan.groups[keep].jobs.tolist())
            beside = dict.fromkeys(gone - set(held), "shares its GPUs with a job that requires aggregation in switches")
            plan = replace(
                plan, groups=plan.groups[keep], reasons={**plan.reasons, **beside, **held},
                grants=tuple(grant for grant in plan.grants if grant.job not in gone),
            )  # fmt: skip
        running = set(plan.groups.jobs.tolist())
        return replace(plan, network_notes={job: why for job, why in notes.items() if job in running})
