"""Simulated jobs on a shared network: against formulas, and only those get another pace who share something."""

from dataclasses import replace

import numpy as np
import pytest

from plait.control.history import History
from plait.control.metrics import measure
from plait.core.cluster import Cluster
from plait.core.jobs import JobBatch, JobSpec
from plait.core.network_grants import NetworkGrant
from plait.core.plan import Gate, Group, Groups, Member
from plait.core.resources import StageProfile
from plait.network import measured
from plait.network.gradients import overlap_of_layers
from plait.network.packets.run import flow
from plait.network.topology.read import networked
from plait.placement.servers import link_loads
from plait.policies.catalog import make_policy
from plait.sim.contention.network import LAYERS, NetworkPhysics, cut_jobs, with_gradient_bytes
from plait.sim.physics import StandardPhysics
from plait.sim.run import simulate
from plait.sim.world import World, make_world
from plait.traces.load import load_jobs
from plait.traces.synthetic import generate

#: Two racks of two nodes with four GPUs; one spine, half the rate of the nodes of a rack to it.
RACKS = networked(Cluster.parse("4x4@2"), "leaf-spine:spines=1,oversubscription=2,link_gbps=80,aggregators=4096")
#: A tenth of a second over a link of 80 Gb/s.
BYTES = 1e9


def jobs(*gpus: int, iteration_s: float = 0.4, **more: object) -> JobBatch:
    return JobBatch.of(
        JobSpec(id=f"j{i}", gpus=n, iterations=1000, iteration_s=iteration_s, gradient_bytes=BYTES, **more)
        for i, n in enumerate(gpus)
    )


def on(*nodes: int) -> tuple[int, ...]:
    return tuple(gpu for node in nodes for gpu in range(4 * node, 4 * node + 4))


def placed(*places: tuple[int, ...]) -> Groups:
    return Groups.of(Group((Member(i),), on(*nodes)) for i, nodes in enumerate(places))


def world(**more: object) -> World:
    return replace(make_world("ideal"), physics=NetworkPhysics(**more))


@pytest.mark.parametrize("profile", [None, StageProfile.of(gpu=0.3, network=0.1)])
def test_a_job_alone_on_as_few_nodes_as_it_needs_is_as_fast_as_its_trace_says(profile) -> None:
    truth = jobs(8, profile=profile)
    for nodes in ((0, 1), (2, 3)):
        assert NetworkPhysics().iteration_s(truth, placed(nodes), RACKS) == pytest.approx([0.4])


def test_an_exchange_takes_what_links_give() -> None:
    """Two nodes: a ring of two sends one gradient, 0.1 s of a link. Together on one uplink it takes twice."""
    truth = jobs(8, 8)
    apart, meeting = placed((0, 1), (2, 3)), placed((0, 2), (1, 3))
    for phases, exchange_s in (("together", 0.2), ("interleaved", 0.1)):
        physics = NetworkPhysics(phases=phases)
        assert physics.iteration_s(truth, apart, RACKS) == pytest.approx([0.4, 0.4])
        assert physics.iteration_s(truth, meeting, RACKS) == pytest.approx([0.3 + exchange_s] * 2)
    # Who begins to exchange finds the other exchanging a quarter of the time, as it does alone: 0.1 s of 0.4.
    assert NetworkPhysics().iteration_s(truth, meeting, RACKS) == pytest.approx([0.3 + 0.1 * 1.25] * 2, rel=1e-4)


def test_overlap_hides_what_it_may() -> None:
    """Of 0.4 s, x = 0.1 is the exchange: all of it goes beside half of the computation."""
    physics = NetworkPhysics(overlap=0.5, phases="together")
    assert physics.iteration_s(jobs(8), placed((0, 1)), RACKS) == pytest.approx([0.4])
    assert physics.iteration_s(jobs(8, 8), placed((0, 2), (1, 3)), RACKS) == pytest.approx([0.4, 0.4])  # 0.2 s fit, too
    longer = jobs(8, 8, iteration_s=0.25)  # computes 0.25 s, of which 0.125 hide an exchange of 0.2
    assert physics.iteration_s(longer, placed((0, 2), (1, 3)), RACKS) == pytest.approx([0.325, 0.325])


