"""Memory laws against a table computed by another program, and against formulas."""

import numpy as np
import pytest

from plait.core.cluster import Cluster
from plait.core.errors import InputError
from plait.network.fluid.jobs import PlacedJob, rates
from plait.network.fluid.memory import SteadyRates, Windows, aggregated_rates
from plait.network.topology.paths import Graph
from plait.network.topology.read import networked

AGGREGATORS = (256, 512, 1024, 2048, 4096, 8192, 16384, 65536)
#: Goodput in Gb/s of each of eight jobs with eight workers, each on a 100 Gb/s link; windows of 245 packets.
TABLE = {
    ("hash", 1.1e-6): (11.3, 12.4, 14.6, 18.6, 25.5, 35.8, 48.4, 66.8),
    ("hash", 2.1e-6): (11.3, 12.5, 14.8, 19.0, 26.3, 37.4, 50.7, 66.8),
    ("hard", 2.1e-6): (11.5, 13.4, 20.3, 66.8, 66.8, 66.8, 66.8, 66.8),
}
SHARES = (0.12, 0.21, 0.35, 0.52, 0.69, 0.82, 0.90, 0.98)  # of `hash` with 1.1 us


def one_switch(aggregators: int, jobs: int = 8) -> tuple[Graph, list[PlacedJob]]:
    graph = Graph.of(networked(Cluster.parse(f"{9 * jobs}x8"), f"single-switch:aggregators={aggregators}"))
    return graph, [PlacedJob(tuple(range(9 * j, 9 * j + 8)), 9 * j + 8) for j in range(jobs)]


def solved(aggregators: int, law: str, off_s: float | None) -> SteadyRates:
    return aggregated_rates(*one_switch(aggregators), Windows(245, 7.28e-6, off_s, jitter_s=0), law)


@pytest.mark.parametrize(("law", "off_s"), list(TABLE))
def test_equal_jobs_have_the_goodput_of_the_table(law: str, off_s: float) -> None:
    for aggregators, gbps in zip(AGGREGATORS, TABLE[law, off_s], strict=True):
        found = solved(aggregators, law, off_s)
        assert found.bits_per_s / 1e9 == pytest.approx(gbps, abs=0.051)


def test_shares_are_those_of_the_table() -> None:
    found = [solved(aggregators, "hash", 1.1e-6).aggregated[0] for aggregators in AGGREGATORS]
    assert found == pytest.approx(SHARES, abs=0.0051)


def test_times_follow_from_the_topology() -> None:
    """Four hops of 1 us and 24.5 ns, two passes of a switch and 1 us in the server; two hops hold no aggregator."""
    graph, jobs = one_switch(1024)
    given = aggregated_rates(graph, jobs, Windows(245, 7.09792e-6, 2.04896e-6), "hash")
    assert aggregated_rates(graph, jobs, Windows(245), "hash").bits_per_s == pytest.approx(given.bits_per_s, rel=1e-4)


@pytest.mark.parametrize("law", ["hash", "cycle", "hard"])
def test_without_aggregators_rates_are_those_without_aggregation(law: str) -> None:
    graph, jobs = one_switch(0, jobs=2)
    found = aggregated_rates(graph, jobs, Windows(10_000), law)
    assert found.bits_per_s == pytest.approx(rates(graph, jobs).bits_per_s * 248 / 306)
    assert found.aggregated.tolist() == [0.0, 0.0]
    assert found.server_packets.tolist() == [8.0, 8.0]


@pytest.mark.parametrize("law", ["hash", "cycle", "hard"])
def test_with_plenty_of_memory_every_rack_sends_one_packet(law: str) -> None:
    graph = Graph.of(networked(Cluster.parse("12x8@4"), "leaf-spine:aggregators=2000000000"))
    job = PlacedJob((0, 1, 2, 4, 5, 6), 8)
    found = aggregated_rates(graph, [job], Windows(100_000), law)
    assert found.server_packets == pytest.approx([2.0], rel=1e-3)
    assert found.bits_per_s == pytest.approx([100e9 / 2 * 248 / 306], rel=1e-3)  # the server's link, for two racks
    assert found.aggregated == pytest.approx([1.0], rel=1e-3)
    few = aggregated_rates(graph, [job], Windows(16), law)
    assert few.channel.tolist() == [-1]
    assert few.bits_per_s == pytest.approx([16 * 248 * 8 / 15.2e-6], rel=0.01)  # eight links, six switches, the server


def test_a_job_alone_never_collides_with_itself_under_cycle_only() -> None:
    graph, jobs = one_switch(64, jobs=1)
    assert aggregated_rates(graph, jobs, Windows(64), "cycle").aggregated.tolist() == [pytest.approx(1.0, abs=1e-5)]
    assert aggregated_rates(graph, jobs, Windows(64), "hash").aggregated[0] < 0.7


def test_lone_workers_of_a_rack_hold_no_aggregators() -> None:
    graph = Graph.of(networked(Cluster.parse("6x8@2"), "leaf-spine:aggregators=8"))
    pair, spread = PlacedJob((0, 1), 2), PlacedJob((0, 3), 4)
    alone = aggregated_rates(graph, [pair], Windows(8), "hash").aggregated[0]
    both = aggregated_rates(graph, [pair, spread], Windows(8), "hash")
    assert both.aggregated[0] == pytest.approx(alone, abs=1e-5)


def test_reserved_aggregators_serve_no_job() -> None:
    made = networked(Cluster.parse("9x8"), "single-switch:aggregators=1024,reserved=512")
    job = [PlacedJob(tuple(range(8)), 8)]
    half = networked(Cluster.parse("9x8"), "single-switch:aggregators=512")
    found = [aggregated_rates(Graph.of(one), job, Windows(245), "hash").bits_per_s[0] for one in (made, half)]
    assert found[0] == found[1]


@pytest.mark.parametrize("law", ["hash", "cycle", "hard"])
def test_a_fixed_point_is_found_for_many_different_jobs(law: str) -> None:
    graph = Graph.of(networked(Cluster.parse("64x8@8"), "leaf-spine:oversubscription=2,spines=1,aggregators=512"))
    rng = np.random.default_rng(3)
    jobs = []
    for _ in range(60):
        some = rng.choice(64, int(rng.choice([2, 4, 8])) + 1, replace=False).tolist()
        jobs.append(PlacedJob(tuple(some[1:]), some[0]))
    found = aggregated_rates(graph, jobs, Windows(100), law)
    plain = rates(graph, jobs).bits_per_s * 248 / 306
    assert found.steps < 200
    # Every job takes less of every link, but sums that stall slow some down (packets give them 0.7 Gb/s at least).
    assert plain.min() / 2 < found.bits_per_s.min() < found.bits_per_s.max() < plain.max()
    assert ((found.aggregated > 0) & (found.aggregated <= 1 + 1e-9)).all()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Windows(0), "a window of 0 packets; needs at least 1"),
        (lambda: solved(64, "hashed", None), "memory law 'hashed' is unknown; did you mean 'hash'"),
        (
            lambda: aggregated_rates(one_switch(64)[0], [PlacedJob((0, 1))], Windows(8), "hash"),
            "a job on nodes .0, 1. has no parameter server",
        ),
        (
            lambda: aggregated_rates(
                Graph.of(networked(Cluster.parse("3x2"), "rail")), [PlacedJob((0, 1), 2)], Windows(8), "hash"
            ),
            "node n0 has 2 links; this needs nodes with one",
        ),
    ],
)
def test_what_has_no_rates_is_refused(make: object, words: str) -> None:
    with pytest.raises(InputError, match=words):
        make()  # type: ignore[operator]
