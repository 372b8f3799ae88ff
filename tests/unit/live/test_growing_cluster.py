"""A job that is too large for the nodes there are now waits if more may come, and says so; else it is refused."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from live_cases import Cluster, Node

from plait.core.errors import InputError
from plait.core.policy import has_guests
from plait.live.backends.registry import open_backend
from plait.live.layout import Layout
from plait.live.scheduler.options import ANY_SIZE
from plait.live.service.leadership import open_leadership
from plait.live.service.options import read_options
from plait.policies.catalog import CATALOG, make_policy

Make = Callable[..., Cluster]


@pytest.mark.parametrize("policy", sorted(name for name in CATALOG if not has_guests(make_policy(name))))
def test_a_wide_gang_waits_for_nodes_that_may_come_and_one_beyond_the_limit_is_refused(
    cluster: Make, policy: str
) -> None:
    c = cluster((2,), policy=policy, most_gpus=6)
    c.pass_s(12.0)  # nobody else has joined for long
    with pytest.raises(InputError, match="largest gang that fits this cluster is 6"):
        c.submit({"gpus": 7})
    (wide,) = c.submit({"gpus": 4}, then_s=12.0)
    assert c.state(wide) == "waiting"
    said = c.engine.explain(wide, c.now).summary
    assert said == "waits for more nodes: needs 4 GPUs; the nodes that are there have 2"
    c.restart(then_s=12.0)
    assert c.state(wide) == "waiting"
    c.nodes.append(Node(c, "n1", 2))
    c.pass_s(3.0)
    assert c.state(wide) == "running"


def test_small_jobs_behind_a_wide_one_need_not_wait_for_nodes_to_settle(cluster: Make) -> None:
    c = cluster((2,), policy="fifo-backfill", most_gpus=4)
    wide, small = c.submit({"gpus": 4}, {"gpus": 1})
    c.pass_s(2.0)  # far less than settle_s
    assert (c.state(wide), c.state(small)) == ("waiting", "running")
    assert c.engine.status(c.now).gpus.wanted == 5  # by which the backend asks for nodes


def test_explain_of_a_job_that_no_node_has_room_for_names_nobody_ahead(cluster: Make) -> None:
    c = cluster((2,), policy="fifo-backfill", most_gpus=4)
    small, wide, next_one = c.submit({"gpus": 2}, {"gpus": 4}, {"gpus": 2}, then_s=2.0)
    assert c.state(small) == "running"
    why = c.engine.explain(wide, c.now)
    assert why.summary == "waits for more nodes: needs 4 GPUs; the nodes that are there have 2"
    assert why.blockers == []
    assert [blocker.number for blocker in c.engine.explain(next_one, c.now).blockers] == [small]


def test_a_job_that_wants_more_memory_than_nodes_have_waits_with_the_reason(cluster: Make) -> None:
    c = cluster((), most_gpus=4)
    node = Node(c, "n0", 2)
    node.info = replace(node.info, memory_bytes=8e9)
    c.nodes.append(node)
    c.pass_s(12.0)
    (job,) = c.submit({"gpus": 1, "memory": 16e9}, then_s=3.0)
    assert c.state(job) == "waiting"
    assert "1 GPU of one kind, each with 16 GB of memory (nodes" in c.engine.jobs([job], c.now)[job].reason


def test_jobs_that_their_quota_holds_back_want_no_nodes(cluster: Make) -> None:
    c = cluster((2,), most_gpus=ANY_SIZE)
    c.engine.set_project("small", gpu_quota=3, weight=1.0, now_s=c.now)
    c.submit(*({"gpus": 2, "project": "small"} for _ in range(5)), {"gpus": 1, "project": "small"}, {"gpus": 4})
    c.pass_s(3.0)
    assert c.engine.status(c.now).gpus.wanted == 2 + 4
    c.engine.set_project("small", gpu_quota=None, weight=1.0, now_s=c.now)
    assert c.engine.status(c.now).gpus.wanted == 5 * 2 + 1 + 4


def test_jobs_want_the_nodes_that_their_cpus_need_and_none_if_no_node_would_do(cluster: Make) -> None:
    c = cluster((), most_gpus=ANY_SIZE)
    node = Node(c, "n0", 2)
    node.info = replace(node.info, cpus=8.0)
    c.nodes.append(node)
    c.pass_s(1.0)
    c.submit({"gpus": 4, "cpus": 32.0}, then_s=1.0)
    assert c.engine.status(c.now).gpus.wanted == 8  # one process on each node of two GPUs
    c.submit({"gpus": 1, "cpus": 32.0}, then_s=1.0)
    assert c.engine.status(c.now).gpus.wanted == 8


def test_without_a_backend_that_grows_a_wide_gang_is_refused(cluster: Make) -> None:
    c = cluster((2,))
    c.pass_s(12.0)
    with pytest.raises(InputError, match="needs 4 GPUs"):
        c.submit({"gpus": 4})


@pytest.mark.parametrize(
    ("words", "most"),
    [([], 0), (["--backend", "ray"], ANY_SIZE), (["--backend", "slurm", "--most-gpus", "6"], 6)],
)
def test_the_service_goes_by_its_backend(tmp_path: Any, words: list[str], most: int) -> None:
    lead = open_leadership(read_options(["--home", str(tmp_path), *words]), Layout(tmp_path), None)
    lead.store.close()
    assert lead.engine.options.most_gpus == most


def test_a_backend_says_how_far_it_can_grow(tmp_path: Any) -> None:
    slurm = {"backend": "slurm", "gpus-per-node": 2, "max-nodes": 3, "fake": True}
    assert open_backend(Layout(tmp_path), slurm).most_gpus() == 6
    assert open_backend(Layout(tmp_path), {"nodes": 2, "gpus-per-node": 4, "fake": True}).most_gpus() == 0
