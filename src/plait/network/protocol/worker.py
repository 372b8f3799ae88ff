"""The worker: which packet it sends next, and what a result or its timer changes.

Slots with stop-and-wait are those of SwitchML; the cumulative window, resends of gaps and slot changes those of ATP
and A2TP (from released code), with a threshold of later results before a gap is sent again (published description).

Start at `worker_receive`; then `worker_send` until it has nothing more. The steps write headers only: whoever calls
`worker_send` fills in payload and exponent. Times are int64 nanoseconds.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from plait.core.arrays import IntArray
from plait.core.jit import lean_part, linked
from plait.network.protocol import addressing, congestion, header
from plait.network.protocol.addressing import DEDICATED, SHARED_CYCLE, Slots, index_of
from plait.network.protocol.congestion import A2TP, close_window, open_window
from plait.network.protocol.header import (
    BYPASS,
    DATA,
    ECN,
    EXPONENT,
    NO_EXPONENT,
    OVERFLOW,
    RESEND,
    RESULT,
    SLOT_CHANGE,
    Records,
    int64,
)

#: Answers of `worker_receive`: not a new result; a new one; FINISHED next to it: the last of the tensor.
IGNORED, ACCEPTED, FINISHED = 0, 1, 2
#: Answers of `worker_timeout`: not yet; something is to be sent again; too often without progress.
WAITING, TIMED_OUT, GIVES_UP = 0, 1, 2

#: Entry of `Workers.received`, see there.
BYPASSES = 2

#: A time or seq that never comes.
NEVER = 1 << 62

#: A worker. First what is set up, then where it is in its tensor [first, end), its windows and its counters.
WORKER = np.dtype(
    [
        ("bit", "i8"),
        ("rto", "i8"),
        ("first_rto", "i8"),
        ("decrease", "f8"),
        ("job", "i4"),
        ("n_workers", "i4"),
        ("mode", "i4"),
        ("offset", "i4"),
        ("size", "i4"),
        ("cycle", "i4"),
        ("cc", "i4"),
        ("window", "i4"),
        ("initial_window", "i4"),
        ("increase", "i4"),
        ("gap_threshold", "i4"),
        ("backoff_every", "i4"),
        ("max_timeouts", "i4"),
        ("epoch", "u1"),
        ("prio", "u1"),
        ("heard", "u1"),
        ("first", "i8"),
        ("end", "i8"),
        ("exponents_end", "i8"),
        ("next", "i8"),
        ("ack", "i8"),
        ("first_pending", "i8"),
        ("resend_at", "i8"),
        ("resend_until", "i8"),
        ("resent_until", "i8"),
        ("deadline", "i8"),
        ("round_end", "i8"),
        ("cwnd", "i4"),
        ("pending", "i4"),
        ("echoes", "i4"),
        ("queue_head", "i4"),
        ("queued", "i4"),
        ("timeouts", "i4"),
        ("all_timeouts", "i8"),
        ("sent", "i8"),
        ("resent", "i8"),
        ("bypassed", "i8"),
        ("results", "i8"),
        ("ignored", "i8"),
        ("overflows", "i8"),
        ("slot_changes", "i8"),
    ],
    align=True,
)

#: A dedicated slot of a worker: the seq it waits for, -1 for none.
SLOT = np.dtype([("seq", "i8"), ("deadline", "i8"), ("queued", "i4"), ("tries", "i4")], align=True)


class Workers(NamedTuple):
    """All state of workers, a row each.

    state     WORKER
    received  uint8, workers x ring, of seq s at s % ring: 1 if its result is here out of order, BYPASSES if its packet,
              which is not sent yet, is to bypass the switch
    slots     int32, workers x cycle: the list of each in shared_cycle
    pool      SLOT, workers x slots: the dedicated slots of each; that of seq s is s % window
    queue     int32, workers x slots: dedicated slots that have something to send, a ring
    """

    state: Records
    received: npt.NDArray[np.uint8]
    slots: Slots
    pool: Records
    queue: npt.NDArray[np.int32]


def make_workers(count: int, window: int, cycle: int = 1, pool: int = 1) -> Workers:
    """So many workers; the largest window, the largest cycle and the largest number of dedicated slots of any."""
    pools = np.zeros((count, pool), dtype=SLOT)
    pools["seq"] = -1
    ring = 1 << max(1, int(np.ceil(np.log2(2 * window))))
    return Workers(
        np.zeros(count, dtype=WORKER),
        np.zeros((count, ring), dtype=np.uint8),
        np.zeros((count, cycle), dtype=np.int32),
        pools,
        np.zeros((count, pool), dtype=np.int32),
    )


def bit_of(rank: int) -> int:
    """The bit of a worker, as a signed number of 64 bits."""
    return 1 << rank if rank < 63 else -(1 << 63)


@linked(header, addressing, congestion)
def worker_start(workers: Workers, w: int, first: int, end: int, exponents: int, now: int) -> None:
    """Start to send the packets [first, end) of a tensor, after the last one is finished.

    `first` is the end of the tensor before. It may be more, as after a restart, if the server keeps that many results
    more, and with dedicated slots only once all workers have all results; it is never less: no seq is used twice. The
    first `exponents` packets are of type EXPONENT. `now` in ns.
    """
    me = workers.state[w]
    me["first"], me["next"], me["ack"] = first, first, first
    me["end"], me["exponents_end"] = end, first + exponents
    me["first_pending"], me["pending"] = NEVER, 0
    me["resend_at"], me["resend_until"], me["resent_until"] = first, first, first
    me["heard"], me["timeouts"], me["all_timeouts"] = 0, 0, 0
    me["queue_head"], me["queued"], me["echoes"] = 0, 0, 0
    me["deadline"] = NEVER if first == end else now + me["first_rto"]
    open_window(workers.state, w)
    if me["mode"] == DEDICATED:
        for slot in range(workers.pool.shape[1]):
            workers.pool[w, slot]["seq"] = -1
            workers.pool[w, slot]["queued"] = 0
    else:
        for at in range(workers.received.shape[1]):
            workers.received[w, at] = 0


@lean_part
def _fill(workers: Workers, w: int, packets: Records, i: int, seq: int, kind: int) -> None:
    """Write the header of a packet."""
    me, p = workers.state[w], packets[i]
    p["seq"] = seq
    p["bitmap"] = me["bit"]
    p["job"] = me["job"]
    p["index"] = index_of(me["mode"], me["job"], seq, me["offset"], me["size"], workers.slots[w], me["cycle"])
    p["flags"] = 0
    if me["echoes"] > 0:
        me["echoes"] -= 1
        p["flags"] = ECN
    p["type"] = EXPONENT if kind == DATA and seq < me["exponents_end"] else kind
    p["level"] = 0
    p["prio"] = me["prio"]
    p["epoch"] = me["epoch"]
    p["n_workers"] = me["n_workers"]
    p["exponent"] = NO_EXPONENT


@lean_part
def _timer(workers: Workers, w: int) -> int:
    """The time until the next timeout: it doubles after each so many timeouts in a tensor."""
    me = workers.state[w]
    doublings = min(20, me["all_timeouts"] // max(1, me["backoff_every"]))
    wait: int = (me["rto"] if me["heard"] else me["first_rto"]) << doublings
    return wait


@linked(header, addressing, congestion)
def worker_send(workers: Workers, w: int, packets: Records, i: int, now: int) -> int:
    """Write the header of the next packet of a worker to the row `i`; 0 if its windows let it send nothing, else 1."""
    me = workers.state[w]
    if me["mode"] == DEDICATED:
        return _send_slot(workers, w, packets, i, now)
    ring = workers.received.shape[1] - 1
    me["resend_at"] = max(me["resend_at"], me["ack"])
    while me["resend_at"] < me["resend_until"]:
        seq = me["resend_at"]
        me["resend_at"] += 1
        if workers.received[w, seq & ring] == 0:
            _fill(workers, w, packets, i, seq, RESEND)
            me["resent"] += 1
            return 1
    if me["next"] >= me["end"] or me["next"] >= me["ack"] + me["cwnd"]:
        return 0
    _fill(workers, w, packets, i, me["next"], DATA)
    if workers.received[w, me["next"] & ring] == BYPASSES:
        workers.received[w, me["next"] & ring] = 0
        packets[i]["flags"] |= BYPASS
        me["bypassed"] += 1
    me["next"] += 1
    me["sent"] += 1
    return 1


@lean_part
def _send_slot(workers: Workers, w: int, packets: Records, i: int, now: int) -> int:
    """As `worker_send`, for a worker with dedicated slots."""
    me, pool = workers.state[w], workers.pool[w]
    slot = -1
    while slot < 0 and me["queued"] > 0:
        slot = int64(workers.queue[w, me["queue_head"]])
        me["queue_head"] = (me["queue_head"] + 1) % workers.queue.shape[1]
        me["queued"] -= 1
        pool[slot]["queued"] = 0
        if pool[slot]["seq"] < 0:
            slot = -1
    wait = _timer(workers, w)
    if slot < 0:
        if me["next"] >= min(me["end"], me["first"] + me["window"]):
            return 0
        slot = me["next"] % me["window"]
        pool[slot]["seq"] = me["next"]
        pool[slot]["tries"] = 0
        me["next"] += 1
        wait = int64(me["first_rto"])
    one = pool[slot]
    _fill(workers, w, packets, i, one["seq"], DATA)
    if one["tries"] > 0:
        me["resent"] += 1
    else:
        me["sent"] += 1
    one["tries"] += 1
    one["deadline"] = now + wait
    me["deadline"] = min(me["deadline"], one["deadline"])
    return 1


@lean_part
def _queue_slot(workers: Workers, w: int, slot: int) -> None:
    """Let a dedicated slot send what it waits for; once, however often it is queued."""
    me, one = workers.state[w], workers.pool[w, slot]
    if one["queued"] == 0:
        one["queued"] = 1
        workers.queue[w, (me["queue_head"] + me["queued"]) % workers.queue.shape[1]] = slot
        me["queued"] += 1


@lean_part
def _slot_result(workers: Workers, w: int, seq: int) -> bool:
    """A result for a dedicated slot: it goes on with the packet one window later. False if it did not wait for it."""
    me = workers.state[w]
    slot = seq % me["window"]
    one = workers.pool[w, slot]
    if one["seq"] != seq:
        return False
    one["seq"] = -1
    if seq + me["window"] < me["end"]:
        one["seq"] = seq + me["window"]
        one["tries"] = 0
        one["deadline"] = NEVER  # until it is sent
        _queue_slot(workers, w, slot)
    me["ack"] += 1
    return True


@lean_part
def _change_slot(workers: Workers, w: int, seq: int, old: int, new: int) -> None:
    """Adopt another slot for a position of the cycle, unless the list has changed there or has it already."""
    me, slots = workers.state[w], workers.slots[w]
    if me["mode"] != SHARED_CYCLE:
        return
    at = seq % me["cycle"]
    if slots[at] != old:
        return
    for k in range(me["cycle"]):
        if slots[k] == new:
            return
    slots[at] = new
    me["slot_changes"] += 1


@lean_part
def _advance(workers: Workers, w: int, seq: int) -> None:
    """A new result in the cumulative window: move `ack`, and know where the first one beyond a gap is."""
    me, received = workers.state[w], workers.received[w]
    ring = len(received) - 1
    if seq != me["ack"]:
        received[seq & ring] = 1
        me["pending"] += 1
        me["first_pending"] = min(me["first_pending"], seq)
        return
    me["ack"] += 1
    while me["pending"] > 0 and received[me["ack"] & ring]:
        received[me["ack"] & ring] = 0
        me["ack"] += 1
        me["pending"] -= 1
    if me["pending"] == 0:
        me["first_pending"] = NEVER
    elif me["first_pending"] < me["ack"]:
        at = me["ack"] + 1
        while received[at & ring] == 0:
            at += 1
        me["first_pending"] = at


@lean_part
def _resend(workers: Workers, w: int, start: int, until: int) -> None:
    """Send the packets of a gap again, after those of an earlier gap that are still to be sent."""
    me = workers.state[w]
    if me["resend_at"] >= me["resend_until"]:
        me["resend_at"] = start
    me["resend_until"] = max(me["resend_until"], until)
    me["resent_until"] = max(me["resent_until"], until)


@linked(header, addressing, congestion)
def worker_receive(workers: Workers, w: int, packets: Records, i: int, now: int) -> int:
    """A packet for a worker, the row `i`: IGNORED, or ACCEPTED: the first result of its seq, with payload to use.

    FINISHED beside ACCEPTED: it is the last result of the tensor. Results of other jobs and tensors are ignored.
    """
    me, p = workers.state[w], packets[i]
    seq = p["seq"]
    fits = p["type"] == RESULT and p["job"] == me["job"] and me["first"] <= seq < me["end"] and me["ack"] < me["end"]
    if fits and me["mode"] == DEDICATED:
        fits = _slot_result(workers, w, seq)
    elif fits:
        fits = me["ack"] <= seq < me["next"] and workers.received[w, seq & (workers.received.shape[1] - 1)] == 0
        if fits:
            _advance(workers, w, seq)
    if not fits:
        me["ignored"] += 1
        return IGNORED
    me["results"] += 1
    me["heard"] = 1
    me["timeouts"] = 0
    if p["flags"] & OVERFLOW:
        me["overflows"] += 1
    if me["ack"] >= me["end"]:
        me["deadline"] = NEVER
    elif me["mode"] != DEDICATED:
        me["deadline"] = now + _timer(workers, w)
    if me["mode"] != DEDICATED:
        _in_window(workers, w, packets, i)
    return ACCEPTED | FINISHED if me["ack"] >= me["end"] else ACCEPTED


@lean_part
def _in_window(workers: Workers, w: int, packets: Records, i: int) -> None:
    """What a new result changes in a cumulative window: slots, gaps to send again, and the windows themselves.

    The windows of A2TP are the server's. A mark that a result got on the way to this worker goes there with the next
    packet.
    """
    me, p = workers.state[w], packets[i]
    if p["flags"] & SLOT_CHANGE:
        _change_slot(workers, w, p["seq"], p["index"], p["bitmap"] & 0xFFFFFFFF)
    if me["cc"] == A2TP:
        me["cwnd"] = min(me["window"], max(1, p["bitmap"] >> 32))
        if p["flags"] & BYPASS:
            workers.received[w, (p["seq"] + me["window"]) & (workers.received.shape[1] - 1)] = BYPASSES
        if p["flags"] & ECN:
            me["echoes"] += 1
    if me["pending"] >= max(1, me["gap_threshold"]):
        start = max(me["ack"], me["resent_until"])
        if start < me["first_pending"]:
            _resend(workers, w, start, me["first_pending"])
    close_window(workers.state, w, p["flags"] & ECN != 0)


@linked(header, addressing, congestion)
def worker_timeout(workers: Workers, w: int, now: int) -> int:
    """Let packets be sent again if the timer of a worker has expired, at `state[w]["deadline"]`, and set it again.

    GIVES_UP after more than `max_timeouts` in a row without a result, which are queued to be sent again as well.
    """
    me = workers.state[w]
    if now < me["deadline"] or me["ack"] >= me["end"]:
        return WAITING
    if me["mode"] == DEDICATED:
        expired = _slot_timeouts(workers, w, now)
        if expired == 0:
            return WAITING
    else:
        me["all_timeouts"] += 1
        me["deadline"] = now + _timer(workers, w)
        if me["next"] == me["ack"]:  # nothing of the window was sent yet
            return WAITING
        until = me["first_pending"] if me["pending"] > 0 else me["ack"] + 1
        if me["resend_at"] < me["resend_until"]:
            until = max(until, me["resend_until"])
        me["resend_at"], me["resend_until"] = me["ack"], until
        me["resent_until"] = max(until, me["resent_until"])
    me["timeouts"] += 1
    return GIVES_UP if me["timeouts"] > me["max_timeouts"] else TIMED_OUT


@lean_part
def _slot_timeouts(workers: Workers, w: int, now: int) -> int:
    """Queue the dedicated slots whose timers have expired; returns how many, and sets the timer of the worker."""
    me = workers.state[w]
    expired = 0
    least = int64(NEVER)
    for slot in range(me["window"]):
        one = workers.pool[w, slot]
        if one["seq"] < 0:
            continue
        if one["deadline"] <= now:
            expired += 1
            me["all_timeouts"] += 1
            one["deadline"] = now + _timer(workers, w)
            _queue_slot(workers, w, int64(slot))
        least = min(least, one["deadline"])
    me["deadline"] = least
    return expired


@linked(header, addressing, congestion)
def worker_receive_batch(workers: Workers, w: int, packets: Records, count: int, now: int, answers: IntArray) -> int:
    """The first `count` packets for a worker, with the answer to each; returns how many are ACCEPTED."""
    accepted = 0
    for k in range(count):
        answers[k] = worker_receive(workers, w, packets, k, now)
        accepted += answers[k] & ACCEPTED
    return accepted


@linked(header, addressing, congestion)
def worker_send_batch(workers: Workers, w: int, packets: Records, first: int, most: int, now: int) -> int:
    """Write the headers of up to `most` packets to send to the rows from `first` on; returns how many."""
    for k in range(most):
        if worker_send(workers, w, packets, first + k, now) == 0:
            return k
    return most
