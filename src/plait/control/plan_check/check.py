"""Check the jobs and GPUs of a plan and compare it with what runs, in one pass over its GPUs.

A GPU is that of at most one host and of at most `most_guests` guest groups.

Cores and memory are checked by `plait.control.plan_check.capacity.refuse_overload`.

Reservations of a plan: whether they are valid, and which remain until the next plan.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from plait.core.arrays import NO_JOBS, BoolArray, FloatArray, IntArray
from plait.core.cluster import Cluster
from plait.core.errors import PlanError
from plait.core.jit import kernel, lean_part, part
from plait.core.jobs import Phase
from plait.core.plan import Groups, Plan, Reservation, plain_details
from plait.core.words import counted

_WAITING = int(Phase.WAITING)


def refuse_reservations(plan: Plan, phase: IntArray, cluster: Cluster, name: Callable[[int], str], policy: str) -> None:
    """Raise `PlanError` for an invalid reservation; the groups of the plan have been checked.

    Reserved GPUs are up, each for one job, which waits and is in no group, and no host is on them. `phase` is a column
    of the job store; `name` gives a job's name for messages.
    """
    hosts, runs = plan.groups.hosts, set(plan.groups.jobs.tolist())
    host = np.full(cluster.gpus, -1, dtype=np.int64)
    host[hosts.gpus] = np.repeat(hosts.jobs[hosts.first_job[:-1]], hosts.gpu_count())
    holder: dict[int, int] = {}
    seen: set[int] = set()

    def refuse(what: str) -> None:
        raise PlanError(f"policy {policy} made a plan that {what}")

    for job, gpus in ((one.job, one.gpus) for one in plan.reservations):
        if not 0 <= job < len(phase):
            refuse(f"reserves GPUs for job number {job}, which was never submitted")
        if job in runs or phase[job] > _WAITING + 1:
            refuse(f"reserves GPUs for {name(job)}, which {'runs' if job in runs else 'has already ended'}; "
                   "reservations are for jobs that wait")  # fmt: skip
        if job in seen:
            refuse(f"has two reservations for {name(job)}; give it one with all its GPUs")
        seen.add(job)
        for gpu in gpus:
            if not 0 <= gpu < cluster.gpus:
                refuse(f"reserves GPU {gpu} for {name(job)}; this cluster has GPUs 0 to {cluster.gpus - 1}")
            node = cluster.gpu_node[gpu]
            where = f"GPU {gpu} of node {cluster.nodes[node].id!r}"
            if not cluster.node_up[node]:
                refuse(f"reserves {where} for {name(job)}, which is down")
            if gpu in holder:
                refuse(f"reserves {where} for {name(job)} and for {name(holder[gpu])}")
            if host[gpu] >= 0:
                refuse(f"reserves {where} for {name(job)}, and {name(int(host[gpu]))} runs there as a host")
            holder[gpu] = job


def still_reserved(reservations: tuple[Reservation, ...], phase: IntArray, cluster: Cluster) -> tuple[Reservation, ...]:
    """The same reservations, without jobs that `phase` (by job number) has not as waiting, and GPUs of down nodes."""
    out = []
    for one in reservations:
        if phase[one.job] == _WAITING:
            gpus = tuple(gpu for gpu in one.gpus if cluster.node_up[cluster.gpu_node[gpu]])
            if gpus:
                out.append(one if len(gpus) == len(one.gpus) else Reservation(one.job, gpus))
    return tuple(out)


OK, NO_SUCH_JOB, NOT_ACTIVE, TWICE, WRONG_SIZE, NO_SUCH_GPU, NODE_DOWN, GPU_TWICE, TWO_KINDS, GUESTS_FULL = range(10)


@part
def same_slice(values: IntArray, lo: int, hi: int, others: IntArray, other_lo: int, other_hi: int) -> bool:
    """Whether `values[lo:hi]` are `others[other_lo:other_hi]`."""
    if other_hi - other_lo != hi - lo:
        return False
    shift = other_lo - lo
    for i in range(lo, hi):  # noqa: SIM110 - a loop compiles
        if others[shift + i] != values[i]:
            return False
    return True


@lean_part
def gpus_fault(
    gpus: IntArray, lo: int, hi: int, gpu_node: IntArray, node_kind: IntArray, node_up: BoolArray
) -> tuple[int, int]:
    """Why a group cannot have `gpus[lo:hi]`, and the GPU at fault; else OK and -1."""
    for i in range(lo, hi):
        gpu = gpus[i]
        if gpu < 0 or gpu >= len(gpu_node):
            return NO_SUCH_GPU, gpu
        node = gpu_node[gpu]
        if not node_up[node]:
            return NODE_DOWN, gpu
        if node_kind[node] != node_kind[gpu_node[gpus[lo]]]:
            return TWO_KINDS, gpu
    return OK, -1


@part
def use_gpus(
    gpus: IntArray,
    lo: int,
    hi: int,
    unchecked: bool,
    used: BoolArray,
    gpu_node: IntArray,
    node_kind: IntArray,
    node_up: BoolArray,
) -> tuple[int, int]:
    """Mark `gpus[lo:hi]` as used; return the code and the GPU of the first fault.

    `unchecked`: no job that stays holds them, so each GPU still has to exist, be up and be of one kind.
    """
    if unchecked:
        code, gpu = gpus_fault(gpus, lo, hi, gpu_node, node_kind, node_up)
        if code != OK:
            return code, gpu
    for i in range(lo, hi):
        gpu = gpus[i]
        if used[gpu]:
            return GPU_TWICE, gpu
        used[gpu] = True
    return OK, -1


@part
def place_guest(
    gpus: IntArray,
    lo: int,
    hi: int,
    unchecked: bool,
    guests: IntArray,
    most_guests: int,
    gpu_node: IntArray,
    node_kind: IntArray,
    node_up: BoolArray,
) -> tuple[int, int]:
    """Count a guest group on `gpus[lo:hi]` in `guests`; the code and the GPU of the first fault, as `use_gpus`."""
    if unchecked:
        code, gpu = gpus_fault(gpus, lo, hi, gpu_node, node_kind, node_up)
        if code != OK:
            return code, gpu
    for i in range(lo, hi):
        gpu = gpus[i]
        if unchecked:
            for j in range(lo, i):
                if gpus[j] == gpu:
                    return GPU_TWICE, gpu
        guests[gpu] += 1
        if guests[gpu] > most_guests:
            return GUESTS_FULL, gpu
    return OK, -1


@part
def not_stamped(jobs: IntArray, running_group: IntArray, stamp: IntArray, mark: int) -> IntArray:
    """The running ones of these jobs whose `stamp` is not `mark`."""
    out = np.empty(len(jobs), dtype=np.int64)
    n = 0
    for job in jobs:
        if running_group[job] >= 0 and stamp[job] != mark:
            out[n] = job
            n += 1
    return out[:n]


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
    running_group: IntArray,
    phase: IntArray,
    stamp: IntArray,
    tag: int,
    count: int,
    min_gpus: IntArray,
    max_gpus: IntArray,
    gpu_node: IntArray,
    node_kind: IntArray,
    node_up: BoolArray,
    guest: BoolArray | None,
    most_guests: int,
) -> tuple[int, int, int, IntArray, IntArray, IntArray]:
    """Validate a plan and find what it changes; `guest` (groups,) flags, or None to compile the code without guests.

    Returns (code, job, gpu, change of each group, jobs that start, jobs that leave their GPUs). A member stays if it
    runs on the very same GPUs; only running jobs have a `running_group`, so one that stays needs no other check. Change
    is 0: none, 1: same GPUs but other members, 2: a member starts. `stamp[job]` becomes 2 tag + 1 for jobs that stay
    and 2 tag for jobs that start; `tag` must be new.
    """
    groups = len(first_gpu) - 1
    change = np.zeros(groups, dtype=np.int64)
    used = np.zeros(len(gpu_node), dtype=np.bool_)
    guests = np.zeros(0 if guest is None else len(gpu_node), dtype=np.int64)
    starts = np.empty(len(jobs), dtype=np.int64)
    starting = 0
    for g in range(groups):
        lo, hi = first_gpu[g], first_gpu[g + 1]
        unchecked = True  # whether these GPUs have to be checked one by one
        for m in range(first_job[g], first_job[g + 1]):
            job = jobs[m]
            if job < 0 or job >= count:
                return NO_SUCH_JOB, job, -1, change, starts, starts
            if stamp[job] >> 1 == tag:
                return TWICE, job, -1, change, starts, starts
            old = running_group[job]
            stays = old >= 0 and same_slice(gpus, lo, hi, old_gpus, old_first_gpu[old], old_first_gpu[old + 1])
            stamp[job] = 2 * tag + stays
            if not stays:
                if phase[job] > 1:
                    return NOT_ACTIVE, job, -1, change, starts, starts
                if hi - lo < min_gpus[job] or hi - lo > max_gpus[job]:
                    return WRONG_SIZE, job, hi - lo, change, starts, starts
                change[g] = 2
                starts[starting] = job
                starting += 1
                continue
            unchecked = False
            if change[g] == 0 and not same_slice(
                jobs, first_job[g], first_job[g + 1], old_jobs, old_first_job[old], old_first_job[old + 1]
            ):
                change[g] = 1
        is_guest = False
        if guest is not None:
            is_guest = guest[g]
        if is_guest:
            code, gpu = place_guest(gpus, lo, hi, unchecked, guests, most_guests, gpu_node, node_kind, node_up)
        else:
            code, gpu = use_gpus(gpus, lo, hi, unchecked, used, gpu_node, node_kind, node_up)
        if code != OK:
            return code, jobs[first_job[g]], gpu, change, starts, starts
    return OK, -1, -1, change, starts[:starting], not_stamped(old_jobs, running_group, stamp, 2 * tag + 1)


@kernel
def assign(jobs: IntArray, first_job: IntArray, order: IntArray, running_group: IntArray, position: IntArray) -> None:
    """Fill `running_group` and `position` by job number: the group of each of `jobs`, the place in `order`."""
    for g in range(len(first_job) - 1):
        for m in range(first_job[g], first_job[g + 1]):
            running_group[jobs[m]] = g
    for i in range(len(order)):
        position[order[i]] = i


@kernel
def unfinished(jobs: IntArray, phase: IntArray) -> IntArray:
    out = np.empty(len(jobs), dtype=np.int64)
    n = 0
    for job in jobs:
        if phase[job] <= 1:
            out[n] = job
            n += 1
    return out[:n]


NO_CHANGE = np.zeros(0, dtype=np.bool_)


@dataclass(frozen=True, slots=True)
class PlanChanges:
    """Changes by a checked plan: jobs that start, jobs that leave their GPUs, and how each group changes.

    `changed` has one value a group of the plan; the others are numbers of jobs and of groups.
    """

    starts: IntArray
    leave: IntArray
    adjusted: IntArray
    launched: IntArray
    changed: BoolArray


def check_plan(
    groups: Groups,
    running: Groups,
    columns: dict[str, IntArray],
    tag: int,
    count: int,
    cluster: Cluster,
    most_guests: int = 0,
) -> tuple[int, int, int, PlanChanges]:
    """Check `groups` and compare them with `running`; the first three values are (code, job, gpu) of the first fault.

    `columns` are from the job store, `count` jobs long; `tag` is new at each call (see `compare`).
    """
    code, job, gpu, change, starts, leave = compare(
        groups.jobs,
        groups.first_job,
        groups.gpus,
        groups.first_gpu,
        running.jobs,
        running.first_job,
        running.gpus,
        running.first_gpu,
        columns["running_group"],
        columns["phase"],
        columns["stamp"],
        tag,
        count,
        columns["min_gpus"],
        columns["max_gpus"],
        cluster.gpu_node,
        cluster.node_kind,
        cluster.node_up,
        groups.guest,
        most_guests,
    )
    if code != OK:
        return code, job, gpu, PlanChanges(NO_JOBS, NO_JOBS, NO_JOBS, NO_JOBS, NO_CHANGE)
    plain = groups.details is None and running.details is None and groups.guest is None and running.guest is None
    if not plain or groups.gate is not None or running.gate is not None:
        change = _details_differ(groups, running, columns["running_group"], change)
    launched = (change == 2).nonzero()[0] if len(starts) else NO_JOBS
    adjusted = NO_JOBS
    if not (plain and groups.single and running.single):
        adjusted = (change == 1).nonzero()[0]
    if len(leave) > 1:
        leave.sort()
    return code, job, gpu, PlanChanges(starts, leave, adjusted, launched, change > 0)


def _details_differ(groups: Groups, running: Groups, running_group: IntArray, change: IntArray) -> IntArray:
    """A group whose members and GPUs stay changes if turns, shares, memory, batches, gate or its being a guest do."""
    same = np.flatnonzero(change == 0)
    old = running_group[groups.jobs[groups.first_job[same]]]
    differs = _gates(groups)[same] != _gates(running)[old]
    differs |= guest_flags(groups)[same] != guest_flags(running)[old]
    if groups.details is not None or running.details is not None:
        members = groups.first_job[same + 1] - groups.first_job[same]
        group = np.repeat(np.arange(len(same)), members)
        within = np.arange(len(group)) - np.repeat(np.cumsum(members) - members, members)
        now = _details(groups)[groups.first_job[same][group] + within]
        before = _details(running)[running.first_job[old][group] + within]
        differs |= np.bincount(group[(now != before).any(axis=1)], minlength=len(same)) > 0
    out = change.copy()
    out[same[differs]] = 1
    return out


def _gates(groups: Groups) -> IntArray:
    return np.zeros(len(groups), dtype=np.int64) if groups.gate is None else groups.gate


def guest_flags(groups: Groups) -> BoolArray:
    """One flag a group: whether it is a guest."""
    return np.zeros(len(groups), dtype=np.bool_) if groups.guest is None else groups.guest


def _details(groups: Groups) -> FloatArray:
    return plain_details(len(groups.jobs)) if groups.details is None else groups.details


def neighbours(groups: Groups, gpu: int) -> list[int]:
    """Jobs that a plan puts on a GPU, hosts first."""
    here = [group for group in groups if gpu in group.gpus]
    return [member.job for group in sorted(here, key=lambda group: group.guest) for member in group.members]


def plan_error(
    code: int, job: str, gpu: int, cluster: Cluster, policy: str, others: str = "", most_guests: int = 0
) -> PlanError:
    """The error that names policy, job and GPU; `others` are the jobs that the plan puts there, too."""
    where = "" if not 0 <= gpu < cluster.gpus else f"GPU {gpu} of node {cluster.nodes[cluster.gpu_node[gpu]].id!r}"
    text = {
        NO_SUCH_JOB: f"names {job}, which was never submitted",
        NOT_ACTIVE: f"runs {job}, which has already ended",
        TWICE: f"runs {job} in two places at once",
        WRONG_SIZE: f"gives {job} {gpu} GPUs, which is not the requested size",
        NO_SUCH_GPU: f"puts {job} on GPU {gpu}; this cluster has GPUs 0 to {cluster.gpus - 1}",
        NODE_DOWN: f"puts {job} on {where}, which is down",
        GPU_TWICE: f"puts {job} on {where}, which another group of the plan already uses"
        f"{others and f' ({others})'}; jobs that share GPUs must be members of one group, or guests",
        TWO_KINDS: f"spreads {job} over GPUs of different kinds, reaching {where}",
        GUESTS_FULL: f"puts {job} as a guest on {where}{others and f', where it has {others}'}; {_room(most_guests)}",
    }[code]
    return PlanError(f"policy {policy} made a plan that {text}")


def _room(most_guests: int) -> str:
    if not most_guests:
        return "guests are not allowed here"
    return f"a GPU takes at most {counted(most_guests, 'guest')}"
