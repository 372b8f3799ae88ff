"""Changes of submitted jobs; arrays and tags: submitted once, listed as one row, and changed together.

The log of every cluster here is replayed at the end of its test, decision by decision.
"""

import json
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import sqlalchemy as sa
from live_cases import Cluster

from plait.core.errors import Conflict, InputError
from plait.live.api.cluster import Losses
from plait.live.protocol.arrays import all_members, extent, parse_array, parse_matrix
from plait.live.protocol.job_file import WrongField, request_of
from plait.live.protocol.requests import dependencies
from plait.live.protocol.wire import RUNNING, Seen
from plait.live.scheduler.records.event_words import in_words
from plait.live.service.http.bodies import SUBMISSION

Make = Callable[..., Cluster]


def states(c: Cluster, jobs: range) -> Counter[str]:
    return Counter(c.state(job) for job in jobs)


def reason(c: Cluster, job: int) -> str:
    return c.engine.jobs([job], c.now)[job].reason


def test_each_member_has_its_index_in_the_environment_and_in_the_command() -> None:
    given = {"command": ["train", "--fold={index}", "{other}"], "array": "3,5-7:2%2", "env": {"A": "1"}}
    first, second, third = all_members([{"command": ["prepare"]}, given], 5)[1:]
    assert first["command"] == ["train", "--fold=3", "{other}"]
    assert [one["env"]["PLAIT_ARRAY_INDEX"] for one in (first, second, third)] == ["3", "5", "7"]
    assert second["env"]["A"] == "1"
    assert third["member"] == {"array": "a-6", "index": 7, "jobs": 3, "at_most": 2}
    assert "array" not in third


