"""Objects and columns say the same; what cannot be is refused by name."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plait.control.job_store import refusal
from plait.control.messages import spec_from_json, spec_to_json
from plait.core.cluster import Cluster, Node
from plait.core.errors import InputError, PlaitError, PlanError, SimulationError, TraceError, suggest
from plait.core.jobs import TRANSITIONS, JobBatch, JobSpec, JobStatus, JobTable, Phase
from plait.core.plan import Gate, Group, Groups, Member, Plan
from plait.core.resources import Resource, StageProfile
from strategies import clusters, spec_lists, specs

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
