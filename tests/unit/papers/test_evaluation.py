"""Runs of an evaluation are made once and kept under all that decides them."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from plait.core.errors import InputError
from plait_papers import evaluation
from plait_papers.evaluation import Ended, Evaluation, Outcome, code_hash


@dataclass(frozen=True)
class Case:
    name: str
    jobs: int = 2


@dataclass(frozen=True)
class Done:
    figures: dict[str, float]
    cpu_s: float


@dataclass(frozen=True)
class Request:
    work: Path | None = None
    fresh: bool = False
    processes: int = 1
    report: Path | None = None
    json: str | None = None


MADE: list[Case] = []


def run(case: Case, ended: Ended | None = None) -> Done:
    MADE.append(case)
    for _ in range(case.jobs):
        if ended is not None:
            ended(1)
    return Done({"letters": float(len(case.name))}, 0.5)


EVALUATION = Evaluation("none", run, Done, jobs=lambda case: case.jobs, code=("plait_papers.evaluation",))
CASES = [Case("one"), Case("three"), Case("four")]


@pytest.fixture(autouse=True)
def _nothing_made() -> None:
    MADE.clear()


@pytest.mark.parametrize("processes", [1, 2])
def test_a_run_is_made_once_and_comes_back_as_it_was(tmp_path: Path, processes: int, capsys: Any) -> None:
    request = Request(tmp_path / "deep" / "work", processes=processes)
    done = EVALUATION.finish([*CASES, CASES[0]], request)
    assert {case.name: result.figures["letters"] for case, result in done.items()} == {"one": 3, "three": 5, "four": 4}
    assert "3 runs made, 0 were kept" in capsys.readouterr().err
    made = len(MADE)
    assert EVALUATION.finish(CASES[:2], request) == {case: done[case] for case in CASES[:2]}
    assert len(MADE) == made
    more = EVALUATION.finish([*CASES, Case("five")], request)
    assert len(more) == 4
    assert "1 run made, 3 were kept" in capsys.readouterr().err
    EVALUATION.finish(CASES, replace(request, fresh=True))
    assert "3 runs made, 0 were kept" in capsys.readouterr().err
    assert len(list((tmp_path / "deep" / "work").iterdir())) == 4


def test_the_file_is_named_by_inputs_and_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = {EVALUATION.file(case, tmp_path) for case in (*CASES, replace(CASES[0], jobs=3))}
    assert len(names) == 4
    assert EVALUATION.file(CASES[0], tmp_path) == EVALUATION.file(Case("one"), tmp_path)
    assert replace(EVALUATION, code=("plait_papers.pages",)).file(CASES[0], tmp_path) not in names
    assert len({code_hash((name,)) for name in ("plait_papers.ina", "plait_papers.ina.cases", "plait_papers")}) == 3


def test_a_broken_file_is_run_again(tmp_path: Path) -> None:
    EVALUATION.finish(CASES[:1], Request(tmp_path))
    (kept,) = tmp_path.iterdir()
    whole = kept.read_text()
    no_time, no_figure = json.loads(whole), json.loads(whole)
    no_time["cpu_s"] = None
    no_figure["figures"]["letters"] = None
    for broken in (whole[:20], "", "null", "[]", json.dumps(no_time), json.dumps(no_figure), '{"cpu_s": 1}'):
        kept.write_text(broken)
        assert EVALUATION.kept(CASES[0], tmp_path) is None, broken
    kept.write_text(whole)
    assert EVALUATION.kept(CASES[0], tmp_path) is not None
    kept.unlink()
    kept.mkdir()
    assert EVALUATION.kept(CASES[0], tmp_path) is None


def test_ctrl_c_keeps_what_is_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    real = evaluation.over_processes

    def stopped(*arguments: Any) -> Iterator[Any]:
        yield from list(real(*arguments))[:2]
        raise KeyboardInterrupt

    monkeypatch.setattr(evaluation, "over_processes", stopped)
    with pytest.raises(KeyboardInterrupt):
        EVALUATION.finish(CASES, Request(tmp_path))
    assert f"2 of 3 runs are kept in {tmp_path}; the same command goes on from there" in capsys.readouterr().err
    monkeypatch.setattr(evaluation, "over_processes", real)
    EVALUATION.finish(CASES, Request(tmp_path))
    assert "1 run made, 2 were kept" in capsys.readouterr().err


def test_what_cannot_be_is_refused_before_a_run(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"cannot keep runs in .*; give another folder"):
        EVALUATION.finish(CASES, Request(tmp_path / "file" / "work"))
    with pytest.raises(InputError, match="--processes must be at least 1, got 0"):
        EVALUATION.finish(CASES, Request(tmp_path, processes=0))
    assert MADE == []


def test_a_folder_that_goes_away(tmp_path: Path) -> None:
    def gone(case: Case, ended: Ended | None = None) -> Done:
        (tmp_path / "work").rmdir()
        return run(case, ended)

    with pytest.raises(InputError, match=r"cannot keep runs in .*; give another folder"):
        replace(EVALUATION, run=gone).finish(CASES, Request(tmp_path / "work"))


def test_an_outcome_is_its_settings_and_fields() -> None:
    outcome = Outcome.of([Done({}, 1.0), Done({}, 0.5)], {"seeds": "0..2"}, ["a note"])
    assert outcome.to_json() == {"seeds": "0..2", "runs": 2, "cpu_s": 1.5, "notes": ["a note"]}
