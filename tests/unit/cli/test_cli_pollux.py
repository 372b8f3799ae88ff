"""`plait simulate --world pollux-artifact` and `plait reproduce pollux` as a user meets them."""

import csv
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from plait_papers import evaluation
from plait_papers.pollux import command, runs, workload
from pollux_files import write_measurements, write_workload


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_measurements(tmp_path_factory.mktemp("measured"), "bert", "ncf")


@pytest.fixture
def trace(tmp_path):
    return write_workload(tmp_path / "w.csv", (5, "bert", 2, 24), (70, "ncf", 1, 32768), (130, "bert", 6, 192))


def test_simulate(plait, data, trace):
    plait.done("simulate", trace, "--world", "pollux-artifact", "--data", data, "--policy",
               "tiresias,optimus:interval=30,nodes=2", "--json", "f.json", "--jobs-csv", "j.csv")  # fmt: skip
    one, other = json.loads(Path("f.json").read_text())
    assert (one["policy"], one["cluster"], one["round_s"], one["gpus"]) == ("tiresias", "16x4", 60, 64)
    assert (other["policy"], other["cluster"], other["round_s"]) == ("optimus:interval=30,nodes=2", "2x4", 30)
    jobs = list(csv.DictReader(Path("j-tiresias.csv").read_text().splitlines()))
    assert [j["id"] for j in jobs] == ["bert-0", "ncf-1", "bert-2"]
    jct_s = [float(j["jct_s"]) for j in jobs]
    assert one["avg_jct_s"] == sum(jct_s) / 3
    assert one["sum_jct_s"] == sum(jct_s)
    assert one["avg_jct_s_bert"] == (jct_s[0] + jct_s[2]) / 2
    assert one["restarts"] == sum(int(j["starts"]) - 1 for j in jobs)
    assert one["last_completion_s"] == max(float(j["end_s"]) for j in jobs) == one["makespan_s"] + 5
    assert one["rounds"] == -(-one["last_completion_s"] // 60)


def test_the_seed_is_that_of_the_policy_and_only_of_those_that_draw(plait, data, trace):
    answer = plait.done("simulate", trace, "--world", "pollux-artifact", "--data", data, "--jobs", "1", "--json", "-",
                        "--policy", "pollux-ga:seed=5,pollux-ga,tiresias", "--csv", "r.csv")  # fmt: skip
    assert [run.get("seed") for run in json.loads(answer.out)] == [5, 0, None]
    assert [row["seed"] for row in csv.DictReader(Path("r.csv").read_text().splitlines())] == ["5", "0", ""]


def test_part_of_the_jobs(plait, data, trace):
    answer = plait("simulate", trace, "--world", "pollux-artifact", "--data", data, "-p", "tiresias", "--jobs", "2",
                   "--json", "-")  # fmt: skip
    assert json.loads(answer.out)[0]["jobs"] == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["-p", "tiresias"], "world pollux-artifact needs --data, the folder with the measurements"),
        (["-p", "tiresias", "--data", "no"], "no folder no; give --data the folder that has bert, cifar10"),
        (["-p", "tiresias", "--data", "DATA", "--round", "30"], "has no --round; it takes --data, --jobs, --json"),
        (["-p", "tiresias", "--data", "DATA", "--cluster", "16x4", "--format", "philly"], "has no --format"),
        (["-p", "tiresias", "--data", "DATA", "--cluster", "8x8"], "has no --cluster; it takes --data"),
        (["-p", "tiresias", "--data", "DATA", "--cluster", "8x8"], "its cluster is 16x4, of another size with"),
        (["-p", "fifo", "--data", "DATA"], "world pollux-artifact has no policy 'fifo'"),
        (["-p", "tiresias:intervall=3", "--data", "DATA"], "did you mean 'interval'?"),
    ],
)
def test_simulate_refuses(plait, data, trace, options, message):
    given = [data if option == "DATA" else option for option in options]
    answer = plait("simulate", trace, "--world", "pollux-artifact", *given)
    assert (answer.code, message in answer.err) == (2, True), answer.err
    assert "Traceback" not in answer.err


def test_other_worlds_use_no_data(plait, data, trace):
    own = plait("simulate", trace, "--data", data)
    assert (own.code, "world plait uses no --data" in own.err) == (2, True), own.err
    muri = plait("simulate", trace, "--data", data, "--world", "muri-artifact", "-p", "srtf")
    assert (muri.code, "world muri-artifact is as published and has no --data" in muri.err) == (2, True), muri.err


def test_mistakes_in_the_workload_are_named(plait, data, trace):
    trace.write_text(trace.read_text().replace(",ncf,", ",ncg,"))
    answer = plait("simulate", trace, "--world", "pollux-artifact", "--data", data, "-p", "tiresias")
    assert (answer.code, "w.csv:3: column 'application'" in answer.err) == (2, True), answer.err
    trace.write_text(trace.read_text().replace(",ncg,1,32768", ",imagenet,1,200"))
    answer = plait("simulate", trace, "--world", "pollux-artifact", "--data", data, "-p", "tiresias")
    assert (answer.code, "with the measurements of imagenet" in answer.err) == (2, True), answer.err


