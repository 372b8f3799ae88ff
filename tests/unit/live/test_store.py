"""The store on SQLite and, where a server can be started, on PostgreSQL; removed or replaced files are noticed."""

import json
import math
import os
import random
import re
import shutil
import socket
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from live_cases import Cluster

from plait.core.errors import InputError
from plait.live.api.jobs import JobAttempt, JobRow, RankOfAttempt
from plait.live.client.client import Client, NotRunning
from plait.live.fencing import Fences
from plait.live.layout import Layout
from plait.live.scheduler.engine import Engine
from plait.live.scheduler.records.event_words import in_words
from plait.live.store import Entry, Store, StoreError, Token, schema
from plait.live.store import store as store_module
from plait.live.store.connecting import restore_backup
from plait.live.store.schema import CRC, Checksums
from plait.outlook.log_replay import replay, stored_rows
from sampling import sample


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'plait.db'}"
    made: str = request.getfixturevalue("postgres")()
    return made


def note(seq: int, policy: str = "fifo") -> Entry:
    return Entry(seq, float(seq), "PolicySet", json.dumps({"type": "PolicySet", "at_s": seq, "policy": policy}))


def test_what_is_committed_is_there_again(url: str) -> None:
    store = Store.open(url)
    made_at = store.made_at
    store.commit([note(1), note(2)])
    store.commit([Entry(3, 3.0, "X", "{}", "[]", (5, 6, 5))], snapshot=(2, {"state": 2}))
    store.close()
    store = Store.open(url)
    assert store.made_at == made_at
    assert [e.seq for e in store.entries()] == [1, 2, 3]
    assert [e.seq for e in store.entries(job=5)] == [3]
    assert [e.seq for e in store.entries(after=1, limit=1)] == [2]
    found, tail = store.load()
    assert found == {"state": 2}
    assert [e.seq for e in tail] == [3]
    store.close()


def test_damage_is_looked_for_slice_by_slice(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "SLICE", 2)
    store = Store.open(url)
    store.add_token(Token("ann" * 20, "ann", "ann", "user", expires_s=5e9, node="n0"))
    store.commit([Entry(seq, seq / 3, "X", "{}", "[]", (5, 6)) for seq in range(1, 8)], snapshot=(2, {"state": 2}))
    slices: list[None] = []
    assert list(store.damaged(lambda: slices.append(None))) == []
    assert len(slices) >= 4 + 8  # entries, jobs that they are about
    with store._engine.begin() as connection:
        connection.execute(sa.text("UPDATE log_jobs SET crc = 7 WHERE seq = 5"))
    assert [problem.split(" of")[0] for problem in store.damaged()] == ["row job 5, seq 5", "row job 6, seq 5"]
    store.close()


def test_a_commit_is_whole_or_not_at_all(url: str) -> None:
    store = Store.open(url)
    store.commit([note(1)])
    with pytest.raises(StoreError, match="cannot write to the store"):
        store.commit([note(2), note(1)])
    assert [e.seq for e in store.entries()] == [1]
    store.close()


def test_only_the_newest_snapshots_are_kept(url: str) -> None:
    store = Store.open(url)
    for seq in range(1, 6):
        store.commit([note(seq)], snapshot=(seq, {"seq": seq}))
    with store.reading() as connection:
        assert sorted(connection.execute(sa.select(schema.snapshots.c.seq)).scalars()) == [4, 5]
    store.close()


def test_terms_only_grow(url: str) -> None:
    store = Store.open(url)
    first = [store.next_term(), store.next_term()]
    store.close()
    store = Store.open(url)
    assert [*first, store.next_term()] == [1, 2, 3]
    store.close()


def test_one_service_a_store(url: str) -> None:
    store = Store.open(url)
    with pytest.raises(StoreError, match=r"in use by another service; stop that one first"):
        Store.open(url)
    reader = Store.open(url, exclusive=False)
    assert list(reader.entries()) == []
    reader.close()
    store.close()
    Store.open(url).close()


def test_writers_in_several_threads_do_not_end_up_in_one_transaction(url: str) -> None:
    store = Store.open(url)

    def tokens(thread: int) -> None:
        for i in range(50):
            store.add_token(Token(f"hash-{thread}-{i}", f"t-{thread}-{i}", "ann", "user", "default", 0.0))

    with ThreadPoolExecutor(2) as pool:
        made = [pool.submit(tokens, thread) for thread in range(2)]
        for seq in range(1, 101):
            store.commit([note(seq)])
        for one in made:
            one.result()
    assert [e.seq for e in store.entries()] == list(range(1, 101))
    assert len(store.tokens()) == 100
    store.close()


