"""Time limits: the request to save, the end, reservations and forecasts; and jobs that wait on purpose.

The log of every cluster here is replayed at the end of its test, decision by decision."""

import json
import re
import time
from collections.abc import Callable
from datetime import datetime
from typing import Any

import pytest
from live_cases import Cluster

from plait.cli.submission import parse_begin
from plait.core.errors import Conflict, InputError
from plait.live.protocol.job_file import check, parse_seconds
from plait.live.protocol.requests import dependencies, spec_of
from plait.live.protocol.wire import PREEMPTED
from plait.live.scheduler.explain.durations import History, draw
from plait.live.scheduler.explain.queue_arrays import Who, arrays_of
from plait.live.scheduler.records.event_words import in_words

Make = Callable[..., Cluster]
REACHED = "time limit of 10.0 s (--time) reached"


def run(c: Cluster, seconds: float, job: int = 0, before_s: float = 0.0) -> None:
    """Time passes, in which the job holds its GPUs; `before_s`: what its attempt has held them so far."""
    for tenth in range(1, round(seconds * 2) + 1):
        for node in c.nodes:
            node.report(job, held_s=before_s + tenth / 2)
        c.pass_s(0.5)


def stops(c: Cluster) -> list[dict[str, Any]]:
    return [json.loads(one.entry) for one in c.store.entries() if one.type == "StopAsked"]


def test_a_job_fails_at_its_time_limit_with_a_reason_that_names_the_option(cluster: Make) -> None:
    c = cluster((1,), jobs=[{"time_limit_s": 10.0}, {}], then_s=2.2)
    run(c, 9.5)
    assert c.state(0) == "running"
    assert c.engine.explain(0, c.now).limit_left_s == pytest.approx(0.5)
    run(c, 2.0, before_s=9.5)
    assert (c.state(0), c.stored(0).row.reason) == ("failed", REACHED)
    (attempt,) = c.stored(0).attempts
    assert (attempt.state, attempt.reason) == ("time limit", "time limit of 10.0 s (--time)")
    c.pass_s(2.2)
    assert c.state(1) == "running"  # its GPU is free again


def test_attempts_count_together_also_after_a_restart_of_the_service(cluster: Make) -> None:
    c = cluster((1,), snapshot_weight=0.0, jobs=[{"time_limit_s": 10.0}], then_s=2.2)
    run(c, 6.0)
    c.engine.requeue(0, c.now, by="ann")
    c.pass_s(3.3)
    c.restart(then_s=3.3)
    assert (c.state(0), c.stored(0).row.epoch) == ("running", 2)
    run(c, 3.5)
    assert c.state(0) == "running"
    run(c, 2.0, before_s=3.5)
    assert (c.state(0), c.stored(0).row.reason) == ("failed", REACHED)


def test_a_job_that_is_preempted_when_its_time_is_over_does_not_start_again(cluster: Make) -> None:
    c = cluster((1,), jobs=[{"time_limit_s": 10.0}], then_s=2.2)
    run(c, 9.5)
    c.nodes[0].obeys = False
    c.engine.requeue(0, c.now, by="ann")  # it saves its checkpoint until after its limit
    run(c, 2.0, before_s=9.5)
    c.nodes[0].obeys = True
    c.pass_s(2.2)
    assert (c.state(0), c.stored(0).row.epoch, c.stored(0).row.reason) == ("failed", 1, REACHED)


@pytest.mark.parametrize(("exit_code", "state"), [(0, "finished"), (1, "failed"), (PREEMPTED, "failed")])
def test_the_warning_gives_the_job_until_its_limit(cluster: Make, exit_code: int, state: str) -> None:
    c = cluster((1,), grace_s=2.0, jobs=[{"time_limit_s": 10.0, "signal_s": 4.0}], then_s=2.2)
    c.nodes[0].obeys = False
    run(c, 7.0)
    (asked,) = stops(c)
    assert (asked["why"], asked["grace_s"]) == ("time limit", 4.0)  # longer than the usual time for a checkpoint
    assert in_words(asked) == "j-0 was asked to stop: time limit of 10.0 s (--time)"
    assert next(one for one in c.nodes[0].sync().attempts if one.job == 0).grace_s == 4.0
    run(c, 1.0, before_s=7.0)
    c.nodes[0].obeys = True
    c.nodes[0].report(0, saves="yes", checkpoint_steps=5.0, checkpoint_age_s=1.0)
    c.nodes[0].end(0, exit_code, then_s=2.2)
    assert c.state(0) == state
    early = "ended 2.0 s before its time limit of 10.0 s (--time), at the warning (--signal); to go on from its "
    early += "checkpoint: plait clone j-0 --from-checkpoint"
    assert c.stored(0).row.reason == ("" if state == "finished" else early)


