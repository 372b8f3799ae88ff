"""Nodes that come and go by policy, and nodes that are away for long."""

from dataclasses import dataclass

import pytest

from plait.control.history import History
from plait.control.metrics import measure
from plait.control.prices import Prices
from plait.core.cluster import Cluster
from plait.core.errors import InputError, SimulationError
from plait.core.jobs import JobBatch, JobSpec
from plait.core.plan import Groups, Plan
from plait.core.policy import Policy, View
from plait.goodput.shipped import shipped
from plait.policies.catalog import make_policy
from plait.sim.failures import ElasticNodes, NodeChange
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


#: minute by minute these are 166 decisions, more than three times those after which a run is stuck here
AWAY_S = 10_000.0


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("plait.sim.backend.PATIENCE", 50)


@dataclass(frozen=True)
class Asking:
    """A policy that runs nothing and asks again in a minute."""

    def decide(self, view: View) -> Plan:
        return Plan(Groups.of([]), valid_until_s=view.now_s + 60.0)


def end_s(policy: Policy, cluster: str, *changes: NodeChange, **job: object) -> float:
    spec = JobSpec(**{"id": "a", "gpus": 4, "iterations": 3600.0, "iteration_s": 1.0, **job})
    run = simulate(JobBatch.of([spec]), Cluster.parse(cluster), policy, make_world("ideal"), node_changes=changes)
    return float(run.controller.job_store.columns["end_s"][0])


def away(node: str) -> tuple[NodeChange, NodeChange]:
    return NodeChange(10.0, node, False), NodeChange(AWAY_S, node, True)


@pytest.mark.parametrize("policy", ["optimus", "fifo"])
def test_a_job_goes_on_when_its_only_node_is_back(policy: str):
    assert end_s(make_policy(policy), "1x4", *away("n0")) == pytest.approx(AWAY_S + 3600.0, abs=60.0)


def test_a_wide_job_waits_for_the_one_node_it_needs():
    assert end_s(make_policy("optimus"), "2x4", *away("n0"), gpus=8) == pytest.approx(AWAY_S + 3600.0, abs=60.0)


@pytest.mark.parametrize(
    ("cluster", "job"),
    [("1x4:a,1x8:b", {"gpu_kinds": frozenset({"a"})}), ("1x4+8c,1x4+4c", {"cpus": 8.0}), ("1x2,2x1", {})],
    ids=["kind", "cores", "size"],
)
def test_room_is_what_the_job_can_use(cluster: str, job: dict[str, object]):
    assert end_s(make_policy("optimus"), cluster, *away("n0"), **job) == pytest.approx(AWAY_S + 3600.0, abs=60.0)


@pytest.mark.parametrize("changes", [(), away("n1")], ids=["whole", "a node is away"])
def test_who_runs_nothing_though_there_is_room_is_stuck(changes: tuple[NodeChange, ...]):
    with pytest.raises(SimulationError, match=r"no job made progress in 50 decisions until 5[89]"):
        end_s(Asking(), "2x4", *changes)


def test_without_a_node_that_will_return_waiting_ends():
    with pytest.raises(SimulationError, match="no job made progress in 50 decisions"):
        end_s(make_policy("optimus"), "1x4", NodeChange(10.0, "n0", False))
