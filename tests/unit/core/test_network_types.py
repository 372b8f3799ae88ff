"""Switches, links and networks: what they accept, how clusters carry them, and that other clusters do not change."""

from __future__ import annotations

import dataclasses
import json
import re
import typing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import plait
from plait.control.controller import Controller
from plait.control.log import EventLog, read_log
from plait.control.messages import node_from_json, node_to_json, spec_from_json, spec_to_json
from plait.control.snapshot import restore, snapshot
from plait.core.cluster import Cluster, Link, Network, Node, Switch
from plait.core.errors import InputError
from plait.core.ina_request import AUTO, InaRequest, fields_of
from plait.core.jobs import JobBatch, JobSpec
from plait.core.turns import lock_step_s, slots_s, turn_vectors
from plait.grouping.times import group_times
from plait.live.protocol.job import Ina
from plait.network.protocol.options import CHOICES
from plait.policies.catalog import make_policy
from strategies import ina_requests

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


# What jobs ask of in-network aggregation: as an object, a short text, fields, in job files, traces and old logs.


@given(ina_requests())
def test_a_request_is_the_same_after_its_text_its_fields_and_its_json(asked: InaRequest) -> None:
    assert InaRequest.parse(str(asked)) == asked
    assert InaRequest.of(dataclasses.asdict(asked)) == asked
    spec = JobSpec(id="a", ina=asked)
    stored = json.loads(json.dumps(spec_to_json(spec)))
    assert spec_from_json(stored) == spec
    assert ("ina" in stored) == (asked != AUTO)
    assert JobBatch.of([spec])[0] == spec


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("requires", "ina.mode is 'requires'; did you mean 'require'"),
        ("", "ina.mode is ''; known: auto, require, off"),
        ("auto:protocol=apt", "ina.protocol is 'apt'; did you mean 'atp'"),
        ("auto:index=hash", "ina.index is 'hash'; "),
        ("auto:memory=-1", "ina.memory is -1, needs a whole number from 0 to"),
        ("auto:memory=2.5", "ina.memory is 2.5, needs a whole number"),
        ("auto:window=70000", "ina.window is 70000, needs a whole number from 0 to 65536"),
        ("auto:priority=256", "ina.priority is 256, needs a whole number from 0 to 255"),
        ("auto:priority=high", "ina.priority is 'high'"),
        ("auto:ttl_s=0", "ina.ttl_s is 0, needs a number of seconds > 0"),
        ("auto:ttl_s=nan", "ina.ttl_s is nan"),
        ("auto:memory", "write a mode, then each field once, as in require:memory=2048"),
        ("auto:memory=1,memory=2", "then each field once"),
        ("auto:mode=off", "then each field once"),
        ("auto:memry=1", "ina has no field 'memry'; did you mean 'memory'"),
        ("auto:protocol=atp,index=dedicated", "switchml alone uses dedicated"),
        ("auto:protocol=switchml,index=shared_hash", "switchml alone uses dedicated"),
    ],
)
def test_requests_that_cannot_be_name_field_and_value(text: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        InaRequest.parse(text)


@pytest.mark.parametrize("given", [2048, ["require"], True])
def test_neither_a_text_nor_fields(given: object) -> None:
    with pytest.raises(InputError, match="needs a mode or fields, such as require:memory=2048"):
        InaRequest.of(given)  # type: ignore[arg-type]


def test_the_words_are_those_of_the_protocol_and_of_job_files() -> None:
    hints, asked = typing.get_type_hints(Ina), typing.get_type_hints(InaRequest)
    assert hints == asked
    assert [f.name for f in dataclasses.fields(Ina)] == [f.name for f in dataclasses.fields(InaRequest)]
    assert Ina(**fields_of("off")) == Ina(mode="off")
    words = {name: set(typing.get_args(typing.get_args(asked[name])[0])) for name in ("protocol", "index")}
    assert words == {"protocol": set(CHOICES["protocol"]), "index": set(CHOICES["index"]) - {"auto"}}


def test_a_log_without_a_mode_means_auto() -> None:
    assert spec_from_json({"id": "a"}).ina is AUTO


def test_a_batch_says_whether_any_job_requires_aggregation() -> None:
    asking = [JobSpec(id="a"), JobSpec(id="b", ina=InaRequest("off"))]
    assert not JobBatch.of(asking).any_requires
    batch = JobBatch.of([*asking, JobSpec(id="c", ina=InaRequest("require"))])
    assert batch.any_requires
    assert batch[:1].any_requires


# Formula (3): the slots of a group by hand, and the form for many groups against the plain one.

SOURCE = Path(plait.__file__).parent
stages = st.lists(st.tuples(*[st.floats(0, 100)] * 4), min_size=1, max_size=4)


def test_slots_by_hand():
    a, b = (1.0, 2.0, 3.0, 1.0), (2.0, 1.0, 1.0, 0.0)  # slot s: a on resource s, b on s + 1
    assert slots_s([a, b], (0, 1)) == [1.0, 2.0, 3.0, 2.0]
    assert lock_step_s([a, b], (0, 1)) == 8.0


def test_each_job_needs_a_turn():
    with pytest.raises(ValueError, match="shorter"):
        slots_s([(1, 1, 1, 1), (1, 1, 1, 1)], (0,))


@given(stages)
def test_the_form_for_many_groups_agrees(rows):
    times = [lock_step_s(rows, turns) for turns in turn_vectors(4, len(rows))]
    members = np.arange(len(rows))[None, :]
    assert group_times(np.array(rows), members)[0].tolist() == [min(times)]
    assert group_times(np.array(rows), members, order="worst")[0].tolist() == [max(times)]


def test_no_other_file_has_the_formula():
    indexed = re.compile(r"\[\(\w+ \+ [\w.]+\) % (k|K|4|resources|len\(Resource\))\]")
    found = {str(path.relative_to(SOURCE)) for path in SOURCE.rglob("*.py") if indexed.search(path.read_text())}
    assert found == {"core/turns.py"}
