"""Compiled parts of the client: gradients straight into packets, and results straight out of what a socket received.

They join what `plait.network.protocol` does in steps (`fixed_point`, `header.encode`, `header.decode`), so that each
gradient is read once and written once; tests compare both. They run without the interpreter's lock, beside the backward
pass. Our design. Start at `fill_packets` and `take_results`.

Rows of packets are in the format of `header.encode`, as uint32 words in the byte order of the machine: 6 words of
header, then a word for each element.
"""

from __future__ import annotations

import math
import sys
from typing import Any

import numpy as np
import numpy.typing as npt

from plait.core.jit import lean_part, linked
from plait.network.protocol import addressing, congestion, fixed_point, header, worker
from plait.network.protocol.fixed_point import NOT_FINITE, FloatArray32
from plait.network.protocol.header import COLLIDED, NO_EXPONENT, VERSION, WIRE_BYTES, Records, Values, int64
from plait.network.protocol.worker import ACCEPTED, Workers, worker_receive, worker_send

Words = npt.NDArray[np.uint32]

#: Words of a header.
HEADER_WORDS = WIRE_BYTES // 4
#: Whether words have to be turned round for the network.
LITTLE = sys.byteorder == "little"
_INFINITY = 0x7F800000

uint32: Any = np.uint32


@lean_part
def swapped(word: Any) -> Any:
    """A word between the byte order of the network and that of the machine, either way."""
    if not LITTLE:
        return word
    high = (word << uint32(24)) | ((word & uint32(0xFF00)) << uint32(8))
    return uint32(high | ((word >> uint32(8)) & uint32(0xFF00)) | (word >> uint32(24)))


@linked(header, nogil=True)
def largest_bits(bits: Words) -> int:
    """The largest of float32, given as words, without their signs; not finite ones are larger than all others."""
    most = uint32(0)
    for k in range(len(bits)):
        most = max(most, bits[k] & uint32(0x7FFFFFFF))
    found: int = int64(most)
    return found


def exponent_of(gradients: FloatArray32) -> int:
    """As `fixed_point.exponent_of`, several times as fast: positive floats are ordered as their bits are."""
    most = largest_bits(gradients.view(np.uint32))
    if most >= _INFINITY:
        return NOT_FINITE
    if most == 0:
        return NO_EXPONENT
    return max(-127, math.frexp(float(np.uint32(most).view(np.float32)))[1])


@lean_part
def _write_header(packets: Records, k: int, rows: Words) -> None:
    """As the first half of `header.encode`."""
    p = packets[k]
    first = (
        (int64(VERSION) << 29) | (int64(p["type"]) << 26) | (int64(p["level"]) << 24) | (int64(p["n_workers"]) << 16)
    )
    rows[k, 0] = swapped(uint32(first | int64(p["job"])))
    rows[k, 1] = swapped(uint32(p["seq"] & 0xFFFFFFFF))
    rows[k, 2] = swapped(uint32((p["bitmap"] >> 32) & 0xFFFFFFFF))
    rows[k, 3] = swapped(uint32(p["bitmap"] & 0xFFFFFFFF))
    rows[k, 4] = swapped(uint32(int64(p["index"]) & 0xFFFFFFFF))
    last = (int64(p["prio"]) << 24) | ((int64(p["exponent"]) & 255) << 16) | ((int64(p["flags"]) & 255) << 8)
    rows[k, 5] = swapped(uint32(last | int64(p["epoch"])))


@lean_part
def _read_header(packets: Records, rows: Words, k: int) -> None:
    """The header of row `k`, as `header.decode` reads it, to packet 0."""
    p = packets[0]
    first, last = int64(swapped(rows[k, 0])), int64(swapped(rows[k, 5]))
    p["type"] = (first >> 26) & 7
    p["level"] = (first >> 24) & 3
    p["n_workers"] = (first >> 16) & 255
    p["job"] = first & 65535
    p["seq"] = int64(swapped(rows[k, 1]))
    p["bitmap"] = (int64(swapped(rows[k, 2])) << 32) | int64(swapped(rows[k, 3]))
    index = int64(swapped(rows[k, 4]))
    p["index"] = index - (1 << 32) if index >= 1 << 31 else index
    p["prio"] = (last >> 24) & 255
    exponent = (last >> 16) & 255
    p["exponent"] = exponent - 256 if exponent >= 128 else exponent
    p["flags"] = (last >> 8) & 255
    p["epoch"] = last & 255


