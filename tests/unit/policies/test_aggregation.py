"""Switch memory for the jobs of any policy: who asks, who gets what, and whole simulations with all invariants."""

from dataclasses import dataclass, replace

import numpy as np
import pytest

from plait.control.controller import Controller
from plait.control.history import History
from plait.control.messages import Grant, JobSubmitted, NodesReserved, ReplanDue, SwitchJoined, SwitchLost, Wake
from plait.control.metrics import measure
from plait.core.cluster import Cluster
from plait.core.errors import InputError
from plait.core.highs import HAVE_HIGHS
from plait.core.ina_request import ROUTES, InaRequest
from plait.core.jobs import JobBatch, JobSpec
from plait.core.network_grants import NetworkGrant, by_job
from plait.core.plan import Group, Member, NodeReservation, Plan
from plait.core.policy import View
from plait.core.resources import StageProfile
from plait.network.fluid.granted import granted_exchange
from plait.network.memory.records import Request
from plait.network.topology.paths import Graph
from plait.network.topology.read import networked
from plait.network.topology.trees import STRAIGHT
from plait.policies.aggregation import WithAggregation, lease_of, manager_of
from plait.policies.catalog import make_policy
from plait.sim.contention.network import NetworkPhysics, with_gradient_bytes
from plait.sim.run import simulate
from plait.sim.world import make_world
from plait.traces.load import load_jobs
from plait.traces.synthetic import generate

pytestmark = pytest.mark.filterwarnings("ignore:plait. rates of jobs that share nodes:RuntimeWarning")

RACKS = networked(Cluster.parse("8x4@4"), "leaf-spine:oversubscription=4,aggregators=4000,aggregating=all")
WORLD = replace(make_world("ideal"), physics=NetworkPhysics(rates="law"))


def wide(count: int, gpus: int = 8, **more: object) -> JobBatch:
    return JobBatch.of(
        JobSpec(id=f"j{i}", gpus=gpus, iterations=1000, iteration_s=0.4, gradient_bytes=1e9, **more)
        for i in range(count)
    )


def decided(policy: str, jobs: JobBatch, cluster: Cluster = RACKS) -> Controller:
    controller = Controller(make_policy(policy), cluster)
    controller.handle(JobSubmitted(0.0, 0, jobs))
    controller.handle(ReplanDue(0.0))
    return controller


