"""Objects and columns of jobs, adaptive limits and networks say the same; what cannot be is refused by name."""

import dataclasses
import json
import math
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
from plait.control.job_store import refusal
from plait.control.log import EventLog, read_log
from plait.control.messages import (
    GoodputReported,
    JobSubmitted,
    ReplanDue,
    node_from_json,
    node_to_json,
    spec_from_json,
    spec_to_json,
)
from plait.control.snapshot import of_active, restore, snapshot
from plait.core.cluster import Cluster, Link, Network, Node, Switch
from plait.core.errors import InputError, PlaitError, PlanError, SimulationError, TraceError, suggest
from plait.core.goodput import THETA, BatchLimits, Estimate
from plait.core.ina_request import AUTO, InaRequest, fields_of
from plait.core.jobs import TRANSITIONS, JobBatch, JobSpec, JobStatus, JobTable, Phase
from plait.core.plan import Gate, Group, Groups, Member, Plan
from plait.core.resources import Resource, StageProfile
from plait.core.turns import lock_step_s, slots_s, turn_vectors
from plait.grouping.times import group_times
from plait.live.protocol.job import Ina
from plait.network.protocol.options import CHOICES
from plait.policies.catalog import make_policy
from strategies import batch_limits, clusters, ina_requests, spec_lists, specs

# -- jobs --------------------------------------------------------------------------------------------------------


@given(spec_lists())
def test_batches_hold_what_specs_say(rows: list[JobSpec]) -> None:
    batch = JobBatch.of(rows)
    assert list(batch) == rows
    assert len(batch) == len(rows)
    assert batch.gpus.tolist() == [spec.gpus for spec in rows]


@given(spec_lists(), st.data())
def test_parts_of_batches_are_batches(rows: list[JobSpec], data: st.DataObject) -> None:
    batch = JobBatch.of(rows)
    lo = data.draw(st.integers(0, len(rows)))
    assert list(batch[lo:]) == rows[lo:]
    picks = np.array(data.draw(st.lists(st.integers(0, len(rows) - 1))) if rows else [], dtype=np.int64)
    assert list(batch[picks]) == [rows[i] for i in picks]


@given(spec_lists())
def test_replacing_nothing_changes_nothing(rows: list[JobSpec]) -> None:
    assert list(JobBatch.of(rows).replace()) == rows


@given(specs())
def test_specs_survive_json(spec: JobSpec) -> None:
    assert spec_from_json(spec_to_json(spec)) == spec


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"gpus": 0}, "gpus is 0, needs at least 1 GPU"),
        ({"submit_s": math.nan}, "submit_s is nan, needs a finite number of seconds"),
        ({"submit_s": math.inf}, "submit_s is inf"),
        ({"iterations": 0.0}, "iterations is 0.0, needs a positive number, or None"),
        ({"iteration_s": -1.0}, "iteration_s is -1.0"),
        ({"iteration_s": math.nan}, "iteration_s is nan"),
        ({"cpus": -1.0}, "cpus is -1.0"),
        ({"memory_bytes": math.nan}, "memory_bytes is nan"),
        ({"ina": "require"}, "ina is 'require', needs an InaRequest, e.g. InaRequest.parse"),
        ({"retries": -1}, "retries is -1"),
        ({"gpus": 2, "min_gpus": 3}, "min <= gpus <= max"),
        ({"gpus": 2, "max_gpus": 1}, "min <= gpus <= max"),
        ({"id": ""}, "id is ''"),
    ],
)
def test_jobs_that_cannot_be(change: dict[str, object], words: str) -> None:
    fields: dict[str, object] = {"id": "a", **change}
    with pytest.raises(InputError, match=f"job {fields['id']!r}: .*{words}"):
        JobSpec(**fields)  # type: ignore[arg-type]


def test_columns_that_cannot_be_name_the_job() -> None:
    with pytest.raises(InputError, match="job 'b': gpus is 0"):
        JobBatch({"id": ["a", "b"], "gpus": [1, 0]})
    with pytest.raises(InputError, match="job 'a': iterations is -3"):
        JobBatch({"id": ["a"], "iterations": [-3.0]})
    with pytest.raises(InputError, match=r"unknown job columns .'colour'"):
        JobBatch({"id": ["a"], "colour": ["red"]})
    with pytest.raises(InputError, match=r"shape \(1,\), expected \(2,\)"):
        JobBatch({"id": ["a", "b"], "gpus": [1]})


