"""Memory by deadlines for simulated jobs: what the manager `inalloc` grants becomes regions and windows of packets."""

from __future__ import annotations

import math
from dataclasses import replace

from plait.core.errors import InputError
from plait.network.memory.inalloc import Inalloc
from plait.network.memory.records import Answer, Memory, Region, Request
from plait.network.packets.scenario import PacketJob, Scenario
from plait.network.packets.state import Net
from plait.network.protocol.addressing import Index
from plait.network.protocol.header import Records
from plait.network.topology.trees import tree

#: A time, or the number of a tensor, that never comes.
NEVER = 1 << 62
#: Most of an iteration in work that counts as done: its end is not known.
MOST_SHARE = 0.9


def granted(scenario: Scenario, manager: Inalloc | None = None) -> Scenario:
    """The scenario in which jobs of protocol inalloc have what the manager decides; others are as they were.

    A job with a deadline that can be met gets a region of its own and the window that it needs; all others share what
    is left, by a hash. Decided once, as if all jobs were submitted at the start, and by default as the description
    reads: what no deadline needs is for the others (`spare=others`).
    """
    manager = manager or Inalloc(spare="others")
    network = scenario.cluster.network
    assert network is not None
    memory = Memory.of(network)
    asking = [j for j, job in enumerate(scenario.jobs) if job.options.protocol == "inalloc"]
    for j in asking:
        request = _request(scenario, j)
        if request is not None:
            request = replace(request, deadline_s=request.deadline_s - scenario.jobs[j].start_s)
            memory, _ = manager.admit(memory, request, 0.0)
    memory = manager.settle(memory)
    jobs = list(scenario.jobs)
    for j in asking:
        lease = memory.find(j)
        own = [] if lease is None else [region for region in lease.regions if region is not None and region.exclusive]
        if lease is not None and own:
            options = replace(jobs[j].options, index=own[0].mode.name.lower(), window=lease.target.window)
            jobs[j] = replace(jobs[j], options=options, memory=own[0].size)
        else:
            jobs[j] = replace(jobs[j], options=replace(jobs[j].options, index="hybrid_region"), memory=None)
    return replace(scenario, jobs=tuple(jobs))


class Reviews:
    """The loop of the manager: at the start of a job and once in a period it decides for all jobs again.

    A job takes the region that is decided for it at its next iteration, all of its workers with the same tensor;
    packets of the epoch before drain. `scenario`: as it is to be built, in which all jobs share the memory.
    """

    def __init__(self, scenario: Scenario, manager: Inalloc) -> None:
        """Nobody has memory yet. Raises `InputError` for jobs of other protocols."""
        for j, job in enumerate(scenario.jobs):
            if job.options.protocol != "inalloc":
                raise InputError(
                    f"job {j}: protocol {job.options.protocol}; reviews take scenarios whose jobs all are of inalloc"
                )
        jobs = list(scenario.jobs)
        self._windows = [job.options.window for job in jobs]  # of jobs that share
        for j, job in enumerate(jobs):
            request = _request(scenario, j)
            full = request.full_window(job.options.payload_bytes) if request is not None else 1
            options = replace(job.options, index="hybrid_region", window=max(full, job.options.window))
            jobs[j] = replace(job, options=options, memory=None)
        self.scenario = replace(scenario, jobs=tuple(jobs))
        network = scenario.cluster.network
        assert network is not None
        self._manager, self._memory = manager, Memory.of(network)
        self._starts = sorted({job.start_s for job in scenario.jobs})
        self._at_s = -1.0
        self._came: set[int] = set()
        self._seen: dict[int, int] = {}  # of each job the iterations that had ended at the last review

    def next_s(self, net: Net) -> float:
        """When the next review is; infinite when all jobs are finished."""
        if not net.links.jobs["busy"].any():
            return math.inf
        starts = [start_s for start_s in self._starts if start_s > self._at_s]
        return min([self._at_s + self._manager.period_s if self._at_s >= 0 else 0.0, *starts[:1]])

    def review(self, net: Net, now_s: float) -> None:
        """Decide for all jobs; those between two iterations get another region."""
        self._at_s = now_s
        for j, job in enumerate(self.scenario.jobs):
            lease = self._memory.find(j)
            if job.start_s > now_s or (lease is None and j in self._came):
                continue
            if not net.links.jobs[j]["busy"]:
                self._memory = self._manager.release(self._memory, j, now_s)
                continue
            request = _request(self.scenario, j)
            if request is None:
                self._came.add(j)
                continue
            request = replace(request, iterations_left=_iterations_left(net, j, job, now_s))
            if lease is None:
                self._came.add(j)
                self._memory, _ = self._manager.admit(self._memory, request, now_s)
            else:
                self._memory, _ = self._manager.renew(self._memory, j, now_s, request)
        for lease in self._memory.leases:
            j = lease.request.job
            first = _next_iteration(net, j, len(self.scenario.jobs[j].tensors))
            if first is None or first == self._seen.get(j):
                continue
            before = lease.epoch
            self._memory, answer = self._manager.boundary(self._memory, j)
            places = {(grant.region.offset, grant.region.size) for grant in answer.grants}
            if len(places) <= 1 and (self._memory.lease(j).epoch != before or j not in self._seen):
                self._move(net, j, first, answer)
                self._seen[j] = first

    def _move(self, net: Net, j: int, first: int, answer: Answer) -> None:
        """Let a job use another region from the tensor `first` on; the switches let it claim both for a while."""
        none = Region(0, 0, Index.HYBRID_REGION, self._memory.lease(j).epoch, False)
        region = answer.grants[0].region if answer.grants else none
        window = answer.window if region.exclusive else self._windows[j]
        window, epoch = min(window, self.scenario.jobs[j].options.window), region.epoch & 255
        net.ends.moves[j] = first, region.offset, region.size, region.mode, window, epoch
        row = net.fabric.jobs_at[:, j]
        row[f"first{epoch & 1}"], row[f"size{epoch & 1}"] = region.offset, region.size


