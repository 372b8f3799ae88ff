"""Nodes that are reserved: others start nothing there, leave at the start, and every policy works with it."""

import json
from typing import Any

import numpy as np
import pytest
from test_suspect_nodes import handle, on, submit

from plait.control.controller import Controller
from plait.control.messages import Event, JobFinished, NodesReserved, ReplanDue, ReservationCancelled, StopCostReported
from plait.control.snapshot import of_active, restore, snapshot
from plait.core.cluster import Cluster
from plait.core.errors import InputError
from plait.core.jobs import Checkpoints, JobBatch, JobSpec, Phase
from plait.core.plan import NodeReservation
from plait.core.preemption import FREELY
from plait.core.resources import StageProfile
from plait.policies.catalog import CATALOG, make_policy
from plait.sim.run import simulate
from plait.sim.world import make_world

CHEAP = {"pollux-ga": "pollux-ga:generations=3,population=20"}
POLICIES = [CHEAP.get(name, name) for name in CATALOG]


def job(name: str, project: str = "speech", gpus: int = 1, **fields: Any) -> JobSpec:
    return JobSpec(
        id=name, gpus=gpus, project=project, iterations=1e5, profile=StageProfile.of(cpu=0.4, gpu=0.6), **fields
    )


def plain(name: str, project: str = "speech", gpus: int = 1, **fields: Any) -> JobSpec:
    return job(name, project, gpus, checkpoints=Checkpoints.NEVER, **fields)


def reserve(c: Controller, at_s: float, from_s: float, until_s: float, *nodes: str, project: str = "vision") -> None:
    handle(c, NodesReserved(at_s, NodeReservation(f"r-{at_s:g}", nodes, project, from_s, until_s)), ReplanDue(at_s))


def projects_on(c: Controller, node: int) -> set[str]:
    return {c.job_store.spec(number).project for number in on(c, node)}


def decide(c: Controller, at_s: float) -> None:
    """Decide at a time at which nothing else happens."""
    handle(c, ReplanDue(at_s))


@pytest.mark.parametrize("name", POLICIES)
def test_a_reserved_node_has_jobs_of_its_project_alone(name: str) -> None:
    c = Controller(make_policy(name), Cluster.parse("3x2"))
    reserve(c, 0.0, 0.0, 1000.0, "n1")
    submit(c, 1.0, *(job(f"a{i}") for i in range(8)), job("b", cpus=1.0))
    assert projects_on(c, 1) == set()
    assert projects_on(c, 0) | projects_on(c, 2) == {"speech"}
    submit(c, 400.0, job("v", "vision"), job("w", "vision"))
    assert projects_on(c, 1) <= {"vision"}
    decide(c, 999.0)
    assert projects_on(c, 1) <= {"vision"}
    assert c.plan.valid_until_s <= 1000.0
    for at_s in (1000.0, 1400.0, 1800.0):  # policies with rounds of their own
        decide(c, at_s)
    assert projects_on(c, 1)


@pytest.mark.parametrize("name", POLICIES)
def test_jobs_with_checkpoints_leave_at_the_start_and_others_stay(name: str) -> None:
    c = Controller(make_policy(name), Cluster.parse("2x1"))
    submit(c, 0.0, plain("plain"))
    submit(c, 0.5, job("saves"))
    handle(c, StopCostReported(1.0, np.array([0, 1]), np.array([0, 2]), np.full(2, np.nan), np.array([np.nan, 5.0])))
    for at_s in (400.0, 800.0):
        decide(c, at_s)
    (node,) = {n for n in (0, 1) if 1 in on(c, n)}
    (other,) = {n for n in (0, 1) if 0 in on(c, n)} - {node}
    reserve(c, 900.0, 1000.0, 5000.0, "n0", "n1")
    assert on(c, node) >= {1}
    assert c.plan.valid_until_s <= 1000.0
    decide(c, 1000.0)
    assert on(c, node) == set()
    assert on(c, other) == {0}
    assert "n0 and n1 are reserved for project vision" in (c.waiting_reason(1) or "")
    submit(c, 1400.0, job("v", "vision"))
    assert on(c, node) == {2}
    handle(c, JobFinished(1800.0, np.array([0]), np.array([1800.0])), ReplanDue(1800.0))
    assert 1 not in on(c, other)


