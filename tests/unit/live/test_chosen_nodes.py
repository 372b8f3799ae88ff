"""Jobs that choose their nodes: by the kind of GPUs, by number and size, as a whole; and jobs that need no GPU.

The log of every cluster here is replayed at the end of its test, decision by decision.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from live_cases import Cluster

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
    c = cluster((1, 1), kinds=("Tesla V100", "NVIDIA A100-SXM4-80GB"))
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
    c = cluster((2, 2))
    request = {"command": ["true"], "exclusive": True, "gpus": 1}
    (first,) = c.engine.submit([request], owner="ann", now_s=c.now, key="k")
    assert c.engine.submit([request], owner="ann", now_s=c.now, key="k") == [first]
    c.submit({"exclusive": True, "nodes": 2}, {})
    c.pass_s(2.2)
    assert [c.engine.state.jobs[job].request["gpus"] for job in (0, 1, 2)] == [2, 4, 1]
    assert [len(c.nodes[i].seen) for i in (0, 1)] == [2, 1]
    with pytest.raises(InputError, match="needs 6 GPUs"):
        c.submit({"exclusive": True, "gpus": 5})


def test_whole_nodes_of_several_sizes_need_a_kind(cluster: Make) -> None:
    c = cluster((1, 2), kinds=("v100", "a100"))
    with pytest.raises(InputError, match="the nodes have 1 and 2 GPUs; give gpus alone, or the GPU kind"):
        c.submit({"exclusive": True})
    (job,) = c.submit({"exclusive": True, "gpu_kinds": ["a100"]})
    c.pass_s(2.2)
    assert len(c.nodes[1].seen) == c.engine.state.jobs[job].request["gpus"] == 2
