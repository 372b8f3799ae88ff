"""Words of a page as attributes: doubles or signed integers of 8 bytes at fixed offsets, in memory or in a file."""

from __future__ import annotations

import os
import struct
from typing import Protocol, overload

from plait.core.resources import Resource

WORD = 8


class Words(Protocol):
    """Words of one type, by number."""

    def __getitem__(self, index: int, /) -> float: ...
    def __setitem__(self, index: int, value: float, /) -> None: ...


class HoldsWords(Protocol):
    """A page: its words as doubles and as signed integers."""

    @property
    def floats(self) -> Words:
        """All words as doubles."""

    @property
    def ints(self) -> Words:
        """All words as signed integers."""


class FileWords:
    """Words of a file by plain reads and writes; words behind its end read as 0."""

    def __init__(self, fd: int, code: str) -> None:
        self.fd, self.packed = fd, struct.Struct("=" + code)

    def __getitem__(self, index: int) -> float:
        data = os.pread(self.fd, WORD, index * WORD)
        return float(self.packed.unpack(data)[0]) if len(data) == WORD else 0.0

    def __setitem__(self, index: int, value: float) -> None:
        os.pwrite(self.fd, self.packed.pack(value), index * WORD)


class Float:
    """A double at a fixed offset."""

    def __init__(self, offset: int) -> None:
        self.index = offset // WORD

    @overload
    def __get__(self, page: None, owner: type) -> Float: ...
    @overload
    def __get__(self, page: HoldsWords, owner: type) -> float: ...
    def __get__(self, page: HoldsWords | None, owner: type) -> float | Float:
        return self if page is None else page.floats[self.index]

    def __set__(self, page: HoldsWords, value: float) -> None:
        page.floats[self.index] = value


class Int:
    """A signed integer at a fixed offset."""

    def __init__(self, offset: int) -> None:
        self.index = offset // WORD

    @overload
    def __get__(self, page: None, owner: type) -> Int: ...
    @overload
    def __get__(self, page: HoldsWords, owner: type) -> int: ...
    def __get__(self, page: HoldsWords | None, owner: type) -> int | Int:
        return self if page is None else int(page.ints[self.index])

    def __set__(self, page: HoldsWords, value: int) -> None:
        page.ints[self.index] = value


_NUMBERS = range(len(Resource))  # iterating over the enum takes four times as long


class PerResource:
    """A double for each resource, from a fixed offset on; single ones by `Page.add`."""

    def __init__(self, offset: int) -> None:
        self.index = offset // WORD

    @overload
    def __get__(self, page: None, owner: type) -> PerResource: ...
    @overload
    def __get__(self, page: HoldsWords, owner: type) -> tuple[float, ...]: ...
    def __get__(self, page: HoldsWords | None, owner: type) -> tuple[float, ...] | PerResource:
        return self if page is None else tuple(page.floats[self.index + r] for r in Resource)

    def __set__(self, page: HoldsWords, values: tuple[float, ...] | list[float]) -> None:
        for number in _NUMBERS:
            page.floats[self.index + number] = values[number]
