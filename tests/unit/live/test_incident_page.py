"""The page about incidents: its test of a fleet passes, and its replay of that fleet's log sees a decision."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from documented_code import PAGES, blocks
from plait.live.store import Store


def test_the_story_of_a_lost_node_and_the_replay_of_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = next(page for page in PAGES if page.stem == "debug-an-incident")
    look, story = [block.text for block in blocks(page) if block.language == "python"]
    names: dict[str, Any] = {}
    exec(story, names)
    names["test_a_job_survives_its_node"](tmp_path)
    monkeypatch.chdir(tmp_path)
    store = Store.open(Path("plait.db"))
    store.backup("incident.db")
    store.close()
    exec(look, {})
    assert capsys.readouterr().out.startswith("8.0 [0]")
