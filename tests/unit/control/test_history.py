import math

import numpy as np
import pytest
from scripted_runs import Log, decide, finish, floats, ints, progress, run, submit

from plait.control import history as module
from plait.control.drive import drive
from plait.control.history import SpanEnd
from plait.control.messages import JobCancelled, JobFailed, JobFinished, LaunchFailed, NodeJoined, NodeLost
from plait.control.occupancy import occupancy
from plait.control.outcomes import outcomes
from plait.core.cluster import Node
from plait.core.jobs import JobSpec


def job(name, submit_s=0.0, gpus=1, seconds=100.0, **more):
    return JobSpec(id=name, submit_s=submit_s, gpus=gpus, iterations=seconds, iteration_s=1.0, **more)


def spans(t):
    columns = (t.span_job, t.span_from_s, t.span_to_s, t.span_gpus, t.span_company, t.span_end)
    return [(*row[:5], SpanEnd(row[5]).name) for row in zip(*(c.tolist() for c in columns), strict=True)]


def waits(t):
    columns = (t.wait_job, t.wait_from_s, t.wait_to_s, t.wait_remaining_s)
    return list(zip(*(c.tolist() for c in columns), strict=True))


def groups(t):
    return [
        (lo, hi, t.group_gpus[a:b].tolist())
        for lo, hi, a, b in zip(
            t.group_from_s, t.group_to_s, t.group_first_gpu[:-1], t.group_first_gpu[1:], strict=True
        )
    ]


def test_an_empty_run_has_an_empty_timeline():
    t = run("1x1", [], [])[1].timeline()
    assert (t.jobs, t.events, len(t.span_job), len(t.wait_job), len(t.group_gpus)) == (0, 0, 0, 0, 0)


def test_two_jobs_take_one_gpu_in_turn():
    events = [submit(0, job("a"), job("b", seconds=50)), decide(0), finish(0, 100), decide(100), finish(1, 150)]
    t = run("1x1", events, [[([0], [0])], [([1], [0])]])[1].timeline()
    assert spans(t) == [(0, 0, 100, 1, 1, "FINISHED"), (1, 100, 150, 1, 1, "FINISHED")]
    assert waits(t) == [(1, 0, 100, 50)]
    assert groups(t) == [(0, 100, [0]), (100, 150, [0])]
    assert t.span_iterations.tolist() == [100, 50]
    assert (t.events, t.last_s) == (5, 150)


def test_a_preempted_job_waits_with_what_it_has_left():
    events = [
        submit(0, job("a")), decide(0), submit(1, job("b", 30, seconds=20)), progress(30, 0, 30), decide(30),
        finish(1, 50), decide(50), finish(0, 120),
    ]  # fmt: skip
    controller, history = run("1x1", events, [[([0], [0])], [([1], [0])], [([0], [0])]])
    t = history.timeline()
    assert spans(t) == [(0, 0, 30, 1, 1, "STOPPED"), (0, 50, 120, 1, 1, "FINISHED"), (1, 30, 50, 1, 1, "FINISHED")]
    assert waits(t) == [(0, 30, 50, 70)]
    assert t.span_iterations.tolist() == [30, 70, 20]
    assert t.span_continued.tolist() == [False, False, False]
    assert controller.job_store.columns["starts"][0] == 2


def test_a_member_that_goes_on_continues_and_the_group_is_held_once():
    events = [submit(0, job("a"), job("b")), decide(0), submit(2, job("c", 10)), decide(10),
              finish(0, 40, 60), finish(2, 50, 60), finish(1, 60)]  # fmt: skip
    plans = [[([0, 1], [0])], [([1], [0]), ([0, 2], [1])]]
    t = run("1x2", events, plans)[1].timeline()
    assert spans(t) == [
        (0, 0, 10, 1, 2, "STOPPED"), (0, 10, 40, 1, 2, "FINISHED"),
        (1, 0, 10, 1, 2, "CHANGED"), (1, 10, 60, 1, 1, "FINISHED"),
        (2, 10, 50, 1, 2, "FINISHED"),
    ]  # fmt: skip
    assert t.span_continued.tolist() == [False, False, False, True, False]
    assert sorted(groups(t)) == [(0, 10, [0]), (10, 50, [1]), (10, 60, [0])]
    assert waits(t) == []


def test_a_completion_counts_from_when_it_happened():
    events = [submit(0, job("a", 5, seconds=12), at_s=60), decide(60), finish(0, 72, at_s=120), decide(120)]
    t = run("1x1", events, [[([0], [0])], []])[1].timeline()
    assert spans(t) == [(0, 60, 72, 1, 1, "FINISHED")]
    assert waits(t) == [(0, 5, 60, 12)]
    assert t.last_s == 120


