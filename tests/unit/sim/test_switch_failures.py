"""Switches that fail: jobs go on without, get memory again, or wait; drawn, from a file, from snapshots and logs."""

from dataclasses import replace
from itertools import islice, takewhile
from pathlib import Path

import pytest

from plait.control.history import History
from plait.control.log import EventLog, read_log
from plait.control.messages import NodeJoined, NodeLost, SwitchJoined, SwitchLost
from plait.control.replay import replay
from plait.core.cluster import Cluster
from plait.core.errors import InputError, TraceError
from plait.core.ina_request import InaRequest
from plait.core.jobs import JobBatch, JobSpec
from plait.network.topology.read import networked
from plait.policies.catalog import make_policy
from plait.sim.contention.network import NetworkPhysics
from plait.sim.contract import SmallWorkload, play
from plait.sim.failures import NodeChange, drawn_failures, drawn_switch_failures, read_failures
from plait.sim.run import simulate
from plait.sim.world import World, make_world

pytestmark = pytest.mark.filterwarnings("ignore:plait. rates of jobs that share nodes:RuntimeWarning")

ONE = networked(Cluster.parse("4x4"), "single-switch:aggregators=40000,link_gbps=80")
RACKS = networked(Cluster.parse("8x4@4"), "leaf-spine:oversubscription=2,aggregators=4000")
WORLD = replace(make_world("ideal"), physics=NetworkPhysics(rates="law"))
#: Seconds of an iteration on four nodes as a ring, and with aggregation (as in the tests of the policy).
RING_S, ADDED_S = 0.4, 0.4 - 0.15 + 0.1 * 306 / 248
(SWITCH,) = ONE.network.names  # type: ignore[union-attr]


def job(**more: object) -> JobBatch:
    return JobBatch.of(
        [JobSpec(id="j", gpus=16, iterations=1000, iteration_s=RING_S, gradient_bytes=1e9, **more)]  # type: ignore[arg-type]
    )


def ended(jobs: JobBatch, *changes: NodeChange, world: World = WORLD, policy: str = "fifo:ina=switchml"):
    seen: list[tuple[float, str]] = []
    history: list[History] = []

    def observe(controller):
        history.append(History(controller))

        def step(event, commands):
            history[0](event, commands)
            if isinstance(event, (SwitchLost, SwitchJoined)):
                seen.append((event.at_s, type(event).__name__))

        return step

    done = simulate(jobs, ONE, make_policy(policy), world, node_changes=changes, check=True, observe=observe)
    return float(done.controller.job_store.columns["end_s"][0]), seen, history[0].timeline(), done.controller


AWAY = NodeChange(100.0, SWITCH, False), NodeChange(200.0, SWITCH, True)


def test_a_job_goes_on_as_a_ring_while_its_switch_is_lost() -> None:
    end_s, seen, timeline, _ = ended(job(), *AWAY)
    assert seen == [(100.0, "SwitchLost"), (200.0, "SwitchJoined")]
    as_ring = 100 / RING_S
    assert end_s == pytest.approx(100 + (1000 - as_ring) * ADDED_S, abs=0.01)
    assert list(zip(timeline.grant_from_s, timeline.grant_to_s, strict=True)) == [(0, 100), (200, end_s)]
    lost = timeline.lost_switch, timeline.lost_from_s, timeline.lost_to_s
    assert [column.tolist() for column in lost] == [[0], [100.0], [200.0]]


def test_a_job_that_requires_aggregation_waits_for_its_switch() -> None:
    end_s, *_ = ended(job(ina=InaRequest("require")), *AWAY)
    assert end_s == pytest.approx(1000 * ADDED_S + 100, abs=0.01)
    rounds = replace(WORLD, round_s=60.0)
    end_s, *_ = ended(job(ina=InaRequest("require")), *AWAY, world=rounds)
    # From 100 s to the round at 120 s it goes on as a ring; from the round at 240 s it runs again.
    assert end_s == pytest.approx(1000 * ADDED_S + 120 + 20 * (1 - ADDED_S / RING_S), abs=0.01)


def test_a_policy_that_asks_every_minute_is_not_stuck_while_the_only_switch_is_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("plait.sim.backend.PATIENCE", 50)
    away = NodeChange(100.0, SWITCH, False), NodeChange(10_000.0, SWITCH, True)
    end_s, *_ = ended(job(ina=InaRequest("require")), *away, policy="optimus:ina=switchml")
    assert end_s == pytest.approx(1000 * ADDED_S + 9900, abs=60)


def test_the_reason_names_the_lost_switch() -> None:
    *_, controller = ended(job(), AWAY[0])
    assert controller.plan.network_notes == {}
    seen: list[str] = []

    def observe(controller):
        return lambda event, commands: seen.append(controller.plan.network_notes.get(0, ""))

    simulate(job(), ONE, make_policy("fifo:ina=atp"), WORLD, node_changes=AWAY[:1], observe=observe)
    assert any(f"switch {SWITCH} was lost" in note for note in seen)
    assert any(f"{SWITCH} is lost" in note for note in seen)


