"""`plait reproduce ina` as a user meets it; runs are pretended."""

import json
from dataclasses import replace

import pytest

from plait_papers.ina import cases, command
from plait_papers.ina.cases import Done


@pytest.fixture
def pretended(monkeypatch):
    def run_case(case, ended):
        return Done({"goodput": 10.0, "fallback": 2.0, "aggregated": 0.5}, 0.5)

    monkeypatch.setattr(command, "EVALUATION", replace(command.EVALUATION, run=run_case))


def test_reproduce(plait, pretended, tmp_path):
    words = ("reproduce", "ina", "--section", "goodput,aggregated", "--work", "w", "--report=r.html", "--json=r.json")
    answer = plait(*words)
    assert answer.code == 0
    assert "Goodput of a job" in answer.out
    assert "88 runs to make" in answer.err  # eight of one seed and sixteen of five
    told = json.loads((tmp_path / "r.json").read_text())
    assert (len(told["rows"]), told["sections"]) == (32, ["goodput", "aggregated"])
    assert "ESA" in (tmp_path / "r.html").read_text() or "esa" in (tmp_path / "r.html").read_text()
    again = plait(*words)
    assert "to make" not in again.err


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["--section", "goodputs"], "--section: 'goodputs' does not exist; did you mean 'goodput'?"),
        (["--processes", "0"], "--processes"),
    ],
)
def test_wrong_options(plait, pretended, words, error):
    answer = plait("reproduce", "ina", "--work", "w", *words)
    assert (answer.code, error in answer.err) == (2, True), answer.err


def test_keys_depend_on_all_that_decides(tmp_path):
    some = [cases.Case("atp", seed=seed, loss=loss) for seed in (1, 2) for loss in (0.0, 0.1)]
    assert len({cases.EVALUATION.file(case, tmp_path) for case in some}) == 4