def test_a_spec_fills_in_what_follows() -> None:
    spec = JobSpec(id="a", gpus=4, iterations=10.0, profile=StageProfile.of(cpu=0.2, gpu=0.6), tensor_bytes=(3.0, 1.0))
    assert (spec.iteration_s, spec.duration_s, spec.skew) == (0.8, 8.0, 0.75)
    assert (spec.min_gpus, spec.max_gpus) == (4, 4)
    assert JobSpec(id="b").duration_s is None


@pytest.mark.parametrize(
    "stages", [(1.0, 2.0), (0.0,) * len(Resource), (1.0, -1.0, 0.0, 0.0), (math.nan, 1.0, 1.0, 1.0)]
)
def test_profiles_that_cannot_be(stages: tuple[float, ...]) -> None:
    with pytest.raises(InputError, match="stage times"):
        StageProfile(stages, 1.0)


@pytest.mark.parametrize("iteration_s", [0.0, -1.0, math.inf, math.nan])
def test_profiles_need_an_iteration(iteration_s: float) -> None:
    with pytest.raises(InputError, match="iteration_s must be a positive number"):
        StageProfile((1.0, 1.0, 1.0, 1.0), iteration_s)


def test_final_phases_stay() -> None:
    assert set(TRANSITIONS) == set(Phase)
    assert [p for p in Phase if not TRANSITIONS[p]] == [Phase.FINISHED, Phase.FAILED, Phase.CANCELLED]


def test_tables_name_unknown_columns() -> None:
    table = JobTable({}, np.zeros(0, dtype=np.int64), 0.0, 0.0)
    with pytest.raises(AttributeError, match=r"no column 'remaning_s'; known: .*remaining_s"):
        _ = table.remaning_s


def test_a_subset_of_a_table_has_its_jobs_in_the_order_asked_for_and_keeps_the_rest() -> None:
    columns = {"gpus": np.array([1, 2, 4, 8]), "submit_s": np.array([0.0, 1.0, 2.0, 3.0])}
    table = JobTable(columns, np.array([0, 2, 3]), 9.0, 5.0)
    some = table.subset(np.array([3, 0]), gpus=np.array([16, 32, 64, 128]))
    assert (some.number.tolist(), some.gpus.tolist(), some.age_s.tolist()) == ([3, 0], [128, 16], [6.0, 9.0])
    assert (table.gpus.tolist(), some.now_s) == ([1, 4, 8], 9.0)
    assert some.subset(np.array([0])).gpus.tolist() == [16]


def test_restarts_are_starts_after_the_first() -> None:
    def status(starts: int) -> JobStatus:
        spec = JobSpec(id="a")
        return JobStatus(spec, 0, Phase.WAITING, 0, 0, 0, 0, None, None, starts, 0, 0, 0, 0, 0, None, "")

    assert [status(n).restarts for n in (0, 1, 3)] == [0, 0, 2]


# -- groups and plans --------------------------------------------------------------------------------------------

some_members = st.builds(Member, st.integers(0, 99), turn=st.integers(0, 1), gpu_share=st.sampled_from([1.0, 0.5]))
some_groups = st.builds(
    Group,
    st.lists(some_members, min_size=1, max_size=3).map(tuple),
    st.sets(st.integers(0, 63), min_size=1, max_size=8).map(lambda s: tuple(sorted(s))),
    st.sampled_from(Gate),
)


@given(st.lists(some_groups, max_size=6), st.data())
def test_groups_as_columns_are_the_same_groups(rows: list[Group], data: st.DataObject) -> None:
    groups = Groups.of(rows)
    assert list(groups) == rows
    assert [groups[i] for i in range(len(groups))] == rows
    assert groups.gpu_count().tolist() == [len(g.gpus) for g in rows]
    assert groups.group_of_member().tolist() == [i for i, g in enumerate(rows) for _ in g.members]
    assert groups.single == all(len(g.members) == 1 for g in rows)
    if rows:
        picks = data.draw(st.lists(st.integers(0, len(rows) - 1)))
        assert list(groups[np.array(picks, dtype=np.int64)]) == [rows[i] for i in picks]


def test_groups_need_somebody_somewhere() -> None:
    with pytest.raises(InputError, match="at least one member and one GPU"):
        Group((), (0,))
    with pytest.raises(InputError, match="at least one member and one GPU"):
        Group((Member(0),), ())


def test_an_empty_plan_runs_nobody() -> None:
    plan = Plan.of([])
    assert (len(plan.groups), plan.valid_until_s, dict(plan.reasons)) == (0, math.inf, {})


# -- clusters ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text", ["", "8", "8x", "x8", "0x8", "8x0", "8x8@0", "8x8:", "8x8,,", "-1x8", "8*8", "8x8:a b"]
)
def test_clusters_that_cannot_be_read(text: str) -> None:
    with pytest.raises(InputError, match="cannot read cluster"):
        Cluster.parse(text)


