"""`plait reproduce antman` with pretended runs but for one, and jobs that share GPUs with guests in listings."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from plait.cli.commands.jobs import job_row, print_history
from plait.cli.render.job_views import sharing_rows, where_text
from plait.live.api.jobs import JobRow, SharingOfJob
from plait_papers.antman import command
from plait_papers.antman.runs import Done
from sample_answers import sample


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
    answer = plait.done(*arguments, "--json", "r.json", "--report", "r.html")
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
    answer = plait.done(
        "simulate", "t.csv", "-p", "yarn-cs:shares=1/1,preempt=on", "--preemption", "freely", "--json", "-"
    )
    ours = run_case(Case("yarn-cs:shares=1/1,preempt=on", Workload(jobs=20))).figures
    told = json.loads(answer.out)[0]
    assert {name: told[name] for name in ("avg_jct_s", "makespan_s", "avg_jct_guaranteed_s")} == {
        name: ours[name] for name in ("avg_jct_s", "makespan_s", "avg_jct_guaranteed_s")
    }


def test_the_artifacts_antman(plait, pretended, published):
    answer = plait.done("reproduce", "antman", "--jobs", "3", "--seeds", "0", "--study", "none", "--work", "w",
                        "--data", published("muri"), "--json", "-")  # fmt: skip
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


HOST, GUEST = {"job": "j-0", "gpu": "n0:1", "guest": False}, {"job": "j-5", "gpu": "n0:1", "guest": True}


@pytest.mark.parametrize(
    ("sharing", "text"),
    [
        (None, ""),
        ({"guest": True, "share": None, "beside": []}, "guest"),
        ({"guest": True, "share": 0.0, "action": "pause", "beside": [HOST]}, "guest of j-0, paused"),
        ({"guest": True, "share": 0.5, "action": "run", "beside": [HOST, HOST, GUEST]}, "guest of j-0, share 0.50"),
        ({"guest": False, "share": 1.0, "action": "run", "beside": [GUEST]}, "host of j-5"),
        ({"guest": True, "share": 0.0, "throttled": "signals", "duty": 0.0, "beside": [HOST]}, "guest of j-0, frozen"),
        (
            {"guest": True, "share": 0.5, "throttled": "cgroup", "duty": None, "beside": [HOST]},
            "guest of j-0, share 0.50, throttled",
        ),
    ],
)
def test_a_list_says_whose_guest_a_job_is(sharing: dict[str, Any] | None, text: str) -> None:
    assert where_text(sharing and sample(SharingOfJob, **sharing)) == text


def test_a_line_of_the_list_has_it_behind_the_nodes() -> None:
    sharing = {"guest": True, "share": 0.35, "beside": [HOST]}
    job = sample(JobRow, id="j-1", state="running", gpus=1, command=["true"], places=[{"node": "n0"}], sharing=sharing)
    assert str(job_row(job)[-1]).startswith("n0; guest of j-0, share 0.35")


def test_one_job_is_shown_with_its_neighbours_and_limits() -> None:
    how = {"guest": True, "share": 0.35, "limit_bytes": 2.5e9, "action": "pause", "beside": [HOST, GUEST]}
    assert sharing_rows(sample(SharingOfJob, **how)) == [
        ("runs as", "guest"),
        ("shares with", "j-0 on n0:1, j-5 on n0:1 (guest)"),
        ("share", "0.35 of the GPU's time"),
        ("memory limit", "2.5 GB"),
        ("instruction", "pause"),
    ]
    throttled = {"guest": True, "share": 0.5, "throttled": "signals", "duty": 0.48, "beside": [HOST]}
    how = "SIGSTOP and SIGCONT, since it does not pace itself; it ran for 0.48 of the last 10 s"
    assert sharing_rows(sample(SharingOfJob, **throttled))[3] == ("throttled by", how)
    host = {"guest": False, "share": 1.0, "limit_bytes": None, "action": "run", "beside": [GUEST]}
    assert sharing_rows(sample(SharingOfJob, **host)) == [
        ("runs as", "host of guests"),
        ("shares with", "j-5 on n0:1 (guest)"),
    ]


def test_history_names_classes_where_there_are_several(capsys: pytest.CaptureFixture[str]) -> None:
    job = {
        "id": "j-1",
        "user": "ann",
        "state": "finished",
        "gpus": 1,
        "jct_s": 2.0,
        "run_s": 1.0,
        "age_s": 5.0,
        "class": "guaranteed",
    }
    print_history([sample(JobRow, **job)])
    assert "guaranteed" not in capsys.readouterr().out
    print_history([sample(JobRow, **job), sample(JobRow, **{**job, "id": "j-2", "class": "auto"})])
    lines = capsys.readouterr().out.splitlines()
    column = lines[0].index("class")
    assert [line[column:].split()[0] for line in lines[1:]] == ["guaranteed", "auto"]
