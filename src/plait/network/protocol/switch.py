"""The switch: a table of aggregators, and what one packet does to it.

Dedicated slots follow SwitchML, shared aggregators ATP and A2TP (from released code); preemption is after the
published description of ESA, which no public code shows. The single array of dedicated slots, the ageing of
aggregators, the regions of two epochs and several levels of switches are our design.

Start at `switch_step`. It changes the packet in place and returns actions; a second packet, if there is one, is
written to the row `spare`. Times are int64 nanoseconds.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from plait.core.arrays import IntArray
from plait.core.jit import lean_part, linked
from plait.network.protocol import header
from plait.network.protocol.header import (
    BYPASS,
    COLLIDED,
    CONTROL,
    ECN,
    EVICT,
    FULL,
    OVERFLOW,
    OWNER_COL,
    RESEND,
    RESULT,
    Records,
    Values,
    int64,
)

#: What becomes of a packet; EVICTED next to another: the row `spare` is a packet to the server too. A packet to the
#: server of a switch that is not the root goes to the next switch on its way.
DROP, TO_SERVER, MULTICAST, UNICAST, EVICTED = 0, 1, 2, 4, 8
_WRITES, _FREES = 16, 32  # first the packet gets the content of the aggregator, which then is freed

#: Rules of a job at the switch. PREEMPT: packets take aggregators of lower priority (ESA). BYPASS_PASSES: packets that
#: bypass do not flush an aggregator of their key. AGEING: residents that withstand a preemption lose half of their
#: priority. BELOW: another switch above adds up what is complete here, and answers (dedicated slots).
DEDICATED, PREEMPT, BYPASS_PASSES, AGEING, BELOW = 1, 2, 4, 8, 16

#: Key of an aggregator that is free.
FREE = -1
#: Flag of an aggregator, next to those of packets: the sum is complete. Without it an occupied one is partial.
COMPLETE = 256

#: An aggregator. `key`: job << 32 | seq; `born`: when its first packet came.
AGGREGATOR = np.dtype(
    [
        ("key", "i8"),
        ("bitmap", "i8"),
        ("born", "i8"),
        ("flags", "i2"),
        ("prio", "u1"),
        ("epoch", "u1"),
        ("exponent", "i1"),
    ],
    align=True,
)

#: A job at a switch. `expected`: the bits that complete a sum here, 0 for a job that is not registered; two regions,
#: for even and odd epochs; then counters of packets, and `held`: aggregators that it holds now.
SWITCH_JOB = np.dtype(
    [
        ("expected", "i8"),
        ("rules", "i4"),
        ("n_workers", "i4"),
        ("first0", "i4"),
        ("size0", "i4"),
        ("first1", "i4"),
        ("size1", "i4"),
        ("held", "i8"),
        ("aggregated", "i8"),
        ("collided", "i8"),
        ("evicted", "i8"),
        ("aged", "i8"),
        ("stale", "i8"),
        ("duplicates", "i8"),
        ("outside", "i8"),
    ],
    align=True,
)

#: Column of `Switch.info`: aggregators that are not free.
HELD = 0


class Switch(NamedTuple):
    """All state of a switch: `table` (AGGREGATOR, one row each), `value` (int32, aggregators x elements).

    jobs   one row of SWITCH_JOB for each number of a job
    info   int64, HELD
    """

    table: Records
    value: Values
    jobs: Records
    info: IntArray


def make_switch(aggregators: int, jobs: int, elements: int = 0) -> Switch:
    """A switch whose aggregators, possibly none, are free, and that knows no job."""
    table = np.zeros(aggregators, dtype=AGGREGATOR)
    table["key"] = FREE
    value = np.zeros((aggregators, elements), np.int32)
    return Switch(table, value, np.zeros(jobs, SWITCH_JOB), np.zeros(1, np.int64))


def register(switch: Switch, job: int, expected: int, n_workers: int, rules: int) -> None:
    """Make a job known: `expected` are the bits of its workers below this switch; it has no region yet."""
    switch.jobs[job] = np.zeros((), dtype=SWITCH_JOB)
    switch.jobs[job]["expected"] = int64(expected)
    switch.jobs[job]["n_workers"] = n_workers
    switch.jobs[job]["rules"] = rules


def grant(switch: Switch, job: int, first: int, size: int, epoch: int) -> None:
    """Let packets of this epoch of the job claim the aggregators from `first` on.

    Packets of the epoch before still find their own. A dedicated job may only be moved when all of its workers have
    all results, or to aggregators that it does not hold.
    """
    row = switch.jobs[job]
    row[f"first{epoch & 1}"], row[f"size{epoch & 1}"] = first, size


@lean_part
def _free(switch: Switch, index: int) -> None:
    """Forget an aggregator; all of its flags with it."""
    a = switch.table[index]
    switch.jobs[a["key"] >> 32]["held"] -= 1
    switch.info[HELD] -= 1
    a["key"] = FREE
    a["bitmap"] = 0
    a["flags"] = 0
    a["prio"] = 0


@lean_part
def _write(switch: Switch, packets: Records, values: Values, index: int, i: int) -> None:
    """Write the content of an aggregator to a packet: value, bitmap, exponent and what is known of its congestion."""
    a, p = switch.table[index], packets[i]
    p["bitmap"] = a["bitmap"]
    p["exponent"] = a["exponent"]
    p["flags"] = (p["flags"] & (ECN | COLLIDED | BYPASS)) | (a["flags"] & (ECN | OWNER_COL | OVERFLOW))
    if a["flags"] & COMPLETE:
        p["flags"] |= FULL
    p["level"] = min(3, p["level"] + 1)
    for e in range(values.shape[1]):
        values[i, e] = switch.value[index, e]


@lean_part
def _evict(switch: Switch, packets: Records, values: Values, index: int, spare: int) -> None:
    """Write what an aggregator holds to the row `spare`, as a packet to the server of its job, and free it."""
    a, p = switch.table[index], packets[spare]
    p["type"] = EVICT
    p["seq"] = a["key"] & 0xFFFFFFFF
    p["job"] = a["key"] >> 32
    p["index"] = index
    p["flags"] = 0
    p["level"] = 0
    p["prio"] = a["prio"]
    p["epoch"] = a["epoch"]
    p["n_workers"] = switch.jobs[p["job"]]["n_workers"]
    _write(switch, packets, values, index, spare)
    _free(switch, index)


@lean_part
def _store(switch: Switch, packets: Records, values: Values, index: int, i: int, now: int) -> None:
    """Let a packet be the first in an aggregator."""
    a, p = switch.table[index], packets[i]
    job = switch.jobs[p["job"]]
    if a["key"] != FREE:
        _free(switch, index)
    job["held"] += 1
    switch.info[HELD] += 1
    a["key"] = (int64(p["job"]) << 32) | p["seq"]
    a["bitmap"] = p["bitmap"]
    a["born"] = now
    a["flags"] = p["flags"] & (ECN | OVERFLOW)
    a["prio"] = p["prio"]
    a["epoch"] = p["epoch"]
    a["exponent"] = p["exponent"]
    for e in range(values.shape[1]):
        switch.value[index, e] = values[i, e]


@lean_part
def _completed(switch: Switch, index: int) -> bool:
    """Whether an aggregator has all that its job expects here; it is marked as complete then."""
    a = switch.table[index]
    job = switch.jobs[a["key"] >> 32]
    if a["bitmap"] != job["expected"]:
        return False
    a["flags"] |= COMPLETE
    job["aggregated"] += 1
    return True


@lean_part
def _merge(switch: Switch, packets: Records, values: Values, index: int, i: int) -> None:
    """Add a packet whose workers are not in the aggregator.

    A sum that would leave 32 bits stays at their end and is marked.
    """
    a, p = switch.table[index], packets[i]
    a["bitmap"] |= p["bitmap"]
    a["flags"] |= p["flags"] & (ECN | OVERFLOW)
    a["exponent"] = max(a["exponent"], p["exponent"])
    beyond = int64(0)  # without a branch in the loop the compiler adds several elements at once
    for e in range(values.shape[1]):
        total = int64(switch.value[index, e]) + int64(values[i, e])
        limited: int = min(2147483647, max(-2147483648, total))
        beyond |= limited ^ total
        switch.value[index, e] = limited
    if beyond != 0:
        a["flags"] |= OVERFLOW


@lean_part
def _may_claim(switch: Switch, packets: Records, i: int) -> bool:
    """Whether the aggregator of a packet is in the region that its job has in its epoch."""
    p = packets[i]
    job = switch.jobs[p["job"]]
    first, size = (job["first1"], job["size1"]) if p["epoch"] & 1 else (job["first0"], job["size0"])
    return bool(first <= p["index"] < first + size and p["index"] < len(switch.table))


@lean_part
def _dedicated(switch: Switch, packets: Records, values: Values, i: int, now: int) -> int:
    """A packet of a job that has slots of its own: a newer seq retires what the slot holds."""
    p = packets[i]
    job, index = switch.jobs[p["job"]], int64(p["index"])
    if job["expected"] == 0 or not _may_claim(switch, packets, i):
        job["outside"] += 1
        return DROP
    a = switch.table[index]
    mine = a["key"] != FREE and a["key"] >> 32 == p["job"]
    resident = a["key"] & 0xFFFFFFFF if mine else int64(-1)
    new = p["bitmap"] & ~a["bitmap"]
    if p["seq"] > resident:
        _store(switch, packets, values, index, i, now)
    elif p["seq"] < resident or (new != 0 and new != p["bitmap"]):
        job["stale"] += 1
        return DROP
    elif new == 0:
        job["duplicates"] += 1
        if a["flags"] & COMPLETE == 0:
            return DROP
        return _WRITES | (TO_SERVER if job["rules"] & BELOW else UNICAST)
    else:
        _merge(switch, packets, values, index, i)
    if not _completed(switch, index):
        return DROP
    return _WRITES | (TO_SERVER if job["rules"] & BELOW else MULTICAST)


@lean_part
def _match(switch: Switch, packets: Records, values: Values, index: int, i: int) -> int:
    """A packet, not sent again, whose seq is in its aggregator."""
    p = packets[i]
    a, job = switch.table[index], switch.jobs[p["job"]]
    new = p["bitmap"] & ~a["bitmap"]
    if new == 0:
        a["flags"] |= p["flags"] & (ECN | OVERFLOW)
        job["duplicates"] += 1
        return TO_SERVER | _WRITES if a["flags"] & COMPLETE else DROP
    if new != p["bitmap"]:  # of a switch below, and only some of its workers are counted: the server decides
        return TO_SERVER
    _merge(switch, packets, values, index, i)
    return TO_SERVER | _WRITES if _completed(switch, index) else DROP


@lean_part
def _first_sent(switch: Switch, packets: Records, values: Values, i: int, spare: int, now: int) -> int:
    """A packet of a job that shares aggregators, sent for the first time and with no wish to bypass them."""
    p = packets[i]
    index = int64(p["index"])
    job = switch.jobs[p["job"]]
    if 0 <= index < len(switch.table) and job["expected"] != 0:
        a = switch.table[index]
        if a["key"] == (int64(p["job"]) << 32) | p["seq"]:
            return _match(switch, packets, values, index, i)
        if _may_claim(switch, packets, i):
            evicted = 0
            preempts = a["key"] != FREE and job["rules"] & PREEMPT != 0 and p["prio"] > a["prio"]
            if preempts and a["flags"] & COMPLETE == 0:
                switch.jobs[a["key"] >> 32]["evicted"] += 1
                _evict(switch, packets, values, index, spare)
                evicted = EVICTED
            if a["key"] == FREE or preempts:
                _store(switch, packets, values, index, i, now)
                return evicted | TO_SERVER | _WRITES if _completed(switch, index) else evicted
            if a["flags"] & COMPLETE == 0:
                a["flags"] |= OWNER_COL
            if job["rules"] & (PREEMPT | AGEING) == PREEMPT | AGEING:
                a["prio"] >>= 1
        else:
            job["outside"] += 1
    p["flags"] |= COLLIDED
    job["collided"] += 1
    return TO_SERVER


@lean_part
def _sent_again(switch: Switch, packets: Records, values: Values, i: int, spare: int) -> int:
    """A packet that must reach the server: it takes along what its aggregator holds, and never claims one."""
    p = packets[i]
    index = int64(p["index"])
    if not 0 <= index < len(switch.table):
        return TO_SERVER
    a = switch.table[index]
    if a["key"] != (int64(p["job"]) << 32) | p["seq"]:
        return TO_SERVER
    new = p["bitmap"] & ~a["bitmap"]
    if new != 0 and new != p["bitmap"]:
        _evict(switch, packets, values, index, spare)
        return TO_SERVER | EVICTED
    if new != 0:
        _merge(switch, packets, values, index, i)
        _completed(switch, index)
    else:
        a["flags"] |= p["flags"] & (ECN | OVERFLOW)
    return TO_SERVER | _WRITES | _FREES


@lean_part
def _from_server(switch: Switch, packets: Records, values: Values, i: int) -> int:
    """A result, which frees the aggregator of its seq, or the request of the server for what one holds."""
    p = packets[i]
    index = int64(p["index"])
    held = 0 <= index < len(switch.table)
    held = held and switch.table[index]["key"] == (int64(p["job"]) << 32) | p["seq"]
    held = held and switch.jobs[p["job"]]["rules"] & DEDICATED == 0
    if p["type"] == RESULT:
        if held:
            _free(switch, index)
        return MULTICAST
    if not held:
        return DROP
    a = switch.table[index]
    p["type"], p["prio"], p["epoch"] = EVICT, a["prio"], a["epoch"]
    return TO_SERVER | _WRITES | _FREES


@lean_part
def _step(switch: Switch, packets: Records, values: Values, i: int, spare: int, now: int) -> int:
    """What `switch_step` does, but for copies of an aggregator to the packet itself."""
    p = packets[i]
    if p["type"] == EVICT or not 0 <= p["job"] < len(switch.jobs):
        return TO_SERVER
    if p["type"] == RESULT or p["type"] == CONTROL:
        return _from_server(switch, packets, values, i)
    rules = switch.jobs[p["job"]]["rules"]
    if rules & DEDICATED:
        return _dedicated(switch, packets, values, i, now)
    if p["type"] != RESEND and p["flags"] & BYPASS == 0:
        return _first_sent(switch, packets, values, i, spare, now)
    if p["type"] != RESEND and rules & BYPASS_PASSES:
        return TO_SERVER
    return _sent_again(switch, packets, values, i, spare)


@linked(header)
def switch_step(switch: Switch, packets: Records, values: Values, i: int, spare: int, now: int) -> int:
    """One packet, the row `i` of `packets` and `values`, at a switch; returns its actions and changes it in place.

    MULTICAST: to all workers of the job below this switch. UNICAST: to the workers in its bitmap. EVICTED is set
    beside DROP or TO_SERVER: then the row `spare`, which must be free, holds what an aggregator held. `now` in ns.
    Raises nothing: packets of jobs that the switch does not know go to the server.
    """
    action = _step(switch, packets, values, i, spare, now)
    if action & _WRITES:
        p = packets[i]
        index = int64(p["index"])
        asks = p["bitmap"]
        _write(switch, packets, values, index, i)
        if action & _FREES:
            _free(switch, index)
        if action & (MULTICAST | UNICAST):
            p["type"] = RESULT
        if action & UNICAST:
            p["bitmap"] = asks
    return action & (TO_SERVER | MULTICAST | UNICAST | EVICTED)


@linked(header)
def switch_batch(
    switch: Switch, packets: Records, values: Values, count: int, now: int, actions: IntArray, spares: IntArray
) -> int:
    """The first `count` packets in order: `actions[k]` of each, and `spares[k]`, the row of what it evicted, or -1.

    Evicted contents are written to the rows from `count` on; there must be as many again. Returns the rows in use.
    """
    used = count
    for k in range(count):
        actions[k] = switch_step(switch, packets, values, k, used, now)
        spares[k] = -1
        if actions[k] & EVICTED:
            spares[k] = used
            used += 1
    return used


@linked(header)
def sweep(
    switch: Switch, packets: Records, values: Values, start: int, count: int, spare: int, now: int, max_age: int
) -> tuple[int, int]:
    """Evict what has been held for over `max_age` ns in up to `count` aggregators from `start` on, round the end.

    Delayed packets may claim an aggregator after their seq is finished, and nobody else would free it. Evicted
    contents, for the server, are written to the rows from `spare` on; the walk ends early when no row is left. Slots of
    dedicated jobs are kept: they answer workers that lost a result. Returns (packets written, where to go on).
    """
    written = 0
    at = start
    for _ in range(min(count, len(switch.table))):
        if spare + written >= len(packets):
            break
        a = switch.table[at]
        if a["key"] != FREE and now - a["born"] > max_age:
            job = switch.jobs[a["key"] >> 32]
            if job["rules"] & DEDICATED == 0:
                job["aged"] += 1
                _evict(switch, packets, values, at, spare + written)
                written += 1
        at = at + 1 if at + 1 < len(switch.table) else 0
    return written, at


@linked(header)
def release(switch: Switch, job: int) -> None:
    """Forget a job and drop what it holds; later packets of it go to the server, those of dedicated jobs nowhere."""
    for index in range(len(switch.table)):
        if switch.table[index]["key"] != FREE and switch.table[index]["key"] >> 32 == job:
            _free(switch, index)
    switch.jobs[job]["expected"] = 0


@linked(header)
def retire(switch: Switch, job: int, epoch: int) -> int:
    """Drop what a job holds from packets of an epoch, when all of its workers have all of its results.

    Returns how many aggregators are free again. Jobs that share aggregators need it only where nobody may wait for a
    sweep, and recover what was not finished by sending it again.
    """
    found = 0
    for index in range(len(switch.table)):
        a = switch.table[index]
        if a["key"] != FREE and a["key"] >> 32 == job and a["epoch"] == epoch & 255:
            _free(switch, index)
            found += 1
    return found


def holds(switch: Switch, job: int, epoch: int) -> int:
    """How many aggregators the job still holds from packets of an epoch: 0 when a former region is drained."""
    table = switch.table
    mine = (table["key"] >= 0) & (table["key"] >> 32 == job) & (table["epoch"] == epoch & 255)
    return int(np.count_nonzero(mine))


__all__ = [
    "AGEING", "AGGREGATOR", "BELOW", "BYPASS_PASSES", "COMPLETE", "DEDICATED", "DROP", "EVICTED", "FREE", "HELD",
    "MULTICAST", "PREEMPT", "SWITCH_JOB", "TO_SERVER", "UNICAST", "Switch", "grant", "holds", "make_switch", "register",
    "release", "retire", "sweep", "switch_batch", "switch_step",
]  # fmt: skip
