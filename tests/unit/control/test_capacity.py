"""Plans that ask nodes for more than they have: kernel against the plain reference, messages, and every policy."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from plain_capacity import reference_overload

from plait.control.controller import Controller
from plait.control.messages import JobSubmitted, ReplanDue
from plait.control.plan_check.capacity import FITS, overload
from plait.core.cluster import Cluster, Node
from plait.core.errors import PlanError
from plait.core.jobs import JobBatch, JobSpec, Phase
from plait.core.plan import Group, Groups, Member, Plan
from plait.core.policy import View
from plait.core.resources import StageProfile
from plait.policies.catalog import CATALOG, make_policy
from plait.sim.run import simulate
from plait.sim.world import make_world

GB = 1_000_000_000


@st.composite
def plans(draw: st.DrawFn) -> tuple[Groups, np.ndarray, dict[str, np.ndarray], Cluster]:
    cluster = Cluster(
        tuple(
            Node(
                f"n{i}",
                4,
                gpu_memory_bytes=draw(st.sampled_from([0, 10, 20])),
                cpus=draw(st.sampled_from([0.0, 8.0])),
                memory_bytes=draw(st.sampled_from([0.0, 16.0])),
            )
            for i in range(draw(st.integers(1, 3)))
        )
    )
    free = draw(st.permutations(range(cluster.gpus)))
    groups: list[Group] = []
    count = 0
    while free and len(groups) < 5:
        size = min(draw(st.sampled_from([1, 1, 2, 3])), len(free))
        gpus, free = tuple(sorted(free[:size])), free[size:]
        members = draw(st.integers(1, 3))
        groups.append(Group(tuple(Member(count + i) for i in range(members)), gpus))
        count += members

    def column(values: list[float]) -> np.ndarray:
        return np.array(draw(st.lists(st.sampled_from(values), min_size=count, max_size=count)), dtype=np.float64)

    columns = {
        "gpus": column([1, 2, 3]).astype(np.int64),
        "cpus": column([0, 1, 3, 6]),
        "memory_bytes": column([0, 2, 5, 12]),
        "gpu_memory_bytes": column([0, 4, 9]),
    }
    changed = np.array(draw(st.lists(st.booleans(), min_size=len(groups), max_size=len(groups))))
    return Groups.of(groups), changed, columns, cluster


@given(plans(), st.sampled_from([1.0, 0.25, 0.0]))
def test_the_kernel_finds_what_the_plain_sums_find(
    plan: tuple[Groups, np.ndarray, dict[str, np.ndarray], Cluster], kept: float
):
    groups, changed, columns, cluster = plan
    what, node, _ = overload(
        groups.jobs, groups.first_job, groups.gpus, groups.first_gpu, changed, columns["gpus"], columns["cpus"],
        columns["memory_bytes"], columns["gpu_memory_bytes"], cluster.gpu_node, cluster.node_cpus,
        cluster.node_memory_bytes, cluster.node_gpu_memory_bytes, kept,
    )  # fmt: skip
    found = reference_overload(groups, changed, columns, cluster, kept)
    assert (what == FITS) == (not found)
    assert what == FITS or (what, node) in found


class Careless:
    """Runs all jobs of a group on the first GPUs, or each on a GPU of its own, whatever they need."""

    def __init__(self, *, together: bool) -> None:
        self.together = together

    def decide(self, view: View) -> Plan:
        jobs = view.jobs.number.tolist()
        if self.together:
            return Plan.of([Group(tuple(Member(job) for job in jobs), (0,))])
        return Plan.of([Group((Member(job),), (i,)) for i, job in enumerate(jobs)])


def decided(node: Node, *specs: JobSpec, together: bool = False) -> Controller:
    controller = Controller(Careless(together=together), Cluster((node,)))
    controller.handle(JobSubmitted(0.0, 0, JobBatch.of(specs)))
    controller.handle(ReplanDue(0.0))
    return controller


def asking(name: str, **more: float) -> JobSpec:
    return JobSpec(id=name, iterations=10.0, iteration_s=1.0, **more)  # type: ignore[arg-type]


def test_two_jobs_of_9_gb_are_not_launched_on_a_node_of_10():
    with pytest.raises(
        PlanError,
        match=r"policy Careless made a plan that puts job 'b' \(number 1\) on node 'n0' beside job 'a' \(number 0\), "
        r"which takes 18 GB of host memory; the node has 10 GB of host memory",
    ):
        decided(Node("n0", 2, memory_bytes=10 * GB), asking("a", memory_bytes=9 * GB), asking("b", memory_bytes=9 * GB))


def test_cores_and_gpu_memory_of_a_group_are_checked():
    with pytest.raises(PlanError, match=r"puts job 'b' .* takes 12 CPU cores; the node has 8 CPU cores"):
        decided(Node("n0", 2, cpus=8.0), asking("a", cpus=6), asking("b", cpus=6))
    both = asking("a", gpu_memory_bytes=9 * GB), asking("b", gpu_memory_bytes=9 * GB)
    decided(Node("n0", 2, gpu_memory_bytes=10 * GB), *both)
    with pytest.raises(PlanError, match="takes 18 GB of GPU memory; each GPU there has 10 GB of GPU memory"):
        decided(Node("n0", 2, gpu_memory_bytes=10 * GB), *both, together=True)


def test_a_job_that_no_gpu_can_hold_is_refused_with_both_figures():
    controller = decided(Node("n0", 2, gpu_memory_bytes=10 * GB), asking("a", gpu_memory_bytes=12 * GB))
    assert controller.job_store.columns["phase"][0] == int(Phase.FAILED)
    assert controller.job_store.columns["reason"][0] == (
        "needs 12 GB of GPU memory on each GPU; the GPUs it may use have 10 GB (gpu)"
    )


@pytest.mark.parametrize("policy", sorted(CATALOG))
def test_every_policy_keeps_to_cores_memory_and_gpu_memory(policy: str):
    """Two kinds of GPUs, of which only one holds the large jobs, and nodes too small for two of some."""
    nodes = [Node(f"a{i}", 2, "a", 16 * GB, cpus=8, memory_bytes=32 * GB) for i in range(2)]
    nodes.append(Node("b", 2, "b", 40 * GB, cpus=8, memory_bytes=32 * GB))
    rng = np.random.default_rng(3)
    specs = [
        JobSpec(
            id=f"j{i:02d}",
            submit_s=float(i // 3 * 20),
            gpus=int(rng.choice([1, 1, 2])),
            iterations=float(rng.integers(20, 90)),
            iteration_s=1.0,
            profile=StageProfile.from_sequence((rng.dirichlet(np.ones(4)) * 0.9).tolist(), 1.0),
            cpus=float(rng.choice([0, 3, 6])),
            memory_bytes=float(rng.choice([0, 9, 18])) * GB,
            gpu_memory_bytes=float(rng.choice([0, 6, 9, 24])) * GB,
        )
        for i in range(14)
    ]
    name = "pollux-ga:generations=3,population=20" if policy == "pollux-ga" else policy
    run = simulate(JobBatch.of(specs), Cluster(tuple(nodes)), make_policy(name), make_world("ideal"), check=True)
    assert (run.controller.job_store.columns["phase"][: len(specs)] == int(Phase.FINISHED)).all()
