"""The service's answer about its queue becomes a controller that goes on from there."""

import pytest

from plait.core.errors import InputError
from plait.forecast import eta
from plait.forecast.eta import Interval, forecast
from plait.forecast.queue import controller_of


def job(number, state="waiting", running=False, **changes):
    spec = {"id": f"j-{number}", "submit_s": float(number), "gpus": 2, "iterations": 100.0, "iteration_s": 1.0}
    return {
        "number": number, "spec": spec, "state": state, "running": running, "iterations_done": 0.0,
        "attained_gpu_s": 0.0, "run_s": 0.0, "iteration_s": 1.0, "stage_s": [None] * 4, "step_s": None,
        "total_steps": None, "pending_since_s": float(number), "first_start_s": None, "last_start_s": None, "starts": 0,
        "preemptions": 0, "failures": 0, "promotions": 0, **changes,
    }  # fmt: skip


def queue(**changes):
    return {
        "now_s": 100.0, "policy": "fifo", "round_s": 0.0, "quotas": {},
        "nodes": [{"id": "n0", "gpus": 2, "up": True}],
        "jobs": [job(12), job(7, "running", True, iterations_done=60.0, run_s=60.0, starts=1)],
        "running": [{"jobs": [7], "gpus": [0, 1]}], **changes,
    }  # fmt: skip


def test_numbers_are_those_of_the_service(monkeypatch):
    monkeypatch.setattr(eta, "PACE_NOISE", 0.0)
    make, numbers = controller_of(queue())
    assert numbers == [7, 12]
    found = forecast(make, runs=2)
    assert found.now_s == 100.0
    assert found.etas[0].end == Interval(40.0, 40.0)
    assert found.etas[1].start == Interval(40.0, 40.0)
    assert found.etas[1].end == Interval(140.0, 140.0)


def test_a_total_that_the_job_reported_counts_as_its_work():
    row = job(7, "running", True, iterations_done=60.0, run_s=60.0, total_steps=80.0)
    row["spec"]["iterations"] = None
    make, _ = controller_of(queue(jobs=[row]))
    assert make().books.columns["iterations"][0] == 80.0


def test_quotas_hold_jobs_back():
    make, _ = controller_of(queue(quotas={"": 1}, jobs=[job(12)], running=[]))
    assert forecast(make, runs=2).etas[0].end.to_json() == [None, None]


def test_a_lost_node_has_no_room_and_no_node_no_forecast():
    nodes = [{"id": "n0", "gpus": 2, "up": False}]
    make, _ = controller_of(queue(nodes=nodes, jobs=[job(12)], running=[]))
    assert forecast(make, runs=2).etas[0].end.to_json() == [None, None]
    with pytest.raises(InputError, match="no node has joined yet"):
        controller_of(queue(nodes=[]))


def test_an_empty_queue():
    make, numbers = controller_of(queue(jobs=[], running=[]))
    assert numbers == []
    assert forecast(make).etas == {}