def test_a_matrix_has_a_job_for_each_combination() -> None:
    given = {"command": ["train", "{lr}"], "matrix": parse_matrix(["lr=0.1,0.01 seed=1,2", "net=a"])}
    jobs = all_members([given], 0)
    assert [(one["command"][1], one["env"]["seed"], one["env"]["net"]) for one in jobs] == [
        ("0.1", "1", "a"), ("0.1", "2", "a"), ("0.01", "1", "a"), ("0.01", "2", "a"),
    ]  # fmt: skip
    assert [one["env"]["PLAIT_ARRAY_INDEX"] for one in jobs] == list("0123")
    assert request_of({"command": ["x"], "matrix": {"lr": [0.1, 1e-5, "big"]}})["matrix"] == {"lr": [0.1, 1e-5, "big"]}


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"array": "3-1"}, "array is '3-1'; write indexes such as 0-19"),
        ({"array": "0-4%0"}, "array is '0-4%0'; write after % how many"),
        ({"array": "%4"}, "array is '%4', which has no index"),
        ({"array": "1,1"}, "has an index twice"),
        ({"array": "0-99999999"}, "more than 10,000 jobs"),
        ({"array": "a"}, "array is 'a', which has characters that cannot be there"),
        ({"array": "0-3", "matrix": {"lr": [1]}}, "array is '0-3' next to a matrix"),
        ({"matrix": {"lr": []}}, "matrix.lr is empty"),
        ({"matrix": {"lr": 1}}, "matrix.lr is 1, needs a list"),
        ({"matrix": {"PLAIT_JOB": [1]}}, "matrix has the name 'PLAIT_JOB'"),
        (
            {"command": ["x", "{a}" * 3, "y{index}"], "matrix": {"a": ["1", "x" * 30_000]}},
            "command[1] has 90,000 characters with the values of a job in it, at most 65,536 fit; put long values",
        ),
        ({"command": ["x", "{index}" * 1000], "array": "0-9999"}, "array makes 10,000 jobs whose requests have "),
        (
            {"env": {"A": "x" * 60_000}, "matrix": {"a": list(range(600))}},
            "matrix makes 600 jobs whose requests have 36,",
        ),
        ({"matrix": {"a": ["1", 1]}}, "matrix has a value of a twice"),
        ({"matrix": {"a": list(range(101)), "b": list(range(100))}}, "matrix has 10,100 combinations"),
        ({"tags": ["two words"]}, "has characters that cannot be there: ' '"),
    ],
)
def test_arrays_and_tags_that_cannot_be_are_refused(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(WrongField, match=words.replace("[", r"\[")):
        request_of({"command": ["x"], **fields})


def test_the_extent_of_an_array_is_that_of_its_jobs() -> None:
    given = {"command": ["x", "{a}-{index}", "{a}{b}"], "matrix": {"a": ["1", "three"], "b": [0.5, 10, "abc"]}}
    jobs, characters = extent(given)
    made = all_members([given], 0)
    words = sum(len(word) for one in made for word in one["command"][1:])
    shorter = {**given, "command": ["x", "", ""]}
    assert (jobs, characters - extent(shorter)[1]) == (6, words)


def test_variables_of_a_shell_are_left_to_it() -> None:
    (job,) = all_members([{"command": ["sh", "-c", "echo ${lr} {lr} $x{lr} ${index}"], "matrix": {"lr": [0.1]}}], 0)
    assert job["command"][2] == "echo ${lr} 0.1 $x0.1 ${index}"


@pytest.mark.parametrize("fields", [{"array": "0-9999"}, {"env": {"A": "x" * 9000}, "array": "0-2999"}])
def test_a_submission_is_refused_at_its_first_array_too_many(fields: dict[str, Any]) -> None:
    """The last job is invalid and is not reached: a small body costs no more than the jobs that it may have."""
    request = {"command": ["x"], **fields}
    with pytest.raises(WrongField, match="jobs has more than 10,000 jobs with the members of its arrays, or more than"):
        SUBMISSION.read({"jobs": [request, request, {"command": []}]})


def test_words_of_a_matrix_that_cannot_be_are_refused() -> None:
    for words in (["lr"], ["lr=1", "lr=2"]):
        with pytest.raises(InputError, match="write NAME=VALUE,VALUE once for each name"):
            parse_matrix(words)
    with pytest.raises(InputError, match="in several parts"):
        all_members([{"command": ["x"], "array": "0-5999"}] * 2, 0)
    assert parse_array("0-19%4") == (list(range(20)), 4)


@pytest.mark.parametrize("weight", [1e9, 0.0], ids=["log", "snapshot"])
def test_no_more_members_run_at_once_than_the_array_allows_also_after_a_restart(cluster: Make, weight: float) -> None:
    c = cluster((4,), snapshot_weight=weight)
    first, *_ = c.submit({}, {"array": "0-4%2"})[1:]
    members = range(first, first + 5)
    c.pass_s(2.2)
    assert states(c, members) == {"running": 2, "waiting": 3}
    assert reason(c, 5) == "its array a-1 runs at most 2 jobs at once"
    assert c.engine.status(c.now).wanted.gpus == 3, "members that may not run ask for no GPUs"
    assert c.engine.tick(c.now) > c.now, "nothing is due"
    c.restart()
    c.nodes[0].end(1, then_s=3.3)
    assert states(c, members) == {"running": 2, "waiting": 2, "finished": 1}
    c.engine.requeue(2, c.now, by="ann")  # it keeps its turn
    c.pass_s(2.2)
    assert [c.state(job) for job in members] == ["finished", "running", "running", "waiting", "waiting"]
    c.engine.cancel(3, c.now)
    c.pass_s(2.2)
    assert [c.state(job) for job in members] == ["finished", "running", "cancelled", "running", "waiting"]


def test_a_held_member_leaves_its_turn_to_the_next_one(cluster: Make) -> None:
    c = cluster((1,), jobs=[{}, {"array": "0-2%1"}], then_s=2.2)
    c.engine.update(1, {"hold": True}, c.now, by="ann")
    c.nodes[0].end(0, then_s=2.2)
    assert [c.state(job) for job in range(4)] == ["finished", "waiting", "running", "waiting"]
    c.engine.update(1, {"hold": False}, c.now, by="ann")
    c.pass_s(1.1)
    assert reason(c, 1) == "its array a-1 runs at most 1 job at once"
    c.nodes[0].end(2, then_s=2.2)
    assert [c.state(job) for job in range(4)] == ["finished", "running", "finished", "waiting"]


@pytest.mark.parametrize(
    ("field", "codes", "state"),
    [("after", (0, 0), "running"), ("after", (0, 1), "failed"), ("after_any", (0, 1), "running")],
)
def test_a_job_after_an_array_waits_for_all_members(
    cluster: Make, field: str, codes: tuple[int, int], state: str
) -> None:
    c = cluster((2,), jobs=[{"array": "0-1", "retries": 0}])
    c.nodes[0].end(0, codes[0], then_s=2.2)
    (job,) = c.submit({field: ["a-0"]})  # of which a member has ended
    c.pass_s(1.1)
    assert reason(c, job) == f"waits for a-0 (--{field.replace('_', '-')})"
    c.restart()
    c.nodes[0].end(1, codes[1], then_s=3.3)
    assert c.state(job) == state
    if state == "failed":
        with pytest.raises(InputError, match="j-1 has failed, so this job can never start"):
            c.submit({field: ["a-0"]})
        c.submit({"after_fail": ["a-0.1"]})


@pytest.mark.parametrize("weight", [1e9, 0.0], ids=["log", "snapshot"])
def test_an_array_after_an_array_costs_their_sum_and_not_their_product(cluster: Make, weight: float) -> None:
    c = cluster((1,), snapshot_weight=weight)
    c.submit({"name": "s", "array": "0-79"})
    for job in range(40):
        c.engine.cancel(job, c.now)
    c.pass_s(1.1)
    queries: list[str] = []
    sa.event.listen(c.store._readers, "before_cursor_execute", lambda *given: queries.append(given[2]))
    first, *_, last = c.submit({"after_any": ["a-0"], "array": "0-79"})
    assert len(queries) < 20
    c.pass_s(1.1)
    c.restart()
    waiting = c.engine.state.jobs[last]
    assert (waiting.waits_for, c.engine.state.open_members) == ({"a-0": "after_any"}, {"a-0": set(range(40, 80))})
    assert len(json.dumps(c.engine.state.to_json())) < 150_000
    for job in range(40, 79):
        c.engine.cancel(job, c.now)
    c.pass_s(2.2)
    assert reason(c, last) == "waits for a-0 (--after-any)"
    c.engine.cancel(79, c.now)
    c.pass_s(2.2)
    assert (c.state(first), c.state(last)) == ("running", "waiting")
    assert not c.engine.state.jobs[last].waits_for
    assert not c.engine.state.open_members


def test_members_are_named_once_and_arrays_do_not_wait_in_circles() -> None:
    arrays = {"a-0": [0, 1, 2], "a-0.1": [1]}
    for fields in ({"after": ["a-0", "j-1"]}, {"after": ["a-0.1"], "after_any": ["a-0"]}, {"after": ["j-1", "a-0.1"]}):
        with pytest.raises(InputError, match="twice, or beside after; name each job once"):
            dependencies([fields], 5, arrays)
    assert dependencies([{"after": ["a-0.1"], "after_any": ["j-2"]}], 5, arrays)[0] == [
        {"j-1": "after", "j-2": "after_any"}
    ]
    given = [{"name": "s", "command": ["x"], "array": "0-1", "after": ["t"]}, {"name": "t", "after": ["s"]}]
    with pytest.raises(InputError, match=r"in a circle: (s -> t -> s|t -> s -> t);"):
        dependencies(all_members([{"command": ["x"], **one} for one in given], 7), 7)


def test_names_to_wait_for_are_counted_before_they_are_looked_up(cluster: Make) -> None:
    c = cluster((1,))
    c.submit(*[{}] * 1000)
    with pytest.raises(InputError, match="name 101,000 jobs in all 101 jobs, at most 100,000 may be named; name an"):
        c.submit({"array": "0-100", "after_any": [f"j-{job}" for job in range(1000)]})


def test_jobs_of_a_file_wait_for_an_array_by_its_name(cluster: Make) -> None:
    c = cluster((2,))
    c.submit({"name": "report", "after": ["sweep"]}, {"name": "sweep", "array": "0-11"})
    assert reason(c, 0) == "waits for a-1 (--after)"
    with pytest.raises(InputError, match="after is 'a-7', needs a job such as j-3; there is none"):
        c.submit({"after": ["a-7"]})
    two = all_members([{"name": "s", "command": ["x"], "array": "0-1"}] * 2 + [{"after": ["s"], "command": ["x"]}], 0)
    with pytest.raises(InputError, match="there are several of this name"):
        dependencies(two, 0)


def test_a_submission_that_is_sent_again_has_its_array_already(cluster: Make) -> None:
    c = cluster((1,))
    request = {"command": ["x"], "array": "0-2"}
    numbers = c.engine.submit([request], owner="ann", now_s=c.now, key="k")
    assert c.engine.submit([request], owner="ann", now_s=c.now, key="k") == numbers == [0, 1, 2]
    with pytest.raises(Conflict, match="another submission"):
        c.engine.submit([{**request, "array": "0-3"}], owner="ann", now_s=c.now, key="k")


def test_an_array_is_one_row_of_those_that_are_searched(cluster: Make) -> None:
    c = cluster((1,))
    c.submit({"array": "0-2", "tags": ["Sweep", "vision"]}, {}, {"array": "4-5", "tags": ["sweeping"]}, then_s=2.2)

    def found(**chosen: Any) -> list[int]:
        return [row.number for row in c.store.jobs(**chosen)]

    assert found(one_each=True) == [5, 3, 2]
    assert found(one_each=True, states=["running"]) == [0]
    assert found(one_each=True, tags=["sweep"]) == [2]
    assert found(tags=["sweep", "vision"]) == [2, 1, 0]
    assert found(tags=["swe%"]) == []
    assert found(array="a-4") == [5, 4]
    assert found(text="a-4") == [5, 4]
    assert c.store.members(["a-4", "a-9"]) == {"a-4": {4: 4, 5: 5}, "a-9": {}}
    assert [row.array_index for row in c.store.jobs(array="a-0")] == [2, 1, 0]
    c.nodes[0].end(0, then_s=2.2)
    assert c.store.ended_members(["a-0", "a-4"]) == {"a-0": {"finished": 1}, "a-4": {}}
    assert c.engine.open_members(["a-0"]) == {"a-0": {"running": 1, "waiting": 1, "gpus": 1}}


# -- changes of jobs that wait or run: requeue, priority, class, deadline, size; who did it, and what preempted whom ---
#
# The log of every cluster here is replayed at the end of its test, decision by decision.


def events(c: Cluster, kind: str) -> list[dict[str, Any]]:
    return [json.loads(row.entry) for row in c.store.entries() if row.type == kind]


def column(c: Cluster, name: str, job: int) -> Any:
    return c.controller.job_store.columns[name][job]


def epoch(c: Cluster, job: int) -> int:
    return c.engine.state.jobs[job].epoch


def said(c: Cluster, kind: str) -> list[str]:
    return [in_words(one) for one in events(c, kind)]


def test_a_requeued_job_saves_a_checkpoint_and_waits_again_without_a_failure(cluster: Make) -> None:
    c = cluster((1,), "fifo", jobs=[{}, {}], then_s=2.2)
    c.nodes[0].obeys = False
    c.engine.requeue(0, c.now, by="ann")
    run = next(one for one in c.nodes[0].sync().attempts if one.job == 0)
    assert (run.stop, run.grace_s) == (True, c.options.grace_s)
    assert c.state(0) == "stopping"
    c.nodes[0].obeys = True
    c.pass_s(3.3)
    assert epoch(c, 0) == 2  # first come, first served: it is the first again
    counted = [int(column(c, name, 0)) for name in ("failures", "preemptions", "starts")]
    assert counted == [0, 0, 2]
    stored = c.stored(0)
    assert [(one.state, one.reason) for one in stored.attempts] == [("preempted", "requeued by ann"), ("running", None)]
    assert said(c, "RequeueAsked") == ["j-0 was sent back to the queue by ann"]
    assert said(c, "StopAsked") == ["j-0 was asked to stop: requeued by ann"]


def test_a_requeue_lets_a_job_of_higher_priority_go_first(cluster: Make) -> None:
    c = cluster((1,), "fifo", jobs=[{}, {"priority": 1.0}], then_s=2.2)
    c.engine.update(0, {"priority": -1.0}, c.now, by="root")
    c.engine.requeue(0, c.now, by="ann")
    c.pass_s(2.2)
    assert (c.state(0), c.state(1)) == ("waiting", "running")


@pytest.mark.parametrize("weight", [1e9, 0.0], ids=["log", "snapshot"])
def test_a_request_that_is_sent_again_does_nothing_also_after_a_restart(cluster: Make, weight: float) -> None:
    c = cluster((1,), "fifo", snapshot_weight=weight, jobs=[{}], then_s=2.2)
    c.engine.requeue(0, c.now, by="ann", key="a")
    c.engine.update(0, {"priority": 2.0}, c.now, by="ann", key="b")
    c.pass_s(3.3)
    assert epoch(c, 0) == 2
    before = len(list(c.store.entries()))
    c.restart()
    c.engine.update(0, {"priority": 7.0}, c.now, by="root", key="b")  # another user's key is another one
    for _ in range(2):
        c.engine.requeue(0, c.now, by="ann", key="a")
        c.engine.update(0, {"priority": 2.0}, c.now, by="ann", key="b")
    with pytest.raises(Conflict, match="another change"):
        c.engine.requeue(0, c.now, by="ann", key="b")
    assert [row.type for row in list(c.store.entries())[before:]] == ["UpdateAsked", "JobUpdated", "ReplanDue"]
    assert column(c, "priority", 0) == 7.0
    c.pass_s(2.2)
    assert epoch(c, 0) == 2


def test_a_request_that_changed_nothing_still_does_nothing_when_it_is_sent_again(cluster: Make) -> None:
    c = cluster((1,), "fifo", jobs=[{}], then_s=2.2)
    profiled = c.engine.state.jobs[0].profiled = True
    c.engine.update(0, {"priority": 0.0, "gpus": 1}, c.now, by="ann", key="a")  # what it asked for anyway
    assert c.engine.state.jobs[0].profiled is profiled
    c.engine.update(0, {"priority": 5.0}, c.now, by="ann", key="b")
    c.restart()
    before = len(list(c.store.entries()))
    c.engine.update(0, {"priority": 0.0, "gpus": 1}, c.now, by="ann", key="a")
    assert len(list(c.store.entries())) == before
    assert column(c, "priority", 0) == 5.0
    c.engine.update(0, {"priority": 5.0}, c.now, by="ann")  # without a key, nothing is written
    assert len(list(c.store.entries())) == before


@pytest.mark.parametrize("weight", [1e9, 0.0], ids=["log", "snapshot"])
@pytest.mark.parametrize("act", ["requeue", "grow", "priority"])
def test_a_service_that_dies_right_after_a_request_goes_on_with_it(cluster: Make, act: str, weight: float) -> None:
    c = cluster((2,), "fifo", snapshot_weight=weight, jobs=[{}, {"gpus": 2}], then_s=2.2)
    if act == "requeue":
        c.engine.requeue(0, c.now, by="ann")
    else:
        c.engine.update(0, {"gpus": 2} if act == "grow" else {"priority": 3.0}, c.now, by="ann")
    before = c.engine.state.to_json()
    c.restart()
    assert c.engine.state.to_json() == before
    assert c.state(0) == ("running" if act == "priority" else "stopping")
    c.pass_s(4.4)
    again = {"requeue": (2, 1), "grow": (2, 2), "priority": (1, 1)}[act]
    assert (epoch(c, 0), len(c.engine.state.jobs[0].attempt.gpus)) == again  # type: ignore[union-attr]


def test_a_priority_counts_at_the_next_decision_and_touches_no_process(cluster: Make) -> None:
    c = cluster((1,), "fifo", jobs=[{}, {}, {}], then_s=2.2)
    before = c.nodes[0].sync().version
    c.engine.update(2, {"priority": 5.0, "deadline_s": 3600.0}, c.now, by="root")
    assert c.nodes[0].sync().version == before
    assert said(c, "UpdateAsked") == ["root changed j-2: priority from default to 5, deadline_s from default to 3600"]
    c.pass_s(1.1)
    c.nodes[0].end(0, then_s=2.2)
    assert (c.state(0), c.state(1), c.state(2)) == ("finished", "waiting", "running")
    c.engine.update(2, {"deadline_s": None}, c.now, by="root")
    assert "deadline_s" not in c.engine.state.jobs[2].request
    c.engine.update(2, {"priority": 5.0, "class": None}, c.now, by="root")  # as it is: nothing to do
    assert len(events(c, "UpdateAsked")) == 2


def test_a_waiting_job_gets_another_size_at_once_and_a_running_one_from_its_checkpoint(cluster: Make) -> None:
    c = cluster((2,), "fifo", jobs=[{"gpus": 2}, {"gpus": 2}], then_s=2.2)
    c.engine.update(1, {"gpus": 1}, c.now, by="ann")
    assert int(column(c, "gpus", 1)) == int(column(c, "max_gpus", 1)) == 1
    assert c.state(0) == "running"
    c.engine.update(0, {"gpus": 1}, c.now, by="ann")
    assert c.state(0) == "stopping"
    c.pass_s(4.4)
    assert [len(c.engine.state.jobs[job].attempt.gpus) for job in (0, 1)] == [1, 1]  # type: ignore[union-attr]
    assert (epoch(c, 0), epoch(c, 1)) == (2, 1)
    assert said(c, "StopAsked") == ["j-0 was asked to stop: resized by ann, gpus 2 to 1"]
    assert int(column(c, "preemptions", 0)) == int(column(c, "failures", 0)) == 0


def test_an_elastic_job_stays_where_it_is_while_its_new_bounds_allow_it(cluster: Make) -> None:
    c = cluster((4,), "fifo", jobs=[{"gpus": 2, "min_gpus": 1, "max_gpus": 4}], then_s=2.2)
    held = len(c.engine.state.jobs[0].attempt.gpus)  # type: ignore[union-attr]
    c.engine.update(0, {"max_gpus": max(held, 2)}, c.now, by="ann")
    c.pass_s(2.2)
    assert epoch(c, 0) == 1
    c.engine.update(0, {"min_gpus": 3 if held < 3 else None, "gpus": 3, "max_gpus": 3}, c.now, by="ann")
    c.pass_s(4.4)
    assert epoch(c, 0) == 2
    assert len(c.engine.state.jobs[0].attempt.gpus) == 3  # type: ignore[union-attr]


def test_the_speed_of_another_size_is_measured_again(cluster: Make) -> None:
    c = cluster((2,), "fifo", jobs=[{"iterations": 100.0, "profile": {"gpu": 0.5}}, {"iterations": 100.0}], then_s=2.2)
    assert column(c, "iteration_s", 0) == 0.5
    c.engine.update(0, {"priority": 1.0}, c.now, by="ann")
    assert column(c, "iteration_s", 0) == 0.5
    job = c.engine.state.jobs[1]
    job.profiled = True
    c.controller.job_store.columns["iteration_s"][1] = 0.25  # type: ignore[union-attr]
    c.engine.update(1, {"gpus": 2}, c.now, by="ann")
    assert (job.profiled, str(column(c, "iteration_s", 1))) == (False, "nan")


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"gpus": 9}, "job j-0: needs 9 GPUs.*; ask for less"),
        ({"gpus": 2}, "job j-0: needs 2 GPUs; the quota of project default is 1"),
        ({"min_gpus": 3}, "job j-0: min_gpus 3, gpus 1: needs min_gpus <= gpus"),
        ({"gpus": 1.5}, "job j-0: gpus 1.5: needs a whole number of GPUs, 1 or more"),
        ({"max_gpus": True}, "job j-0: max_gpus True: needs a whole number"),
        ({"gpus": 0}, "job j-0: gpus 0: needs a whole number"),
        (
            {"command": ["false"]},
            "command of a job cannot be changed; these can: priority, class, deadline_s, time_limit_s, hold, gpus",
        ),
    ],
)
def test_what_cannot_be_is_refused_with_what_would_work(cluster: Make, fields: dict[str, Any], why: str) -> None:
    c = cluster((2,), settle_s=0.0)
    c.engine.set_project("default", gpu_quota=1, weight=1.0, now_s=c.now)
    c.submit({}, then_s=2.2)
    before = len(list(c.store.entries()))
    with pytest.raises(InputError, match=why):
        c.engine.update(0, fields, c.now, by="ann")
    assert len(list(c.store.entries())) == before