@pytest.mark.parametrize("model", ["vgg16", "BERT-large", "mine"])
@pytest.mark.parametrize("share", [0.2, 0.7, 0.95])
def test_layers_are_sent_as_the_backward_pass_has_them(model: str, share: float) -> None:
    """A walk over ten buckets of each: alone as the trace says, and with half of the link as long as the walk."""
    stages = StageProfile.of(gpu=1.0, network=share)
    truth = jobs(8, 8, iteration_s=1.0, model=model, profile=stages)
    physics = NetworkPhysics(overlap=LAYERS, phases="together")
    assert physics.iteration_s(truth, placed((0, 1)), RACKS) == pytest.approx([1.0])
    (found, _) = physics.iteration_s(truth, placed((0, 2), (1, 3)), RACKS)
    ready = overlap_of_layers([model])[:, 1, 0]

    def walked(compute_s: float, exchange_s: float) -> float:
        end_s = 0.0
        for left in ready:
            end_s = max(end_s, (1 - left) * compute_s) + exchange_s / 10
        return max(compute_s, end_s)

    compute_s = max(c for c in np.linspace(1e-3, 1, 2000) if walked(c, share) <= 1 + 1e-9)
    assert found == pytest.approx(walked(compute_s, 2 * share), rel=2e-3)


def test_a_job_that_fits_a_node_pays_for_distance_alone() -> None:
    truth = jobs(4)
    assert NetworkPhysics().iteration_s(truth, placed((0,)), RACKS) == pytest.approx([0.4])
    halves = Groups.of([Group((Member(0),), (0, 1, 4, 5))])
    assert NetworkPhysics().iteration_s(truth, halves, RACKS) == pytest.approx([0.5])
    slow = NetworkPhysics(StandardPhysics(spread_slowdown=1.3))  # a stand-in for the network, which is here
    assert slow.iteration_s(truth, halves, RACKS) == pytest.approx([0.5])


def test_an_exchange_may_be_longer_than_the_computation() -> None:
    """0.02 s of computation and 0.1 s of exchange, by a stage that was measured and by bytes."""
    for profile in (None, StageProfile.of(gpu=0.02, network=0.1)):
        truth = jobs(8, 8, iteration_s=0.12, profile=profile)
        found = NetworkPhysics(phases="together").iteration_s(truth, placed((0, 2), (1, 3)), RACKS)
        assert found == pytest.approx([0.22] * 2)
        assert NetworkPhysics().iteration_s(truth, placed((0, 1)), RACKS) == pytest.approx([0.12])
        assert cut_jobs(truth, RACKS) == 0


def test_bytes_that_do_not_fit_an_iteration_are_cut_and_counted_and_measured_stages_never() -> None:
    truth = jobs(8, 8, iteration_s=0.1)  # an exchange of 0.1 s: cut to 0.09
    found = NetworkPhysics(phases="together").iteration_s(truth, placed((0, 2), (1, 3)), RACKS)
    assert found == pytest.approx([0.19] * 2)
    assert cut_jobs(truth, RACKS) == 2
    stages = StageProfile.of(gpu=0.002, network=0.098)
    measured = jobs(8, 8, iteration_s=0.1, profile=stages)
    found = NetworkPhysics(phases="together").iteration_s(measured, placed((0, 2), (1, 3)), RACKS)
    assert found == pytest.approx([0.002 + 2 * 0.098] * 2)
    assert cut_jobs(measured, RACKS) == 0


def test_members_at_a_barrier_take_turns_on_the_network_too() -> None:
    profile = StageProfile.of(gpu=0.3, network=0.1)
    group = Group((Member(0), Member(1, turn=1)), on(0, 2), Gate.BARRIER)
    inner = StandardPhysics(interference=(1.0,))
    found = NetworkPhysics(inner, phases="together").iteration_s(jobs(8, 8, profile=profile), Groups.of([group]), RACKS)
    # Formula (3), slots of CPU, GPU and network: 0.3 + 0.3 + 0.1 s. Exchanging together would make it 0.3 + 0.3 + 0.2.
    assert found == pytest.approx([0.7, 0.7])
    # So packets of one do not meet those of the other on the nodes that they share, and the law holds.
    cluster = networked(Cluster.parse("5x4"), "single-switch:aggregators=40000,link_gbps=80")
    name = cluster.network.switches[0].id
    granted = {job: (NetworkGrant(job, name, window=200, mode="shared_hash", server=3 + job),) for job in (0, 1)}
    truth, group = jobs(12, 12, profile=profile), Group((Member(0), Member(1, turn=1)), on(0, 1, 2), Gate.BARRIER)
    law, auto = (NetworkPhysics(inner, rates=rates) for rates in ("law", "auto"))
    both = [some.paces(truth, Groups.of([group]), cluster, granted).tolist() for some in (law, auto)]
    assert both[0] == both[1]


def test_aggregation_makes_jobs_faster_than_rings() -> None:
    """Four nodes below one switch: a ring of four sends 1.5 gradients; aggregation one, with headers 1.234."""
    cluster = networked(Cluster.parse("4x4"), "single-switch:link_gbps=80,aggregators=20000")
    truth = jobs(16)
    granted = {0: (NetworkGrant(0, cluster.network.switches[0].id, 0, 4096, "dedicated", exclusive=True, server=0),)}
    found = NetworkPhysics().paces(truth, placed((0, 1, 2, 3)), cluster, granted)
    assert found == pytest.approx([0.4 - 0.15 + 0.1 * 306 / 248])


