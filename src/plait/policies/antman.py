"""AntMan: guaranteed jobs run at full speed within quotas, opportunistic ones use the rest (Xiao et al., OSDI 2020).

The global scheduler. How the jobs of one GPU then share it is decided by `plait.sharing`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, get_args

import numpy as np

from plait.core.arrays import NO_JOBS, BoolArray, FloatArray, IntArray
from plait.core.cluster import Cluster
from plait.core.errors import InputError
from plait.core.jobs import Checkpoints, JobClass
from plait.core.plan import GPU_MEMORY_BYTES, NO_GROUPS, Groups, Plan, Reservation, plain_details
from plait.core.policy import JOB_CLASS, View
from plait.core.resources import Resource
from plait.core.words import counted
from plait.placement.packing import allowed_kinds, demands
from plait.policies import guest_walk as k
from plait.policies.compose import Ranking, by_attained_service, by_remaining_service, by_remaining_time, by_run_time
from plait.policies.guest_walk_kernels import (
    BYTES,
    CAPACITY,
    CORES,
    DISPLACED,
    GPUS,
    GUEST,
    HI,
    KEPT,
    KINDS,
    LENDS,
    LO,
    MOVED,
    NODE,
    POSITION,
    PROJECT,
    PROMOTED,
    STALLED,
    START_BYTES,
    STARTS,
    STATUS,
    STAYS,
    THERE,
    USE,
)
from plait.policies.options import GuaranteedOrder
from plait.policies.predicted import ByPrediction, Knows
from plait.policies.quotas import ALL, Quotas
from plait.policies.tiresias import Queues
from plait.sharing.memory_law import CONTEXT_BYTES

ORDERS: tuple[GuaranteedOrder, ...] = get_args(GuaranteedOrder)

#: How often to look again while jobs wait for GPUs whose use is measured, seconds: it is a mean over ten.
USAGE_S = 60.0
#: What jobs of a GPU share: its time, and its part of the storage and cores of its node.
SHARED = [int(Resource.GPU), int(Resource.STORAGE), int(Resource.CPU)]


@dataclass(frozen=True)
class AntMan:
    """Guaranteed jobs as if they were alone, opportunistic jobs on the GPUs and time that these leave idle.

    Guaranteed jobs of a project start in `order`; the project with the lowest use of its quota is served first. A gang
    gets the best topology: minimum nodes, then one rack, then minimum guests, minimum room left over, lowest numbers.
    If there are too few GPUs it reserves the free ones and waits; jobs with a reservation go first from then on, so no
    two gangs wait for each other. A guaranteed job behind it starts on reserved GPUs only with `backfill`, and only if
    it is known to have ended before they are complete, or leaves enough then; quotas that have no room for the next job
    are filled alike. `order` "tiresias" preempts: a job whose turn has come takes GPUs back from guaranteed jobs of
    later queues that may be stopped, and reservations close GPUs only to jobs that may not be stopped. Otherwise
    nothing is preempted. No guaranteed job waits for an opportunistic one that came less than `guest_age_s` before it.

    Opportunistic jobs are guests: on the least used GPUs with a use below `limit`, idle, reserved or with a host, at
    most `max_per_gpu` on each, wherever the part `least_memory` of their memory fits, all or nothing. With `crowding`
    (ours) the part of its speed that a guest loses to stages of others is below `limit` and counts as use. A gang
    prefers one node, and gets no other place next to hosts (ours: its ranks pause together only there). They count
    against no quota. A guest without room next to a host (memory, cores) moves or waits; a guest with almost no
    progress for `stall_s` on end is checkpointed and moves if a better place exists. A guest that has waited for
    `guest_age_s` on end counts, until it is stopped, as a guaranteed job submitted `guest_age_s` after it.

    A job of class auto is guaranteed if it can start at once, else after `auto_after_s` a guest, and is promoted where
    it runs once its quota allows it and its GPUs have no host.

    How much of a GPU is used: by the stage profiles of the jobs there, or as measured where one has no profile.
    `knows`: what the orders `srtf` and `srsf` know of durations; unless `exact`, the backfill of every order knows time
    limits only.
    `quota`: GPUs by project, or by project and GPU kind as (project, kind); "*" stands for all that are not named.
    """

    order: GuaranteedOrder = "tiresias"
    quota: tuple[tuple[str, str, int], ...] = ()
    limit: float = 0.8
    max_per_gpu: int = 1
    least_memory: float = 1.0
    auto_after_s: float = 0.0
    stall_s: float = 600.0
    guest_age_s: float = 86_400.0
    backfill: bool = True
    crowding: bool = True
    knows: Knows = "exact"
    name: str = "antman"
    guests: ClassVar[bool] = True
    uses: ClassVar[frozenset[str]] = frozenset({JOB_CLASS})

    @property
    def quotas(self) -> Quotas:
        """The same quotas as a value."""
        return Quotas(self.quota)

    def with_quotas(self, quotas: Quotas) -> AntMan:
        return replace(self, quota=quotas.rules)

    def __post_init__(self) -> None:
        if self.order not in ORDERS:
            raise InputError(f"order is {self.order!r}; use {', '.join(ORDERS)}")
        if self.knows not in get_args(Knows):
            raise InputError(f"knows is {self.knows!r}; use {', '.join(get_args(Knows))}")
        if not 0 < self.limit <= 1:
            raise InputError(f"limit must be over 0 and at most 1, got {self.limit}")
        if not 0 < self.least_memory <= 1:
            raise InputError(f"least_memory must be over 0 and at most 1, got {self.least_memory}")
        if self.max_per_gpu < 0 or self.auto_after_s < 0 or not self.stall_s > 0 or not self.guest_age_s > 0:
            raise InputError("max_per_gpu and auto_after_s must be >= 0, stall_s and guest_age_s > 0")
        for project, _, gpus in self.quota:
            if gpus < 0:
                raise InputError(f"the quota of project {project} must be >= 0 GPUs, got {gpus}")

    def decide(self, view: View) -> Plan:
        """Hosts stay, then guaranteed jobs in their turn, then guests."""
        jobs, running = view.jobs, view.running
        if not len(jobs):
            return Plan(NO_GROUPS, settled=True)
        runs, opportunistic = jobs.running_group >= 0, jobs.job_class == int(JobClass.OPPORTUNISTIC)
        waited_s = np.where(runs, jobs.last_start_s, view.now_s) - jobs.pending_since_s
        aged = opportunistic & (waited_s >= self.guest_age_s - 1e-6)
        guest = runs & opportunistic & ~aged
        if running.guest is not None:
            guest |= runs & running.guest[jobs.running_group]
        lends = (jobs.job_class == int(JobClass.AUTO)) & (view.now_s - jobs.submit_s >= self.auto_after_s - 1e-6)
        ranking, slow = self._ranking(view), np.flatnonzero(guest & ~np.isnan(jobs.slow_since_s))
        position, turn = self._positions(view, ranking, opportunistic, guest)
        stalled = slow[view.now_s - _nothing_since_s(view, slow) >= self.stall_s - 1e-6]
        found = _table(view, turn, lends, stalled, ranking.levels, _left_s(view, self.knows == "exact"))
        if not self.crowding:
            found.amounts[:, USE + 1 : CORES] = 0.0
        if self.least_memory < 1.0:
            found.amounts[opportunistic, START_BYTES] *= self.least_memory
        found.amounts[:, BYTES] = np.where(runs, _held_bytes(view), found.amounts[:, START_BYTES])
        queue = (~opportunistic | aged) & (~runs | guest)
        lists = _lists(view, position, turn, runs & ~guest, guest, queue, ~runs & (opportunistic | lends))
        if self.preempts:
            none = lists.holders[:0]  # whose turn it is depends on service, not on who waits
            lists = lists._replace(holders=none, stoppable=_stoppable(view, turn, lists.hosts, queue & ~runs))
        turns = self._walk(view, found, lists)
        status = found.whole[:, STATUS]
        until_s = self._until(view, status, slow, runs, lends)
        young = opportunistic & ~runs & ~aged
        until_s = min(until_s, float(jobs.pending_since_s[young].min(initial=math.inf)) + self.guest_age_s)
        reasons = GuestWaitReasons(view, found, self)
        if self.preempts and len(reasons):
            on_as_hosts = (status == STARTS) | (status == PROMOTED) | (runs & ~guest & (status == STAYS))
            until_s = min(until_s, _may_stop_at_s(view, lists.hosts), view.now_s + ranking.changes_in_s(on_as_hosts))
        return _plan(view, found, lists, turns, guest, reasons, until_s)

    @property
    def preempts(self) -> bool:
        """Whether a guaranteed job takes GPUs back from jobs behind it."""
        return self.order == "tiresias"

    def _ranking(self, view: View) -> Ranking:
        """The order of jobs, without ageing."""
        if self.order == "tiresias":
            return Queues(within="submit")(view)
        if self.order == "fifo":
            return Ranking(())
        by_gpus = self.order == "srsf"
        if self.knows == "predicted":
            return ByPrediction(float(by_gpus), mean=True)(view)
        if self.knows == "nothing":
            return Ranking((by_attained_service(view) if by_gpus else by_run_time(view),))
        return Ranking((by_remaining_service(view) if by_gpus else by_remaining_time(view),))

    def _positions(
        self, view: View, ranking: Ranking, opportunistic: BoolArray, guest: BoolArray
    ) -> tuple[IntArray, IntArray]:
        """The position of each job as a guest, by `order`, and among the candidates for hosts, with ageing.

        In a queue of Tiresias jobs that have run as hosts go first, by their first start. Opportunistic jobs that have
        left the first queue go last: they had their share of precedence.
        """
        jobs, keys = view.jobs, ranking.keys
        if ranking.levels is not None:
            began_s = np.where(guest | np.isnan(jobs.first_start_s), math.inf, jobs.first_start_s)
            keys = (opportunistic & (ranking.levels > 0), *keys, began_s)
        counted_s = jobs.submit_s + np.where(opportunistic, self.guest_age_s, 0.0)
        return _ranks((*ranking.keys, jobs.number)), _ranks((*keys, counted_s, jobs.number))

    def _projects(self, view: View) -> k.Projects:
        project, kinds = view.jobs.project_number, view.cluster.kinds
        count = int(project.max()) + 1
        quota, total = np.full((count, len(kinds)), np.inf), np.full(count, np.inf)
        if self.quota:
            for t in np.unique(project).tolist():
                name = view.jobs[int(np.argmax(project == t))].spec.project
                own = [rule for rule in self.quota if rule[0] == name] or [r for r in self.quota if r[0] == ALL]
                for _, kind, gpus in own:
                    if not kind:
                        total[t] = gpus
                    elif kind in kinds:
                        quota[t, kinds.index(kind)] = gpus
        share = np.minimum(total, quota.sum(axis=1))
        share = np.maximum(np.where(np.isfinite(share), share, 1.0), 1e-9)
        return k.Projects(quota, total, share)

    def _walk(self, view: View, jobs: k.WalkJobs, lists: k.Lists) -> IntArray:
        """Fill in what becomes of the jobs; the rows of guaranteed ones in the order of their turn."""
        cluster = view.cluster
        racks = int(cluster.node_rack.max()) + 1
        context = float(CONTEXT_BYTES)
        rules = k.GuestRules(self.limit, self.max_per_gpu, context, len(cluster.kinds), racks, self.backfill)
        return k.walk(lists, self._projects(view), jobs, _devices(cluster), rules, _measured(view))

    def _until(self, view: View, status: IntArray, slow: IntArray, runs: BoolArray, lends: BoolArray) -> float:
        """When something changes by itself: an auto job may be a guest, a guest has stalled for long enough."""
        jobs = view.jobs
        auto = (jobs.job_class == int(JobClass.AUTO)) & ~runs & ~lends & (status != STARTS)
        until = float((jobs.submit_s[auto] + self.auto_after_s).min(initial=math.inf))
        since_s = _nothing_since_s(view, slow[status[slow] == STAYS])
        again = np.where(since_s + self.stall_s > view.now_s, since_s, view.now_s) + self.stall_s
        until = min(until, float(again.min(initial=math.inf)))
        if view.usage is not None and (status == k.UNSHARED).any() and not np.isnan(_measured(view)).all():
            until = min(until, view.now_s + USAGE_S)
        return until


class GuestWaitReasons(Mapping[int, str]):
    """Why each waiting job waits; sentences are made on demand."""

    def __init__(self, view: View, found: k.WalkJobs, policy: AntMan) -> None:
        """`found` as the walk left it."""
        self._view, self._found, self._given, self._policy = view, found.whole, found.given, policy
        waits = np.flatnonzero(found.whole[:, STATUS] >= DISPLACED)
        self._row = dict(zip(view.jobs.number[waits].tolist(), waits.tolist(), strict=True))

    def __getitem__(self, job: int) -> str:
        row, found, jobs = self._row[job], self._found, self._view.jobs
        status, there = int(found[row, STATUS]), int(found[row, THERE])
        needs = f"needs {counted(int(jobs.gpus[row]), 'GPU')}"
        if status == k.HOLDS:
            if not (reserved := len(self._given[row])):
                return f"{needs}; jobs that end before the rest is free use its reserved ones"
            return f"{needs}; {reserved} are reserved for it until the rest is free"
        if status == k.OVER_QUOTA:
            return (
                f"{needs}, but the quota of {self._project(row)} is used up by its guaranteed jobs, or claimed by jobs "
                "ahead; class opportunistic or auto may use idle GPUs beyond it"
            )
        if status == k.ABOVE_QUOTA:
            return (
                f"{needs}, more than the quota of {self._project(row)} ever allows, so it cannot start as a guaranteed "
                "job; ask for fewer GPUs, or submit it with class opportunistic or auto"
            )
        if status == k.BEHIND:
            free = f"only {there} of the others are free" if there else "all are held, or reserved for jobs ahead of it"
            return f"{needs}; {free}"
        if status == DISPLACED:
            what = "a guaranteed job needs memory or cores that it used, or came to one of its nodes"
            return f"{needs} to share; {what}, and {there or 'no'} others are open to it"
        context, most = float(CONTEXT_BYTES), float(self._view.cluster.kind_gpu_memory_bytes.max())
        needed = float(jobs.gpu_memory_bytes[row])
        if jobs.job_class[row] == int(JobClass.OPPORTUNISTIC):
            needed *= self._policy.least_memory
        if needed + context > most:
            return (
                f"needs {needed / 1e9:g} GB of GPU memory and {context / 1e9:g} GB for the context "
                f"of its process, and no GPU has more than {most / 1e9:g} GB to share; ask for less, or submit it with "
                "class guaranteed"
            )
        guests = counted(self._policy.max_per_gpu, "opportunistic job")
        others, have = (f"all but {there} are", "have") if there else ("every GPU is", "has")
        busy = f"{self._policy.limit:.0%} busy" + " (GPU, storage or cores)" * self._policy.crowding
        why = f"{needs} to share; {others} {busy}, short of memory, or {have} {guests} already"
        gang = jobs.gpus[row] > 1 and len(self._view.cluster.nodes) > 1
        return f"{why}; a gang shares GPUs with guaranteed jobs on one node only" if gang else why

    def _project(self, row: int) -> str:
        name = self._view.jobs[row].spec.project
        return f"project {name}" if name else "jobs without a project"

    def __iter__(self) -> Iterator[int]:
        return iter(self._row)

    def __len__(self) -> int:
        return len(self._row)


# -- between the view and the walk ---------------------------------------------------------------------------


def _ranks(keys: tuple[FloatArray | IntArray | BoolArray, ...]) -> IntArray:
    """The position of each row by these keys, the first one first."""
    order = np.lexsort(keys[::-1])
    out = np.empty(len(order), dtype=np.int64)
    out[order] = np.arange(len(order))
    return out


def _table(
    view: View, position: IntArray, lends: BoolArray, stalled: IntArray, levels: IntArray | None, left_s: FloatArray
) -> k.WalkJobs:
    """The jobs of the view as the walk sees them; `stalled` are rows, `levels` queues of an order that preempts."""
    jobs, running, n = view.jobs, view.running, len(view.jobs)
    whole, amounts = np.zeros((n, THERE + 1), dtype=np.int64), np.zeros((n, CORES + view.cluster.node_spare.shape[1]))
    whole[:, GPUS], whole[:, PROJECT], whole[:, KINDS] = jobs.gpus, jobs.project_number, allowed_kinds(view)
    there = np.flatnonzero(jobs.running_group >= 0)
    group = jobs.running_group[there]
    whole[there, LO], whole[there, HI] = running.first_gpu[group], running.first_gpu[group + 1]
    whole[:, KEPT], whole[:, LENDS], whole[:, POSITION] = view.keeps.rows, lends, position
    whole[stalled, STALLED] = 1
    amounts[:, CORES:] = demands(jobs)
    amounts[:, START_BYTES] = jobs.gpu_memory_bytes
    use = np.minimum(jobs.stage_s[:, SHARED] / jobs.iteration_s[:, None], 1.0)
    use[amounts[:, CORES] > 0.0, SHARED.index(Resource.CPU)] = 0.0  # cores of its own
    amounts[:, USE:CORES] = np.where(np.isnan(use), (1.0, 0.0, 0.0), use)
    if levels is None:
        return k.WalkJobs(whole, amounts, left_s, left_s, np.zeros(n, dtype=np.int64), running.gpus, {})
    return k.WalkJobs(whole, amounts, left_s, _room_s(view, left_s), levels, running.gpus, {})


def _left_s(view: View, stated: bool) -> FloatArray:
    """Known seconds until each job has ended if it starts now or runs; infinite if unknown.

    Without `stated` durations only the time limit of a job is known.
    """
    jobs, waits = view.jobs, view.jobs.running_group < 0
    limit_s = np.maximum(jobs.time_limit_s - jobs.run_s, 0.0)
    left_s = jobs.most_left_s.copy() if stated else np.where(np.isnan(limit_s), math.inf, limit_s)
    left_s[waits] += np.nan_to_num(jobs.restart_s[waits], nan=0.0)
    return left_s


def _room_s(view: View, left_s: FloatArray) -> FloatArray:
    """Seconds until each job has ended, or may be stopped for a job ahead of it, if it starts now or runs."""
    jobs, keeps = view.jobs, view.keeps
    kept_s = view.rule.runs_for * np.nan_to_num(jobs.restart_s, nan=0.0)
    kept_s[jobs.checkpoints == int(Checkpoints.NEVER)] = math.inf
    kept_s = np.where(jobs.running_group < 0, kept_s, np.maximum(keeps.until_s - view.now_s, 0.0))
    return np.minimum(left_s, kept_s)


def _stoppable(view: View, turn: IntArray, hosts: IntArray, waits: BoolArray) -> IntArray:
    """Rows of hosts, alone in their groups, that may be stopped for a waiting job ahead of them, last first."""
    first, running = int(turn[waits].min(initial=len(turn))), view.running
    alone = (np.diff(running.first_job) == 1)[view.jobs.running_group[hosts]]
    some = hosts[alone & view.may_stop[hosts] & (turn[hosts] > first)]
    rows: IntArray = some[np.argsort(-turn[some], kind="stable")]
    return rows


def _may_stop_at_s(view: View, hosts: IntArray) -> float:
    """When the next of these hosts may be stopped that may not be now."""
    until_s = view.keeps.until_s[hosts]
    return float(until_s[until_s > view.now_s].min(initial=math.inf))


def _held_bytes(view: View) -> FloatArray:
    """GPU memory of each running job, (jobs,): its group's limit, otherwise its request; other jobs as requested."""
    jobs, running = view.jobs, view.running
    out: FloatArray = jobs.gpu_memory_bytes.copy()
    if running.details is not None:
        there, members = np.flatnonzero(jobs.running_group >= 0), np.argsort(running.jobs)
        at = members[np.searchsorted(running.jobs, jobs.number[there], sorter=members)]
        allowed = running.details[at, GPU_MEMORY_BYTES]
        out[there] = np.where(allowed > 0, allowed, out[there])
    return out


