"""In-network aggregation, naively: dictionaries, one packet at a time; to compare with the compiled protocol.

A packet is a dictionary; a switch, a server and a worker are classes that know nothing of arrays. Written from the
rules, not from the kernels.
"""

from copy import copy
from dataclasses import dataclass, field
from typing import Any

Packet = dict[str, Any]
LEAST, MOST = -(2**31), 2**31 - 1


def add(a: list[int], b: list[int]) -> tuple[list[int], bool]:
    """The sum, limited to 32 bits, and whether it had to be."""
    exact = [x + y for x, y in zip(a, b, strict=True)]
    limited = [min(MOST, max(LEAST, x)) for x in exact]
    return limited, exact != limited


def bitmap_of(packet: Packet) -> int:
    """What the field `bitmap` of the packet has: for results of a2tp a window, with a slot change the proposal."""
    if packet["type"] == "result" and ("cwnd" in packet or "slot_change" in packet["flags"]):
        proposal: int = packet["proposal"] if "slot_change" in packet["flags"] else 0
        return packet.get("cwnd", 0) << 32 | proposal
    return sum(1 << rank for rank in packet["workers"])


@dataclass
class Aggregator:
    """What a switch holds of one seq."""

    job: int
    seq: int
    workers: set[int]
    value: list[int]
    prio: int
    epoch: int
    born: int
    exponent: int
    flags: set[str]
    complete: bool = False


@dataclass
class SwitchJob:
    workers: frozenset[int]
    dedicated: bool = False
    preempts: bool = False
    bypass_passes: bool = False
    ageing: bool = False
    regions: dict[int, range] = field(default_factory=dict)


@dataclass
class NaiveSwitch:
    """One switch: aggregators by index, jobs by number."""

    count: int
    jobs: dict[int, SwitchJob] = field(default_factory=dict)
    held: dict[int, Aggregator] = field(default_factory=dict)

    def content(self, index: int, packet: Packet) -> Packet:
        a = self.held[index]
        out = copy(packet)
        out |= {"workers": set(a.workers), "value": list(a.value), "exponent": a.exponent}
        kept = packet["flags"] & {"ecn", "collided", "bypass"}
        out["flags"] = kept | a.flags | ({"full"} if a.complete else set())
        return out

    def evicted(self, index: int) -> Packet:
        a = self.held[index]
        names = {"type": "evict", "job": a.job, "seq": a.seq, "index": index, "prio": a.prio, "epoch": a.epoch}
        out = self.content(index, {**names, "flags": set()})
        del self.held[index]
        return out

    def store(self, packet: Packet, now: int) -> None:
        p = packet
        self.held[p["index"]] = Aggregator(
            p["job"], p["seq"], set(p["workers"]), list(p["value"]), p["prio"], p["epoch"], now, p["exponent"],
            p["flags"] & {"ecn", "overflow"},
        )  # fmt: skip
        self.look(p["index"])

    def look(self, index: int) -> bool:
        a = self.held[index]
        a.complete = a.workers == self.jobs[a.job].workers
        return a.complete

    def merge(self, packet: Packet) -> bool:
        a = self.held[packet["index"]]
        a.value, over = add(a.value, packet["value"])
        a.workers |= packet["workers"]
        a.exponent = max(a.exponent, packet["exponent"])
        a.flags |= (packet["flags"] & {"ecn", "overflow"}) | ({"overflow"} if over else set())
        return self.look(packet["index"])

    def step(self, packet: Packet, now: int) -> list[tuple[str, Packet]]:
        """Where the packet goes, and what it has become; nowhere if it is dropped."""
        index, job = packet["index"], self.jobs.get(packet["job"])
        a = self.held.get(index)
        same = a is not None and (a.job, a.seq) == (packet["job"], packet["seq"])
        if packet["type"] == "result":
            if same and not (job and job.dedicated):
                del self.held[index]
            return [("all", packet)]
        if packet["type"] == "evict":
            return [("server", packet)]
        if packet["type"] == "control":
            return [("server", self.evicted(index))] if same and not (job and job.dedicated) else []
        if job and job.dedicated:
            return self.dedicated(packet, job, now)
        again = packet["type"] == "resend"
        if again or "bypass" in packet["flags"]:
            if not same or (not again and job and job.bypass_passes):
                return [("server", packet)]
            return self.take_along(packet)
        return self.first_sent(packet, job, a, same, now)

    def dedicated(self, packet: Packet, job: SwitchJob, now: int) -> list[tuple[str, Packet]]:
        index = packet["index"]
        if not job.workers or index not in job.regions.get(packet["epoch"] % 2, ()):
            return []
        a = self.held.get(index)
        if a is None or a.job != packet["job"] or a.seq < packet["seq"]:
            self.store(packet, now)
            to = "all" if self.held[index].complete else ""
        elif a.seq > packet["seq"]:
            return []
        elif packet["workers"] <= a.workers:
            to = "asker" if a.complete else ""
        else:
            to = "all" if self.merge(packet) else ""
        if not to:
            return []
        out = {**self.content(index, packet), "type": "result"}
        return [(to, {**out, "workers": packet["workers"]} if to == "asker" else out)]

    def take_along(self, packet: Packet) -> list[tuple[str, Packet]]:
        a = self.held[packet["index"]]
        if packet["workers"] <= a.workers:
            a.flags |= packet["flags"] & {"ecn", "overflow"}
        else:
            self.merge(packet)
        out = self.content(packet["index"], packet)
        del self.held[packet["index"]]
        return [("server", out)]

    def first_sent(
        self, packet: Packet, job: SwitchJob | None, a: Aggregator | None, same: bool, now: int
    ) -> list[tuple[str, Packet]]:
        index = packet["index"]
        if job and job.workers and same:
            assert a is not None
            if packet["workers"] <= a.workers:
                a.flags |= packet["flags"] & {"ecn", "overflow"}
                emits = a.complete
            else:
                emits = self.merge(packet)
            return [("server", self.content(index, packet))] if emits else []
        if job and job.workers and index in job.regions.get(packet["epoch"] % 2, ()) and index < self.count:
            out: list[tuple[str, Packet]] = []
            wins = a is not None and job.preempts and packet["prio"] > a.prio
            if a is None or wins:
                if a is not None and not a.complete:
                    out.append(("evicted", self.evicted(index)))
                self.store(packet, now)
                if self.held[index].complete:
                    out.insert(0, ("server", self.content(index, packet)))
                return out
            if not a.complete:
                a.flags.add("owner_col")
            if job.preempts and job.ageing:
                a.prio //= 2
        return [("server", {**packet, "flags": packet["flags"] | {"collided"}})]

    def sweep(self, now: int, max_age: int) -> list[Packet]:
        """What has been held for too long, in the order of aggregators."""
        old = [i for i, a in sorted(self.held.items()) if now - a.born > max_age and not self.jobs[a.job].dedicated]
        return [self.evicted(index) for index in old]


