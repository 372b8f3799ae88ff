"""Iteration times of jobs that share links: against formulas for equal jobs, and what must hold for any."""

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plait.core.cluster import Cluster
from plait.core.errors import InputError, SimulationError
from plait.network.fluid.exchanges import Adders, Exchange, Prepared, prepared
from plait.network.fluid.iterations import PHASES, IterationTimes, iterations
from plait.network.fluid.jobs import PlacedJob
from plait.network.fluid.memory import SteadyRates, steady_rates
from plait.network.topology.paths import Graph
from plait.network.topology.read import networked
from plait.network.topology.trees import STRAIGHT
from sampling import examples

GBPS = 100e9


def pairs(count: int, **more: object) -> tuple[Graph, list[Prepared]]:
    """Jobs of two workers, each with one below either leaf: all share the links between leaves."""
    graph = Graph.of(
        networked(Cluster.parse(f"{2 * count}x8@{count}"), f"leaf-spine:spines=1,oversubscription={count}")
    )
    return graph, [prepared(graph, Exchange(PlacedJob((j, count + j)))) for j in range(count)]


def times(count: int, compute_s: float, phases: str, **more: Any) -> IterationTimes:
    graph, parts = pairs(count)
    bits = np.full(count, 1e9)  # 10 ms of an uplink
    return iterations(graph, parts, bits, np.full(count, compute_s), phases=phases, **more)


def test_a_job_alone_exchanges_at_the_rate_of_its_links() -> None:
    for phases in PHASES:
        found = times(1, 0.03, phases)
        assert found.exchange_s == pytest.approx([0.01])
        assert found.iteration_s == pytest.approx([0.04])
        assert found.busy == pytest.approx([0.25], abs=1e-5)


def test_jobs_in_step_divide_the_link_and_jobs_that_fit_do_not() -> None:
    assert times(3, 0.03, "together").iteration_s == pytest.approx([0.06] * 3)
    assert times(3, 0.03, "interleaved").iteration_s == pytest.approx([0.04] * 3)
    # Too much for the link: it is used all the time.
    assert times(8, 0.03, "interleaved").iteration_s == pytest.approx([0.08] * 8, rel=1e-4)


@pytest.mark.parametrize(("count", "off"), [(2, 1e-6), (3, 0.015), (4, 0.02), (8, 0.024)])
@pytest.mark.parametrize("compute_s", [0.003, 0.01, 0.03])
def test_random_phases_are_those_of_a_closed_queue(count: int, off: float, compute_s: float) -> None:
    """Mean value analysis of jobs that compute, and share a link that all who exchange have equal parts of."""
    at_link, cycle_s = 0.0, 0.0
    for jobs in range(1, count + 1):
        exchange_s = 0.01 * (1 + at_link)
        cycle_s = compute_s + exchange_s
        at_link = jobs * exchange_s / cycle_s
    found = times(count, compute_s, "random").iteration_s
    assert found == pytest.approx([cycle_s] * count, rel=off)
    assert (found >= cycle_s * (1 - 1e-6)).all()


def test_computation_hides_an_exchange_as_far_as_it_may() -> None:
    assert times(1, 0.03, "together", overlap=0.2).iteration_s == pytest.approx([0.034])
    assert times(1, 0.03, "together", overlap=1.0).iteration_s == pytest.approx([0.03])


def test_corrected_rates_are_those_of_jobs_alone_and_of_all_together() -> None:
    """Half of the law's rate alone, a quarter together: jobs that meet part of the time are in between."""
    graph, parts = pairs(2)

    def found(phases: str) -> list[float]:
        return iterations(
            graph, parts, np.full(2, 1e9), np.full(2, 0.03), phases=phases,
            corrected=lambda rows, law: np.full(len(rows), 0.5 if len(rows) == 1 else 0.25),
        ).exchange_s.tolist()  # fmt: skip

    assert found("together") == pytest.approx([0.08] * 2)
    assert all(0.02 < exchange_s < 0.08 for phases in ("random", "interleaved") for exchange_s in found(phases))
    assert found("random") > found("interleaved")


def test_a_law_that_does_not_settle_is_no_fault_where_packets_are_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    def settles(*given: Any, **more: Any) -> SteadyRates:
        if len(given) > 2 and given[2].min() < 1.0:
            raise SimulationError("shares still change")
        return steady_rates(*given, **more)

    monkeypatch.setattr("plait.network.fluid.iterations.steady_rates", settles)
    found = times(2, 0.03, "random", corrected=lambda rows, law: np.full(len(rows), 0.5)).exchange_s
    assert ((found > 0.0199) & (found < 0.0401)).all()
    with pytest.raises(SimulationError, match="still change"):
        times(2, 0.03, "random")


