"""Checksums of rows: a bit that a disk or memory flipped is found, and the row that has it is named.

SQLite and PostgreSQL notice damage to their own structure, not to a value.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from typing import Any

import sqlalchemy as sa

#: The column of a row's checksum; null in rows of versions that wrote none.
CRC = "crc"


def _float(value: Any) -> float | None:
    """A number as every store gives it back: without NaN, and without the sign of zero."""
    return None if value is None or value != value else float(value) + 0.0


def _converter(column: sa.Column[Any]) -> Callable[[Any], Any]:
    if isinstance(column.type, sa.Float):
        return _float
    if isinstance(column.type, sa.LargeBinary):
        return zlib.crc32
    if isinstance(column.type, sa.Boolean):
        return bool
    return (lambda value: None if value is None else int(value)) if isinstance(column.type, sa.Integer) else str


class Checksums:
    """Checksums of one table's rows."""

    def __init__(self, table: sa.Table) -> None:
        self.table = table
        self._columns = [(column.name, _converter(column)) for column in table.c if column.name != CRC]
        self._keys = [column.name for column in table.primary_key.columns]

    def of(self, row: Mapping[Any, Any]) -> int:
        """The CRC-32 of a row; a column that is missing counts as null."""
        return zlib.crc32(repr([convert(row.get(name)) for name, convert in self._columns]).encode())

    def add(self, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [{**row, CRC: self.of(row)} for row in rows]

    def problem(self, row: Mapping[Any, Any]) -> str:
        """Which row of the table does not match its checksum; "" if it does, or has none."""
        try:
            if row[CRC] is None or row[CRC] == self.of(row):
                return ""
        except (ValueError, TypeError, OverflowError):  # a text where a number was
            pass
        key = ", ".join(f"{name} {row[name]!r}" for name in self._keys)
        return f"row {key} of table {self.table.name} does not match its checksum"