@dataclass
class Sum:
    """What a server has of one seq."""

    workers: set[int] = field(default_factory=set)
    value: list[int] = field(default_factory=list)
    exponent: int = -128
    flags: set[str] = field(default_factory=set)
    done: bool = False
    proposal: int | None = None
    born: int = 0
    index: int = -1


@dataclass
class TwoWindows:
    """A2TP's windows of a job, which its server keeps."""

    window: int
    cwnd: int
    awnd: int
    interval: tuple[int, int] = (20_000, 100_000)
    alpha: float = 0.0
    beta: float = 0.0
    gamma: float = 1.0
    since: int = 0
    straggling: float | None = None
    sums: list[set[str]] = field(default_factory=list)  # flags of those that were completed since the last change

    def completed(self, flags: set[str], now: int) -> bool:
        """Count a sum; whether the packet a window later is to use no aggregator."""
        self.sums.append(flags)
        bypasses = len(self.sums) > self.awnd
        if self.straggling is None and self.interval[0] <= now - self.since <= self.interval[1]:
            self.straggling = min(1.0, len(self.sums) / self.cwnd)
        if len(self.sums) >= self.cwnd:
            self.change(sum("ecn" in one for one in self.sums), sum("owner_col" in one for one in self.sums))
            self.sums, self.since, self.straggling = [], now, None
        return bypasses

    def change(self, marks: int, collisions: int) -> None:
        self.gamma = 63 / 64 * self.gamma + 1 / 64 * (1.0 if self.straggling is None else self.straggling)
        self.alpha = 7 / 8 * self.alpha + 1 / 8 * marks / self.cwnd
        self.beta = 7 / 8 * self.beta + 1 / 8 * collisions / self.awnd
        awnd, cwnd = self.awnd + 1, self.cwnd + 1
        if collisions and self.beta > 0.1:
            awnd = int(self.awnd * (1 - (self.beta - 0.1) ** self.gamma / 1.9))
        if marks:
            cwnd = int(self.cwnd * (1 - self.alpha / 2))
        self.cwnd = min(self.window, max(1, cwnd))
        self.awnd = min(self.cwnd, max(1, awnd))


