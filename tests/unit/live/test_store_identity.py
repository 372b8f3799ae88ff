"""A store whose files are removed or replaced is noticed before anything more is acknowledged, and never lost."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from plait.live.client.client import Client, NotRunning
from plait.live.layout import Layout
from plait.live.store import Entry, Store, StoreError
from plait.live.store.backup import restore_backup


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
