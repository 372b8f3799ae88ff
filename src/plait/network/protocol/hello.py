"""HELLO: the datagram with which a worker or a switch introduces itself to the other side, and the answer to it.

Our design. A worker says which job it is of and which bit is its own, a switch, to a server, only which job it serves;
both prove it with the secret of the job. The answer is the same datagram. The steps of the protocol never see one.

    datagram = pack(Hello(job, bit_of(rank), token))
    unpack(datagram)            # None for anything else
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from plait.network.protocol.header import HELLO, NO_EXPONENT, VERSION

#: Bytes of the secret of a job.
TOKEN_BYTES = 8

_FORM = struct.Struct(">BBHIqiBbBB8s")
_FIRST = VERSION << 5 | HELLO << 2
#: Bytes of the datagram: a header and the secret.
HELLO_BYTES = _FORM.size


class Hello(NamedTuple):
    """`job`: its number on the wire; `bitmap`: the bit of the worker, 0 for a switch; `token`: the secret, 8 bytes."""

    job: int
    bitmap: int
    token: bytes


def pack(hello: Hello) -> bytes:
    """The datagram. Raises `ValueError` for a token of another length, `struct.error` for numbers out of range."""
    if len(hello.token) != TOKEN_BYTES:
        raise ValueError(f"a token has {TOKEN_BYTES} bytes, not {len(hello.token)}")
    return _FORM.pack(_FIRST, 0, hello.job, 0, hello.bitmap, -1, 0, NO_EXPONENT, 0, 0, hello.token)


def unpack(datagram: bytes | bytearray | memoryview) -> Hello | None:
    """What a datagram says, None if it is no HELLO of this version."""
    if len(datagram) != HELLO_BYTES or datagram[0] != _FIRST:
        return None
    _, _, job, _, bitmap, _, _, _, _, _, token = _FORM.unpack(datagram)
    return Hello(job, bitmap, token)
