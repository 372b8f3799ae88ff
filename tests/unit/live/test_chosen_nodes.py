"""Jobs that choose their nodes: by the kind of GPUs, by number and size, as a whole; and jobs that need no GPU.

The log of every cluster here is replayed at the end of its test, decision by decision.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from live_cases import Cluster, Node

from plait.core.errors import InputError
from plait.live.protocol.job_file import request_of

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
    c.submit({"gpu_kinds": ["a100"]}, {"gpu_kinds": ["a100"]}, {"gpu_kinds": ["v100", "a100"]})
    c.pass_s(2.2)
    assert [c.nodes[i].jobs() for i in (0, 1)] == [{2}, {0}]
    assert c.state(1) == "waiting"
    c.restart()
    c.nodes[1].end(0)
    c.pass_s(2.2)
    assert c.nodes[1].jobs() == {1}
    with pytest.raises(InputError, match=r"wants GPU kinds h200; this cluster has Tesla V100, NVIDIA A100-SXM4-80GB"):
        c.submit({"gpu_kinds": ["h200"]})


def test_an_exclusive_job_has_whole_nodes(cluster: Make) -> None:
    c = cluster((2, 2), settle_s=0.0)
    request = {"command": ["true"], "exclusive": True, "gpus": 1}
    (first,) = c.engine.submit([request], owner="ann", now_s=c.now, key="k")
    assert c.engine.submit([request], owner="ann", now_s=c.now, key="k") == [first]
    c.submit({"exclusive": True, "nodes": 2}, {})
    c.pass_s(2.2)
    assert [c.engine.state.jobs[job].request.get("gpus", 1) for job in (0, 1, 2)] == [2, 4, 1]
    assert [len(c.nodes[i].seen) for i in (0, 1)] == [2, 0]
    with pytest.raises(InputError, match="needs 6 GPUs"):
        c.submit({"exclusive": True, "gpus": 5})


def test_jobs_without_gpus_run_on_cpu_slots_and_cost_no_gpu(cluster: Make) -> None:
    c = cluster((1,))
    c.nodes.append(Node(c, "cpu", 2, "cpu"))
    c.nodes[1].info = replace(c.nodes[1].info, cpus=4.0)
    c.pass_s(1.1)
    c.submit({}, {}, {"gpus": 0, "cpus": 3.0}, {"gpus": 0, "cpus": 2.0}, {"gpus": 0})
    c.pass_s(2.2)
    assert [c.nodes[i].jobs() for i in (0, 1)] == [{0}, {2, 4}]
    assert [c.state(job) for job in (1, 3)] == ["waiting", "waiting"]
    assert c.engine.jobs([3], c.now)[3].reason.startswith("needs 1 CPU slot")
    run = c.nodes[1].answer.attempts[0]
    assert (run.env["OMP_NUM_THREADS"], run.world) == ("3", 1)
    figures = c.engine.status(c.now)
    assert (figures.gpus.total, figures.gpus.held, figures.wanted.gpus) == (1, 1, 2)
    c.restart()
    c.pass_s(600.0)
    row = c.engine.jobs([2], c.now)[2]
    assert (row.gpus, row.attained_gpu_s) == (0, 0.0)
    with pytest.raises(InputError, match="wants GPU kinds a100; this cluster has gpu;"):
        c.submit({"gpu_kinds": ["a100"]})
    c.nodes[1].end(2)
    c.pass_s(2.2)
    assert c.nodes[1].jobs() == {3, 4}


def test_jobs_without_gpus_are_not_in_quotas_of_gpus(cluster: Make) -> None:
    c = cluster((1, 2), kinds=("gpu", "cpu"))
    c.engine.set_project("default", gpu_quota=0, weight=1.0, now_s=c.now)
    c.submit({"gpus": 0}, {"gpus": 0})
    c.pass_s(2.2)
    assert c.nodes[1].jobs() == {0, 1}


def test_a_job_with_gpus_waits_for_them_where_there_are_cpu_slots_alone(cluster: Make) -> None:
    c = cluster((2,), kinds=("cpu",), settle_s=0.0, most_gpus=8)
    c.submit({"gpus": 2}, {"gpus": 0})
    c.pass_s(2.2)
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
    (job,) = c.submit({"exclusive": True, "gpu_kinds": ["a100"]})
    c.pass_s(2.2)
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
