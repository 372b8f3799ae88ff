"""Jobs that choose their nodes: by the kind of GPUs, by number and size, as a whole; and jobs that need no GPU.

The log of every cluster here is replayed at the end of its test, decision by decision.
"""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from live_cases import Cluster, Node

from plait.core.errors import Conflict, InputError
from plait.live.protocol.job_file import request_of
from plait.live.scheduler.explain.durations import History
from plait.live.scheduler.explain.outlook import foresee
from plait.live.scheduler.explain.queue_copy import QueueCopy
from plait.live.scheduler.records.event_words import in_words

Make = Callable[..., Cluster]


def size(**fields: Any) -> tuple[Any, Any]:
    request = request_of({"command": ["x"], **fields})
    assert "gpus_per_node" not in request
    return request["gpus"], request.get("nodes")


def test_nodes_and_their_gpus_are_a_number_of_gpus() -> None:
    assert size(nodes=2, gpus_per_node=4) == (8, None)
    assert size(nodes=2) == (2, None)
    assert size(gpus_per_node=4, gpus=4) == (4, None)
    assert size(nodes=2, gpus_per_node=1, exclusive=True) == (2, 2)
    assert size(nodes=2, gpus=6, exclusive=True) == (6, 2)
    with pytest.raises(InputError, match="gpus is 3, and 2 nodes of 4 GPUs have 8"):
        size(nodes=2, gpus_per_node=4, gpus=3)


def test_a_job_runs_on_the_kind_of_gpus_that_it_names(cluster: Make) -> None:
    c = cluster((1, 1), kinds=("Tesla V100", "NVIDIA A100-SXM4-80GB"), settle_s=0.0)
    c.submit({"gpu_kinds": ["a100"]}, {"gpu_kinds": ["a100"]}, {"gpu_kinds": ["v100", "a100"]}, then_s=2.2)
    assert [c.nodes[i].jobs() for i in (0, 1)] == [{2}, {0}]
    assert c.state(1) == "waiting"
    c.restart()
    c.nodes[1].end(0, then_s=2.2)
    assert c.nodes[1].jobs() == {1}
    with pytest.raises(InputError, match=r"wants GPU kinds h200; this cluster has Tesla V100, NVIDIA A100-SXM4-80GB"):
        c.submit({"gpu_kinds": ["h200"]})


def test_an_exclusive_job_has_whole_nodes(cluster: Make) -> None:
    c = cluster((2, 2), settle_s=0.0)
    request = {"command": ["true"], "exclusive": True, "gpus": 1}
    (first,) = c.engine.submit([request], owner="ann", now_s=c.now, key="k")
    assert c.engine.submit([request], owner="ann", now_s=c.now, key="k") == [first]
    c.submit({"exclusive": True, "nodes": 2}, {}, then_s=2.2)
    assert [c.engine.state.jobs[job].request.get("gpus", 1) for job in (0, 1, 2)] == [2, 4, 1]
    assert [len(c.nodes[i].seen) for i in (0, 1)] == [2, 0]
    with pytest.raises(InputError, match="needs 6 GPUs"):
        c.submit({"exclusive": True, "gpus": 5})


def test_jobs_without_gpus_run_on_cpu_slots_and_cost_no_gpu(cluster: Make) -> None:
    c = cluster((1,))
    c.nodes.append(Node(c, "cpu", 2, "cpu"))
    c.nodes[1].info = replace(c.nodes[1].info, cpus=4.0)
    c.pass_s(1.1)
    c.submit({}, {}, {"gpus": 0, "cpus": 3.0}, {"gpus": 0, "cpus": 2.0}, {"gpus": 0}, then_s=2.2)
    assert [c.nodes[i].jobs() for i in (0, 1)] == [{0}, {2, 4}]
    assert [c.state(job) for job in (1, 3)] == ["waiting", "waiting"]
    assert c.engine.jobs([3], c.now)[3].reason.startswith("needs 1 CPU slot")
    run = c.nodes[1].answer.attempts[0]
    assert (run.env["OMP_NUM_THREADS"], run.world) == ("3", 1)
    figures = c.engine.status(c.now)
    assert (figures.gpus.total, figures.gpus.held, figures.wanted.gpus) == (1, 1, 2)
    c.restart(then_s=600.0)
    row = c.engine.jobs([2], c.now)[2]
    assert (row.gpus, row.attained_gpu_s) == (0, 0.0)
    with pytest.raises(InputError, match="wants GPU kinds a100; this cluster has gpu;"):
        c.submit({"gpu_kinds": ["a100"]})
    c.nodes[1].end(2, then_s=2.2)
    assert c.nodes[1].jobs() == {3, 4}


