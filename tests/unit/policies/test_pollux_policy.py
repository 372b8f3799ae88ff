"""Pollux as a policy: rounds, sizes by goodput, and who gets GPUs in between."""

import itertools

import numpy as np
import pytest
from adaptive_cases import adaptive, controlled, estimate, fixed, nodes_of, report, sizes

from plait.control.messages import JobFinished, JobSubmitted, NodeLost, ProgressReported, ReplanDue
from plait.core.errors import InputError
from plait.core.jobs import JobBatch, JobClass
from plait.goodput.fitness import fitness
from plait.policies.catalog import make_policy
from plait.policies.pollux import Pollux
from plait.policies.sizing import steps
from plait.policies.sizing.pools import pools
from plait.policies.sizing.steps import Ladder

NOBODY = np.zeros(0, dtype=np.int64)


def test_a_new_job_starts_on_one_gpu_and_doubles_with_what_it_has_profiled() -> None:
    c = controlled(Pollux(), "4x4", [adaptive("a")])
    seen = [sizes(c)[0]]
    for at_s, profiled in ((60.0, 1), (120.0, 2), (180.0, 4), (240.0, 8), (300.0, 16)):
        report(c, at_s, {0: estimate(var=1e4, profiled=profiled, restart_s=1.0)})
        c.handle(ReplanDue(at_s))
        seen.append(sizes(c)[0])
    assert seen == [1, 2, 4, 8, 16, 16]


@pytest.mark.parametrize(("p", "alike"), [(-1.0, True), (1.0, False)])
def test_sizes_are_the_best_of_all_on_the_ladder(p: float, alike: bool) -> None:
    specs = [adaptive(f"j{i}", most=8) for i in range(4)]
    fits = {i: estimate(var=float(v), profiled=8) for i, v in enumerate((1, 10, 100, 1000))}
    c = controlled(Pollux(p=p), "2x4", specs, fits)
    (pool,) = pools(c.view(), due=np.zeros(4, dtype=bool), restart_s=30.0)
    ladder = Ladder.of(pool)
    worth = ladder.worth(pool)
    best = max(
        float(fitness(worth[np.arange(4), list(columns)], p))
        for columns in itertools.product(range(len(ladder.configs)), repeat=4)
        if ladder.configs[list(columns), 1].sum() <= 8 and not np.isnan(worth[np.arange(4), list(columns)]).any()
    )
    assert float(fitness(pool.worth(pool.held), p)) == pytest.approx(best)
    assert (len(set(sizes(c).values())) == 1) == alike


@pytest.mark.parametrize("cluster", ["1x4", "3x4", "2x6", "2x4,1x8"])
def test_the_ladder_of_jobs_of_one_size_is_that_of_others(cluster: str) -> None:
    c = controlled(Pollux(exact=False), cluster, [fixed(f"j{i}", n) for i, n in enumerate([1, 3, 2, 4, 7, 1, 12, 5])])
    view = c.view()  # of jobs that the cluster can hold
    (pool,) = pools(view, due=np.zeros(len(view.jobs), dtype=bool), restart_s=30.0)
    assert pool.rigid
    assert pool.plain
    ladder = Ladder.of(pool)
    assert ladder.gpus.tolist() == steps._every_size(pool, ladder.configs).tolist()
    assert {1, 3} < set(ladder.gpus.max(axis=1).tolist())


def test_between_rounds_nobody_moves_and_newcomers_take_what_is_free() -> None:
    c = controlled(Pollux(), "2x4", [adaptive("a", most=4)], {0: estimate(var=1e4)})
    before = sizes(c)
    assert before == {0: 4}
    c.handle(JobSubmitted(10.0, 1, JobBatch.of([adaptive("b", 10.0), fixed("c", 2, 10.0), fixed("d", 2, 10.0)])))
    c.handle(ReplanDue(10.0))
    assert sizes(c) == {0: 4, 1: 1, 2: 2}
    assert "needs 2 GPUs together; of 8 GPUs 1 are free" in c.plan.reasons[3]
    assert c.plan.valid_until_s == 60.0
    c.handle(JobFinished(20.0, np.array([2]), np.array([20.0])))
    c.handle(ReplanDue(20.0))
    assert sizes(c) == {0: 4, 1: 1, 3: 2}  # what has come free is given to who waits, not to who runs


def test_what_a_restart_costs_decides_whether_a_job_grows() -> None:
    grown = []
    for restart_s in (1.0, 400.0):
        c = controlled(
            Pollux(), "1x4", [adaptive("a", most=4), adaptive("b", most=4)], dict.fromkeys((0, 1), estimate())
        )
        assert sizes(c) == {0: 2, 1: 2}
        report(c, 30.0, {0: estimate(restart_s=restart_s)})
        c.handle(JobFinished(30.0, np.array([1]), np.array([30.0])))
        c.handle(ReplanDue(60.0))
        grown.append(sizes(c)[0])
    assert grown == [4, 2]


