"""The service's answer about its queue becomes a controller that goes on from there."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from test_eta import certain

from plait.control.messages import JobSubmitted, NodeJoined, NodeLost, ProgressReported, ReplanDue
from plait.core.cluster import Node
from plait.core.errors import InputError
from plait.core.jobs import JobBatch, JobSpec
from plait.live.scheduler.fold import apply
from plait.live.scheduler.records.notes import PolicySet, ProjectSet, Requested
from plait.live.scheduler.state import State
from plait.outlook import queue as both
from plait.outlook.eta import Interval, forecast
from plait.outlook.queue import controller_of


def state(*specs, quota=None):
    """Jobs of 100 s submitted at 0 to a node of two GPUs; job 0 has done 50 s of its work."""
    found = State()
    apply(found, PolicySet(0.0, "fifo", may_lose_work=False))
    if quota is not None:
        apply(found, ProjectSet(0.0, "p", gpu_quota=quota, weight=1.0))
    apply(found, NodeJoined(0.0, Node("n0", 2)))
    requests = [{"command": ["true"]}] * len(specs)
    apply(found, Requested(0.0, 0, "ada", requests))
    apply(found, JobSubmitted(0.0, 0, JobBatch.of(specs)))
    apply(found, ReplanDue(0.0))
    figures = (np.array([v]) for v in (50.0, 100.0, 50.0, 1.0))
    apply(found, ProgressReported(50.0, np.array([0]), *figures))
    return found


def spec(name, **changes):
    return JobSpec(**{"id": name, "gpus": 2, "iterations": 100, "iteration_s": 1.0, "project": "p", **changes})


def answer(found, asked_s=60.0, **paces):
    return json.loads(json.dumps({**found.to_json(), "asked_s": asked_s, "round_s": 0.0, "paces": paces}))


def test_it_goes_on_from_what_was_seen_last(monkeypatch):
    certain(monkeypatch)
    pace = {"steps": 60.0, "step_s": 1.0, "total_steps": None}
    found = forecast(controller_of(answer(state(spec("a"), spec("b")), **{"0": pace})), runs=2)
    assert found.now_s == 60.0
    assert found.etas[0].end == Interval(40.0, 40.0)
    assert found.etas[1].start == Interval(40.0, 40.0)
    assert found.etas[1].end == Interval(140.0, 140.0)


def test_what_a_job_says_of_itself_counts_where_its_owner_said_nothing():
    pace = {"steps": 60.0, "step_s": 0.5, "total_steps": 80.0}
    make = controller_of(answer(state(spec("a", iterations=None, iteration_s=None)), **{"0": pace}))
    columns = make().job_store.columns
    assert [columns[name][0] for name in ("iterations", "iteration_s", "iterations_done")] == [80.0, 0.5, 60.0]


def test_quotas_hold_jobs_back():
    found = forecast(controller_of(answer(state(spec("a"), spec("b"), quota=1))), runs=2)
    assert found.etas[1].end.to_json() == [None, None]


def test_a_lost_node_has_no_room_and_no_node_no_forecast():
    lost = state(spec("a"))
    apply(lost, NodeLost(55.0, "n0"))
    assert forecast(controller_of(answer(lost)), runs=2).etas[0].end.to_json() == [None, None]
    nothing = State()
    apply(nothing, PolicySet(0.0, "fifo", may_lose_work=False))
    with pytest.raises(InputError, match="no node has joined yet"):
        controller_of(answer(nothing))


# Two policies about the same queue: what each does next, and when its jobs end.


def queue():
    """Job 0 runs for 50 s more on both GPUs of the node; job 1 takes 5 s on both, and waits."""
    return {**answer(state(spec("a"), spec("b", iterations=5)), asked_s=50.0), "job_numbers": [7, 9]}


def test_a_shorter_job_takes_the_gpus_under_another_policy():
    found = queue()
    now = both.decide(controller_of(found), "fifo", found["job_numbers"])
    other = both.decide(both.under(found, "srtf"), "srtf", found["job_numbers"])
    assert now.counts == {"keep": 1, "wait": 1}
    assert other.counts == {"start": 1, "stop": 1}
    assert other.actions[9] == ("start", "2 GPUs on n0")
    rows = both.rows(now, other)
    assert [(row["job"], row["now"][0], row["other"][0], row["same"]) for row in rows] == [
        (9, "wait", "start", False), (7, "keep", "stop", False),
    ]  # fmt: skip
    assert both.rows(now, now) == []


def test_who_gains_and_who_loses(monkeypatch):
    certain(monkeypatch)
    found = queue()
    pairs = list(both.runs(found, controller_of(found), both.under(found, "srtf"), 2))
    assert pairs[0][0].ends_s == {7: 50.0, 9: 55.0}
    end = both.outcome(pairs)
    assert (end["runs"], end["jobs"], end["sooner"], end["gaining"], end["losing"]) == (2, 2, 2, 1, 1)
    assert end["gain"] == [[9, 50.0]]
    assert end["lose"] == [[7, 5.0]]
    assert end["mean_s"] == [52.5, 30.0]


def test_a_job_that_never_ends_is_in_no_mean_but_in_the_last_end():
    run = both.QueueRun({1: 10.0, 2: math.inf})
    assert (run.mean_s, run.last_s) == (10.0, math.inf)
    end = both.outcome([(run, run)])
    assert (end["jobs"], end["last_s"]) == (1, [None, None])
    with pytest.raises(InputError, match="no run"):
        both.outcome([])


def test_a_policy_that_fails_says_why_and_quotas_hold():
    found = {**answer(state(spec("a"), spec("b"), quota=2)), "job_numbers": [0, 1]}
    assert both.decide(both.under(found, "srtf"), "srtf", [0, 1]).counts == {"keep": 1, "wait": 1}
    with pytest.raises(InputError, match="no network"):
        both.under(found, "srtf:ina=atp")

    class Broken:
        def decide(self, view):
            raise ValueError("no idea")

    def make():
        controller = controller_of(found)()
        controller.policy = Broken()
        return controller

    assert both.decide(make, "broken", [0, 1]).error == "ValueError: no idea"
