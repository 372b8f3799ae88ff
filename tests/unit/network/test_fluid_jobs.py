"""Rates of placed jobs where they follow from a formula."""

import math

import numpy as np
import pytest

from plait.core.cluster import Cluster
from plait.core.errors import InputError
from plait.network.fluid.jobs import PlacedJob, channels, rates
from plait.network.fluid.max_min import Uses, max_min
from plait.network.topology.cluster_file import read_cluster_file
from plait.network.topology.paths import Graph
from plait.network.topology.read import networked


def graph(cluster: str, network: str) -> Graph:
    return Graph.of(networked(Cluster.parse(cluster), network))


@pytest.mark.parametrize("workers", [1, 2, 4, 8])
def test_the_link_of_a_parameter_server_carries_every_worker(workers: int) -> None:
    made = graph(f"{workers + 1}x8", "single-switch:link_gbps=100")
    found = rates(made, [PlacedJob(tuple(range(workers)), workers)])
    assert found.bits_per_s == pytest.approx([100e9 / workers])
    assert f"n{workers}" in made.channel_name(int(found.channel[0])) or workers == 1


@pytest.mark.parametrize("workers", [2, 4, 8])
def test_a_ring_sends_less_than_two_gradients(workers: int) -> None:
    made = graph(f"{workers}x8", "single-switch:link_gbps=100")
    found = rates(made, [PlacedJob(tuple(range(workers)))])
    assert found.bits_per_s == pytest.approx([100e9 * workers / (2 * (workers - 1))])
    assert found.load == pytest.approx(1.0)


def test_oversubscribed_uplinks_slow_jobs_that_cross_racks() -> None:
    made = graph("8x8@4", "leaf-spine:oversubscription=4,link_gbps=100")
    inside, across = PlacedJob((0, 1)), PlacedJob((2, 6))
    other = PlacedJob((3, 7))
    found = rates(made, [inside, across, other])
    assert found.bits_per_s == pytest.approx([100e9, 50e9, 50e9])  # 100 Gb/s leave a rack, for two jobs


def test_a_worker_beside_its_server_uses_no_link() -> None:
    made = graph("2x8", "single-switch")
    assert rates(made, [PlacedJob((0,), 0)]).bits_per_s.tolist() == [math.inf]
    assert rates(made, [PlacedJob((0,), 0)]).channel.tolist() == [-1]
    assert rates(made, [PlacedJob((0, 1), 0)]).bits_per_s == pytest.approx([100e9])


def test_rails_add_up() -> None:
    made = graph("4x4", "rail:link_gbps=50")
    assert rates(made, [PlacedJob((0, 1, 2, 3))]).bits_per_s == pytest.approx([200e9 * 4 / 6])


@pytest.mark.parametrize(
    ("cluster", "network", "bundles"),
    [
        ("12x8@4", "leaf-spine:spines=3", 2 * (12 + 3)),
        ("16x4", "fat-tree", 2 * (16 + 8 + 4)),
        ("6x4@3", "rail", 2 * (6 + 2)),
        ("5x4", "single-switch", 2 * 5),
    ],
)
def test_bundles_change_no_rate_and_no_load(cluster: str, network: str, bundles: int) -> None:
    made = graph(cluster, network)
    assert len(set(made.bundle.tolist())) == bundles
    rng = np.random.default_rng(7)
    jobs, rows = [], []
    for i in range(12):
        some = rng.choice(len(made.nodes), 4, replace=False).tolist()
        jobs.append(PlacedJob(tuple(some[1:]), some[0] if i % 2 else None))
        streams = [(a, some[0]) for a in some[1:]] + [(some[0], a) for a in some[1:]]
        streams = streams if i % 2 else [(some[1], some[2]), (some[2], some[3]), (some[3], some[1])]
        whole: dict[int, float] = {}
        for a, b in streams:
            for channel, share in made.shares(a, b).items():
                whole[channel] = whole.get(channel, 0.0) + (1 if i % 2 else 4 / 3) * share
        rows.append(whole)
    uses, capacity = Uses.of(rows), made.channel_bits_per_s
    every, _ = max_min(capacity, uses)
    found = rates(made, jobs)
    assert found.bits_per_s == pytest.approx(every, rel=1e-9)
    assert found.load == pytest.approx(uses.load(every, len(capacity)) / capacity, rel=1e-9)


def test_switches_with_a_link_of_another_rate_are_no_bundle() -> None:
    text = """
    nodes = "4x8@2"
    [network]
    topology = "leaf-spine"
    [[network.links]]
    ends = ["leaf0", "spine1"]
    gbps = 10
    """
    made = Graph.of(read_cluster_file(text, "c.toml"))
    assert len(set(made.bundle.tolist())) == len(made.bundle)
    # Equal shares over unequal links: the slow one stops the job.
    assert rates(made, [PlacedJob((0, 2))]).bits_per_s == pytest.approx([20e9])


def test_what_leaves_workers_arrives() -> None:
    made = graph("12x8@4", "leaf-spine:spines=3")
    used = channels(made, PlacedJob((0, 1, 5, 9), 10))
    into = np.zeros(len(made.names))
    for channel, first in enumerate(made.bundle.tolist()):
        a, b = made.ends[channel]
        amount = used.get(first, 0.0)
        into[a] -= amount
        into[b] += amount
    assert into == pytest.approx(0, abs=1e-12)  # every node sends what it receives, and so does the server
    up = sum(amount for channel, amount in used.items() if made.names[made.ends[channel][1]] == "n10")
    assert up == pytest.approx(4)


def test_workers_are_on_nodes_of_their_own() -> None:
    with pytest.raises(InputError, match="needs one or more, each on a node of its own"):
        PlacedJob((1, 1))
