"""Switches, links and networks: what they accept, how clusters carry them, and that other clusters do not change."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from plait.control.controller import Controller
from plait.control.log import EventLog, read_log
from plait.control.messages import node_from_json, node_to_json
from plait.control.snapshot import restore, snapshot
from plait.core.cluster import Cluster, Link, Network, Node, Switch
from plait.core.errors import InputError
from plait.policies.catalog import make_policy

PAIR = Network((Switch("leaf0", aggregators=64, reserved=4),), (Link("n0", "leaf0", 1e11), Link("n1", "leaf0", 1e11)))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Switch("s", aggregators=4, reserved=5), "switch 's': reserved is 5, needs 0 to its 4 aggregators"),
        (lambda: Switch("s", aggregators=-1), "reserved is 0, needs 0 to its -1"),
        (lambda: Switch("s", payload_bytes=30), "payload_bytes is 30, needs a positive multiple of 4"),
        (lambda: Switch("s", levels=3), "levels is 3"),
        (lambda: Switch("s", tier=0), "tier is 0"),
        (lambda: Switch("s", process_bits_per_s=float("nan")), "process_bits_per_s is nan"),
        (lambda: Switch("s", delay_s=-1.0), "delay_s is -1"),
        (lambda: Link("a", "a", 1.0), "joins 'a' with itself"),
        (lambda: Link("a", "b", 0.0), "link a-b: bits_per_s is 0, needs a positive"),
        (lambda: Link("a", "b", float("inf")), "bits_per_s is inf"),
        (lambda: Link("a", "b", 1.0, -1.0), "delay_s is -1"),
        (lambda: Network((Switch("s"), Switch("s")), ()), "two switches are called 's'"),
        (lambda: Network((Switch("s"),), (Link("a", "b", 1.0),)), "link a-b: neither end is a switch; known: s"),
        (lambda: Network((Switch("s"),), (Link("a", "s", 1.0), Link("s", "a", 2.0))), "two links join s and a"),
    ],
)
def test_impossible_hardware_is_refused_by_name(make: object, words: str) -> None:
    with pytest.raises(InputError, match=words):
        make()  # type: ignore[operator]


@pytest.mark.parametrize(
    ("network", "words"),
    [
        (Network((Switch("s"),), (Link("n0", "s", 1.0),)), "node 'n1' has no link"),
        (replace(PAIR, links=(*PAIR.links, Link("x", "leaf0", 1.0))), "link x-leaf0: 'x' is neither a switch nor a"),
        (
            Network((Switch("s"), Switch("t")), (Link("n0", "s", 1.0), Link("n1", "t", 1.0))),
            "no path leads from node 'n0' to node 'n1'",
        ),
        (
            Network((Switch("n0"), Switch("s")), (Link("n0", "s", 1.0), Link("n1", "s", 1.0))),
            "node 'n0' has no link",
        ),
    ],
)
def test_a_network_joins_exactly_the_nodes_of_its_cluster(network: Network, words: str) -> None:
    with pytest.raises(InputError, match=words):
        Cluster.parse("2x4").with_network(network)


def test_nodes_do_not_forward() -> None:
    switches = (Switch("s"), Switch("t"))
    links = (Link("n0", "s", 1.0), Link("n1", "s", 1.0), Link("n1", "t", 1.0), Link("n2", "t", 1.0))
    with pytest.raises(InputError, match="no path leads from node 'n0' to node 'n2'"):
        Cluster.parse("3x4").with_network(Network(switches, links))


def test_a_network_stays_while_nodes_go_and_come() -> None:
    cluster = Cluster.parse("2x4").with_network(PAIR)
    assert cluster.without_node("n0").with_node(Node("n0", 4)) == cluster
    assert cluster.with_node(Node("new", 4)).network == PAIR
    left = cluster.forget("n0")
    assert left.network is not None
    assert left.network.attached == ("n1",)
    assert left.with_node(Node("n7", 4)).network == left.network


def test_logs_and_snapshots_keep_the_network_and_say_nothing_where_there_is_none(tmp_path: Path) -> None:
    for cluster in (Cluster.parse("2x4"), Cluster.parse("2x4").with_network(PAIR)):
        with EventLog(tmp_path / "log", policy="fifo", cluster=cluster):
            pass
        run = read_log(tmp_path / "log")
        assert run.cluster == cluster
        assert ("network" in run.header) == (cluster.network is not None)
        saved = json.loads(json.dumps(snapshot(Controller(make_policy("fifo"), cluster))))
        assert restore(saved, make_policy("fifo")).cluster == cluster
        assert set(saved["cluster"]) == {"nodes", "up"} | ({"network"} if cluster.network else set())


def test_nodes_have_their_former_json_unless_bandwidth_is_known() -> None:
    assert node_to_json(Node("a", 4)) == {
        "id": "a", "gpus": 4, "gpu_kind": "gpu", "gpu_memory_bytes": 0, "cpus": 0.0, "memory_bytes": 0.0, "rack": 0,
    }  # fmt: skip
    fast = Node("a", 4, nic_bytes_per_s=12.5e9)
    assert node_from_json(node_to_json(fast)) == fast
    with pytest.raises(InputError, match="node 'a': nic_bytes_per_s is -1, needs a finite number"):
        Node("a", 4, nic_bytes_per_s=-1.0)


def test_the_nodes_of_a_trace_keep_their_bandwidth() -> None:
    from plait.traces.load import cluster_of
    from plait.traces.synthetic import generate

    nodes = {
        "node_id": np.array(["a", "b"], dtype=object),
        "gpus": np.array([8, 8]),
        "nic_bytes_per_s": np.array([12.5e9, np.nan]),
    }
    found = cluster_of(replace(generate("philly", 3, 8, seed=0), nodes=nodes))
    assert [node.nic_bytes_per_s for node in found] == [12.5e9, 0.0]