def test_jobs_whose_sums_stall_are_as_fast_as_their_packets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two jobs share 200 aggregators: both together and each alone are followed once."""
    cluster = networked(Cluster.parse("10x4@5"), "leaf-spine:aggregators=100,levels=2,oversubscription=4")
    truth, groups = jobs(16, 16), placed((0, 1, 5, 6), (2, 3, 7, 8))
    granted = {
        job: tuple(
            NetworkGrant(job, leaf, window=300, mode="shared_hash", server=server) for leaf in ("leaf0", "leaf1")
        )
        for job, server in ((0, 4), (1, 9))
    }
    law, found = NetworkPhysics(rates="law"), NetworkPhysics()
    monkeypatch.setattr(measured, "MOST_PACKETS", 100_000)
    runs = []
    monkeypatch.setattr(measured, "flow", lambda *given: runs.append(given) or flow(*given))
    followed = [found.paces(truth, groups, cluster, granted).tolist() for _ in range(2)]
    assert followed[0] == followed[1]
    assert 1 <= len(runs) <= 3
    with pytest.warns(RuntimeWarning, match="rates of jobs that share"):
        by_law = law.paces(truth, groups, cluster, granted)
    assert followed[0] == pytest.approx(1.4 * by_law, rel=0.2)
    windows = found.controlled("a2tp").paces(truth, groups, cluster, granted)
    assert (np.abs(windows / followed[0] - 1) > 0.05).all()
    monkeypatch.setattr(measured.Measured, "factors", lambda *given: None)
    with pytest.warns(RuntimeWarning, match="may be wrong by more than half: they are by the law"):
        NetworkPhysics().paces(truth, groups, cluster, granted)


def test_rates_of_packets_are_those_of_these_links_switches_and_conditions(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same placement and grant under other conditions: nothing is taken over from the run before."""
    monkeypatch.setattr(measured, "MOST_PACKETS", 50_000)
    given = {0: (NetworkGrant(0, "leaf0", mode="shared_hash", window=100, server=0),)}

    def took(physics: NetworkPhysics, cluster: Cluster) -> float:
        return float(physics.paces(jobs(16), placed((0, 1, 2, 3)), cluster, given)[0])

    first, fast = (networked(Cluster.parse("4x4"), f"single-switch:aggregators=700,link_gbps={n}") for n in (25, 100))
    memory = tuple(replace(one, aggregators=20) for one in first.network.switches)
    cases = [first, replace(first, network=replace(first.network, switches=memory)), fast]
    fresh = [took(NetworkPhysics(), one) for one in cases]
    physics = NetworkPhysics()
    assert [took(physics, one) for one in cases] == fresh
    assert len(set(fresh)) == 3
    busy = took(NetworkPhysics(rates="packets:background=0.5"), fast)
    assert took(replace(physics, rates="packets:background=0.5"), fast) == busy != fresh[2]


def test_a_leaver_gives_its_share_back_and_others_keep_their_pace() -> None:
    """j0 and j1 meet between the racks for 1,000 and 500 iterations; j2 has a rack of its own."""
    cluster = networked(Cluster.parse("6x4@2"), "leaf-spine:spines=1,oversubscription=2,link_gbps=80")
    truth = jobs(8, 8, 8).replace(iterations=np.array([1000.0, 500.0, 1000.0]))

    class Fixed:
        def decide(self, view):
            from plait.core.plan import Plan

            places = {0: (0, 2), 1: (1, 3), 2: (4, 5)}
            return Plan.of(Group((Member(j),), on(*places[j])) for j in view.jobs.number.tolist())

    done = simulate(truth, cluster, Fixed(), world(phases="together"), check=True)
    ends = done.controller.job_store.columns["end_s"][:3]
    assert ends.tolist() == [250 + 200.0, 250.0, 400.0]  # 0.5 s an iteration while they meet, then 0.4


@pytest.mark.parametrize("policy", ["fifo-backfill", "tiresias-l", "muri-l", "antman"])
def test_whole_runs_keep_all_invariants_and_repeat(policy: str) -> None:
    trace = load_jobs(generate("gavel", 60, 32, 1.5, seed=3, models="uniform")).jobs
    cluster = networked(Cluster.parse("8x4@2"), "leaf-spine:oversubscription=4")
    ends = []
    for _ in range(2):
        done = simulate(with_gradient_bytes(trace, 1), cluster, make_policy(policy), world(), seed=1, check=True)
        ends.append(done.controller.job_store.columns["end_s"][:60].copy())
    assert np.array_equal(ends[0], ends[1])