def _iterations_left(net: Net, j: int, job: PacketJob, now_s: float) -> float:
    """Iterations that a job has still to do; of that in work a share by time, at the pace that its deadline needs."""
    done = int(_mine(net, j)["tensor"].min()) // len(job.tensors)
    left = job.iterations - done
    if job.deadline_s is None:
        return float(left)
    since_s = net.ends.times[j, done - 1, 1] / 1e12 if done else job.start_s
    pace_s = (job.deadline_s - since_s) / left
    return left - (min(MOST_SHARE, (now_s - since_s) / pace_s) if pace_s > 0 else 0.0)


def _mine(net: Net, j: int) -> Records:
    mine: Records = net.ends.hosts[net.ends.workers.state["job"] == j]
    return mine


def _next_iteration(net: Net, j: int, tensors: int) -> int | None:
    """The first tensor that no worker of a job has started and that begins an iteration.

    None while some worker has not come to its last move.
    """
    at = _mine(net, j)["tensor"]
    last = int(at.max())
    move = int(net.ends.moves[j]["tensor"])
    if move < NEVER and not (at > move).all():
        return None
    begun = last % tensors or net.ends.times[j, min(last // tensors, net.ends.times.shape[1] - 1), 0] < NEVER
    return (last // tensors + 1) * tensors if begun else last


def base_rtt_s(scenario: Scenario, j: int) -> float:
    """From a packet of job `j` to its result without queues: the slowest of its workers, with its whole jitter."""
    graph, (nodes, server) = scenario.graph, scenario.placement[j]
    job: PacketJob = scenario.jobs[j]
    bits = 8 * (job.options.payload_bytes + job.options.header_bytes)
    found = 0.0
    if server is None:
        raise InputError(f"job {j}: dedicated slots have no round trip over a server")
    for node in nodes:
        path = graph.path(node, server)
        once = graph.delay_s(path) + sum(bits / float(graph.channel_bits_per_s[channel]) for channel in path)
        found = max(found, 2 * once + scenario.server_s + scenario.jitter_s)
    return found


def _request(scenario: Scenario, j: int) -> Request | None:
    """What the manager has to know of a job; None if no switch adds up its packets."""
    job, graph = scenario.jobs[j], scenario.graph
    nodes, server = scenario.placement[j]
    adders = tree(graph, nodes, server, job.options.adds, pick=j).adders
    switches = tuple(graph.network.switches[at - len(graph.nodes)].id for at in sorted(adders))
    if not switches:
        return None
    out = [channel for node in scenario.placement[j][0] for channel in graph.path(node, graph.leaf(node))]
    return Request(
        job=j,
        switches=switches,
        link_bits_per_s=min(float(graph.channel_bits_per_s[channel]) for channel in out),
        rtt_s=base_rtt_s(scenario, j),
        gradient_bytes=float(sum(job.tensors)),
        computation_s=job.compute_s,
        iterations_left=float(job.iterations),
        deadline_s=math.inf if job.deadline_s is None else job.deadline_s,
    )
