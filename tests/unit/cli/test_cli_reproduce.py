"""`plait reproduce muri` and `plait simulate --world muri-artifact` as a user meets them."""

import csv
import json
import os
import re
from dataclasses import replace
from pathlib import Path

import pytest

from artifact_traces import rows, write_trace
from plait.cli.render.console import Printer
from plait_papers import evaluation
from plait_papers.ina import cases, command
from plait_papers.ina.cases import Done
from plait_papers.muri import published as numbers


@pytest.fixture
def data(tmp_path):
    """A data folder with two traces, one of them held back."""
    folder = tmp_path / "data"
    write_trace(folder / "trace3.csv")
    write_trace(folder / "job_type_2.csv", rows(16, models=(0, 1)))
    write_trace(folder / "cluster_trace.csv", rows(10))
    return folder


def test_figures_tables_and_page(plait, data):
    answer = plait.done(
        "reproduce", "muri", "--data", data, "--figure", "9,13,tables", "--work", "w", "--json", "r.json",
        "--report", "r.html",
    )  # fmt: skip
    for text in ("Figure 9: durations known", "2 job types", "4 job types", "Tables 4 and 5", "authors'", "guard on"):
        assert text in answer.out
    assert "figure 9 is without trace1.csv, trace2.csv" in answer.err
    found = json.loads(Path("r.json").read_text())
    assert found["version"]
    assert {(r["figure"], r["trace"]) for r in found["bars"]} == {
        ("9", "trace3"),
        ("13", "trace3"),
        ("13", "job_type_2"),
    }
    assert len(found["tables"]) == 24
    assert found["testbed"] == found["noise"] == []
    page = Path("r.html").read_text()
    assert page.count("<svg") == 9 + 3 + 3
    assert not re.search(r"(src|href)=\"(https?:)?//", page)
    assert "equals" not in page.split("Provenance")[0]
    assert "stored by the authors in the artifact" in page


def test_a_narrow_terminal_shows_the_columns_most_needed(plait, data, monkeypatch):
    arguments = ("reproduce", "muri", "--data", data, "--figure", "9", "--work", "w")
    wide = plait(*arguments)
    assert all(f" {column} " in wide.out for column in ("ours", "authors'", "off by", "guard on", "plait's world,"))
    assert "wider terminal" not in wide.err
    monkeypatch.setattr(Printer, "fits", lambda self, table: len(table.columns) <= 8)
    narrow = plait(*arguments)
    assert not any(f" {column} " in narrow.out for column in ("ours", "authors'", "guard on"))
    assert all(f" {column} " in narrow.out for column in ("off by", "paper", "plait's world,"))
    assert "a wider terminal shows more columns" in narrow.err


def test_the_same_in_plaits_own_world_beside(plait, data):
    arguments = ("reproduce", "muri", "--data", data, "--figure", "9,10", "--work", "w", "--json", "-")
    bars = json.loads(plait(*arguments).out)["bars"]
    own = {(r["trace"], r["bar"]): r for r in bars if r["metric"] == "avg_jct_s"}
    trace = data / "trace3.csv"
    options = ("--round", 360, "--placement", "consolidated", "--preemption", "freely")
    same = plait("simulate", trace, "--policy", "srsf,muri-s", *options, "--json", "-")
    srsf, muri = (r["avg_jct_s"] for r in json.loads(same.out))
    assert own["trace3", "SRSF"]["own_s"] == srsf
    assert own["trace3", "SRSF"]["own_ratio"] == srsf / muri
    assert own["trace3", "AntMan"]["own_policy"] == "antman:backfill=off", "it goes by durations otherwise"
    only = json.loads(plait(*arguments, "--no-own").out)["bars"]
    assert all(r["own_s"] is None for r in only)
    assert [r["ours_s"] for r in only] == [r["ours_s"] for r in bars]


