"""What jobs and agents say that cannot be: the log, the policy and the other jobs must not suffer from it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
from live_cases import Cluster

from plait.core.errors import InputError
from plait.live.api import encoded
from plait.live.protocol.validation import LONGEST_REASON
from plait.live.protocol.wire import NodeInfo, Observed, Profile
from plait.live.scheduler.engine import Engine
from plait.live.scheduler.records.notes import ProfileRecorded
from plait.live.service.worker import Worker

Make = Callable[..., Cluster]


def started(cluster: Make, policy: str = "muri-l") -> Cluster:
    """Two jobs that run (of three) on one node."""
    c = cluster(policy=policy)
    for node in c.nodes:
        node.sync()
    c.engine.submit([{"command": ["a", str(i)], "iterations": 1000} for i in range(3)], owner="ann", now_s=c.now)
    go(c, 4)
    return c


def go(c: Cluster, rounds: int, step_s: float = 2.0) -> None:
    for _ in range(rounds):
        c.now += step_s
        for node in c.nodes:
            node.sync()
        c.engine.tick(c.now)


@pytest.mark.parametrize(
    "values",
    [
        {"held_s": math.inf}, {"held_s": math.nan}, {"steps": math.inf}, {"steps": math.nan}, {"steps": -4.0},
        {"step_s": math.inf, "steps": 3.0}, {"step_s": math.nan, "steps": 3.0}, {"stage_s": [math.nan, 1.0]},
        {"total_steps": math.inf}, {"skew": math.nan}, {"gate": "\ud800" * 1000},
        {"profile": Profile([1e308, 1e308, 0.0, 0.0], 1e308, 20)}, {"profile": Profile([1.0], 1.0, 20)},
        {"profile": Profile([math.nan, 1.0, 0.0, 0.0], 1.0, 20)},
    ],
    ids=repr,
)  # fmt: skip
def test_numbers_that_are_none_harm_nobody(cluster: Make, values: dict[str, Any]) -> None:
    c = started(cluster)
    c.nodes[0].report(0, **values)
    go(c, 8)
    assert not c.engine.broken
    assert c.engine.state.policy_error == ""
    for job in c.engine.state.jobs:
        encoded(c.engine.jobs([job], c.now)[job])
    assert Engine(c.store, c.engine.fencing, now_s=c.now).state.seq >= c.engine.state.seq


@pytest.mark.parametrize("reason", ["a\ud800b", "a\0b", "x" * 100_000])
@pytest.mark.parametrize("code", [1, 10**30, -(10**30)])
def test_an_end_that_no_process_has_can_be_stored(cluster: Make, code: int, reason: str) -> None:
    c = started(cluster)
    c.nodes[0].end(0, code, reason=reason)
    go(c, 3)
    stored = c.stored(0)
    assert stored.row.failures == 1
    (failed,) = (a for a in stored.attempts if a.state == "failed")
    (rank,) = failed.ranks
    assert -128 <= rank.exit_code <= 255
    assert len(rank.reason) <= LONGEST_REASON
    rank.reason.encode()
    assert "\0" not in failed.reason


def test_a_report_that_cannot_be_taken_fails_its_job_and_is_logged_by_the_service(
    cluster: Make, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    c = started(cluster)

    def broken(*_: object) -> None:
        raise ZeroDivisionError("no such profile")

    monkeypatch.setattr("plait.live.scheduler.measured._learn", broken)
    c.nodes[0].sync()
    worker = Worker(c.engine, lambda: c.now, lambda versions: None, lambda error: None)
    worker._log_problems()
    record = next(one for one in caplog.records if one.getMessage() == "a report was refused")
    assert record.exc_info is not None
    assert isinstance(record.exc_info[1], ZeroDivisionError)
    assert vars(record)["facts"] == {"job": 0, "epoch": 1}
    assert not c.engine.counts.problems
    go(c, 1)
    stored = c.stored(0)
    assert "the agent sent an invalid report about this process: no such profile" in stored.attempts[0].reason


@pytest.mark.parametrize(
    "info",
    [
        NodeInfo("x1", -1), NodeInfo("x1", 10**9), NodeInfo("x1", 1, "g\ud800"), NodeInfo("x1", 1, "gpu", math.nan),
        NodeInfo("x1", 1, cpus=math.inf), NodeInfo("x1", 1, memory_bytes=-1.0), NodeInfo("x1", 1, rack=10**30),
    ],
)  # fmt: skip
def test_hardware_that_no_node_has_is_refused(cluster: Make, info: NodeInfo) -> None:
    c = started(cluster)
    before = c.engine.state.seq
    with pytest.raises(InputError, match="x1"):
        c.engine.observe(Observed(info, "x1-a"), c.now)
    assert c.engine.state.seq == before
    assert not c.engine.broken


def test_what_cannot_be_stored_is_refused_before_it_changes_anything(cluster: Make) -> None:
    c = started(cluster)
    before = c.engine.state.seq
    with pytest.raises(InputError, match="ProfileRecorded: skew is nan"):
        c.engine.context.record(ProfileRecorded(c.now, key="k", skew=math.nan))
    assert (c.engine.broken, c.engine.state.seq) == (False, before)


def test_what_cannot_be_written_down_ends_the_engine_and_not_the_log(cluster: Make) -> None:
    """An entry that was applied but not noted would leave a gap that no restart gets over."""
    c = started(cluster)
    with pytest.raises(TypeError, match="JSON"):
        c.engine.context.record(ProfileRecorded(c.now, key="k", skew=0.5, like=[object()]))  # type: ignore[list-item]
    assert c.engine.broken
    assert Engine(c.store, c.engine.fencing, now_s=c.now).state.seq < c.engine.state.seq


def test_two_agents_of_one_name_do_not_both_get_the_work(cluster: Make) -> None:
    """The newer one has the node; the other, perhaps on another machine, is told to stop what it still runs."""
    c = started(cluster)
    first = c.nodes[0]
    assert first.jobs()
    told = first.observed()
    new = c.engine.observe(Observed(first.info, "another machine"), c.now)
    assert c.engine.observe(told, c.now).attempts == []
    c.engine.tick(c.now + 1.5)
    new = c.engine.observe(Observed(first.info, "another machine", new.term, new.version), c.now + 1.6)
    assert new.attempts
    assert {run.epoch for run in new.attempts} == {2}  # which keeps the processes of the first one out