def test_jobs_without_gpus_are_not_in_quotas_of_gpus(cluster: Make) -> None:
    c = cluster((1, 2), kinds=("gpu", "cpu"))
    c.engine.set_project("default", gpu_quota=0, weight=1.0, now_s=c.now)
    c.submit({"gpus": 0}, {"gpus": 0}, then_s=2.2)
    assert c.nodes[1].jobs() == {0, 1}


def test_a_job_with_gpus_waits_for_them_where_there_are_cpu_slots_alone(cluster: Make) -> None:
    c = cluster((2,), kinds=("cpu",), settle_s=0.0, most_gpus=8, jobs=[{"gpus": 2}, {"gpus": 0}], then_s=2.2)
    assert c.nodes[0].jobs() == {1}
    with pytest.raises(InputError, match="needs 9 GPUs; this cluster has CPU slots alone, for jobs with -g 0"):
        c.submit({"gpus": 9})


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({}, "needs no GPU, and this cluster has no CPU slots; add some with: plait up --cpu-slots N"),
        ({"max_gpus": 2}, "gpus is 0, and max_gpus is for jobs with GPUs; leave one of them out"),
        ({"exclusive": True}, "gpus is 0, and exclusive is for jobs with GPUs; leave one of them out"),
    ],
)
def test_jobs_without_gpus_that_cannot_run_are_refused(cluster: Make, fields: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        cluster((1,), settle_s=0.0).submit({"gpus": 0, **fields})


def test_a_job_without_gpus_that_is_exclusive_is_refused_where_there_are_cpu_slots(cluster: Make) -> None:
    with pytest.raises(InputError, match="gpus is 0, and exclusive is for jobs with GPUs"):
        cluster((1, 4), kinds=("gpu", "cpu"), settle_s=0.0).submit({"gpus": 0, "exclusive": True})


def test_whole_nodes_of_several_sizes_need_a_kind(cluster: Make) -> None:
    c = cluster((1, 2), kinds=("v100", "a100"))
    with pytest.raises(InputError, match="the nodes have 1 and 2 GPUs; give gpus alone, or the GPU kind"):
        c.submit({"exclusive": True})
    (job,) = c.submit({"exclusive": True, "gpu_kinds": ["a100"]}, then_s=2.2)
    assert len(c.nodes[1].seen) == c.engine.state.jobs[job].request["gpus"] == 2


def test_cpu_slots_are_no_size_of_whole_nodes(cluster: Make) -> None:
    c = cluster((2, 3), kinds=("gpu", "cpu"), settle_s=0.0)
    (job,) = c.submit({"exclusive": True, "gpus": 1})
    assert c.engine.state.jobs[job].request["gpus"] == 2


@pytest.mark.parametrize(
    "policy",
    ["muri-l", "muri-s", "antman", "pollux", "sia", "gandiva", "themis", "drf", "yarn-cs", "optimus", "plait"],
)
def test_no_policy_mixes_jobs_with_and_without_gpus(cluster: Make, policy: str) -> None:
    c = cluster((1,), policy)
    c.nodes.append(Node(c, "cpu", 2, "cpu"))
    c.pass_s(1.1)
    for request in (
        {"gpus": 0},
        {},
        {"gpus": 0},
        {},
        {"class": "opportunistic"},
        {"gpus": 0, "class": "opportunistic"},
    ):
        c.submit({"iterations": 1e6, **request})
    for _ in range(30):
        for node in c.nodes:
            for job in node.jobs():
                node.report(job, steps=c.now, step_s=1.0, held_s=c.now, stage_s=[0.1, 0.1, 0.7, 0.1], total_steps=1e6)
        c.pass_s(20.0)
        assert c.nodes[0].jobs() <= {1, 3, 4}
        assert c.nodes[1].jobs() <= {0, 2, 5}
    assert c.nodes[0].jobs()
    assert len(c.nodes[1].jobs()) >= 2


# -- reservations of nodes through the engine: who may use them, what is shown of it, and that restarts keep them ---
#
# The log of every cluster here is replayed at the end of its test, decision by decision.


OTHERS, OWN = {"project": "speech"}, {"project": "vision"}


def reserve(c: Cluster, *nodes: str, in_s: float = 0.0, for_s: float = 100.0, by: str = "ann", key: str = "") -> Any:
    return c.engine.reserve(nodes, "vision", c.now + in_s, c.now + in_s + for_s, by, c.now, key)


def states(c: Cluster) -> list[str]:
    return [c.state(job) for job in range(c.engine.state.numbers)]


@pytest.fixture
def c(cluster: Make, request: Any) -> Cluster:
    made = cluster((1, 1), snapshot_weight=getattr(request, "param", 1e9))
    made.engine.set_project("vision", gpu_quota=None, weight=1.0, now_s=made.now)
    return made


@pytest.mark.parametrize("c", [1e9, 0.0], ids=["log", "snapshot"], indirect=True)
def test_jobs_that_save_leave_at_the_start_also_after_a_restart(c: Cluster) -> None:
    c.submit(OTHERS, OTHERS, then_s=3.3)
    c.nodes[1].report(1, saves="nothing", then_s=1.1)
    row = reserve(c, "n0", "n1", in_s=5.0)
    assert (row.id, row.leave, row.stay, row.in_s, row.left_s) == ("r-1", ["j-0"], ["j-1"], 5.0, 105.0)
    c.restart()
    assert [one.id for one in c.engine.reservations(c.now)] == ["r-1"]
    assert [one.id for one in c.engine.explain(0, c.now).reservations or ()] == ["r-1"]
    c.submit(OWN, then_s=4.4)
    assert states(c) == ["running", "running", "waiting"]
    c.pass_s(3.3)
    assert states(c) == ["waiting", "running", "running"]
    why = c.engine.explain(0, c.now)
    assert "n0 and n1 are reserved for project vision, r-1" in (why.summary or "")
    assert "reserved for project vision" in why.last_stop.why
    assert [one.stay for one in why.reservations or ()] == [["j-1"]]
    c.nodes[0].end(2)
    c.nodes[1].end(1, then_s=5.5)
    assert states(c) == ["waiting", "finished", "finished"]
    c.pass_s(100.0)
    assert (c.state(0), c.engine.reservations(c.now)) == ("running", [])


def test_until_the_start_only_jobs_run_there_that_end_before_it(c: Cluster) -> None:
    reserve(c, "n0", "n1", in_s=60.0)
    c.submit(OTHERS, {**OTHERS, "time_limit_s": 90.0}, {**OTHERS, "time_limit_s": 30.0}, then_s=3.3)
    assert [c.state(job) == "running" for job in range(3)] == [False, False, True]
    c.engine.cancel_reservation("r-1", "ben", c.now)
    c.pass_s(3.3)
    assert states(c) == ["running", "waiting", "running"]
    said = [in_words(json.loads(row.entry)) for row in c.store.entries() if "eserv" in row.type]
    assert said == [
        "ann reserved n0, n1 for project vision in 1 min 0 s for 1 min 40 s (r-1)",
        "reservation r-1 was cancelled by ben",
    ]


@pytest.mark.parametrize("c", [1e9, 0.0], ids=["log", "snapshot"], indirect=True)
def test_the_id_of_a_reservation_is_not_given_again(c: Cluster) -> None:
    assert reserve(c, "n0", in_s=50.0).id == "r-1"
    c.engine.cancel_reservation("r-1", "ben", c.now)
    c.submit(OTHERS, OTHERS)
    c.restart(then_s=3.3)
    assert states(c) == ["running", "running"]
    assert [one.id for one in c.engine.reservations(c.now)] == []
    assert reserve(c, "n0", for_s=1.0).id == "r-2"
    c.pass_s(3.3)
    assert reserve(c, "n0").id == "r-3"


def test_a_project_with_reserved_nodes_is_not_removed(c: Cluster) -> None:
    reserve(c, "n0", in_s=50.0)
    with pytest.raises(Conflict, match=r"n0 is reserved for project vision, r-1; cancel it with: plait nodes"):
        c.engine.drop_project("vision", c.now)
    c.engine.cancel_reservation("r-1", "ben", c.now)
    c.engine.drop_project("vision", c.now)
    assert "vision" not in c.engine.state.projects


@pytest.mark.parametrize("count", [1, 30, 60, 250])
def test_a_forecast_goes_past_many_reservations_or_has_no_latest_start(c: Cluster, count: int) -> None:
    for i in range(count):
        reserve(c, "n0", "n1", in_s=100_000.0 + 1000.0 * i, for_s=900.0)
    c.submit({**OTHERS, "iterations": 10, "iteration_s": 1.0})
    copy = QueueCopy.of(c.engine.context, c.now)
    found = foresee(copy.arrays(), History(), c.now, releases=copy.releases).of(0, copy.by, [])
    assert found is not None
    assert found.start is not None
    last_s = 100_000.0 + 1000.0 * (count - 1) + 900.0
    if count < 250:
        assert found.start.middle_s == pytest.approx(last_s, abs=60.0)
        assert (found.start.half_s[1] is None, found.assumptions) == (False, [])
    else:
        assert 100_000.0 < (found.start.half_s[0] or 0.0) < last_s
        assert found.start.wide_s[1] is found.end.half_s[1] is found.start.half_s[1] is None
        assert "reserved nodes keep it waiting until then, and it may start much later" in found.assumptions[0]


def test_a_job_that_reserved_nodes_bar_waits_for_the_ends_of_others_not_for_its_own(c: Cluster) -> None:
    reserve(c, "n1", in_s=100_000.0)
    c.submit(*[{**OTHERS, "iterations": 1000}] * 3, then_s=2.2)
    assert states(c) == ["running", "waiting", "waiting"]
    c.nodes[0].report(0, steps=100.0, step_s=1.0, held_s=c.now, then_s=2.2)
    copy = QueueCopy.of(c.engine.context, c.now)
    found = foresee(copy.arrays(), History(), c.now, releases=copy.releases)
    first, second = np.median(found.starts_s, axis=0)[1:]
    assert 700.0 < first < 1100.0
    assert second > first + 100.0


def test_a_job_waits_for_a_reservation_that_begins_after_an_end(c: Cluster) -> None:
    c.submit(OWN, then_s=3.3)
    reserve(c, "n0", "n1", in_s=1000.0, for_s=500.0)
    c.submit({**OTHERS, "iterations": 10, "iteration_s": 1.0})
    release = QueueCopy.of(c.engine.context, c.now).releases({0: 20.0})[1]
    assert (release.ends, release.open) == (1, False)
    assert release.due_s == pytest.approx(1500.0, abs=5.0)
    assert "reserved for project vision" in release.reason


def test_a_reservation_requested_again_is_the_same(c: Cluster) -> None:
    assert reserve(c, "n0", in_s=5.0, key="k").id == "r-1"
    c.pass_s(1.0)
    c.restart()
    assert reserve(c, "n0", in_s=5.0, key="k").id == "r-1"
    with pytest.raises(Conflict, match="used for another reservation"):
        reserve(c, "n0", in_s=5.0, for_s=50.0, key="k")
    for key, by in (("", "ann"), ("m", "ann"), ("k", "ben")):
        with pytest.raises(Conflict, match="cannot be reserved twice: r-1"):
            reserve(c, "n0", in_s=5.0, key=key, by=by)


def test_impossible_reservations_are_refused_with_what_there_is(c: Cluster) -> None:
    with pytest.raises(LookupError, match=r"no node 'n7'"):
        reserve(c, "n7")
    with pytest.raises(InputError, match=r"no project 'vison'; did you mean 'vision'\? Otherwise make it"):
        c.engine.reserve(["n0"], "vison", c.now, c.now + 1.0, "ann", c.now)
    reserve(c, "n0", in_s=100.0)
    with pytest.raises(Conflict, match=r"n0 cannot be reserved twice: r-1, for project vision, in 1 min 40 s for"):
        reserve(c, "n0", "n1", in_s=150.0)
    assert reserve(c, "n0", in_s=200.0).id == "r-2"
    assert reserve(c, "n1", in_s=150.0).id == "r-3"
    with pytest.raises(LookupError, match="no reservation 'r-9'; there are: r-1, r-2, r-3"):
        c.engine.cancel_reservation("r-9", "ann", c.now)
