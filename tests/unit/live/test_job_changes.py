"""Changes of jobs that wait or run: requeue, priority, class, deadline, size; who did it, and what preempted whom.

The log of every cluster here is replayed at the end of its test, decision by decision.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from live_cases import Cluster

from plait.core.errors import Conflict, InputError
from plait.live.api.cluster import Losses
from plait.live.protocol.wire import RUNNING, Seen
from plait.live.scheduler.records.event_words import in_words

Make = Callable[..., Cluster]


def events(c: Cluster, kind: str) -> list[dict[str, Any]]:
    return [json.loads(row.entry) for row in c.store.entries() if row.type == kind]


def column(c: Cluster, name: str, job: int) -> Any:
    assert c.engine.state.controller is not None
    return c.engine.state.controller.job_store.columns[name][job]


def epoch(c: Cluster, job: int) -> int:
    return c.engine.state.jobs[job].epoch


def said(c: Cluster, kind: str) -> list[str]:
    return [in_words(one) for one in events(c, kind)]


def test_a_requeued_job_saves_a_checkpoint_and_waits_again_without_a_failure(cluster: Make) -> None:
    c = cluster((1,), "fifo")
    c.submit({}, {})
    c.pass_s(2.2)
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
    c = cluster((1,), "fifo")
    c.submit({}, {"priority": 1.0})
    c.pass_s(2.2)
    c.engine.update(0, {"priority": -1.0}, c.now, by="root")
    c.engine.requeue(0, c.now, by="ann")
    c.pass_s(2.2)
    assert (c.state(0), c.state(1)) == ("waiting", "running")


@pytest.mark.parametrize("weight", [1e9, 0.0], ids=["log", "snapshot"])
def test_a_request_that_is_sent_again_does_nothing_also_after_a_restart(cluster: Make, weight: float) -> None:
    c = cluster((1,), "fifo", snapshot_weight=weight)
    c.submit({})
    c.pass_s(2.2)
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
    c = cluster((1,), "fifo")
    c.submit({})
    c.pass_s(2.2)
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
    c = cluster((2,), "fifo", snapshot_weight=weight)
    c.submit({}, {"gpus": 2})
    c.pass_s(2.2)
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
    c = cluster((1,), "fifo")
    c.submit({}, {}, {})
    c.pass_s(2.2)
    before = c.nodes[0].sync().version
    c.engine.update(2, {"priority": 5.0, "deadline_s": 3600.0}, c.now, by="root")
    assert c.nodes[0].sync().version == before
    assert said(c, "UpdateAsked") == ["root changed j-2: priority from default to 5, deadline_s from default to 3600"]
    c.pass_s(1.1)
    c.nodes[0].end(0)
    c.pass_s(2.2)
    assert (c.state(0), c.state(1), c.state(2)) == ("finished", "waiting", "running")
    c.engine.update(2, {"deadline_s": None}, c.now, by="root")
    assert "deadline_s" not in c.engine.state.jobs[2].request
    c.engine.update(2, {"priority": 5.0, "class": None}, c.now, by="root")  # as it is: nothing to do
    assert len(events(c, "UpdateAsked")) == 2


def test_a_waiting_job_gets_another_size_at_once_and_a_running_one_from_its_checkpoint(cluster: Make) -> None:
    c = cluster((2,), "fifo")
    c.submit({"gpus": 2}, {"gpus": 2})
    c.pass_s(2.2)
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
    c = cluster((4,), "fifo")
    c.submit({"gpus": 2, "min_gpus": 1, "max_gpus": 4})
    c.pass_s(2.2)
    held = len(c.engine.state.jobs[0].attempt.gpus)  # type: ignore[union-attr]
    c.engine.update(0, {"max_gpus": max(held, 2)}, c.now, by="ann")
    c.pass_s(2.2)
    assert epoch(c, 0) == 1
    c.engine.update(0, {"min_gpus": 3 if held < 3 else None, "gpus": 3, "max_gpus": 3}, c.now, by="ann")
    c.pass_s(4.4)
    assert epoch(c, 0) == 2
    assert len(c.engine.state.jobs[0].attempt.gpus) == 3  # type: ignore[union-attr]


def test_the_speed_of_another_size_is_measured_again(cluster: Make) -> None:
    c = cluster((2,), "fifo")
    c.submit({"iterations": 100.0, "profile": {"gpu": 0.5}}, {"iterations": 100.0})
    c.pass_s(2.2)
    assert column(c, "iteration_s", 0) == 0.5
    c.engine.update(0, {"priority": 1.0}, c.now, by="ann")
    assert column(c, "iteration_s", 0) == 0.5
    job = c.engine.state.jobs[1]
    job.profiled = True
    c.engine.state.controller.job_store.columns["iteration_s"][1] = 0.25  # type: ignore[union-attr]
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
    c.submit({})
    c.pass_s(2.2)
    before = len(list(c.store.entries()))
    with pytest.raises(InputError, match=why):
        c.engine.update(0, fields, c.now, by="ann")
    assert len(list(c.store.entries())) == before


def test_jobs_that_have_ended_or_never_were(cluster: Make) -> None:
    c = cluster((1,))
    c.submit({})
    c.pass_s(2.2)
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
    c = cluster((2,), "fifo")
    c.submit({})
    c.pass_s(0.6)
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
    c.submit({"gpus": 2}, {}, owner="ann")
    c.pass_s(1.6)
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
    c = cluster((1,), settle_s=60.0)
    c.submit({"gpus": 4})
    c.pass_s(1.1)
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
    c = cluster((1,), "antman")
    c.submit(half)
    c.pass_s(2.2)
    c.submit({**half, "class": "opportunistic"})
    c.pass_s(2.2)
    assert [c.engine.state.jobs[job].attempt.guest for job in (0, 1)] == [False, True]  # type: ignore[union-attr]
    c.engine.update(0, {"class": "opportunistic"}, c.now, by="ann")
    c.engine.update(1, {"class": "guaranteed"}, c.now, by="ann")
    c.pass_s(6.6)
    assert events(c, "StopAsked") == []  # they change places without a restart
    attempts = [c.engine.state.jobs[job].attempt for job in (0, 1)]
    assert all(one is not None and not one.over for one in attempts)
    assert [one.guest for one in attempts] == [True, False]  # type: ignore[union-attr]


def test_whoever_was_preempted_learns_for_whom_and_why(cluster: Make) -> None:
    c = cluster((1,), policy="las:quantum_s=1")
    c.submit({})
    c.pass_s()
    c.nodes[0].report(0, steps=10.0, held_s=1.0)
    c.submit({}, owner="bob")
    c.pass_s(9.2)
    assert (c.state(0), c.state(1)) == ("waiting", "running")
    why = "preempted for j-1 of bob; place 1 in its order against 2; policy las:quantum_s=1"
    found = c.engine.explain(0, c.now).last_stop
    assert (found.attempt, found.why, found.for_) == (1, why, ["j-1"])
    stored = c.stored(0)
    assert stored.attempts[0].reason == why
    assert said(c, "StopAsked") == [f"j-0 was asked to stop: {why}"]
    c.restart()
    assert c.engine.explain(0, c.now).last_stop == found
