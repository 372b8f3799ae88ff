"""The input of an allocator of sizes: a pool a GPU kind, with its jobs, nodes and running allocation as arrays.

Sizes are chosen per pool, since a gang never spans GPU kinds. Within a pool a job is charged whole shares of nodes: the
largest of its shares of a node's GPUs, cores and memory. Jobs that fit by charge then fit in all three.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np

from plait.core.arrays import NO_JOBS, BoolArray, FloatArray, IntArray
from plait.core.compile_policy import compiled, run
from plait.core.goodput import THETA, Estimate, fewest_gpus
from plait.core.jobs import JobClass, JobTable
from plait.core.policy import View
from plait.goodput.batch import best_batch
from plait.goodput.execution_plans import PlanSpace, Speed
from plait.goodput.fixed_batch import UNIT, elastic_fixed, prior, scaled_to
from plait.goodput.jobs import GoodputJobs
from plait.goodput.throughput import fair_share, replica_cap, restart_factor, throughput
from plait.placement.packing import allowed_kinds, demands
from plait.policies.sizing.kernels import CLOCK_S, plain_pool

#: Cost of a pool without its kernel, tenths of a millisecond.
WORK = 2


@dataclass(frozen=True)
class Pool:
    """Nodes of one GPU kind and the jobs that run or may run there; J jobs, N nodes.

    Rows are in the order that breaks ties: due jobs (the longest wait first), then running ones, then
    by attained service, then by submission.
    """

    rows: IntArray
    """(J,): rows of `View.jobs`."""
    nodes: IntArray
    """(N,): numbers of the nodes in the cluster."""
    capacity: IntArray
    """(N,): GPUs of each node; 0 while it is down."""
    spare: FloatArray
    """(N, R): resources of each node (`Cluster.node_spare`), infinite where not a limit."""
    per_gpu: FloatArray
    """(J, R): what of them a GPU of the job takes along."""
    held: IntArray
    """(J, N): GPUs that each job has now."""
    least: IntArray
    """(J,): minimum GPUs with which the job runs."""
    most: IntArray
    """(J,): most GPUs that it may get now, by the user's limit, its batch and the sizes it has explored."""
    limit: IntArray
    """(J,): `most` once the job has explored all sizes."""
    weights: FloatArray
    """(J,): weight in the fitness; 0 for opportunistic jobs."""
    due: BoolArray
    """(J,): due jobs, which get GPUs before others because they waited long; only jobs that the nodes can hold."""
    fresh: BoolArray
    """(J,): jobs that started so recently that only due jobs may stop them."""
    kept: FloatArray
    """(J,): what is left of a speed-up when the job has to restart."""
    jobs: GoodputJobs | None
    """(J,): the jobs' own estimates; None if no job adapts or is elastic."""
    speed: Speed = throughput
    """The model of throughput."""

    def some(self, which: BoolArray) -> Pool:
        """The same nodes with only these of the jobs."""
        of_jobs = ("rows", "per_gpu", "held", "least", "most", "limit", "weights", "due", "fresh", "kept")
        jobs = None if self.jobs is None else self.jobs[which]
        return replace(self, **{name: getattr(self, name)[which] for name in of_jobs}, jobs=jobs)

    def with_kept(self, kept: FloatArray) -> Pool:
        """The same pool where a restart leaves `kept` (J,) of each speed-up."""
        pool = copy(self)  # cached values do not depend on it
        object.__setattr__(pool, "kept", kept)
        return pool

    @cached_property
    def total(self) -> int:
        """GPUs that are up."""
        return int(self.capacity.sum())

    @cached_property
    def per_node(self) -> int:
        """GPUs of the largest node; at least 1."""
        return max(1, int(self.capacity.max(initial=0)))

    @cached_property
    def alike(self) -> bool:
        """Whether all nodes that are up have as many GPUs; so too if none is up."""
        up = self.capacity[self.capacity > 0]
        return not len(up) or bool((up == up[0]).all())

    @cached_property
    def demanding(self) -> bool:
        """Whether GPUs of any job take cores or memory along."""
        return bool(self.per_gpu.any())

    @cached_property
    def share(self) -> FloatArray:
        """(J,): how many GPUs one GPU of the job is charged as, at least 1, by the node with most room for each."""
        up = self.capacity > 0
        if not self.demanding or not up.any():
            return np.ones(len(self.rows))
        room, per_gpu = (self.spare[up, :2] / self.capacity[up][:, None]).max(axis=0), self.per_gpu[:, :2]
        with np.errstate(divide="ignore", invalid="ignore"):
            parts = np.where(per_gpu > 0, per_gpu / room, 0.0)
        out: FloatArray = np.maximum(parts.max(axis=1), 1.0)
        return out

    @cached_property
    def plain(self) -> bool:
        """Whether every job is charged the GPUs that it has."""
        return not self.demanding or bool((self.share == 1.0).all())

    @cached_property
    def rigid(self) -> bool:
        """Whether every job has a single possible size."""
        return bool((self.least == self.limit).all())

    @cached_property
    def simple(self) -> bool:
        """Whether every job has a single possible size, is charged just that, and all are worth the same."""
        return self.jobs is None and not self.demanding and self.rigid

    @cached_property
    def some_first(self) -> bool:
        """Whether some jobs come first: due or fresh ones."""
        return bool(self.due.any() or self.fresh.any())

    @cached_property
    def running(self) -> tuple[IntArray, IntArray]:
        """(J,), (J,): nodes and GPUs that each job has now."""
        return (self.held > 0).sum(axis=1), self.held.sum(axis=1)

    def goodput(self, nodes: IntArray, gpus: IntArray) -> FloatArray:
        """Useful examples/s of each job on each configuration, shapes (J, C) or what broadcasts to it.

        Elastic jobs with a fixed batch count batches of `UNIT` examples. Jobs of one size, without a fit, or that
        cannot run within their limits of the batch are worth their GPUs.
        """
        if self.jobs is None and gpus.ndim == 2 and len(gpus) == len(self.rows):
            return gpus.astype(np.float64)
        shape = np.broadcast_shapes(nodes.shape, gpus.shape, (len(self.rows), 1))
        many = np.broadcast_to(gpus, shape)
        out = many.astype(np.float64)
        some = NO_JOBS if self.jobs is None else np.flatnonzero(self.adapts)
        if self.jobs is not None and len(some):
            apart = np.broadcast_to(nodes, shape)
            out[some] = best_batch(self.jobs[some], apart[some], many[some], speed=self.speed).goodput
        return out

    @cached_property
    def adapts(self) -> BoolArray:
        """(J,): jobs with a fit, of which more is known than that they use their GPUs."""
        if self.jobs is None:
            return np.zeros(len(self.rows), dtype=bool)
        able: BoolArray = self.jobs.fitted & (self.least <= self.jobs.most_gpus)
        return able

    @cached_property
    def base(self) -> FloatArray:
        """(J,): goodput on a fair share of the pool, as far as the job can use one; > 0."""
        counted = int((self.weights > 0).sum()) or len(self.rows)
        _, share = fair_share(self.total, counted, self.per_node)
        gpus = np.clip(share, self.least, self.limit)
        nodes = -(-gpus // self.per_node)
        base = self.goodput(nodes[:, None], gpus[:, None])[:, 0]
        return np.where(base > 0, base, 1.0)

    def worth(self, matrix: IntArray) -> FloatArray:
        """(J,): speed-ups times restart factors under an allocation (J, N) of GPUs."""
        gpus = matrix.sum(axis=1)
        nodes = gpus if self.jobs is None else (matrix > 0).sum(axis=1)  # else they make no difference
        speedup = self.goodput(nodes[:, None], gpus[:, None])[:, 0] / self.base
        return np.where((matrix == self.held).all(axis=1), speedup, speedup * self.kept)


def none_adapts(view: View) -> bool:
    """Whether no job adapts its batch or is elastic: otherwise its estimates may change sizes in any round."""
    jobs = view.jobs
    return not np.count_nonzero(jobs.batch_size) and not np.count_nonzero(jobs.min_gpus < jobs.max_gpus)


def staying(view: View) -> BoolArray:
    """(jobs,): whether each job continues where it runs: kept jobs, and jobs that share their GPUs."""
    known, kept, group_of = view.jobs.__dict__, view.keeps, view.jobs.running_group
    if known.get("_staying_for") is not kept:  # called often
        flags = kept.rows
        if kept.any and not view.running.single:
            groups = np.zeros(len(view.running) + 1, dtype=bool)  # one flag a group, and one for jobs in none
            groups[group_of[kept.rows]] = True
            flags = groups[group_of]
        known["_staying_for"], known["_staying"] = kept, flags
    stays: BoolArray = known["_staying"]
    return stays


def pools(
    view: View,
    *,
    due: BoolArray,
    restart_s: float,
    kinds: IntArray | None = None,
    include_staying: bool = False,
    speed: Speed = throughput,
) -> Iterator[Pool]:
    """The pools of a view in the order of GPU kinds; every job is in exactly one.

    Jobs that are `staying`, and their GPUs, are in none unless `include_staying`.

    `kinds` sets the pool of each; by default a running job stays in its pool, and a waiting one goes where it may run
    and demand is lowest. `due` is one flag a row of `view.jobs`; `restart_s` the cost of a restart for jobs without a
    measurement, seconds; `speed` the model of throughput.
    """
    cluster = view.cluster
    if _all_plain(view) and compiled(plain_pool, WORK):
        stays = np.zeros(len(view.jobs), dtype=bool) if include_staying else staying(view)
        pool = _plain_pool(view, due, stays, restart_s)
        if len(pool.rows):
            yield pool
        return
    held = held_gpus(view)
    waits = held.sum(axis=1) == 0
    queued = np.where(due & waits, view.jobs.pending_since_s, view.jobs.attained_gpu_s)
    order = np.lexsort((queued, waits, ~due))
    kind_of = _kinds(view, held, order, smallest(view)) if kinds is None else kinds
    columns = _Columns(
        view, restart_s, np.zeros(len(order), dtype=bool) if include_staying else staying(view), held, speed
    )
    order = order[~columns.stays[order]] if columns.some_stay else order
    for kind in range(len(cluster.kinds)):
        rows = order[kind_of[order] == kind] if len(cluster.kinds) > 1 else order
        if len(rows):
            yield columns.pool(rows, kind, held, due)


def _all_plain(view: View) -> bool:
    """Whether all nodes are of one kind, and no job shares GPUs, adapts, or takes cores or memory along."""
    plain = len(view.cluster.kinds) == 1 and view.running.single and none_adapts(view)
    return plain and not demands(view.jobs).any()


def _plain_pool(view: View, due: BoolArray, stays: BoolArray, restart_s: float) -> Pool:
    """The pool of all jobs that do not stay, in one go."""
    jobs, running, cluster, c = view.jobs, view.running, view.cluster, view.jobs.columns
    rows, capacity, held, least, most, weights, line, fresh, kept = run(
        plain_pool, jobs.number, view.now_s, float(restart_s), stays, due, jobs.running_group, running.gpus,
        running.first_gpu, cluster.gpu_node, cluster.node_gpus, cluster.node_up, c["phase"], c["job_class"],
        c["weight"], c["submit_s"], c["starts"], c["last_start_s"], c["pending_since_s"], c["attained_gpu_s"],
        c["goodput"], c["min_gpus"], c["max_gpus"],
    )  # fmt: skip
    nodes, nothing = np.arange(len(cluster.nodes)), np.zeros((len(rows), cluster.node_spare.shape[1]))
    return Pool(
        rows, nodes, capacity, cluster.node_spare, nothing, held, least, most, most, weights, line, fresh, kept, None
    )


def every_pool(view: View, *, due: BoolArray, restart_s: float, speed: Speed = throughput) -> Iterator[Pool]:
    """One pool a GPU kind, each with all jobs of the view, in order; jobs that are `staying` have weight 0.

    `due` is one flag a row; `restart_s` is the cost of a restart for jobs that have not measured it, seconds.
    """
    held, rows = held_gpus(view), np.arange(len(view.jobs))
    columns = _Columns(view, restart_s, staying(view), held, speed)
    for kind in range(len(view.cluster.kinds)):
        yield columns.pool(rows, kind, held, due)


def with_shared_fits(view: View) -> View:
    """The view in which each job that adapts has the fit of its model that comes from most GPUs, of all kept jobs.

    Where nodes have several kinds of GPUs, and for jobs without a model, nothing is shared: a fit is of one kind.
    """
    jobs, columns = view.jobs, view.jobs.columns
    if len(view.cluster.kinds) > 1 or not len(jobs):
        return view
    estimates, known = columns["goodput"], jobs.memo.setdefault("models of jobs", {})
    profiled, adapts = estimates[:, Estimate.PROFILED_GPUS], columns["batch_size"] > 0  # others: fits of another unit
    best: dict[str, int] = {}
    for number in np.flatnonzero(adapts & np.isfinite(estimates[:, :THETA].sum(axis=1)) & (profiled > 0)).tolist():
        if number not in known:
            with suppress(LookupError):  # a request is not kept for ever after its job has ended
                known[number] = jobs.subset(np.array([number])).spec(0).model
        model = known.get(number)
        if model and (model not in best or profiled[number] >= profiled[best[model]]):
            best[model] = number
    shared = estimates.copy()
    fit = [*range(THETA), int(Estimate.PROFILED_GPUS)]
    for row in np.flatnonzero(jobs.batch_size > 0).tolist():
        number, source = int(jobs.number[row]), best.get(jobs.spec(row).model)
        if source is not None and not profiled[number] >= profiled[source]:  # NaN: no fit of its own
            shared[number, fit] = estimates[source, fit]
    return replace(view, jobs=jobs.subset(jobs.number, goodput=shared))


def held_gpus(view: View) -> IntArray:
    """(jobs, nodes): GPUs that each job of the view has; of several that share GPUs the first has them."""
    jobs, running, cluster = view.jobs, view.running, view.cluster
    held = np.zeros((len(jobs), len(cluster.nodes)), dtype=np.int64)
    group_of = jobs.running_group
    rows = np.flatnonzero(group_of >= 0)
    if not len(rows):
        return held
    if not running.single:
        rows = rows[np.unique(group_of[rows], return_index=True)[1]]
    owner = np.full(len(running), -1, dtype=np.int64)
    owner[group_of[rows]] = rows
    of_gpu, node = owner.repeat(running.gpu_count()), cluster.gpu_node[running.gpus]
    if len(rows) < len(running):  # a group whose jobs have all ended holds no GPUs
        mine = of_gpu >= 0
        of_gpu, node = of_gpu[mine], node[mine]
    np.add.at(held, (of_gpu, node), 1)
    return held


class _Columns:
    """Columns over all jobs of a view, cut to pools."""

    def __init__(self, view: View, restart_s: float, stays: BoolArray, held: IntArray, speed: Speed) -> None:
        self.speed = speed
        jobs = view.jobs
        self.stays, self.some_stay = stays, bool(stays.any())
        self.view = view
        asked = demands(jobs)
        self.demanding = bool(asked.any())
        self.per_gpu = asked if self.demanding else np.zeros((len(jobs), view.cluster.node_spare.shape[1]))
        self.taken: IntArray = held[stays].sum(axis=0)
        self.taken_along = np.zeros_like(view.cluster.node_spare)
        if self.some_stay and self.demanding:
            for row in np.flatnonzero(stays).tolist():  # a job that shares GPUs takes its own part of cores and memory
                group_of = int(jobs.running_group[row])
                gpus = view.running.gpus[view.running.first_gpu[group_of] : view.running.first_gpu[group_of + 1]]
                np.add.at(self.taken_along, view.cluster.gpu_node[gpus], self.per_gpu[row])
        self._stand(restart_s)
        self.most = self.limit = np.maximum(jobs.max_gpus, jobs.min_gpus)
        self.least = smallest(view)
        self.jobs = None if none_adapts(view) else goodput_jobs(jobs, max(1, int(view.cluster.node_gpus.max())))
        if self.jobs is not None:
            self._limit_by_batch(self.jobs)

    def _stand(self, restart_s: float) -> None:
        """Compute fresh jobs, the part of each speed-up that a restart leaves, and weights."""
        jobs, stays, now_s = self.view.jobs, self.stays, self.view.now_s
        measured = jobs.goodput[:, Estimate.RESTART_S]
        delta = np.where(np.isnan(measured), restart_s, measured)
        guest = (jobs.job_class == int(JobClass.OPPORTUNISTIC)) | stays
        self.weights = np.where(guest, 0.0, np.maximum(jobs.weight, 0.0))
        self.fresh = jobs.running & (now_s - jobs.last_start_s < 2 * delta - CLOCK_S) & (self.weights > 0)
        self.kept = restart_factor(jobs.age_s, np.maximum(jobs.starts - 1, 0), delta, ran=jobs.starts > 0)

    def _limit_by_batch(self, known: GoodputJobs) -> None:
        """Limit jobs that adapt to what their batch allows, and all to twice what they have explored."""
        jobs, adapts = self.view.jobs, self.view.jobs.batch_size > 0
        able = np.maximum(np.minimum(jobs.max_gpus, known.most_gpus), jobs.min_gpus)
        self.limit = np.where(adapts, able, self.limit)
        profiled = np.nan_to_num(jobs.goodput[:, Estimate.PROFILED_GPUS], nan=0.0).astype(np.int64)
        cap = replica_cap(profiled, known.most, known.least_local)
        cap = np.where(adapts, cap, 2 * np.maximum(profiled, jobs.gpus))  # a user has tried what is requested
        self.most = np.clip(cap, jobs.min_gpus, self.limit)

    def pool(self, rows: IntArray, kind: int, held: IntArray, due: BoolArray) -> Pool:
        """These rows on the nodes of a kind; `held` and `due` are of all jobs and nodes."""
        cluster = self.view.cluster
        nodes = np.flatnonzero(cluster.node_kind == kind)
        capacity = np.where(cluster.node_up[nodes], cluster.node_gpus[nodes] - self.taken[nodes], 0)
        spare = cluster.node_spare[nodes] - self.taken_along[nodes]
        least, line = self.least[rows, kind], due[rows]
        line &= capacity.sum() >= least
        if self.demanding:
            for j in np.flatnonzero(line & self.per_gpu[rows].any(axis=1)).tolist():
                line[j] = room(capacity, spare, self.per_gpu[rows[j]]).sum() >= least[j]
        known = None if self.jobs is None else self.jobs[rows].on(cluster.kind_gpu_memory_bytes[kind])
        return Pool(
            rows, nodes, capacity, spare, self.per_gpu[rows], held[rows[:, None], nodes], least,
            np.maximum(self.most[rows], least), np.maximum(self.limit[rows], least), self.weights[rows], line,
            self.fresh[rows], self.kept[rows], known, self.speed,
        )  # fmt: skip


def smallest(view: View) -> IntArray:
    """(jobs, kinds): minimum GPUs of a kind with which each job runs: where it has plans, those whose memory suffices.

    More GPUs than there are, where no number of a kind that it may have does.
    """
    cluster, jobs, limit = view.cluster, view.jobs, view.jobs.max_gpus
    least = np.tile(jobs.min_gpus[:, None], len(cluster.kinds))
    for row in np.flatnonzero(jobs.parameters > 0).tolist():
        limits = jobs.limits(row)
        for kind, memory in enumerate(cluster.kind_gpu_memory_bytes.tolist()):
            fewest = fewest_gpus(limits, memory)
            possible = fewest is not None and fewest <= max(limit[row], least[row, kind])
            least[row, kind] = max(least[row, kind], fewest) if possible else cluster.gpus + 1
    return least


def goodput_jobs(jobs: JobTable, per_node: int) -> GoodputJobs:
    """All jobs for the models of goodput; jobs of one size have no fit and a batch of one a GPU.

    Elastic jobs with a fixed batch have the fit of what they measured, and before that the prior, at the pace that they
    have at the requested size on nodes of `per_node` GPUs.
    """
    known, adapts, fixed = jobs.goodput, jobs.batch_size > 0, elastic_fixed(jobs)
    if not (adapts | fixed).any():
        return GoodputJobs.without_fit(jobs.max_gpus)
    noise = known[:, [Estimate.SQR, Estimate.VAR]]
    sqr, var = np.where(np.isnan(noise.sum(axis=1, keepdims=True)), (0.0, 1.0), noise).T
    theta = np.where((adapts | fixed)[:, None], known[:, :THETA], np.nan)
    if fixed.any():
        guessed = fixed & np.isnan(theta.sum(axis=1))
        one_s = np.where(np.isnan(jobs.iteration_s), 1.0, jobs.iteration_s)
        theta[guessed] = scaled_to(prior(), one_s[guessed], jobs.gpus[guessed], per_node)
        sqr, var = np.where(fixed, 1.0, sqr), np.where(fixed, 0.0, var)
    columns = (jobs.batch_size, jobs.max_batch_size, jobs.min_local_batch, jobs.max_local_batch)
    of_fixed = (UNIT, UNIT, 1, UNIT)
    initial, most, least_local, most_local = (
        np.where(adapts, column, np.where(fixed, value, 1)) for column, value in zip(columns, of_fixed, strict=True)
    )
    most = np.where(adapts | fixed, most, jobs.max_gpus)
    space = PlanSpace.of(partial(getattr, jobs))
    return GoodputJobs(theta, sqr, var, initial, most, least_local, most_local, jobs.accumulates != 0, space)


def _kinds(view: View, held: IntArray, order: IntArray, least: IntArray) -> IntArray:
    """(jobs,): the kind of GPU whose pool each job is in; `least` (jobs, kinds) as `smallest` gives it."""
    cluster, jobs = view.cluster, view.jobs
    out = np.zeros(len(jobs), dtype=np.int64)
    if len(cluster.kinds) == 1:
        return out
    up = np.bincount(cluster.node_kind, np.where(cluster.node_up, cluster.node_gpus, 0), len(cluster.kinds))
    masks = np.broadcast_to(allowed_kinds(view), len(jobs)).tolist()
    asked = np.zeros(len(cluster.kinds))
    running = held.sum(axis=1) > 0
    out[running] = cluster.node_kind[held[running].argmax(axis=1)]
    np.add.at(asked, out[running], jobs.gpus[running])
    able = _able(view)
    for row in order[~running[order]].tolist():
        may = [kind for kind in range(len(cluster.kinds)) if masks[row] >> kind & 1] or [0]
        fits = [kind for kind in may if able[row, kind] >= least[row, kind]] or may
        out[row] = min(fits, key=lambda kind: ((asked[kind] + jobs.gpus[row]) / max(up[kind], 1), kind))
        asked[out[row]] += jobs.gpus[row]
    return out


def _able(view: View) -> IntArray:
    """(jobs, kinds): GPUs of the largest gang of the job that the nodes that are up hold, with its cores and memory."""
    cluster, jobs = view.cluster, view.jobs
    gpus = np.where(cluster.node_up, cluster.node_gpus, 0)
    able = np.zeros((len(jobs), len(cluster.kinds)), dtype=np.int64)
    for kind in range(len(cluster.kinds)):
        able[:, kind] = gpus[cluster.node_kind == kind].sum()
    per_gpu = np.broadcast_to(demands(jobs), (len(jobs), cluster.node_spare.shape[1]))
    for row in np.flatnonzero(per_gpu.any(axis=1)).tolist():
        able[row] = np.bincount(cluster.node_kind, room(gpus, cluster.node_spare, per_gpu[row]), len(cluster.kinds))
    return able


def room(free: IntArray, spare: FloatArray, per_gpu: FloatArray) -> IntArray:
    """(N,): GPUs of a job that fit on each node next to the present jobs; `per_gpu` is the demand of one."""
    if not per_gpu.any():
        return np.maximum(free, 0)
    fits = free.astype(np.float64)
    for resource in np.flatnonzero(per_gpu > 0):
        fits = np.minimum(fits, (spare[:, resource] + 1e-6) / per_gpu[resource])
    return np.maximum(np.floor(fits), 0).astype(np.int64)