def test_changes_of_the_same_state_and_unaggregated_clusters_are_left_alone() -> None:
    twice = (AWAY[0], replace(AWAY[0], at_s=150.0), AWAY[1], replace(AWAY[1], at_s=250.0))
    assert ended(job(), *twice)[:2] == ended(job(), *AWAY)[:2]
    assert ended(job(), *AWAY, policy="fifo")[0] == pytest.approx(1000 * RING_S)


def test_drawn_failures_are_those_of_the_seed_and_do_not_change_those_of_nodes() -> None:
    drawn = [tuple(islice(drawn_switch_failures(RACKS, 3600, 600, seed), 12)) for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert list(drawn[0]) == sorted(drawn[0])
    assert {change.node for change in drawn[0]} == {"leaf0", "leaf1"}
    assert list(drawn_switch_failures(Cluster.parse("2x4"), 10, 10, 0)) == []
    world = replace(WORLD, switch_mtbf_s=300.0, switch_mttr_s=100.0, node_mtbf_s=2000.0, node_mttr_s=50.0)
    jobs = JobBatch.of(
        JobSpec(id=f"j{i}", submit_s=50.0 * i, gpus=8, iterations=1000, iteration_s=0.4, gradient_bytes=1e9)
        for i in range(6)
    )
    runs: list[list[tuple[float, str, bool]]] = []
    for _ in range(2):
        found: list[tuple[float, str, bool]] = []
        runs.append(found)

        def observe(controller, found=found):
            def step(event, commands):
                if isinstance(event, (SwitchLost, SwitchJoined)):
                    found.append((event.at_s, event.switch, isinstance(event, SwitchJoined)))
                elif isinstance(event, (NodeLost, NodeJoined)):
                    up = isinstance(event, NodeJoined)
                    found.append((event.at_s, event.node.id if up else event.node, up))

            return step

        done = simulate(jobs, RACKS, make_policy("srtf:ina=atp"), world, seed=3, check=True, observe=observe)
    assert runs[0] == runs[1]
    end_s = float(done.controller.job_store.columns["end_s"][:6].max())
    drawn_ones = [
        *takewhile(lambda c: c.at_s < end_s, drawn_failures(RACKS, 2000.0, 50.0, 3)),
        *takewhile(lambda c: c.at_s < end_s, drawn_switch_failures(RACKS, 300.0, 100.0, 3)),
    ]
    assert runs[0] == sorted((c.at_s, c.node, c.up) for c in drawn_ones)
    assert {name[:4] for _, name, _ in runs[0]} > {"leaf"}


@pytest.mark.parametrize("policy", ["srtf:ina=inalloc", "fifo-backfill:ina=switchml"])
def test_runs_with_lost_switches_go_on_from_snapshots_and_replay_from_logs(policy: str, tmp_path: Path) -> None:
    jobs = JobBatch.of(
        JobSpec(
            id=f"j{i}", submit_s=30.0 * i, gpus=8, iterations=500, iteration_s=0.4, gradient_bytes=1e9,
            deadline_s=2000.0 if i % 2 else None, ina=InaRequest("require" if i == 3 else "auto"),
        )
        for i in range(8)
    )  # fmt: skip
    changes = tuple(
        NodeChange(at, f"leaf{i % 2}", up) for i, (at, up) in enumerate(
            [(70, False), (90, False), (150, True), (210, True), (300, False), (301, False), (420, True), (430, True)]
        )
    )  # fmt: skip
    workload = SmallWorkload("lost switches", jobs, RACKS, WORLD, changes=changes)
    whole = play(make_policy(policy), workload)
    assert sum('"SwitchLost"' in line for line in whole.lines) == 4
    steps = range(4, len(whole.lines), max(1, len(whole.lines) // 10))
    parts = play(make_policy(policy), workload, restarts={step: lambda: make_policy(policy) for step in steps})
    assert parts.lines == whole.lines
    assert parts.commands == whole.commands
    with EventLog(tmp_path / "log", policy=policy, cluster=RACKS) as log:
        simulate(
            jobs, RACKS, make_policy(policy), WORLD, node_changes=changes, check=True,
            observe=lambda controller: log,
        )  # fmt: skip
    assert replay(read_log(tmp_path / "log"), make_policy(policy))[1] is None


def test_a_file_names_nodes_and_switches(tmp_path: Path) -> None:
    path = tmp_path / "failures.csv"
    path.write_text("at_s,node,state\n200,leaf0,up\n100,leaf0,down\n150,n3,down\n")
    assert read_failures(path, RACKS) == (
        NodeChange(100.0, "leaf0", False), NodeChange(150.0, "n3", False), NodeChange(200.0, "leaf0", True),
    )  # fmt: skip
    with pytest.raises(TraceError, match=r"no such node or switch.*leaf0"):
        read_failures(path, Cluster.parse("8x4"))


def test_means_are_positive() -> None:
    with pytest.raises(InputError, match="switch_mtbf_s must be > 0"):
        replace(WORLD, switch_mtbf_s=0.0)