def test_clusters_as_text() -> None:
    cluster = Cluster.parse("4x8:v100@2,1x4:a100")
    assert (cluster.gpus, cluster.kinds, len(cluster.nodes)) == (36, ("v100", "a100"), 5)
    assert cluster.node_rack.tolist() == [0, 0, 1, 1, 2]
    assert cluster.gpu(35).kind == "a100"
    assert cluster.largest_gang() == 32
    assert cluster.largest_gang(["a100"]) == 4
    assert str(Cluster.parse("2x8,1x4:a")) == "2x8,1x4:a"


def test_clusters_that_cannot_be() -> None:
    with pytest.raises(InputError, match="at least one node"):
        Cluster(())
    with pytest.raises(InputError, match="unique"):
        Cluster((Node("a", 1), Node("a", 1)))
    with pytest.raises(InputError, match="one value a node"):
        Cluster((Node("a", 1),), (True, False))
    with pytest.raises(InputError, match="node 'a': gpus must be >= 0"):
        Node("a", -1)
    with pytest.raises(InputError, match="cpus and memory"):
        Node("a", 1, cpus=-1.0)
    with pytest.raises(InputError, match="no node 'zz'"):
        Cluster.parse("1x1").without_node("zz")
    with pytest.raises(InputError, match="came back with 4 GPUs, had 2"):
        Cluster.parse("1x2").with_node(Node("n0", 4))


@given(clusters())
def test_gpus_belong_to_their_nodes(cluster: Cluster) -> None:
    for index, node in enumerate(cluster.nodes):
        gpus = range(int(cluster.first_gpu[index]), int(cluster.first_gpu[index + 1]))
        assert len(gpus) == node.gpus
        assert all(int(cluster.gpu_node[gpu]) == index and cluster.gpu(gpu).kind == node.gpu_kind for gpu in gpus)
    assert cluster.gpus_up == sum(n.gpus for n, up in zip(cluster.nodes, cluster.up, strict=True) if up)


@given(clusters(down=False), st.data())
def test_a_node_that_went_and_came_back_changes_nothing(cluster: Cluster, data: st.DataObject) -> None:
    node = data.draw(st.sampled_from(cluster.nodes))
    lost = cluster.without_node(node.id)
    assert lost.gpus == cluster.gpus
    assert lost.gpus_up == cluster.gpus - node.gpus
    assert lost.with_node(node) == cluster


@given(clusters(), st.integers(1, 40), st.sampled_from([0.0, 3.0, 40.0]), st.sampled_from([0.0, 60.0]))
def test_a_job_is_refused_exactly_if_no_empty_cluster_takes_it(
    cluster: Cluster, gpus: int, cpus: float, memory: float
) -> None:
    spec = JobSpec(id="a", gpus=gpus, cpus=cpus, memory_bytes=memory)
    best = 0
    for kind in cluster.kinds:
        fits = 0
        for node in cluster.nodes:
            if node.gpu_kind == kind:
                count = node.gpus
                while cpus and node.cpus and count * cpus / gpus > node.cpus + 1e-9:
                    count -= 1
                while memory and node.memory_bytes and count * memory / gpus > node.memory_bytes + 1e-9:
                    count -= 1
                fits += count
        best = max(best, fits)
    assert (refusal(spec, cluster) is None) == (best >= gpus)


# -- errors ------------------------------------------------------------------------------------------------------


def test_errors_have_exit_codes() -> None:
    assert [e.exit_code for e in (PlaitError, InputError, TraceError, PlanError, SimulationError)] == [1, 2, 2, 4, 4]
    error = TraceError("negative", file="t.csv", line=3, column="gpus", value="-1", hint="use 1 or more")
    assert str(error) == "t.csv:3: column 'gpus': negative (got '-1'); use 1 or more"
    assert suggest("srfs", ["srsf", "fifo"]) == "did you mean 'srsf'?"


def test_gradient_bytes_are_known_or_not() -> None:
    known, unknown = JobSpec(id="a", gradient_bytes=5.5e8), JobSpec(id="b")
    batch = JobBatch.of([known, unknown])
    assert np.array_equal(batch.column("gradient_bytes"), [5.5e8, np.nan], equal_nan=True)
    assert (batch[0].gradient_bytes, batch[1].gradient_bytes) == (5.5e8, None)
    with pytest.raises(InputError, match=r"job 'a': gradient_bytes is -1, needs a number of bytes >= 0"):
        JobSpec(id="a", gradient_bytes=-1)


