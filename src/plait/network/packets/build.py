"""The arrays of a simulation, from a scenario. Start at `build`."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np

from plait.core.arrays import FloatArray, IntArray
from plait.core.errors import InputError
from plait.network.packets import heap, state
from plait.network.packets.collectives import AllReduce, program
from plait.network.packets.links import ENTRY, schedule
from plait.network.packets.regions import priorities, regions
from plait.network.packets.scenario import FLOW_SIZES, PacketJob, Scenario
from plait.network.packets.state import DOWN, PS, UP, Ends, Fabric, Links, Net, PeerTraffic
from plait.network.packets.wiring import Wiring, wired
from plait.network.protocol import server, switch, worker
from plait.network.protocol.addressing import Index, cycle_slots, mix
from plait.network.protocol.header import Records, make_packets
from plait.network.protocol.options import set_cycle, set_region, set_up, set_windows

NEVER = 1 << 62
#: The first packet of a job has a number below this one.
FIRST_SEQS = 1 << 20
#: Windows for which a queue has room: packets that are sent again may follow those of a window.
WINDOWS = 4
#: Bytes of a packet of background traffic: 1,024 of payload and the headers of others.
FLOW_BYTES = 1082
#: Packets of one flow of background traffic for which a queue has room; more are dropped.
FLOW_ROOM = 1024


def ps(seconds: float) -> int:
    """Picoseconds, at most a time that never comes."""
    return min(NEVER, round(seconds * 1e12)) if seconds < 1e6 else NEVER


def build(scenario: Scenario) -> Net:
    """All arrays of a scenario, with the start of every worker in the heap.

    Raises `InputError` for jobs that do not fit the memory or the network.
    """
    trees = [
        Wiring(-1, [scenario.graph.next_hops(node, scenario.graph.leaf(node))[0][0] for node in nodes])
        if job.collective
        else wired(scenario.graph, j, nodes, where, job.options.adds, job.tree)
        for j, (job, (nodes, where)) in enumerate(zip(scenario.jobs, scenario.placement, strict=True))
    ]
    jobs, adding = scenario.jobs, _adding(scenario, trees)
    usable = min((scenario.cluster.network.switches[s].usable for s in adding), default=0)  # type: ignore[union-attr]
    found = regions(jobs, usable)
    hosts = [(j, rank) for j, job in enumerate(jobs) for rank in range(job.workers)]
    switches, aggregators = _switches(scenario)
    routes, kids, jobs_at = _routes(scenario, trees, adding, found)
    peers, peer_room, peer_rows = _peers(scenario, hosts)
    rows = sum(WINDOWS * job.workers * job.options.window for job in jobs) + 1024 + peer_rows
    packets, values = make_packets(rows, scenario.elements)
    queues, entries = _queues(scenario, trees, peer_room)
    reminders = len(queues) + 2 * len(hosts) + len(switches)
    sources = len(queues) + 2 * len(hosts) + len(switches) + len(jobs) + len(peers.flows)
    table = switch.make_switch(aggregators, 0, scenario.elements)
    free = np.arange(1, rows + 1, dtype=np.int32)
    free[-1] = -1
    iterations = max(job.iterations for job in jobs)
    times = np.zeros((len(jobs), iterations, 2), dtype=np.int64)
    times[:, :, 0] = NEVER
    info = np.zeros(state.INFO, dtype=np.int64)
    info[state.ACTIVE], info[state.SEED], info[state.WIDTH] = len(hosts), scenario.seed, PS * PS // 8
    bins = np.zeros((2, len(jobs), state.BINS), dtype=np.int64)
    links = Links(
        _channels(scenario), queues, entries, np.zeros(sources, dtype=heap.EVENT), packets, values, free,
        _jobs(scenario, len(peers.flows)), info,
    )  # fmt: skip
    none_held = np.zeros((len(switches), 1), np.int64)
    fabric = Fabric(routes, kids, switches, table.table, table.value, jobs_at, none_held, bins[0])
    servers, workers = _protocol(scenario, hosts, found)
    moves = np.zeros(len(jobs), dtype=state.MOVE)
    moves["tensor"] = NEVER
    ends = Ends(
        _workers_at(scenario, hosts),
        _tensors(scenario, len(peers.flows)),
        _hosts(scenario, hosts, trees),
        bins[1],
        times,
        moves,
        workers,
    )
    net = Net(links, fabric, ends, servers, peers, np.zeros((scenario.log, state.COLUMNS), dtype=np.int64))
    for w, (j, _) in enumerate(hosts):
        begin = ps(jobs[j].start_s) + int(ends.hosts[w]["compute"])
        schedule(links, begin, len(queues) + len(hosts) + w)
    for s in range(len(switches)):
        schedule(links, PS * int(switches[s]["max_age"]), len(queues) + 2 * len(hosts) + s)
    for j, job in enumerate(jobs):
        if job.options.reminder_s and job.served:
            schedule(links, ps(job.start_s + job.options.reminder_s), reminders + j)
    for f, one in enumerate(peers.flows):
        schedule(links, int(one["start"]), reminders + len(jobs) + f)
    return net


def _adding(scenario: Scenario, trees: list[Wiring]) -> list[int]:
    """The switches, by number, that add up for some job; checks that they hold its packets."""
    switches, first = scenario.cluster.network.switches, len(scenario.cluster.nodes)  # type: ignore[union-attr]
    for j, (job, made) in enumerate(zip(scenario.jobs, trees, strict=True)):
        for at in made.adds:
            if job.options.payload_bytes > (holds := switches[at - first]).payload_bytes:
                raise InputError(
                    f"job {j}: payload_bytes is {job.options.payload_bytes}; an aggregator of switch {holds.id} holds "
                    f"{holds.payload_bytes}"
                )
    return sorted({at - first for made in trees for at in made.adds})


def _channels(scenario: Scenario) -> Records:
    """Rates and marks of all channels, and what slows them down."""
    graph = scenario.graph
    channels = np.zeros(len(graph.ends), dtype=state.CHANNEL)
    channels["ps_per_byte"] = 8e12 / graph.channel_bits_per_s
    channels["to"] = graph.ends[:, 1]
    wire = max(job.options.payload_bytes + job.options.header_bytes for job in scenario.jobs)
    from_switch = graph.ends[:, 0] >= len(graph.nodes)
    marks = (scenario.mark_packets * wire * channels["ps_per_byte"]).astype(np.int64)
    channels["mark_ps"] = np.where(from_switch & (scenario.mark_packets > 0), marks, NEVER)
    channels["full_ps"], channels["pauses"] = NEVER, scenario.overflow == "pause"
    if scenario.queue_packets:
        full = scenario.queue_packets * wire * channels["ps_per_byte"]
        channels["full_ps"] = np.where(from_switch, full.astype(np.int64), NEVER)
    channels["lose_up"], channels["lose_down"] = round(scenario.loss_up * 2**30), round(scenario.loss_down * 2**30)
    channels["slow"] = 1.0
    for one in scenario.stragglers:
        if one.share < 1:
            node = scenario.placement[one.job][0][one.rank]
            for channel in np.flatnonzero((graph.ends == node).any(axis=1)):
                row = channels[channel]
                row["slow"], row["slow_from"], row["slow_until"] = 1 / one.share, ps(one.from_s), ps(one.until_s)
    return channels


def _queues(scenario: Scenario, trees: list[Wiring], peer_room: IntArray) -> tuple[Records, Records]:
    """The rings of both classes of packets of every channel: as large as the jobs that use it may need."""
    graph, network = scenario.graph, scenario.cluster.network
    assert network is not None
    room = np.zeros(2 * len(graph.ends), dtype=np.int64)
    room[DOWN::2] += peer_room
    for job, made in zip(scenario.jobs, trees, strict=True):
        window = WINDOWS * job.options.window + 64
        for channel in () if job.collective else made.first:
            room[2 * channel + UP] += window
        for at, channel in made.up.items():
            room[2 * channel + UP] += window * sum(bin(bits & (2**64 - 1)).count("1") for _, bits in made.kids[at])
        for kids in made.kids.values():
            for channel, bits in kids:
                room[2 * channel + DOWN] += window * bin(bits & (2**64 - 1)).count("1")
        if 0 <= made.root < len(graph.nodes):
            room[2 * _server_channel(scenario, made) + DOWN] += window * job.workers
    both = np.repeat((room[UP::2] > 0) & (room[DOWN::2] > 0), 2)
    room = np.concatenate([room, np.where(both, room, 0)])
    queues = np.zeros(len(room), dtype=state.QUEUE)
    queues["line"] = -1
    queues["line"][: len(both)][both] = len(both) + np.flatnonzero(both)
    sizes = np.where(room > 0, 2 ** np.ceil(np.log2(np.maximum(1, room))).astype(np.int64), 1)
    queues["first"], queues["mask"] = np.cumsum(sizes) - sizes, sizes - 1
    for c, (_, to) in enumerate(graph.ends.tolist()):
        delay = ps(network.links[c // 2].delay_s)
        queues["delay"][2 * c + UP] = queues["delay"][2 * c + DOWN] = delay
        if to >= len(graph.nodes):
            queues["delay"][2 * c + DOWN] += ps(network.switches[to - len(graph.nodes)].delay_s)
    return queues, np.zeros(int(sizes.sum()), dtype=ENTRY)


def _server_channel(scenario: Scenario, made: Wiring) -> int:
    return scenario.graph.next_hops(made.root, scenario.graph.leaf(made.root))[0][0]


def _switches(scenario: Scenario) -> tuple[Records, int]:
    """The switches, and the aggregators of all of them."""
    network = scenario.cluster.network
    assert network is not None
    found = np.zeros(len(network.switches), dtype=state.SWITCH)
    usable = np.array([one.usable for one in network.switches], dtype=np.int64)
    found["first"], found["last"] = np.cumsum(usable) - usable, np.cumsum(usable)
    found["latency"] = [ps(one.delay_s) for one in network.switches]
    found["max_age"] = min(job.options.max_age_ns for job in scenario.jobs)
    found["ps_per_byte"] = 8e12 / scenario.graph.channel_bits_per_s.max()
    return found, int(usable.sum())


def _routes(
    scenario: Scenario, trees: list[Wiring], adding: list[int], found: list[tuple[int, int]]
) -> tuple[Records, Records, Records]:
    """Routes of all jobs at all switches, their children, and the jobs that switches add up for."""
    first, count = len(scenario.graph.nodes), len(scenario.graph.network.switches)
    routes = np.zeros((count, len(trees)), dtype=state.ROUTE)
    routes["up"] = -1
    jobs_at = np.zeros((count, len(trees)), dtype=switch.SWITCH_JOB)
    kids: list[tuple[int, int]] = []
    for j, (job, made) in enumerate(zip(scenario.jobs, trees, strict=True)):
        for at, mine in made.kids.items():
            route = routes[at - first, j]
            route["up"] = made.up.get(at, -1)
            route["first_kid"], route["kids"] = len(kids), len(mine)
            kids += mine
            if at in made.adds:
                one = switch.Switch(np.zeros(0), np.zeros((0, 0), np.int32), jobs_at[at - first], np.zeros(1, np.int64))
                rules = job.options.rules | (switch.BELOW if at != made.root else 0)
                switch.register(one, j, made.adds[at], job.workers, rules)
                switch.grant(one, j, *found[j], epoch=0)
    return routes, np.array(kids, dtype=state.KID), jobs_at


def _workers_at(scenario: Scenario, hosts: list[tuple[int, int]]) -> np.ndarray[tuple[int, int], np.dtype[np.int32]]:
    found = np.full((len(scenario.graph.nodes), len(scenario.jobs)), -1, dtype=np.int32)
    for w, (j, rank) in enumerate(hosts):
        found[scenario.placement[j][0][rank], j] = w
    return found


def _jobs(scenario: Scenario, flows: int) -> Records:
    found = np.zeros(len(scenario.jobs) + flows, dtype=state.JOB)
    found["wire_bytes"] = FLOW_BYTES
    for row, job, (_, where) in zip(found, scenario.jobs, scenario.placement, strict=False):
        row["wire_bytes"] = job.options.payload_bytes + job.options.header_bytes
        row["server_ps"], row["n_workers"], row["busy"] = ps(scenario.server_s), job.workers, job.workers
        row["tensors"], row["per_iteration"] = len(job.tensors) * job.iterations, len(job.tensors)
        row["exponents"], row["dedicated"], row["collective"] = job.exponents, job.dedicated, bool(job.collective)
        row["passes"], row["reminder"] = scenario.passes(job), ps(job.options.reminder_s)
        if where is not None:
            row["server_channel"] = scenario.graph.next_hops(where, scenario.graph.leaf(where))[0][0]
    return found


def _tensors(scenario: Scenario, flows: int) -> IntArray:
    """First packet, end and priority of every tensor of every job."""
    most = max(len(job.tensors) * job.iterations for job in scenario.jobs)
    found = np.zeros((len(scenario.jobs) + flows, most, 3), dtype=np.int64)
    rate = float(scenario.graph.channel_bits_per_s.max())
    for j, job in enumerate(scenario.jobs):
        sizes = np.array(job.packets * job.iterations, dtype=np.int64) + job.exponents
        # As of jobs that have run for a while: another seed has other hashes, too.
        ends = np.cumsum(sizes) + mix(scenario.seed, j) % FIRST_SEQS
        found[j, : len(sizes), 0], found[j, : len(sizes), 1] = ends - sizes, ends
        found[j, : len(sizes), 2] = priorities(job, rate)
    return found


def _hosts(scenario: Scenario, hosts: list[tuple[int, int]], trees: list[Wiring]) -> Records:
    found = np.zeros(len(hosts), dtype=state.HOST)
    slower = {(one.job, one.rank): one.compute for one in scenario.stragglers}
    for row, (j, rank) in zip(found, hosts, strict=True):
        row["channel"], row["rank"] = trees[j].first[rank], rank
        row["jitter"] = ps(scenario.jitter_s)
        row["compute"] = ps(scenario.jobs[j].compute_s * slower.get((j, rank), 1.0))
    return found


def _protocol(
    scenario: Scenario, hosts: list[tuple[int, int]], found: list[tuple[int, int]]
) -> tuple[server.Server, worker.Workers]:
    """Servers and workers, set up."""
    jobs = scenario.jobs
    lists = {j: _cycle(j, job, *found[j]) for j, job in enumerate(jobs) if job.options.mode == Index.SHARED_CYCLE}
    movable = {j for j in lists if jobs[j].options.slot_change == "on"}
    slots = max((found[j][0] + found[j][1] for j in movable), default=0)
    window = max(job.options.window for job in jobs)
    servers = server.make_server(len(jobs), window, scenario.elements, slots)
    pool = max((job.options.window for job in jobs if job.dedicated), default=1)
    workers = worker.make_workers(len(hosts), window, max(map(len, lists.values()), default=1), pool)
    for j, job in enumerate(jobs):
        server.register(servers, j, job.workers, lists.get(j) if j in movable else None, found[j][0])
        set_windows(servers, j, job.options)
    for w, (j, rank) in enumerate(hosts):
        set_up(workers, w, jobs[j].options, j, rank, jobs[j].workers)
        set_region(workers, w, *found[j], epoch=0)
        if j in lists:
            set_cycle(workers, w, lists[j], epoch=0)
    return servers, workers


def _cycle(j: int, job: PacketJob, first: int, size: int) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    return cycle_slots(j, job.options.cycle_slots, size, first)


def _peers(scenario: Scenario, hosts: list[tuple[int, int]]) -> tuple[PeerTraffic, IntArray, int]:
    """The arrays, the packets for which each channel needs room, and those that are under way at most.

    Packets of background traffic take no room of jobs: each channel counts them, and drops those above `FLOW_ROOM` for
    each flow through it.
    """
    graph, jobs = scenario.graph, scenario.jobs
    first, switches = len(graph.nodes), len(graph.names) - len(graph.nodes)
    sizes = _sizes(scenario.background_flows)
    flows = _flows(scenario, sizes)
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

    programs: dict[tuple[int, int], AllReduce] = {
        (j, k): program(job.collective, job.workers, packets)
        for j, job in enumerate(jobs) if job.collective for k, packets in enumerate(job.packets)
    }  # fmt: skip
    lanes = max((len(one.lanes[0]) for one in programs.values()), default=0)
    parts = max((one.parts for one in programs.values()), default=0)
    tensors = max((len(job.tensors) for job in jobs if job.collective), default=0)
    count = len(hosts) if programs else 0
    starts = np.zeros((count, tensors, lanes + 1), dtype=np.int64)
    expected = np.zeros((count, tensors, parts), dtype=np.int64)
    missing = np.zeros((count, 2, parts), dtype=np.int64)
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
        missing[w] = expected[w, [0, 1 % len(job.tensors)]]  # of a single tensor, that of the next iteration
    waiting = np.zeros((len(graph.ends) if len(flows) else 0, 2), dtype=np.int64)
    load = np.zeros(len(graph.ends))
    for source, one in enumerate(flows):
        way = route(int(one["job"]), source, int(one["node"]), source, FLOW_ROOM)
        waiting[list(way), 1] += FLOW_ROOM
        load[list(way)] += scenario.background * graph.channel_bits_per_s[way[0]]
    _check_background(scenario, load)
    left = np.zeros((count, 3), dtype=np.int64)
    left[:, :2] = missing.sum(axis=2)
    made = np.array(sends, dtype=state.SEND) if sends else np.zeros(0, dtype=state.SEND)
    under_way = np.zeros((count, lanes), dtype=state.LANE)
    peers = PeerTraffic(hops, under_way, made, starts, missing, left, expected, flows, waiting, sizes)
    return peers, room, rows + int(waiting[:, 1].sum())


def _check_background(scenario: Scenario, load: FloatArray) -> None:
    """Raise `InputError` where background traffic of so many bits/s takes all of a channel: jobs might never end."""
    graph, rates = scenario.graph, scenario.graph.channel_bits_per_s.copy()
    for slow in scenario.stragglers:
        if slow.until_s == math.inf:
            rates[(graph.ends == scenario.placement[slow.job][0][slow.rank]).any(axis=1)] *= slow.share
    shares = load / rates
    full = int(shares.argmax())
    if shares[full] > 1 - 1e-9:
        raise InputError(
            f"background is {scenario.background:g}: it takes {load[full] / 1e9:g} of the {rates[full] / 1e9:g} Gb/s "
            f"of link {graph.channel_name(full)} with seed {scenario.seed}; give less than "
            f"{math.floor(1000 * scenario.background / shares[full] + 1e-6) / 1000:g}, or less oversubscription and no "
            "straggler there"
        )


def _sizes(name: str) -> IntArray:
    """Quantiles of the sizes of flows, one of `FLOW_SIZES`, in packets of background traffic."""
    packets, share = np.array(FLOW_SIZES[name]).T
    found = np.interp((np.arange(1024) + 0.5) / 1024, share, packets)
    sizes: IntArray = found.astype(np.int64) if name == "even" else np.ceil(found * 1460 / 1024).astype(np.int64)
    return sizes


def _flows(scenario: Scenario, sizes: IntArray) -> Records:
    """Background traffic: each node sends flows of one of these sizes to the next of a random cycle.

    It begins as if it had gone on for ever: a flow of several packets is under way on each node with a chance of
    `background`, a large one rather than a small one, because it takes longer.
    """
    nodes, graph = len(scenario.graph.nodes), scenario.graph
    if not scenario.background or nodes < 2:
        return np.zeros(0, dtype=state.FLOW)
    rng = np.random.default_rng(scenario.seed)
    cycle = rng.permutation(nodes)
    found = np.zeros(nodes, dtype=state.FLOW)
    found["node"][cycle] = np.roll(cycle, -1)
    found["job"] = len(scenario.jobs) + np.arange(nodes)
    out = [graph.next_hops(node, graph.leaf(node))[0][0] for node in range(nodes)]
    found["channel"] = out
    line_ps, mean = 8e12 * FLOW_BYTES / graph.channel_bits_per_s[out], float(sizes.mean())
    found["line"] = np.rint(line_ps)
    found["gap"] = np.rint(line_ps * (mean / scenario.background - (mean - 1)))
    found["left"], found["start"] = 1, found["gap"] * np.arange(nodes) // nodes
    if sizes[-1] > 1:
        under_way, left, part, gone = rng.random((4, nodes))
        large = sizes[np.searchsorted(np.cumsum(sizes), left * sizes.sum(), side="right")]
        small = sizes[(left * len(sizes)).astype(np.int64)]
        found["left"] = np.where(busy := under_way < scenario.background, np.ceil(large * (1 - part)), small)
        # What is left of a gap that is drawn evenly from 0 to twice the mean.
        found["start"] = np.where(busy, gone * found["line"], 2 * found["gap"] * (1 - np.sqrt(1 - gone)))
    return found
