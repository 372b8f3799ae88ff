"""Which aggregator a packet uses: four ways, and the checks of what they need.

    DEDICATED      offset + seq % size, size rounded down to an even number    SwitchML (published description)
    SHARED_HASH    hash of job and seq, over all aggregators                   ATP, A2TP, ESA (published description)
    SHARED_CYCLE   a list of slots that are distinct within the job            ATP and A2TP (released code)
    HYBRID_REGION  hash, or remainder, of seq within the region of the job     INAlloc (published description)

The worker computes the index and writes it in the header. Hash and the remainder in a region of one job alone are our
design. Start at `index_of`.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from plait.core.arrays import IntArray
from plait.core.errors import InputError
from plait.core.jit import lean_part, linked
from plait.network.protocol import header
from plait.network.protocol.header import int64

Slots = npt.NDArray[np.int32]


class Index(IntEnum):
    """How a worker computes an index; HYBRID_MODULO is HYBRID_REGION in a region of one job alone."""

    DEDICATED = 0
    SHARED_HASH = 1
    SHARED_CYCLE = 2
    HYBRID_REGION = 3
    HYBRID_MODULO = 4


DEDICATED, SHARED_HASH, SHARED_CYCLE, HYBRID_REGION, HYBRID_MODULO = (int(index) for index in Index)

_LOW = 0xFFFFFFFF


@lean_part
def mix(job: int, seq: int) -> int:
    """A hash of (job, seq), 62 bits, in which every bit of both changes about half of the bits.

    Two rounds of multiplication and shift on halves of 32 bits, in arithmetic that fits in 63: the same with and
    without a compiler.
    """
    high = (int64(job) * 0x2C1B3C6D + int64(seq) * 0x297A2D39 + 0x165667B1) & _LOW
    low = (int64(seq) ^ (int64(job) << 16)) & _LOW
    for _ in range(3):
        low = ((low ^ (low >> 16)) * 0x7FEB352D) & _LOW
        high = (high + low) & _LOW
        high = ((high ^ (high >> 15)) * 0x6C8E9CF5) & _LOW
        low = (low ^ (high >> 13) ^ high) & _LOW
    mixed: int = ((high & 0x3FFFFFFF) << 32) | low
    return mixed


@lean_part
def index_of(mode: int, job: int, seq: int, offset: int, size: int, slots: Slots, cycle: int) -> int:
    """The aggregator of a packet, -1 if the job has none.

    `mode` is one of `Index`; `offset` and `size` are the region of the job, all aggregators where they are shared; the
    list of slots is the first `cycle` entries of `slots`.
    """
    index: int = int64(-1)
    if mode == SHARED_CYCLE:
        if cycle > 0:
            index = int64(slots[seq % cycle])
    elif size > 0 and mode == DEDICATED:
        index = int64(offset + seq % max(1, size & ~1))
    elif size > 0 and mode == HYBRID_MODULO:
        index = int64(offset + seq % size)
    elif size > 0:
        index = int64(offset + mix(int64(job), seq) % size)
    return index


@linked(header)
def write_indices(
    mode: int, job: int, seqs: IntArray, offset: int, size: int, slots: Slots, cycle: int, out: IntArray
) -> None:
    """Write `index_of` for many packets of a job to `out`."""
    for k in range(len(seqs)):
        out[k] = index_of(mode, job, seqs[k], offset, size, slots, cycle)


def indices(mode: int, job: int, seqs: IntArray, offset: int, size: int, slots: Slots, cycle: int) -> IntArray:
    """`index_of` for many packets of a job, in a new array."""
    out = np.empty(len(seqs), dtype=np.int64)
    write_indices(mode, job, seqs, offset, size, slots, cycle, out)
    return out


def cycle_slots(job: int, count: int, aggregators: int, first: int = 0) -> Slots:
    """The list of a job in shared_cycle: `count` distinct slots of `aggregators`, from `first` on.

    From released code: slot k is the CRC32 of job, k and a salt, which increases until the slot is not in the list.
    Raises `InputError` if there are fewer aggregators than slots.
    """
    if count > aggregators:
        raise InputError(f"job {job}: a cycle of {count} slots needs as many aggregators; the switch has {aggregators}")
    used: set[int] = set()
    out = np.empty(count, dtype=np.int32)
    for k in range(count):
        salt = 0
        while (slot := first + zlib.crc32(struct.pack("<III", job, k, salt)) % aggregators) in used:
            salt += 1
        used.add(slot)
        out[k] = slot
    return out


def check_cycle(count: int, window: int, aggregators: int) -> None:
    """Raise `InputError` unless so many slots are enough for the window and there are so many aggregators."""
    if count > aggregators:
        raise InputError(f"cycle of {count} slots: the switch has {aggregators} aggregators; use at most as many")
    if window > count:
        raise InputError(f"window of {window} packets: a cycle of {count} slots takes at most {count}")


def check_partitions(sizes: Sequence[int], aggregators: int) -> None:
    """Raise `InputError` unless each dedicated job has two slots or more and all of them together fit."""
    for job, size in enumerate(sizes):
        if size < 2:
            raise InputError(f"job {job}: {size} dedicated slots; a job needs 2 or more, twice its window")
    if sum(sizes) > aggregators:
        raise InputError(f"{sum(sizes)} dedicated slots in all: the switch has {aggregators} aggregators")


def dedicated_window(window: int, size: int) -> int:
    """Packets that a worker with `size` dedicated slots may have outstanding: half of the slots at most."""
    return min(window, size // 2)
