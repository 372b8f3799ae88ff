"""A small event loop around the protocol: jobs, one switch, servers, and a network that loses and repeats packets.

Compiled, to run thousands of seeds. Times are ticks of a microsecond; a packet arrives one to `spread` ticks after it
was sent, so they overtake one another. What the network does to the k-th packet is `mix(seed, k)`, which a naive
loop can compute as well.
"""

from typing import NamedTuple

import numpy as np

from plait.core.jit import lean_part, linked
from plait.network.protocol import addressing, congestion, header, server, switch, worker
from plait.network.protocol.addressing import mix
from plait.network.protocol.header import ECN, EXPONENT
from plait.network.protocol.server import server_remind, server_step
from plait.network.protocol.switch import release, sweep, switch_step
from plait.network.protocol.worker import worker_receive, worker_send, worker_start, worker_timeout

TICK_NS = 1000
AT_SWITCH, AT_SERVER, AT_WORKER = 0, 1, 2
FINE, WRONG_SUM, NO_PROGRESS, LEAK, MISCOUNTED, BROKEN, FULL_POOL, FULL_LOG = range(8)
BUCKETS = 64
COLUMNS = 11


class Plan(NamedTuple):
    """A run. Probabilities are of 1024.

    job, rank   of each worker
    tensors     jobs x tensors: packets of each, 0 for none
    regions     jobs x tensors x 2: first aggregator and how many
    starts      jobs x tensors: the first seq of each; numbers may be left out between two
    prios       jobs x tensors: their priorities
    values      workers x seqs x elements: what each sends; `exponents` likewise
    sums        jobs x seqs x elements: what they must receive; `tops` likewise, the largest exponent
    dials       seed, loss, duplication, congestion marks, spread, packets a worker sends in a tick, ticks between
                sweeps, max_age (ns), most ticks, packets of exponents, age of reminders (ns; 0: none)
    """

    job: np.ndarray
    rank: np.ndarray
    tensors: np.ndarray
    regions: np.ndarray
    starts: np.ndarray
    prios: np.ndarray
    values: np.ndarray
    exponents: np.ndarray
    sums: np.ndarray
    tops: np.ndarray
    dials: np.ndarray


class Net(NamedTuple):
    """Packets on their way, in lists by the tick at which they arrive; the last rows are for steps to write to."""

    packets: np.ndarray
    values: np.ndarray
    to: np.ndarray
    after: np.ndarray  # the next row of the same tick, or of those that are free
    head: np.ndarray
    tail: np.ndarray
    tensor: np.ndarray  # how many each worker has started
    jobs: np.ndarray  # of each: -1 still busy, 0 finished, 1 released
    info: np.ndarray  # first free row, rows in use, packets sent, rows of the log, 1 if there was no room


def make_net(rows: int, elements: int, workers: int = 64, jobs: int = 64) -> Net:
    packets, values = header.make_packets(rows + 3, elements)
    after = np.arange(1, rows + 1, dtype=np.int64)
    after[-1] = -1
    none = np.full(BUCKETS, -1, dtype=np.int64)
    return Net(
        packets, values, np.zeros(rows, np.int64), after, none, none.copy(), np.zeros(workers, np.int64),
        np.full(jobs, -1), np.zeros(5, np.int64),
    )  # fmt: skip


def make_plan(rng, job, rank, tensors, regions, dials, elements, prios, gap=3):
    """A plan with random gradients; packets of exponents have none."""
    starts = np.cumsum(tensors + gap, axis=1) - tensors - gap
    seqs = int(starts[:, -1].max()) + int(tensors.max()) + 1
    values = rng.integers(-(2**24), 2**24, (len(job), seqs, elements)).astype(np.int32)
    exponents = rng.integers(-20, 44, (len(job), seqs))
    for w in range(len(job)):
        for first in starts[job[w]]:
            values[w, first : first + dials[9]] = 0
    jobs = range(len(tensors))
    sums = np.array([values[job == j].sum(axis=0, dtype=np.int64) for j in jobs])
    tops = np.array([exponents[job == j].max(axis=0) for j in jobs])
    return Plan(job, rank, tensors, regions, starts, prios, values, exponents, sums, tops, dials)


