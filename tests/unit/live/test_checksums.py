"""A flipped bit in a row of the store is found, and the row is named."""

from __future__ import annotations

import math
import os
import random
import sqlite3
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from live_cases import Cluster

from plait.live.store import Entry, Store, StoreError, schema
from plait.live.store import store as store_module
from plait.live.store.checksums import CRC, Checksums
from plait.live.store.schema import Token

Make = Callable[..., Cluster]
#: Flipped bits of a whole file.
FLIPS = 2000 if os.environ.get("PLAIT_SLOW") == "1" else 60


def flip(value: Any, draw: random.Random) -> Any:
    """The value with one of its bits flipped, as another value of the same kind."""
    if isinstance(value, str) and value:
        at = draw.randrange(len(value))
        return value[:at] + chr(ord(value[at]) ^ (1 << draw.randrange(5))) + value[at + 1 :]
    if isinstance(value, bytes):
        at = draw.randrange(len(value))
        return value[:at] + bytes([value[at] ^ (1 << draw.randrange(8))]) + value[at + 1 :]
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value ^ (1 << draw.randrange(20))
    if isinstance(value, float):
        return math.ldexp(value, 1) if value else 2.0 ** draw.randrange(-20, 20)
    return None


def rows_of(store: Store, table: sa.Table) -> list[dict[str, Any]]:
    with store.reading() as connection:
        return [dict(row._mapping) for row in connection.execute(sa.select(table))]


def keep_snapshot(c: Cluster) -> None:
    c.store.commit([], snapshot=(c.engine.state.seq, c.engine.state.to_json()))


def test_a_flipped_bit_in_any_column_of_any_row_is_found_and_named(cluster: Make) -> None:
    c = cluster((2, 1))
    c.submit({"name": "α"}, {"gpus": 2, "command": ["python", "train.py", "\U0001f600"]}, {})
    c.pass_s(30)
    for name in ("ann", "bob"):
        c.store.add_token(Token(name * 20, name, name, "user", expires_s=5e9, node="n0"))
    c.store.revoke_token("bob")
    c.engine.set_project("vision", gpu_quota=4, weight=2.0, now_s=c.now)
    keep_snapshot(c)
    assert list(c.store.damaged()) == []
    draw, tried = random.Random(4), 0
    for table in (sums.table for sums in schema.SUMMED.values()):
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
    assert tried > 90
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
    with pytest.raises(StoreError, match="damaged: row seq 2 of table snapshots does not match"):
        store.load()
    assert len(list(store.damaged())) == 2
    store.close()


def test_numbers_come_back_as_they_were_summed(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "plait.db")
    sums = schema.SUMMED["attempts"]
    numbers = [0, -0.0, 1, 0.1, 1e300, 5e-324, math.inf, 2**53, math.nan, None]
    row = {"job": 1, "ended_s": None, "state": "running", "reason": "\ud800"[:0] + "é\u202e", "ranks": "[]"}
    rows = [{**row, "epoch": i, "started_s": 3, "batch_size": x, "lost_work_s": x} for i, x in enumerate(numbers)]
    with store._writing() as connection:
        connection.execute(store._upsert["attempts"], sums.add(rows))
    assert list(store.damaged()) == []
    store.close()


def test_a_token_of_which_a_bit_flipped_opens_nothing(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "plait.db")
    for name in ("ann", "bob", "eve"):
        store.add_token(Token(name * 20, name, name, "user"))
    assert store.revoke_token("bob")
    with store._engine.begin() as connection:
        connection.execute(sa.text("UPDATE tokens SET role = 'admin' WHERE id = 'eve'"))
        connection.execute(sa.text("UPDATE tokens SET revoked = 0 WHERE id = 'bob'"))
    assert [token.id for token in store.tokens()] == ["ann"]
    store.close()


def test_a_damaged_term_is_not_taken_for_another_leader(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "plait.db")
    store.next_term()
    with store._engine.begin() as connection:
        connection.execute(sa.text("UPDATE meta SET value = '5' WHERE key = 'term'"))
    with pytest.raises(StoreError, match="damaged: row key 'term' of table meta does not match its checksum"):
        store.commit([Entry(1, 1.0, "submitted", "{}")])
    store.close()


def test_the_documented_statement_raises_the_term_of_a_restored_database(tmp_path: Path) -> None:
    page = Path(__file__).parents[3] / "docs" / "how-to" / "fail-over.md"
    statement = page.read_text(encoding="utf-8").partition("```sql\n")[2].partition("```")[0]
    store = Store.open(tmp_path / "plait.db")
    last = store.next_term()
    store.close()
    with closing(sqlite3.connect(tmp_path / "plait.db")) as connection:
        connection.execute(statement)
        connection.commit()
    store = Store.open(tmp_path / "plait.db")
    assert store.next_term() == last + 1_000_001
    assert not list(store.damaged())
    store.close()


