"""Two policies about the same queue: what each does next, and when its jobs end."""

import math

import pytest
from test_eta import certain
from test_queue import answer, spec, state

from plait.core.errors import InputError
from plait.outlook import queue as both
from plait.outlook.queue import controller_of


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