def test_members_that_take_turns_never_meet() -> None:
    graph, parts = pairs(3)
    seen: list[list[int]] = []
    turns, work = np.array([[2, 2, 1], [0, 1, 0]]), (np.full(3, 1e9), np.full(3, 0.03))
    iterations(graph, parts, *work, turns=turns, corrected=lambda rows, law: seen.append(rows) or np.ones(len(rows)))
    assert [rows for rows in seen if len(rows) > 1] == [[0, 2], [1, 2]]
    found = iterations(graph, parts[:2], work[0][:2], work[1][:2], phases="together", turns=turns[:, :2])
    assert found.exchange_s == pytest.approx([0.01, 0.01])


def test_a_region_answers_from_its_leaf_and_leaves_the_rest_to_others() -> None:
    graph = Graph.of(networked(Cluster.parse("15x8"), "single-switch:aggregators=1024"))
    jobs = [PlacedJob(tuple(range(5 * j, 5 * j + 4)), 5 * j + 4) for j in range(3)]
    shared = [prepared(graph, Exchange(job, "hash", window=245)) for job in jobs]
    region = prepared(graph, Exchange(jobs[0], "dedicated", 128))
    mixed = steady_rates(graph, Adders.of([region, *shared[1:]]))
    assert mixed.aggregated[0] == 1.0
    assert mixed.bits_per_s[0] == pytest.approx(64 * 1984 / region.rtt_s)  # half of it is the window
    assert region.rtt_s == pytest.approx(3.05e-6, rel=0.01)  # two hops of 1 us, 1 us in the switch, two serialisations
    # The others share 896 of 1,024 aggregators with two instead of three jobs.
    alone = steady_rates(graph, Adders.of(shared[1:]))
    assert mixed.aggregated[1] < alone.aggregated[0]
    assert mixed.aggregated[1] > steady_rates(graph, Adders.of(shared)).aggregated[1]


def test_without_aggregation_rings_and_aggregation_mix() -> None:
    graph = Graph.of(networked(Cluster.parse("10x8"), "single-switch:aggregators=65536"))
    ring = prepared(graph, Exchange(PlacedJob((0, 1, 2, 3))))
    added = prepared(graph, Exchange(PlacedJob((4, 5, 6, 7), 8), "hash"))
    found = steady_rates(graph, Adders.of([ring, added]))
    assert found.bits_per_s[0] == pytest.approx(GBPS / 1.5)  # 2 (W - 1) / W gradients
    assert found.bits_per_s[1] > 0.7 * GBPS
    assert found.aggregated[0] == 0.0


@settings(max_examples=examples(15))
@given(
    st.lists(
        st.tuples(st.sets(st.integers(0, 11), min_size=2, max_size=6), st.sampled_from(["none", "hash", "cycle"])),
        min_size=1, max_size=6,
    ),
    st.floats(0.001, 0.5),
)  # fmt: skip
def test_random_lies_between_the_others_and_nobody_is_faster_than_alone(jobs, compute_s) -> None:
    graph = Graph.of(networked(Cluster.parse("12x8@4"), "leaf-spine:oversubscription=2,aggregators=2000"))
    parts = [prepared(graph, Exchange(PlacedJob(tuple(sorted(w)), min(w)), law)) for w, law in jobs]
    bits, compute = np.full(len(parts), 8e8), np.full(len(parts), compute_s)
    found = {p: iterations(graph, parts, bits, compute, phases=p) for p in PHASES}
    alone = [iterations(graph, [p], bits[:1], compute[:1], phases="together").exchange_s[0] for p in parts]
    for phases in PHASES:
        assert (found[phases].exchange_s >= np.array(alone) * (1 - 1e-5)).all()
    assert (found["random"].exchange_s >= found["interleaved"].exchange_s * (1 - 1e-2)).all()


@pytest.mark.parametrize(
    ("words", "law", "region", "server"),
    [
        ("memory law 'hashed' is unknown", "hashed", 0, 0),
        ("has no parameter server", "hash", 0, None),
        ("a region of 1 aggregators", "region", 1, 0),
        ("a region of 8 aggregators", "hash", 8, 0),
    ],
)
def test_impossible_exchanges_are_refused(words: str, law: str, region: int, server: int | None) -> None:
    with pytest.raises(InputError, match=words):
        Exchange(PlacedJob((0, 1), server), law, region)


def test_order_of_jobs_does_not_matter() -> None:
    graph = Graph.of(networked(Cluster.parse("8x8@4"), "leaf-spine:oversubscription=4,aggregators=500"))
    jobs = [((0, 4), "hash"), ((1, 5, 6), "none"), ((2, 3), "hash")]
    expected = None
    for order in itertools.permutations(range(3)):
        parts = [prepared(graph, Exchange(PlacedJob(jobs[i][0], jobs[i][0][0]), jobs[i][1])) for i in order]
        found = iterations(graph, parts, np.full(3, 8e8), np.full(3, 0.1))
        sorted_s = found.iteration_s[np.argsort(order)]
        expected = sorted_s if expected is None else expected
        assert sorted_s == pytest.approx(expected, rel=1e-5)


