"""Whole-batch work of a switch and a server around the protocol's steps: admit packets, sort the results.

Compiled; start at `admit`.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from plait.core.arrays import IntArray
from plait.core.jit import lean_part, linked
from plait.network.protocol import header
from plait.network.protocol.header import Records, Values, int64
from plait.network.protocol.server import DROP, URGENT
from plait.network.protocol.switch import MULTICAST, TO_SERVER, UNICAST


@lean_part
def _move(packets: Records, values: Values, to: int, k: int) -> None:
    """Copy a packet to a row before its own."""
    if to != k:
        packets[to] = packets[k]
        for e in range(values.shape[1]):
            values[to, e] = values[k, e]


@linked(header)
def admit(
    packets: Records, values: Values, count: int, job: int, bits: int, kinds: int, priorities: npt.NDArray[np.int16]
) -> int:
    """Keep, in order and in the first rows, the packets that a worker may send; returns how many.

    They are of its job, of a type whose bit is in `kinds`, and of workers in `bits`. They get the priority of the job,
    where that is set (`priorities`, by job, -1 where not).
    """
    kept = 0
    for k in range(count):
        p = packets[k]
        wrong = p["bitmap"] == 0 or p["bitmap"] & ~int64(bits) != 0
        if p["job"] != job or wrong or (int64(kinds) >> p["type"]) & 1 == 0:
            continue
        if priorities[job] >= 0:
            p["prio"] = priorities[job]
        _move(packets, values, kept, k)
        kept += 1
    return kept


@linked(header)
def admit_known(packets: Records, values: Values, count: int, kinds: int, jobs: Records) -> int:
    """Keep the packets of jobs that a switch knows (`jobs`: SWITCH_JOB) and of types in `kinds`, as `admit` does."""
    kept = 0
    for k in range(count):
        p = packets[k]
        if jobs[p["job"]]["expected"] == 0 or (int64(kinds) >> p["type"]) & 1 == 0:
            continue
        _move(packets, values, kept, k)
        kept += 1
    return kept


@linked(header)
def admit_rows(packets: Records, values: Values, count: int, kinds: int, rows: IntArray, jobs: Records) -> int:
    """Keep the packets of jobs that have a row at a server, as `admit` does; `job` becomes that row.

    `rows`: by number of the job, -1 for jobs that the sender does not serve; `jobs`: SERVER_JOB, by row.
    """
    kept = 0
    for k in range(count):
        p = packets[k]
        row = rows[p["job"]]
        if row < 0 or (int64(kinds) >> p["type"]) & 1 == 0:
            continue
        if p["bitmap"] == 0 or p["bitmap"] & ~jobs[row]["expected"] != 0:
            continue
        p["job"] = row
        _move(packets, values, kept, k)
        kept += 1
    return kept


@linked(header)
def sort_actions(
    count: int, actions: IntArray, spares: IntArray, up: IntArray, down: IntArray, back: IntArray, counts: IntArray
) -> None:
    """Rows of a batch by where they go after `switch_batch`, in order; `counts` gets how many of each.

    `up`: to the server, an evicted content before the packet that took its place; `down`: to all workers of the job;
    `back`: to the workers in their bitmap.
    """
    counts[:] = 0
    for k in range(count):
        if spares[k] >= 0:
            up[counts[0]] = spares[k]
            counts[0] += 1
        if actions[k] & TO_SERVER:
            up[counts[0]] = k
            counts[0] += 1
        if actions[k] & MULTICAST:
            down[counts[1]] = k
            counts[1] += 1
        elif actions[k] & UNICAST:
            back[counts[2]] = k
            counts[2] += 1


@linked(header)
def sort_results(packets: Records, count: int, actions: IntArray, jobs: IntArray, down: IntArray) -> int:
    """Rows that a server answers after `server_batch`, urgent ones first; returns how many.

    Their `job`, a row of the server, becomes the number of the job again, `jobs[row]`.
    """
    found = 0
    for urgent in range(1, -1, -1):
        for k in range(count):
            if actions[k] != DROP and (actions[k] & URGENT != 0) == (urgent == 1):
                packets[k]["job"] = jobs[packets[k]["job"]]
                down[found] = k
                found += 1
    return found