def test_opportunistic_jobs_use_the_rest_and_give_it_back_at_once() -> None:
    guest = fixed("guest", 4, job_class=JobClass.OPPORTUNISTIC, min_gpus=1, max_gpus=4)
    c = controlled(Pollux(), "1x4", [fixed("a", 2), guest])
    assert sizes(c) == {0: 2, 1: 2}
    c.handle(JobSubmitted(5.0, 2, JobBatch.of([fixed("b", 1, 5.0)])))
    c.handle(ReplanDue(5.0))
    assert sizes(c)[2] == 1
    assert 1 not in sizes(c) or sizes(c)[1] == 1


def test_a_job_that_waited_long_goes_first_and_stays_for_as_long() -> None:
    policy = Pollux(patience_s=600.0)
    c = controlled(policy, "2x4", [fixed(f"n{i}", 1) for i in range(8)])
    c.handle(JobSubmitted(5.0, 8, JobBatch.of([fixed("wide", 8, 5.0)])))
    for at_s in np.arange(60.0, 600.0, 60.0):
        c.handle(ReplanDue(at_s))
        assert 8 not in sizes(c)
    c.handle(ReplanDue(660.0))
    assert sizes(c) == {8: 8}
    for at_s in (720.0, 780.0):  # none of those that wait may take it back
        ran = at_s - 660.0
        c.handle(ProgressReported(at_s, np.array([8]), np.zeros(1), np.array([8 * ran]), np.array([ran]), np.ones(1)))
        c.handle(ReplanDue(at_s))
        assert sizes(c) == {8: 8}
    c.handle(ProgressReported(1260.0, np.array([8]), np.zeros(1), np.array([4800.0]), np.array([600.0]), np.ones(1)))
    c.handle(ReplanDue(1260.0))
    assert sizes(c) == dict.fromkeys(range(8), 1)  # they are due by now, and it is not any more


def test_jobs_that_span_nodes_do_not_meet_on_one() -> None:
    fits = dict.fromkeys((0, 1), estimate(var=1e4))
    c = controlled(Pollux(), "4x2", [adaptive("a", most=4), adaptive("b", most=4)], fits)
    assert sizes(c) == {0: 4, 1: 4}
    assert not set(nodes_of(c, 0)) & set(nodes_of(c, 1))


def test_cores_and_kinds_and_nodes_that_are_down_are_respected() -> None:
    hungry = [adaptive(f"j{i}", most=4, cpus=8.0) for i in range(2)]
    c = controlled(Pollux(), "1x4+16c", hungry, dict.fromkeys((0, 1), estimate(var=1e4)))
    assert sizes(c) == {0: 1, 1: 1}  # 8 cores a GPU, and there are 16
    c = controlled(Pollux(), "1x4:a,1x4:b", [fixed("x", 4, gpu_kinds=("b",)), fixed("y", 4)])
    assert (nodes_of(c, 0), nodes_of(c, 1)) == ([1], [0])
    c.handle(NodeLost(10.0, "n1"))
    c.handle(ReplanDue(10.0))
    assert sizes(c) == {1: 4}
    c.handle(ReplanDue(60.0))
    assert sizes(c) == {1: 4}


def test_sizes_between_two_steps_are_given_exactly() -> None:
    c = controlled(Pollux(), "2x4", [fixed("a", 3), fixed("b", 3), fixed("one", 1)])
    assert sizes(c) == {0: 3, 1: 3, 2: 1}
    c = controlled(Pollux(), "2x4", [fixed("a", 6), fixed("one", 1)])
    assert sizes(c) == {0: 6, 1: 1}


def test_a_settled_plan_asks_for_nothing() -> None:
    c = controlled(Pollux(), "2x4", [fixed("a", 3), fixed("b", 4)])
    assert c.plan.settled
    assert c.plan.valid_until_s == np.inf


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("pollux:interval_s=0", "interval_s is 0; it takes a finite number of seconds >= 0.001"),
        ("pollux:p=nan", "p is nan; it takes a finite number"),
        ("pollux:floor=-1", "floor is -1; it takes a finite number >= 0"),
        ("pollux:patience_s=on", "patience_s is 'on'; it takes a finite number of seconds > 0 or inf"),
        ("optimus:restart_s=inf", "restart_s is inf; it takes a finite number of seconds >= 0"),
    ],
)
def test_options_that_cannot_be_are_refused(text: str, words: str) -> None:
    with pytest.raises(InputError, match="policy (pollux|optimus): " + words.replace("(", r"\(")):
        make_policy(text)
