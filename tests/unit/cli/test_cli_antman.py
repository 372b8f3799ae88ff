"""`plait reproduce antman` as a user meets it; the runs are pretended but for one, as they take minutes."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from plait_papers.antman import command
from plait_papers.antman.runs import Done


@pytest.fixture
def pretended(monkeypatch):
    """Which runs are asked for, without making them: AntMan takes 100 s, YARN 150, everybody else 120."""
    asked = []

    def run_case(case, ended):
        asked.append(case)
        jct_s = {"antman": 100.0, "yarn-cs": 150.0}.get(case.policy.partition(":")[0], 120.0)
        figures = {"avg_jct_s": jct_s, "makespan_s": 1000.0, "opportunistic_killed_share": 0.0}
        ended(3)
        return Done(figures, 3, 0.5)

    monkeypatch.setattr(command, "EVALUATION", replace(command.EVALUATION, run=run_case))
    return asked


def test_reproduce(plait, pretended):
    arguments = ("reproduce", "antman", "--jobs", "3", "--seeds", "0..1", "--study", "load,shapes", "--work", "w")
    answer = plait(*arguments, "--json", "r.json", "--report", "r.html")
    assert answer.code == 0, answer.err
    assert len(set(pretended)) == len(pretended)  # a run that two tables need is made once
    assert f"{len(pretended)} runs made, 0 were kept" in answer.err
    assert "the AntMan of Muri's artifact is left out; give --data" in answer.err
    for words in ("yarn-cs, preempting, from zero", "1.50", "2.05", "no guests: all jobs guaranteed", "+17.1 %"):
        assert words in answer.out
    found = json.loads(Path("r.json").read_text())
    assert {row["section"] for row in found["rows"]} == {"published", "parts", "load", "shapes"}
    yarn = next(row for row in found["rows"] if row["variant"] == "yarn-cs")
    assert yarn["jct"] == {"ours": 1.5, "low": 1.5, "high": 1.5, "published": 2.05}
    page = Path("r.html").read_text()
    assert page.count("<svg") == 2
    assert "OSDI 2020" in page
    assert "SIGCOMM" not in page
    again, before = plait(*arguments, "--json", "-"), len(pretended)
    assert json.loads(again.out)["rows"] == found["rows"]
    assert len(pretended) == before


def test_one_run_is_that_of_simulate(plait):
    """The runs of the command are plain runs of the simulator."""
    from plait.traces.canonical import write_canonical
    from plait_papers.antman.runs import Case, run_case
    from plait_papers.antman.workload import Workload, trace_of

    write_canonical(trace_of(Workload(jobs=20)), "t.csv")
    answer = plait("simulate", "t.csv", "-p", "yarn-cs:shares=1/1,preempt=on", "--preemption", "freely", "--json", "-")
    assert answer.code == 0, answer.err
    ours = run_case(Case("yarn-cs:shares=1/1,preempt=on", Workload(jobs=20))).figures
    told = json.loads(answer.out)[0]
    assert {name: told[name] for name in ("avg_jct_s", "makespan_s", "avg_jct_guaranteed_s")} == {
        name: ours[name] for name in ("avg_jct_s", "makespan_s", "avg_jct_guaranteed_s")
    }


def test_the_artifacts_antman(plait, pretended, published):
    answer = plait("reproduce", "antman", "--jobs", "3", "--seeds", "0", "--study", "none", "--work", "w",
                   "--data", published("muri"), "--json", "-")  # fmt: skip
    assert answer.code == 0, answer.err
    rows = {row["trace"]: row for row in json.loads(answer.out)["artifact"]}
    assert set(rows) == {"trace 1", "trace 3", "trace 3'"}
    for row in rows.values():
        assert {name: round(v, 6) for name, v in row["ours"].items()} == row["published"]
    assert (round(rows["trace 3"]["guaranteed_s"], 3), round(rows["trace 3"]["opportunistic_s"], 3)) == (
        87171.184, 530893.509,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--study", "lod"], "unknown study 'lod'; did you mean 'load'?"),
        (["--load", "much"], "--load is 'much'; it takes a number above 0"),
        (["--load", "0"], "--load is '0'"),
        (["--jobs", "0"], "jobs, load, longest_h and gangs must be above 0"),
        (["--seeds", "x"], "seeds"),
        (["--processes", "0"], "--processes must be at least 1"),
        (["--data", "no"], "no folder no; give --data the folder with trace1.csv"),
        (["--data", "."], "has none of trace1.csv"),
    ],
)
def test_reproduce_refuses(plait, pretended, options, message):
    answer = plait("reproduce", "antman", "--work", "w", *options)
    assert (answer.code, message in answer.err) == (2, True), answer.err
    assert "Traceback" not in answer.err
    assert not pretended