def _lists(
    view: View,
    position: IntArray,
    turn: IntArray,
    hosts: BoolArray,
    guests: BoolArray,
    queue: BoolArray,
    asking: BoolArray,
) -> k.Lists:
    """Rows of these jobs in the order in which the walk takes them: guests by `position`, others by `turn`."""
    number, project = view.jobs.number, view.jobs.project_number
    rows = np.flatnonzero(queue)
    first = np.concatenate([[0], np.cumsum(np.bincount(project[rows], minlength=int(project.max()) + 1))])
    holding = np.array([r.job for r in view.reservations], dtype=np.int64)
    at = np.minimum(np.searchsorted(number, holding), len(number) - 1)

    def ranked(flags: BoolArray) -> IntArray:
        some = np.flatnonzero(flags)
        return some[np.argsort(position[some], kind="stable")]

    return k.Lists(
        np.flatnonzero(hosts),
        ranked(guests),
        ranked(asking),
        rows[np.lexsort((turn[rows], project[rows]))],
        first.astype(np.int64),
        at[(number[at] == holding) & queue[at]],
        rows[:0],
    )


def _devices(cluster: Cluster) -> k.Devices:
    """The hardware as the walk sees it, without jobs."""
    whole, amounts = np.zeros((cluster.gpus, 4), dtype=np.int64), np.zeros((cluster.gpus, 5))
    whole[:, NODE] = cluster.gpu_node
    amounts[:, CAPACITY] = cluster.node_gpu_memory_bytes[cluster.gpu_node]
    nodes = np.empty((len(cluster.nodes), 5), dtype=np.int64)
    columns = (cluster.first_gpu[:-1], cluster.first_gpu[1:], cluster.node_kind, cluster.node_rack, cluster.node_up)
    for at, column in enumerate(columns):
        nodes[:, at] = column
    return k.Devices(whole, amounts, nodes, cluster.node_spare.copy())