# -- reproduce -------------------------------------------------------------------------------------------------------


@pytest.fixture
def short(tmp_path):
    return write_workload(tmp_path / "short.csv", (5, "bert", 2, 24), (10, "bert", 6, 192))


def test_reproduce(plait, data, short, monkeypatch):
    arguments = ("reproduce", "pollux", "--data", data, "--workload", short, "--seeds", "0..1", "--work", "w")
    first = plait.done(*arguments, "--json", "r.json", "--report", "r.html")
    assert "no published values for" in first.err
    assert "6 runs made, 0 were kept" in first.err
    assert "6 runs to make; each is kept in w" in first.err
    assert "5 of 6 runs made" in first.err
    assert re.search(r"ours ┃ +low ┃ +high", first.out)
    assert "off by" not in first.out  # only columns with something in them
    found = json.loads(Path("r.json").read_text())
    means = {row["policy"]: row for row in found["rows"] if row["metric"] == "avg_jct_s"}
    assert list(means) == ["tiresias", "optimus", "pollux", "pollux:exact=on", "pollux-ga"]
    assert means["pollux-ga"]["seeds"] == 2
    assert all(row["published"] is row["off"] is None for row in found["rows"])
    same = plait("simulate", short, "--world", "pollux-artifact", "--data", data, "-p", "pollux", "--json", "-")
    assert means["pollux"]["ours"] == json.loads(same.out)[0]["avg_jct_s"]
    page = Path("r.html").read_text()
    assert page.count("<svg") == 2
    assert "branch osdi21-artifact" in page
    assert "Muri" not in page
    assert not re.search(r"(src|href)=\"(https?:)?//", page)
    monkeypatch.setattr(evaluation, "over_processes", lambda *_: pytest.fail("ran again"))
    second = plait(*arguments, "--json", "-")
    assert json.loads(second.out)["rows"] == found["rows"]


def test_measurements_are_read_once_and_only_for_runs_to_make(plait, data, short, monkeypatch):
    read = []

    class Counted(workload.Measured):
        def __init__(self, folder, application):
            read.append(application.name)
            super().__init__(folder, application)

    monkeypatch.setattr(workload, "Measured", Counted)
    arguments = ("reproduce", "pollux", "--data", data, "--workload", short, "--seeds", "0", "--work", "w")
    assert plait(*arguments).code == 0
    assert read == ["bert"]
    runs.load_once.cache_clear()
    assert plait(*arguments).code == 0
    assert read == ["bert"]


def test_studies(plait, data, short, monkeypatch):
    """Which runs a study takes, without making all of them."""
    asked = []

    def pretended(case, ended):
        asked.append(case)
        figures = {"jobs": 1, "avg_jct_s": 100.0, "p99_jct_s": 200.0, "avg_restarts": 2.0}
        return runs.Done(figures, [100.0], 1.0)

    monkeypatch.setattr(command, "EVALUATION", replace(command.EVALUATION, run=pretended))
    answer = plait.done("reproduce", "pollux", "--data", data, "--workload", short, "--seeds", "3", "--work", "w",
                        "--study", "load,interval,interference", "--json", "-", "--report", "s.html")  # fmt: skip
    told = {(case.policy, case.times) for case in asked}
    assert len(told) == len(asked) == 5 + 3 * 3 + 2 * 4 + 3  # load 1 and 60 s are the main runs
    assert ("pollux-ga:interval=480,seed=3", 1.0) in told
    assert ("pollux-ga:interference=0.25,seed=3,avoid=off", 1.0) in told
    assert ("optimus", 1.5) in told
    rows = json.loads(answer.out)["rows"]
    assert {row["study"] for row in rows} == {"", "load", "interval", "interference"}
    assert Path("s.html").read_text().count("<svg") == 8


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--data", "no"], "cannot read no/workload-6.csv: No such file or directory; give --workload"),
        (["--data", "DATA", "--workload", "SHORT", "--study", "lod"], "unknown study 'lod'; did you mean 'load'?"),
        (["--data", "DATA", "--workload", "SHORT", "--seeds", "x"], "seeds"),
        (["--data", "DATA", "--workload", "SHORT", "--processes", "0"], "processes must be at least 1"),
        (["--data", "DATA", "--workload", "SHORT", "--jobs", "0"], "jobs must be at least 1"),
        (["--data", "EMPTY", "--workload", "SHORT"], "with the measurements of bert"),
    ],
)
def test_reproduce_refuses(plait, data, short, tmp_path, options, message):
    (tmp_path / "empty").mkdir()
    given = [{"DATA": data, "SHORT": short, "EMPTY": tmp_path / "empty"}.get(option, option) for option in options]
    answer = plait("reproduce", "pollux", "--work", "w", *given)
    assert (answer.code, message in answer.err) == (2, True), answer.err
    assert "Traceback" not in answer.err