def test_jobs_that_have_ended_or_never_were(cluster: Make) -> None:
    c = cluster((1,), jobs=[{}], then_s=2.2)
    c.engine.cancel(0, c.now, by="root")
    c.pass_s(2.2)
    with pytest.raises(Conflict, match="already ended; run it again as a new job: plait clone j-0"):
        c.engine.requeue(0, c.now, by="ann")
    with pytest.raises(Conflict, match="plait clone j-0"):
        c.engine.update(0, {"priority": 1.0}, c.now, by="ann")
    with pytest.raises(LookupError, match="no job j-7"):
        c.engine.requeue(7, c.now, by="ann")
    assert said(c, "JobCancelled") == ["j-0 was cancelled by root"]


def test_work_is_lost_only_if_that_is_meant(cluster: Make) -> None:
    c = cluster((2,), "fifo", jobs=[{}], then_s=0.6)
    (key,) = c.nodes[0].seen
    c.nodes[0].seen[key] = Seen(*key, RUNNING, pid=7, saves="nothing")
    c.pass_s(2.2)
    for act in (lambda: c.engine.requeue(0, c.now, by="ann"), lambda: c.engine.update(0, {"gpus": 2}, c.now, by="ann")):
        with pytest.raises(Conflict, match=r"cannot resume from a checkpoint.*--may-lose-work"):
            act()
    with pytest.raises(Conflict, match=r"^j-0 would lose .* and begin at the beginning; nothing was done"):
        c.engine.drain("n0", c.now)
    assert not c.engine.state.nodes["n0"].drained
    c.engine.update(0, {"priority": 1.0}, c.now, by="ann")
    assert c.state(0) == "running"
    c.engine.requeue(0, c.now, by="ann", may_lose_work=True)
    c.nodes[0].seen[key] = replace(c.nodes[0].seen[key], held_s=2.0)
    c.pass_s(3.3)
    assert epoch(c, 0) == 2
    assert set(c.engine.status(c.now).lost.work_gpu_s) == {"requeued"}