@pytest.mark.parametrize(("limit_s", "state"), [(None, "waiting"), (1000.0, "waiting"), (50.0, "running")])
def test_a_time_limit_lets_a_job_start_on_gpus_that_are_held_for_the_first_of_the_queue(
    cluster: Make, limit_s: float | None, state: str
) -> None:
    c = cluster((2,), jobs=[{"time_limit_s": 100.0}], then_s=2.2)
    c.submit({"gpus": 2, "priority": 1.0}, {} if limit_s is None else {"time_limit_s": limit_s}, then_s=2.2)
    assert [c.state(job) for job in range(3)] == ["running", "waiting", state]


@pytest.mark.parametrize("policy", ["fifo-backfill", "fifo"])
def test_a_job_that_ends_in_time_passes_jobs_that_do_not(cluster: Make, policy: str) -> None:
    c = cluster((2,), policy, jobs=[{"time_limit_s": 100.0}], then_s=2.2)
    c.submit({"gpus": 2, "priority": 1.0}, {"priority": 0.5}, {"time_limit_s": 1000.0}, {"time_limit_s": 50.0}, {})
    c.pass_s(2.2)
    passes = "waiting" if policy == "fifo" else "running"  # under fifo nobody passes the first
    assert [c.state(job) for job in range(6)] == ["running", "waiting", "waiting", "waiting", passes, "waiting"]
    columns = c.controller.job_store.columns
    assert sorted([1, 2, 3, 5], key=lambda job: columns["position"][job]) == [1, 2, 3, 5]  # all have their place
    c.nodes[0].end(0)
    c.nodes[0].end(4, then_s=2.2)
    assert c.state(1) == "running"


def test_forecasts_end_jobs_at_their_time_limit(cluster: Make) -> None:
    c = cluster((1,), jobs=[{"time_limit_s": 100.0}], then_s=2.2)
    c.submit({})
    run(c, 5.0)
    queue = arrays_of(c.engine.state.controller, lambda number: Who("ann", "net"))
    left_s, _ = draw(queue.unknown, History(), 100)
    assert left_s[:, 0].max() < 100.0
    assert left_s[:, 1].max() > 100.0


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"signal_s": 5.0}, r"signal_s is 5 s before the time limit \(--signal\), needs a time limit \(--time\)"),
        ({"time_limit_s": 60.0, "signal_s": 60.0}, r"needs a longer time limit than 60 s \(--time\)"),
    ],
)
def test_a_warning_needs_a_time_limit_that_is_longer(fields: dict[str, float], words: str) -> None:
    with pytest.raises(InputError, match=words):
        spec_of(0, {"command": ["true"], **fields}, owner="ann", project="", submit_s=0.0)


@pytest.mark.parametrize("text", ["60", "", "2 hours", "h", "1:30", "-1h", "1e3s"])
def test_a_duration_without_units_is_refused(text: str) -> None:
    assert parse_seconds("2w1d", "--for") == 15 * 86400.0
    with pytest.raises(InputError, match=r"--time is .*; write a duration with units, e.g. 90m, 2h, 1d12h or 2:00:00"):
        parse_seconds(text, "--time")


def test_job_files_have_durations_as_numbers_and_texts() -> None:
    job = check({"command": ["true"], "time_limit_s": "2h30m", "signal_s": 120}, "job.yaml")
    assert (job["time_limit_s"], job["signal_s"]) == (9000.0, 120)


def test_a_time_limit_is_changed_while_the_job_runs_until_it_is_reached(cluster: Make) -> None:
    c = cluster((1,), jobs=[{"time_limit_s": 10.0, "signal_s": 2.0}], then_s=2.2)
    run(c, 6.0)
    c.engine.update(0, {"time_limit_s": 20.0}, c.now, by="ann")
    c.restart()
    run(c, 8.0, before_s=6.0)
    assert c.state(0) == "running"
    with pytest.raises(InputError, match=r"signal_s is 2 s before .* needs a longer time limit than 1 s"):
        c.engine.update(0, {"time_limit_s": 1.0}, c.now, by="ann")
    c.engine.update(0, {"time_limit_s": 14.0}, c.now, by="ann")
    c.nodes[0].obeys = False
    run(c, 1.0, before_s=14.0)
    with pytest.raises(Conflict, match=r"j-0 has reached its time limit and is being stopped; .* plait clone j-0"):
        c.engine.update(0, {"time_limit_s": 99.0}, c.now, by="ann")
    c.nodes[0].end(0, PREEMPTED, then_s=2.2)
    assert c.stored(0).row.reason == "time limit of 14.0 s (--time) reached"


