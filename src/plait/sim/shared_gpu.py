"""Speed of hosts and guests of a GPU under the law of `plait.sharing`, in clusters of any size.

The law itself is not run here: its result over an hour is that of its macro model (`plait.sharing.macro_model`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from plait.core.arrays import BoolArray, FloatArray, IntArray
from plait.core.compile_policy import either
from plait.core.errors import InputError
from plait.core.jit import kernel
from plait.core.jobs import JobBatch
from plait.core.plan import Groups
from plait.core.resources import Resource
from plait.grouping.completion import ENOUGH, STRETCHES
from plait.sharing.macro_model import HELD, LEAST_SHARE, NOISE, beside_host
from plait.sim.guest_models import GuestModels, Use, use

GPU = int(Resource.GPU)
#: Groups for which plain Python takes a tenth of a millisecond, the unit of `compile_policy`.
GROUPS_A_UNIT = 8
NO_SHARES: FloatArray = np.zeros(0)


@kernel
def host_loads(
    jobs: IntArray,
    first_job: IntArray,
    gpus: IntArray,
    first_gpu: IntArray,
    guest: BoolArray,
    alone: FloatArray,
    stage_s: FloatArray,
    iteration_s: FloatArray,
) -> tuple[FloatArray, IntArray, IntArray, FloatArray]:
    """What hosts need of GPUs with guests; groups as in `Groups`, `alone` by member, the last two by number of job.

    Returns the GPU seconds of each member's iteration; guests of each GPU, up to the last one here; of each group
    without guests on its GPUs 0, else how many are on the fullest one if it is a host; and of these hosts (groups, 2)
    the seconds of a step and the part of it that they use a GPU.
    """
    last = -1
    for gpu in gpus:
        last = max(last, gpu)
    gpu_s, guests = np.empty(len(jobs)), np.zeros(last + 1, dtype=np.int64)
    for m in range(len(jobs)):
        gpu_s[m] = alone[m]
        mine = stage_s[jobs[m], GPU]
        if not np.isnan(mine):
            gpu_s[m] = min(mine * alone[m] / iteration_s[jobs[m]], alone[m])
    groups = len(first_gpu) - 1
    crowd, hosts = np.zeros(groups, dtype=np.int64), np.zeros((groups, 2))
    for g in range(groups):
        if guest[g]:
            for i in range(first_gpu[g], first_gpu[g + 1]):
                guests[gpus[i]] += 1
    for g in range(groups):
        if not guest[g]:
            for i in range(first_gpu[g], first_gpu[g + 1]):
                crowd[g] = max(crowd[g], guests[gpus[i]])
            for m in range(first_job[g], first_job[g + 1]):
                hosts[g, 0] = max(hosts[g, 0], alone[m])
                hosts[g, 1] += gpu_s[m] / alone[m]
            hosts[g, 1] = min(hosts[g, 1], 1.0)
    return gpu_s, guests, crowd, hosts


@kernel
def beside_others(
    jobs: IntArray,
    first_job: IntArray,
    gpus: IntArray,
    first_gpu: IntArray,
    guest: BoolArray,
    alone: FloatArray,
    stage_s: FloatArray,
    iteration_s: FloatArray,
    gpu_s: FloatArray,
    guests: IntArray,
    crowd: IntArray,
    part: FloatArray,
    share: FloatArray,
    longer: FloatArray,
) -> FloatArray:
    """Seconds an iteration of each member beside the other groups; arguments up to `crowd` as in `host_loads`.

    `part` (groups,): what guests get together of a host's GPUs. `share` (groups,): what each guest gets of its GPUs; if
    it is empty the guests of a GPU share that evenly, and a gang has what it has on its worst one. A guest's GPU work
    takes as long as its share needs for it, the rest goes on beside it if the two overlap when the job is alone. A host
    with guests takes `longer` (groups,), as a factor.
    """
    usable, out = np.ones(len(guests)), np.empty(len(jobs))
    for g in range(len(guest)):
        if crowd[g] > 0:
            for i in range(first_gpu[g], first_gpu[g + 1]):
                usable[gpus[i]] = part[g]
    for g in range(len(guest)):
        mine = 1.0
        if guest[g] and len(share) > 0:
            mine = share[g]
        elif guest[g]:
            mine = np.inf
            for i in range(first_gpu[g], first_gpu[g + 1]):
                mine = min(mine, usable[gpus[i]] / guests[gpus[i]])
        mine = max(mine, LEAST_SHARE)
        for m in range(first_job[g], first_job[g + 1]):
            if not guest[g]:
                out[m] = alone[m] * longer[g] if crowd[g] > 0 else alone[m]
                continue
            stages = 0.0
            for stage in range(stage_s.shape[1]):
                stages += stage_s[jobs[m], stage]
            needed = gpu_s[m] / mine
            if stages / iteration_s[jobs[m]] > 1.0 + 1e-6:  # NaN, without a profile: all of it is GPU work
                out[m] = max(alone[m], needed)
            else:
                out[m] = alone[m] + needed - gpu_s[m]
    return out


@dataclass(frozen=True)
class GpuSharing:
    """How hosts and guests share GPUs in a simulation.

    quantum_s  GPU work that a guest starts without a look at its share, seconds
    gaps       times in a step that a host waits for the GPU; 1 with stage marks and the gate
    models     quanta, gaps, noise, memory and bursts by model; None: all alike, and memory does not matter
    noise      coefficient of variation of a host's steps
    cores_apart  every job has cores, storage and a network of its own; otherwise guests get what hosts leave of their
               GPUs' part of a node (`beside_gpus`)

    A guest gets the part of a host's slack that the macro model of the law says, all of a GPU without a host; the host
    takes as much longer as that model says. Guests
    of a GPU share that evenly. A gang gets what it gets on its worst GPU, and others have what it leaves on its other
    GPUs. What it does outside the GPU goes on beside its GPU work if the two overlap when it is alone.
    A host without a stage profile leaves no slack. Raises `InputError` for invalid values.
    """

    quantum_s: float = 0.002
    gaps: int = 1
    models: GuestModels | None = None
    noise: float = NOISE
    cores_apart: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.noise < math.inf:
            raise InputError(f"noise must be a number >= 0, got {self.noise}")
        if not (self.quantum_s > 0 and self.gaps >= 1):
            raise InputError(f"quantum_s must be > 0 and gaps >= 1, got {self.quantum_s} and {self.gaps}")

    def iteration_s(
        self, truth: JobBatch, groups: Groups, alone: FloatArray, capacity_bytes: FloatArray | None = None
    ) -> FloatArray:
        """Seconds an iteration of each member beside hosts and guests.

        `alone`: without other groups; `groups` holds all that share GPUs, with their flags; `capacity_bytes`: memory of
        each entry of `groups.gpus`, infinite where not known, which matters only if there are `models`.
        """
        guest = _guests(groups)
        used = self.memory(truth, groups, alone, capacity_bytes)
        if used is not None:
            alone = alone / np.maximum(used.speed, LEAST_SHARE)[groups.group_of_member()]
        work = 1 + len(groups) // GROUPS_A_UNIT
        columns = groups.jobs, groups.first_job, groups.gpus, groups.first_gpu, guest, alone
        gpu_s, guests, crowd, hosts = either(host_loads, work)(*columns, truth.stage_s, truth.iteration_s)
        part, longer = np.ones(len(groups)), np.ones(len(groups))
        quantum_s, gaps, noise = self._pairs(truth, groups, guest)
        for g in np.flatnonzero(crowd).tolist():
            host = float(hosts[g, 0]), float(hosts[g, 1])
            part[g], longer[g] = beside_host(*host, int(crowd[g]), quantum_s[g], gaps[g], noise[g])
        share = NO_SHARES
        if guests.max(initial=0) > 1 and (guest & (groups.gpu_count() > 1)).any():
            owner, usable = np.repeat(np.arange(len(groups)), groups.gpu_count()), np.ones(len(guests))
            paying = crowd[owner] > 0
            usable[groups.gpus[paying]] = part[owner[paying]]
            share = fair_shares(guest, owner, groups.gpus, usable)
        out = either(beside_others, work)(
            *columns, truth.stage_s, truth.iteration_s, gpu_s, guests, crowd, part, share, longer
        )
        return out if used is None else out * used.slower[groups.group_of_member()]

    def memory(
        self, truth: JobBatch, groups: Groups, alone: FloatArray, capacity_bytes: FloatArray | None
    ) -> Use | None:
        """The memory of hosts and guests; None where it does not matter. Arguments as of `iteration_s`."""
        if self.models is None or capacity_bytes is None:
            return None
        each, _, _, memory = self.models.columns(truth)
        first = groups.first_job[:-1]
        models = [each[job] for job in groups.jobs[first].tolist()]
        of_group = np.add.reduceat(memory[groups.jobs], first)
        return use(groups, _guests(groups), models, of_group, np.maximum.reduceat(alone, first), capacity_bytes)

    def _pairs(
        self, truth: JobBatch, groups: Groups, guest: BoolArray
    ) -> tuple[list[float], list[int], list[float]]:  # fmt: skip
        """For each group the longest quantum of guests on its GPUs, in seconds; gaps and noise of its own steps."""
        if self.models is None:
            return [self.quantum_s] * len(groups), [self.gaps] * len(groups), [self.noise] * len(groups)
        each, quantum_s, gaps, _ = self.models.columns(truth)
        lead, gpus = groups.jobs[groups.first_job[:-1]], groups.gpus
        owner, longest = np.repeat(np.arange(len(groups)), groups.gpu_count()), np.zeros(int(gpus.max()) + 1)
        there = guest[owner]
        np.maximum.at(longest, gpus[there], quantum_s[lead][owner[there]])
        of_group = np.maximum.reduceat(longest[gpus], groups.first_gpu[:-1])
        return of_group.tolist(), gaps[lead].tolist(), [each[job].noise for job in lead.tolist()]


def _guests(groups: Groups) -> BoolArray:
    """One flag a group."""
    return np.zeros(len(groups), dtype=bool) if groups.guest is None else groups.guest


def fair_shares(guest: BoolArray, owner: IntArray, at: IntArray, usable: FloatArray) -> FloatArray:
    """The share of each guest group: the same on all its GPUs, and no other can have more without it having less.

    `guest` (groups,); `owner` and `at`: the group and the GPU of each pair; `usable` (gpus,): what guests get together.
    The GPU on which the shares are least decides for its guests, then the next one with what those leave (max-min).
    """
    share, left = np.ones(len(guest)), usable.copy()
    pairs = guest[owner]
    owner, at = owner[pairs], at[pairs]
    while len(owner):
        count = np.bincount(at, minlength=len(left))
        level = np.where(count > 0, left / np.maximum(count, 1), np.inf)
        gpu = int(np.argmin(level))
        done = np.isin(owner, owner[at == gpu])
        share[owner[done]] = level[gpu]
        np.subtract.at(left, at[done], level[gpu])
        owner, at, left = owner[~done], at[~done], np.maximum(left, 0.0)
    return share


def beside_gpus(
    groups: Groups, pace_s: FloatArray, alone: FloatArray, stage_s: FloatArray, share: FloatArray
) -> FloatArray:
    """Seconds an iteration of each member, next to all on its GPUs' parts of nodes; `pace_s` is by the law of GPUs.

    Nobody hands out the cores, storage and network that belong to a GPU, so stages there stretch until no resource is
    used more than all the time. The law finds in the whole steps of a host what that costs it, and cuts its guests to
    where it is `HELD`: they have what such a host leaves. `alone` (members,), `stage_s` and `share` (members, k) as of
    `together_s` and `cpu_shares`. A stage that takes longer than the iteration alone fills it.
    """
    gpus, at = np.unique(groups.gpus, return_inverse=True)
    if len(gpus) == len(groups.gpus):
        return pace_s
    owner, group = np.repeat(np.arange(len(groups)), groups.gpu_count()), groups.group_of_member()
    others = [r for r in Resource if r != Resource.GPU]
    overlaps = np.nansum(stage_s, axis=1) > alone * (1.0 + 1e-6)
    own_s = np.minimum(np.nan_to_num(stage_s[:, others]), alone[:, None])
    first_job, first_gpu = groups.first_job[:-1], groups.first_gpu[:-1]
    guest, most_s = _guests(groups), np.maximum(pace_s, alone * (1.0 + HELD))
    most_s[guest[group]] = np.inf
    stretch, out = np.ones((len(groups), len(others))), pace_s
    for _ in range(STRETCHES):
        used = np.zeros((2, len(gpus), len(others)))
        np.add.at(
            used,
            (guest[owner].astype(int), at),
            np.add.reduceat(own_s * share[:, others] / out[:, None], first_job)[owner],
        )
        crowding = used[1] / np.maximum(1.0 - used[0], HELD)
        if crowding.max() <= ENOUGH:
            break
        both = np.where(guest[owner][:, None], crowding[at], used.sum(axis=0)[at])
        stretch *= np.maximum(np.maximum.reduceat(both, first_gpu), 1.0)
        longer = own_s * stretch[group]
        more = np.where(overlaps, longer.max(axis=1) - pace_s, longer.sum(axis=1) - own_s.sum(axis=1))
        out = np.minimum(pace_s + np.maximum(np.maximum.reduceat(more, first_job), 0.0)[group], most_s)
    return out
