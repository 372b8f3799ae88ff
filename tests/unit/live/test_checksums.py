"""A flipped bit in a row of the store is found, and the row is named."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from live_cases import Cluster

from plait.live.store import Entry, Store, StoreError, schema
from plait.live.store.checksums import CRC

Make = Callable[..., Cluster]


def flip(value: Any, draw: random.Random) -> Any:
    """The value with one of its bits flipped, as another value of the same kind."""
    if isinstance(value, str) and value:
        at = draw.randrange(len(value))
        return value[:at] + chr(ord(value[at]) ^ (1 << draw.randrange(5))) + value[at + 1 :]
    if isinstance(value, int):
        return value ^ (1 << draw.randrange(20))
    if isinstance(value, float):
        return math.ldexp(value, 1) if value else 2.0 ** draw.randrange(-20, 20)
    return None


def rows_of(store: Store, table: sa.Table) -> list[dict[str, Any]]:
    with store.reading() as connection:
        return [dict(row._mapping) for row in connection.execute(sa.select(table))]


def test_a_flipped_bit_in_any_column_of_any_row_is_found_and_named(cluster: Make) -> None:
    c = cluster((2, 1))
    c.submit({"name": "α"}, {"gpus": 2, "command": ["python", "train.py", "\U0001f600"]}, {})
    c.pass_s(30)
    assert list(c.store.damaged()) == []
    draw, tried = random.Random(4), 0
    for table in (schema.log, schema.jobs, schema.attempts, schema.nodes):
        rows, keys = rows_of(c.store, table), list(table.primary_key.columns)
        assert rows, table.name
        assert all(row[CRC] is not None for row in rows), table.name
        for row in draw.sample(rows, min(len(rows), 4)):
            where = sa.and_(*(key == row[key.name] for key in keys))
            for column in table.c:
                flipped = None if column.primary_key or row[column.name] is None else flip(row[column.name], draw)
                if flipped is None or flipped == row[column.name]:
                    continue
                with c.store._engine.begin() as connection:
                    connection.execute(sa.update(table).where(where).values({column.name: flipped}))
                (problem,) = c.store.damaged()
                assert problem.startswith("row ")
                assert all(repr(row[key.name]) in problem for key in keys)
                assert problem.endswith(f"of table {table.name} does not match its checksum")
                with c.store._engine.begin() as connection:
                    connection.execute(sa.update(table).where(where).values({column.name: row[column.name]}))
                tried += 1
    assert tried > 60
    assert list(c.store.damaged()) == []


def test_a_service_does_not_go_on_from_a_damaged_log_or_snapshot(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "plait.db")
    store.commit([Entry(i, float(i), "submitted", '{"a": 1}') for i in range(1, 5)], snapshot=(2, {"a": [1] * 50}))
    with store._engine.begin() as connection:
        connection.execute(sa.text("UPDATE log SET entry = '{\"a\": 3}' WHERE seq = 3"))
    _, tail = store.load()
    with pytest.raises(StoreError, match=r"plait\.db is damaged: row seq 3 of table log .* plait restore"):
        list(tail)
    with store._engine.begin() as connection:
        body = bytearray(connection.execute(sa.text("SELECT body FROM snapshots")).scalar_one())
        body[len(body) // 2] ^= 16
        connection.execute(sa.text("UPDATE snapshots SET body = :body"), {"body": bytes(body)})
    with pytest.raises(StoreError, match="damaged: snapshot 2 cannot be unpacked"):
        store.load()
    assert len(list(store.damaged())) == 2
    store.close()


def test_numbers_come_back_as_they_were_summed(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "plait.db")
    sums = schema.SUMMED["attempts"]
    numbers = [0, -0.0, 1, 0.1, 1e300, 5e-324, math.inf, 2**53, math.nan, None]
    row = {"job": 1, "ended_s": None, "outcome": "", "cause": "\ud800"[:0] + "é\u202e", "ranks": "[]"}
    rows = [{**row, "epoch": i, "began_s": 3, "batch_size": x, "lost_work_s": x} for i, x in enumerate(numbers)]
    with store._writing() as connection:
        connection.execute(store._upsert["attempts"], sums.add(rows))
    assert list(store.damaged()) == []
    store.close()


def test_rows_of_older_versions_have_no_checksum_and_are_read(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "plait.db")
    store.commit([Entry(1, 1.0, "submitted", "{}")])
    with store._engine.begin() as connection:
        for table in schema.SUMMED:
            connection.execute(sa.text(f"ALTER TABLE {table} DROP COLUMN crc"))
        connection.execute(sa.text("UPDATE alembic_version SET version_num = '0005'"))
    store.close()
    again = Store.open(tmp_path / "plait.db")
    again.commit([Entry(2, 2.0, "submitted", "{}")])
    assert [entry.seq for entry in again.entries()] == [1, 2]
    assert [row[CRC] is None for row in rows_of(again, schema.log)] == [True, False]
    again.close()
