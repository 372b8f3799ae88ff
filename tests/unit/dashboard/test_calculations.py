"""A calculation of a page ends with an answer or a reason, whatever its process prints."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from plait.dashboard.work import Note, Work, Works


@pytest.mark.parametrize(
    ("line", "result", "missing"),
    [
        ('{"result": [1]}', [1], ""),
        ('{"missing": "no history"}', None, "no history"),
        ('{"missing": ""}', None, "the calculation ended without an answer"),
        ('{"result": null}', None, "the calculation ended without an answer"),
        ("{}", None, "the calculation ended without an answer"),
        ("[1]", None, "the calculation ended without an answer"),
        ("no JSON", None, "the calculation ended without an answer"),
        ('{"progress": [1, 2]}', None, "the calculation ended without an answer"),
        ("", None, "the calculation ended without an answer"),
    ],
)
def test_what_a_calculation_prints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, result: Any, missing: str
) -> None:
    (tmp_path / "printing.py").write_text(f"import sys; sys.stdin.read(); print({line!r})")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    async def ask(note: Note) -> dict[str, int]:
        note((0, 1, "asking"))
        return {"given": 1}

    async def run() -> Work:
        works = Works()
        work = works.begin(("key",), "printing", ask, limit_s=60.0)
        assert work.task is not None
        await work.task
        assert works.find(("key",), kept_s=60.0) is work
        return work

    work = asyncio.run(run())
    assert work.over
    assert (work.result, work.missing) == (result, missing)
