"""The law of shared memory, and what is measured where it does not hold, against the packet simulator.

All points with PLAIT_SLOW, a few of each set by default.
"""

from statistics import median

import memory_laws as laws
import numpy as np
import pytest
from memory_laws import BURSTS, CROWDS, FRESH, GRID, MIXES, NARROW, PUBLISHED, RACKS, Point, compared, exchanges

from plait.core.cluster import Cluster
from plait.core.errors import InputError
from plait.network import measured
from plait.network.fluid.exchanges import Adders, Exchange, Prepared, prepared
from plait.network.fluid.jobs import PlacedJob
from plait.network.fluid.memory import SteadyRates, steady_rates
from plait.network.measured import Measured
from plait.network.packets.run import FEWEST_PARTS, PARTS, flow
from plait.network.packets.scenario import Scenario
from plait.network.topology.paths import Graph
from plait.network.topology.read import networked
from plait.network.topology.trees import STRAIGHT
from sampling import sample


@pytest.mark.parametrize(
    ("points", "largest", "middle", "shares"),
    [
        pytest.param(sample(PUBLISHED[8:10], PUBLISHED), 0.10, 0.03, 0.07, id="published"),
        pytest.param(sample(GRID[21:22], GRID), 0.15, 0.05, 0.07, id="grid"),
        pytest.param(sample(RACKS[2::7], RACKS), 0.15, 0.05, 0.07, id="racks"),
        pytest.param(sample(NARROW[8:9], NARROW), 0.15, 0.05, 0.07, id="narrow"),
        pytest.param(sample(BURSTS[8:9], BURSTS), 0.15, 0.05, 0.08, id="bursts"),
        pytest.param(sample(CROWDS[:1], CROWDS), 0.15, 0.05, 0.20, id="crowds"),
        pytest.param(sample(laws.SCATTERED[:2], laws.SCATTERED), 0.15, 0.05, 0.08, id="scattered"),
        pytest.param(sample(laws.SLOW[1:2], laws.SLOW), 0.15, 0.05, 0.08, id="slow"),
        pytest.param(sample(laws.SYSTEMS[4:5], laws.SYSTEMS), 0.15, 0.05, 0.08, id="systems"),
        pytest.param(sample(laws.PHASES[:1], laws.PHASES), 0.10, 0.05, 0.12, id="phases"),
        pytest.param(sample(MIXES[:1], MIXES), 0.15, 0.05, 0.08, id="mixes"),
        pytest.param(sample(FRESH[:1], FRESH), 0.15, 0.05, 0.08, id="fresh"),
    ],
)
def test_goodput_of_every_job_is_that_of_packets(
    points: tuple[Point, ...], largest: float, middle: float, shares: float
) -> None:
    found = list((laws.phased if points[0] in laws.PHASES else compared)(points, seeds=sample((1,), (1, 2))))
    worst = {one.point.name: one.worst for one in found}
    assert max(map(abs, worst.values())) <= largest, worst
    assert median(abs(error) for one in found for error in one.errors) <= max(middle, largest * (len(found) == 1))
    assert max(abs(one.share_error) for one in found) <= shares


def _measured(point: Point) -> tuple[Measured, list[Exchange], list[Prepared], SteadyRates]:
    scenario = point.scenario()
    given = exchanges(scenario)
    parts = [prepared(scenario.graph, one) for one in given]
    law = steady_rates(scenario.graph, Adders.of(parts))
    return Measured(scenario.cluster, scenario.graph), given, parts, law


