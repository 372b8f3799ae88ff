"""The event loop of `lossy_loop`, naively: dictionaries, and the naive switch, servers and workers."""

from collections import defaultdict
from copy import deepcopy

from lossy_loop import AT_SERVER, AT_SWITCH, AT_WORKER, FLAGS, KINDS, TICK_NS, Plan

from plait.network.protocol import addressing
from plait.network.protocol.addressing import mix
from reference.naive_network import NaiveServer, NaiveSwitch, NaiveWorker, Packet, bitmap_of


class NaiveNet:
    """A run of a plan; `log` gets a row for each packet that arrives."""

    def __init__(self, plan: Plan, switch: NaiveSwitch, servers: list[NaiveServer], workers: list[NaiveWorker]):
        self.plan, self.switch, self.servers, self.workers = plan, switch, servers, workers
        (self.seed, self.loss, self.dup, self.ecn, self.spread, self.pace, self.sweep, self.max_age, self.limit,
         self.exponents, self.reminder) = plan.dials.tolist()  # fmt: skip
        self.arrive: dict[int, list[tuple[int, Packet]]] = defaultdict(list)
        self.sent = 0
        self.log: list[list[int]] = []
        self.tensor = [0] * len(workers)
        self.jobs = [[w for w in workers if w.job == job] for job in range(len(servers))]

    def push(self, packet: Packet, to: int, tick: int) -> None:
        u = int(mix(self.seed, self.sent))
        self.sent += 1
        for c in range((u & 1023 >= self.loss) + ((u >> 10) & 1023 < self.dup)):
            one = deepcopy(packet)
            if to == AT_SERVER and (u >> 40) & 1023 < self.ecn:
                one["flags"] = one["flags"] | {"ecn"}
            self.arrive[tick + 1 + ((u >> (20 + 8 * c)) & 255) % self.spread].append((to, one))

    def note(self, to: int, p: Packet, tick: int) -> None:
        check = 0
        for value in p["value"]:
            check = check * 31 + value
        bitmap = bitmap_of(p)
        flags = sum(FLAGS[name] for name in p["flags"])
        self.log.append([
            tick, to, KINDS[p["type"]], p["job"], p["seq"], bitmap, p["index"], flags, p["prio"], p["exponent"], check,
        ])  # fmt: skip

    def deliver(self, to: int, p: Packet, tick: int) -> None:
        self.note(to, p, tick)
        now = tick * TICK_NS
        if to == AT_SWITCH:
            for where, out in self.switch.step(p, now):
                if where in ("all", "asker"):
                    for w, worker in enumerate(self.workers):
                        if worker.job == out["job"] and (where == "all" or worker.rank in out["workers"]):
                            self.push(out, AT_WORKER + w, tick)
                else:
                    self.push(out, AT_SERVER, tick)
        elif to == AT_SERVER:
            result = self.servers[p["job"]].step(p, now)
            if result:
                self.push(result, AT_SWITCH, tick)
        else:
            self.workers[to - AT_WORKER].receive(p, now)

    def index(self, worker: NaiveWorker, seq: int) -> int:
        if worker.slots:
            return worker.slots[seq % len(worker.slots)]
        first, size = worker.region.start, len(worker.region)
        if size == 0:
            return -1
        hashed = worker.mode in (addressing.SHARED_HASH, addressing.HYBRID_REGION)
        return first + (int(mix(worker.job, seq)) if hashed else seq) % size

    def proceed(self, w: int, tick: int) -> bool:
        me = self.workers[w]
        while not hasattr(me, "done") or me.finished:
            k = self.tensor[w]
            if k == self.plan.tensors.shape[1]:
                return True
            before = int(self.plan.starts[me.job, k - 1] + self.plan.tensors[me.job, k - 1])
            moves = k and (
                self.plan.regions[me.job, k, 0] != self.plan.regions[me.job, k - 1, 0]
                or self.plan.starts[me.job, k] != before
            )
            if (
                me.dedicated
                and moves
                and any(
                    self.tensor[v] < k or (k and not other.finished)
                    for v, other in enumerate(self.workers)
                    if other.job == me.job and self.tensor[v] <= k
                )
            ):
                return False
            first, size = self.plan.regions[me.job, k].tolist()
            me.region, me.epoch, me.prio = range(first, first + size), k, int(self.plan.prios[me.job, k])
            self.switch.jobs[me.job].regions[k % 2] = me.region
            begin = int(self.plan.starts[me.job, k])
            me.start(begin, begin + int(self.plan.tensors[me.job, k]), self.exponents, tick * TICK_NS)
            self.tensor[w] += 1
        me.timeout(tick * TICK_NS)
        for _ in range(self.pace):
            packet = me.send(self.index, tick * TICK_NS)
            if packet is None:
                break
            packet["exponent"] = int(self.plan.exponents[w, packet["seq"]])
            packet["value"] = self.plan.values[w, packet["seq"]].tolist()
            self.push(packet, AT_SWITCH, tick)
        return False

    def run(self) -> int:
        """The tick at which all is over."""
        for tick in range(self.limit):
            for to, packet in self.arrive.pop(tick, []):
                self.deliver(to, packet, tick)
            finished = [self.proceed(w, tick) for w in range(len(self.workers))]
            for job in range(len(self.servers)):
                over = all(f for f, worker in zip(finished, self.workers, strict=True) if worker.job == job)
                if over and self.switch.jobs[job].dedicated and self.switch.jobs[job].workers:
                    self.switch.jobs[job].workers = frozenset()
                    self.switch.held = {i: a for i, a in self.switch.held.items() if a.job != job}
            if tick % self.sweep == 0:
                for packet in self.switch.sweep(tick * TICK_NS, self.max_age):
                    self.push(packet, AT_SERVER, tick)
                if self.reminder:
                    for job, server in enumerate(self.servers):
                        for packet in server.remind(job, tick * TICK_NS, self.reminder):
                            self.push(packet, AT_SWITCH, tick)
            if all(finished) and not any(self.arrive.values()) and not self.switch.held:
                return tick
        return self.limit