def content(path: Path) -> dict[str, list[Any]]:
    """All rows of a store by table, in order."""
    with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as connection:
        return {t: sorted(connection.execute(f"SELECT * FROM {t}"), key=repr) for t in schema.SUMMED}


def noticed(path: Path) -> bool:
    """Whether a store cannot be opened, or names what is damaged."""
    try:
        store = Store.open(path)
    except StoreError:
        return True
    try:
        return bool(list(store.damaged()))
    finally:
        store.close()


def test_no_flipped_bit_of_the_file_changes_what_is_stored_unnoticed(cluster: Make) -> None:
    """Bits at random places that hold something; not every one is of a row."""
    c = cluster((2, 1))
    c.submit(*({"gpus": 1 + i % 2} for i in range(12)))
    c.pass_s(20)
    keep_snapshot(c)
    c.store.add_token(Token("ann" * 20, "ann", "ann", "user"))
    sound = c.store.backup(c.home / "sound.db").read_bytes()
    before, draw, seen = content(c.home / "sound.db"), random.Random(7), Counter[str]()
    path, places = c.home / "flipped.db", [at for at, byte in enumerate(sound) if byte]
    for _ in range(FLIPS):
        at, bit = draw.choice(places), draw.randrange(8)
        path.write_bytes(sound[:at] + bytes([sound[at] ^ (1 << bit)]) + sound[at + 1 :])
        path.with_suffix(".id").unlink(missing_ok=True)
        try:
            same = content(path) == before
        except (sqlite3.Error, UnicodeError):
            same = False
        said = noticed(path)
        seen["changed, noticed" if said else "changed, unnoticed"] += not same
        seen["no row changed, noticed" if said else "no row changed, unnoticed"] += same
    print(f"{FLIPS} flipped bits in {len(places):,} of {len(sound):,} bytes: {dict(seen)}")
    assert seen["changed, noticed"] > FLIPS // 2
    assert seen["changed, unnoticed"] == 0


def test_the_whole_store_is_checked_in_slices_with_a_rest_after_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "SLICE", 10)
    store, rests = Store.open(tmp_path / "plait.db"), [0]
    store.commit([Entry(i, float(i), "submitted", "{}", jobs=(i % 3, 7)) for i in range(1, 96)])
    of = Checksums.of

    def counted(sums: Checksums, row: Any) -> int:
        rests[-1] += 1
        return of(sums, row)

    monkeypatch.setattr(Checksums, "of", counted)
    assert list(store.damaged(lambda: rests.append(0))) == []
    assert max(rests) == 10
    assert sum(rests) == 95 + 190 + 3  # entries, jobs that they are about, facts
    with store._engine.begin() as connection:
        connection.execute(sa.text("UPDATE log SET at_s = 7 WHERE seq IN (10, 11, 95)"))
        connection.execute(sa.text("UPDATE log_jobs SET crc = 7 WHERE seq = 50 AND job = 7"))
    assert [problem.split(" does")[0] for problem in store.damaged()] == [
        "row seq 10 of table log", "row seq 11 of table log", "row seq 95 of table log",
        "row job 7, seq 50 of table log_jobs",
    ]  # fmt: skip
    store.close()


def test_a_database_that_sorts_names_as_people_do_is_in_order(
    postgres: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "SLICE", 1)
    store = Store.open(postgres())
    with store._engine.begin() as connection:
        connection.execute(sa.text('ALTER TABLE projects ALTER COLUMN name TYPE varchar(128) COLLATE "en-x-icu"'))
        connection.execute(
            sa.insert(schema.projects),
            schema.SUMMED["projects"].add([{"name": n, "gpu_quota": 1, "weight": 1.0} for n in "BaDc"]),
        )
        connection.execute(sa.text("UPDATE projects SET gpu_quota = 9 WHERE name = 'D'"))
    assert list(store.damaged()) == ["row name 'D' of table projects does not match its checksum"]
    store.close()


def test_a_table_that_cannot_be_read_is_named_and_the_others_are_checked(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "plait.db")
    store.add_token(Token("ann" * 20, "ann", "ann", "user"))
    with store._engine.begin() as connection:
        connection.execute(sa.text("ALTER TABLE log DROP COLUMN crc"))
        connection.execute(sa.text("UPDATE tokens SET role = 'admin'"))
    first, second = store.damaged()
    assert "cannot read the store: no such column: log.crc" in first
    assert "of table tokens does not match" in second
    store.close()
