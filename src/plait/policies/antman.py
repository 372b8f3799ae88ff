"""AntMan: guaranteed jobs get their quota at full speed, opportunistic ones what they leave (Xiao et al., OSDI 2020).

The global scheduler. How the jobs of one GPU then share it is decided by `plait.sharing`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, get_args

import numpy as np

from plait.core.arrays import NO_JOBS, BoolArray, FloatArray, IntArray
from plait.core.cluster import Cluster
from plait.core.compile_policy import compiled, waiting
from plait.core.errors import InputError
from plait.core.jit import plain
from plait.core.jobs import JobClass
from plait.core.plan import NO_GROUPS, Groups, Plan, Reservation, plain_details
from plait.core.policy import JOB_CLASS, View
from plait.core.resources import Resource
from plait.core.words import counted
from plait.placement.packing import allowed_kinds
from plait.policies import antman_kernels as k
from plait.policies.quotas import ALL, Quotas
from plait.policies.tiresias import Queues
from plait.sharing.memory_state import CONTEXT_BYTES

Order = Literal["fifo", "tiresias", "srtf"]
ORDERS: tuple[Order, ...] = get_args(Order)

#: Opportunistic jobs a GPU, at most; controllers refuse more.
MOST_GUESTS = 8
#: A guest below this part of its own speed is stalled.
STALLED = 0.01
#: How often to look again while jobs wait for GPUs whose use is measured, seconds: it is a mean over ten.
USAGE_S = 60.0
#: What compiling one of the two kernels takes, seconds of CPU time.
COMPILE_CPU_S = 10


@dataclass(frozen=True)
class AntMan:
    """Guaranteed jobs as if they were alone, opportunistic jobs on the GPUs and time that these leave idle.

    Guaranteed jobs of a project start in `order`; the project that uses least of its quota is served first. A gang gets
    the best topology: fewest nodes, then one rack, then the fewest guests, the least room left over, lowest numbers. If
    there are too few GPUs it reserves those that are there, which closes them to guaranteed jobs behind it, and waits;
    who has a reservation goes first from then on, so no two gangs wait for each other. Nothing is preempted, and no
    guaranteed job waits for an opportunistic one.

    Opportunistic jobs are guests: on the least used GPUs of which less than `limit` is used, idle, reserved or with a
    host, at most `max_per_gpu` on each, wherever their memory fits, all or nothing. They count against no quota. A
    guest that a host leaves no room for (memory, cores) goes elsewhere or waits; one that got nothing for `stall_s`
    is checkpointed and goes elsewhere if there is anything better.

    A job of class auto is guaranteed if it can start at once, else after `auto_after_s` a guest, and is promoted where
    it runs once its quota allows it and its GPUs have no host.

    How much of a GPU is used: by the stage profiles of the jobs there, or as measured where one has no profile.
    `quota`: GPUs by project, or by project and GPU kind as (project, kind); "*" stands for all that are not named.
    """

    order: Order = "fifo"
    quota: tuple[tuple[str, str, int], ...] = ()
    limit: float = 0.8
    max_per_gpu: int = 1
    auto_after_s: float = 0.0
    stall_s: float = 600.0
    name: str = "antman"
    guests: ClassVar[bool] = True
    uses: ClassVar[frozenset[str]] = frozenset({JOB_CLASS})

    @property
    def quotas(self) -> Quotas:
        """The same quotas as a value."""
        return Quotas(self.quota)

    def __post_init__(self) -> None:
        """Refuse options that mean nothing."""
        if self.order not in ORDERS:
            raise InputError(f"order is {self.order!r}; use {', '.join(ORDERS)}")
        if not 0 < self.limit <= 1:
            raise InputError(f"limit must be over 0 and at most 1, got {self.limit}")
        if self.max_per_gpu < 0 or self.auto_after_s < 0 or not self.stall_s > 0:
            raise InputError("max_per_gpu and auto_after_s must be >= 0, stall_s > 0")
        for project, _, gpus in self.quota:
            if gpus < 0:
                raise InputError(f"the quota of project {project} must be >= 0 GPUs, got {gpus}")

    def decide(self, view: View) -> Plan:
        """Hosts stay, then guaranteed jobs in their turn, then guests."""
        jobs, running = view.jobs, view.running
        if not len(jobs):
            return Plan(NO_GROUPS, settled=True)
        runs, opportunistic = jobs.running_group >= 0, jobs.job_class == int(JobClass.OPPORTUNISTIC)
        guest = runs & opportunistic
        if running.guest is not None:
            guest |= runs & running.guest[jobs.running_group]
        lends = (jobs.job_class == int(JobClass.AUTO)) & (jobs.age_s >= self.auto_after_s - 1e-6)
        rank = self._rank(view)
        found = _table(view, rank, guest, lends, self._stalled(view, guest))
        lists = _lists(
            view, rank, runs & ~guest, guest, ~opportunistic & (~runs | guest), ~runs & (opportunistic | lends)
        )
        turns = self._walk(view, found, lists)
        status = found.whole[:, k.STATUS]
        plan = _plan(view, found, lists, turns, guest, WaitReasons(view, found, self))
        return replace(plan, valid_until_s=self._until(view, status, guest, runs, lends))

    def _rank(self, view: View) -> IntArray:
        """Everybody's place among those that wait, by `order`."""
        jobs, n = view.jobs, len(view.jobs)
        keys: tuple[FloatArray | IntArray | BoolArray, ...] = ()
        if self.order == "srtf":
            keys = (jobs.remaining_s,)
        elif self.order == "tiresias":
            keys = Queues()(view).keys
        rank = np.empty(n, dtype=np.int64)
        rank[np.lexsort((jobs.number, *reversed(keys)))] = np.arange(n)
        return rank

    def _stalled(self, view: View, guest: BoolArray) -> BoolArray:
        """Guests that have got nearly nothing since they started, `stall_s` ago or longer."""
        jobs = view.jobs
        return guest & (_speed(view) < STALLED) & (view.now_s - jobs.last_start_s >= self.stall_s - 1e-6)

    def _tenants(self, view: View) -> k.Tenants:
        """Quotas of the projects of the view, by their number."""
        tenant, kinds = view.jobs.project_number, view.cluster.kinds
        count = int(tenant.max()) + 1
        quota, total = np.full((count, len(kinds)), np.inf), np.full(count, np.inf)
        if self.quota:
            for t in np.unique(tenant).tolist():
                name = view.jobs[int(np.argmax(tenant == t))].spec.project
                own = [rule for rule in self.quota if rule[0] == name] or [r for r in self.quota if r[0] == ALL]
                for _, kind, gpus in own:
                    if not kind:
                        total[t] = gpus
                    elif kind in kinds:
                        quota[t, kinds.index(kind)] = gpus
        share = np.minimum(total, quota.sum(axis=1))
        share = np.maximum(np.where(np.isfinite(share), share, 1.0), 1e-9)
        return k.Tenants(np.zeros((count, len(kinds))), np.zeros((count, len(kinds))), quota, total, share)

    def _walk(self, view: View, jobs: k.Jobs, lists: k.Lists) -> IntArray:
        """Fill in what becomes of the jobs; the rows of guaranteed ones in the order of their turn."""
        cluster = view.cluster
        racks = int(cluster.node_rack.max()) + 1
        rules = k.Rules(self.limit, self.max_per_gpu, float(CONTEXT_BYTES), len(cluster.kinds), racks)
        devices, tenants = _devices(cluster), self._tenants(view)
        call = _caller(1 + (len(view.jobs) + cluster.gpus) // 10)
        turns: IntArray = call(k.admit_hosts, lists, tenants, jobs, devices, rules)
        call(k.admit_guests, lists, jobs, devices, rules, _measured(view))
        return turns

    def _until(self, view: View, status: IntArray, guest: BoolArray, runs: BoolArray, lends: BoolArray) -> float:
        """When something changes by itself: an auto job may be a guest, a guest has stalled for long enough."""
        jobs = view.jobs
        soon = np.full(len(jobs), math.inf)
        auto = (jobs.job_class == int(JobClass.AUTO)) & ~runs & ~lends & (status != k.STARTS)
        soon[auto] = jobs.submit_s[auto] + self.auto_after_s
        slow = guest & (_speed(view) < STALLED) & (status == k.STAYS)
        begun = np.where(slow, jobs.last_start_s, math.inf)
        soon = np.minimum(soon, np.where(begun + self.stall_s > view.now_s, begun, view.now_s) + self.stall_s)
        until = float(soon.min())
        waits = bool((status == k.UNSHARED).any())
        if waits and view.usage is not None and not np.isnan(_measured(view)).all():
            until = min(until, view.now_s + USAGE_S)
        return until


class WaitReasons(Mapping[int, str]):
    """Why each job waits that does; the words are made when somebody asks."""

    def __init__(self, view: View, found: k.Jobs, policy: AntMan) -> None:
        """`found` as the walk left it."""
        self._view, self._found, self._policy = view, found.whole, policy
        waits = np.flatnonzero(found.whole[:, k.STATUS] >= k.DISPLACED)
        self._row = dict(zip(view.jobs.number[waits].tolist(), waits.tolist(), strict=True))

    def __getitem__(self, job: int) -> str:
        """The reason of one waiting job."""
        row, found, jobs = self._row[job], self._found, self._view.jobs
        status, there = int(found[row, k.STATUS]), int(found[row, k.THERE])
        needs = f"needs {counted(int(jobs.gpus[row]), 'GPU')}"
        if status == k.HOLDS:
            reserved = int(found[row, k.NEW_HI] - found[row, k.NEW_LO])
            return f"{needs}; {reserved} are reserved for it until the rest is free"
        if status == k.OVER_QUOTA:
            return (
                f"{needs}, but the quota of {self._project(row)} is used up by its guaranteed jobs, or wanted by those "
                "ahead; class opportunistic or auto may use idle GPUs beyond it"
            )
        if status == k.ABOVE_QUOTA:
            return (
                f"{needs}, more than the quota of {self._project(row)} ever allows, so it cannot start as a guaranteed "
                "job; ask for fewer GPUs, or submit it with class opportunistic or auto"
            )
        if status == k.BEHIND:
            return f"{needs}; {there or 'none'} are free of guaranteed jobs and reservations for jobs ahead of it"
        if status == k.DISPLACED:
            what = "a guaranteed job needs the memory or cores that it used"
            return f"{needs} to share; {what}, and {there or 'no'} others are open to it"
        context, most = float(CONTEXT_BYTES), float(self._view.cluster.kind_gpu_memory_bytes.max())
        if jobs.gpu_memory_bytes[row] + context > most:
            return (
                f"needs {jobs.gpu_memory_bytes[row] / 1e9:g} GB of GPU memory and {context / 1e9:g} GB for the context "
                f"of its process, and no GPU has more than {most / 1e9:g} GB to share; ask for less, or submit it with "
                "class guaranteed"
            )
        return (
            f"{needs} to share; {there or 'none'} are less than {self._policy.limit:.0%} used, with room for its "
            f"memory and fewer than {counted(self._policy.max_per_gpu, 'opportunistic job')}"
        )

    def _project(self, row: int) -> str:
        name = self._view.jobs[row].spec.project
        return f"project {name}" if name else "jobs without a project"

    def __iter__(self) -> Iterator[int]:
        """Job numbers that wait."""
        return iter(self._row)

    def __len__(self) -> int:
        """How many wait."""
        return len(self._row)


# -- between the view and the walk ---------------------------------------------------------------------------


def _table(view: View, rank: IntArray, guest: BoolArray, lends: BoolArray, stalled: BoolArray) -> k.Jobs:
    """The jobs of the view as the walk sees them."""
    jobs, running, n = view.jobs, view.running, len(view.jobs)
    whole, amounts = np.zeros((n, k.THERE + 1), dtype=np.int64), np.zeros((n, 4))
    whole[:, k.GPUS], whole[:, k.TENANT], whole[:, k.KINDS] = jobs.gpus, jobs.project_number, allowed_kinds(view)
    there = jobs.running_group >= 0
    whole[there, k.LO] = running.first_gpu[jobs.running_group[there]]
    whole[there, k.HI] = running.first_gpu[jobs.running_group[there] + 1]
    whole[:, k.KEPT], whole[:, k.STALLED], whole[:, k.LENDS] = view.keeps.rows, stalled, lends
    whole[:, k.RANK] = rank
    if jobs.columns["has_demands"][0]:
        amounts[:, k.CORES], amounts[:, k.HOST_BYTES] = jobs.cpus / jobs.gpus, jobs.memory_bytes / jobs.gpus
    amounts[:, k.BYTES] = jobs.gpu_memory_bytes
    use = np.minimum(jobs.stage_s[:, Resource.GPU] / jobs.iteration_s, 1.0)
    amounts[:, k.USE] = np.where(np.isnan(use), 1.0, use)
    moving = int(whole[guest, k.GPUS].sum())
    new = np.empty(moving + (MOST_GUESTS + 1) * view.cluster.gpus, dtype=np.int64)
    return k.Jobs(whole, amounts, running.gpus, new, np.zeros(1, dtype=np.int64))


def _lists(
    view: View, rank: IntArray, hosts: BoolArray, guests: BoolArray, queue: BoolArray, asking: BoolArray
) -> k.Lists:
    """Rows of these jobs in the order in which the walk takes them."""
    number, tenant = view.jobs.number, view.jobs.project_number
    rows = np.flatnonzero(queue)
    first = np.concatenate([[0], np.cumsum(np.bincount(tenant[rows], minlength=int(tenant.max()) + 1))])
    holding = np.array([r.job for r in view.reservations], dtype=np.int64)
    at = np.minimum(np.searchsorted(number, holding), len(number) - 1)

    def ranked(flags: BoolArray) -> IntArray:
        some = np.flatnonzero(flags)
        return some[np.argsort(rank[some], kind="stable")]

    return k.Lists(
        np.flatnonzero(hosts),
        ranked(guests),
        ranked(asking),
        rows[np.lexsort((rank[rows], tenant[rows]))],
        first.astype(np.int64),
        at[(number[at] == holding) & queue[at]],
    )


def _devices(cluster: Cluster) -> k.Devices:
    """The hardware as the walk sees it, with nobody on it."""
    whole, amounts = np.zeros((cluster.gpus, 4), dtype=np.int64), np.zeros((cluster.gpus, 3))
    whole[:, k.NODE] = cluster.gpu_node
    amounts[:, k.CAPACITY] = cluster.node_gpu_memory_bytes[cluster.gpu_node]
    columns = (cluster.first_gpu[:-1], cluster.first_gpu[1:], cluster.node_kind, cluster.node_rack, cluster.node_up)
    return k.Devices(whole, amounts, np.column_stack(columns).astype(np.int64), cluster.node_spare.copy())


def _caller(work: int) -> Callable[..., Any]:
    """What calls a kernel: compiled for so much work, tenths of a millisecond in plain Python, or plain."""
    if not compiled(k.admit_hosts, work):
        return lambda kernel, *args: plain(kernel)(*args)

    def call(kernel: Callable[..., Any], *args: Any) -> Any:
        with waiting(kernel, f"antman: {kernel.__name__}", COMPILE_CPU_S):
            return kernel(*args)

    return call


def _measured(view: View) -> FloatArray:
    """Measured use of GPUs with a job that has no profile, (gpus,); NaN elsewhere."""
    out = np.full(view.cluster.gpus, math.nan)
    usage, jobs, running = view.usage, view.jobs, view.running
    if usage is not None and len(running):
        group = jobs.running_group[(jobs.running_group >= 0) & np.isnan(jobs.stage_s[:, Resource.GPU])]
        there = running[np.unique(group)].gpus
        out[there] = usage.utilisation[there]
    return out


def _speed(view: View) -> FloatArray:
    """Speed of each job relative to alone when it last shared its GPUs, NaN unknown; as its steps say, if measured."""
    jobs, usage = view.jobs, view.usage
    speed = jobs.shared_speed
    if usage is not None and len(usage.jobs):
        at = np.minimum(np.searchsorted(usage.jobs, jobs.number), len(usage.jobs) - 1)
        own = np.where(usage.jobs[at] == jobs.number, jobs.iteration_s / usage.step_s[at], math.nan)
        speed = np.where(np.isnan(own), speed, own)
    return speed


def _plan(
    view: View, found: k.Jobs, lists: k.Lists, turns: IntArray, guest: BoolArray, reasons: Mapping[int, str]
) -> Plan:
    """The groups that stay, hosts that start, guests that start or move; reservations; who comes when."""
    jobs, status, rank = view.jobs, found.whole[:, k.STATUS], found.whole[:, k.RANK]
    stays = (jobs.running_group >= 0) & ((status == k.STAYS) | (status == k.PROMOTED))
    kept = _kept(view, np.unique(jobs.running_group[stays]), guest & (status != k.PROMOTED))
    begins = np.flatnonzero((status == k.GUEST) | (status == k.MOVED))
    starts = np.concatenate([turns[status[turns] == k.STARTS], begins])
    new = _started(jobs.number[starts], starts, found, status[starts] != k.STARTS)
    reservations = tuple(
        Reservation(int(jobs.number[r]), tuple(_gpus(found, r).tolist()))
        for r in turns[status[turns] == k.HOLDS].tolist()
    )
    rest = np.ones(len(jobs), dtype=bool)
    rest[lists.hosts] = rest[turns] = False
    others = np.flatnonzero(rest)
    order = np.concatenate([lists.hosts, turns, others[np.argsort(rank[others], kind="stable")]])
    everybody = not len(reasons) and not len(turns)
    return Plan(
        _joined(kept, new), jobs.number[order], reasons=reasons, settled=everybody, reservations=reservations
    )  # fmt: skip


def _gpus(found: k.Jobs, row: int) -> IntArray:
    """What a job got, or what is reserved for it, ascending."""
    gpus: IntArray = np.sort(found.new[found.whole[row, k.NEW_LO] : found.whole[row, k.NEW_HI]])
    return gpus


def _kept(view: View, groups: IntArray, guest: BoolArray) -> Groups:
    """These running groups as they are, but for members that have ended and for who is a guest."""
    jobs = view.jobs
    kept = view.running[groups] if len(groups) else NO_GROUPS
    at = np.minimum(np.searchsorted(jobs.number, kept.jobs), len(jobs) - 1)
    there = jobs.number[at] == kept.jobs
    if not there.all():
        gone = set(kept.jobs[~there].tolist())
        kept = Groups.of(replace(g, members=tuple(m for m in g.members if m.job not in gone)) for g in kept)
        at = np.searchsorted(jobs.number, kept.jobs)
    flags = guest[at[kept.first_job[:-1]]]
    return Groups(
        kept.jobs, kept.gpus, kept.first_gpu, kept.first_job, kept.gate, kept.details, flags if flags.any() else None
    )  # fmt: skip


def _started(jobs: IntArray, rows: IntArray, found: k.Jobs, guest: BoolArray) -> Groups:
    """Groups of one member each for these rows."""
    gpus = [_gpus(found, r) for r in rows.tolist()]
    first = np.concatenate([[0], np.cumsum([len(one) for one in gpus])]).astype(np.int64)
    return Groups(jobs, np.concatenate(gpus) if gpus else NO_JOBS, first, guest=guest if guest.any() else None)


def _joined(one: Groups, two: Groups) -> Groups:
    """All groups of both; of the second each has one member about whom there is nothing special."""
    if not len(two) or not len(one):
        return one if len(one) else two
    members = len(two.jobs)
    gate = None if one.gate is None else np.append(one.gate, np.zeros(len(two), dtype=np.int64))
    details = None if one.details is None else np.vstack([one.details, plain_details(members)])
    guest = None
    if one.guest is not None or two.guest is not None:
        flags = [np.zeros(len(g), dtype=bool) if g.guest is None else g.guest for g in (one, two)]
        guest = np.concatenate(flags)
    return Groups(
        np.append(one.jobs, two.jobs),
        np.append(one.gpus, two.gpus),
        np.append(one.first_gpu, two.first_gpu[1:] + one.first_gpu[-1]),
        np.append(one.first_job, two.first_job[1:] + one.first_job[-1]),
        gate,
        details,
        guest,
    )
