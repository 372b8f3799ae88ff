"""Groups that share GPUs, one by one: the reference of `contention.neighbours` and of the kernels of `GpuSharing`."""

import numpy as np

from plait.core.arrays import FloatArray
from plait.core.jobs import JobBatch
from plait.core.plan import Group, Groups
from plait.core.resources import Resource
from plait.sharing.macro_model import beside_host
from plait.sim.shared_gpu import LEAST_SHARE, GpuSharing, fair_shares


def around(running: list[Group], gpus: list[int]) -> list[Group]:
    """The groups on these GPUs and all that share GPUs with them, directly or through others, in their order."""
    reached = set(gpus)
    while True:
        found = [group for group in running if reached.intersection(group.gpus)]
        more = reached.union(*(group.gpus for group in found))
        if more == reached:
            return found
        reached = more


def iteration_s(law: GpuSharing, truth: JobBatch, groups: Groups, alone: FloatArray) -> list[float]:
    """Seconds an iteration of each member, by `law` without models of memory."""
    out, rows, part = [0.0] * len(groups.jobs), list(groups), dict[int, float]()
    first = groups.first_job.tolist()
    gpu_s = []
    for job, mine_s in zip(groups.jobs.tolist(), alone.tolist(), strict=True):
        stage_s = truth.stage_s[job, Resource.GPU]
        gpu_s.append(mine_s if np.isnan(stage_s) else min(stage_s * mine_s / truth.iteration_s[job], mine_s))
    guests = {gpu: sum(gpu in g.gpus for g in rows if g.guest) for row in rows for gpu in row.gpus}
    for row, lo, hi in zip(rows, first, first[1:], strict=False):
        crowd = max(guests[gpu] for gpu in row.gpus)
        if row.guest:
            continue
        longer = 1.0
        if crowd:
            busy = min(sum(gpu_s[m] / alone[m] for m in range(lo, hi)), 1.0)
            usable, longer = beside_host(alone[lo:hi].max(), busy, crowd, law.quantum_s, law.gaps, law.noise)
            part.update(dict.fromkeys(row.gpus, usable))
        out[lo:hi] = (alone[lo:hi] * longer).tolist()
    share = [min(part.get(gpu, 1.0) / max(guests[gpu], 1) for gpu in row.gpus) for row in rows]
    if max(guests.values()) > 1 and any(row.guest and len(row.gpus) > 1 for row in rows):
        usable = np.array([part.get(gpu, 1.0) for gpu in range(max(guests) + 1)])
        owner, flags = np.repeat(np.arange(len(rows)), groups.gpu_count()), np.array([row.guest for row in rows])
        share = fair_shares(flags, owner, groups.gpus, usable).tolist()
    for row, mine, lo, hi in zip(rows, share, first, first[1:], strict=False):
        for m in range(lo, hi) if row.guest else ():
            job, needed = groups.jobs[m], gpu_s[m] / max(mine, LEAST_SHARE)
            overlaps = sum(truth.stage_s[job].tolist()) / truth.iteration_s[job] > 1.0 + 1e-6
            out[m] = max(alone[m], needed) if overlaps else alone[m] + needed - gpu_s[m]
    return out
