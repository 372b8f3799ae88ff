"""The service's answer about its queue becomes a controller that goes on from there."""

import json

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