@pytest.mark.parametrize(
    ("seen", "text"),
    [
        (
            {"saves": "nothing", "held_s": 75.0},
            "1 min 15 s of work on 2 GPUs (150 GPU-seconds) and begin at the beginning",
        ),
        (
            {"saves": "nothing", "held_s": 75.0, "steps": 30.0, "last_step_s": 70.0, "first_step_s": 5.0},
            "30 steps, 1 min 15 s of work on 2 GPUs (150 GPU-seconds) and begin at the beginning",
        ),
        (
            {"saves": "failed", "held_s": 75.0, "steps": 30.0, "step_s": 1.0, "last_step_s": 70.0, "first_step_s": 5.0,
             "checkpoint_steps": 20.0, "checkpoint_age_s": 35.0},
            "10 steps, 30.0 s of work on 2 GPUs (60 GPU-seconds), since its newest checkpoint",
        ),
    ],
)  # fmt: skip
def test_what_a_stop_would_lose_has_one_answer_for_all_who_ask(
    cluster: Make, seen: dict[str, object], text: str
) -> None:
    c = cluster((2, 1), "fifo")
    c.submit({"gpus": 2}, {}, owner="ann", then_s=1.6)
    assert c.engine.losses() == Losses([], "")  # both save when they are stopped
    for rank in (0, 1):
        c.nodes[0].seen[0, 1, rank] = Seen(0, 1, rank, RUNNING, pid=7, **seen)  # type: ignore[arg-type]
    c.pass_s(0.6)
    found = c.engine.losses()
    assert found.text == f"j-0 would lose {text}"
    assert [one.text for one in found.losses] == [found.text]
    assert c.engine.losses(nodes=["n0"]) == c.engine.losses(jobs=[0]) == c.engine.losses(owner="ann") == found
    assert c.engine.losses(nodes=["n1"]).losses == c.engine.losses(owner="ben").losses == []
    with pytest.raises(LookupError, match="no node 'n7'"):
        c.engine.losses(nodes=["n7"])
    for act in (
        lambda: c.engine.requeue(0, c.now, by="ann"),
        lambda: c.engine.update(0, {"gpus": 1}, c.now, by="ann"),
        lambda: c.engine.drain("n0", c.now),
    ):
        with pytest.raises(Conflict, match=re.escape(found.text)):
            act()
    c.pass_s(12.0)
    c.restart()  # the agents have not reported to this service yet
    (after,) = c.engine.losses(nodes=["n0"]).losses
    assert (after.id, after.gpus) == ("j-0", 2)


