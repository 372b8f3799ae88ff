"""The simulated demo: four comparisons in one screen, whose sentences state the ratios of their tables."""

from __future__ import annotations

import contextlib
import io
import json
import re
from types import SimpleNamespace

import numpy as np
import pytest

from plait.cli.experiments import simulated_demo as demo
from plait.cli.experiments.simulated_demo import ADAPTIVE, BLOCKS, JOBS, NO_GUESTS, NO_PROFILES, Figures
from plait.traces.canonical import read_canonical

#: Columns and lines of a screen on which the demo is read.
COLUMNS, LINES = 100, 50


@pytest.fixture(scope="module")
def shown(tmp_path_factory):
    """The lines that the demo prints, and its folder; with fewer jobs than the demo has."""
    folder, out = tmp_path_factory.mktemp("demo") / "out", io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(out):
        patch.setattr(demo, "COUNT", 30)
        patch.setattr(demo, "ADAPTIVE_COUNT", 3)
        patch.setattr(demo, "ADAPTIVE_LOAD", None)
        demo.demonstrate_simulated(folder)
    return out.getvalue().splitlines(), folder


def test_the_demo_fits_a_screen(shown):
    lines, folder = shown
    assert max(len(line) for line in lines if str(folder) not in line) <= COLUMNS
    assert len(lines) <= LINES
    answers = ("Order: ", "Interleaving: ", "Goodput: ", "Guests: ")
    assert [line.split(" ")[0] + " " for line in lines if line.startswith(answers)] == list(answers)


def test_each_run_is_in_the_report_once_and_the_traces_can_be_used_again(shown):
    _, folder = shown
    runs = {run for block in BLOCKS for run in block.runs}
    rows = json.loads((folder / "results.json").read_text())
    assert {(row["policy"], row["trace"]) for row in rows} == runs
    assert len(rows) == len(runs)
    assert (folder / "report.html").stat().st_size > 50_000
    table = read_canonical(folder / JOBS)
    assert set(table["job_class"]) == {"guaranteed", "opportunistic"}
    assert len(read_canonical(folder / ADAPTIVE)) == 3


def test_jobs_differ_only_in_what_the_table_says():
    jobs = dict(demo.batches(demo.traces()))
    whole, bare, one_class = jobs[JOBS], jobs[NO_PROFILES], jobs[NO_GUESTS]
    assert np.isnan(bare.stage_s).all()
    assert not np.isnan(whole.stage_s).any()
    for other in (bare, one_class):
        for name in ("submit_s", "gpus", "iterations", "iteration_s"):
            assert np.array_equal(getattr(whole, name), getattr(other, name)), name
    assert np.array_equal(whole.stage_s, one_class.stage_s)
    classes = [len(set(batch.column("job_class").tolist())) for batch in (whole, bare, one_class)]
    assert classes == [2, 2, 1]


def test_sentences_state_the_ratios_of_their_tables():
    runs = [run for block in BLOCKS for run in block.runs]
    figures = {run: Figures(*(60.0 * (1 + i) * (2 + k) for k in range(6))) for i, run in enumerate(dict.fromkeys(runs))}
    order, turns, goodput, guests = (block.sentences(figures) for block in BLOCKS)

    def ratio(new, old, name="mean_s"):
        return f"{getattr(figures[new], name) / getattr(figures[old], name):.2f}"

    assert re.findall(r"\d\.\d\d", order) == [ratio((p, JOBS), ("fifo", JOBS)) for p in ("tiresias-l", "srtf")]
    names = ("mean_s", "p99_s", "last_s")
    expected = [ratio((p, JOBS), (p, NO_PROFILES), name) for p in ("muri-l", "muri-s") for name in names]
    assert re.findall(r"\d\.\d\d", turns) == expected
    assert re.findall(r"\d\.\d\d", goodput) == [ratio(("pollux", ADAPTIVE), ("tiresias-l", ADAPTIVE))]
    to_backfill = [
        ratio(("antman", JOBS), ("fifo-backfill", JOBS), n) for n in ("mean_s", "guaranteed_s", "opportunistic_s")
    ]
    assert re.findall(r"\d\.\d\d", guests) == [*to_backfill, ratio(("antman", JOBS), ("antman", NO_GUESTS))]


def test_means_by_class_are_those_of_the_jobs():
    summary = {"avg_jct_s": 4.0, "p99_jct_s": 9.0, "makespan_s": 20.0, "gpu_utilisation": 0.5}
    result = SimpleNamespace(summary=summary, jobs={"jct_s": np.array([1.0, 2.0, 9.0])})
    figures = Figures.of(result, np.array([False, True, True]))
    assert (figures.guaranteed_s, figures.opportunistic_s) == (1.0, 5.5)
    assert np.isnan(Figures.of(result, None).opportunistic_s)
