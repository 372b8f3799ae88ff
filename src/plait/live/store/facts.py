"""The store's own facts: rows of `meta`, each with its checksum."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa

from plait.live.store import schema
from plait.live.store.checksums import CRC
from plait.live.store.errors import StoreError

_META, _SUMS = schema.meta, schema.SUMMED["meta"]


def read_fact(connection: sa.Connection, key: str, lock: Mapping[str, Any] | None = None) -> str | None:
    """The value of a key, or None; raises `StoreError` for a row that does not match its checksum.

    `lock`: options of FOR UPDATE, for a row that this transaction continues from.
    """
    query = sa.select(_META).where(_META.c.key == key)
    row = connection.execute(query if lock is None else query.with_for_update(**lock)).mappings().first()
    if row is None:
        return None
    if problem := _SUMS.problem(row):
        raise damage(connection.engine.url.database, problem)
    return str(row["value"])


def write_fact(connection: sa.Connection, key: str, value: str) -> None:
    """Store a value under a key; an earlier one is replaced."""
    row = {"key": key, "value": value}
    changed = connection.execute(
        sa.update(_META).where(_META.c.key == key).values({"value": value, CRC: _SUMS.of(row)})
    )
    if not changed.rowcount:
        connection.execute(sa.insert(_META), _SUMS.add([row]))


def damage(store: str | None, what: str) -> StoreError:
    """The error of a store of which a row does not match its checksum."""
    return StoreError(f"the store {store} is damaged: {what}; put a backup back: plait restore")