def test_unknown_gradients_follow_from_model_name_and_seed() -> None:
    batch = JobBatch.of(
        [JobSpec(id="a", model="vgg16"), JobSpec(id="b"), JobSpec(id="c"), JobSpec(id="d", gradient_bytes=7)]
    )
    found = with_gradient_bytes(batch, 1).column("gradient_bytes")
    assert found[0] == 553.6e6
    assert found[1] != found[2]
    assert found[3] == 7
    assert np.array_equal(found, with_gradient_bytes(batch, 1).column("gradient_bytes"))
    assert found[1] != with_gradient_bytes(batch, 2).column("gradient_bytes")[1]


@pytest.mark.parametrize("text", ["leaf-spine", "rail", "rail:rails=2", "single-switch"])
def test_a_job_alone_is_as_its_trace_says_however_many_links_a_node_has(text: str) -> None:
    cluster = networked(Cluster.parse("4x4@2"), text)
    truth = jobs(8, profile=StageProfile.of(gpu=0.3, network=0.1))
    assert NetworkPhysics().iteration_s(truth, placed((0, 1)), cluster) == pytest.approx([0.4])


def test_faster_gpus_compute_faster_and_send_the_same_gradients() -> None:
    """0.3 s of computation on GPUs twice as fast, 0.1 s of exchange."""
    truth = jobs(8)
    physics = NetworkPhysics(StandardPhysics(kind_speed={"gpu": 2.0}))
    assert physics.iteration_s(truth, placed((0, 1)), RACKS) == pytest.approx([0.15 + 0.1])
    elastic = JobBatch.of([JobSpec(id="e", gpus=8, max_gpus=16, iterations=1, iteration_s=0.4, gradient_bytes=BYTES)])
    found = NetworkPhysics(phases="together").iteration_s(elastic, placed((0, 1, 2, 3)), RACKS)
    # Half of 0.3 s; a ring of four sends 1.5 gradients over links of 80 Gb/s, and as much between the racks.
    assert found == pytest.approx([0.15 + 0.15], rel=0.01)


def test_time_in_which_nobody_runs_is_no_time_of_exchange() -> None:
    batch = jobs(8, 4).replace(submit_s=np.array([0.0, 100_000.0]))
    cluster = networked(Cluster.parse("4x4"), "single-switch")
    made: list[History] = []

    def observe(controller):
        made.append(History(controller))
        return made[-1]

    done = simulate(batch, cluster, make_policy("fifo"), world(), observe=observe)
    assert measure(done.controller, made[0]).summary["exchange_job_h"] == pytest.approx(400 / 3600, rel=0.01)


def test_parameter_servers_load_links_by_their_parts_and_where_they_are() -> None:
    """Eight workers on two nodes: two equal servers carry 4 gradients, one server half of them is away from 4 + 4."""
    ring = jobs(8, 8, 8)
    equal, one, skewed = (replace_servers(ring, servers, 0.05 if servers == 2 else 0.7) for servers in (2, 1, 4))
    alone = NetworkPhysics().iteration_s(ring, placed((0, 1)), RACKS)
    for truth in (equal, one, skewed):  # as its trace says where it needs no more nodes, however it exchanges
        assert NetworkPhysics().iteration_s(truth, placed((0, 1)), RACKS) == pytest.approx(alone)
    half = tuple(4 * node + i for node in range(4) for i in range(2))
    wide = Groups.of([Group((Member(0),), half)])
    pace = {
        name: float(NetworkPhysics().iteration_s(truth, wide, RACKS)[0])
        for name, truth in (("ring", ring), ("equal", equal), ("one", one), ("skewed", skewed))
    }
    # 2 nodes: 4 workers send to the half away and back: 4. 4 nodes, 2 servers on two: 2 x 0.5 + 0.5 x 6 = 4.
    assert link_loads(np.array([2, 2, 2, 2]), np.array([0.5, 0.5]), np.array([0, 1])).tolist() == [4, 4, 2, 2]
    assert pace["one"] > pace["skewed"] > pace["equal"], "the busiest server decides"


def replace_servers(batch: JobBatch, servers: int, skew: float) -> JobBatch:
    return batch.replace(servers=np.full(len(batch), servers), skew=np.full(len(batch), skew))


def test_an_elastic_job_with_servers_exchanges_as_one_that_requested_what_it_has() -> None:
    """Sixteen workers and two servers on four nodes, requested or grown to: the same gradients."""
    exchange_s = []
    for gpus in (8, 16):
        spec = JobSpec(
            id="e", gpus=gpus, min_gpus=8, max_gpus=16, iterations=1, iteration_s=9.0, gradient_bytes=BYTES, servers=2
        )
        truth, running = JobBatch.of([spec]), placed((0, 1, 2, 3))
        physics = NetworkPhysics(phases="together")
        found = physics.exchanges(truth, running, RACKS, {}, physics.inner.alone_s(truth, running, RACKS))
        exchange_s.append(found[0][1])
    assert exchange_s[0] == pytest.approx(exchange_s[1], rel=1e-6)