def test_a_project_has_a_default_and_a_longest_time_limit(cluster: Make) -> None:
    """What it has when a job is submitted holds for that job; a job that states no limit gets the default."""
    c = cluster((1,))
    (before,) = c.submit({})
    c.engine.set_project("default", gpu_quota=None, weight=1.0, default_time_s=10.0, most_time_s=3600.0, now_s=c.now)
    defaulted, stated = c.submit({}, {"time_limit_s": 60.0})
    limits = [c.engine.state.jobs[job].request.get("time_limit_s") for job in (before, defaulted, stated)]
    assert limits == [None, 10.0, 60.0]
    with pytest.raises(InputError, match=r"time_limit_s is 2 h 0 min, and jobs of project default may take 1 h 0 min"):
        c.submit({"time_limit_s": 7200.0})
    for limit_s, words in (
        (7200.0, "is 2 h 0 min, .*; give a shorter --time"),
        (None, "is removed, .*; give a --time"),
    ):
        with pytest.raises(InputError, match=f"time_limit_s {words}, or let the administrator"):
            c.engine.update(stated, {"time_limit_s": limit_s}, c.now, by="ann")
    c.engine.set_project("default", gpu_quota=None, weight=1.0, most_time_s=3600.0, now_s=c.now)
    (longest,) = c.submit({})
    assert c.engine.state.jobs[longest].request["time_limit_s"] == 3600.0


def test_a_repeated_submission_is_known_although_its_project_gave_it_a_limit(cluster: Make) -> None:
    c = cluster((1,))
    c.engine.set_project("default", gpu_quota=None, weight=1.0, default_time_s=10.0, now_s=c.now)
    first = c.engine.submit([{"command": ["x"]}], owner="ann", now_s=c.now, key="once")
    assert c.engine.submit([{"command": ["x"]}], owner="ann", now_s=c.now, key="once") == first


WEIGHTS = pytest.mark.parametrize("weight", [1e9, 0.0], ids=["log", "snapshot"])


def states(c: Cluster) -> list[str]:
    return [c.state(job) for job in range(c.engine.state.numbers)]


def reason(c: Cluster, job: int) -> Any:
    stored = c.stored(job)
    return c.engine.jobs([job], c.now).get(job, stored.row).reason


def said(c: Cluster, kind: str) -> list[str]:
    return [in_words(json.loads(row.entry)) for row in c.store.entries() if row.type == kind]


@WEIGHTS
def test_a_held_job_waits_until_it_is_released_also_after_a_restart(cluster: Make, weight: float) -> None:
    c = cluster((1,), snapshot_weight=weight, jobs=[{"hold": True}, {}], then_s=2.2)
    assert states(c) == ["waiting", "running"]
    assert reason(c, 0) == "held; release it with: plait release j-0"
    assert c.engine.status(c.now).wanted.gpus == 1
    assert c.engine.explain(0, c.now).position is None
    assert [row.id for row in c.engine.queue(c.now, 10, 0).jobs] == ["j-1"]
    c.nodes[0].end(1)
    c.restart(then_s=3.3)
    assert states(c) == ["waiting", "finished"]
    c.engine.update(0, {"hold": False}, c.now, by="ann")
    c.pass_s(2.2)
    assert c.state(0) == "running"
    assert said(c, "UpdateAsked") == ["ann released j-0"]
    assert said(c, "JobHeld") == ["j-0 may not run yet", "j-0 may run now"]


def test_a_waiting_job_can_be_held_and_a_running_one_only_after_a_requeue(cluster: Make) -> None:
    c = cluster((1,), jobs=[{}, {}, {}], then_s=2.2)
    c.engine.update(1, {"hold": True}, c.now, by="ann")
    with pytest.raises(Conflict, match=r"job j-0 is running and cannot be held; .* plait requeue j-0"):
        c.engine.update(0, {"hold": True}, c.now, by="ann")
    c.engine.requeue(0, c.now, by="ann")
    c.engine.update(0, {"hold": True}, c.now, by="ann")
    c.pass_s(3.3)
    assert states(c) == ["waiting", "waiting", "running"]
    c.engine.cancel(1, c.now)
    c.pass_s(1.1)
    assert c.state(1) == "cancelled"
    c.engine.update(0, {"priority": 3.0}, c.now, by="ann")
    c.nodes[0].end(2, then_s=2.2)
    assert states(c) == ["waiting", "cancelled", "finished"]


def test_a_job_starts_when_its_time_has_come_even_if_nothing_else_happens(cluster: Make) -> None:
    c = cluster((1,), jobs=[{"begin_s": 7.0}, {"begin_s": 1e6}], then_s=5.5)
    assert (c.state(0), reason(c, 0)) == ("waiting", "may start in 1.5 s (--begin)")
    assert c.engine.tick(c.now) <= 7.2
    c.pass_s(3.3)
    assert states(c) == ["running", "waiting"]


