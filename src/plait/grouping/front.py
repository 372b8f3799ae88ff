"""The one front of grouping: which of these jobs share GPUs, by which method, and how far from the best it may be."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from plait.core.arrays import BoolArray, FloatArray, IntArray
from plait.core.errors import InputError, suggest
from plait.grouping.bound import bound_of
from plait.grouping.cache import GroupingCache
from plait.grouping.classes import MOST_KINDS, dealt, exact_groups, fewest_is_known, kinds_of_groups
from plait.grouping.guard import apply_guard
from plait.grouping.improve import MOST_TO_IMPROVE, improved
from plait.grouping.interleave import ORDERS, Order
from plait.grouping.model import OBJECTIVES, Model, Objective, Options
from plait.grouping.programs import HAVE_HIGHS
from plait.grouping.rounds import MOST_NODES, Bucket, algorithm1, consecutive

Method = Literal["auto", "blossom", "exact", "greedy", "consecutive"]

#: Exact grouping pays for at most so many kinds, and at least so many jobs for each eight kinds.
EXACT_CLASSES, EXACT_JOBS = 32, 200


@dataclass(frozen=True, eq=False)
class Candidates:
    """The jobs to group, one a row, in priority order.

    `stage_s` (n, k) seconds of each stage alone; `iteration_s` (n,) of the whole iteration alone; `gpus` (n,);
    `memory_bytes` (n,) of GPU memory on each GPU, None = not limited; `shares` (n, k) the part of each resource that a
    stage needs, in (0, 1], None = all of it (see `interleave`). Raises `InputError` that names the row.
    """

    stage_s: FloatArray
    iteration_s: FloatArray
    gpus: IntArray
    memory_bytes: FloatArray | None = None
    shares: FloatArray | None = None

    def __post_init__(self) -> None:
        """Refuse what cannot be profiles."""
        stage = np.ascontiguousarray(self.stage_s, dtype=np.float64)
        if stage.ndim != 2 or stage.shape[1] == 0:
            raise InputError(f"stage_s must have shape (jobs, resources), got {stage.shape}")
        gpus = np.asarray(self.gpus)
        columns = {
            "stage_s": stage,
            "iteration_s": np.asarray(self.iteration_s, dtype=np.float64),
            "gpus": gpus.astype(np.int64),
        }
        if self.memory_bytes is not None:
            columns["memory_bytes"] = np.asarray(self.memory_bytes, dtype=np.float64)
        if self.shares is not None:
            columns["shares"] = np.asarray(self.shares, dtype=np.float64)
        for name, column in columns.items():
            wanted = stage.shape if name in ("stage_s", "shares") else stage.shape[:1]
            if column.shape != wanted:
                raise InputError(f"{name} must have shape {wanted}, as for {len(stage)} jobs, got {column.shape}")
            object.__setattr__(self, name, column)
        self._check()

    def _check(self) -> None:
        stage, alone, memory, shares = self.stage_s, self.iteration_s, self.memory_bytes, self.shares
        total: FloatArray = stage.sum(axis=1)
        _need(
            (stage.min(axis=1) >= 0) & np.isfinite(total) & (total > 0),
            stage,
            "stage_s must be finite, >= 0 and not all 0 seconds",
        )
        _need((alone > 0) & np.isfinite(alone), alone, "iteration_s must be a positive number of seconds")
        _need(self.gpus >= 1, self.gpus, "gpus must be at least 1")
        if memory is not None:
            _need((memory >= 0) & np.isfinite(memory), memory, "memory_bytes must be finite and >= 0")
        if shares is not None:
            _need((shares.min(axis=1) > 0) & (shares.max(axis=1) <= 1), shares, "shares must be in (0, 1]")

    def __len__(self) -> int:
        """How many jobs."""
        return len(self.gpus)


def _need(fine: BoolArray, column: FloatArray | IntArray, rule: str) -> None:
    if not fine.all():
        row = int(np.argmin(fine))
        raise InputError(f"row {row}: {rule}, got {column[row].tolist()}")


@dataclass(frozen=True)
class Grouping:
    """Who shares GPUs with whom; everything by group, groups in order of their best job.

    `groups` rows of the candidates, best priority first; `turns` the turn of each member, the first's is 0;
    `iteration_s` T with interference (solo time for a job alone); `efficiency` gamma, formula (4), and `speedup`
    summed normalised throughput. `total` is the objective over all groups and `bound` no grouping into as many
    groups can exceed, by `bound_kind`. `method` is what was used, `why` says so in a sentence, `split` counts groups
    that the guard took apart.
    """

    groups: tuple[tuple[int, ...], ...]
    turns: tuple[tuple[int, ...], ...]
    iteration_s: tuple[float, ...]
    efficiency: tuple[float, ...]
    speedup: tuple[float, ...]
    total: float
    bound: float
    bound_kind: str
    method: str
    why: str
    split: int

    @property
    def gap(self) -> float:
        """How far below the bound, as a part of it; the truth is this or better."""
        return max(0.0, 1.0 - self.total / self.bound) if self.bound > 0 else 0.0


def group(
    jobs: Candidates,
    max_jobs: int = 4,
    objective: Objective = "efficiency",
    method: Method = "auto",
    *,
    order: Order = "best",
    idle_slots: bool = True,
    interference: tuple[float, ...] = (1.0,),
    guard: float | None = 0.0,
    gpus_available: int | None = None,
    memory_limit_bytes: float | None = None,
    improve: bool | None = None,
    cache: GroupingCache | None = None,
) -> Grouping:
    """Group jobs of equal GPU count, at most `max_jobs` together (Muri, section 4 and Algorithm 1).

    method          "blossom": ceil(log2 max_jobs) rounds of maximum-weight matching, as published
                    "greedy": the same with greedy matching and exchanges
                    "exact": the best groups of up to max_jobs jobs, for few kinds of jobs (needs `plait[sim]`)
                    "consecutive": no matching, the next max_jobs jobs in priority order
                    "auto": chosen for each GPU count, see `Grouping.why`
    objective       "efficiency" (gamma) or "speedup" (summed normalised throughput)
    order           stage order of a group; "worst" is the paper's ablation
    interference    slow-down of a group of 1, 2, ... jobs beyond its schedule; the last counts for larger ones
    guard           split groups whose speedup is <= 1 + guard; None leaves them
    gpus_available  merge only while the groups ask for more GPUs than that, cheapest merges first; None (the
                    paper) merges whatever is matched
    memory_limit_bytes  most GPU memory on each GPU that members of a group may hold together
    improve         local search after the rounds; None: yes if the method is "auto"

    The result depends on the jobs and their order of priority only: equal jobs are interchangeable, and of equal ones
    the one with the better priority joins the group that holds the best priority. Raises `InputError`.

    >>> stages = np.array([[2.0, 1.0], [2.0, 1.0], [1.0, 2.0], [1.0, 2.0]])
    >>> found = group(Candidates(stages, stages.sum(axis=1), np.ones(4)), max_jobs=2)
    >>> found.groups, found.turns, found.iteration_s, found.total
    (((0, 2), (1, 3)), ((0, 1), (0, 1)), (3.0, 3.0), 2.0)
    """
    options = Options(
        max_jobs,
        objective,
        order,
        idle_slots,
        interference,
        guard,
        float("inf") if memory_limit_bytes is None else float(memory_limit_bytes),
    )
    _check_options(options, method, jobs, gpus_available)
    cache = GroupingCache() if cache is None else cache
    buckets = _buckets(jobs, options)
    need = int(jobs.gpus.sum())
    if max_jobs == 1 or (gpus_available is not None and need <= gpus_available):
        fit = f"all jobs fit alone, {need} GPUs of {gpus_available}"
        return _assemble(jobs, buckets, "alone", "groups of one were asked for" if max_jobs == 1 else fit, 0)
    why = _choose(buckets, method)
    if method == "consecutive":
        consecutive(buckets, gpus_available)
    else:
        whole = [b for b in buckets if gpus_available is None and b.method == "exact" and fewest_is_known(b.model)]
        algorithm1([b for b in buckets if b not in whole], gpus_available, cache)
        for bucket in whole:
            bucket.nodes = dealt(bucket.model.counts, -(-len(bucket.jobs) // max_jobs))
    for bucket in buckets:
        _better(bucket, method == "auto" if improve is None else improve, cache)
    split = sum(apply_guard(bucket) for bucket in buckets)
    return _assemble(jobs, buckets, "+".join(sorted({b.method for b in buckets})), why, split)


def _choose(buckets: Sequence[Bucket], method: Method) -> str:
    """Set the method of each bucket; a sentence that says why."""
    reasons = []
    for bucket in buckets:
        jobs, classes = len(bucket.jobs), len(bucket.model.counts)
        about = f"{jobs} jobs of {classes} kinds on {bucket.gpus} GPUs"
        if method == "auto":
            few = classes <= EXACT_CLASSES and jobs >= EXACT_JOBS * max(1, classes // 8)
            bucket.method = "exact" if few and HAVE_HIGHS else "greedy" if jobs > MOST_NODES else "blossom"
            reason = {"exact": "few kinds of many jobs", "greedy": "too many to match exactly"}
            reasons.append(f"{about}: {bucket.method}, {reason.get(bucket.method, 'small enough to match exactly')}")
        elif method == "exact" and kinds_of_groups(classes, bucket.model.options.max_jobs) > MOST_KINDS:
            bucket.method = "greedy" if jobs > MOST_NODES else "blossom"
            reasons.append(f"{about}: {bucket.method}, too many kinds for exact")
        else:
            bucket.method = method
            reasons.append(f"{about}: {method}, as asked")
        if jobs > MOST_NODES and bucket.method in ("blossom", "greedy"):
            reasons[-1] += f", in parts of at most {MOST_NODES}"
        bucket.greedy = bucket.method == "greedy" or (bucket.method == "exact" and jobs > MOST_NODES)
    return "; ".join(reasons)


def _better(bucket: Bucket, search: bool, cache: GroupingCache) -> None:
    """Exact grouping, or local search, in place of the groups there are; as many of them."""
    if bucket.method == "exact":
        found = exact_groups(bucket.model, bucket.nodes, cache)
        bucket.nodes, bucket.bound = found.nodes, (len(found.nodes), found.bound)
    elif search and len(bucket.nodes) <= MOST_TO_IMPROVE:
        nodes = improved(bucket.model, bucket.nodes, cache)
        if bucket.rows is None or nodes != sorted(bucket.nodes):
            bucket.nodes, bucket.rows = nodes, None


def _check_options(options: Options, method: str, jobs: Candidates, gpus_available: int | None) -> None:
    for name, value, known in (
        ("method", method, get_args(Method)),
        ("objective", options.objective, OBJECTIVES),
        ("order", options.order, ORDERS),
    ):
        if value not in known:
            raise InputError(f"unknown {name} {value!r}; {suggest(value, known)}")
    resources = jobs.stage_s.shape[1]
    if options.max_jobs < 1 or (options.max_jobs > resources and jobs.shares is None):
        raise InputError(
            f"max_jobs must be 1 to {resources}, the number of resources (more needs shares), got {options.max_jobs}"
        )
    if not options.interference or not all(f > 0 and math.isfinite(f) for f in options.interference):
        raise InputError(f"interference must be positive factors for 1, 2, ... jobs, got {options.interference}")
    if options.guard is not None and not options.guard > -1:
        raise InputError(f"guard must be a margin > -1, or None for no guard, got {options.guard}")
    if gpus_available is not None and gpus_available < 0:
        raise InputError(f"gpus_available must be >= 0, got {gpus_available}")
    if not options.memory_limit_bytes >= 0:
        raise InputError(f"memory_limit_bytes must be >= 0, got {options.memory_limit_bytes}")


def _buckets(jobs: Candidates, options: Options) -> list[Bucket]:
    """Jobs by GPU count, in order of first appearance."""
    buckets = []
    for gpus in dict.fromkeys(jobs.gpus.tolist()):
        rows = np.flatnonzero(jobs.gpus == gpus)
        model = Model.of(
            options,
            jobs.stage_s[rows],
            jobs.iteration_s[rows],
            None if jobs.memory_bytes is None else jobs.memory_bytes[rows],
            None if jobs.shares is None else jobs.shares[rows],
        )
        buckets.append(Bucket(gpus, rows, model, model.nodes_of_jobs()))
    return buckets


def _assemble(jobs: Candidates, buckets: Sequence[Bucket], method: str, why: str, split: int) -> Grouping:
    """Classes back to jobs, and what is known of each group."""
    found: list[tuple[tuple[int, ...], tuple[int, ...], float, float, float]] = []
    total, bound, kinds = 0.0, 0.0, []
    for bucket in buckets:
        model = bucket.model
        values = model.values(bucket.nodes)
        total += math.fsum(values.value.tolist())
        most, kind = bound_of(bucket)
        bound += most
        kinds.append(kind)
        seats = expand(bucket)
        for g, seated in enumerate(seats):
            turns = model.turns(bucket.nodes[g], int(values.turn_row[g]))
            both = sorted(zip(seated, turns, strict=True))
            start = both[0][1]
            time = float(values.iteration_s[g])
            rows = tuple(int(bucket.jobs[position]) for position, _ in both)
            busy = float(jobs.stage_s[list(rows)].sum()) / (model.resources * time)
            found.append(
                (
                    rows,
                    tuple((turn - start) % model.resources for _, turn in both),
                    time,
                    min(busy, 1.0),
                    float(values.speedup[g]),
                )
            )
    found.sort()
    return Grouping(
        groups=tuple(f[0] for f in found),
        turns=tuple(f[1] for f in found),
        iteration_s=tuple(f[2] for f in found),
        efficiency=tuple(f[3] for f in found),
        speedup=tuple(f[4] for f in found),
        total=total,
        bound=max(bound, total),
        bound_kind="+".join(dict.fromkeys(kinds)),
        method=method,
        why=why,
        split=split,
    )


def expand(bucket: Bucket) -> list[tuple[int, ...]]:
    """Positions of the jobs in each node, in the order of its classes.

    Jobs in priority order take a seat of their class in the group that was opened first, and open one only if
    no open group wants them, so that the best priorities come together.
    """
    if bucket.rows is not None:
        of_job = bucket.model.of_job
        return [tuple(sorted(group, key=lambda i: (of_job[i], i))) for group in bucket.rows]
    count = len(bucket.model.counts)
    unopened: list[deque[int]] = [deque() for _ in range(count)]
    wanted: list[deque[int]] = [deque() for _ in range(count)]
    for g, node in enumerate(bucket.nodes):
        for c in dict.fromkeys(node):
            unopened[c].append(g)
    seats: list[list[tuple[int, int]]] = [[] for _ in bucket.nodes]
    for position, c in enumerate(bucket.model.of_job.tolist()):
        if wanted[c]:
            g = wanted[c].popleft()
        else:
            g = unopened[c].popleft()
            while seats[g]:
                g = unopened[c].popleft()
            others = list(bucket.nodes[g])
            others.remove(c)
            for other in others:
                wanted[other].append(g)
        seats[g].append((c, position))
    return [tuple(position for _, position in sorted(seated)) for seated in seats]