@pytest.mark.parametrize("name", ["fifo", "tiresias-l", "muri-l", "antman", "plait"])
def test_before_the_start_only_jobs_start_that_have_left_by_then(name: str) -> None:
    c = Controller(make_policy(name), Cluster.parse("2x1"))
    reserve(c, 0.0, 3600.0, 7200.0, "n0", "n1")
    submit(c, 1.0, plain("no limit"), plain("too long", time_limit_s=4000.0), plain("short", time_limit_s=3000.0))
    assert on(c, 0) | on(c, 1) == {2}
    submit(c, 2.0, job("saves"), plain("own", "vision"))
    started = on(c, 0) | on(c, 1)
    assert started in ({2, 3}, {2, 4}) or (name == "plait" and started == {2, 3, 4})  # which has guests
    decide(c, 1000.0)
    reserve(c, 1001.0, 9000.0, 9001.0, "n1", project="nlp")  # a second one does not open what the first closes
    assert 0 not in on(c, 0) | on(c, 1)


def test_the_reason_names_few_of_many_reservations() -> None:
    c = Controller(make_policy("fifo"), Cluster.parse("1x1"))
    for number in range(9):
        reserve(c, number, 100.0 + 10 * number, 101.0 + 10 * number, "n0")
    submit(c, 10.0, plain("a"))
    assert (c.waiting_reason(0) or "").count("n0 is reserved for project vision") == 3


@pytest.mark.parametrize("name", ["pollux", "sia"])
def test_gpus_of_nodes_reserved_for_others_are_not_free_in_a_reason(name: str) -> None:
    c = Controller(make_policy(name), Cluster.parse("1x4,1x3"))
    reserve(c, 0.0, 0.0, 1000.0, "n0")
    submit(c, 1.0, job("v", "vision"), job("a", gpus=3))
    assert (on(c, 0), on(c, 1)) == ({0}, {1})
    submit(c, 2.0, job("b"))
    assert "needs 1 GPU together; of 7 GPUs 0 are free" in (c.waiting_reason(2) or "")


def test_gangs_span_reserved_and_other_nodes() -> None:
    c = Controller(make_policy("fifo"), Cluster.parse("3x2"))
    reserve(c, 0.0, 0.0, 1000.0, "n1")
    submit(c, 1.0, job("others", gpus=6), job("wide", "vision", gpus=6))
    assert on(c, 0) == on(c, 1) == on(c, 2) == {1}


def test_a_reservation_survives_a_snapshot_and_ends_with_its_cancellation() -> None:
    c = Controller(make_policy("fifo"), Cluster.parse("2x1"))
    reserve(c, 0.0, 0.0, 1000.0, "n0")
    again = restore(json.loads(json.dumps(snapshot(c))), make_policy("fifo"))
    copy, _ = of_active(again)
    assert copy.reserved == again.reserved == c.reserved == c.reserved_ahead
    submit(again, 1.0, plain("a"), plain("b"))
    assert on(again, 0) == set()
    assert len(on(again, 1)) == 1
    handle(again, ReservationCancelled(2.0, "r-0"), ReplanDue(2.0))
    assert again.reserved_ahead == ()
    assert len(on(again, 0)) == 1
    assert [one.until_s for one in again.reserved] == [2.0]  # known still, so that its id is not given again


def test_reservations_without_nodes_or_time_are_refused() -> None:
    with pytest.raises(InputError, match="needs a node and a project"):
        NodeReservation("r-1", (), "vision", 0.0, 1.0)
    with pytest.raises(InputError, match="needs an end after 5 s"):
        NodeReservation("r-1", ("n0",), "vision", 5.0, 5.0)


@pytest.mark.parametrize("name", ["fifo-backfill", "srtf", "muri-l", "antman", "pollux"])
def test_simulated_runs_keep_reservations(name: str) -> None:
    projects = ("vision", "speech", "nlp")
    jobs = JobBatch.of(
        JobSpec(id=f"j{i}", submit_s=60.0 * i, gpus=1 + i % 2, iterations=900, iteration_s=1.0, project=projects[i % 3])
        for i in range(24)
    )
    seen: set[str] = set()

    def observe(c: Controller) -> Any:
        def step(event: Event, commands: Any) -> None:
            if isinstance(event, ReplanDue) and 2000.0 <= event.at_s < 4000.0:
                seen.update(projects_on(c, 0))

        return step

    found = simulate(
        jobs, Cluster.parse("2x2"), make_policy(name), make_world("ideal"), check=True, observe=observe, rule=FREELY,
        reservations=[NodeReservation("r-1", ("n0",), "vision", 2000.0, 4000.0)],
    )  # fmt: skip
    columns = found.controller.job_store.columns
    assert (columns["phase"][:24] == int(Phase.FINISHED)).all()
    assert seen == {"vision"}
