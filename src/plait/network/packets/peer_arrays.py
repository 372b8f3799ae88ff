"""The arrays of packets between nodes, from a scenario. Start at `made_peers`."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from plait.core.arrays import IntArray
from plait.network.packets import state
from plait.network.packets.collectives import Program, program
from plait.network.packets.scenario import Scenario
from plait.network.packets.state import Peers
from plait.network.protocol.header import Records

#: Bytes of a packet of background traffic: 1,024 of payload and the headers of others.
FLOW_BYTES = 1082
#: Packets of one flow of background traffic for which a queue has room.
FLOW_ROOM = 1024


def made_peers(scenario: Scenario, hosts: list[tuple[int, int]]) -> tuple[Peers, IntArray, int]:
    """The arrays, the packets for which each channel needs room, and those that are under way at most."""
    graph, jobs = scenario.graph, scenario.jobs
    first, switches = len(graph.nodes), len(graph.names) - len(graph.nodes)
    flows = _flows(scenario)
    used = any(job.collective for job in jobs) or len(flows) > 0
    hops = np.zeros((len(jobs) + len(flows), switches, first) if used else (0, 0, 0), dtype=np.int32)
    room, rows = np.zeros(len(graph.ends), dtype=np.int64), 0

    def route(k: int, source: int, target: int, pick: int, packets: int) -> tuple[int, ...]:
        """Enter the way of packets from node to node; switches send by the target alone, so all to it meet."""
        way = graph.path(source, target, pick)
        for before, channel in pairwise(way):
            hops[k, graph.to[before] - first, target] = channel
        room[list(way)] += packets
        return way

    programs: dict[tuple[int, int], Program] = {
        (j, k): program(job.collective, job.workers, packets)
        for j, job in enumerate(jobs) if job.collective for k, packets in enumerate(job.packets)
    }  # fmt: skip
    lanes = max((len(one.lanes[0]) for one in programs.values()), default=0)
    parts = max((one.parts for one in programs.values()), default=0)
    tensors = max((len(job.tensors) for job in jobs if job.collective), default=0)
    count = len(hosts) if programs else 0
    starts = np.zeros((count, tensors, lanes + 1), dtype=np.int64)
    expected = np.zeros((count, tensors, parts), dtype=np.int64)
    sends: list[tuple[int, int, int, int, int]] = []
    for w, (j, rank) in enumerate(hosts):
        job, nodes = jobs[j], scenario.placement[j][0]
        if not job.collective:
            continue
        back: dict[int, int] = {}
        rows += lanes * (job.options.window + 1)
        for k in range(len(job.tensors)):
            one = programs[j, k]
            received = one.expected()[rank]
            expected[w, k, : len(received)] = received
            for lane, mine in enumerate(one.lanes[rank]):
                starts[w, k, lane] = len(sends)
                for send in mine:
                    if send.to not in back:
                        way = route(j, nodes[rank], nodes[send.to], j + send.to, 2 * lanes * job.options.window)
                        back[send.to] = round(1e12 * graph.delay_s(way))
                    sends.append((nodes[send.to], send.packets, send.part, send.after, back[send.to]))
            starts[w, k, len(one.lanes[rank]) :] = len(sends)
    for source, one in enumerate(flows):
        route(int(one["job"]), source, int(one["node"]), source, FLOW_ROOM)
    missing = (
        np.stack([expected[:, 0], expected[:, 1 % max(1, tensors)]], axis=1) if count else np.zeros((0, 2, 0), int)
    )
    left = np.zeros((count, 3), dtype=np.int64)
    left[:, :2] = missing.sum(axis=2)
    made = np.array(sends, dtype=state.SEND) if sends else np.zeros(0, dtype=state.SEND)
    peers = Peers(hops, np.zeros((count, lanes), dtype=state.LANE), made, starts, missing, left, expected, flows)
    return peers, room, rows + FLOW_ROOM * len(flows)


def _flows(scenario: Scenario) -> Records:
    """Background traffic: each node sends to the next of a random cycle."""
    nodes, graph = len(scenario.graph.nodes), scenario.graph
    if not scenario.background or nodes < 2:
        return np.zeros(0, dtype=state.FLOW)
    cycle = np.random.default_rng(scenario.seed).permutation(nodes)
    found = np.zeros(nodes, dtype=state.FLOW)
    found["node"][cycle] = np.roll(cycle, -1)
    found["job"] = len(scenario.jobs) + np.arange(nodes)
    out = [graph.next_hops(node, graph.leaf(node))[0][0] for node in range(nodes)]
    found["channel"] = out
    found["gap"] = np.rint(8e12 * FLOW_BYTES / graph.channel_bits_per_s[out] / scenario.background)
    return found
