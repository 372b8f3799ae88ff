"""Whether a plan needs more cores, host memory or GPU memory than its nodes have.

A gang uses its cores and host memory in equal parts on each of its GPUs; GPU memory is its need on each. Members of a
group are on the same GPUs, so their requests add up. On a GPU with guests all its groups add up, each process with the
memory of its context; a member takes what the plan allows it, where it states that (`Member.gpu_memory_bytes`). Only
nodes and GPUs on which a group starts or changes are judged: hardware that shrank under running jobs is no fault of the
plan.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from plait.core.arrays import BoolArray, FloatArray, IntArray
from plait.core.cluster import Cluster
from plait.core.errors import PlanError
from plait.core.jit import kernel
from plait.core.plan import GPU_MEMORY_BYTES, Groups
from plait.sharing.memory_law import CONTEXT_BYTES

FITS, CORES, MEMORY, GPU_MEMORY = range(4)
#: Room for rounding, as a part of what there is and in cores or bytes.
PART, UNITS = 1e-9, 1e-3


@kernel
def overload(
    jobs: IntArray,
    first_job: IntArray,
    gpus: IntArray,
    first_gpu: IntArray,
    changed: BoolArray,
    asked_gpus: IntArray,
    cpus: FloatArray,
    memory_bytes: FloatArray,
    gpu_memory_bytes: FloatArray,
    gpu_node: IntArray,
    node_cpus: FloatArray,
    node_memory_bytes: FloatArray,
    node_gpu_memory_bytes: FloatArray,
    kept: float,
) -> tuple[int, int, float]:
    """The first resource and node on which groups need too much: (FITS, ...) if none; and their total need.

    Groups as in `Groups`, `changed` (groups,); columns of jobs by number; limits by node, infinite where there is none;
    `kept` is the part of its peak that a member holds next to the largest one of its group.
    """
    nodes = len(node_cpus)
    cores, memory, judged = np.zeros(nodes), np.zeros(nodes), np.zeros(nodes, dtype=np.bool_)
    for g in range(len(first_gpu) - 1):
        of_cores, of_memory, of_gpu, peak = 0.0, 0.0, 0.0, 0.0
        for m in range(first_job[g], first_job[g + 1]):
            job = jobs[m]
            of_cores += cpus[job] / asked_gpus[job]
            of_memory += memory_bytes[job] / asked_gpus[job]
            of_gpu += gpu_memory_bytes[job]
            peak = max(peak, gpu_memory_bytes[job])
        of_gpu -= (1.0 - kept) * (of_gpu - peak)
        for i in range(first_gpu[g], first_gpu[g + 1]):
            node = gpu_node[gpus[i]]
            cores[node] += of_cores
            memory[node] += of_memory
            if changed[g]:
                judged[node] = True
                if of_gpu > node_gpu_memory_bytes[node] * (1.0 + PART) + UNITS:
                    return GPU_MEMORY, node, of_gpu
    for node in range(nodes):
        if judged[node] and cores[node] > node_cpus[node] * (1.0 + PART) + UNITS:
            return CORES, node, cores[node]
        if judged[node] and memory[node] > node_memory_bytes[node] * (1.0 + PART) + UNITS:
            return MEMORY, node, memory[node]
    return FITS, -1, 0.0


@kernel
def overfull(
    first_job: IntArray,
    gpus: IntArray,
    first_gpu: IntArray,
    guest: BoolArray,
    changed: BoolArray,
    needed_bytes: FloatArray,
    gpu_node: IntArray,
    node_gpu_memory_bytes: FloatArray,
) -> tuple[int, float]:
    """The first GPU with guests on which groups need more memory than it has, -1 if there is none; and how much.

    Groups as in `Groups`, `changed` (groups,); `needed_bytes` (members,) is what each takes with its context.
    """
    total = np.zeros(len(gpu_node))
    shared, judged = np.zeros(len(gpu_node), dtype=np.bool_), np.zeros(len(gpu_node), dtype=np.bool_)
    for g in range(len(first_gpu) - 1):
        of_group = 0.0
        for m in range(first_job[g], first_job[g + 1]):
            of_group += needed_bytes[m]
        for i in range(first_gpu[g], first_gpu[g + 1]):
            total[gpus[i]] += of_group
            shared[gpus[i]] |= guest[g]
            judged[gpus[i]] |= changed[g]
    for gpu in range(len(total)):
        limit = node_gpu_memory_bytes[gpu_node[gpu]]
        if shared[gpu] and judged[gpu] and total[gpu] > limit * (1.0 + PART) + UNITS:
            return gpu, total[gpu]
    return -1, 0.0


def needed_bytes(groups: Groups, gpu_memory_bytes: FloatArray) -> FloatArray:
    """GPU memory of each member with its context, shape (members,); `gpu_memory_bytes` by number of the job."""
    asked = gpu_memory_bytes[groups.jobs]
    if groups.details is not None:
        allowed = groups.details[:, GPU_MEMORY_BYTES]
        asked = np.where(allowed > 0, allowed, asked)
    return asked + CONTEXT_BYTES


def refuse_overfull(
    groups: Groups,
    changed: BoolArray,
    gpu_memory_bytes: FloatArray,
    cluster: Cluster,
    name: Callable[[int], str],
    policy: str,
) -> None:
    """Raise `PlanError` if hosts and guests need more memory of a GPU than it has, contexts included.

    Arguments as of `refuse_overload`, with `gpu_memory_bytes` by job number; only GPUs with guests are judged, and only
    if a group starts or changes there.
    """
    if groups.guest is None or not cluster.limits_gpu_memory or not changed.any():
        return
    needed = needed_bytes(groups, gpu_memory_bytes)
    gpu, total = overfull(
        groups.first_job, groups.gpus, groups.first_gpu, groups.guest, changed, needed, cluster.gpu_node,
        cluster.node_gpu_memory_bytes,
    )  # fmt: skip
    if gpu < 0:
        return
    owner = np.repeat(np.arange(len(groups)), groups.gpu_count())
    here = owner[groups.gpus == gpu].tolist()
    here.sort(key=lambda g: (not changed[g], not groups.guest[g]))  # groups that start, guests first
    jobs = [member.job for g in here for member in groups[g].members]
    others = ", ".join(name(job) for job in jobs[1:4])
    node = cluster.nodes[cluster.gpu_node[gpu]]
    raise PlanError(
        f"policy {policy} made a plan that puts {name(jobs[0])} on GPU {gpu} of node {node.id!r}"
        f"{others and f' beside {others}'}{' and others' if len(jobs) > 4 else ''}, which takes "
        f"{_amount(GPU_MEMORY, total)} with {CONTEXT_BYTES / 1e9:g} GB for the context of each process; the GPU has "
        f"{_amount(GPU_MEMORY, node.gpu_memory_bytes)}"
    )


def refuse_overload(
    groups: Groups,
    changed: BoolArray,
    columns: Mapping[str, Any],
    cluster: Cluster,
    name: Callable[[int], str],
    policy: str,
    kept: float = 1.0,
) -> None:
    """Raise `PlanError` if groups need more than a node has; does nothing without limits.

    `changed` (groups,) marks groups that start or change; `columns` are from the job store, by job number; `name` gives
    a job's name for messages; `kept` is the policy's `memory_kept`.
    """
    asked = cluster.limits_nodes and bool(columns["has_demands"][0])
    if not (asked or cluster.limits_gpu_memory) or not changed.any():
        return
    what, node, total = overload(
        groups.jobs, groups.first_job, groups.gpus, groups.first_gpu, changed, columns["gpus"], columns["cpus"],
        columns["memory_bytes"], columns["gpu_memory_bytes"], cluster.gpu_node, cluster.node_cpus,
        cluster.node_memory_bytes, cluster.node_gpu_memory_bytes, kept,
    )  # fmt: skip
    if what == FITS:
        return
    column = {CORES: "cpus", MEMORY: "memory_bytes", GPU_MEMORY: "gpu_memory_bytes"}[what]
    there = {
        CORES: cluster.node_cpus, MEMORY: cluster.node_memory_bytes, GPU_MEMORY: cluster.node_gpu_memory_bytes
    }[what][node]  # fmt: skip
    here = [g for g in range(len(groups)) if (cluster.gpu_node[list(groups[g].gpus)] == node).any()]
    if what == GPU_MEMORY:  # one group needs too much, not the node's groups together
        of_group = [float(columns[column][[m.job for m in groups[g].members]].sum()) for g in here]
        here = [here[of_group.index(max(of_group))]]
    asking = [m.job for g in here for m in groups[g].members if columns[column][m.job] > 0]
    newest = [m.job for g in here for m in groups[g].members if changed[g] and columns[column][m.job] > 0]
    job = (newest or asking)[-1]
    others = [name(other) for other in asking if other != job]
    beside = f" beside {', '.join(others[:3])}{' and others' if len(others) > 3 else ''}" if others else ""
    raise PlanError(
        f"policy {policy} made a plan that puts {name(job)} on node {cluster.nodes[node].id!r}{beside}, which takes "
        f"{_amount(what, total)}; {'each GPU there' if what == GPU_MEMORY else 'the node'} has {_amount(what, there)}"
    )


def _amount(what: int, value: float) -> str:
    if what == CORES:
        return f"{value:g} CPU cores"
    return f"{value / 1e9:.6g} GB of {'GPU' if what == GPU_MEMORY else 'host'} memory"
