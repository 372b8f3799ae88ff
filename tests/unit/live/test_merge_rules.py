"""Which jobs may share a process, and what becomes of them when it breaks down; known again after a restart."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from live_cases import Cluster

from plait.core.errors import InputError
from plait.live.protocol.job_file import check
from plait.live.protocol.requests import merge_key

Make = Callable[..., Cluster]
JOB: dict[str, Any] = {"command": ["python", "train.py"], "merge": True, "workdir": "/w"}


def keys(c: Cluster) -> dict[int, str]:
    return {run.job: run.merge for node in c.nodes for run in node.sync().attempts}


def test_what_jobs_must_have_in_common() -> None:
    key = merge_key(JOB, "ann", "default")
    assert key == merge_key(JOB | {"command": ["python", "./other.py", "--lr", "1"], "retries": 0}, "ann", "default")
    others = [
        merge_key(JOB | {"command": ["python3", "train.py"]}, "ann", "default"),
        merge_key(JOB | {"command": ["python", "-O", "train.py"]}, "ann", "default"),
        merge_key(JOB | {"command": ["python", "sub/train.py"]}, "ann", "default"),
        merge_key(JOB | {"env": {"A": "1"}}, "ann", "default"),
        merge_key(JOB | {"workdir": "/v"}, "ann", "default"),
        merge_key(JOB, "bob", "default"),
        merge_key(JOB, "ann", "vision"),
    ]
    assert len({key, *others}) == 8


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"gpus": 2}, "one process; this one has 2"),
        ({"command": ["bash", "-c", "python train.py"]}, "needs a command `python script.py"),
        ({"command": ["python", "-c", "pass"]}, "cannot have the option -c"),
        ({"command": ["python", "-I", "train.py"]}, "cannot have the option -I"),
        ({"command": ["python", "-u"]}, "needs a script"),
    ],
)
def test_what_cannot_be_merged_is_refused_at_once(cluster: Make, change: dict[str, Any], says: str) -> None:
    c = cluster()
    with pytest.raises(InputError, match=says):
        c.submit(JOB | change)
    c.submit(JOB | change | {"merge": False})


def test_merge_in_a_job_file_is_yes_or_no() -> None:
    assert check(JOB, "job.yaml")["merge"] is True
    with pytest.raises(InputError, match=r"merge is 'yes', needs true or false"):
        check(JOB | {"merge": "yes"}, "job.yaml")


@pytest.mark.parametrize(("merged", "barred"), [("unknown", True), ("bystander", False), ("refused", True)])
def test_after_a_hard_death_a_job_begins_by_itself(cluster: Make, merged: str, barred: bool) -> None:
    """Nobody loses a retry whose fault it is not known to be; the bar outlives the service."""
    c = cluster()
    c.submit(JOB | {"retries": 0}, JOB | {"merge": False})
    c.pass_s()
    first = keys(c)
    assert first == {0: merge_key(JOB, "ann", "default"), 1: ""}
    c.nodes[0].end(0, 75, merged=merged)
    c.pass_s(0.5)
    c.restart()
    c.pass_s(2.2)
    assert c.state(0) == "running"
    assert keys(c)[0] == ""
    c.nodes[0].end(0, 75)  # of its own will
    c.pass_s(2.2)
    assert keys(c)[0] == ("" if barred else first[0])
    c.restart()
    assert c.engine.state.jobs[0].unmerged == ("always" if barred else "")


def test_the_one_that_did_it_loses_a_retry(cluster: Make) -> None:
    c = cluster()
    c.submit(JOB | {"retries": 1})
    c.pass_s()
    c.nodes[0].end(0, -11, merged="culprit")
    c.pass_s(2.2)
    assert keys(c) == {0: ""}
    c.nodes[0].end(0, -11)
    c.pass_s(2.2)
    assert c.state(0) == "failed"
