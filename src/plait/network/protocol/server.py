"""The parameter server: it completes sums that the switch did not, and answers until all workers have the result.

After ATP (from released code): a sum of all workers replaces what was collected, any other is added only if none of its
workers is counted; every later packet of a complete sum is answered with the result; on a collision the server proposes
another slot. Reminders to switches are our design.

Start at `server_step`. One `Server` has rows for many jobs, which know nothing of one another: one for each server.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from plait.core.arrays import IntArray
from plait.core.errors import InputError
from plait.core.jit import lean_part, linked
from plait.network.protocol import congestion, header
from plait.network.protocol.congestion import A2TP, WINDOWS, note_sum
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
    SLOT_CHANGE,
    Records,
    Values,
    int64,
)

#: What becomes of a packet: nothing; it is a result for the switch, or a request to it; URGENT: before all others.
DROP, TO_SWITCH, URGENT = 0, 1, 2
#: Flag of an entry, next to those of packets: the sum is complete.
DONE = 256

#: A sum. `seq`: -1 for none yet; `proposal`: the slot that the result proposes, or -1.
ENTRY = np.dtype(
    [
        ("seq", "i8"),
        ("bitmap", "i8"),
        ("born", "i8"),
        ("index", "i4"),
        ("proposal", "i4"),
        ("flags", "i2"),
        ("exponent", "i1"),
    ],
    align=True,
)

#: A job at its server; `tried`, `stride` and `shift` walk over all slots in an order of the job's own. Then counters:
#: sums completed, packets added, sums replaced by whole ones, packets dropped since one of their workers is counted,
#: packets older than what is kept, sums that were given up incomplete (never, or the ring is too small);
#: then the two windows of A2TP, see `congestion`.
SERVER_JOB = np.dtype(
    [
        ("expected", "i8"),
        ("n_workers", "i4"),
        ("slot_change", "i4"),
        ("tried", "i4"),
        ("stride", "i4"),
        ("shift", "i4"),
        ("results", "i8"),
        ("answered", "i8"),
        ("added", "i8"),
        ("replaced", "i8"),
        ("dropped", "i8"),
        ("stale", "i8"),
        ("broken", "i8"),
        *WINDOWS,
    ],
    align=True,
)


class Server(NamedTuple):
    """All state of parameter servers.

    entries  ENTRY, jobs x ring: the sum of seq s is in column s % ring; the ring is a power of two
    value    int32, jobs x ring x elements
    jobs     SERVER_JOB, a row for each number of a job
    moved    int32, jobs x slots: to where a slot of the job was moved, or -1; no columns without slot changes
    taken    uint8, jobs x slots: whether the slot is, or was, in the list of the job
    """

    entries: Records
    value: Values
    jobs: Records
    moved: npt.NDArray[np.int32]
    taken: npt.NDArray[np.uint8]


def ring_of(window: int) -> int:
    """The smallest ring that keeps results for twice the largest window: a power of two."""
    return 1 << max(1, math.ceil(math.log2(2 * window)))


def make_server(jobs: int, window: int, elements: int = 0, slots: int = 0) -> Server:
    """Servers for so many jobs, none registered, whose windows have up to `window` packets.

    A job that leaves out numbers between two tensors counts them as part of its window: a worker that lost results of
    the first one may ask for them while another is already in the second.

    `slots`: aggregators among which slots may be changed.
    """
    entries = np.zeros((jobs, ring_of(window)), dtype=ENTRY)
    entries["seq"] = -1
    return Server(
        entries,
        np.zeros((*entries.shape, elements), dtype=np.int32),
        np.zeros(jobs, dtype=SERVER_JOB),
        np.full((jobs, slots), -1, dtype=np.int32),
        np.zeros((jobs, slots), dtype=np.uint8),
    )


def register(
    server: Server, job: int, n_workers: int, slots: npt.NDArray[np.int32] | None = None, first: int = 0
) -> None:
    """Make a job of 1 to 64 workers known, with no sums.

    `slots`: its list in shared_cycle, if the server may change it, to aggregators from `first` on, see `set_slots`.
    Raises `InputError` for another number of workers.
    """
    if not 1 <= n_workers <= header.MOST_WORKERS:
        raise InputError(f"job {job}: {n_workers} workers; a job may have 1 to {header.MOST_WORKERS}")
    server.entries[job] = np.array((-1, 0, 0, -1, -1, 0, 0), dtype=ENTRY)
    server.jobs[job] = np.zeros((), dtype=SERVER_JOB)
    row = server.jobs[job]
    row["expected"], row["n_workers"] = all_bits(n_workers), n_workers
    if slots is not None and server.taken.shape[1]:
        set_slots(server, job, slots, first, server.taken.shape[1] - first)


def set_slots(server: Server, job: int, slots: npt.NDArray[np.int32], first: int, size: int) -> None:
    """Let a job have this list in shared_cycle, which may change to other aggregators of `size` from `first` on."""
    row, count = server.jobs[job], server.taken.shape[1]
    # A step with which a walk visits all of `count` slots, about the golden section of them
    stride = max(1, int(count * 0.618) + job % 7)
    while math.gcd(stride, count) != 1:
        stride += 1
    row["slot_change"], row["stride"], row["shift"], row["tried"] = 1, stride, job * 7919 % count, 0
    server.moved[job], server.taken[job] = -1, 1
    server.taken[job, first : first + size] = 0
    server.taken[job, slots] = 1


def all_bits(n_workers: int) -> int:
    """The bitmap of all workers, as a signed number of 64 bits.

    >>> all_bits(3), all_bits(64)
    (7, -1)
    """
    return -1 if n_workers == header.MOST_WORKERS else (1 << n_workers) - 1


@lean_part
def _propose(server: Server, job: int, old: int) -> int:
    """Another slot for one on which packets collided, the same each time; -1 when the job has had all of them."""
    row = server.jobs[job]
    count = server.taken.shape[1]
    if row["slot_change"] == 0 or not 0 <= old < count:
        return -1
    while server.moved[job, old] < 0 and row["tried"] < count:
        slot = (int64(row["tried"]) * row["stride"] + row["shift"]) % count
        row["tried"] += 1
        if server.taken[job, slot] == 0:
            server.taken[job, slot] = 1
            server.moved[job, old] = slot
    moved: int = int64(server.moved[job, old])
    return moved


@lean_part
def _gather(server: Server, packets: Records, values: Values, i: int, at: int) -> bool:
    """Replace the sum by a whole one, or add a packet none of whose workers is counted; returns whether it was."""
    p = packets[i]
    job = p["job"]
    row, e = server.jobs[job], server.entries[job, at]
    if p["bitmap"] == row["expected"]:
        row["replaced"] += 1
        e["flags"] = (e["flags"] & ~OVERFLOW) | (p["flags"] & OVERFLOW)
        e["exponent"] = p["exponent"]
        for k in range(values.shape[1]):
            server.value[job, at, k] = values[i, k]
    elif p["bitmap"] & e["bitmap"] == 0:
        row["added"] += 1
        e["flags"] |= p["flags"] & OVERFLOW
        e["exponent"] = max(e["exponent"], p["exponent"])
        beyond = int64(0)  # without a branch in the loop the compiler adds several elements at once
        for k in range(values.shape[1]):
            total = int64(server.value[job, at, k]) + int64(values[i, k])
            limited: int = min(2147483647, max(-2147483648, total))
            beyond |= limited ^ total
            server.value[job, at, k] = limited
        if beyond != 0:
            e["flags"] |= OVERFLOW
    else:
        row["dropped"] += 1
        return False
    e["bitmap"] |= p["bitmap"]
    return True


@lean_part
def _answer(server: Server, packets: Records, values: Values, i: int, at: int) -> int:
    """Turn a packet into the result of its seq."""
    p = packets[i]
    e = server.entries[p["job"], at]
    urgent = URGENT if p["type"] == RESEND else 0
    p["type"] = RESULT
    p["bitmap"] = e["bitmap"]
    p["flags"] = (e["flags"] & (ECN | OWNER_COL | COLLIDED | OVERFLOW | BYPASS)) | FULL
    row = server.jobs[p["job"]]
    windows = int64(row["cwnd"]) << 32 if row["cc"] == A2TP else int64(0)
    if windows != 0:
        p["bitmap"] = windows
        p["flags"] &= ~ECN  # counted here: a mark that workers see is of the way to them
    if e["proposal"] >= 0:
        p["bitmap"] = windows | e["proposal"]
        p["flags"] |= SLOT_CHANGE
    p["level"] = 0
    p["exponent"] = e["exponent"]
    for k in range(values.shape[1]):
        values[i, k] = server.value[p["job"], at, k]
    return TO_SWITCH | urgent


@lean_part
def _open(server: Server, job: int, seq: int, at: int, now: int) -> bool:
    """Let an entry be of this seq; False if it is of a later one."""
    e = server.entries[job, at]
    if e["seq"] > seq:
        server.jobs[job]["stale"] += 1
        return False
    if e["seq"] < seq:
        if e["seq"] >= 0 and e["flags"] & DONE == 0:
            server.jobs[job]["broken"] += 1
        e["seq"] = seq
        e["bitmap"] = 0
        e["born"] = now
        e["proposal"] = -1
        e["flags"] = 0
        e["exponent"] = header.NO_EXPONENT
        for k in range(server.value.shape[2]):
            server.value[job, at, k] = 0
    return True


@linked(header, congestion)
def server_step(server: Server, packets: Records, values: Values, i: int, now: int) -> int:
    """One packet, the row `i` of `packets` and `values`, at the server of its job; returns its actions.

    DROP, or TO_SWITCH: the packet has become the result of its seq. URGENT beside it: a worker asked again. Packets of
    jobs that are not registered are dropped. `now` in ns.
    """
    p = packets[i]
    job, seq = p["job"], p["seq"]
    if not 0 <= job < len(server.jobs) or server.jobs[job]["expected"] == 0:
        return DROP
    row = server.jobs[job]
    at = seq & (server.entries.shape[1] - 1)
    if p["type"] == RESULT or p["type"] == CONTROL or not _open(server, job, seq, at, now):
        return DROP
    e = server.entries[job, at]
    e["index"] = p["index"]
    if e["flags"] & DONE:
        if p["type"] == EVICT:
            return DROP
        row["answered"] += 1
        return _answer(server, packets, values, i, at)
    e["flags"] |= p["flags"] & (ECN | OWNER_COL | COLLIDED)
    if p["flags"] & BYPASS:
        e["flags"] |= COLLIDED
    if not _gather(server, packets, values, i, at) or e["bitmap"] != row["expected"]:
        return DROP
    e["flags"] |= DONE
    row["results"] += 1
    if e["flags"] & COLLIDED:
        e["proposal"] = _propose(server, job, p["index"])
    if row["cc"] == A2TP and note_sum(server.jobs, job, e["flags"], now):
        e["flags"] |= BYPASS
    return _answer(server, packets, values, i, at)


@linked(header, congestion)
def server_batch(server: Server, packets: Records, values: Values, count: int, now: int, actions: IntArray) -> None:
    """The first `count` packets in order, with the actions of each."""
    for k in range(count):
        actions[k] = server_step(server, packets, values, k, now)


@linked(header, congestion)
def server_remind(server: Server, packets: Records, job: int, seq: int, spare: int, now: int, age: int) -> int:
    """Ask the switch for what it holds of a seq that has been incomplete for over `age` ns; off in all systems.

    Returns TO_SWITCH if the row `spare` is such a request, else DROP. A seq is asked for once in `age`.
    """
    e = server.entries[job, seq & (server.entries.shape[1] - 1)]
    if e["seq"] != seq or e["flags"] & DONE or now - e["born"] <= age:
        return DROP
    e["born"] = now
    p = packets[spare]
    p["type"] = CONTROL
    p["job"], p["seq"], p["index"] = job, seq, e["index"]
    p["bitmap"] = e["bitmap"]
    p["n_workers"] = server.jobs[job]["n_workers"]
    p["flags"], p["level"], p["prio"], p["epoch"], p["exponent"] = 0, 0, 0, 0, header.NO_EXPONENT
    return TO_SWITCH
