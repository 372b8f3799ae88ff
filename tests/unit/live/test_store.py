"""The store on SQLite and, where a server can be started, on PostgreSQL; removed or replaced files are noticed."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import sqlalchemy as sa
from live_cases import Cluster

from plait.core.errors import InputError
from plait.live.api.jobs import JobAttempt, JobRow, RankOfAttempt
from plait.live.client.client import Client, NotRunning
from plait.live.fencing import Fences
from plait.live.layout import Layout
from plait.live.scheduler.engine import Engine
from plait.live.store import Entry, Store, StoreError, Token, schema
from plait.live.store import store as store_module
from plait.live.store.backup import restore_backup
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
    c.submit({}, {})
    c.pass_s()
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
    c.submit({})
    c.pass_s()
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