def test_tokens(url: str) -> None:
    store = Store.open(url)
    store.add_token(Token("h1", "t-1", "ann", "user", "p", 1.0))
    store.add_token(Token("h2", "t-2", "ben", "admin", "default", 2.0))
    assert store.revoke_token("t-1")
    assert not store.revoke_token("t-1")
    assert store.tokens() == [Token("h2", "t-2", "ben", "admin", "default", 2.0)]
    store.close()


@pytest.mark.parametrize("version", ["9999", None], ids=["newer", "older"])
def test_a_store_of_another_version_is_refused_with_a_remedy(url: str, version: str | None) -> None:
    store = Store.open(url)
    if version:
        store.set_fact("schema", version)
    else:
        with store._engine.begin() as connection:
            connection.execute(sa.text("DELETE FROM meta WHERE key = 'schema'"))
    store.close()
    with pytest.raises(StoreError, match=rf"{version or 'no version'}, and this plait reads .*move it away") as caught:
        Store.open(url)
    assert "\n" not in str(caught.value)


def test_attempts_are_found_by_node_and_time(url: str) -> None:
    store = Store.open(url)
    rows = [(1.0, 4.0, ["n1"]), (2.0, None, ["n1", "n10"]), (3.0, 9.0, ["n10"]), (20.0, None, ["n1"])]
    texts = {"name": "", "user": "ann", "project": "p", "model": "", "class_": "guaranteed", "reason": ""}
    numbers = dict.fromkeys(("created_s", "age_s", "iterations_done", "run_s", "attained_gpu_s"), 0.0)
    unknown = dict.fromkeys(("iterations", "exit_code", "started_s", "ended_s", "jct_s"))
    counts = {"gpus": 1, "epoch": 1, "starts": 1, "preemptions": 0, "failures": 0}
    views = schema.Views()
    for number, (started_s, ended_s, nodes) in enumerate(rows):
        job = JobRow(
            id=f"j-{number}", number=number, command=["x"], tags=["t"], array=None, array_index=None,
            state="running", nodes=[], **texts, **numbers, **unknown,
            **counts,
        )  # fmt: skip
        attempt = JobAttempt.of(
            epoch=1, state="running", started_s=started_s, ended_s=ended_s, batch_size=None, lost_work_s=None,
            reason=None, ranks=[RankOfAttempt(node, 0, None, None, False) for node in nodes],
        )  # fmt: skip
        views.jobs.append((job, {"command": ["x"]}))
        views.attempts.append((number, attempt))
    store.commit([note(1)], views=views)

    def found(nodes: list[str], from_s: float, to_s: float, limit: int = 9) -> list[int]:
        return [job.number for job, _ in store.attempts_on(nodes, from_s, to_s, limit)]

    assert found(["n1"], 0.0, 99.0) == [3, 1, 0]
    assert found(["n1"], 5.0, 9.0) == [1]
    assert found(["n10", "n_"], 0.0, 9.0) == [2, 1]
    assert found(["n1", "n10"], 0.0, 99.0, 2) == [3, 2]
    assert store.attempts_on(["n1"], 0.0, 1.5, 9)[0][0].user == "ann"
    store.close()


def test_an_engine_lives_in_it(url: str, tmp_path: Path) -> None:
    store = Store.open(url)
    engine = Engine(store, Fences(Layout(tmp_path)), now_s=0.0, policy="fifo")
    engine.submit([{"command": ["x"]}] * 3, owner="ann", now_s=1.0)
    engine.set_project("p", gpu_quota=3, weight=1.0, now_s=1.5)
    engine.cancel(1, 2.0)
    store.close()
    store = Store.open(url)
    again = Engine(store, Fences(Layout(tmp_path)), now_s=0.0)
    assert again.submit([{"command": ["y"]}], owner="ben", now_s=3.0) == [3]
    assert [row.state for row in store.jobs()] == ["waiting", "waiting", "cancelled", "waiting"]
    assert [row.number for row in store.jobs(user="ben")] == [3]
    assert [row.number for row in store.jobs(states=["cancelled"])] == [1]
    assert [row.number for row in store.jobs(text="J-2")] == [2]
    assert [row.number for row in store.jobs(text="BE", limit=1)] == [3]
    assert store.jobs(text="%") == store.jobs(text="_") == store.jobs(text="\\") == []
    assert [row.command for row in store.jobs(text="y", user="ben")] == [["y"]]
    assert store.counts() == {"waiting": 3, "cancelled": 1}
    assert replay(stored_rows(store)).difference is None
    store.close()


