"""Grants of switch memory in the simulator: kept as commands say, released with their jobs, replayed from logs."""

from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from plait.control.controller import Controller
from plait.control.log import EventLog, read_log
from plait.control.messages import Command, Event, Grant
from plait.control.replay import replay
from plait.core.cluster import Cluster, Link, Network, Switch
from plait.core.errors import InputError, PlanError, SimulationError
from plait.core.jobs import InaRequest, JobBatch, JobSpec
from plait.core.network_grants import NetworkGrant
from plait.core.plan import Plan
from plait.core.policy import Policy, View
from plait.policies.catalog import make_policy
from plait.sim.backend import Simulator
from plait.sim.contention.network import NetworkPhysics
from plait.sim.contract import COSTLY, IDEAL, SmallWorkload, play, random_jobs
from plait.sim.run import simulate

SIZE = 16
CLUSTER = Cluster.parse("4x4").with_network(
    Network((Switch("leaf0", aggregators=4 * SIZE),), tuple(Link(f"n{i}", "leaf0", 1e11) for i in range(4)))
)


@dataclass
class Partitioned:
    """Plans of another policy, in which jobs get equal regions as long as there are some; the others run without."""

    policy: Policy
    grants = True
    name = "partitioned"

    def decide(self, view: View) -> Plan:
        plan = self.policy.decide(view)
        jobs = plan.groups.jobs.tolist()
        kept = {one.job: one for one in view.grants if one.job in jobs}
        free = iter([i for i in range(4) if i not in {one.offset // SIZE for one in kept.values()}])
        asks = [job for job in jobs if job not in kept]
        new = [
            NetworkGrant(job, "leaf0", i * SIZE, SIZE, "dedicated", exclusive=True)
            for job, i in zip(asks, free, strict=False)
        ]
        left = dict.fromkeys(asks[len(new) :], "all regions are taken")
        return replace(plan, grants=(*kept.values(), *new), network_notes=left)


def test_a_run_with_grants_keeps_its_invariants_and_replays(tmp_path: Path) -> None:
    jobs = random_jobs(3, 25)
    told: list[Command] = []

    def watch(controller: Controller) -> object:
        def step(event: Event, commands: list[Command]) -> None:
            told.extend(commands)
            log(event, commands)

        return step

    with EventLog(tmp_path / "log", policy="partitioned", cluster=CLUSTER) as log:
        policy = Partitioned(make_policy("srtf"))
        done = simulate(jobs, CLUSTER, policy, COSTLY, check=True, observe=watch)  # type: ignore[arg-type]
    some = [command for command in told if isinstance(command, Grant)]
    assert sum(len(one.grants) for one in some) == sum(len(one.released) for one in some) > 20
    assert any(one.without for one in some)
    assert done.backend.grants == {}
    assert replay(read_log(tmp_path / "log"), Partitioned(make_policy("srtf")))[1] is None


def test_a_run_with_grants_goes_on_unchanged_from_snapshots() -> None:
    workload = SmallWorkload("shared switch", random_jobs(5, 12), CLUSTER, COSTLY)
    whole = play(Partitioned(make_policy("srtf")), workload)
    steps = range(10, len(whole.lines), max(1, len(whole.lines) // 8))
    parts = play(
        Partitioned(make_policy("srtf")),
        workload,
        restarts={step: lambda: Partitioned(make_policy("srtf")) for step in steps},
    )
    assert parts.lines == whole.lines
    assert sum('"Grant"' in line for line in whole.commands) > 10


def test_grants_change_no_decision_of_a_run_without_physics_of_the_network() -> None:
    jobs = random_jobs(5, 15)
    runs = [
        simulate(jobs, CLUSTER, policy, COSTLY, check=True).controller.job_store.columns["end_s"][:15]
        for policy in (make_policy("srtf"), Partitioned(make_policy("srtf")))
    ]
    assert runs[0].tolist() == runs[1].tolist()


def test_jobs_that_require_aggregation_need_a_cluster_and_a_policy_that_grant_it() -> None:
    job = JobSpec(id="r", iterations=10.0, iteration_s=1.0, ina=InaRequest("require"))
    jobs = JobBatch.of([job, JobSpec(id="a", iterations=10.0, iteration_s=1.0)])
    plain = simulate(jobs, Cluster.parse("4x4"), make_policy("fifo"), IDEAL, check=True).controller
    assert "no switch of this cluster aggregates" in plain.job_store.columns["reason"][0]
    with pytest.raises(PlanError, match=r"runs job 'r' .*requires in-network aggregation"):
        simulate(jobs, CLUSTER, make_policy("fifo"), IDEAL)
    done = simulate(jobs, CLUSTER, Partitioned(make_policy("fifo")), IDEAL, check=True).controller
    assert done.job_store.columns["end_s"][:2].tolist() == [10.0, 10.0]


def test_switches_that_miss_a_release_break_an_invariant(monkeypatch: pytest.MonkeyPatch) -> None:
    carry_out = Simulator.execute

    def forgetful(self: Simulator, command: Command) -> None:
        if not (isinstance(command, Grant) and len(command.released)):
            carry_out(self, command)

    monkeypatch.setattr(Simulator, "execute", forgetful)
    with pytest.raises(SimulationError, match="the simulated switches have other grants than the controller"):
        simulate(random_jobs(3, 8), CLUSTER, Partitioned(make_policy("srtf")), COSTLY, check=True)


def test_windows_that_change_have_no_law_and_jobs_of_another_system_are_refused() -> None:
    job = JobSpec(id="r", iterations=10.0, iteration_s=1.0, gpus=8, ina=InaRequest("require", protocol="atp"))
    jobs = JobBatch.of([job, JobSpec(id="a", iterations=10.0, iteration_s=1.0)])
    world = replace(IDEAL, physics=NetworkPhysics())
    with pytest.raises(InputError, match="rates=law has no congestion control, which a2tp needs"):
        simulate(jobs, CLUSTER, make_policy("fifo:ina=a2tp"), replace(IDEAL, physics=NetworkPhysics(rates="law")))
    found = simulate(jobs, CLUSTER, make_policy("fifo:ina=inalloc"), world, check=True).controller.job_store.columns
    assert found["reason"][0] == (
        "ina is require, and the job asks for atp; the switches run inalloc; leave protocol out, or submit it with auto"
    )
    assert found["end_s"][1] == 10.0
