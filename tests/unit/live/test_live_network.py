"""In-network aggregation in a live cluster, without processes: who serves, what is granted, told and taken back."""

import json
import secrets
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from live_cases import Cluster

from plait.core.errors import InputError
from plait.live.layout import Layout, network_secret
from plait.live.protocol.wire import Exchange, Lease, SwitchSeen
from plait.live.scheduler.network.tell import MANY_NUMBERS, PATIENCE_S, REFUSED_S
from plait.live.scheduler.state import State
from plait.runtime.network.grant import NetworkGrant

NETWORK = "leaf-spine:aggregators=1024,spines=1,link_gbps=10"
GANG = {"gpus": 2, "iterations": 1000, "gradient_bytes": 4_000_000, "ina": {"mode": "auto"}}
Make = Callable[..., Cluster]


@pytest.fixture
def make(cluster: Make) -> Make:
    def made(
        policy: str = "fifo:ina=atp", nodes: int = 4, network: str | None = NETWORK, then_s: float = 2.0
    ) -> Cluster:
        racks = [i // 2 for i in range(nodes)]
        c = cluster((1,) * nodes, policy, network=network, racks=racks, expect_gpus=nodes)
        c.pass_s(then_s)
        return c

    return made


def with_gang(make: Make, request: dict[str, Any] = GANG, **options: Any) -> tuple[Cluster, int]:
    """A cluster whose switches are served, and the number of a job that was submitted 3 s ago."""
    c = make(**options)
    (job,) = c.submit(request, then_s=3.0)
    return c, job


def grants(cluster: Cluster, job: int) -> list[NetworkGrant]:
    runs = [run for node in cluster.nodes if node.answer for run in node.answer.attempts if run.job == job]
    return [run.network for run in sorted(runs, key=lambda run: run.rank) if run.network is not None]


def leased(cluster: Cluster) -> dict[str, set[int]]:
    """The jobs that each node's switch is to serve."""
    answers = {node.info.id: node.answer for node in cluster.nodes}
    return {n: {one.job for one in a.switch.leases} for n, a in answers.items() if a and a.switch}


def test_the_first_node_of_each_rack_serves_the_switch_of_the_rack(make: Make) -> None:
    c = make()
    found = c.engine.network(c.now)
    assert [(one.switch, one.node, one.state) for one in found.switches] == [
        ("leaf0", "n0", "up"), ("leaf1", "n2", "up"),
    ]  # fmt: skip
    assert set(leased(c)) == {"n0", "n2"}
    order = c.nodes[2].answer.switch if c.nodes[2].answer else None
    assert (order.name, order.aggregators, order.payload_bytes) == ("leaf1", 1024, 248)


def test_a_declared_switch_is_served_by_the_node_that_declares_it(make: Make) -> None:
    c = make(then_s=0.0)
    c.nodes[1].switch = lambda: replace(type(c.nodes[1]).switch(c.nodes[1]), declared="leaf0")  # type: ignore[method-assign]
    c.pass_s(1.0)
    c.engine.drain("n0", c.now)
    c.pass_s(2.0)
    assert {one.switch: one.node for one in c.engine.network(c.now).switches}["leaf0"] == "n1"


def test_a_gang_is_granted_memory_before_it_starts(make: Make) -> None:
    c, job = with_gang(make)
    assert c.state(job) == "running"
    one, other = grants(c, job)
    assert one == other
    assert (one.granted, one.version, one.n_workers, one.switch, one.server) == (
        True, 1, 2, ("127.0.0.1", 4000), ("127.0.0.1", 4001),
    )  # fmt: skip
    assert (one.slots, len(one.secret), one.options["protocol"], one.options["index"]) == (
        1024,
        8,
        "atp",
        "shared_hash",
    )
    serving = next(node for node in c.nodes if node.answer and node.answer.switch and node.answer.switch.leases)
    (lease,) = serving.answer.switch.leases
    assert (lease.token, lease.epoch, lease.wire) == (one.token, one.epoch, one.job)
    told = [entry for entry in c.store.entries() if entry.type == "RanksTold"]
    assert len(told) == 1
    assert one.token not in "".join(entry.entry for entry in c.store.entries())


def test_memory_is_freed_when_the_job_ends(make: Make) -> None:
    c, job = with_gang(make)
    assert any(leased(c).values())
    for node in c.nodes:
        node.end(job)
    c.pass_s(2.0)
    assert c.state(job) == "finished"
    assert not any(leased(c).values())
    assert c.engine.state.network.leases == c.engine.state.network.told == c.engine.state.network.epochs == {}


def test_a_job_that_starts_again_has_another_epoch_and_secret(make: Make) -> None:
    c, job = with_gang(make)
    before = grants(c, job)[0]
    for node in c.nodes:
        node.end(job, 3)
    c.pass_s(4.0)
    after = grants(c, job)[0]
    assert (after.granted, after.version, after.epoch) == (True, 1, before.epoch + 1)
    assert after.token != before.token


def test_jobs_go_on_without_a_lost_switch_and_are_granted_anew_when_it_is_back(make: Make) -> None:
    c, job = with_gang(make)
    before = grants(c, job)[0]
    serving = next(node for node in c.nodes if node.answer and node.answer.switch and node.answer.switch.leases)
    serving.starts = 0
    c.pass_s(3.0)
    gone = grants(c, job)[0]
    assert c.state(job) == "running"
    assert (gone.granted, gone.version) == (False, before.version + 1)
    assert gone.reason.endswith(f"; {before.switch_name} is lost")
    assert not any(leased(c).values())
    serving.starts = 2
    c.pass_s(3.0)
    back = grants(c, job)[0]
    assert (back.granted, back.version, back.epoch) == (True, back.version, before.epoch + 1)
    assert back.version > gone.version
    assert [t for t in c.types() if t.startswith("Switch")].count("SwitchLost") == 1


def test_a_switch_that_restarted_unseen_is_lost_and_joins_with_another_epoch(make: Make) -> None:
    c, job = with_gang(make)
    before = grants(c, job)[0]
    next(node for node in c.nodes if node.answer and node.answer.switch and node.answer.switch.leases).starts = 2
    c.pass_s(3.0)
    assert grants(c, job)[0].epoch == before.epoch + 1
    assert grants(c, job)[0].granted


def test_the_switch_of_a_lost_node_is_served_by_the_next_one(make: Make) -> None:
    c = make(nodes=3)
    c.pass_s(20.0, silent=("n0",))
    assert {one.switch: (one.node, one.state) for one in c.engine.network(c.now).switches}["leaf0"] == (
        "n1", "up",
    )  # fmt: skip


def test_a_switch_that_does_not_answer_delays_a_start_but_not_for_ever(make: Make) -> None:
    c = make()
    for node in c.nodes:
        node.leases = False
    (job,) = c.submit(GANG, then_s=PATIENCE_S - 1.5)
    assert not grants(c, job)
    assert not any(node.jobs() for node in c.nodes)
    c.pass_s(4.0)
    assert c.state(job) == "running"
    assert (grants(c, job)[0].granted, "does not serve its region yet" in grants(c, job)[0].reason) == (False, True)
    for node in c.nodes:
        node.leases = True
    c.pass_s(2.0)
    assert (grants(c, job)[0].granted, grants(c, job)[0].version) == (True, 2)


def test_a_restarted_service_tells_ranks_the_same(make: Make) -> None:
    c, job = with_gang(make)
    before, types = grants(c, job), c.types()
    state = c.engine.state
    assert State.from_json(state.to_json()).network == state.network
    c.restart(then_s=2.0)
    assert grants(c, job) == before
    new = c.types()[len(types) :]
    assert not {"SwitchLost", "SwitchServed", "RanksTold"}.intersection(new)


def test_a_cancelled_job_leaves_its_region_at_once(make: Make) -> None:
    c, job = with_gang(make)
    c.engine.cancel(job, c.now)
    for node in c.nodes:
        node.obeys = False
        node.sync()
    assert not any(leased(c).values())


def test_who_wants_no_aggregation_and_who_is_alone_is_told_nothing(make: Make) -> None:
    c = make()
    off, alone = c.submit({**GANG, "ina": "off"}, {**GANG, "gpus": 1}, then_s=3.0)
    assert {c.state(off), c.state(alone)} == {"running"}
    assert grants(c, off) == grants(c, alone) == []


def test_a_policy_without_grants_is_the_reason_that_ranks_read(make: Make) -> None:
    c, job = with_gang(make, policy="fifo")
    assert grants(c, job)[0].reason == "policy fifo grants it no memory of switches"


def test_a_required_grant_that_can_never_be_is_refused_with_the_reason(make: Make) -> None:
    c = make(then_s=12.0)
    with pytest.raises(InputError, match="requires 5000 aggregators; the switch with most has 1024 that jobs may use"):
        c.submit({**GANG, "ina": "require:memory=5000"})
    with pytest.raises(InputError, match="ina is require, and it has one process, which exchanges no gradients"):
        c.submit({**GANG, "gpus": 1, "ina": "require"})
    with pytest.raises(InputError, match="and the job asks for esa; the switches run atp; leave protocol out"):
        c.submit({**GANG, "ina": "require:protocol=esa"})
    (job,) = c.submit({**GANG, "ina": "require:protocol=atp"}, then_s=3.0)
    assert grants(c, job)[0].granted
    with pytest.raises(
        InputError, match=rf"fifo:ina=esa: j-{job} asks for atp; the switches run esa, and requires its"
    ):
        c.engine.set_policy("fifo:ina=esa", c.now)
    with pytest.raises(InputError, match=rf"policy fifo grants no memory of switches, which j-{job} require"):
        c.engine.set_policy("fifo", c.now)


def test_a_job_that_requires_a_grant_waits_while_its_switches_are_lost(make: Make) -> None:
    c = make(nodes=2, network="single-switch:aggregators=256", then_s=0.0)
    c.nodes[0].starts = 0
    c.pass_s(2.0)
    (job,) = c.submit({**GANG, "ina": "require"}, then_s=3.0)
    assert c.state(job) == "waiting"
    assert "requires aggregation in switches" in c.engine.explain(job, c.now).summary
    c.nodes[0].starts = 1
    c.pass_s(3.0)
    assert c.state(job) == "running"


def test_priorities_follow_progress_without_another_region(make: Make) -> None:
    c, job = with_gang(
        make, {**GANG, "iterations": 1e6, "profile": {"gpu": 0.1, "network": 0.05}}, policy="fifo:ina=esa"
    )
    before = grants(c, job)[0]
    for node in c.nodes:
        node.report(job, steps=999_900.0, held_s=5.0, step_s=0.1)
    c.pass_s(14.0)
    after = grants(c, job)[0]
    assert after.priority > before.priority > 0
    assert (after.epoch, after.version > before.version) == (before.epoch, True)


def order(cluster: Cluster, switch: str) -> list[Lease]:
    orders = [node.answer.switch for node in cluster.nodes if node.answer and node.answer.switch]
    return next(one.leases for one in orders if one.name == switch)


def follow(cluster: Cluster, job: int, version: int, **more: Any) -> None:
    """All ranks of a job have found this version of their grant."""
    for node in cluster.nodes:
        node.report(job, exchange=Exchange("aggregation", "", version, **more))
    cluster.pass_s(2.0)


def test_other_options_are_served_beside_the_former_ones_until_all_ranks_use_them(make: Make) -> None:
    c, job = with_gang(make)
    before = grants(c, job)[0]
    follow(c, job, before.version)
    c.engine.set_policy("fifo:ina=esa", c.now)
    c.pass_s(4.0)
    after = grants(c, job)[0]
    assert (before.options["protocol"], after.options["protocol"], after.epoch) == ("atp", "esa", before.epoch + 1)
    assert (after.token != before.token, after.job != before.job) == (True, True)
    served = {lease.wire: lease.token for lease in order(c, after.switch_name)}
    assert served == {before.job: before.token, after.job: after.token}
    state = c.engine.state
    assert State.from_json(state.to_json()).network == state.network
    for node in c.nodes:  # one of two ranks has found it
        if job in node.jobs():
            node.report(job, exchange=Exchange("aggregation", "", after.version))
            break
    c.pass_s(2.0)
    assert len(order(c, after.switch_name)) == 2
    follow(c, job, after.version)
    assert [lease.token for lease in order(c, after.switch_name)] == [after.token]
    assert c.types().count("RanksMoved") == 1


def test_a_job_goes_back_to_a_switch_with_another_number_and_secret(make: Make) -> None:
    c, job = with_gang(make)
    first = grants(c, job)[0]
    follow(c, job, 1)
    for policy, version in (("fifo:ina=esa", 2), ("fifo:ina=atp", 3)):
        c.engine.set_policy(policy, c.now)
        c.pass_s(4.0)
        follow(c, job, version)
    back = grants(c, job)[0]
    assert back.options == first.options
    assert (back.token != first.token, back.job != first.job, back.version) == (True, True, 3)


def test_a_region_that_shrinks_gives_its_memory_to_the_neighbour_once_all_ranks_have_moved(make: Make) -> None:
    c, job = with_gang(make, policy="fifo:ina=switchml", nodes=4, network="single-switch:aggregators=256")
    before = grants(c, job)[0]
    follow(c, job, before.version)
    c.submit(GANG, then_s=14.0)
    after = grants(c, job)[0]
    assert (after.size, after.window, after.epoch) == (before.size // 2, before.window // 2, before.epoch + 1)
    assert (after.token, after.job, after.options) == (before.token, before.job, before.options)
    assert [lease.moving for lease in order(c, after.switch_name)] == [True, False]
    follow(c, job, after.version)
    assert [lease.moving for lease in order(c, after.switch_name)] == [False, False]


def test_numbers_on_the_wire_are_free_ones_whatever_the_numbers_of_jobs(make: Make) -> None:
    c = make(nodes=4)
    c.engine.state.network.next_wire = 65_535
    one, other = c.submit(GANG, GANG, then_s=3.0)
    assert [grants(c, job)[0].job for job in (one, other)] == [65_535, 0]
    assert all(grants(c, job)[0].granted for job in (one, other))


def test_a_job_that_has_used_many_numbers_of_packets_gets_new_ones(make: Make) -> None:
    c, job = with_gang(make)
    before = grants(c, job)[0]
    follow(c, job, before.version, numbers=MANY_NUMBERS - 1.0)
    assert grants(c, job)[0] == before
    follow(c, job, before.version, numbers=float(MANY_NUMBERS))
    after = grants(c, job)[0]
    assert (after.granted, after.epoch, after.token != before.token) == (True, before.epoch + 1, True)
    follow(c, job, after.version, numbers=10.0)
    assert [lease.wire for lease in order(c, after.switch_name)] == [after.job]
    assert c.types().count("NumbersSpent") == 1


def test_why_a_switch_refuses_a_region_is_said_to_its_job_which_leaves_what_it_has_at_last(make: Make) -> None:
    c, job = with_gang(make)
    follow(c, job, 1)
    serving = next(node for node in c.nodes if node.answer and node.answer.switch and node.answer.switch.leases)
    shown, why = serving.switch, "aggregators 0 to 63 are in use by job 9"

    def refusing() -> SwitchSeen:
        seen = shown()
        return replace(seen, leases=[replace(one, refused=why) if one.epoch > 1 else one for one in seen.leases])

    serving.switch = refusing  # type: ignore[method-assign]
    c.engine.set_policy("fifo:ina=esa", c.now)
    c.pass_s(4.0)
    assert grants(c, job)[0].version == 1  # what it has goes on
    assert c.engine.explain(job, c.now).ina.trouble.endswith(f"refuses its region: {why}")
    assert why in c.engine.network(c.now).jobs[0].trouble
    c.pass_s(REFUSED_S)
    assert (grants(c, job)[0].granted, why in grants(c, job)[0].reason) == (False, True)
    follow(c, job, 2)
    assert [lease.epoch for lease in order(c, c.engine.network(c.now).jobs[0].switch)] == [2]


def test_deadlines_get_regions_of_their_own_and_others_keep_an_epoch_for_each_region(make: Make) -> None:
    c, first = with_gang(make, policy="fifo:ina=inalloc")
    shared = grants(c, first)[0]
    assert shared.options["index"] == "hybrid_region"
    (second,) = c.submit({**GANG, "deadline_s": 400.0, "profile": {"gpu": 0.1, "network": 0.02}, "iterations": 1000})
    c.pass_s(4.0)
    mine = grants(c, second)[0]
    assert (mine.options["index"], mine.size > 0) == ("hybrid_modulo", True)
    now = grants(c, first)[0]
    if now.switch_name == mine.switch_name:  # its region made room
        assert now.epoch == shared.epoch + 1


def test_what_ranks_measure_reaches_the_controller_and_people(make: Make) -> None:
    c, job = with_gang(make)
    said = Exchange("aggregation", "", 1, 9e6, 1e6, 0.1, 0.25, 0.01, 3.0)
    for node in c.nodes:
        node.report(job, exchange=said)
    c.pass_s(25.0)
    assert c.controller.network.bits_per_s.tolist() == [pytest.approx(8e8)]
    assert c.controller.network.aggregated.tolist() == [pytest.approx(0.675)]
    assert c.controller.network.fallback_share.tolist() == [pytest.approx(0.25)]
    assert c.types().count("NetworkReported") == 1
    shown = c.engine.explain(job, c.now).ina
    assert (shown.granted, shown.mode_used, shown.gloo_share) == (True, "aggregation", pytest.approx(0.1))
    (row,) = c.engine.network(c.now).jobs
    assert (row.id, row.fallback_share) == (f"j-{job}", pytest.approx(0.25))


def test_a_network_can_be_declared_and_taken_away_while_jobs_run(make: Make) -> None:
    c = make(policy="fifo", network=None)
    (job,) = c.submit(GANG, then_s=2.0)
    assert c.engine.network(c.now).network is None
    from plait.network.topology.declared import read_network

    c.network = read_network(NETWORK)
    c.restart(then_s=3.0)
    assert c.state(job) == "running"  # it goes on, and is told nothing
    assert {one.state for one in c.engine.network(c.now).switches} == {"up"}
    c.engine.set_policy("fifo:ina=atp", c.now)
    c.network = read_network("none")
    with pytest.raises(InputError, match="grants memory of switches, and this cluster has no network"):
        c.restart()


def test_a_cluster_without_network_has_no_word_of_it_in_its_log_or_snapshot(make: Make) -> None:
    c = make(policy="fifo", network=None, then_s=0.0)
    (job,) = c.submit(GANG, then_s=3.0)
    assert c.state(job) == "running"
    assert "network" not in c.engine.state.to_json()
    assert grants(c, job) == []
    assert not any("etwork" in e.type or "witch" in e.type or e.type == "RanksTold" for e in c.store.entries())


def test_a_queue_with_grants_is_played_forward(make: Make) -> None:
    from plait.outlook.queue import foresee

    c = make(policy="fifo:ina=esa")
    job = {**GANG, "iterations": 100, "profile": {"gpu": 0.1, "network": 0.05}}
    c.submit(job, job, job, then_s=3.0)
    found = foresee(json.loads(json.dumps(c.engine.state_for_forecast(c.now)())))
    ends = [found.raw.etas[number].end.middle_s for number in (0, 1, 2)]
    assert 0 < max(ends[:2]) < ends[2]


def test_services_that_start_at_once_have_the_same_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home, made, others = Layout(tmp_path / "home"), secrets.token_hex, []

    def overtaken(size: int) -> str:
        if not others:  # another service asks, and is answered, before this one has written anything
            others.append(b"")
            others.append(network_secret(home))
        return made(size)

    monkeypatch.setattr(secrets, "token_hex", overtaken)
    assert network_secret(home) == others[1] == network_secret(home)
    (home.home / "network-secret").write_bytes(b"\n")
    with pytest.raises(InputError, match="network-secret holds 0 bytes, no secret"):
        network_secret(home)


def test_netpack_places_live_jobs_under_one_switch(make: Make) -> None:
    """One slot is taken, so that a gang fits into a rack, or on the next free slots, which are of two racks."""
    found: dict[str, tuple[set[str], str]] = {}
    for policy in ("tiresias-l:ina=esa", "tiresias-l:placement=netpack,ina=esa"):
        c = make(policy=policy)
        (single,) = c.submit({"gpus": 1, "iterations": 1000}, then_s=3.0)
        (job,) = c.submit({**GANG, "profile": {"gpu": 0.1, "network": 0.05}}, then_s=3.0)
        assert {c.state(single), c.state(job)} == {"running"}
        nodes = {n.info.id for n in c.nodes if n.answer and any(run.job == job for run in n.answer.attempts)}
        found[policy] = nodes, grants(c, job)[0].switch_name
    first_free, netpack = found.values()
    assert first_free[0] == {"n1", "n2"}
    assert netpack == ({"n2", "n3"}, "leaf0")  # that of its server: next to a worker one has half of the link