@lean_part
def push(net, dials, i, to, tick):
    """Send a copy of the row `i`: it may be lost, doubled, delayed and marked."""
    u = mix(dials[0], net.info[2])
    net.info[2] += 1
    copies = (0 if (u & 1023) < dials[1] else 1) + (1 if ((u >> 10) & 1023) < dials[2] else 0)
    for c in range(copies):
        row = net.info[0]
        if row < 0:
            net.info[4] = 1
            return
        net.info[0] = net.after[row]
        net.info[1] += 1
        net.packets[row] = net.packets[i]
        for e in range(net.values.shape[1]):
            net.values[row, e] = net.values[i, e]
        net.to[row] = to
        if to == AT_SERVER and ((u >> 40) & 1023) < dials[3]:
            net.packets[row]["flags"] |= ECN
        at = (tick + 1 + ((u >> (20 + 8 * c)) & 255) % dials[4]) % BUCKETS
        net.after[row] = -1
        if net.head[at] < 0:
            net.head[at] = row
        else:
            net.after[net.tail[at]] = row
        net.tail[at] = row


@lean_part
def note(net, log, i, to, tick):
    """Write a packet that arrives to the log."""
    if len(log) == 0:
        return
    if net.info[3] >= len(log):
        net.info[4] = 2
        return
    p, row = net.packets[i], log[net.info[3]]
    net.info[3] += 1
    row[0], row[1], row[2], row[3], row[4], row[5] = tick, to, p["type"], p["job"], p["seq"], p["bitmap"]
    row[6], row[7], row[8], row[9] = p["index"], p["flags"], p["prio"], p["exponent"]
    row[10] = 0
    for e in range(net.values.shape[1]):
        row[10] = row[10] * 31 + net.values[i, e]


@lean_part
def route(net, dials, job, rank, i, spare, actions, tick):
    """Send what a switch makes of a packet."""
    if actions & (switch.MULTICAST | switch.UNICAST):
        asks = net.packets[i]["bitmap"]
        for w in range(len(job)):
            if job[w] == net.packets[i]["job"] and (actions & switch.MULTICAST or asks >> rank[w] & 1):
                push(net, dials, i, AT_WORKER + w, tick)
    if actions & switch.TO_SERVER:
        push(net, dials, i, AT_SERVER, tick)
    if actions & switch.EVICTED:
        push(net, dials, spare, AT_SERVER, tick)


@lean_part
def right(net, sums, tops, i):
    """Whether a result is the sum over all workers of its job."""
    p = net.packets[i]
    for e in range(net.values.shape[1]):
        if sums[p["job"], p["seq"], e] != net.values[i, e]:
            return False
    return tops[p["job"], p["seq"]] == p["exponent"]


@lean_part
def start(sw, workers, plan, w, tensor, tick):
    """The next tensor of a worker, in a region that may be another one from now on."""
    job = plan.job[w]
    first, size = plan.regions[job, tensor, 0], plan.regions[job, tensor, 1]
    row, me = sw.jobs[job], workers.state[w]
    if tensor & 1:
        row["first1"], row["size1"] = first, size
    else:
        row["first0"], row["size0"] = first, size
    me["offset"], me["size"], me["epoch"] = first, size, tensor & 255
    me["prio"] = plan.prios[job, tensor]
    begin = plan.starts[job, tensor]
    worker_start(workers, w, begin, begin + plan.tensors[job, tensor], plan.dials[9], tick * TICK_NS)


@lean_part
def proceed(sw, workers, plan, net, w, tick):
    """Start tensors, look at the timer, send. Returns whether the worker has finished all of its tensors."""
    me, job, last, tensor = workers.state[w], plan.job[w], plan.tensors.shape[1], net.tensor
    while me["ack"] >= me["end"]:
        if tensor[w] == last:
            return True
        # Dedicated slots may only move, and leave out numbers, when all workers have finished; others wait for nobody.
        k = tensor[w]
        moves = k > 0 and (
            plan.regions[job, k, 0] != plan.regions[job, k - 1, 0]
            or plan.starts[job, k] != plan.starts[job, k - 1] + plan.tensors[job, k - 1]
        )
        if me["mode"] == addressing.DEDICATED and moves:
            for other in range(len(plan.job)):
                behind = tensor[other] < tensor[w] or (
                    tensor[other] == tensor[w] and workers.state[other]["ack"] < workers.state[other]["end"]
                )
                if plan.job[other] == job and behind:
                    return False
        start(sw, workers, plan, w, tensor[w], tick)
        tensor[w] += 1
    worker_timeout(workers, w, tick * TICK_NS)
    spare = len(net.packets) - 1
    for _ in range(plan.dials[5]):
        if worker_send(workers, w, net.packets, spare, tick * TICK_NS) == 0:
            break
        p = net.packets[spare]
        p["exponent"] = plan.exponents[w, p["seq"]]
        for e in range(net.values.shape[1]):
            net.values[spare, e] = plan.values[w, p["seq"], e]
        push(net, plan.dials, spare, AT_SWITCH, tick)
    return False