LIMITS = BatchLimits(initial=128, most=4096, least_local=32, most_local=1024, accumulation=True)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"initial": 0}, "0 to 4096"),
        ({"most": 100}, "128 to 100"),
        ({"least_local": 2048}, "2048 to 1024"),
        ({"least_local": 200}, "less than one GPU has to take, 200"),
        ({"most_local": 64, "accumulation": False}, "allow accumulation"),
        (
            {"most": 128, "least_local": 100, "most_local": 110},
            "takes 2 passes of 100 to 110 examples, at least 200; give most 200, least_local 64 or most_local 128",
        ),
    ],
)
def test_limits_that_leave_no_choice_are_refused(change: dict[str, int], words: str) -> None:
    given_ = {"initial": 128, "most": 4096, "least_local": 32, "most_local": 1024, "accumulation": True, **change}
    with pytest.raises(InputError, match=words):
        BatchLimits(**given_)  # type: ignore[arg-type]


@given(batch_limits())
def test_limits_become_columns_and_come_back(limits: BatchLimits) -> None:
    batch = JobBatch.of([JobSpec(id="a", batch=limits), JobSpec(id="b")])
    assert batch[0].batch == limits
    assert batch[1].batch is None
    assert batch.column("max_batch_size").tolist() == [limits.most, 0]


def test_columns_that_no_job_can_have_name_the_job() -> None:
    batch = JobBatch.of([JobSpec(id="good", batch=LIMITS), JobSpec(id="bad", batch=LIMITS)])
    with pytest.raises(InputError, match="batch size 128 to 64"):
        batch.replace(max_batch_size=np.array([4096, 64]))


def test_fewest_gpus_beyond_what_the_batch_can_feed_are_refused() -> None:
    small = BatchLimits(initial=128, most=128, least_local=32, most_local=128)
    assert JobSpec(id="fits", gpus=8, min_gpus=4, batch=small).batch == small
    for least in ({"min_gpus": 8}, {}):
        with pytest.raises(
            InputError, match=r"job 'wide': min_gpus .* is 8, needs at most 4: no more take 32 examples"
        ):
            JobSpec(id="wide", gpus=8, batch=small, **least)
    with pytest.raises(InputError, match=r"job 'fits': min_gpus .* is 5, needs at most 4"):
        JobBatch.of([JobSpec(id="fits", gpus=8, min_gpus=4, batch=small)]).replace(min_gpus=np.array([5]))


def test_suggested_limits_are_taken() -> None:
    for change in ({"most": 200}, {"least_local": 64}, {"most_local": 128}):
        given_ = {"initial": 128, "most": 128, "least_local": 100, "most_local": 110, "accumulation": True, **change}
        limits = BatchLimits(**given_)  # type: ignore[arg-type]
        assert JobBatch.of([JobSpec(id="a", batch=limits)])[0].batch == limits


def _controller() -> Controller:
    controller = Controller(make_policy("fifo"), Cluster.parse("1x4"))
    jobs = JobBatch.of([JobSpec(id=f"j{i}", iterations=10, iteration_s=1, batch=LIMITS) for i in range(3)])
    controller.handle(JobSubmitted(0.0, 0, jobs))
    controller.handle(ReplanDue(0.0))
    row = np.full((1, len(Estimate)), math.nan)
    row[0, :THETA] = [0.1, 0.01, 0.5, 0.05, 0.2, 0.02, 1.5]
    row[0, Estimate.PROFILED_GPUS] = 2
    assert controller.handle(GoodputReported(1.0, np.array([1]), row)) == ()
    return controller


def test_policies_see_what_jobs_estimate_of_themselves() -> None:
    jobs = _controller().view().jobs
    assert jobs.batch_size.tolist() == [128] * 3
    assert np.isnan(jobs.goodput[[0, 2]]).all()
    assert jobs.goodput[1, Estimate.ALPHA_N] == 0.5
    assert math.isnan(jobs.goodput[1, Estimate.RESTART_S])


def test_estimates_survive_snapshots_and_selections() -> None:
    controller = _controller()
    again = restore(json.loads(json.dumps(snapshot(controller))), controller.policy)
    np.testing.assert_array_equal(again.view().jobs.goodput, controller.view().jobs.goodput)
    assert again.job_store.spec(1).batch == LIMITS
    small, _ = of_active(controller)
    np.testing.assert_array_equal(small.view().jobs.goodput, controller.view().jobs.goodput)


def test_snapshots_of_before_there_were_estimates_are_read() -> None:
    controller = _controller()
    old = snapshot(controller)
    del old["books"]["goodput"]
    assert np.isnan(restore(old, controller.policy).view().jobs.goodput).all()


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