@lean_part
def _rounded(gradients: FloatArray32, scale: float, row: Words) -> None:
    """Quantise the gradients of a packet; nothing but this loop, so that the compiler makes vectors of it.

    All gradients times `scale` fit, since the exponent is that of the largest one of all ranks.
    """
    for e in range(len(gradients)):
        row[e] = swapped(uint32(np.int32(np.rint(np.float64(gradients[e]) * scale))))


@lean_part
def _truncated(gradients: FloatArray32, scale: float, row: Words) -> int:
    """The same towards zero, with a scale that may be too large; returns how many values were limited."""
    limited = 0
    for e in range(len(gradients)):
        value = np.trunc(np.float64(gradients[e]) * scale)
        limited += 0 if abs(value) <= 2147483647.0 else 1
        row[e] = swapped(uint32(np.int32(min(2147483647.0, max(-2147483648.0, value)))))
    return limited


@lean_part
def _copied(row: Words, sums: Values) -> None:
    """Write what a packet holds to its place."""
    for e in range(len(sums)):
        sums[e] = np.int32(swapped(row[e]))


@linked(header, addressing, congestion, worker, fixed_point, nogil=True)
def fill_packets(
    workers: Workers, packets: Records, gradients: FloatArray32, scale: float, truncate: bool, rows: Words, now: int
) -> tuple[int, int]:
    """Fill `rows` with the packets that worker 0 may send now; returns (how many, how many values were limited).

    The packet of seq s has the gradients from (s - first) * elements on, times `scale`, rounded to even or towards zero
    (`truncate`), and zeros behind the last one. What is truncated and does not fit in 32 bits is limited.
    """
    elements = rows.shape[1] - HEADER_WORDS
    limited = 0
    for k in range(len(rows)):
        if worker_send(workers, 0, packets, 0, now) == 0:
            return k, limited
        _write_header(packets, 0, rows[k : k + 1])
        start = (packets[0]["seq"] - workers.state[0]["first"]) * elements
        have = min(elements, len(gradients) - start)
        if truncate:
            limited += _truncated(gradients[start : start + have], scale, rows[k, HEADER_WORDS:])
        else:
            _rounded(gradients[start : start + have], scale, rows[k, HEADER_WORDS:])
        for e in range(have, elements):
            rows[k, HEADER_WORDS + e] = uint32(0)
    return len(rows), limited


@linked(header, addressing, congestion, worker, fixed_point, nogil=True)
def take_results(workers: Workers, packets: Records, rows: Words, results: Values, now: int) -> tuple[int, int]:
    """Give `rows` to worker 0, and write what each new result holds to its place in `results`.

    Returns (new results, those among them with a collision). Rows that are no results of this tensor are ignored.
    """
    elements = rows.shape[1] - HEADER_WORDS
    accepted, collided = 0, 0
    for k in range(len(rows)):
        if int64(swapped(rows[k, 0])) >> 29 != VERSION:
            continue
        _read_header(packets, rows, k)
        if worker_receive(workers, 0, packets, 0, now) & ACCEPTED == 0:
            continue
        accepted += 1
        collided += 1 if packets[0]["flags"] & COLLIDED else 0
        start = (packets[0]["seq"] - workers.state[0]["first"]) * elements
        _copied(rows[k, HEADER_WORDS:], results[start : min(start + elements, len(results))])
    return accepted, collided


@linked(fixed_point, nogil=True)
def write_mean(sums: Values, divisor: float, out: FloatArray32) -> None:
    """Write sums / divisor to `out`, rounded once; the divisor is scale x number of workers."""
    for k in range(len(out)):
        out[k] = np.float32(np.float64(sums[k]) / divisor)