def test_packets_of_higher_priority_meet_those_of_lower_as_if_they_were_alone() -> None:
    graph = Graph.of(networked(Cluster.parse("15x8"), "single-switch:aggregators=300"))
    jobs = [PlacedJob(tuple(range(5 * j, 5 * j + 4)), 5 * j + 4) for j in range(3)]

    def shares(*priorities: int) -> list[float]:
        given = zip(jobs, priorities, strict=False)
        parts = [prepared(graph, Exchange(job, "hash", window=245, priority=one)) for job, one in given]
        return steady_rates(graph, Adders.of(parts)).aggregated.tolist()

    alone, equal = shares(1), shares(1, 1, 1)
    assert shares(9, 9, 9) == equal
    top, middle, last = shares(3, 2, 1)
    assert top == pytest.approx(alone[0], rel=1e-4)
    assert top > middle > last
    assert shares(1, 2, 3) == [last, middle, top]


def test_workers_are_added_up_where_they_are_sent() -> None:
    """Two racks of two: at their leaves, all at the spine, or not at all; packets that reach the server."""
    graph = Graph.of(networked(Cluster.parse("4x8@2"), "leaf-spine:spines=1,aggregators=20000,aggregating=all"))
    first = len(graph.nodes)
    spine = first + [one.tier for one in graph.network.switches].index(2)
    job = PlacedJob((0, 1, 2, 3), 0)
    found = {
        name: steady_rates(graph, Adders.of([prepared(graph, Exchange(job, "hash", window=8, at=at))]))
        for name, at in {"leaf": (), "spine": (spine,) * 4, "none": (STRAIGHT,) * 4}.items()
    }
    packets = {name: one.server_packets[0] for name, one in found.items()}
    assert packets["leaf"] == pytest.approx(2, abs=0.01)
    assert packets["spine"] == pytest.approx(1, abs=0.01)
    assert packets["none"] == 4
    with pytest.raises(InputError, match="2 switches for 4 workers"):
        Exchange(job, "hash", at=(spine, spine))


def test_regions_are_added_up_as_far_as_switches_can() -> None:
    """Four racks of two workers, one spine, links between switches of the rate of two nodes."""
    rate = {}
    for law, levels in itertools.product(("region", "dedicated"), (1, 2)):
        text = f"leaf-spine:spines=1,aggregators=20000,aggregating=all,levels={levels}"
        graph = Graph.of(networked(Cluster.parse("8x8@2"), text))
        exchange = Exchange(PlacedJob(tuple(range(8)), 0), law, 2000, adds="leaf+spine")
        rate[law, levels] = steady_rates(graph, Adders.of([prepared(graph, exchange)])).bits_per_s[0] / GBPS * 306 / 248
    # The spine answers: every link carries one packet a sum, and at one level links of racks carry two.
    assert rate["dedicated", 2] == pytest.approx(1.0, rel=1e-6)
    assert rate["dedicated", 1] == pytest.approx(1.0, rel=1e-6)
    # The link of node 0 has a worker and the server: its gradient and the result leave; at one level four sums come.
    assert rate["region", 2] == pytest.approx(1 / 2, rel=0.01)
    assert rate["region", 1] == pytest.approx(1 / 5, rel=0.01)


def test_jobs_that_fill_a_link_between_them_have_times_too() -> None:
    """A case in which changes grow steadily for a while before they shrink."""
    graph = Graph.of(networked(Cluster.parse("8x4@2"), "leaf-spine:oversubscription=4,link_gbps=25"))
    rng = np.random.default_rng(3)
    for _ in range(100):
        count = int(rng.integers(2, 5))
        parts = []
        for _ in range(count):
            nodes = rng.choice(8, size=rng.integers(2, 4), replace=False)
            parts.append(prepared(graph, Exchange(PlacedJob(tuple(sorted(nodes.tolist()))))))
        compute_s = np.round(rng.uniform(0.1, 2, count), 1)
        bits = compute_s * rng.uniform(0.3, 1, count) * 12.5e9 + 5e8
        found = iterations(graph, parts, bits, compute_s, overlap=1.0, phases="interleaved")
        assert (found.iteration_s >= compute_s * (1 - 1e-9)).all()


@pytest.mark.parametrize("spine", ["spine0", "spine1"])
def test_each_spine_carries_what_is_added_up_there(spine: str) -> None:
    """Three workers of rack 0 over a link of 50 Gb/s to one spine."""
    options = "oversubscription=4,aggregators=200000,aggregating=all"
    graph = Graph.of(networked(Cluster.parse("8x8@4"), f"leaf-spine:{options}"))
    one = Exchange(PlacedJob((0, 1, 2), 5), "hash", at=(graph.names.index(spine),) * 3)
    found = steady_rates(graph, Adders.of([prepared(graph, one)]))
    assert found.bits_per_s[0] == pytest.approx(50e9 / 3 * 248 / 306, rel=1e-3)
    assert graph.channel_name(int(found.channel[0])) == f"leaf0->{spine}"
