"""The header of a packet of gradients: its fields as a record, and the 24 bytes that they take on the wire.

Our design. The fields follow the headers of SwitchML and ATP (from released code); order and widths are ours. With 34
bytes of Ethernet, IP and UDP addresses before it a packet has 58 bytes beside its payload, as one of ATP has.

In memory a packet is a row of two arrays of the same length: `packets` of dtype `PACKET`, and `values`, int32, whose
columns are the payload; no columns where only times are of interest. All steps of the protocol read packets there
and change them in place.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from plait.core.jit import lean_part, linked

Records: TypeAlias = npt.NDArray[Any]
Values: TypeAlias = npt.NDArray[np.int32]
Bytes: TypeAlias = npt.NDArray[np.uint8]

#: Widens a number of a record to 64 bits, in Python and in machine code.
int64: Any = np.int64

VERSION = 1

#: Types of packets. RESEND: a worker sends a packet again; EVICT: the content of an aggregator on its way to the
#: server; EXPONENT: a packet of a worker that has no payload but the exponent of a later one; CONTROL: the server asks
#: a switch for the content of an aggregator; HELLO: a worker or switch introduces itself, see `hello`, before the
#: first packet that steps of the protocol see.
DATA, RESEND, RESULT, EVICT, EXPONENT, CONTROL, HELLO = range(7)

#: Flags. COLLIDED: the packet found its aggregator occupied and fell back; OWNER_COL: another packet collided with the
#: aggregator that it was added to; FULL: the sum of all workers below this switch; OVERFLOW: a sum was limited to 32
#: bits and is wrong; BYPASS: the worker wants no aggregator; SLOT_CHANGE: a result whose `bitmap` is not a bitmap but
#: the index that packets of this position of the cycle use from now on.
ECN, COLLIDED, OWNER_COL, FULL, OVERFLOW, BYPASS, SLOT_CHANGE = (1 << bit for bit in range(7))

#: Most workers of a job: one bit each.
MOST_WORKERS = 64
#: `exponent` of a packet that has none: any other is larger.
NO_EXPONENT = -128

#: A packet. `seq` (PSN) is 32 bits on the wire and never restarts in the life of a job; `bitmap` has a bit for each
#: worker whose gradients are in the payload; `index` is that of the aggregator, -1 for none.
PACKET = np.dtype(
    [
        ("seq", "i8"),
        ("bitmap", "i8"),
        ("job", "i4"),
        ("index", "i4"),
        ("flags", "i2"),
        ("type", "i1"),
        ("level", "i1"),
        ("prio", "u1"),
        ("epoch", "u1"),
        ("n_workers", "u1"),
        ("exponent", "i1"),
    ],
    align=True,
)

#: Bytes of the header on the wire.
WIRE_BYTES = 24


def make_packets(count: int, elements: int = 0) -> tuple[Records, Values]:
    """(packets, values) for so many packets of so many int32 each."""
    return np.zeros(count, dtype=PACKET), np.zeros((count, elements), dtype=np.int32)


@lean_part
def encode_row(packets: Records, values: Values, k: int, out: Bytes, to: int) -> None:
    """Write the packet `k` to the row `to` of `out`, as `encode` does."""
    p = packets[k]
    row = out[to]
    row[0] = (VERSION << 5) | (p["type"] << 2) | p["level"]
    row[1] = p["n_workers"]
    seq, bitmap, index, job = p["seq"], p["bitmap"], np.int64(p["index"]), np.int64(p["job"])
    row[2], row[3] = (job >> 8) & 255, job & 255
    for b in range(4):
        row[4 + b] = (seq >> (24 - 8 * b)) & 255
        row[16 + b] = (index >> (24 - 8 * b)) & 255
    for b in range(8):
        row[8 + b] = (bitmap >> (56 - 8 * b)) & 255
    row[20] = p["prio"]
    row[21] = np.int64(p["exponent"]) & 255
    row[22] = p["flags"] & 255
    row[23] = p["epoch"]
    at = WIRE_BYTES
    for e in range(values.shape[1]):
        value = np.int64(values[k, e])
        for b in range(4):
            row[at + b] = (value >> (24 - 8 * b)) & 255
        at += 4


@linked()
def encode(packets: Records, values: Values, count: int, out: Bytes) -> None:
    """Write the first `count` packets to the rows of `out` (uint8, at least 24 + 4 x columns of `values` wide).

    Big endian. Header: version and type (3 bits each) and level (2), workers, job (2 bytes), seq (4), bitmap (8),
    index (4), priority, exponent, flags, epoch. Then the payload, 4 bytes an element.
    """
    for k in range(count):
        encode_row(packets, values, k, out, k)


@linked()
def encode_rows(packets: Records, values: Values, rows: npt.NDArray[np.int64], count: int, out: Bytes) -> None:
    """Write the packets whose numbers are the first `count` of `rows` to the rows of `out`, as `encode` does."""
    for k in range(count):
        encode_row(packets, values, rows[k], out, k)


@lean_part
def decode_row(rows: Bytes, k: int, packets: Records, values: Values, to: int) -> None:
    """Read the row `k`, which is long enough and of this version, into the row `to` of `packets` and `values`."""
    row = rows[k]
    p = packets[to]
    p["type"] = (row[0] >> 2) & 7
    p["level"] = row[0] & 3
    p["n_workers"] = row[1]
    p["job"] = (np.int64(row[2]) << 8) | np.int64(row[3])
    seq, index, bitmap = np.int64(0), np.int64(0), np.int64(0)
    for b in range(4):
        seq = (seq << 8) | np.int64(row[4 + b])
        index = (index << 8) | np.int64(row[16 + b])
    for b in range(8):
        bitmap = (bitmap << 8) | np.int64(row[8 + b])
    p["seq"], p["bitmap"] = seq, bitmap
    p["index"] = index - (1 << 32) if index >= 1 << 31 else index
    p["prio"] = row[20]
    exponent = np.int64(row[21])
    p["exponent"] = exponent - 256 if exponent >= 128 else exponent
    p["flags"] = row[22]
    p["epoch"] = row[23]
    at = WIRE_BYTES
    for e in range(values.shape[1]):
        value = np.int64(0)
        for b in range(4):
            value = (value << 8) | np.int64(row[at + b])
        values[to, e] = value - (1 << 32) if value >= 1 << 31 else value
        at += 4


@linked()
def decode(rows: Bytes, lengths: npt.NDArray[np.int64], count: int, packets: Records, values: Values) -> int:
    """Read `count` rows of wire format, of `lengths` bytes, into `packets` and `values`, without those that are wrong.

    Returns how many packets there are. A row of another version, or shorter than header and payload, is left out.
    """
    found = 0
    for k in range(count):
        if lengths[k] < WIRE_BYTES + 4 * values.shape[1] or (rows[k, 0] >> 5) != VERSION:
            continue
        decode_row(rows, k, packets, values, found)
        found += 1
    return found
