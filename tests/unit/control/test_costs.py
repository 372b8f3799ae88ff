"""Money of runs: prices as they are given, and how they are divided among jobs, idle GPUs and nodes that are down."""

import numpy as np
import pytest
from scripted_runs import decide, finish, run, submit

from plait.control.messages import NodeJoined, NodeLost
from plait.control.metrics import Window, measure
from plait.control.prices import Prices
from plait.core.cluster import Cluster, Node
from plait.core.errors import InputError
from plait.core.jobs import JobSpec
from plait.sim.failures import NodeChange
from plait.sim.studies.cases import Case, run_case
from plait.sim.world import Overheads, World
from plait.traces.load import load_jobs
from plait.traces.synthetic import generate

PRICES = Prices.parse(["3.6"])


def job(name, seconds, **more):
    return JobSpec(id=name, gpus=1, iterations=seconds, iteration_s=1, **more)


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        (["two"], "money per GPU-hour"),
        (["=2"], "money per GPU-hour"),
        (["a100=-1"], "money per GPU-hour"),
        (["a100=inf"], "money per GPU-hour"),
        (["2", "3"], "every kind has a price already"),
        (["a100=2", "a100=3"], "a100 has a price already"),
    ],
)
def test_prices_that_are_none_are_refused(texts, words):
    with pytest.raises(InputError, match=words):
        Prices.parse(texts)


def test_every_kind_needs_a_price_and_no_other_has_one():
    mixed = Cluster.parse("1x2:v100,1x2:a100")
    with pytest.raises(InputError, match="no price for GPU kind 'a100'"):
        Prices.parse(["v100=1"]).refuse_unknown(mixed.kinds)
    with pytest.raises(InputError, match="no GPU is a 'a10'; did you mean 'a100'"):
        Prices.parse(["1", "a10=2"]).refuse_unknown(mixed.kinds)
    assert Prices.parse(["1", "a100=2.5"]).of_gpus(mixed).tolist() == [1, 1, 2.5, 2.5]


def test_jobs_that_share_a_gpu_divide_its_price_while_both_are_there():
    """a and b share GPU 0 until b ends at 40; GPU 1 is idle all the time."""
    events = [submit(0, job("a", 60, user="ada"), job("b", 20, user="bob")), decide(0), finish(1, 40), finish(0, 100)]
    result = measure(*run("1x2", events, [[([0, 1], [0])]]), prices=PRICES)
    assert result.jobs["cost"] == pytest.approx([0.001 * 80, 0.001 * 20])
    assert result.summary["cost_idle"] == pytest.approx(0.001 * 100)
    assert result.summary["cost"] == pytest.approx(2 * 100 / 3600 * 3.6)


def test_a_node_that_is_down_is_paid_for_and_named():
    events = [
        submit(0, job("a", 100)), decide(0), NodeLost(20.0, "n1"), NodeJoined(50.0, Node("n1", 1)),
        finish(0, 100),
    ]  # fmt: skip
    controller, history = run("2x1", events, [[([0], [0])], [([0], [0])], [([0], [0])]])
    summary = measure(controller, history, prices=PRICES).summary
    assert summary["cost_down"] == pytest.approx(0.030)
    assert summary["cost_idle"] == pytest.approx(0.070)
    assert summary["cost_jobs"] == pytest.approx(0.100)


@pytest.mark.parametrize("policy", ["fifo", "2d-las", "muri-l", "antman"])
def test_totals_are_gpus_times_hours_times_price(policy):
    """With restarts, failures, sharing and two kinds of GPU, parts add up to what the whole cluster costs."""
    table = generate("philly", 60, 16, 1.2, 3, models="uniform")
    jobs = load_jobs(table, seed=3).jobs.replace(
        job_class=np.arange(60) % 2, project=np.array([f"p{i % 3}" for i in range(60)], dtype=object)
    )
    cluster, changes = Cluster.parse("2x4:v100,1x8:a100"), []
    name = cluster.nodes[0].id
    first = float(jobs.submit_s[0])
    changes = (NodeChange(first + 5000, name, False), NodeChange(first + 9000, name, True))
    world = World("w", "w", overheads=Overheads.constant(launch_s=5, checkpoint_s=3, restore_s=7))
    prices = Prices.parse(["v100=1", "a100=2.5"], "EUR")
    result = run_case(Case("t", jobs, policy, cluster, world, node_changes=changes, prices=prices))
    s, costs = result.summary, result.costs
    assert s["cost"] == pytest.approx((8 * 1 + 8 * 2.5) * s["span_s"] / 3600, rel=1e-12)
    assert s["cost_jobs"] + s["cost_idle"] + s["cost_down"] == pytest.approx(s["cost"], rel=1e-9)
    assert s["cost_down"] == pytest.approx(4 * 4000 / 3600, rel=1e-9)
    assert costs.job.sum() == pytest.approx(result.jobs["cost"].sum())
    assert (costs.lost >= 0).all()
    assert (costs.lost + costs.restarts <= costs.job + 1e-9).all()
    if s["restarts"]:
        assert s["cost_restarts"] > 0
    if s["lost_work_gpu_h"]:
        assert s["cost_lost"] > 0


def test_jobs_outside_the_window_are_other_jobs():
    events = [
        submit(0, job("a", 50)),
        decide(0),
        submit(1, job("b", 30, submit_s=20)),
        decide(20),
        finish(0, 50),
        finish(1, 50),
    ]
    plans = [[([0], [0])], [([0], [0]), ([1], [1])]]
    result = measure(*run("1x2", events, plans), prices=PRICES, window=Window(10, 100))
    assert result.jobs["cost"] == pytest.approx([0.030])
    assert result.summary["cost_other_jobs"] == pytest.approx(0.030)
    assert result.summary["cost"] == pytest.approx(0.060)
    assert result.summary["cost_idle"] == pytest.approx(0.0, abs=1e-12)


def test_without_prices_there_is_no_money():
    events = [submit(0, job("a", 50)), decide(0), finish(0, 50)]
    result = measure(*run("1x1", events, [[([0], [0])]]))
    assert result.costs is None
    assert not [name for name in (*result.summary, *result.jobs) if name.startswith("cost")]