@dataclass
class NaiveServer:
    """The server of one job. `ring`: how many seqs are kept. `slots`: of the switch, where they may be changed."""

    workers: frozenset[int]
    ring: int
    slots: list[int] = field(default_factory=list)  # all, in the order in which they are proposed
    taken: set[int] = field(default_factory=set)
    moved: dict[int, int] = field(default_factory=dict)
    sums: dict[int, Sum] = field(default_factory=dict)
    windows: TwoWindows | None = None

    def propose(self, old: int) -> int | None:
        if old < 0 or not self.slots:
            return None
        if old not in self.moved:
            free = next((slot for slot in self.slots if slot not in self.taken), None)
            if free is None:
                return None
            self.taken.add(free)
            self.moved[old] = free
        return self.moved[old]

    def remind(self, job: int, now: int, age: int) -> list[Packet]:
        """Requests for what a switch holds of sums that have been incomplete for over `age`, in order of the ring."""
        latest = {seq % self.ring: seq for seq in sorted(self.sums)}
        out = []
        for _, seq in sorted(latest.items()):
            s = self.sums[seq]
            if not s.done and now - s.born > age:
                s.born = now
                out.append({
                    "type": "control", "job": job, "seq": seq, "index": s.index, "workers": set(s.workers),
                    "flags": set(), "prio": 0, "epoch": 0, "exponent": -128, "value": [0] * len(s.value),
                })  # fmt: skip
        return out

    def step(self, packet: Packet, now: int) -> Packet | None:
        """The result, if the packet makes the server send one."""
        seq = packet["seq"]
        if any(other > seq and other % self.ring == seq % self.ring for other in self.sums):
            return None
        s = self.sums.setdefault(seq, Sum(value=[0] * len(packet["value"]), born=now))
        s.index = packet["index"]
        if s.done:
            return None if packet["type"] == "evict" else self.result(packet, s)
        s.flags |= packet["flags"] & {"ecn", "owner_col", "collided"}
        if "bypass" in packet["flags"]:
            s.flags.add("collided")
        if packet["workers"] == self.workers:
            s.value, s.exponent = list(packet["value"]), packet["exponent"]
            s.flags = (s.flags - {"overflow"}) | (packet["flags"] & {"overflow"})
        elif not packet["workers"] & s.workers:
            s.value, over = add(s.value, packet["value"])
            s.exponent = max(s.exponent, packet["exponent"])
            s.flags |= (packet["flags"] & {"overflow"}) | ({"overflow"} if over else set())
        else:
            return None
        s.workers |= packet["workers"]
        if s.workers != self.workers:
            return None
        s.done = True
        if "collided" in s.flags:
            s.proposal = self.propose(packet["index"])
        if self.windows and self.windows.completed(set(s.flags), now):
            s.flags.add("bypass")
        return self.result(packet, s)

    def result(self, packet: Packet, s: Sum) -> Packet:
        out = {**packet, "type": "result", "workers": set(self.workers), "value": list(s.value)}
        out["exponent"], out["flags"] = s.exponent, s.flags | {"full"}
        if self.windows:
            out["cwnd"], out["flags"] = self.windows.cwnd, out["flags"] - {"ecn"}
        if s.proposal is not None:
            out["flags"] = out["flags"] | {"slot_change"}
            out["proposal"] = s.proposal
        return out


