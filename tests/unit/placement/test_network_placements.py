"""Placements by the network and their baselines: the programme against all choices, and where gangs go and why."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from plait.core.cluster import Cluster
from plait.core.errors import InputError
from plait.core.jobs import JobBatch, JobSpec
from plait.core.network_grants import NetworkGrant
from plait.core.plan import Plan
from plait.core.policy import View
from plait.network.fluid.jobs import PlacedJob
from plait.network.steady_state import SteadyState
from plait.network.topology.paths import Graph
from plait.network.topology.read import networked
from plait.placement.located import ChoosingGang
from plait.placement.netpack import NetPack, Places, best_servers
from plait.policies.catalog import make_policy
from plait.sim.run import simulate
from plait.sim.world import make_world

CHOOSING = ("netpack", "gpu-balance", "flow-balance", "least-fragmentation")
NETWORK = "leaf-spine:oversubscription=4,aggregators=4000"


def clusters(text: str, network: str = NETWORK) -> Cluster:
    return networked(Cluster.parse(text), network)


def placed(policy: str, cluster: Cluster, *gangs: int) -> list[dict[int, int]]:
    """GPUs on each node of jobs that arrive one after the other and never end within the run."""
    jobs = JobBatch.of(
        JobSpec(id=f"j{i}", submit_s=float(i), gpus=gpus, iterations=1e6, iteration_s=1.0)
        for i, gpus in enumerate(gangs)
    )
    plans: dict[int, dict[int, int]] = {}

    class Watched:
        name = policy
        inner = make_policy(policy)

        def decide(self, view: View) -> Plan:
            plan: Plan = self.inner.decide(view)
            for group in plan.groups:
                nodes = cluster.gpu_node[list(group.gpus)]
                count = np.bincount(nodes, minlength=len(cluster.nodes))
                plans.setdefault(group.members[0].job, {int(n): int(count[n]) for n in np.flatnonzero(count)})
            return plan

    simulate(jobs, cluster, Watched(), make_world("ideal"))
    return [plans[i] for i in range(len(gangs))]


# -- the dynamic programme


def brute_force(room: list[int], rack: list[int], need: int, value: np.ndarray) -> dict[int, float]:
    """The best value for each number of racks."""
    best: dict[int, float] = {}
    for take in product(*(range(r + 1) for r in room)):
        if sum(take) == need:
            racks = len({rack[i] for i, m in enumerate(take) if m})
            worth = sum(value[i, m] for i, m in enumerate(take) if m)
            best[racks] = max(best.get(racks, -np.inf), worth)
    return best


@pytest.mark.parametrize("seed", range(30))
def test_the_programme_finds_the_best_of_all_choices(seed: int) -> None:
    draw = np.random.default_rng(seed)
    nodes = int(draw.integers(1, 6))
    room, rack = draw.integers(0, 5, nodes), draw.integers(0, 4, nodes)
    need = int(draw.integers(1, 9))
    value = draw.integers(-6, 7, (nodes, need + 1)) / 4
    expected = brute_force(room.tolist(), rack.tolist(), need, value)
    found = best_servers(room, rack, need, value)
    assert bool(found) == bool(expected)
    got = {}
    for take in found:
        assert take.sum() == need
        assert (take <= room).all()
        used = np.flatnonzero(take)
        got[len(set(rack[used].tolist()))] = sum(value[i, take[i]] for i in used.tolist())
    fewest = min(expected, default=0)
    assert got == pytest.approx({r: v for r, v in expected.items() if r <= fewest + 2})


def test_ties_go_to_fewer_servers_with_lower_numbers() -> None:
    room, rack = np.full(6, 4), np.repeat([0, 1], 3)
    assert best_servers(room, rack, 8, np.zeros((6, 9)))[0].tolist() == [4, 4, 0, 0, 0, 0]


# -- where gangs go


@pytest.mark.parametrize("place", CHOOSING)
def test_a_gang_that_one_server_can_hold_is_on_one(place: str) -> None:
    for gang in placed(f"fifo:placement={place}", clusters("8x4@4"), 2, 4, 1, 3):
        assert len(gang) == 1


def test_best_fit_fills_servers_and_balance_spreads_over_them() -> None:
    cluster = clusters("4x4@2")
    for place in ("netpack", "least-fragmentation", "flow-balance"):
        assert placed(f"fifo:placement={place}", cluster, 2, 1, 1, 2) == [{0: 2}, {0: 1}, {0: 1}, {1: 2}]
    assert placed("fifo:placement=gpu-balance", cluster, 2, 1, 1, 2) == [{0: 2}, {1: 1}, {2: 1}, {3: 2}]


def test_least_fragmentation_takes_what_fits_exactly_in_one_rack() -> None:
    """Five GPUs: in rack 0 one is left, in rack 1 there are one and four."""
    cluster = clusters("4x4@2")
    gangs = placed("fifo:placement=least-fragmentation", cluster, 3, 4, 3, 5)
    assert gangs == [{0: 3}, {1: 4}, {2: 3}, {2: 1, 3: 4}]
    assert placed("fifo:placement=least-fragmentation", cluster, 3, 3, 5)[2] == {2: 4, 3: 1}


def test_flow_balance_avoids_servers_with_flows() -> None:
    """The first gang makes flows on nodes 0 and 1; the second would fill node 1, but goes where there are none."""
    first, second, third = placed("fifo:placement=flow-balance", clusters("6x4@3"), 6, 5, 5)
    assert first == {0: 4, 1: 2}
    assert second == {2: 4, 3: 1}  # over both uplinks
    assert third == {4: 4, 5: 1}


def test_netpack_stays_in_a_rack_and_goes_where_links_are_free() -> None:
    """Two gangs fill rack 0; the third is not divided between what is left of it and rack 1."""
    cluster = clusters("8x4@4")
    first, second, third = placed("fifo:placement=netpack", cluster, 8, 8, 6)
    assert first == {0: 4, 1: 4}
    assert set(second) <= {2, 3}
    assert set(third) <= {4, 5, 6, 7}


def test_netpack_avoids_a_narrow_uplink_that_fragments_alone_would_use() -> None:
    """Rack 0 has a GPU left on each node; six GPUs would leave none over with these, and stay in rack 1."""
    cluster = clusters("4x4@2", "leaf-spine:oversubscription=8,aggregators=4000")
    for law in ("none", "auto"):
        gangs = placed(f"fifo:placement=netpack,memory_law={law},fragments=100", cluster, 3, 3, 6)
        assert gangs[2] == {2: 4, 3: 2}


@pytest.mark.parametrize("law", ["auto", "none", "hash", "cycle", "hard"])
def test_every_law_places_every_gang(law: str) -> None:
    gangs = placed(f"fifo:placement=netpack,memory_law={law}", clusters("8x4@4"), 6, 6, 5, 7, 3)
    assert [sum(gang.values()) for gang in gangs] == [6, 6, 5, 7, 3]


@pytest.mark.parametrize(
    "policy",
    ["fifo", "srsf", "tiresias-l", "themis", "yarn-cs", "drf", "muri-l", "las", "yarn-cs:preempt=on"],
)
def test_every_policy_with_placements_has_these(policy: str) -> None:
    """Jobs of all sizes, more than fit, some of them preempted: all end, and no invariant is broken."""
    draw = np.random.default_rng(5)
    sizes, lengths = draw.choice([1, 2, 3, 6, 8], 14).tolist(), draw.uniform(20, 400, 14).tolist()
    jobs = JobBatch.of(
        JobSpec(id=f"j{i}", submit_s=10.0 * i, gpus=sizes[i], iterations=lengths[i], iteration_s=1.0) for i in range(14)
    )
    for place in CHOOSING:
        text = f"{policy}{',' if ':' in policy else ':'}placement={place}"
        run = simulate(jobs, clusters("6x4@3"), make_policy(text), make_world("ideal"), check=True)
        assert run.controller.job_store.departures == 14
        again = simulate(jobs, clusters("6x4@3"), make_policy(text), make_world("ideal"))
        ends = [one.controller.job_store.columns["end_s"][:14].tolist() for one in (run, again)]
        assert ends[0] == ends[1]


def test_nodes_with_several_links_exchange_in_rings() -> None:
    cluster = clusters("4x4@2", "rail:rails=2,aggregators=1000")
    assert sum(placed("fifo:placement=netpack", cluster, 6)[0].values()) == 6


# -- mistakes


def test_netpack_needs_a_network_and_the_others_do_not() -> None:
    with pytest.raises(InputError, match=r"placement=netpack needs the network.*--network leaf-spine"):
        placed("fifo:placement=netpack", Cluster.parse("2x4"), 1)
    for place in CHOOSING[1:]:
        assert placed(f"fifo:placement={place}", Cluster.parse("2x4"), 6) == [{0: 4, 1: 2}]


def test_options_of_netpack_are_checked() -> None:
    assert make_policy("fifo:placement=netpack,bandwidth=2,fragments=0,memory_law=hard").place == NetPack(2, 0, "hard")
    for text, said in {
        "fifo:placement=netpack,bandwidth=-1": "bandwidth is -1; it takes",
        "fifo:placement=netpack,memory_law=soft": "memory_law is 'soft'",
        "fifo:placement=gpu-balance,fragments=1": "fragments is 1; it goes with placement=netpack",
        "fifo:bandwidth=1": "it goes with placement=netpack",
    }.items():
        with pytest.raises(InputError, match=said):
            make_policy(text)
    with pytest.raises(InputError, match="weights"):
        NetPack(bandwidth=float("inf"))


# -- grants


def test_running_jobs_exchange_as_their_grants_say() -> None:
    """Job 0 has a server on node 4: its links are busy, and the next gang goes elsewhere in that rack."""
    cluster = clusters("8x4@4", "leaf-spine:oversubscription=1,aggregators=20000")
    nodes = {0: (0, 1)}
    for server, expected in ((4, {5, 6}), (6, {4, 5})):
        grants = (NetworkGrant(0, "leaf0", server=server),)
        places = Places(NetPack(), view_of(cluster, grants), SteadyState.of(Graph.of(cluster)))
        room = np.array([0, 0, 0, 0, 4, 4, 4, 0])
        take = places.nodes(ChoosingGang(1, 8, room, room, nodes))
        assert set(np.flatnonzero(take).tolist()) == expected
        assert places.state.exchanges[0].placed == PlacedJob((0, 1), server)
        assert places.chosen[1, tuple(sorted(expected))].law == "hash"


def test_where_running_jobs_have_no_grants_the_next_is_a_ring_too() -> None:
    cluster = clusters("8x4@4", "leaf-spine:aggregators=20000")
    room = np.array([0, 0, 0, 0, 4, 4, 4, 4])
    for placed_before, law in (({}, "hash"), ({0: (0, 1)}, "none")):
        places = Places(NetPack(), view_of(cluster, ()), SteadyState.of(Graph.of(cluster)))
        places.nodes(ChoosingGang(1, 8, room, room, placed_before))
        assert [one.law for one in places.chosen.values()] == [law]


def view_of(cluster: Cluster, grants: tuple[NetworkGrant, ...]) -> View:
    """A view of two jobs on this cluster, at the start."""
    seen: list[View] = []

    class Looks:
        name = "looks"

        def decide(self, view: View) -> Plan:
            seen.append(view)
            return make_policy("fifo").decide(view)

    jobs = JobBatch.of(JobSpec(id=f"j{i}", gpus=8, iterations=1.0, iteration_s=1.0) for i in range(2))
    simulate(jobs, cluster, Looks(), make_world("ideal"))
    return replace(seen[0], grants=grants)