CLIENT = """
import sys
from pathlib import Path
from plait.live.fencing import Fences
from plait.live.scheduler.engine import Engine
from plait.live.layout import Layout
from plait.live.store import Store

store = Store.open(sys.argv[1])
engine = Engine(store, Fences(Layout(Path(sys.argv[2]))), now_s=0.0, policy="fifo")
for i in range(1000):
    (number,) = engine.submit([{"command": [f"job-{i}"]}], owner="ann", now_s=float(i))
    print(number, flush=True)
"""


def opened_soon(url: str) -> Store:
    """The store of a client that was killed: a server holds its lock until it has noticed."""
    until = time.monotonic() + 20
    while True:
        try:
            return Store.open(url)
        except StoreError:
            assert time.monotonic() < until
            time.sleep(0.05)


def test_kill_9_during_submissions_loses_none_that_was_acknowledged(url: str, tmp_path: Path) -> None:
    acknowledged = -1
    for stop_after in sample((40,), (60, 150)):
        process = subprocess.Popen(
            [sys.executable, "-c", CLIENT, url, str(tmp_path)], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        for count, line in enumerate(process.stdout):
            acknowledged = int(line)
            if count == stop_after:
                break
        process.kill()
        rest = process.stdout.read().split("\n")  # acknowledged before the kill took effect
        acknowledged = max([acknowledged, *(int(x) for x in rest[:-1])])
        process.wait()
        process.stdout.close()
        store = opened_soon(url)
        numbers = sorted(row.number for row in store.jobs(limit=5000))
        assert numbers == list(range(len(numbers)))
        assert len(numbers) > acknowledged
        assert replay(stored_rows(store)).difference is None
        store.close()


@pytest.mark.parametrize(
    ("where", "says"),
    [
        ("mysql://x/y", "cannot store on 'mysql'; write sqlite:///file or postgresql://host/db"),
        ("://", "cannot read the store's URL"),
        ("sqlite://", "the store needs a file"),
        ("postgresql://nobody@/x?host=/nonexistent", "cannot open the store"),
    ],
)
def test_urls_that_are_none(where: str, says: str) -> None:
    with pytest.raises(InputError, match=says) as caught:
        Store.open(where)
    assert "\n" not in str(caught.value)


def test_files_that_are_no_store(tmp_path: Path) -> None:
    path = tmp_path / "plait.db"
    path.write_bytes(b"this is not a database" * 100)
    with pytest.raises(StoreError, match=r"cannot open the store .*not a database"):
        Store.open(path)


def test_the_file_is_for_its_owner_alone_and_the_passwords_of_urls_are_not_told(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "a" / "plait.db")
    assert (tmp_path / "a" / "plait.db").stat().st_mode & 0o077 == 0
    assert (tmp_path / "a").stat().st_mode & 0o077 == 0
    store.close()
    with pytest.raises(StoreError) as caught:
        Store.open("postgresql://ann:hush@127.0.0.1:1/x")
    assert "hush" not in str(caught.value)


def test_backup_while_in_use_and_back(tmp_path: Path) -> None:
    c = Cluster(tmp_path / "home")
    c.submit({}, {}, then_s=1.1)
    with pytest.raises(InputError, match="its name is too long"):
        c.store.backup(tmp_path / ("x" * 300))
    assert list(tmp_path.glob(".x*.part")) == []
    c.store.backup(tmp_path / "copy")
    with pytest.raises(InputError, match="is there already"):
        c.store.backup(tmp_path / "copy")
    c.submit({})
    with pytest.raises(StoreError, match="in use"):
        restore_backup(tmp_path / "copy", tmp_path / "home" / "plait.db")
    c.store.close()
    restore_backup(tmp_path / "copy", tmp_path / "home" / "plait.db")
    store = Store.open(tmp_path / "home" / "plait.db")
    assert [row.number for row in store.jobs()] == [1, 0]
    assert replay(stored_rows(store)).difference is None
    store.close()
    with sqlite3.connect(tmp_path / "other") as other:
        other.execute("CREATE TABLE x (y)")
    other.close()
    with pytest.raises(StoreError, match="is not a backup"):
        restore_backup(tmp_path / "other", tmp_path / "home" / "plait.db")


def test_verify_finds_what_was_changed(tmp_path: Path) -> None:
    c = Cluster(tmp_path)
    c.submit({}, then_s=1.1)
    assert replay(stored_rows(c.store)).difference is None
    assert c.types().count("ReplanDue") >= 1
    with c.store._engine.begin() as connection:
        connection.execute(sa.text("UPDATE log SET commands = '[]', crc = NULL WHERE type = 'ReplanDue'"))
    found = replay(stored_rows(c.store))
    assert found.difference is not None
    assert "the log has nothing, now it is" in str(found.difference)
    c.store.close()


def test_a_log_with_a_gap_is_not_gone_on_from(tmp_path: Path) -> None:
    c = Cluster(tmp_path)
    c.submit({})
    with c.store._engine.begin() as connection:
        connection.execute(sa.text("DELETE FROM log WHERE seq = 2"))
    with pytest.raises(Exception, match="the log has entry 3 where 2 was expected"):
        c.restart()
    c.store.close()


def test_no_socket_is_left(tmp_path: Path) -> None:
    """A port that the service lets go can be taken at once."""
    from plait.live.service.main import _listen

    first = _listen("127.0.0.1", 0, "--port")
    port = first.getsockname()[1]
    first.listen()
    with pytest.raises(InputError, match=f"cannot listen on 127.0.0.1:{port}"):
        _listen("127.0.0.1", port, "--port")
    first.close()
    again = _listen("127.0.0.1", port, "--port")
    assert isinstance(again, socket.socket)
    again.close()


def entry(seq: int) -> list[Entry]:
    return [Entry(seq, float(seq), "submitted", "{}", jobs=(seq,))]


def remove(path: Path) -> None:
    for file in path.parent.glob("plait.db*"):
        file.unlink()


def remove_the_file_alone(path: Path) -> None:
    path.unlink()


def replace_by_a_copy(path: Path) -> None:
    shutil.copy(path, path.with_name("copy"))
    os.replace(path.with_name("copy"), path)


def move_away(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))


