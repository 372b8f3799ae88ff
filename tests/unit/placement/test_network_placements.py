"""Placements by the network, by parameter servers and by trials, against all choices and baselines."""

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plait.control.controller import Controller
from plait.control.messages import Command, Event, Launch
from plait.core.arrays import FloatArray, IntArray
from plait.core.cluster import Cluster
from plait.core.errors import InputError
from plait.core.highs import Program, solve
from plait.core.jobs import JobBatch, JobSpec, placement_skew
from plait.core.network_grants import NetworkGrant
from plait.core.plan import Plan
from plait.core.policy import View
from plait.network.fluid.jobs import PlacedJob
from plait.network.steady_state import SteadyState
from plait.network.topology.paths import Graph
from plait.network.topology.read import networked
from plait.placement import SkewAware, TriedPlacement
from plait.placement.located import ChoosingGang
from plait.placement.netpack import NetPack, Places, best_servers
from plait.placement.packing import learnt_packlimit
from plait.placement.servers import by_rule, level_workers, link_loads, server_parts, starting_ranks
from plait.policies.catalog import make_policy
from plait.sim.physics import StandardPhysics
from plait.sim.run import simulate
from plait.sim.world import make_world
from sampling import examples

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


# -- servers --------------------------------------------------------------------------------------------------


def levelled_servers(workers: IntArray, parts: FloatArray) -> IntArray:
    """The node of each server so that the busiest link is the least busy, by an integer program."""
    n, k = len(workers), len(parts)
    program = Program(np.append(np.zeros(n * k), 1.0), np.append(np.ones(n * k), np.inf))
    for s in range(k):
        program.put(program.add(1, 1.0, 1.0), s * n + np.arange(n), 1.0)
    for node in range(n):
        row = program.add(1, -np.inf, float(-workers[node]))
        program.put(row, np.arange(k) * n + node, parts * (workers.sum() - 2.0 * workers[node]))
        program.put(row, np.array([n * k]), -1.0)
    found = solve(program, whole=np.append(np.ones(n * k, dtype=bool), False))
    return np.argmax(found.values[:-1].reshape(k, n), axis=1)


@settings(max_examples=examples(25), deadline=None)
@given(st.lists(st.integers(1, 4), min_size=2, max_size=3), st.lists(st.integers(1, 9), min_size=1, max_size=4))
def test_the_rule_for_servers_is_near_the_integer_program_which_is_the_best_of_all(
    workers: list[int], sizes: list[int]
) -> None:
    w, parts = np.array(workers), np.array(sizes) / sum(sizes)
    best = min(link_loads(w, parts, np.array(on)).max() for on in product(range(len(w)), repeat=len(parts)))
    assert link_loads(w, parts, levelled_servers(w, parts)).max() == pytest.approx(best)
    assert best - 1e-9 <= link_loads(w, parts, by_rule(w, parts)).max() <= 1.35 * best


def test_links_carry_what_leaves_the_node() -> None:
    """By hand: a server on node 0 with all parameters of three workers there and one on node 1."""
    assert link_loads(np.array([3, 1]), np.array([1.0]), np.array([0])).tolist() == [1, 1]
    assert link_loads(np.array([3, 1]), np.array([1.0]), np.array([1])).tolist() == [3, 3]
    assert by_rule(np.array([3, 1]), np.array([1.0])).tolist() == [0]
    assert server_parts(np.nan, 3).tolist() == pytest.approx([1 / 3] * 3)
    assert starting_ranks(["a", "a", "b", "b"], 2) == [0, 2]


@settings(max_examples=examples(25), deadline=None)
@given(st.lists(st.integers(0, 4), min_size=3, max_size=4), st.integers(2, 6), st.integers(0, 99))
def test_workers_by_the_integer_program_level_the_links_as_well_as_any(room: list[int], need: int, seed: int) -> None:
    if sum(room) < need:
        return
    base = np.random.default_rng(seed).uniform(0, 3, len(room))

    def busiest(take: tuple[int, ...]) -> float:
        count = np.array(take)
        return float((base + 2 * count * (1 - count / need))[count > 0].max())

    found = level_workers(np.array(room), need, base, 1.0)
    assert found.sum() == need
    assert (found <= room).all()
    best = min(busiest(take) for take in product(*(range(r + 1) for r in room)) if sum(take) == need)
    assert busiest(tuple(found.tolist())) <= best + 2e-3 * max(base.max(), need)


def test_the_imbalance_of_servers_is_the_skew() -> None:
    share = np.array([0.7, 0.7, 0.112, 0.7, np.nan])
    skew = placement_skew(share, np.array([0, 8, 8, 1, 4]))
    assert skew[:4].tolist() == pytest.approx([0.7, 1 - 1 / 5.6, 0, 0])
    assert np.isnan(skew[4])
    jobs = [JobSpec(id=str(i), gpus=4, iterations=9, iteration_s=1, skew=0.7, servers=s) for i, s in enumerate((8, 1))]
    slow = StandardPhysics(spread_slowdown=2.0).sensitive(JobBatch.of(jobs), np.arange(2))
    assert slow.tolist() == [True, False]
    assert len(set(SkewAware().schemes(skew).tolist())) == 2


