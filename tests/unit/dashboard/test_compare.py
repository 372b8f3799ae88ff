"""Another policy beside the one that decides: the page, the calculation behind it, and processes of calculations."""

from __future__ import annotations

import asyncio
import html
import io
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from test_pages import cluster
from world import Browser, World

from plait.dashboard import work
from plait.dashboard.calculations import compare, lines
from plait.dashboard.work import Note, Work, Works, calculated

Login = Callable[[str], Browser]


def shown(browser: Browser, path: str) -> str:
    """The page once its calculation is over."""
    for _ in range(200):
        text = html.unescape(browser.get(path))
        if "every 1s" not in text:
            return text
        time.sleep(0.05)
    raise AssertionError("it never ends")


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Calculations run within this process; the modules that were asked."""
    asked: list[str] = []

    async def calculate(module: str, given: object, limit_s: float, note: Callable[..., None]) -> dict[str, object]:
        asked.append(module)
        note((1, 2, "half of it"))
        return {"result": compare.compared(json.loads(json.dumps(given)))}

    monkeypatch.setattr(work, "calculated", calculate)
    monkeypatch.setattr(compare, "RUNS", 2)
    return asked


def test_another_policy_is_shown_beside_the_one_that_decides(world: World, login: Login, here: list[str]) -> None:
    cluster(world)
    world.submit("ben", name="small", gpus=1, iterations=10)
    ann = login("ann")
    text = shown(ann, "/web/policy?with=srtf")
    assert "srtf</code> beside <code>fifo-backfill" in text
    assert "Jobs end on average in" in text
    assert "leaves waiting" in text
    assert 'action="/web/policy" class="job"' not in text  # users look, administrators change
    shown(ann, "/web/policy?with=srtf")
    assert here == ["plait.dashboard.calculations.compare"]  # the answer is kept for a while
    assert 'value="srtf" required>' in shown(login("root"), "/web/policy?with=srtf")


@pytest.mark.parametrize("policy", ["nonsense", "os:system", "2d-gittins:history=/etc/passwd"])
def test_no_module_and_no_file_of_the_machine_is_read_for_a_comparison(
    world: World, login: Login, here: list[str], policy: str
) -> None:
    cluster(world)
    assert 'role="alert"' in login("ann").get(f"/web/policy?with={policy}")
    assert here == []


def test_what_cannot_be_compared_says_why(world: World, login: Login, here: list[str]) -> None:
    assert "no node has joined" in shown(login("ann"), "/web/policy?with=srtf")


def test_long_queues_are_decided_about_and_not_simulated(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster(world)
    state = world.do(lambda engine, now_s: engine.state_for_forecast(now_s)())
    monkeypatch.setattr(compare, "MOST_JOBS", 1)
    found = compare.compared({"state": json.loads(json.dumps(state)), "policy": "srtf", "seconds": 1})
    assert found["end"] is None
    assert "up to 1 are simulated" in found["no_end"]


def test_a_calculation_is_a_process_that_reports_and_ends() -> None:
    said: list[tuple[int, int, str]] = []
    module = "plait.dashboard.calculations.compare"
    found = asyncio.run(calculated(module, {"state": {}, "policy": "srtf", "seconds": 1}, 600.0, said.append))
    assert said == [(0, compare.RUNS + 1, "asking both policies")]
    assert "cannot be compared" in found["missing"]
    assert "took longer" in asyncio.run(calculated(module, {}, 0.0))["missing"]
    assert "exit code 1" in asyncio.run(calculated("plait.no_such_module", {}, 600.0))["missing"]


def test_calculations_are_kept_and_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]

    async def calculate(module: str, given: object, limit_s: float, note: object) -> dict[str, object]:
        if given == "broken":
            raise ValueError("no idea")
        return {"result": given}

    async def run() -> None:
        works = Works(lambda: now[0])

        async def done(key: str) -> Work:
            async def ask(note: object) -> str:
                return key

            one = works.begin((key,), "m", ask, 1.0)
            assert works.find((key,), 5.0) is one
            assert one.task is not None
            await one.task
            return one

        assert (await done("a")).result == "a"
        assert (await done("broken")).missing == "no idea"
        now[0] = 6.0
        assert works.find(("a",), 5.0) is None
        assert works.find(("a",), 7.0) is not None
        for i in range(work.MOST + 1):
            await done(str(i))
        assert works.find(("a",), 100.0) is None

    monkeypatch.setattr(work, "calculated", calculate)
    asyncio.run(run())


def test_lines_of_a_calculation(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def half(value: int) -> float:
        return 1 / value

    for given in ("2", "0"):
        monkeypatch.setattr("sys.stdin", io.StringIO(given))
        assert lines.answer(half, "no half") == 0
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == [
        {"result": 0.5}, {"missing": "no half: ZeroDivisionError: division by zero"},
    ]  # fmt: skip


# A calculation of a page ends with an answer or a reason, whatever its process prints.


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