@lean_part
def deliver(sw, servers, workers, plan, net, i, log, tick):
    """One packet that arrives; returns what is wrong with it."""
    to, now = net.to[i], tick * TICK_NS
    note(net, log, i, to, tick)
    spare = len(net.packets) - 2
    if to == AT_SWITCH:
        route(
            net,
            plan.dials,
            plan.job,
            plan.rank,
            i,
            spare,
            switch_step(sw, net.packets, net.values, i, spare, now),
            tick,
        )
    elif to == AT_SERVER:
        if server_step(servers, net.packets, net.values, i, now):
            push(net, plan.dials, i, AT_SWITCH, tick)
    elif worker_receive(workers, to - AT_WORKER, net.packets, i, now) and not right(net, plan.sums, plan.tops, i):
        return WRONG_SUM
    return FINE


@lean_part
def tidy(sw, servers, dials, net, tick):
    """What a switch and a server do from time to time: free aggregators that are old, ask for them."""
    spare, now, at, seen = len(net.packets) - 1, tick * TICK_NS, 0, 0
    while seen < len(sw.table):
        written, following = sweep(sw, net.packets, net.values, at, 1, spare, now, dials[7])
        seen, at = seen + 1, following
        if written:
            push(net, dials, spare, AT_SERVER, tick)
    if dials[10] == 0:
        return
    for job in range(servers.entries.shape[0]):
        for k in range(servers.entries.shape[1]):
            seq = servers.entries[job, k]["seq"]
            if seq >= 0 and server_remind(servers, net.packets, job, seq, spare, now, dials[10]):
                for e in range(net.values.shape[1]):
                    net.values[spare, e] = 0
                push(net, dials, spare, AT_SWITCH, tick)


@linked(header, addressing, congestion, switch, server, worker)
def run(sw, servers, workers, plan, net, log):
    """Run until all tensors are summed and nothing is held or on its way. Returns (what is wrong, ticks)."""
    over = False
    for tick in range(plan.dials[8]):
        at = tick % BUCKETS
        row, net.head[at] = net.head[at], -1
        while row >= 0:
            following = net.after[row]
            wrong = deliver(sw, servers, workers, plan, net, row, log, tick)
            if wrong:
                return wrong, tick
            net.after[row] = net.info[0]
            net.info[0] = row
            net.info[1] -= 1
            row = following
        for job in range(len(sw.jobs)):
            net.jobs[job] = max(net.jobs[job], 0)
        over = True
        for w in range(len(plan.job)):
            if not proceed(sw, workers, plan, net, w, tick):
                net.jobs[plan.job[w]] = -1
                over = False
        for job in range(len(sw.jobs)):
            if net.jobs[job] == 0 and sw.jobs[job]["rules"] & switch.DEDICATED:
                release(sw, job)
                net.jobs[job] = 1
        if tick % plan.dials[6] == 0:
            tidy(sw, servers, plan.dials, net, tick)
        if net.info[4]:
            return FULL_POOL if net.info[4] == 1 else FULL_LOG, tick
        if over and net.info[1] == 0 and sw.info[switch.HELD] == 0:
            return judge(sw, servers), tick
    return (LEAK if over else NO_PROGRESS), plan.dials[8]


@lean_part
def judge(sw, servers):
    """What is wrong when all is over."""
    for index in range(len(sw.table)):
        if sw.table[index]["key"] != switch.FREE or sw.table[index]["flags"] != 0:
            return MISCOUNTED
    for job in range(len(sw.jobs)):
        if sw.jobs[job]["held"] != 0:
            return MISCOUNTED
        if servers.jobs[job]["broken"] != 0:
            return BROKEN
    return FINE


KINDS = {"data": 0, "resend": 1, "result": 2, "evict": 3, "exponent": EXPONENT, "control": 5}
FLAGS = {
    name: getattr(header, name.upper())
    for name in ("ecn", "collided", "owner_col", "full", "overflow", "bypass", "slot_change")
}