@dataclass
class NaiveWorker:
    """One worker. `index`: the aggregator of a seq; `slots`: the list of shared_cycle, which `index` reads."""

    job: int
    rank: int
    window: int
    rto: int
    first_rto: int
    gap_threshold: int
    backoff_every: int
    dedicated: bool = False
    cc: str = "none"
    initial_window: int = 0
    increase: int = 4
    prio: int = 0
    epoch: int = 0
    region: range = range(0)
    mode: int = 0
    slots: list[int] = field(default_factory=list)
    cwnd: int = 0

    def start(self, first: int, end: int, exponents: int, now: int) -> None:
        self.first, self.end, self.next, self.exponents = first, end, first, first + exponents
        self.done: set[int] = set()
        self.again: list[int] = []  # to be sent again, in order
        self.covered = first  # gaps before this one were sent again
        self.heard, self.timeouts = False, 0
        self.waits: dict[int, int] = {}  # dedicated: seq -> when its timer expires
        self.tries: set[int] = set()
        self.deadline = now + self.first_rto if end > first else None
        if not self.cwnd:
            self.cwnd = min(self.initial_window, self.window) if self.cc != "none" else self.window
        self.round_end = self.ack + self.cwnd
        self.bypassing: set[int] = set()  # a2tp: packets still to be sent that use no aggregator
        self.echoes = 0  # a2tp: marks of results that the next packets carry back

    @property
    def ack(self) -> int:
        """The first seq without a result."""
        at = self.first
        while at in self.done:
            at += 1
        return at

    @property
    def finished(self) -> bool:
        return len(self.done) == self.end - self.first

    def timer(self) -> int:
        return (self.rto if self.heard else self.first_rto) << min(20, self.timeouts // self.backoff_every)

    def header(self, seq: int, kind: str, index: int) -> Packet:
        kind = "exponent" if kind == "data" and seq < self.exponents else kind
        echo, self.echoes = {"ecn"} if self.echoes else set(), max(0, self.echoes - 1)
        return {
            "type": kind, "job": self.job, "seq": seq, "workers": {self.rank}, "index": index, "flags": echo,
            "prio": self.prio, "epoch": self.epoch, "exponent": -128,
        }  # fmt: skip

    def send(self, index: Any, now: int) -> Packet | None:
        """The next packet; `index` gives the aggregator of a seq."""
        if self.dedicated:
            return self.send_slot(index, now)
        while self.again:
            seq = self.again.pop(0)
            if seq not in self.done:
                return self.header(seq, "resend", index(self, seq))
        if self.next >= min(self.end, self.ack + self.cwnd):
            return None
        out = self.header(self.next, "data", index(self, self.next))
        if self.next in self.bypassing:
            out["flags"] |= {"bypass"}
        self.next += 1
        return out

    def send_slot(self, index: Any, now: int) -> Packet | None:
        if self.again:
            seq, wait = self.again.pop(0), self.timer()
        elif self.next < min(self.end, self.first + self.window):
            seq, wait = self.next, self.first_rto
            self.next += 1
        else:
            return None
        self.waits[seq] = now + wait
        return self.header(seq, "data", index(self, seq))

    def receive(self, packet: Packet, now: int) -> bool:
        """Whether this is the first result of its seq."""
        seq = packet["seq"]
        if packet["job"] != self.job or self.finished or not self.first <= seq < self.end:
            return False
        return self.slot_result(seq) if self.dedicated else self.window_result(packet, now)

    def slot_result(self, seq: int) -> bool:
        if seq not in self.waits:
            return False
        del self.waits[seq]
        self.done.add(seq)
        self.heard = True
        following = seq + self.window
        if following < self.end:
            self.waits[following] = 2**62
            if seq in self.again:  # the slot is to send something: now it is this
                self.again[self.again.index(seq)] = following
            else:
                self.again.append(following)
        elif seq in self.again:
            self.again.remove(seq)
        return True

    def window_result(self, packet: Packet, now: int) -> bool:
        seq = packet["seq"]
        if seq in self.done or seq >= self.next:
            return False
        self.done.add(seq)
        self.heard = True
        self.deadline = None if self.finished else now + self.timer()
        if "slot_change" in packet["flags"] and self.slots:
            at = seq % len(self.slots)
            if self.slots[at] == packet["index"] and packet["proposal"] not in self.slots:
                self.slots[at] = packet["proposal"]
        if self.cc == "a2tp":
            self.cwnd = min(self.window, max(1, packet["cwnd"]))
            self.echoes += "ecn" in packet["flags"]
            if "bypass" in packet["flags"]:
                self.bypassing.add(seq + self.window)
        beyond = sorted(s for s in self.done if s > self.ack)
        if len(beyond) >= self.gap_threshold:
            start = max(self.ack, self.covered)
            if start < beyond[0]:
                if self.again:  # one range: it grows
                    start = min(start, self.again[-1] + 1)
                self.again += range(start, beyond[0])
                self.covered = beyond[0]
        if self.cc == "aimd" and self.ack >= self.round_end:
            marked = "ecn" in packet["flags"]
            self.cwnd = max(1, self.cwnd // 2) if marked else min(self.window, self.cwnd + self.increase)
            self.round_end = self.ack + self.cwnd
        return True

    def timeout(self, now: int) -> None:
        """Queue what is to be sent again."""
        if self.dedicated:
            for slot in range(self.window):
                for seq in [s for s in self.waits if s % self.window == slot and self.waits[s] <= now]:
                    self.timeouts += 1
                    self.waits[seq] = now + self.timer()
                    if seq not in self.again:
                        self.again.append(seq)
            return
        if self.deadline is None or now < self.deadline:
            return
        self.timeouts += 1
        self.deadline = now + self.timer()
        ack = self.ack
        if self.next == ack:
            return
        beyond = [s for s in self.done if s > ack]
        until = min(beyond) if beyond else ack + 1
        if self.again:
            until = max(until, self.again[-1] + 1)
        self.again = list(range(ack, until))
        self.covered = max(self.covered, until)
