"""Check a plan and compare it with what runs, in one pass over its GPUs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from plait.core.arrays import BoolArray, IntArray
from plait.core.cluster import Cluster
from plait.core.errors import PlanError
from plait.core.jit import kernel
from plait.core.jobs import Phase
from plait.core.plan import Groups

OK, NO_SUCH_JOB, NOT_ACTIVE, TWICE, WRONG_SIZE, NO_SUCH_GPU, NODE_DOWN, GPU_TWICE, TWO_KINDS = range(9)


@kernel
def compare(
    jobs: IntArray,
    first_job: IntArray,
    gpus: IntArray,
    first_gpu: IntArray,
    old_jobs: IntArray,
    old_first_job: IntArray,
    old_gpus: IntArray,
    old_first_gpu: IntArray,
    slot: IntArray,
    phase: IntArray,
    count: int,
    min_gpus: IntArray,
    max_gpus: IntArray,
    gpu_node: IntArray,
    node_kind: IntArray,
    node_up: BoolArray,
) -> tuple[int, int, int, IntArray, IntArray]:
    """Validate, and say what changes.

    Returns (code, job, gpu, stays of each member, change of each group): a member stays if it runs on the
    very same GPUs; change is 0 nothing, 1 same members on the same GPUs but another company, 2 somebody
    starts.
    """
    groups = len(first_gpu) - 1
    stays = np.zeros(len(jobs), dtype=np.int64)
    change = np.zeros(groups, dtype=np.int64)
    used = np.zeros(len(gpu_node), dtype=np.bool_)
    seen = np.zeros(len(jobs), dtype=np.int64)
    for g in range(groups):
        lo, hi = first_gpu[g], first_gpu[g + 1]
        kind = -1
        for i in range(lo, hi):
            gpu = gpus[i]
            if gpu < 0 or gpu >= len(gpu_node):
                return NO_SUCH_GPU, jobs[first_job[g]], gpu, stays, change
            node = gpu_node[gpu]
            if not node_up[node]:
                return NODE_DOWN, jobs[first_job[g]], gpu, stays, change
            if used[gpu]:
                return GPU_TWICE, jobs[first_job[g]], gpu, stays, change
            if kind >= 0 and node_kind[node] != kind:
                return TWO_KINDS, jobs[first_job[g]], gpu, stays, change
            kind = node_kind[node]
            used[gpu] = True
        members = first_job[g + 1] - first_job[g]
        for m in range(first_job[g], first_job[g + 1]):
            job = jobs[m]
            if job < 0 or job >= count:
                return NO_SUCH_JOB, job, -1, stays, change
            if phase[job] > 1:
                return NOT_ACTIVE, job, -1, stays, change
            if hi - lo < min_gpus[job] or hi - lo > max_gpus[job]:
                return WRONG_SIZE, job, hi - lo, stays, change
            seen[m] = job
            old = slot[job]
            same = old >= 0 and old_first_gpu[old + 1] - old_first_gpu[old] == hi - lo
            if same:
                base = old_first_gpu[old]
                for i in range(hi - lo):
                    if old_gpus[base + i] != gpus[lo + i]:
                        same = False
                        break
            if not same:
                change[g] = 2
                continue
            stays[m] = 1
            if change[g] == 0:
                if old_first_job[old + 1] - old_first_job[old] != members:
                    change[g] = 1
                else:
                    for i in range(members):
                        if old_jobs[old_first_job[old] + i] != jobs[first_job[g] + i]:
                            change[g] = 1
    if len(jobs) > 1:
        seen.sort()
        for i in range(1, len(seen)):
            if seen[i] == seen[i - 1]:
                return TWICE, seen[i], -1, stays, change
    return OK, -1, -1, stays, change


@dataclass(frozen=True, slots=True)
class Review:
    """What a checked plan changes: members that stay, groups that change, jobs that leave their GPUs."""

    stays: BoolArray
    change: IntArray
    leave: IntArray


def review(
    groups: Groups, running: Groups, columns: dict[str, IntArray], count: int, cluster: Cluster
) -> tuple[int, int, int, Review]:
    """Compare `groups` with `running`; the first three values are (code, job, gpu) of the first fault."""
    code, job, gpu, stays, change = compare(
        groups.jobs,
        groups.first_job,
        groups.gpus,
        groups.first_gpu,
        running.jobs,
        running.first_job,
        running.gpus,
        running.first_gpu,
        columns["slot"],
        columns["phase"],
        count,
        columns["min_gpus"],
        columns["max_gpus"],
        cluster.gpu_node,
        cluster.node_kind,
        cluster.node_up,
    )
    if code != OK:
        return code, job, gpu, Review(stays.astype(bool), change, groups.jobs[:0])
    kept = stays.astype(bool)
    slot = columns["slot"]
    if len(running.jobs):
        stay = np.zeros(len(slot), dtype=bool) if not kept.any() else _mask(groups.jobs[kept], len(slot))
        alive = (slot[running.jobs] >= 0) & (columns["phase"][running.jobs] == int(Phase.RUNNING))
        leave = running.jobs[alive & ~stay[running.jobs]]
    else:
        leave = running.jobs
    if groups.details is not None or running.details is not None or groups.gate is not None or running.gate is not None:
        change = _details_differ(groups, running, slot, change)
    return code, job, gpu, Review(kept, change, np.sort(leave))


def _mask(jobs: IntArray, n: int) -> BoolArray:
    mask = np.zeros(n, dtype=bool)
    mask[jobs] = True
    return mask


def _details_differ(groups: Groups, running: Groups, slot: IntArray, change: IntArray) -> IntArray:
    """A group whose members and GPUs stay still changes if turns, shares, memory, batches or gate do."""
    out = change.copy()
    for g in np.flatnonzero(change == 0).tolist():
        if groups[g] != running[int(slot[groups.jobs[groups.first_job[g]]])]:
            out[g] = 1
    return out


def fault(code: int, job: str, gpu: int, cluster: Cluster, policy: str) -> PlanError:
    """The error that names policy, job and GPU."""
    where = "" if not 0 <= gpu < cluster.gpus else f"GPU {gpu} of node {cluster.nodes[cluster.gpu_node[gpu]].id!r}"
    text = {
        NO_SUCH_JOB: f"names {job}, which was never submitted",
        NOT_ACTIVE: f"runs {job}, which has already ended",
        TWICE: f"runs {job} in two places at once",
        WRONG_SIZE: f"gives {job} {gpu} GPUs, which is not the size it asked for",
        NO_SUCH_GPU: f"puts {job} on GPU {gpu}; this cluster has GPUs 0 to {cluster.gpus - 1}",
        NODE_DOWN: f"puts {job} on {where}, which is down",
        GPU_TWICE: f"puts {job} on {where}, which another group of the plan already uses; jobs that share "
        "GPUs must be members of one group",
        TWO_KINDS: f"spreads {job} over GPUs of different kinds, reaching {where}",
    }[code]
    return PlanError(f"policy {policy} made a plan that {text}")
