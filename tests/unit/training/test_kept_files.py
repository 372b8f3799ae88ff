"""A rehearsed script may touch many files: each is kept once, and nothing of that stays open."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from plait.training import rehearsal
from plait.training.rehearsal import FileGuard, restored


def test_many_files_are_kept_and_put_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, here = tmp_path / "scratch", tmp_path / "here"
    folder.mkdir()
    here.mkdir()
    monkeypatch.chdir(here)
    for i in range(20):
        (here / f"old-{i}").write_text("before")
    guard, before = FileGuard(str(folder)), len(os.listdir("/proc/self/fd"))
    read: list[Path] = []

    def read_journal(folder: Path, written: list[str] | None) -> set[str]:
        read.append(folder)
        return set()

    monkeypatch.setattr(rehearsal, "restored", read_journal)
    for i in range(20):
        guard.keep(f"old-{i}")
        guard.keep(f"new-{i}")
    assert (len(os.listdir("/proc/self/fd")), read) == (before, [])  # the journal is not read once a file
    monkeypatch.undo()
    later = FileGuard(str(folder))  # of the next attempt
    for i in range(20):
        (here / f"old-{i}").write_text("after")
        (here / f"new-{i}").write_text("after")
        later.keep(here / f"old-{i}")
    written: list[str] = []
    restored(folder, written=written)
    assert len(written) == 40
    assert {path.name: path.read_text() for path in here.iterdir()} == {f"old-{i}": "before" for i in range(20)}