def remove_the_lock(path: Path) -> None:
    path.with_name("plait.db.lock").unlink()


@pytest.mark.parametrize("harm", [remove, remove_the_file_alone, replace_by_a_copy, move_away, remove_the_lock])
def test_nothing_is_acknowledged_after_files_of_the_store_are_gone(
    tmp_path: Path, harm: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PLAIT_URL", raising=False)
    path = tmp_path / "plait.db"
    store = Store.open(path)
    store.commit(entry(1))
    harm(path)
    for _ in range(2):
        with pytest.raises(StoreError, match=r"removed.*saved as .*plait-rescued-1\.db: plait restore"):
            store.commit(entry(2))
    with pytest.raises(StoreError, match="removed"):
        store.set_fact("a", "b")
    store.close()
    if harm is not remove_the_lock:
        path.unlink(missing_ok=True)
        with pytest.raises(
            StoreError, match=r"is missing, and there was one .* plait restore .*-rescued-1\.db, or begin"
        ):
            Store.open(path)
        assert not path.exists(), "no empty store takes its place"
        missing = f"no service runs in {tmp_path}: the store {path} is missing"
        with pytest.raises(NotRunning, match=f"^{re.escape(missing)}.*plait restore .*-rescued-1.db, or begin"):
            Client.at(str(tmp_path))
        Layout(tmp_path).service_file.write_text('{"url": "http://127.0.0.1:1"}')
        with (
            Client.at(str(tmp_path), token="x") as client,
            pytest.raises(NotRunning, match=r": the store .* is missing"),
        ):
            client.status()
    restore_backup(tmp_path / "plait-rescued-1.db", path)
    again = Store.open(path)
    assert [found.seq for found in again.entries()] == [1, 2], "also what was refused has been kept"
    again.close()


def test_readers_do_not_make_an_empty_file_where_the_store_was(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "plait.db")
    remove(tmp_path / "plait.db")
    with pytest.raises(StoreError), store.reading() as connection, store.reading() as other:
        assert connection is not other
    assert not (tmp_path / "plait.db").exists()
    store.close()


def test_a_store_of_another_home_is_not_taken_for_the_own_one(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        Store.open(tmp_path / name / "plait.db").close()
    shutil.copy(tmp_path / "b" / "plait.db", tmp_path / "a" / "plait.db")
    with pytest.raises(StoreError, match=r"another one than was there before .*rm .*plait\.id"):
        Store.open(tmp_path / "a" / "plait.db")
    (tmp_path / "a" / "plait.id").unlink()
    Store.open(tmp_path / "a" / "plait.db").close()


def test_a_store_of_an_older_version_is_marked_at_its_first_start(tmp_path: Path) -> None:
    path = tmp_path / "plait.db"
    Store.open(path).close()
    (tmp_path / "plait.id").unlink()
    Store.open(path).close()
    remove(path)
    with pytest.raises(StoreError, match="is missing"):
        Store.open(path)


def test_a_client_names_a_store_that_was_replaced_as_the_cause(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, other = tmp_path / "plait.db", tmp_path / "other.db"
    for one in (path, other):
        Store.open(one).close()
    monkeypatch.delenv("PLAIT_URL", raising=False)
    with pytest.raises(NotRunning, match=r"no service runs in .*; start it with: plait up$"):
        Client.at(str(tmp_path))
    os.replace(other, path)
    with pytest.raises(NotRunning, match=r"no service runs in .*: the store .* is another one .* keep this one: rm"):
        Client.at(str(tmp_path))
    path.write_bytes(b"no database")
    with pytest.raises(NotRunning, match=r"start it with: plait up$"):
        Client.at(str(tmp_path))


# -- a flipped bit in a row of the store is found, and the row is named -----------------------------------


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
    c.submit({"name": "α"}, {"gpus": 2, "command": ["python", "train.py", "\U0001f600"]}, {}, then_s=30)
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
    c = cluster((2, 1), jobs=[*({"gpus": 1 + i % 2} for i in range(12))], then_s=20)
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


# -- a store put back from a copy knows less than agents and folders do: nothing of what is newer may be mixed up ---


def restarts(c: Cluster) -> list[str]:
    """What the log has of starts of services and agents, in words."""
    told = (in_words(json.loads(entry.entry)) for entry in c.store.entries())
    return [words for words in told if "service" in words or "agent" in words]


def test_the_log_has_each_start_of_a_service_and_of_an_agent_but_the_first(cluster: Make) -> None:
    c = cluster()
    c.engine.note_start()
    c.submit({}, then_s=2)
    assert restarts(c) == []
    c.nodes[0].agent, c.nodes[0].answer = "n0-b", None
    c.pass_s(3)
    assert restarts(c) == ["the agent of node n0 started again"]
    c.now += 20.0
    c.restart()
    c.engine.note_start()
    c.pass_s(3)
    _, second = restarts(c)
    assert second.startswith("the service went on from its store, 2")
    assert second.endswith(" s after the entry before")
    (started,) = (json.loads(e.entry) for e in c.store.entries() if e.type == "ServiceStarted")
    assert (started["term"], started["at_s"]) == (c.engine.term, c.engine.begin_s)


def put_back(c: Cluster) -> None:
    """The service is gone; its store becomes the copy, and a new one goes on from there."""
    c.store.close()
    restore_backup(c.home / "copy.db", c.home / "plait.db")
    c.store = Store.open(c.home / "plait.db")
    c.engine = c._engine(None)


def test_agents_follow_the_service_of_a_store_that_was_put_back(cluster: Make) -> None:
    """They refuse terms below the highest they have seen."""
    c = cluster()
    c.store.backup(c.home / "copy.db")
    for _ in range(5):
        c.restart()
    seen = c.engine.term
    put_back(c)
    assert c.engine.term > seen


def test_a_job_goes_on_above_every_epoch_that_its_folder_has_seen(cluster: Make) -> None:
    """An attempt below would be refused by its agent, and could not commit a checkpoint."""
    c = cluster()
    (job,) = c.submit({}, then_s=2)
    c.store.backup(c.home / "copy.db")
    for _ in range(3):
        c.nodes[0].end(job, 75, steps=1.0, then_s=3)
    path = c.engine.layout.epoch_file(job)
    reached = int(path.read_text())
    assert reached > 2
    (path.parent / "checkpoints").mkdir()
    put_back(c)
    c.nodes[0].end(job, 75, then_s=3)
    attempt = c.engine.state.jobs[job].live
    if attempt is not None and attempt.epoch == 1:  # what ran was of an attempt that the copy does not know
        c.nodes[0].seen[job, 1, 0] = c.nodes[0].seen.pop((job, 1, 0))
        c.nodes[0].end(job, None, pid=0, reason="refused", then_s=3)
        attempt = c.engine.state.jobs[job].live
    assert attempt.epoch == reached + 1 == int(path.read_text())
    assert (path.parent / "checkpoints").is_dir()


def test_a_new_job_never_finds_the_checkpoints_of_another_of_its_number(cluster: Make) -> None:
    c = cluster()
    c.store.backup(c.home / "copy.db")
    (job,) = c.submit({}, then_s=2)
    kept = c.engine.layout.job(job) / "checkpoints" / "step-1000"
    kept.mkdir(parents=True)
    put_back(c)
    c.nodes[0].seen.clear()
    assert c.submit({"command": ["something", "else"]}) == [job]
    c.pass_s(2)
    assert c.nodes[0].jobs() == {job}
    assert not kept.exists()
    attempt = c.engine.state.jobs[job].live
    assert attempt.epoch == 2 == int(c.engine.layout.epoch_file(job).read_text())  # what still runs of the other is out
    assert (kept.parents[1] / "before-1" / "checkpoints" / "step-1000").is_dir()
