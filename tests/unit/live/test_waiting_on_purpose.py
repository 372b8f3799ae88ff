"""Jobs that wait on purpose: held, before their time, or for other jobs.

The log of every cluster here is replayed at the end of its test, decision by decision.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from datetime import datetime
from typing import Any

import pytest
from live_cases import Cluster

from plait.cli.submission import parse_begin
from plait.core.errors import InputError
from plait.live.protocol.requests import dependencies
from plait.live.scheduler.errors import Conflict
from plait.live.scheduler.records.event_words import in_words

Make = Callable[..., Cluster]
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
    c = cluster((1,), snapshot_weight=weight)
    c.submit({"hold": True}, {})
    c.pass_s(2.2)
    assert states(c) == ["waiting", "running"]
    assert reason(c, 0) == "held; release it with: plait release j-0"
    assert c.engine.status(c.now).wanted.gpus == 1
    assert c.engine.explain(0, c.now).position is None
    assert [row.id for row in c.engine.queue(c.now, 10, 0).jobs] == ["j-1"]
    c.nodes[0].end(1)
    c.restart()
    c.pass_s(3.3)
    assert states(c) == ["waiting", "finished"]
    c.engine.update(0, {"hold": False}, c.now, by="ann")
    c.pass_s(2.2)
    assert c.state(0) == "running"
    assert said(c, "UpdateAsked") == ["ann released j-0"]
    assert said(c, "JobHeld") == ["j-0 may not run yet", "j-0 may run now"]


def test_a_waiting_job_can_be_held_and_a_running_one_only_after_a_requeue(cluster: Make) -> None:
    c = cluster((1,))
    c.submit({}, {}, {})
    c.pass_s(2.2)
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
    c.nodes[0].end(2)
    c.pass_s(2.2)
    assert states(c) == ["waiting", "cancelled", "finished"]


def test_a_job_starts_when_its_time_has_come_even_if_nothing_else_happens(cluster: Make) -> None:
    c = cluster((1,))
    c.submit({"begin_s": 7.0}, {"begin_s": 1e6})
    c.pass_s(5.5)
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
    c.submit({field: ["j-0"]})
    c.pass_s(2.2)
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
        (later,) = c.submit({field: ["j-0"]})
        c.pass_s(2.2)
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
    c.nodes[0].end(3, 1)
    c.pass_s(3.3)
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