@WEIGHTS
@pytest.mark.parametrize(
    ("field", "end", "state", "why"),
    [
        ("after", "finished", "running", ""),
        ("after", "failed", "failed", "j-0 has failed, so this job can never start (--after j-0)"),
        ("after", "cancelled", "failed", "j-0 was cancelled, so this job can never start (--after j-0)"),
        ("after_any", "finished", "running", ""),
        ("after_any", "failed", "running", ""),
        ("after_any", "cancelled", "running", ""),
        ("after_fail", "finished", "failed", "j-0 has finished, so this job can never start (--after-fail j-0)"),
        ("after_fail", "failed", "running", ""),
    ],
)
def test_a_job_waits_for_another_one(cluster: Make, weight: float, field: str, end: str, state: str, why: str) -> None:
    c = cluster((2,), snapshot_weight=weight)
    c.submit({"retries": 0})
    c.submit({field: ["j-0"]}, then_s=2.2)
    assert states(c) == ["running", "waiting"]
    assert reason(c, 1) == f"waits for j-0 (--{field.replace('_', '-')})"
    c.restart()
    if end == "cancelled":
        c.engine.cancel(0, c.now)
    else:
        c.nodes[0].end(0, 0 if end == "finished" else 1)
    c.pass_s(3.3)
    assert states(c) == [end, state]
    assert reason(c, 1) == why
    if not why:  # it may be named when it has ended, too
        (later,) = c.submit({field: ["j-0"]}, then_s=2.2)
        assert c.state(later) == "running"
    else:
        with pytest.raises(InputError, match=re.escape(why)):
            c.submit({field: ["j-0"]})


def test_chains_of_one_submission_name_each_other_and_fail_together(cluster: Make) -> None:
    c = cluster((2,))
    train, evaluate = {"name": "train", "after": ["prepare"]}, {"name": "evaluate", "after": ["train", "j-0"]}
    c.submit({"name": "other"})
    c.submit(evaluate, train, {"name": "prepare", "retries": 0}, {"after_fail": ["prepare"], "name": "tell"})
    c.pass_s(2.2)
    assert states(c) == ["running", "waiting", "waiting", "running", "waiting"]
    assert reason(c, 1) == "waits for j-2 (--after), j-0 (--after)"
    c.nodes[0].end(3, 1, then_s=3.3)
    assert states(c) == ["running", "failed", "failed", "failed", "running"]
    assert reason(c, 1) == "j-2 has failed, so this job can never start (--after j-2)"


@pytest.mark.parametrize(
    ("jobs", "words"),
    [
        ([{"after": ["j-7"]}], "after is 'j-7', needs a job such as j-3; there is none of this name"),
        ([{"after_any": ["train"]}], "after_any is 'train', needs a job such as j-3; there is none"),
        ([{"name": "a"}, {"name": "a"}, {"after": ["a"]}], "after is 'a', .*; there are several of this name"),
        ([{"after": ["j-3"], "after_fail": ["j-3"]}], "after_fail names j-3 twice, or beside after"),
        ([{"name": "a", "after": ["a"]}], "jobs wait for each other in a circle: a -> a"),
        (
            [{"name": "a", "after": ["c"]}, {"name": "b", "after": ["a"]}, {"name": "c", "after_any": ["b"]}],
            "in a circle: .*a -> c|c -> b|b -> a",
        ),
    ],
)
def test_unknown_jobs_and_circles_are_refused(jobs: list[dict[str, Any]], words: str) -> None:
    with pytest.raises(InputError, match=words):
        dependencies(jobs, 5)


def test_times_to_begin_are_those_of_the_clock_on_the_wall_in_the_night_of_summer_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    try:
        spring, autumn = datetime(2027, 3, 27, 20, 0), datetime(2027, 10, 30, 20, 0)
        assert parse_begin("tomorrow 09:00", spring) == parse_begin("2027-03-28T09:00", spring) == 12 * 3600.0
        assert parse_begin("9:00", autumn) == 14 * 3600.0
        assert parse_begin("2027-03-28T07:00+00:00", spring) == 12 * 3600.0
    finally:
        monkeypatch.undo()
        time.tzset()


def test_times_to_begin_are_times_of_day_dates_and_durations() -> None:
    now = datetime(2026, 11, 27, 17, 30)
    assert [parse_begin(text, now) for text in ("18:00", "9:30", "2026-11-28T17:30", "90m")] == [
        1800.0, 57600.0, 86400.0, 5400.0,
    ]  # fmt: skip
    for wrong in ("60", "25:00", "2026-11-26T10:00", "tomorrow", "2026-99-99T1", "9999-12-31T23:59", "99999999h"):
        with pytest.raises(InputError, match=r"--begin is .*; write a time to come, e.g. 18:00, 'tomorrow 09:00'"):
            parse_begin(wrong, now)