def _measured(view: View) -> FloatArray:
    """Measured use of GPUs with a job that has no profile, (gpus,); NaN elsewhere, as on new nodes."""
    out = np.full(view.cluster.gpus, math.nan)
    usage, jobs, running = view.usage, view.jobs, view.running
    if usage is not None and len(running):
        group = jobs.running_group[(jobs.running_group >= 0) & np.isnan(jobs.stage_s[:, Resource.GPU])]
        there = running[np.unique(group)].gpus
        there = there[there < len(usage.utilisation)]
        out[there] = usage.utilisation[there]
    return out


def _nothing_since_s(view: View, rows: IntArray) -> FloatArray:
    """Since when these slow guests have got nothing where they are, seconds."""
    since_s: FloatArray = np.maximum(view.jobs.slow_since_s[rows], view.jobs.last_start_s[rows])
    return since_s


def _plan(
    view: View,
    found: k.WalkJobs,
    lists: k.Lists,
    turns: IntArray,
    guest: BoolArray,
    reasons: Mapping[int, str],
    until_s: float,
) -> Plan:
    """The groups that stay, hosts that start, guests that start or move; reservations; who comes when."""
    jobs, status, position = view.jobs, found.whole[:, STATUS], found.whole[:, POSITION]
    stays = np.flatnonzero((jobs.running_group >= 0) & ((status == STAYS) | (status == PROMOTED)))
    kept = _kept(view, stays, guest & (status != PROMOTED))
    begins = np.flatnonzero((status == GUEST) | (status == MOVED))
    starts = np.concatenate([turns[status[turns] == STARTS], begins])
    new = _started(view, starts, found, status[starts] != STARTS)
    reservations = tuple(
        Reservation(int(jobs.number[r]), tuple(found.given[r].tolist()))
        for r in turns[status[turns] == k.HOLDS].tolist()
        if len(found.given[r])
    )
    rest = np.ones(len(jobs), dtype=bool)
    hosts = lists.hosts[status[lists.hosts] == STAYS]
    rest[hosts] = rest[turns] = False
    others = np.flatnonzero(rest)
    order = np.concatenate([hosts, turns, others[np.argsort(position[others], kind="stable")]])
    everybody = not len(reasons) and not len(turns)
    return Plan(
        _joined(kept, new), jobs.number[order], reasons=reasons, valid_until_s=until_s, settled=everybody,
        reservations=reservations,
    )  # fmt: skip


