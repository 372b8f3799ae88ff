"""Nodes that come and go by policy in a simulation, and what they cost."""

from __future__ import annotations

import pytest

from plait.control.history import History
from plait.control.metrics import measure
from plait.control.prices import Prices
from plait.core.cluster import Cluster
from plait.core.errors import InputError
from plait.core.jobs import JobBatch, JobSpec
from plait.goodput.shipped import shipped
from plait.policies.catalog import make_policy
from plait.sim.failures import ElasticNodes
from plait.sim.run import simulate
from plait.sim.world import make_world
from plait_papers.pollux.autoscale import run_autoscaling


def run(jobs: list[JobSpec], policy: str, elastic: ElasticNodes | None, cluster: str = "4x4"):
    kept: list[History] = []

    def observe(controller):
        kept.append(History(controller))
        return kept[0]

    done = simulate(
        JobBatch.of(jobs), Cluster.parse(cluster), make_policy(policy), make_world("ideal"), observe=observe,
        elastic=elastic,
    )  # fmt: skip
    return measure(done.controller, kept[0], prices=Prices.parse(["1"]), pays_down=elastic is None)


def job(name: str, gpus: int, hours: float = 1.0, submit_s: float = 0.0) -> JobSpec:
    return JobSpec(id=name, gpus=gpus, submit_s=submit_s, iterations=3600 * hours, iteration_s=1.0)


def test_by_requests_a_job_waits_for_its_nodes_and_idle_ones_leave() -> None:
    """8 GPUs need one node more: 120 s. It idles for the 2 h that a job of one node goes on, and leaves after 300 s."""
    jobs = [job("wide", 8), job("long", 4, hours=3.0)]
    result = run(jobs, "fifo-backfill", ElasticNodes(1, 3, start_s=120.0, idle_s=300.0))
    wide, long = result.jobs["end_s"].tolist()
    assert long == pytest.approx(3 * 3600.0)
    assert wide == pytest.approx(120.0 + 3600.0, abs=1.0)
    # One node for 3 h, two from 120 s for an hour and at least 300 s more, at most two looks later.
    least = 4 * 3 + 8 * (1 + 300 / 3600)
    assert least <= result.costs.total <= least + 8 * 125 / 3600
    assert result.costs.down == 0.0
    fixed = run(jobs, "fifo-backfill", None, "3x4")
    assert fixed.costs.total == pytest.approx(36.0)


def test_a_late_job_between_two_looks_brings_its_node() -> None:
    jobs = [job("first", 4, 0.1), job("second", 4, 0.1, submit_s=365.0)]
    result = run(jobs, "fifo", ElasticNodes(0, 1, start_s=30.0, idle_s=0.0))
    assert result.summary["finished"] == 2
    assert result.jobs["end_s"].max() < 365 + 60 + 30 + 360 + 2


def test_nodes_leave_while_no_job_is_there() -> None:
    """Ten hours without a job between two of them, and 300 s for which each of four nodes idles."""
    for hours in (1.0, 1.01):  # it ends at a look, or between two
        result = run([job("wide", 16, hours), job("late", 4, submit_s=11 * 3600.0)], "fifo", ElasticNodes(0, 4))
        assert 20 < result.costs.total < 20.2 + (4 + 1) * 4 * 600 / 3600


def test_a_policy_may_empty_nodes_and_nothing_of_their_work_is_lost() -> None:
    """A job that adapts has nodes as long as pollux values them, at most four."""
    model = shipped()["cifar10"]
    adaptive = JobSpec(
        id="a", gpus=1, max_gpus=16, model=model.name, batch=model.batch, iterations=model.iterations,
        iteration_s=model.iteration_s(1, 1),
    )  # fmt: skip
    result = run([adaptive], "pollux:autoscale=on", ElasticNodes(1, 4))
    assert result.summary["finished"] == 1
    assert result.summary["lost_work_gpu_h"] == 0.0
    whole = run([adaptive], "pollux", None)
    assert result.costs.total < 0.95 * whole.costs.total
    assert result.summary["avg_jct_s"] < 2 * whole.summary["avg_jct_s"]
    within = run([adaptive], "pollux:autoscale=on,quota=*=64", ElasticNodes(1, 4))
    assert within.costs.total == result.costs.total, "within quotas as well"


def test_a_wrong_range_of_nodes_is_refused() -> None:
    assert ElasticNodes.parse("1..4", 60.0) == ElasticNodes(1, 4, 60.0)
    for text in ("4", "4..1", "a..b", "-1..3"):
        with pytest.raises(InputError, match="elastic"):
            ElasticNodes.parse(text, 60.0)
    with pytest.raises(InputError, match="of 8 nodes needs as many; this one has 4"):
        run([job("j", 1)], "fifo", ElasticNodes(1, 8))


def test_goodput_rents_fewer_nodes_than_throughput() -> None:
    """The autoscaling experiment on a twentieth of the training."""
    pollux, theirs = (run_autoscaling(policy, part=0.05) for policy in ("pollux", "or-et-al"))
    assert pollux["cost"] < 0.9 * theirs["cost"]
    assert pollux["avg_jct_s"] < 1.5 * theirs["avg_jct_s"]
    assert theirs["mean_nodes"] > pollux["mean_nodes"]
