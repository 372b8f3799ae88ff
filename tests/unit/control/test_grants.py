"""Grants of switch memory: what plans may have, the commands they cause, when they end, and what is remembered."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from grant_cases import CLUSTER, LINKS, REQUIRE, SWITCHES, Planned, granted, plan, region, specs, started
from scripted_runs import decide, finish, floats, ints, submit

from plait.control.controller import Controller
from plait.control.drive import drive
from plait.control.history import History
from plait.control.log import EventLog, read_log
from plait.control.messages import (
    Command,
    Event,
    Grant,
    JobCancelled,
    JobFailed,
    Launch,
    NetworkReported,
    NodeLost,
    Refuse,
    ReplanDue,
    Stop,
    SwitchJoined,
    SwitchLost,
    to_json,
)
from plait.control.replay import replay
from plait.control.snapshot import of_active, restore, snapshot
from plait.core.cluster import Cluster, Network, Switch
from plait.core.errors import InputError, PlaitError, PlanError
from plait.core.jobs import Checkpoints, InaRequest, JobBatch, JobSpec, Phase
from plait.core.network_grants import NetworkGrant
from plait.placement.pinned import HELD

# -- which plans are refused --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("grants", "words"),
    [
        ([region(1, 0, 8)], r"memory of switch 'leaf0' to job 'j1' \(number 1\), which it does not run"),
        ([region(7, 0, 8)], r"to job number 7, which it does not run"),
        ([region(0, 0, 8, "leaf9")], "switch 'leaf9' to job 'j0' .*does not have; it has leaf0, leaf1, spine"),
        ([NetworkGrant(0, "spine")], "switch 'spine' to job 'j0' .*no aggregators for jobs"),
        ([region(0, 60, 8)], "switch 'leaf0' to job 'j0' .*up to aggregator 67; jobs may use 0 to 63"),
        ([region(0, 0, 8), region(2, 7, 8)], "'j2' .*region 7 to 14 has aggregators of 0 to 7, which job 'j0' .*alone"),
        ([region(0, 0, 8), NetworkGrant(2, "leaf0", 4, 60, "hybrid_region")], "'j2' .*4 to 63 has aggregators of 0 to"),
        ([region(0, 0, 8), NetworkGrant(0, "leaf0")], "'j0' .*and has another grant for the same; give it one"),
        ([region(0, 0, 8, server=4)], "'j0' .*server on node number 4; there are 0 to 3"),
        ([NetworkGrant(3, "leaf0")], r"'j3' .*wants no aggregation \(ina is off\)"),
    ],
)
def test_a_grant_that_no_switch_can_serve_is_refused_by_job_and_switch(grants: list[NetworkGrant], words: str) -> None:
    jobs = [*specs(3), JobSpec(id="j3", ina=InaRequest("off"))]
    with pytest.raises(PlanError, match=f"policy planned made a plan that grants .*{words}"):
        started([plan({0: (0,), 2: (1,), 3: (2,)}, *grants)], jobs)


def test_shared_memory_and_overlapping_hybrid_regions_are_no_fault() -> None:
    several = [
        NetworkGrant(0, "leaf0", 0, 40, "hybrid_region"), NetworkGrant(1, "leaf0", 20, 44, "hybrid_region"),
        NetworkGrant(2, "leaf1", window=8), region(3, 0, 64, "leaf1"), NetworkGrant(0, "leaf1"),
    ]  # fmt: skip
    controller, commands = started([plan({job: (job,) for job in range(4)}, *several)], specs(4))
    assert set(controller.grants) == set(several)
    assert granted(commands)[0].jobs == [0, 1, 2, 3]


def test_a_cluster_without_network_or_without_aggregation_grants_nothing() -> None:
    with pytest.raises(PlanError, match=r"'leaf0' to job 'j0' .*, and this cluster has no network"):
        started([plan({0: (0,)}, region(0, 0, 8))], specs(1), Cluster.parse("1x1"))
    controller = Controller(Planned([plan({0: (0,)}, region(0, 0, 8))]), CLUSTER, aggregates=False)
    controller.handle(submit(0, *specs(1)))
    with pytest.raises(PlanError, match=r"to job 'j0' .*; switches do not aggregate here"):
        controller.handle(decide(0.0))


def test_a_grant_on_a_lost_switch_or_with_a_new_server_on_a_lost_node_is_refused() -> None:
    first = region(0, 0, 8, server=3)
    moved = region(0, 0, 16, server=3)
    controller, _ = started([plan({0: (0,)}, first), plan({0: (0,)}, first), plan({0: (0,)}, moved)], specs(1))
    controller.handle(NodeLost(1.0, "n3"))
    assert not granted(controller.handle(decide(1.0)))  # it may stay until the policy has a better place
    controller.handle(NodeLost(2.0, "n2"))
    with pytest.raises(PlanError, match=r"'j0' .*with a server on node 'n3', which is down"):
        controller.handle(decide(2.0))
    controller, _ = started([plan({0: (0,)}, first)], specs(1))
    controller.handle(SwitchLost(1.0, "leaf0"))
    with pytest.raises(PlanError, match=r"'leaf0' to job 'j0' .*and the switch is lost"):
        controller.handle(decide(1.0))


@pytest.mark.parametrize(
    "make",
    [
        lambda: NetworkGrant(0, "s", -1, 4, "hybrid_region"),
        lambda: NetworkGrant(0, "s", 0, 1, "dedicated", exclusive=True),
        lambda: NetworkGrant(0, "s", 0, 4, "dedicated"),
        lambda: NetworkGrant(0, "s", mode="hybrid_region"),
        lambda: NetworkGrant(0, "s", exclusive=True),
        lambda: NetworkGrant(0, "s", mode="hash"),  # type: ignore[arg-type]
        lambda: NetworkGrant(0, "s", priority=256),
        lambda: NetworkGrant(0, "s", server=-2),
    ],
)
def test_impossible_grants_name_switch_job_and_field(make: Any) -> None:
    with pytest.raises(InputError, match=r"grant of switch 's' to job number 0: .*, needs "):
        make()


# -- jobs that require aggregation --------------------------------------------------------------------------


def test_a_job_that_requires_aggregation_runs_with_a_grant_only() -> None:
    jobs = specs(1, ina=REQUIRE)
    with pytest.raises(PlanError, match=r"planned made a plan that runs job 'j0' .*without a grant of switch memory"):
        started([plan({0: (0,)})], jobs)
    controller, _ = started([plan({0: (0,)}, region(0, 0, 8)), plan({0: (0,)})], jobs)
    controller.changed = True
    with pytest.raises(PlanError, match="requires in-network aggregation"):
        controller.handle(decide(1.0))
    again = restore(json.loads(json.dumps(snapshot(controller))), Planned([plan({0: (0,)})]))
    with pytest.raises(PlanError, match="requires in-network aggregation"):
        again.handle(decide(1.0))
    with pytest.raises(PlanError, match="requires in-network aggregation"):
        of_active(controller)[0].handle(decide(1.0))


@pytest.mark.parametrize(
    ("cluster", "memory", "reason"),
    [
        (Cluster.parse("4x2"), 0, "requires in-network aggregation, and no switch of this cluster aggregates"),
        (CLUSTER.with_network(Network((*SWITCHES[2:], Switch("leaf0"), Switch("leaf1")), LINKS)), 0, "no switch of"),
        (CLUSTER, 65, "requires 65 aggregators; the switch with most has 64 that jobs may use"),
        (CLUSTER, 64, ""),
    ],
)
def test_what_can_never_be_granted_is_refused_at_submission(cluster: Cluster, memory: int, reason: str) -> None:
    controller = Controller(Planned([]), cluster)
    asked = InaRequest("require", memory=memory)
    commands = controller.handle(submit(0, *specs(1), JobSpec(id="r", ina=asked)))
    assert [(type(one), one.jobs.tolist()) for one in commands] == ([(Refuse, [1])] if reason else [])
    assert all(reason in one.reasons[0] for one in commands)
    assert controller.active.tolist() == [0] if reason else [0, 1]


def test_a_lost_switch_that_comes_back_does_not_refuse_jobs() -> None:
    controller = Controller(Planned([plan({})]), CLUSTER)
    for name in ("leaf0", "leaf1"):
        controller.handle(SwitchLost(0.0, name))
    assert not controller.handle(submit(0, *specs(1, ina=REQUIRE)))


# -- commands -----------------------------------------------------------------------------------------------


def test_a_grant_comes_before_the_launch_and_ends_with_the_job() -> None:
    first, second = region(0, 0, 8), region(1, 0, 8)
    plans = [plan({0: (0,)}, first), plan({1: (0,)}, second), plan({1: (0,)}, region(1, 0, 16))]
    controller, commands = started([*plans, plans[2]], specs(2))
    assert [type(one) for one in commands] == [Grant, Launch]
    assert (commands[0].grants, commands[0].released.tolist()) == ((first,), [])
    controller.changed = True
    commands = list(controller.handle(decide(1.0)))
    assert [type(one) for one in commands] == [Stop, Grant, Launch]
    assert (commands[1].grants, commands[1].released.tolist()) == ((second,), [0])
    controller.changed = True
    (grown,) = controller.handle(decide(2.0))
    assert grown.grants == (region(1, 0, 16),)
    controller.changed = True
    assert not controller.handle(decide(3.0))
    (ended,) = controller.handle(finish(1, 4.0))
    assert (ended.grants, ended.released.tolist()) == ((), [1])
    assert controller.grants == () == controller.view().grants


@pytest.mark.parametrize(
    "event",
    [
        JobFailed(1.0, ints(0), "crashed"), JobCancelled(1.0, ints(0)), NodeLost(1.0, "n0"), finish(0, 1.0),
        SwitchLost(1.0, "leaf0"),
    ],
    ids=lambda event: type(event).__name__,
)  # fmt: skip
def test_what_ends_a_run_or_a_switch_ends_its_grants(event: Event) -> None:
    mine = plan({0: (0,), 1: (2,)}, region(0, 0, 8), region(0, 0, 8, "leaf1"), region(1, 8, 8, "leaf1"))
    controller, _ = started([mine], specs(2))
    (ended,) = granted(controller.handle(event))
    left = (region(0, 0, 8, "leaf1"),) if isinstance(event, SwitchLost) else ()
    assert (ended.grants, ended.released.tolist()) == (left, [] if left else [0])
    assert controller.view().grants == (*left, region(1, 8, 8, "leaf1"))


def test_a_lost_switch_is_a_reason_to_decide_again_and_to_say_so() -> None:
    plans = [plan({0: (0,)}, region(0, 0, 8)), plan({0: (0,)}), plan({0: (0,)}, region(0, 0, 8))]
    controller, _ = started(plans, specs(1))
    (ended,) = controller.handle(SwitchLost(1.0, "leaf0"))
    assert ended.without == {0: "switch leaf0 was lost"}
    assert controller.network_reason(0) == "not aggregated: switch leaf0 was lost"
    controller.handle(decide(1.0))
    view = controller.policy.views[-1]  # type: ignore[attr-defined]
    assert view.cluster.network.down == ("leaf0",)
    assert not view.grants
    controller.handle(SwitchJoined(2.0, "leaf0"))
    assert controller.cluster == CLUSTER
    assert granted(controller.handle(decide(2.0)))[0].grants == (region(0, 0, 8),)


def test_switches_that_nobody_knows_are_refused() -> None:
    controller = Controller(Planned([]), CLUSTER)
    with pytest.raises(InputError, match="no switch 'leaf3' in this network; did you mean 'leaf"):
        controller.handle(SwitchLost(0.0, "leaf3"))
    with pytest.raises(InputError, match="no switch 'leaf0': this cluster has no network"):
        Controller(Planned([]), Cluster.parse("1x1")).handle(SwitchJoined(0.0, "leaf0"))


# -- why, and what was measured -----------------------------------------------------------------------------


def test_whoever_runs_without_aggregation_can_be_told_why() -> None:
    said = plan({0: (0,), 1: (1,), 2: (2,)}, region(0, 0, 8, reason="as it asks"), network_notes={1: "no memory left"})
    jobs = [*specs(2), JobSpec(id="off", ina=InaRequest("off"))]
    controller, commands = started([said, said, plan({0: (0,), 1: (1,)})], jobs)
    assert granted(commands)[0].without == {1: "no memory left"}
    assert "from 0 on, dedicated (as it asks)" in str(controller.network_reason(0))
    assert controller.network_reason(1) == "not aggregated: no memory left"
    assert controller.network_reason(2) is None
    controller.changed = True
    assert not controller.handle(decide(1.0))  # it has been said
    controller.changed = True
    controller.handle(decide(2.0))
    assert controller.network_reason(0) == "not aggregated: policy planned grants it no memory of switches"
    plain, _ = started([plan({0: (0,)})], specs(1), Cluster.parse("1x1"))
    assert plain.network_reason(0) is None


def test_what_was_measured_of_the_network_is_in_the_view_and_decides_nothing() -> None:
    controller, _ = started([plan({0: (0,), 1: (1,)})], specs(2))
    assert controller.view().network is None
    controller.handle(NetworkReported(1.0, ints(0, 1), floats(1e9, 2e9), floats(0.5, math.nan), floats(0.5, 0.0)))
    controller.handle(NetworkReported(2.0, ints(1), floats(3e9), floats(1.0), floats(0.0)))
    seen = controller.view().network
    assert [seen.jobs.tolist(), seen.bits_per_s.tolist(), seen.aggregated.tolist()] == [[0, 1], [1e9, 3e9], [0.5, 1.0]]
    assert not controller.changed
    controller.handle(finish(0, 3.0))
    controller.handle(NetworkReported(3.0, ints(0), floats(9.0), floats(9.0), floats(9.0)))
    assert controller.view().network.jobs.tolist() == [1]  # type: ignore[union-attr]
    with pytest.raises(PlaitError, match="columns of other lengths than its 1 jobs"):
        controller.handle(NetworkReported(4.0, ints(1), floats(), floats(1.0), floats(1.0)))


# -- logs, snapshots, history -------------------------------------------------------------------------------


def test_grants_outlive_a_restart_from_a_snapshot() -> None:
    mine = plan(
        {1: (0,), 2: (1,)}, region(1, 0, 8, routes=(1, 2), reason="first"), network_notes={2: "why not"}
    )  # fmt: skip
    controller, _ = started([plan({0: (0,)}), mine], specs(3))
    assert not {"grants", "network_notes", "network"} & set(snapshot(controller))
    controller.handle(finish(0, 1.0))
    controller.handle(decide(1.0))
    controller.handle(NetworkReported(2.0, ints(1), floats(1e9), floats(math.nan), floats(0.0)))
    controller.handle(SwitchLost(3.0, "leaf1"))
    stored = json.loads(json.dumps(snapshot(controller), allow_nan=False))
    again = restore(stored, controller.policy)
    assert snapshot(again) == snapshot(controller) == stored
    assert (again.grants, again.grants[0].reason, again.cluster) == (controller.grants, "first", controller.cluster)
    assert again.network_reason(2) == "not aggregated: why not"
    small, numbers = of_active(controller)
    assert numbers.tolist() == [1, 2]
    assert (small.grants, dict(small.plan.network_notes)) == ((region(0, 0, 8, routes=(1, 2)),), {1: "why not"})
    assert small.network.jobs.tolist() == [0]
    (ended,) = small.handle(finish(0, 4.0))
    assert ended.released.tolist() == [0]


class Told:
    """A backend that only tells."""

    def __init__(self, *events: Event) -> None:
        self.told = events

    def events(self) -> tuple[Event, ...]:
        return self.told

    def execute(self, command: Command) -> None:
        pass


def test_a_log_with_grants_replays_and_its_history_has_them(tmp_path: Path) -> None:
    plans = [plan({0: (0,)}, region(0, 0, 8), NetworkGrant(0, "leaf1")), plan({0: (0,)}, region(0, 0, 16))]
    told = (
        submit(0, *specs(1)), decide(0.0), SwitchLost(2.0, "leaf1"), decide(2.0),
        NetworkReported(3.0, ints(0), floats(1e9), floats(1.0), floats(0.0)), SwitchJoined(3.0, "leaf1"),
        finish(0, 4.0), ReplanDue(4.0),
    )  # fmt: skip
    controller = Controller(Planned([*plans, plan({})]), CLUSTER)
    history = History(controller)

    with EventLog(tmp_path / "log", policy="planned", cluster=CLUSTER) as log:
        drive(controller, Told(*told), lambda event, commands: (log(event, commands), history(event, commands))[0])
    run = read_log(tmp_path / "log")
    assert run.cluster == CLUSTER
    assert replay(run, Planned([*plans, plan({})]))[1] is None
    other = replay(run, Planned([plans[0], plan({0: (0,)}, region(0, 0, 24)), plan({})]))[1]
    assert other is not None
    assert "'size': 24" in str(other)
    line = history.timeline()
    rows = zip(line.grant_switch, line.grant_job, line.grant_size, line.grant_from_s, line.grant_to_s, strict=True)
    assert list(rows) == [(0, 0, 8, 0.0, 2.0), (1, 0, 0, 0.0, 2.0), (0, 0, 16, 2.0, 4.0)]


# -- jobs that may not be stopped ---------------------------------------------------------------------------


def plain(n: int, **more: Any) -> list[JobSpec]:
    """Jobs that lose all their work when they are stopped, so that no policy may stop them."""
    return specs(n, checkpoints=Checkpoints.NEVER, **more)


def test_jobs_that_stay_keep_their_memory_and_others_wait_for_it() -> None:
    first = plan({0: (0,)}, region(0, 0, 32))
    then = plan({1: (1,), 2: (2,), 3: (3,)}, region(1, 0, 8), region(2, 40, 8), region(3, 24, 16))
    jobs = [*plain(2), *specs(4)[2:3], JobSpec(id="r", ina=REQUIRE)]
    controller, _ = started([first, then], jobs)
    controller.changed = True
    commands = list(controller.handle(decide(1.0)))
    assert controller.grants == (region(0, 0, 32), region(2, 40, 8))
    assert [type(one) for one in commands] == [Grant, Launch]
    assert commands[0].without == {1: HELD}
    assert sorted(commands[1].groups.jobs.tolist()) == [1, 2]
    assert controller.waiting_reason(3) == HELD


def test_a_kept_job_that_had_lost_its_grant_may_run_on_though_it_requires_one() -> None:
    plans = [plan({0: (0,)}, region(0, 0, 32)), plan({}), plan({0: (0,)}, region(0, 0, 4))]
    controller, _ = started(plans, plain(1, ina=REQUIRE))
    controller.handle(SwitchLost(1.0, "leaf0"))
    controller.handle(decide(1.0))
    assert controller.job_store.columns["phase"][0] == int(Phase.RUNNING)
    controller.handle(SwitchJoined(2.0, "leaf0"))
    (again,) = controller.handle(decide(2.0))
    assert again.grants == (region(0, 0, 4),)


def test_grants_on_the_wire_have_few_fields() -> None:
    command = Grant(3, (NetworkGrant(0, "leaf0", 0, 8, "hybrid_region", window=4),), ints(1))
    assert to_json(command) == {
        "type": "Grant", "event": 3, "released": [1],
        "grants": [
            {"job": 0, "switch": "leaf0", "offset": 0, "size": 8, "mode": "hybrid_region", "window": 4, "epoch": 0,
             "server": -1}
        ],
    }  # fmt: skip
    assert JobBatch.of(specs(1)).column("ina").tolist() == [InaRequest()]
