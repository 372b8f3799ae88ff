"""Nodes that are away for long: policies that ask every minute wait for them; one that runs nothing is found out."""

from dataclasses import dataclass

import pytest

from plait.core.cluster import Cluster
from plait.core.errors import SimulationError
from plait.core.jobs import JobBatch, JobSpec
from plait.core.plan import Groups, Plan
from plait.core.policy import Policy, View
from plait.policies.catalog import make_policy
from plait.sim.failures import NodeChange
from plait.sim.run import simulate
from plait.sim.world import make_world

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
