"""Arrays of jobs and tags: what is submitted once, listed as one row, and changed together.

The log of every cluster here is replayed at the end of its test, decision by decision.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa
from live_cases import Cluster

from plait.core.errors import Conflict, InputError
from plait.live.protocol.arrays import all_members, extent, parse_array, parse_matrix
from plait.live.protocol.job_file import WrongField, request_of
from plait.live.protocol.requests import dependencies
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
    c.nodes[0].end(1)
    c.pass_s(3.3)
    assert states(c, members) == {"running": 2, "waiting": 2, "finished": 1}
    c.engine.requeue(2, c.now, by="ann")  # it keeps its turn
    c.pass_s(2.2)
    assert [c.state(job) for job in members] == ["finished", "running", "running", "waiting", "waiting"]
    c.engine.cancel(3, c.now)
    c.pass_s(2.2)
    assert [c.state(job) for job in members] == ["finished", "running", "cancelled", "running", "waiting"]


def test_a_held_member_leaves_its_turn_to_the_next_one(cluster: Make) -> None:
    c = cluster((1,))
    c.submit({}, {"array": "0-2%1"})
    c.pass_s(2.2)
    c.engine.update(1, {"hold": True}, c.now, by="ann")
    c.nodes[0].end(0)
    c.pass_s(2.2)
    assert [c.state(job) for job in range(4)] == ["finished", "waiting", "running", "waiting"]
    c.engine.update(1, {"hold": False}, c.now, by="ann")
    c.pass_s(1.1)
    assert reason(c, 1) == "its array a-1 runs at most 1 job at once"
    c.nodes[0].end(2)
    c.pass_s(2.2)
    assert [c.state(job) for job in range(4)] == ["finished", "running", "finished", "waiting"]


@pytest.mark.parametrize(
    ("field", "codes", "state"),
    [("after", (0, 0), "running"), ("after", (0, 1), "failed"), ("after_any", (0, 1), "running")],
)
def test_a_job_after_an_array_waits_for_all_members(
    cluster: Make, field: str, codes: tuple[int, int], state: str
) -> None:
    c = cluster((2,))
    c.submit({"array": "0-1", "retries": 0})
    c.pass_s(1.1)
    c.nodes[0].end(0, codes[0])
    c.pass_s(2.2)
    (job,) = c.submit({field: ["a-0"]})  # of which a member has ended
    c.pass_s(1.1)
    assert reason(c, job) == f"waits for a-0 (--{field.replace('_', '-')})"
    c.restart()
    c.nodes[0].end(1, codes[1])
    c.pass_s(3.3)
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
    c.submit({"array": "0-2", "tags": ["Sweep", "vision"]}, {}, {"array": "4-5", "tags": ["sweeping"]})
    c.pass_s(2.2)

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
    c.nodes[0].end(0)
    c.pass_s(2.2)
    assert c.store.ended_members(["a-0", "a-4"]) == {"a-0": {"finished": 1}, "a-4": {}}
    assert c.engine.open_members(["a-0"]) == {"a-0": {"running": 1, "waiting": 1, "gpus": 1}}