def test_a_job_that_no_node_has_room_for_yet_can_be_changed_too(cluster: Make) -> None:
    c = cluster((1,), settle_s=60.0, jobs=[{"gpus": 4}])
    assert not c.engine.state.jobs[0].admitted
    c.engine.requeue(0, c.now, by="ann")
    c.engine.update(0, {"gpus": 1}, c.now, by="ann")
    c.pass_s(2.2)
    assert c.state(0) == "running"
    assert events(c, "JobUpdated") == events(c, "JobRequeued") == []


def test_a_job_that_became_guaranteed_gets_gpus_of_its_own_and_one_that_became_opportunistic_lends_them(
    cluster: Make,
) -> None:
    half = {"profile": {"gpu": 0.1, "cpu": 0.1}}
    c = cluster((1,), "antman", jobs=[half], then_s=2.2)
    c.submit({**half, "class": "opportunistic"}, then_s=2.2)
    assert [c.engine.state.jobs[job].attempt.guest for job in (0, 1)] == [False, True]  # type: ignore[union-attr]
    c.engine.update(0, {"class": "opportunistic"}, c.now, by="ann")
    c.engine.update(1, {"class": "guaranteed"}, c.now, by="ann")
    c.pass_s(6.6)
    assert events(c, "StopAsked") == []  # they change places without a restart
    attempts = [c.engine.state.jobs[job].attempt for job in (0, 1)]
    assert all(one is not None and not one.over for one in attempts)
    assert [one.guest for one in attempts] == [True, False]  # type: ignore[union-attr]


def test_whoever_was_preempted_learns_for_whom_and_why(cluster: Make) -> None:
    c = cluster((1,), policy="las:quantum_s=1", jobs=[{}])
    c.nodes[0].report(0, steps=10.0, held_s=1.0)
    c.submit({}, owner="bob", then_s=9.2)
    assert (c.state(0), c.state(1)) == ("waiting", "running")
    why = "preempted for j-1 of bob; place 1 in its order against 2; policy las:quantum_s=1"
    found = c.engine.explain(0, c.now).last_stop
    assert (found.attempt, found.why, found.for_) == (1, why, ["j-1"])
    stored = c.stored(0)
    assert stored.attempts[0].reason == why
    assert said(c, "StopAsked") == [f"j-0 was asked to stop: {why}"]
    c.restart()
    assert c.engine.explain(0, c.now).last_stop == found