def _kept(view: View, rows: IntArray, guest: BoolArray) -> Groups:
    """The groups of these rows as they are, but for members that have ended and for who is a guest."""
    jobs = view.jobs
    row_of = np.full(len(view.running), -1, dtype=np.int64)  # of one member of each group
    row_of[jobs.running_group[rows]] = rows
    groups = np.flatnonzero(row_of >= 0)
    kept = view.running[groups] if len(groups) else NO_GROUPS
    if not view.running.single:
        at = np.minimum(np.searchsorted(jobs.number, kept.jobs), len(jobs) - 1)
        if not (jobs.number[at] == kept.jobs).all():
            gone = set(kept.jobs[jobs.number[at] != kept.jobs].tolist())
            kept = Groups.of(replace(g, members=tuple(m for m in g.members if m.job not in gone)) for g in kept)
    flags = guest[row_of[groups]]
    return Groups(
        kept.jobs, kept.gpus, kept.first_gpu, kept.first_job, kept.gate, kept.details, flags if flags.any() else None
    )  # fmt: skip


def _started(view: View, rows: IntArray, found: k.WalkJobs, guest: BoolArray) -> Groups:
    """Groups of one member each for these rows; jobs that start with less memory than requested have that."""
    gpus = [found.given[r] for r in rows.tolist()]
    first = np.concatenate([[0], np.cumsum([len(one) for one in gpus])]).astype(np.int64)
    details, asked = None, view.jobs.gpu_memory_bytes[rows]
    allowed = found.amounts[rows, BYTES]
    if (allowed < asked).any():
        details = plain_details(len(rows))
        details[:, GPU_MEMORY_BYTES] = np.where(allowed < asked, allowed, 0.0)
    flags = guest if guest.any() else None
    return Groups(
        view.jobs.number[rows], np.concatenate(gpus) if gpus else NO_JOBS, first, details=details, guest=flags
    )  # fmt: skip


def _joined(one: Groups, two: Groups) -> Groups:
    """All groups of both; the second's have one member each and no gate."""
    if not len(two) or not len(one):
        return one if len(one) else two
    gate = None if one.gate is None else np.append(one.gate, np.zeros(len(two), dtype=np.int64))
    details = guest = None
    if one.details is not None or two.details is not None:
        details = np.vstack([plain_details(len(g.jobs)) if g.details is None else g.details for g in (one, two)])
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