def test_a_lost_node_ends_spans_once_and_is_down_until_it_joins():
    events = [
        submit(0, job("a", gpus=2)), decide(0), progress(40, 0, 30), NodeLost(40, "n1"), decide(40),
        NodeJoined(70, Node("n1", 1)), decide(70), finish(0, 140),
    ]  # fmt: skip
    t = run("2x1", events, [[([0], [0, 1])], [], [([0], [0, 1])]])[1].timeline()
    assert spans(t) == [(0, 0, 40, 2, 1, "NODE_LOST"), (0, 70, 140, 2, 1, "FINISHED")]
    assert waits(t) == [(0, 40, 70, 70)]
    assert (t.down_node.tolist(), t.down_from_s.tolist(), t.down_to_s.tolist()) == ([1], [40], [70])
    assert t.span_iterations.tolist() == [30, 70]


def test_a_new_node_was_not_there_before_and_a_lost_one_stays_away():
    events = [NodeJoined(10, Node("extra", 4)), NodeLost(20, "n0")]
    t = run("1x1", events, [])[1].timeline()
    assert sorted(zip(t.down_node, t.down_from_s, t.down_to_s, strict=True)) == [
        (0, 20, math.inf), (1, -math.inf, 10),
    ]  # fmt: skip
    assert t.cluster.gpus == 5


def test_the_time_of_a_forgotten_node_stays_in_the_figures():
    controller, history = run("2x1", [NodeLost(20, "n1")], [])
    controller.cluster = controller.cluster.forget("n1")
    t = history.timeline()
    assert (t.down_node.tolist(), t.down_from_s.tolist(), t.down_to_s.tolist()) == ([1], [20], [math.inf])
    drive(controller, Log([NodeJoined(50, Node("other", 1)), NodeLost(60, "other")]), history)  # in the same place
    t = history.timeline()
    assert [node.id for node in t.cluster] == ["n0", "other"]
    assert sorted(zip(t.down_node, t.down_from_s, t.down_to_s, strict=True)) == [(1, 20, 50), (1, 60, math.inf)]
    capacity = occupancy(t, outcomes(controller.job_store, t)).capacity
    assert capacity.at(floats(0, 19, 20, 49, 50, 60)).tolist() == [2, 2, 1, 1, 2, 1]


def test_failures_wait_for_the_next_try_and_stop_after_the_last():
    events = [
        submit(0, job("a", retries=1)), decide(0), JobFailed(10, ints(0), "oom"), decide(15),
        JobFailed(25, ints(0), "oom"),
    ]  # fmt: skip
    t = run("1x1", events, [[([0], [0])], [([0], [0])]])[1].timeline()
    assert spans(t) == [(0, 0, 10, 1, 1, "FAILED"), (0, 15, 25, 1, 1, "FAILED")]
    assert waits(t) == [(0, 10, 15, 100)]
    assert len(t.refused) == 0


def test_a_launch_that_fails_goes_back_to_waiting():
    events = [submit(0, job("a")), decide(0), LaunchFailed(2, ints(0), "no image"), decide(7), finish(0, 107)]
    t = run("1x1", events, [[([0], [0])], [([0], [0])]])[1].timeline()
    assert spans(t) == [(0, 0, 2, 1, 1, "LAUNCH_FAILED"), (0, 7, 107, 1, 1, "FINISHED")]
    assert waits(t) == [(0, 2, 7, 100)]


def test_cancelled_jobs_stop_waiting_or_running():
    events = [submit(0, job("a"), job("b")), decide(0), JobCancelled(30, ints(0, 1))]
    t = run("1x1", events, [[([0], [0])]])[1].timeline()
    assert spans(t) == [(0, 0, 30, 1, 1, "CANCELLED")]
    assert waits(t) == [(1, 0, 30, 100)]


def test_refused_jobs_never_waited():
    events = [submit(0, job("a"), job("big", gpus=9), at_s=20), decide(20), finish(0, 120)]
    t = run("1x1", events, [[([0], [0])]])[1].timeline()
    assert t.refused.tolist() == [1]
    assert waits(t) == [(0, 0, 20, 100)]


def test_what_has_not_ended_is_open_until_now():
    events = [submit(0, job("a"), job("b")), decide(0), progress(30, 0, 30)]
    t = run("1x1", events, [[([0], [0])]])[1].timeline()
    assert spans(t) == [(0, 0, 30, 1, 1, "OPEN")]
    assert waits(t) == [(1, 0, 30, 100)]
    assert t.span_iterations.tolist() == [30]


@pytest.mark.parametrize("size", [1, 2, 3])
def test_packing_early_changes_nothing(monkeypatch, size):
    both = JobFinished(9, ints(0, 1), floats(9, 8))
    events = [submit(0, job("a"), job("b"), job("c")), decide(0), both, decide(9), finish(2, 20)]
    plans = [[([0], [0]), ([1, 2], [1])], [([2], [0])]]
    whole = run("1x2", events, [list(p) for p in plans])[1].timeline()
    monkeypatch.setattr(module, "PACK_AFTER", size)
    history = run("1x2", events, [list(p) for p in plans])[1]
    for t in (history.timeline(), history.timeline()):  # asking twice is fine
        for name in whole.__slots__:
            if name != "cluster":
                np.testing.assert_array_equal(getattr(t, name), getattr(whole, name), err_msg=name)
