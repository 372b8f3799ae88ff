"""Memory by deadlines for simulated jobs: what the manager `inalloc` grants becomes regions and windows of packets."""

from __future__ import annotations

import math
from dataclasses import replace

from plait.core.errors import InputError
from plait.network.memory.inalloc import Inalloc
from plait.network.memory.records import Memory, Request
from plait.network.packets.scenario import PacketJob, Scenario
from plait.network.topology.trees import tree


def granted(scenario: Scenario, manager: Inalloc | None = None) -> Scenario:
    """The scenario in which jobs of protocol inalloc have what the manager decides; others are as they were.

    A job with a deadline that can be met gets a region of its own and the window that it needs; all others share what
    is left, by a hash. Decided once, as if all jobs were submitted at the start, and by default as the description
    reads: what no deadline needs is for the others (`spare=others`).
    """
    manager = manager or Inalloc(spare="others")
    network = scenario.cluster.network
    assert network is not None
    memory, first = Memory.of(network), len(scenario.graph.nodes)
    asking = [j for j, job in enumerate(scenario.jobs) if job.options.protocol == "inalloc"]
    for j in asking:
        nodes, server = scenario.placement[j]
        adders = tree(scenario.graph, nodes, server, scenario.jobs[j].options.adds, pick=j).adders
        names = tuple(network.switches[at - first].id for at in sorted(adders))
        if names:
            memory, _ = manager.admit(memory, _request(scenario, j, names), 0.0)
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


def _request(scenario: Scenario, j: int, switches: tuple[str, ...]) -> Request:
    """What the manager has to know of a job."""
    job, graph = scenario.jobs[j], scenario.graph
    out = [channel for node in scenario.placement[j][0] for channel in graph.path(node, graph.leaf(node))]
    return Request(
        job=j,
        switches=switches,
        link_bits_per_s=min(float(graph.channel_bits_per_s[channel]) for channel in out),
        rtt_s=base_rtt_s(scenario, j),
        gradient_bytes=float(sum(job.tensors)),
        computation_s=job.compute_s,
        iterations_left=float(job.iterations),
        deadline_s=math.inf if job.deadline_s is None else job.deadline_s - job.start_s,
    )
