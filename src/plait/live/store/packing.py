"""How a snapshot is kept: as compressed JSON."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Mapping
from typing import Any

#: Elements of a list that become JSON in one go.
_PIECE = 100


def pack(state: Mapping[str, Any]) -> bytes:
    """A state as the store keeps it: JSON, compressed. In parts, so that other threads get their turns."""
    packer = zlib.compressobj(1)
    parts = [packer.compress(text.encode()) for text in _parts(state)]
    return b"".join([*parts, packer.flush()])


def _parts(value: Any, depth: int = 4) -> Iterator[str]:
    """The JSON of a value, long lists and objects in pieces."""
    if depth and isinstance(value, Mapping) and value:
        for i, (key, item) in enumerate(value.items()):
            yield f"{',' if i else '{'}{json.dumps(key)}:"
            yield from _parts(item, depth - 1)
        yield "}"
    elif depth and isinstance(value, list) and len(value) > _PIECE:
        for i in range(0, len(value), _PIECE):
            yield ("," if i else "[") + _dump(value[i : i + _PIECE])[1:-1]
        yield "]"
    else:
        yield _dump(value)


def _dump(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), allow_nan=False)
