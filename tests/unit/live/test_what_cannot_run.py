"""What is refused, what is not started again, and which jobs may share a process."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from live_cases import Cluster, Node

from plait.core.errors import InputError
from plait.core.jobs import JobClass
from plait.live.protocol.job_file import check
from plait.live.protocol.requests import merge_key, spec_of
from plait.live.scheduler.records.event_words import brief

Make = Callable[..., Cluster]


def test_a_gang_that_no_node_has_room_for_is_refused_at_once(cluster: Make) -> None:
    c = cluster((2, 2), expect_gpus=4)
    with pytest.raises(InputError, match=r"needs 5 GPUs of one kind; .* is 4; .*: plait submit --wait-for-nodes"):
        c.submit({}, {"gpus": 5})
    assert c.engine.state.numbers == 0  # all or none


def test_while_nodes_may_still_join_nobody_is_refused(cluster: Make) -> None:
    c = cluster((2,))  # nobody said how many there will be: others may follow for ten seconds
    (wide,) = c.submit({"gpus": 4})
    c.nodes.append(Node(c, "n1", 2))
    c.pass_s(3.0)
    assert c.state(wide) == "running"
    c.pass_s(12.0)
    with pytest.raises(InputError, match="needs 5 GPUs"):
        c.submit({"gpus": 5})


def test_a_job_may_wait_for_nodes_that_are_not_there(cluster: Make) -> None:
    c = cluster((2,), expect_gpus=2)
    wide, small = c.submit({"gpus": 4, "wait_for_nodes": True}, {"gpus": 1}, then_s=15.0)
    assert (c.state(wide), c.state(small)) == ("waiting", "running")
    assert c.engine.jobs([wide], c.now)[wide].reason.startswith("waits for more nodes: needs 4 GPUs")
    c.restart(then_s=3.0)
    c.nodes[0].end(small)
    c.nodes.append(Node(c, "n1", 2))
    c.pass_s(5.0)
    assert c.state(wide) == "running"


SAID = "exit code 1; last lines of the log: Traceback | File 'a', line 3 | "
AGAIN = "not retried, because it ended in the same way twice without getting further (--retries)"


@pytest.mark.parametrize("held_s", [2.0, 400.0])
@pytest.mark.parametrize(
    ("exit_code", "said", "cause"),
    [
        (1, [SAID + "KeyError: 'a' at 0x7f12 (pid 311)", SAID + "KeyError: 'a' at 0x7e99 (pid 4711)"],
         "KeyError: 'a' at 0x7e99 (pid 4711) (exit code 1)"),
        (-11, ["killed by SIGSEGV; it printed nothing"] * 2, "killed by SIGSEGV; it printed nothing"),
        (3, [None, None], "its process ended with exit code 3"),
    ],
)  # fmt: skip
def test_a_program_that_ends_in_the_same_way_twice_is_not_started_again(
    cluster: Make, exit_code: int, said: list[str | None], cause: str, held_s: float
) -> None:
    c = cluster((2,))
    (job,) = c.submit({"retries": None})
    for text in said:
        c.pass_s(4.0)
        c.nodes[0].report(job, held_s=held_s)
        c.nodes[0].end(job, exit_code, reason=text)
    c.pass_s(4.0)
    stored = c.stored(job)
    assert (stored.row.state, stored.row.starts) == ("failed", 2)
    assert brief(stored.row.reason) == f"{cause}; {AGAIN}; failed 2 times"
    c.restart()  # the log says it again
    assert c.state(job) == "failed"


def test_a_program_that_fails_at_the_same_step_again_after_a_resume_is_not_started_again(cluster: Make) -> None:
    c = cluster((2,))
    (job,) = c.submit({"retries": None})
    for _ in range(2):
        c.pass_s(4.0)
        c.nodes[0].report(job, held_s=600.0, steps=500.0)
        c.nodes[0].end(job, 1, reason=SAID + "ValueError: NaN")
    c.pass_s(4.0)
    assert c.state(job) == "failed"


@pytest.mark.parametrize(
    ("request_", "reports", "ends"),
    [
        ({"retries": 2}, [{}, {}], [(1, SAID + "KeyError: 'a'")] * 2),  # asked for
        ({"retries": None}, [{}, {}], [(1, SAID + "KeyError: 'a'"), (1, SAID + "OSError: no data")]),
        ({"retries": None}, [{"steps": 5.0}, {"steps": 6.0}], [(1, SAID + "KeyError: 'a'")] * 2),  # it got further
        ({"retries": None}, [{}, {}], [(-9, "killed by SIGKILL (by hand, or out of memory); it printed nothing")] * 2),
        ({"retries": None}, [{}, {}], [(None, None)] * 2),  # nobody knows
    ],
)
def test_other_failures_are_tried_again(
    cluster: Make,
    request_: dict[str, object],
    reports: list[dict[str, float]],
    ends: list[tuple[int | None, str | None]],
) -> None:
    c = cluster((2,))
    (job,) = c.submit(request_)
    for report, (exit_code, reason) in zip(reports, ends, strict=True):
        c.pass_s(4.0)
        c.nodes[0].report(job, held_s=2.0, **report)
        c.nodes[0].end(job, exit_code, reason=reason)
    c.pass_s(4.0)
    assert c.state(job) == "running"
    assert c.engine.state.jobs[job].epoch == 3


@pytest.mark.parametrize("gpus", [1, 3])
@pytest.mark.parametrize("lost", [False, True])
def test_a_node_comes_back_with_another_number_of_gpus(cluster: Make, gpus: int, lost: bool) -> None:
    c = cluster((2,), lost_s=5.0, lease_s=3.0)
    ran, waits = c.submit({"gpus": 1}, {"gpus": 2, "min_gpus": 1}, then_s=1.1)
    c.nodes.clear()  # plait down --stop-jobs; the service hears nothing of it any more
    c.pass_s(8.0 if lost else 1.0)
    c.restart()
    c.nodes.append(Node(c, "n0", gpus))
    c.nodes[0].agent = "n0-b"
    c.pass_s(6.0)
    assert [(n.id, n.gpus, n.state) for n in c.engine.nodes(c.now)] == [("n0", gpus, "ready")]
    assert c.state(ran) == "running"
    c.nodes[0].end(ran, then_s=4.0)
    assert c.state(ran) == "finished"
    if gpus > 1:
        assert c.state(waits) == "running"
    c.restart(then_s=2.0)
    assert c.engine.status(c.now).gpus.total == gpus
    c.pass_s(12.0)
    with pytest.raises(InputError, match=f"is {gpus};"):
        c.submit({"gpus": 5})


def test_a_drained_node_stays_drained_with_other_gpus(cluster: Make) -> None:
    c = cluster((2,))
    c.engine.drain("n0", c.now)
    c.nodes[0] = Node(c, "n0", 3)
    c.nodes[0].agent = "n0-b"
    c.pass_s(2.0)
    assert [(n.gpus, n.state) for n in c.engine.nodes(c.now)] == [(3, "drained")]
    c.engine.resume("n0", c.now)
    (job,) = c.submit({"gpus": 3}, then_s=3.0)
    assert c.state(job) == "running"


def test_an_unknown_project_is_refused_with_a_suggestion(cluster: Make) -> None:
    c = cluster((2,))
    c.engine.set_project("vision", gpu_quota=None, weight=1.0, now_s=c.now)
    c.engine.check_project("vision")
    c.engine.check_project("default")
    with pytest.raises(
        InputError, match=r"no project 'vison'; did you mean 'vision'\? Otherwise make it with: plait project"
    ):
        c.engine.check_project("vison")


def test_a_job_of_more_memory_than_nodes_have_is_refused(cluster: Make) -> None:
    c = cluster((), expect_gpus=1)
    node = Node(c, "n0", 1)
    node.info = replace(node.info, memory_bytes=8e9)
    c.nodes.append(node)
    c.pass_s(1.0)
    with pytest.raises(InputError, match=r"each with 16 GB of memory \(nodes have up to 8\); the largest"):
        c.submit({"memory": 16e9})


def test_a_job_may_be_of_class_auto_and_of_no_unknown_one(cluster: Make) -> None:
    c = cluster((2,))
    (number,) = c.submit({"class": "auto"}, then_s=1.0)
    assert c.controller.job_store.spec(number).job_class is JobClass.AUTO
    assert c.state(number) == "running"  # a policy without classes takes it for guaranteed
    with pytest.raises(InputError, match="class is 'spare', needs guaranteed, opportunistic or auto"):
        spec_of(0, {"command": ["a"], "class": "spare"}, owner="me", project="p", submit_s=0.0)


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
    c = cluster(jobs=[JOB | {"retries": 0}, JOB | {"merge": False}])
    first = keys(c)
    assert first == {0: merge_key(JOB, "ann", "default"), 1: ""}
    c.nodes[0].end(0, 75, merged=merged, then_s=0.5)
    c.restart(then_s=2.2)
    assert c.state(0) == "running"
    assert keys(c)[0] == ""
    c.nodes[0].end(0, 75)  # of its own will
    c.pass_s(2.2)
    assert keys(c)[0] == ("" if barred else first[0])
    c.restart()
    assert c.engine.state.jobs[0].unmerged == ("always" if barred else "")


def test_the_one_that_did_it_loses_a_retry(cluster: Make) -> None:
    c = cluster(jobs=[JOB | {"retries": 1}])
    c.nodes[0].end(0, -11, merged="culprit", then_s=2.2)
    assert keys(c) == {0: ""}
    c.nodes[0].end(0, -11, then_s=2.2)
    assert c.state(0) == "failed"