# -- trials ---------------------------------------------------------------------------------------------------


def nodes_over_time(policy: str, jobs: list[JobSpec]) -> tuple[dict[int, list[tuple[float, int]]], Any]:
    """When each job started on how many nodes of four GPUs, where spreading costs 30 %, and the columns at the end."""
    where: dict[int, list[tuple[float, int]]] = {}

    def observe(controller: Controller) -> list[Callable[[Event, list[Command]], None]]:
        def step(event: Event, commands: list[Command]) -> None:
            for command in commands:
                for group in command.groups if isinstance(command, Launch) else ():
                    nodes = len(set(controller.cluster.gpu_node[list(group.gpus)].tolist()))
                    where.setdefault(group.members[0].job, []).append((event.at_s, nodes))

        return [step]

    world = replace(make_world("ideal"), physics=StandardPhysics(spread_slowdown=1.3))
    run = simulate(
        JobBatch.of(jobs), Cluster.parse("4x4"), make_policy(policy), world, observe=observe, check=True  # type: ignore[arg-type]
    )  # fmt: skip
    return where, run.controller.job_store.columns


def job(i: int, model: str, skew: float, **more: Any) -> JobSpec:
    return JobSpec(
        id=f"j{i}", submit_s=500.0 * i, gpus=4, iterations=5000, iteration_s=1, model=model, skew=skew, **more
    )


def test_the_first_job_of_a_model_is_tried_both_ways_and_the_others_go_by_what_it_lost() -> None:
    jobs = [job(i, "large" if i % 2 == 0 else "small", 0.9 if i % 2 == 0 else 0.1) for i in range(8)]
    where, columns = nodes_over_time("fifo-backfill:placement=trial", jobs)
    assert [nodes for _, nodes in where[0]] == [1, 4, 1], "packed, apart, and packed again: it loses"
    assert [at_s for at_s, _ in where[0]] == [0, 300, 500], "after its trial, then as soon as its loss is known"
    assert columns["spread_s"][0] / columns["packed_s"][0] == pytest.approx(1.3)
    assert columns["spread_s"][1] / columns["packed_s"][1] == pytest.approx(1.0)
    assert all(len(starts) == 1 and starts[0][1] == 1 for i, starts in where.items() if i % 2 == 0 and i > 0)
    assert all(len(starts) == 1 for i, starts in where.items() if i > 1), "one of each model is enough"
    others, known = nodes_over_time("fifo-backfill:placement=skew", jobs)
    assert np.isnan(known["spread_s"][:8]).all(), "measured only where placements are tried"
    assert others[0] == [(0.0, 1)]


def test_a_limit_of_the_skew_is_learnt_from_what_models_lost() -> None:
    skew, lost = np.array([0.1, 0.2, 0.5, 0.7, 0.7]), np.array([0.0, 0.02, 0.04, 0.3, 0.5])
    assert learnt_packlimit(skew, lost, np.array([0, 1, 2, 3, 3]), 0.05) == pytest.approx(0.6)
    for unknown in (skew[:3], skew * np.nan):
        assert np.isnan(learnt_packlimit(unknown, lost[: len(unknown)], np.arange(len(unknown)), 0.05))
    assert np.isnan(learnt_packlimit(skew, lost * 0, np.arange(5), 0.05)), "none loses"
    assert learnt_packlimit(skew, lost[::-1], np.arange(5), 0.05) == pytest.approx(0.6), (
        "the highest of equally good ones"
    )
    models = [(f"m{i}", s) for i, s in enumerate((0.1, 0.15, 0.8, 0.9))]
    jobs = [job(4 * i, model, s) for i, (model, s) in enumerate(models)]
    jobs += [job(40, "new", 0.85), job(44, "other", 0.2)]
    where, _ = nodes_over_time("fifo-backfill:placement=trial", jobs)
    assert [len(where[i]) for i in (4, 5)] == [1, 1], "no trial is needed any more"
    assert where[4][0][1] == 1


def test_a_job_without_room_the_other_way_is_not_moved() -> None:
    full = [job(0, "a", 0.9), *(replace(job(i, "b", 0.9), submit_s=0.0) for i in range(1, 4))]
    where, _ = nodes_over_time("fifo-backfill:placement=trial", full)
    assert all(len(starts) == 1 for starts in where.values())


def test_limits_of_trials_are_checked() -> None:
    place = make_policy("srsf:placement=trial,loss=0.1,trial_s=60").place  # type: ignore[attr-defined]
    assert place == TriedPlacement(0.1, 60)
    for text, message in {
        "loss=-1": "loss is -1",
        "trial_s=0": "trial_s is 0",
        "packlimit=0.5": "goes with placement=skew",
    }.items():
        with pytest.raises(InputError, match=message):
            make_policy(f"srsf:placement=trial,{text}")
    for policy in ("muri-s", "plait", "drf", "themis", "yarn-cs"):  # nothing would be tried
        with pytest.raises(InputError, match=r"placement=trial|placement is .trial."):
            make_policy(f"{policy}:placement=trial")
    assert make_policy("plait:group=off,placement=trial").tries_placements  # type: ignore[attr-defined]
