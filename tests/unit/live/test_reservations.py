"""Reservations of nodes through the engine: who may use them, what is shown of it, and that restarts keep them.

The log of every cluster here is replayed at the end of its test, decision by decision.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from live_cases import Cluster

from plait.core.errors import Conflict, InputError
from plait.live.scheduler.explain.durations import History
from plait.live.scheduler.explain.outlook import foresee
from plait.live.scheduler.explain.queue_copy import QueueCopy
from plait.live.scheduler.records.event_words import in_words

Make = Callable[..., Cluster]
OTHERS, OWN = {"project": "speech"}, {"project": "vision"}


def reserve(c: Cluster, *nodes: str, in_s: float = 0.0, for_s: float = 100.0, by: str = "ann", key: str = "") -> Any:
    return c.engine.reserve(nodes, "vision", c.now + in_s, c.now + in_s + for_s, by, c.now, key)


def states(c: Cluster) -> list[str]:
    return [c.state(job) for job in range(c.engine.state.numbers)]


@pytest.fixture
def c(cluster: Make, request: Any) -> Cluster:
    made = cluster((1, 1), snapshot_weight=getattr(request, "param", 1e9))
    made.engine.set_project("vision", gpu_quota=None, weight=1.0, now_s=made.now)
    return made


@pytest.mark.parametrize("c", [1e9, 0.0], ids=["log", "snapshot"], indirect=True)
def test_jobs_that_save_leave_at_the_start_also_after_a_restart(c: Cluster) -> None:
    c.submit(OTHERS, OTHERS)
    c.pass_s(3.3)
    c.nodes[1].report(1, saves="nothing")
    c.pass_s(1.1)
    row = reserve(c, "n0", "n1", in_s=5.0)
    assert (row.id, row.leave, row.stay, row.in_s, row.left_s) == ("r-1", ["j-0"], ["j-1"], 5.0, 105.0)
    c.restart()
    assert [one.id for one in c.engine.reservations(c.now)] == ["r-1"]
    assert [one.id for one in c.engine.explain(0, c.now).reservations or ()] == ["r-1"]
    c.submit(OWN)
    c.pass_s(4.4)
    assert states(c) == ["running", "running", "waiting"]
    c.pass_s(3.3)
    assert states(c) == ["waiting", "running", "running"]
    why = c.engine.explain(0, c.now)
    assert "n0 and n1 are reserved for project vision, r-1" in (why.summary or "")
    assert why.last_stop is not None
    assert "reserved for project vision" in why.last_stop.why
    assert [one.stay for one in why.reservations or ()] == [["j-1"]]
    c.nodes[0].end(2)
    c.nodes[1].end(1)
    c.pass_s(5.5)
    assert states(c) == ["waiting", "finished", "finished"]
    c.pass_s(100.0)
    assert (c.state(0), c.engine.reservations(c.now)) == ("running", [])


def test_until_the_start_only_jobs_run_there_that_end_before_it(c: Cluster) -> None:
    reserve(c, "n0", "n1", in_s=60.0)
    c.submit(OTHERS, {**OTHERS, "time_limit_s": 90.0}, {**OTHERS, "time_limit_s": 30.0})
    c.pass_s(3.3)
    assert [c.state(job) == "running" for job in range(3)] == [False, False, True]
    c.engine.cancel_reservation("r-1", "ben", c.now)
    c.pass_s(3.3)
    assert states(c) == ["running", "waiting", "running"]
    said = [in_words(json.loads(row.entry)) for row in c.store.entries() if "eserv" in row.type]
    assert said == [
        "ann reserved n0, n1 for project vision in 1 min 0 s for 1 min 40 s (r-1)",
        "reservation r-1 was cancelled by ben",
    ]


@pytest.mark.parametrize("c", [1e9, 0.0], ids=["log", "snapshot"], indirect=True)
def test_the_id_of_a_reservation_is_not_given_again(c: Cluster) -> None:
    assert reserve(c, "n0", in_s=50.0).id == "r-1"
    c.engine.cancel_reservation("r-1", "ben", c.now)
    c.submit(OTHERS, OTHERS)
    c.restart()
    c.pass_s(3.3)
    assert states(c) == ["running", "running"]
    assert [one.id for one in c.engine.reservations(c.now)] == []
    assert reserve(c, "n0", for_s=1.0).id == "r-2"
    c.pass_s(3.3)
    assert reserve(c, "n0").id == "r-3"


def test_a_project_with_reserved_nodes_is_not_removed(c: Cluster) -> None:
    reserve(c, "n0", in_s=50.0)
    with pytest.raises(Conflict, match=r"n0 is reserved for project vision, r-1; cancel it with: plait nodes"):
        c.engine.drop_project("vision", c.now)
    c.engine.cancel_reservation("r-1", "ben", c.now)
    c.engine.drop_project("vision", c.now)
    assert "vision" not in c.engine.state.projects


@pytest.mark.parametrize("count", [1, 30, 60, 250])
def test_a_forecast_goes_past_many_reservations_or_has_no_latest_start(c: Cluster, count: int) -> None:
    for i in range(count):
        reserve(c, "n0", "n1", in_s=100_000.0 + 1000.0 * i, for_s=900.0)
    c.submit({**OTHERS, "iterations": 10, "iteration_s": 1.0})
    copy = QueueCopy.of(c.engine.context, c.now)
    found = foresee(copy.arrays(), History(), c.now, releases=copy.releases).of(0, copy.by, [])
    assert found is not None
    assert found.start is not None
    last_s = 100_000.0 + 1000.0 * (count - 1) + 900.0
    if count < 250:
        assert found.start.middle_s == pytest.approx(last_s, abs=60.0)
        assert (found.start.half_s[1] is None, found.assumptions) == (False, [])
    else:
        assert 100_000.0 < (found.start.half_s[0] or 0.0) < last_s
        assert found.start.wide_s[1] is found.end.half_s[1] is found.start.half_s[1] is None
        assert "reserved nodes keep it waiting until then, and it may start much later" in found.assumptions[0]


def test_a_job_waits_for_a_reservation_that_begins_after_an_end(c: Cluster) -> None:
    c.submit(OWN)
    c.pass_s(3.3)
    reserve(c, "n0", "n1", in_s=1000.0, for_s=500.0)
    c.submit({**OTHERS, "iterations": 10, "iteration_s": 1.0})
    release = QueueCopy.of(c.engine.context, c.now).releases({0: 20.0})[1]
    assert (release.ends, release.open) == (1, False)
    assert release.due_s == pytest.approx(1500.0, abs=5.0)
    assert "reserved for project vision" in release.reason


def test_a_reservation_requested_again_is_the_same(c: Cluster) -> None:
    assert reserve(c, "n0", in_s=5.0, key="k").id == "r-1"
    c.pass_s(1.0)
    c.restart()
    assert reserve(c, "n0", in_s=5.0, key="k").id == "r-1"
    with pytest.raises(Conflict, match="used for another reservation"):
        reserve(c, "n0", in_s=5.0, for_s=50.0, key="k")
    for key, by in (("", "ann"), ("m", "ann"), ("k", "ben")):
        with pytest.raises(Conflict, match="cannot be reserved twice: r-1"):
            reserve(c, "n0", in_s=5.0, key=key, by=by)


def test_impossible_reservations_are_refused_with_what_there_is(c: Cluster) -> None:
    with pytest.raises(LookupError, match=r"no node 'n7'"):
        reserve(c, "n7")
    with pytest.raises(InputError, match=r"no project 'vison'; did you mean 'vision'\? Otherwise make it"):
        c.engine.reserve(["n0"], "vison", c.now, c.now + 1.0, "ann", c.now)
    reserve(c, "n0", in_s=100.0)
    with pytest.raises(Conflict, match=r"n0 cannot be reserved twice: r-1, for project vision, in 1 min 40 s for"):
        reserve(c, "n0", "n1", in_s=150.0)
    assert reserve(c, "n0", in_s=200.0).id == "r-2"
    assert reserve(c, "n1", in_s=150.0).id == "r-3"
    with pytest.raises(LookupError, match="no reservation 'r-9'; there are: r-1, r-2, r-3"):
        c.engine.cancel_reservation("r-9", "ann", c.now)