def test_a_second_time_nothing_is_run(plait, data, monkeypatch):
    first = plait("reproduce", "muri", "--data", data, "--figure", "9", "--work", "w", "--json", "-")
    assert "7 runs made, 0 were kept" in first.err
    monkeypatch.setattr(evaluation, "over_processes", lambda *_: pytest.fail("ran again"))
    second = plait.done("reproduce", "muri", "--data", data, "--figure", "9", "--work", "w", "--json", "-")
    assert json.loads(second.out) == json.loads(first.out)
    assert "Figure 9" in second.err


def test_fresh_runs_again(plait, data):
    for _ in range(2):
        answer = plait("reproduce", "muri", "--data", data, "--figure", "13", "--work", "w", "--fresh")
        assert re.search(r"\d+ runs made, 0 were kept", answer.err)


def test_processes_give_the_same(plait, data):
    def bars(processes, work):
        answer = plait("reproduce", "muri", "--data", data, "--figure", "9", "--work", work, "--json", "-",
                       "--processes", processes)  # fmt: skip
        return json.loads(answer.out)["bars"]

    assert bars(1, "w1") == bars(2, "w2")


def test_noise_and_part_of_the_jobs(plait, data):
    answer = plait("reproduce", "muri", "--data", data, "--figure", "14", "--jobs", "8", "--work", "w", "--json", "-")
    found = json.loads(answer.out)
    assert found["jobs"] == 8
    assert [(r["world"], r["policy"], r["noise"]) for r in found["noise"]] == [
        (w, p, n / 5) for w in ("artifact", "plait") for p in ("Muri-S", "Muri-L") for n in range(6)
    ]
    assert found["noise"][0]["jct_ratio"] == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--data", "nowhere"], "no folder nowhere; give --data the folder with trace1.csv"),
        (["--data", "empty"], "nothing to run: empty has none of the files"),
        (["--data", "data", "--figure", "7"], "unknown figure '7'"),
        (["--data", "data", "--figure", "testbed"], "left out without testbed/SRTF-job.csv"),
        (["--data", "empty", "--figure", "themis"], "Themis is left out without whole traces of figure 10"),
        (["--data", "data", "--matching", "exct"], "did you mean 'exact'?"),
        (["--data", "data", "--jobs", "0"], "--jobs must be at least 1"),
        (["--data", "data", "--figure", "9", "--processes", "0"], "processes must be at least 1"),
    ],
)
def test_mistakes(plait, data, tmp_path, arguments, message):
    (tmp_path / "empty").mkdir()
    answer = plait("reproduce", "muri", "--work", "w", *arguments)
    assert answer.code == 2
    assert message in answer.err
    assert "Traceback" not in answer.err


def test_a_damaged_trace_is_named(plait, data):
    text = (data / "trace3.csv").read_text().replace("0,8,0,", "0,8,noon,", 1)
    (data / "trace3.csv").write_text(text)
    assert "trace3.csv:2" in plait.refused("reproduce", "muri", "--data", data, "--figure", "9", "--work", "w")


# -- simulate ----------------------------------------------------------------------------------------------------


def test_simulate_in_the_published_world(plait, data):
    answer = plait.done("simulate", data / "trace3.csv", "--world", "muri-artifact", "-p",
                        "srtf,muri-s:max_jobs=2,unpack=off,muri-l:order=discretised", "--json", "r.json",
                        "--csv", "r.csv", "--jobs-csv", "j.csv")  # fmt: skip
    results = json.loads(Path("r.json").read_text())
    assert [r["policy"] for r in results] == ["srtf", "muri-s:max_jobs=2,unpack=off", "muri-l:order=discretised"]
    for r in results:
        assert (r["world"], r["jobs"], r["finished"], r["gpus"]) == ("muri-artifact", 24, 24, 64)
        assert r["percentile_rule"].startswith("sorted value at int(0.99 n)")
        assert r["makespan_s"] >= r["p99_jct_s"] > 0
    jobs = list(csv.DictReader(Path("j-srtf.csv").read_text().splitlines()))
    assert len(jobs) == 24
    assert sum(float(j["jct_s"]) for j in jobs) / 24 == pytest.approx(results[0]["avg_jct_s"])
    assert "muri-l:order=discretised" in answer.out


