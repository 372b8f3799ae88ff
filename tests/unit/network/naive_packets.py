"""The packet simulator, naively: every packet in one heap, paths as lists, and the naive switch, servers and workers.

Scenarios without congestion marks on results, on networks with one path between any two nodes.
"""

import heapq
from collections.abc import Callable
from copy import deepcopy
from itertools import pairwise
from typing import Any

import numpy as np
from lossy_loop import FLAGS, KINDS

from plait.network.packets.build import build, ps
from plait.network.packets.scenario import Scenario
from plait.network.protocol import addressing, switch
from plait.network.protocol.addressing import mix
from reference.naive_network import NaiveServer, NaiveSwitch, NaiveWorker, Packet, SwitchJob, TwoWindows, bitmap_of

Place = tuple[str, int]


class NaivePackets:
    """A run of a scenario; `log` gets a row for each packet that arrives."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario, self.graph = scenario, scenario.graph
        self.net = build(scenario)  # for regions, priorities and sequence numbers alone
        self.heap: list[tuple[int, int, Callable[..., None], tuple[Any, ...]]] = []
        self.order = self.draws = 0
        self.log: list[list[int]] = []
        self.busy = [0] * len(self.graph.ends)
        self.lines: dict[tuple[int, bool], list[int]] = {}  # when packets are ready, where both classes share a channel
        self.channel = {tuple(pair): c for c, pair in enumerate(self.graph.ends.tolist())}
        self.nodes = len(self.graph.nodes)
        self.switches = {s: self._switch(s) for s in range(len(self.net.fabric.switches))}
        self.servers, self.workers = [], []
        self.ups: dict[tuple[int, int], int] = {}  # (job, switch or node) -> the next hop to the root
        self.downs: dict[tuple[int, int], list[tuple[int, set[int]]]] = {}  # -> next hops, and whom they lead to
        for j, (job, (nodes, where)) in enumerate(zip(scenario.jobs, scenario.placement, strict=True)):
            everybody = frozenset(range(job.workers))
            row = self.net.server.jobs[j]
            count = self.net.server.taken.shape[1]
            order = [(k * int(row["stride"]) + int(row["shift"])) % count for k in range(count)]
            taken = set(np.flatnonzero(self.net.server.taken[j]).tolist())
            slots = order if row["slot_change"] else []
            windows, o = None, job.options
            if o.cc == "a2tp":
                interval = (round(o.a2tp_base_rtt_s * 1e9), round(o.a2tp_interval_end_s * 1e9))
                windows = TwoWindows(o.window, o.first_window, o.first_window, interval)
            ring = self.net.server.entries.shape[1]
            self.servers.append(NaiveServer(everybody, ring, slots, taken, windows=windows))
            for rank, node in enumerate(nodes):
                self.workers.append(self._worker(j, rank))
                leaves = {self.graph.leaf(other) for other in nodes}
                # Without a server sums end at the only leaf, or at the only spine, which is the last switch.
                end = where if where is not None else leaves.pop() if len(leaves) == 1 else len(self.graph.names) - 1
                path = [int(self.graph.ends[c][0]) for c in self.graph.path(node, end)] + [end]
                for a, b in pairwise(path):
                    self.ups[j, a] = b
                    hops = self.downs.setdefault((j, b), [])
                    found = next((ranks for to, ranks in hops if to == a), None)
                    if found is None:
                        hops.append((a, {rank}))
                    else:
                        found.add(rank)
        self.tensor = [0] * len(self.workers)
        self.timed = [False] * len(self.workers)
        self.due = [0] * len(self.workers)  # of dedicated slots: no timer expires before

    def _switch(self, s: int) -> NaiveSwitch:
        made = NaiveSwitch(int(self.net.fabric.switches[s]["last"] - self.net.fabric.switches[s]["first"]))
        for j, row in enumerate(self.net.fabric.jobs_at[s]):
            if row["n_workers"]:
                ranks = frozenset(r for r in range(64) if int(row["expected"]) >> r & 1)
                rules = int(row["rules"])
                made.jobs[j] = SwitchJob(
                    ranks, bool(rules & switch.DEDICATED), bool(rules & switch.PREEMPT),
                    bool(rules & switch.BYPASS_PASSES), bool(rules & switch.AGEING),
                    {0: range(row["first0"], row["first0"] + row["size0"])},
                )  # fmt: skip
        return made

    def _worker(self, j: int, rank: int) -> NaiveWorker:
        o, w = self.scenario.jobs[j].options, len(self.workers)
        row = self.net.ends.workers.state[w]
        return NaiveWorker(
            j, rank, int(row["window"]), round(o.rto_s * 1e9), round(o.first_rto_s * 1e9), o.gap_threshold,
            o.backoff_every, o.mode == addressing.DEDICATED, o.cc, int(row["initial_window"]), int(row["increase"]),
            mode=int(o.mode),
            region=range(int(row["offset"]), int(row["offset"] + row["size"])),
            slots=self.net.ends.workers.slots[w].tolist() if row["cycle"] else [],
        )  # fmt: skip

    def at(self, time: int, what: Callable[..., None], *args: Any) -> None:
        heapq.heappush(self.heap, (time, self.order, what, args))
        self.order += 1

    def draw(self) -> int:
        self.draws += 1
        return int(mix(self.scenario.seed, self.draws)) & 0x3FFFFFFF

    def transmit(self, a: int, b: int, packet: Packet, ready: int, up: bool, now: int) -> None:
        c = self.channel[a, b]
        line = self.lines.setdefault((c, up), [])
        if self.net.links.queues["line"][2 * c] < 0 or ready <= now:
            self.put_on_link(a, b, packet, ready, up)
            return
        line.append(max([ready, *line]))
        self.at(line[-1], self.leave_line, a, b, deepcopy(packet), up)

    def leave_line(self, a: int, b: int, packet: Packet, up: bool, now: int) -> None:
        self.lines[self.channel[a, b], up].remove(now)
        self.put_on_link(a, b, packet, now, up)

    def put_on_link(self, a: int, b: int, packet: Packet, ready: int, up: bool) -> None:
        c = self.channel[a, b]
        row = self.net.links.channels[c]
        begin = max(ready, self.busy[c])
        options = self.scenario.jobs[packet["job"]].options
        slow = float(row["slow"]) if row["slow_from"] <= begin < row["slow_until"] else 1.0
        took = float(row["ps_per_byte"]) * (options.payload_bytes + options.header_bytes)
        self.busy[c] = begin + int(slow * took)
        lose = self.scenario.loss_up if up else self.scenario.loss_down
        if lose and self.draw() < round(lose * 2**30):
            return
        one = deepcopy(packet)
        if begin - ready >= slow * row["mark_ps"]:
            one["flags"] = one["flags"] | {"ecn"}
        delay = int(self.net.links.queues["delay"][2 * c + (not up)])
        self.at(self.busy[c] + delay, self.arrive, b, one, up)

    def arrive(self, node: int, p: Packet, up: bool, now: int) -> None:
        bitmap = bitmap_of(p)
        flags = sum(FLAGS[name] for name in p["flags"])
        seq = p["seq"] - int(self.net.ends.tensors[p["job"], 0, 0])
        self.log.append([now, node, KINDS[p["type"]], p["job"], seq, bitmap, p["index"], flags, p["prio"]])
        if node >= self.nodes:
            self.at_switch(node, p, up, now)
        elif up:
            result = self.servers[p["job"]].step(p, now // 1000)
            if result:
                self.transmit(node, self.graph.leaf(node), result, now + ps(self.scenario.server_s), False, now)
        else:
            w = int(self.net.ends.worker_at[node, p["job"]])
            worker = self.workers[w]
            if worker.receive(p, now // 1000):
                if worker.finished:
                    self.finish(w, now)
                self.send(w, now)

    def at_switch(self, node: int, p: Packet, up: bool, now: int) -> None:
        sw = self.switches[node - self.nodes]
        ready = now + int(self.net.fabric.switches[node - self.nodes]["latency"]) if up else now
        job = sw.jobs.get(p["job"])
        adds = job is not None and bool(job.workers) and (not up or p["workers"] <= job.workers)
        found = sw.step(p, now // 1000) if adds else [("server" if up else "all", p)]
        # Whatever was evicted leaves first.
        for where, out in sorted(found, key=lambda one: one[0] != "evicted"):
            if where in ("all", "asker"):
                for to, ranks in self.downs[out["job"], node]:
                    if not self.scenario.jobs[out["job"]].dedicated or ranks & out["workers"]:
                        self.transmit(node, to, out, ready, False, now)
            elif (out["job"], node) in self.ups:
                self.transmit(node, self.ups[out["job"], node], out, ready, True, now)

    def index(self, worker: NaiveWorker, seq: int) -> int:
        if worker.slots:
            return worker.slots[seq % len(worker.slots)]
        if not worker.region:
            return -1
        hashed = worker.mode in (addressing.SHARED_HASH, addressing.HYBRID_REGION)
        return worker.region.start + (int(mix(worker.job, seq)) if hashed else seq) % len(worker.region)

    def send(self, w: int, now: int) -> None:
        worker = self.workers[w]
        node = self.scenario.placement[worker.job][0][worker.rank]
        while packet := worker.send(self.index, now // 1000):
            packet["value"] = []
            if worker.dedicated:
                self.due[w] = min(self.due[w], worker.waits[packet["seq"]])
            ready = now + (self.draw() * ps(self.scenario.jitter_s) >> 30 if self.scenario.jitter_s else 0)
            self.transmit(node, self.graph.leaf(node), packet, ready, True, now)

    def start(self, w: int, now: int) -> None:
        worker = self.workers[w]
        first, end, worker.prio = self.net.ends.tensors[worker.job, self.tensor[w]].tolist()
        worker.start(first, end, self.scenario.jobs[worker.job].exponents, now // 1000)
        self.due[w] = now // 1000 + worker.first_rto
        if not self.timed[w]:
            self.timed[w] = True
            self.at(now + 1000 * min(worker.rto, worker.first_rto), self.timer, w)

    def begin(self, w: int, now: int) -> None:
        self.start(w, now)
        self.send(w, now)

    def finish(self, w: int, now: int) -> None:
        self.tensor[w] += 1
        worker = self.workers[w]
        job = self.scenario.jobs[worker.job]
        if self.tensor[w] % len(job.tensors):
            self.start(w, now)
        elif self.tensor[w] < len(job.tensors) * job.iterations:
            self.at(now + int(self.net.ends.hosts[w]["compute"]), self.begin, w)
        elif worker.dedicated and all(
            self.tensor[v] == self.tensor[w] for v, other in enumerate(self.workers) if other.job == worker.job
        ):
            for sw in self.switches.values():
                if worker.job in sw.jobs:
                    sw.jobs[worker.job].workers = frozenset()
                sw.held = {i: a for i, a in sw.held.items() if a.job != worker.job}

    def timer(self, w: int, now: int) -> None:
        worker = self.workers[w]
        if worker.finished:
            self.timed[w] = False
            return
        before = worker.timeouts
        worker.timeout(now // 1000)
        if worker.dedicated and now // 1000 >= self.due[w]:
            self.due[w] = min(worker.waits.values())
        due = self.due[w] if worker.dedicated else worker.deadline
        self.at(min(1000 * due, now + 1000 * min(worker.rto, worker.first_rto)), self.timer, w)
        if worker.timeouts > before and (worker.dedicated or worker.again):
            self.send(w, now)

    def tidy(self, s: int, now: int) -> None:
        sw, max_age = self.switches[s], int(self.net.fabric.switches[s]["max_age"])
        for packet in sw.sweep(now // 1000, max_age):
            ready = now + int(self.net.fabric.switches[s]["latency"])
            self.transmit(s + self.nodes, self.ups[packet["job"], s + self.nodes], packet, ready, True, now)
        tensors = [len(job.tensors) * job.iterations for job in self.scenario.jobs]
        active = any(k < tensors[worker.job] for k, worker in zip(self.tensor, self.workers, strict=True))
        if active or sw.held or any(what in (self.arrive, self.leave_line) for _, _, what, _ in self.heap):
            self.at(now + 1000 * max(1, max_age // 2), self.tidy, s)

    def run(self) -> list[list[int]]:
        for w, worker in enumerate(self.workers):
            job = self.scenario.jobs[worker.job]
            self.at(ps(job.start_s) + int(self.net.ends.hosts[w]["compute"]), self.begin, w)
        for s, row in enumerate(self.net.fabric.switches):
            self.at(1000 * int(row["max_age"]), self.tidy, s)
        while self.heap:
            now, _, what, args = heapq.heappop(self.heap)
            what(*args, now)
        return self.log