def test_without_a_network_it_says_what_to_give() -> None:
    with pytest.raises(InputError, match=r"fifo:ina=atp grants memory of switches, and this cluster has no network"):
        decided("fifo:ina=atp", wide(1), Cluster.parse("8x4"))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("fifo:ina=atpp", "'atpp' is unknown"),
        ("fifo:ina=inalloc/margin=0.5", "margin"),
        ("fifo:routing=grid", "routing=grid is of gradients that switches add up; it goes with ina="),
        ("fifo:ina=atp,routing=ring", "ring"),
    ],
)
def test_wrong_options_are_named(text: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        make_policy(text)


def test_jobs_on_several_nodes_share_the_switches_that_see_two_of_their_workers() -> None:
    controller = decided("fifo:ina=atp", wide(4))
    assert sorted({grant.job for grant in controller.grants}) == [0, 1, 2, 3]
    for grant in controller.grants:
        assert (grant.switch in ("leaf0", "leaf1"), grant.mode, grant.exclusive) == (True, "shared_hash", False)
        assert grant.server >= 0


def test_equal_parts_halve_when_another_job_comes_and_grow_when_it_leaves() -> None:
    controller = decided("fifo-backfill:ina=switchml", wide(1))
    (one,) = controller.grants
    assert (one.size, one.offset, one.exclusive) == (4000, 0, True)
    controller.handle(JobSubmitted(1.0, 1, wide(2)))
    commands = controller.handle(ReplanDue(1.0))
    by_switch: dict[str, list[int]] = {}
    for grant in controller.grants:
        by_switch.setdefault(grant.switch, []).append(grant.size)
    assert all(sum(sizes) <= 4000 for sizes in by_switch.values())
    assert sorted(by_switch[one.switch]) in ([2000, 2000], [4000])
    assert any(isinstance(command, Grant) for command in commands)


def test_what_nothing_changes_stays_as_it_is() -> None:
    controller = decided("fifo-backfill:ina=inalloc", wide(3, deadline_s=1000.0))
    before = controller.grants
    assert before
    commands = controller.handle(ReplanDue(0.0))
    assert controller.grants == before
    assert not any(isinstance(command, Grant) for command in commands)


def test_who_does_not_ask_gets_nothing_and_who_must_have_it_waits() -> None:
    cases = {
        "off": InaRequest("off"), "esa": InaRequest(protocol="esa"), "must": InaRequest("require", protocol="esa"),
    }  # fmt: skip
    jobs = JobBatch.of(
        JobSpec(id=name, gpus=8, iterations=1000, iteration_s=0.4, gradient_bytes=1e9, ina=ina)
        for name, ina in cases.items()
    )
    controller = decided("fifo-backfill:ina=atp", jobs)
    assert controller.grants == ()
    assert controller.running.jobs.tolist() == [0, 1]
    assert "requires aggregation in switches: asks for esa; the switches run atp" in str(controller.waiting_reason(2))


def test_the_mate_of_a_job_that_waits_for_a_switch_runs_on() -> None:
    stages = StageProfile.of(storage=0.9, gpu=0.1), StageProfile.of(gpu=0.9, cpu=0.1)
    some = {"gpus": 32, "iterations": 1000, "iteration_s": 1.0, "gradient_bytes": 1e6}
    jobs = [JobSpec(id=f"j{i}", profile=stages[i % 2], **some) for i in range(8)]
    for mates in ({0, 1}, {0}):
        controller = decided("plait:guests=0,ina=atp", JobBatch.of(jobs))
        assert set(controller.running.jobs.tolist()) == mates
        jobs[1] = replace(jobs[1], ina=InaRequest("require", protocol="esa"))


def test_a_lost_switch_takes_its_grants_and_gives_them_anew() -> None:
    controller = decided("fifo-backfill:ina=atp", wide(1))
    (grant,) = controller.grants
    controller.handle(SwitchLost(1.0, grant.switch))
    controller.handle(ReplanDue(1.0))
    assert grant.switch not in {one.switch for one in controller.grants}
    controller.handle(SwitchJoined(2.0, grant.switch))
    controller.handle(ReplanDue(2.0))
    assert grant.switch in {one.switch for one in controller.grants}


@pytest.mark.parametrize("manager", ["switchml", "atp", "esa", "inalloc", "shared/index=cycle"])
@pytest.mark.parametrize("routing", ROUTES)
def test_whole_simulations_keep_all_invariants(manager: str, routing: str) -> None:
    trace = load_jobs(generate("gavel", 25, 32, 0.6, seed=5, models="uniform")).jobs
    trace = trace.replace(deadline_s=trace.column("iterations") * trace.column("iteration_s") * 2)
    done = simulate(
        with_gradient_bytes(trace, 1), RACKS, make_policy(f"tiresias-l:ina={manager},routing={routing}"), WORLD,
        seed=1, check=True,
    )  # fmt: skip
    assert np.isfinite(done.controller.job_store.columns["end_s"][:25]).all()


def test_aggregation_goes_with_quotas_and_makes_jobs_faster_where_memory_suffices() -> None:
    cluster = networked(Cluster.parse("4x4"), "single-switch:aggregators=40000,link_gbps=80")
    ends = {}
    for policy in ("fifo", "fifo:ina=switchml,quota=*=16"):
        done = simulate(wide(1, gpus=16), cluster, make_policy(policy), WORLD, check=True)
        ends[policy] = float(done.controller.job_store.columns["end_s"][0])
    ring, added = ends.values()
    assert ring == pytest.approx(400)
    assert added == pytest.approx(1000 * (0.4 - 0.15 + 0.1 * 306 / 248), rel=1e-3)


def test_figures_of_a_run_tell_deadlines_and_what_switches_did() -> None:
    """Two jobs of 400 s alone that cannot both meet 410 s on one uplink; one of them has no deadline."""
    jobs = wide(2, gpus=16).replace(deadline_s=np.array([410.0, np.nan]))
    cluster = networked(Cluster.parse("8x4@4"), "leaf-spine:oversubscription=4,aggregators=30000")
    found = {}
    for policy in ("fifo:placement=least-fragmentation", "fifo:placement=least-fragmentation,ina=switchml"):
        history: list[History] = []
        done = simulate(jobs, cluster, make_policy(policy), WORLD, check=True, observe=recorder(history))
        found[policy] = measure(done.controller, history[0]).summary
    ring, added = found.values()
    assert (ring["deadlines"], ring["granted_job_h"], ring["aggregated_share"]) == (1, 0.0, 0.0)
    assert added["aggregated_share"] == 1.0
    assert (ring["fallback_share"], added["fallback_share"]) == (0.0, 0.0)
    few = "leaf-spine:oversubscription=4,aggregators=400"
    short = networked(Cluster.parse("8x4@4"), few)
    history = []
    done = simulate(jobs, short, make_policy("fifo:placement=least-fragmentation,ina=atp"), WORLD, check=True,
                    observe=recorder(history))  # fmt: skip
    shared = measure(done.controller, history[0]).summary
    assert 0.0 < shared["fallback_share"] < 1.0
    assert shared["fallback_share"] + shared["aggregated_share"] <= 1.0
    assert added["granted_job_h"] == pytest.approx(added["exchange_job_h"])
    assert added["makespan_s"] < ring["makespan_s"]
    plain = simulate(jobs, Cluster.parse("8x4@4"), make_policy("fifo"), make_world("ideal"), observe=recorder(history))
    assert "deadlines" not in measure(plain.controller, history[-1]).summary


def recorder(made: list[History]):
    def observe(controller):
        made.append(History(controller))
        return made[-1]

    return observe


def test_a_job_on_other_switches_than_before_begins_with_no_region() -> None:
    had = NetworkGrant(0, "leaf0", 0, 64, "dedicated", exclusive=True, epoch=3)
    for switches, offsets in ((("leaf0",), [0]), (("leaf0", "leaf1"), [None, None]), (("leaf1",), [None])):
        lease = lease_of(Request(job=0, switches=switches), (had,))
        assert [region and region.offset for region in lease.regions] == offsets
        assert lease.epoch == 3


def test_switches_run_one_system_and_nodes_have_one_link() -> None:
    jobs = JobBatch.of(
        JobSpec(id=name, gpus=8, iterations=1000, iteration_s=0.4, gradient_bytes=1e9, ina=InaRequest(protocol=name))
        for name in ("atp", "a2tp", "esa")
    )
    assert {grant.job for grant in decided("fifo-backfill:ina=esa", jobs).grants} == {2}
    assert {grant.job for grant in decided("fifo-backfill:ina=shared", jobs).grants} == {0, 1}
    rail = networked(Cluster.parse("8x4@4"), "rail:aggregators=2000")
    with pytest.raises(InputError, match=r"policy fifo:ina=atp grants memory of switches, and nodes .* several links"):
        decided("fifo:ina=atp", wide(1), rail)


def test_inalloc_meets_the_deadlines_that_other_managers_miss_where_memory_is_short() -> None:
    """Eight jobs of four workers under a switch, which has a third of the memory that they could use.

    Two have to be done within 1.6 times their time alone, six within six times. What nobody needs is for all: else
    all would end at their deadlines. On average jobs are slower than with dedicated slots, whose results do not come
    from a server.
    """
    slack = np.array([6, 6, 6, 1.6, 6, 6, 6, 1.6])
    jobs = wide(8, gpus=16).replace(deadline_s=400 * slack)
    cluster = networked(Cluster.parse("40x4"), "single-switch:aggregators=700")
    missed, mean_s = {}, {}
    for manager in ("switchml", "atp", "esa", "inalloc", "inalloc/spare=others"):
        policy = make_policy(f"fifo:ina={manager}")
        done = simulate(jobs.replace(gradient_bytes=np.full(8, 2e9)), cluster, policy, WORLD, check=True)
        end_s = done.controller.job_store.columns["end_s"][:8]
        missed[manager] = np.flatnonzero(end_s > 400 * slack).tolist()
        mean_s[manager] = float(end_s.mean())
    urgent = [3, 7]
    assert missed == {"switchml": urgent, "atp": urgent, "esa": urgent, "inalloc": [], "inalloc/spare=others": []}
    assert mean_s["switchml"] < mean_s["inalloc"]
    assert mean_s["inalloc/spare=others"] > 1.7 * mean_s["inalloc"]


def test_servers_keep_away_from_workers_whose_servers_are_still_to_be_chosen() -> None:
    single = networked(Cluster.parse("10x4"), "single-switch:aggregators=700")
    assert {grant.server for grant in decided("fifo:ina=atp", wide(2, gpus=16), single).grants} == {8, 9}


@pytest.mark.parametrize("manager", ["atp", "inalloc"])
@pytest.mark.parametrize("levels", [1, 2])
def test_a_job_that_fills_its_racks_has_its_server_on_a_free_node_elsewhere(manager: str, levels: int) -> None:
    racks = networked(Cluster.parse("16x4@4"), f"leaf-spine:aggregators=20000,aggregating=all,levels={levels}")
    for gpus in (16, 32):
        assert decided(f"fifo:ina={manager}", wide(1, gpus=gpus), racks).grants[0].server >= gpus // 4


@pytest.mark.parametrize("manager", ["atp", "inalloc"])
def test_no_server_is_on_a_node_that_is_reserved_for_others(manager: str) -> None:
    racks = networked(Cluster.parse("16x4@4"), "leaf-spine:aggregators=20000,aggregating=all")
    controller = Controller(make_policy(f"fifo:ina={manager}"), racks)
    reserved = tuple(racks.nodes[at].id for at in range(4, 15))
    controller.handle(NodesReserved(0.0, NodeReservation("r", reserved, "p", 0.0, 1e6)))
    controller.handle(JobSubmitted(0.0, 0, wide(1, gpus=16)))
    controller.handle(ReplanDue(0.0))
    assert controller.grants[0].server == 15


def test_memory_is_reviewed_while_deadlines_could_use_more() -> None:
    """A job that could use more asks for a review each period; one that has all that its link can use does not."""
    for aggregators, expected in ((200, 60.0), (20_000, np.inf)):
        cluster = networked(Cluster.parse("32x4"), f"single-switch:aggregators={aggregators}")
        controller = Controller(make_policy("fifo:ina=inalloc"), cluster)
        controller.handle(JobSubmitted(0.0, 0, wide(2, gpus=16, deadline_s=2000.0)))
        commands = controller.handle(ReplanDue(0.0))
        assert [c.at_s for c in commands if isinstance(c, Wake)] == [expected] * (expected < np.inf)


def spread_jobs(nodes: list[list[int]], iteration_s: float = 0.4) -> tuple[JobBatch, dict[int, list[int]]]:
    jobs = JobBatch.of(
        JobSpec(id=f"j{i}", gpus=4 * len(on), iterations=1000, iteration_s=iteration_s, gradient_bytes=2e9)
        for i, on in enumerate(nodes)
    )
    return jobs, dict(enumerate(nodes))


@dataclass
class Fixed:
    """Runs every job on the nodes that it is given, four GPUs each."""

    on: dict[int, list[int]]
    name = "fixed"

    def decide(self, view: View) -> Plan:
        groups = [
            Group((Member(job.number),), tuple(4 * n + g for n in self.on[job.number] for g in range(4)))
            for job in view.jobs
        ]
        return Plan.of(groups)


def exchange_s(manager: str, routing: str, nodes: list[list[int]], network: str) -> np.ndarray:
    """Seconds in which these jobs exchange gradients, in all iterations."""
    jobs, on = spread_jobs(nodes)
    policy = WithAggregation(Fixed(on), manager_of(manager), routing)
    cluster = networked(Cluster.parse("32x4@8"), network)
    done = simulate(jobs, cluster, policy, WORLD, check=True)
    return done.controller.job_store.columns["end_s"][: len(jobs)] - 200.0


@pytest.mark.skipif(not HAVE_HIGHS, reason="needs highspy: the extra sim")
@pytest.mark.parametrize("manager", ["inalloc", "atp"])
def test_grid_adds_up_above_the_racks_where_the_link_of_the_server_is_narrow(manager: str) -> None:
    """Two workers in each of four racks: leaves send four sums over the server's link, a spine sends one."""
    network = "leaf-spine:oversubscription=4,aggregators=20000,aggregating=all,payload=1024"
    nodes = [[0, 1, 8, 9, 16, 17, 24, 25]]
    leaf, grid = (exchange_s(manager, routing, nodes, network)[0] for routing in ("leaf", "grid"))
    assert grid < 0.8 * leaf


@pytest.mark.skipif(not HAVE_HIGHS, reason="needs highspy: the extra sim")
def test_grid_exchanges_no_slower_than_fixed_routes_and_mostly_faster() -> None:
    """Jobs scattered over four racks, whose servers' links and uplinks differ in what they carry.

    Each manager of memory has both kinds of links. There is memory for all jobs, so both give the same times.
    """
    gains = []
    for seed, manager in enumerate(("inalloc", "inalloc", "atp", "atp")):
        draw = np.random.default_rng(seed)
        free = draw.permutation(32).tolist()
        nodes = [sorted(free.pop() for _ in range(count)) for count in draw.choice([2, 3, 4, 6], 5)]
        narrow = "spines=2,oversubscription=4" if seed % 2 else "spines=1,oversubscription=1"
        network = f"leaf-spine:{narrow},aggregators=9000,aggregating=all"
        leaf, grid = (exchange_s(manager, routing, nodes, network).sum() for routing in ("leaf", "grid"))
        gains.append(leaf / grid)
    assert min(gains) > 1
    assert np.median(gains) > 1.25


@pytest.mark.skipif(not HAVE_HIGHS, reason="needs highspy: the extra sim")
def test_each_worker_is_added_up_where_its_route_says() -> None:
    network = "leaf-spine:oversubscription=4,aggregators=20000,aggregating=all,payload=1024"
    jobs, on = spread_jobs([[0, 1, 8, 9, 16, 17, 24, 25], [2, 3, 4, 5, 6]])
    cluster = networked(Cluster.parse("32x4@8"), network)
    controller = Controller(WithAggregation(Fixed(on), manager_of("atp"), "grid"), cluster)
    controller.handle(JobSubmitted(0.0, 0, jobs))
    controller.handle(ReplanDue(0.0))
    for job, mine in by_job(controller.grants).items():
        named = [node for grant in mine for node in grant.workers]
        assert len(named) == len(set(named))
        assert set(named) <= set(on[job])
        exchange = granted_exchange(Graph.of(cluster), tuple(on[job]), mine)
        names = [None if v == STRAIGHT else Graph.of(cluster).names[v] for v in exchange.at]
        expected = {node: grant.switch for grant in mine for node in grant.workers}
        assert names == [expected.get(node) for node in on[job]]
    assert any(len(grant.workers) > 1 for grant in controller.grants)