def test_simulate_options_of_the_published_world(plait, data):
    def first(*options):
        answer = plait(
            "simulate", data / "trace3.csv", "--world", "muri-artifact", "-p", "muri-s", "--json", "-", *options
        )
        return json.loads(answer.out)[0]

    assert first("--jobs", "5")["jobs"] == 5
    real = first("--round", "360", "--overheads", "at_start")
    assert (real["round_s"], real["overheads"]) == (360, "at_start")
    assert real["avg_jct_s"] != first()["avg_jct_s"]
    assert first("--cluster", "8x8", "--format", "muri")["avg_jct_s"] == first()["avg_jct_s"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["-p", "fifo"], "world muri-artifact has no policy 'fifo'; known: srtf, srsf"),
        (["-p", "muri-s:order=discretised"], "order=discretised is an option of muri-l"),
        (["-p", "srtf", "--report", "r.html"], "no --report; it takes --round"),
        (["-p", "srtf", "--placement", "counting"], "no --placement"),
        (["-p", "srtf", "--cluster", "4x4"], "no --cluster"),
        (["-p", "srtf", "--format", "philly"], "no --format"),
        (["-p", "srtf", "--check"], "no --check"),
        (["-p", "srtf", "--overheads", "none"], "--overheads 'none'; known: every_event, at_start"),
        (["-p", ""], "no policy given; world muri-artifact has srtf"),
        (["-p", "srtf", "--world", "muri-artifact,plait"], "give it alone"),
        (["-p", "srtf", "--world", "muri-artefact"], "did you mean 'muri-artifact'?"),
    ],
)
def test_simulate_refuses(plait, data, options, message):
    answer = plait("simulate", data / "trace3.csv", "--world", "muri-artifact", *options)
    assert (answer.code, message in answer.err) == (2, True), answer.err


def test_published_numbers_come_out(plait, published):
    """Two cells to ten digits; all of them are checked in tests/golden."""
    path = published("muri/job_type_1.csv")
    answer = plait("simulate", path, "--world", "muri-artifact", "-p", "srtf,muri-s", "--json", "-")
    for result in json.loads(answer.out):
        for metric in ("avg_jct_s", "makespan_s", "p99_jct_s"):
            value = numbers.reference("job_type_1", result["policy"], metric)
            assert result[metric] == pytest.approx(value.value, rel=1e-10)


def test_a_figure_of_the_published_traces(plait, published, tmp_path):
    """With PLAIT_SLOW all bars; else those of the trace with one kind of job, and not plait's own world beside them."""
    path, options = published("muri/job_type_1.csv"), []
    folder, traces, count = path.parent, {"job_type_1", "trace3"}, 8
    if not os.environ.get("PLAIT_SLOW"):
        folder, traces, count, options = tmp_path / "one", {"job_type_1"}, 4, ["--no-own"]
        folder.mkdir()
        (folder / path.name).write_bytes(path.read_bytes())
    answer = plait("reproduce", "muri", "--data", folder, "--figure", "13", "--work", "w", "--json", "-", *options)
    bars = json.loads(answer.out)["bars"]
    assert {b["trace"] for b in bars} >= traces
    known = [b for b in bars if b["published_s"]]
    assert len(known) == count
    assert all(b["ours_to_published"] == pytest.approx(1, rel=1e-9) for b in known)


# -- `plait reproduce ina` as a user meets it; runs are pretended -----------------------------------------


@pytest.fixture
def pretended(monkeypatch):
    def run_case(case, ended):
        return Done({"goodput": 10.0, "fallback": 2.0, "aggregated": 0.5}, 0.5)

    monkeypatch.setattr(command, "EVALUATION", replace(command.EVALUATION, run=run_case))


def test_reproduce(plait, pretended, tmp_path):
    words = ("reproduce", "ina", "--section", "goodput,aggregated", "--work", "w", "--report=r.html", "--json=r.json")
    answer = plait.done(*words)
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
