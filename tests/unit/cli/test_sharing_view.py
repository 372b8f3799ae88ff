"""How jobs that share GPUs with guests look on the command line."""

from __future__ import annotations

from typing import Any

import pytest

from plait.cli.commands.jobs import job_row, print_history
from plait.cli.render.job_views import sharing_rows, where_text
from plait.live.api.jobs import JobRow, SharingOfJob
from sample_answers import sample

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
