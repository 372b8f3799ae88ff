"""The newest steps of a job in its page: a ring of entries, each one `sharing.StepStats` in 15 words of 8 bytes.

    word   0  guard                      i8   step + 1; 0 while the entry is being written, or before the first
           1  step_s                     f8
           2  stage_s[4]                 f8   by resource; 0: not marked
           6  device_peak_bytes          f8
           7  device_persistent_bytes    f8
           8  device_reserved_bytes      f8
           9  host_spill_bytes           f8
          10  quantum_s                  f8
          11  work                       f8
          12  operations                 f8
          13  flags                      i8   spill reason in bits 0-1, left_out in bit 2, phase in bits 8-39,
                                          returns in bits 40-51, entries in bits 52-62
          14  ended_s                    f8   CLOCK_MONOTONIC; 0: not reported

A step is in entry `step % STEPS`. A reader copies the ring twice and takes entries that are complete and equal in both
copies, so it never mixes two steps. A phase is a label that only has to differ from others: the page has its checksum.
"""

from __future__ import annotations

import contextlib
import struct
import zlib

from plait.core.errors import InputError
from plait.core.resources import Resource
from plait.sharing.directive import SpillReason, StepStats

#: Steps in the ring: enough for steps of 10 ms and an agent that reads ten times a second.
STEPS = 12
_ENTRY = struct.Struct("<q12dqd")
ENTRY_BYTES = _ENTRY.size
RING_BYTES = STEPS * ENTRY_BYTES
_GUARD = struct.Struct("<q")
_NAMES = tuple(r.name.lower() for r in Resource)
_LEFT_OUT, _PHASE_AT, _RETURNS_AT, _ENTRIES_AT = 4, 8, 40, 52
_MOST_RETURNS, _MOST_ENTRIES = (1 << 12) - 1, (1 << 11) - 1


def entry_of(stats: StepStats) -> tuple[int, bytes]:
    """Offset of the entry of a step in the ring, in bytes, and the entry without its guard."""
    flags = stats.spill_reason.value | _LEFT_OUT * stats.left_out | zlib.crc32(stats.phase.encode()) << _PHASE_AT
    flags |= min(stats.returns, _MOST_RETURNS) << _RETURNS_AT | min(stats.entries, _MOST_ENTRIES) << _ENTRIES_AT
    packed = _ENTRY.pack(
        stats.step + 1,
        stats.step_s,
        *(stats.stage_s.get(name, 0.0) for name in _NAMES),
        stats.device_peak_bytes,
        stats.device_persistent_bytes,
        stats.device_reserved_bytes,
        stats.host_spill_bytes,
        stats.quantum_s,
        stats.work,
        stats.operations,
        flags,
        stats.ended_s,
    )
    return stats.step % STEPS * ENTRY_BYTES, packed


def steps_in(first: bytes, second: bytes, after: int) -> list[StepStats]:
    """Steps with numbers above `after` in two copies of a ring, oldest first; invalid entries are skipped."""
    found: list[StepStats] = []
    for at in range(0, min(len(first), len(second), RING_BYTES) - ENTRY_BYTES + 1, ENTRY_BYTES):
        entry = second[at : at + ENTRY_BYTES]
        if _GUARD.unpack_from(entry)[0] > max(after, -1) + 1 and entry == first[at : at + ENTRY_BYTES]:
            with contextlib.suppress(InputError, ValueError, OverflowError):  # a job can write anything there
                found.append(_stats(entry))
    return sorted(found, key=lambda stats: stats.step)


def _stats(entry: bytes) -> StepStats:
    guard, step_s, *rest, flags, ended_s = _ENTRY.unpack(entry)
    stages, (peak, persistent, reserved, spilled, quantum_s, work, operations) = rest[:4], rest[4:]
    if any(not 0 <= seconds < float("inf") for seconds in stages):
        raise InputError("seconds of a stage cannot be")
    phase = flags >> _PHASE_AT & 0xFFFFFFFF
    return StepStats(
        step=guard - 1,
        step_s=step_s,
        stage_s={name: seconds for name, seconds in zip(_NAMES, stages, strict=True) if seconds},
        device_peak_bytes=int(peak),
        device_persistent_bytes=int(persistent),
        device_reserved_bytes=int(reserved),
        host_spill_bytes=int(spilled),
        spill_reason=SpillReason(flags & 3),
        quantum_s=quantum_s,
        phase=f"{phase:08x}" if phase else "",
        work=work,
        operations=int(operations),
        left_out=bool(flags & _LEFT_OUT),
        ended_s=ended_s,
        returns=flags >> _RETURNS_AT & _MOST_RETURNS,
        entries=flags >> _ENTRIES_AT & _MOST_ENTRIES,
    )
