"""Checksums of checkpoints, by which damaged files are detected before they are loaded.

The marker of a checkpoint holds the size and the CRC-32 of every file, and a CRC-32 of itself. A CRC detects every
flipped bit and every burst of up to 32 bits. It does not protect against deliberate changes, which could change the
marker, too. It costs about 0.7 s of one core per GB, in the thread that writes, and as much at a resume.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from plait.core.errors import PlaitError

_CHUNK = 1 << 22
#: The marker's checksum of itself.
_OWN = "crc32"


class Damaged(PlaitError, ValueError):
    """A checkpoint, or its marker, is not what was written."""


def crc_of(path: Path) -> int:
    """The CRC-32 of a file; raises OSError."""
    crc, buffer = 0, memoryview(bytearray(_CHUNK))
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(buffer):
            crc = zlib.crc32(buffer[:count], crc)
    return crc


def marker_text(step: int, epoch: int, world_size: int, folder: Path) -> str:
    """The marker of a checkpoint whose files lie in `folder`; raises OSError."""
    files = {
        str(file.relative_to(folder)): [file.stat().st_size, crc_of(file)]
        for file in sorted(folder.rglob("*"))
        if file.is_file()
    }
    facts = {"step": step, "epoch": epoch, "world": world_size, "files": files}
    return json.dumps({**facts, _OWN: _own(facts)})


def read_marker(text: str) -> tuple[int, dict[str, tuple[int, int | None]]]:
    """World size, and size and CRC of each file; a CRC is None in the oldest markers. Raises `Damaged`.

    >>> read_marker('{"step": 5, "epoch": 0, "world": 1, "files": {"rank0.pt": 7}}')
    (1, {'rank0.pt': (7, None)})
    """
    try:
        facts = json.loads(text)
        own = facts.pop(_OWN, None)
        old = own is None and all(isinstance(said, int) for said in facts["files"].values())
        if not old and own != _own(facts):
            raise Damaged("the marker was changed after it was written: its checksum does not match")
        files = {name: (said, None) if old else (said[0], said[1]) for name, said in facts["files"].items()}
        return int(facts["world"]), files
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError) as error:
        raise Damaged(f"the marker cannot be read: {error}") from error


def check_file(path: Path, crc: int | None) -> None:
    """Raise `Damaged` if a file differs from its checksum or size, OSError if it cannot be read."""
    if crc is not None and (found := crc_of(path)) != crc:
        raise Damaged(f"{path} is not what was written: its CRC-32 is {found:08x}, not {crc:08x}")


def _own(facts: Mapping[str, Any]) -> int:
    return zlib.crc32(json.dumps(facts, sort_keys=True).encode())