def test_packets_are_followed_once_and_only_where_sums_stall(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = []
    monkeypatch.setattr(measured, "flow", lambda *given: runs.append(given) or flow(*given))
    monkeypatch.setattr(measured, "MOST_PACKETS", 50_000)
    many, given, parts, law = _measured(Point(20_000, (3, 4), 100, per_rack=3, levels=2))
    assert many.factors(given, parts, law.bits_per_s, law.stalled).tolist() == [1.0, 1.0]
    assert not runs
    few, given, parts, law = _measured(Point(300, (5, 4), 200, per_rack=3, levels=2, oversubscription=4.0))
    factors = few.factors(given, parts, law.bits_per_s, law.stalled)
    assert (np.abs(factors - 1) > 0.01).any()
    assert few.factors(given, parts, law.bits_per_s, law.stalled).tolist() == factors.tolist()
    assert len(runs) == 1


def test_packets_are_followed_on_shared_nodes_and_rates_doubtful_where_they_cannot_be() -> None:
    graph = Graph.of(made := networked(Cluster.parse("70x1@35"), "leaf-spine:aggregators=900,aggregating=all,levels=2"))
    beside = Exchange(PlacedJob((0, 1, 2, 35), 0), "hash", window=200)
    wide = Exchange(PlacedJob(tuple(range(66)), 66), "hash", window=200)
    own = Exchange(PlacedJob((0, 1, 2, 35), 0), "region", 200)
    slots = Exchange(PlacedJob((0, 1, 2, 35)), "dedicated", 200, adds="leaf+spine")
    for one, rates, followed in (
        (beside, "auto", True), (beside, "law", None), (wide, "packets", None), (own, "auto", True), (own, "law", None),
        (slots, "auto", False),
    ):  # fmt: skip
        factors = Measured(made, graph, rates).factors([one], [prepared(graph, one)], np.array([20e9]), np.array([2.0]))
        assert (None if factors is None else bool((factors != 1).any())) is followed, (one, rates)


def test_rings_beside_aggregation_have_the_rates_of_their_packets() -> None:
    """Workers in two racks; by the law, which divides links equally, the ring has half of its rate by packets."""
    network = "leaf-spine:oversubscription=8,aggregators=4000,link_gbps=25,spines=1"
    graph = Graph.of(made := networked(Cluster.parse("16x1@8"), network))
    given = [Exchange(PlacedJob((0, 8))), Exchange(PlacedJob((1, 2, 9), 10), "hash", window=162)]
    parts = [prepared(graph, one) for one in given]
    law = steady_rates(graph, Adders.of(parts))
    found = Measured(made, graph).factors(given, parts, law.bits_per_s, law.stalled)
    jobs = tuple(measured._endless(graph, *pair, "none") for pair in zip(given, parts, strict=True))
    right = flow(Scenario(jobs, made, seed=5), 2e-3, 2e-2).bits_per_s
    assert found * law.bits_per_s == pytest.approx(right, rel=0.1)
    assert found[0] > 1.5
    busy, full = (Measured(made, graph, *measured.rates_of(f"packets:background={part}")) for part in (0.1, 0.5))
    assert busy.factors(given[:1], parts[:1], np.array([25e9]), np.zeros(1)) < 0.9
    with pytest.raises(InputError, match="background"):
        full.factors(given[:1], parts[:1], np.array([25e9]), np.zeros(1))


@pytest.mark.parametrize("at", [(), (STRAIGHT, 16, 16, 16), (STRAIGHT,) * 4])
def test_a_server_next_to_a_worker_costs_its_link_by_the_law_as_by_packets(at: tuple[int, ...]) -> None:
    """Packets of that worker go to the leaf and back, so the link carries them, results, and what others send."""
    graph = Graph.of(made := networked(Cluster.parse("16x1@8"), "leaf-spine:aggregators=20000,link_gbps=25"))
    one = Exchange(PlacedJob((0, 1, 2, 3), 0), "hash", window=80, at=at)
    law = steady_rates(graph, Adders.of([prepared(graph, one)])).bits_per_s
    right = flow(Scenario((measured._endless(graph, one, prepared(graph, one), "none"),), made), 1e-3, 1e-2).bits_per_s
    assert law == pytest.approx(right, rel=0.04)


def test_conditions_of_packets_are_read_and_wrong_ones_refused() -> None:
    assert measured.rates_of("packets:cc=aimd,background=0.3")[1] == measured.Conditions("aimd", 0.3)
    for text, why in (
        ("paquets", "did you mean"), ("law:cc=aimd", "law takes no options"), ("packets:cc=red", "cc is"),
        ("packets:loss=1", "'loss' is no field"), ("packets:background=1", "needs a number from 0 to 0.99"),
        ("packets:background_flows=websearch", "give a background"),
    ):  # fmt: skip
        with pytest.raises(InputError, match=why):
            measured.rates_of(text)


def test_a_flow_ends_when_its_rates_are_known() -> None:
    scenario = CROWDS[0].scenario()
    few = flow(scenario, 1e-4, 1e-4 + (1e-2 - 1e-4) * FEWEST_PARTS / PARTS)
    assert flow(scenario, 1e-4, 1e-2, near=1.0).bits_per_s == pytest.approx(few.bits_per_s)


def test_hash_is_the_law_that_fits_shared_hash_addressing() -> None:
    """`hard` is wrong by a factor where jobs hold much of the memory."""
    errors = {law: abs(next(iter(compared([Point(2048)], (1,), law))).worst) for law in ("hash", "hard")}
    assert errors["hash"] < 0.08 < 1 < errors["hard"]
