"""The entry point of grouping: which jobs share GPUs, by which method, and a bound on the distance to the optimum."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Literal, get_args

import numpy as np

from plait.core.errors import InputError, suggest
from plait.grouping.algorithm1 import MOST_NODES, Bucket, algorithm1, consecutive
from plait.grouping.cache import GroupingCache
from plait.grouping.exact.classes import MOST_KINDS, exact_groups, fewest_is_known, kinds_of_groups, round_robin
from plait.grouping.exact.programs import HAVE_HIGHS
from plait.grouping.local_search import MOST_TO_IMPROVE, improved
from plait.grouping.model.bucket import OBJECTIVES, Model, Objective, Options
from plait.grouping.model.candidates import Candidates
from plait.grouping.model.guard import apply_guard
from plait.grouping.model.memo import Known
from plait.grouping.model.result import Grouping, assembled
from plait.grouping.model.times import ORDERS, Order

Method = Literal["auto", "blossom", "exact", "greedy", "consecutive"]

#: Exact grouping pays for at most so many kinds, and at least so many jobs for each eight kinds.
EXACT_CLASSES, EXACT_JOBS = 32, 200


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
    now: Sequence[int] | None = None,
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
    gpus_available  merge only while the groups need more GPUs than that, cheapest merges first (none or
                    less than none: as far as it goes); None (the paper) merges whatever is matched
    memory_limit_bytes  most GPU memory on each GPU that members of a group may hold together
    improve         local search after the rounds; None: yes if the method is "auto"
    now             the group that each job is in at present, -1 for none: of equal jobs, present sharers stay together.
                    It changes who is in which group, and not how good the groups are

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
    checked(options, jobs, method)
    cache = GroupingCache() if cache is None else cache
    buckets = buckets_of(jobs, options, cache)
    need = int(jobs.gpus.sum())
    if max_jobs == 1 or (gpus_available is not None and need <= gpus_available):
        fit = f"all jobs fit alone, {need} GPUs of {gpus_available}"
        return assembled(buckets, "alone", "groups of one were requested" if max_jobs == 1 else fit, 0, now)
    why = _choose(buckets, method)
    if method == "consecutive":
        consecutive(buckets, gpus_available)
    else:
        whole = [b for b in buckets if gpus_available is None and b.method == "exact" and fewest_is_known(b.model)]
        algorithm1([b for b in buckets if b not in whole], gpus_available, cache)
        for bucket in whole:
            bucket.nodes = round_robin(bucket.model.counts, -(-len(bucket.jobs) // max_jobs))
    for bucket in buckets:
        _better(bucket, method == "auto" if improve is None else improve, cache)
    split = sum(apply_guard(bucket) for bucket in buckets)
    return assembled(buckets, "+".join(sorted({b.method for b in buckets})), why, split, now)


def _choose(buckets: Sequence[Bucket], method: Method) -> str:
    """Set the method of each bucket; return a sentence with the reason."""
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
            reasons.append(f"{about}: {method}, as requested")
        if jobs > MOST_NODES and bucket.method in ("blossom", "greedy"):
            reasons[-1] += f", in parts of at most {MOST_NODES}"
        bucket.greedy = bucket.method == "greedy" or (bucket.method == "exact" and jobs > MOST_NODES)
    return "; ".join(reasons)


def _better(bucket: Bucket, search: bool, cache: GroupingCache) -> None:
    """Replace the groups by exact grouping or local search; as many of them."""
    if bucket.method == "exact":
        found = exact_groups(bucket.model, bucket.nodes, cache)
        bucket.nodes, bucket.bound = found.nodes, (len(found.nodes), found.bound)
    elif search and len(bucket.nodes) <= MOST_TO_IMPROVE:
        nodes = improved(bucket.model, bucket.nodes, cache)
        if bucket.rows is None or nodes != sorted(bucket.nodes):
            bucket.nodes, bucket.rows = nodes, None


def checked(options: Options, jobs: Candidates, method: str = "auto") -> None:
    """Raise `InputError` for invalid `options` or `method`, or options that do not fit `jobs`."""
    for name, value, known in (
        ("method", method, get_args(Method)),
        ("objective", options.objective, OBJECTIVES),
        ("order", options.order, ORDERS),
    ):
        if value not in known:
            raise InputError(f"unknown {name} {value!r}; {suggest(value, known)}")
    resources = jobs.stage_s.shape[1]
    most = resources if jobs.shares is None else 2 * resources
    if not 1 <= options.max_jobs <= most:
        why = "the number of resources (twice that with shares)" if jobs.shares is None else "twice the resources"
        raise InputError(f"max_jobs must be 1 to {most}, {why}, got {options.max_jobs}")
    if not options.interference or not all(f > 0 and math.isfinite(f) for f in options.interference):
        raise InputError(f"interference must be positive factors for 1, 2, ... jobs, got {options.interference}")
    if options.guard is not None and not options.guard > -1:
        raise InputError(f"guard must be a margin > -1, or None for no guard, got {options.guard}")
    if not options.memory_limit_bytes >= 0:
        raise InputError(f"memory_limit_bytes must be >= 0, got {options.memory_limit_bytes}")


def buckets_of(jobs: Candidates, options: Options, cache: GroupingCache) -> list[Bucket]:
    """`jobs` by GPU count, in order of first appearance, each bucket modelled under `options`."""
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
        known = cache.remember(("known", model.key), partial(Known, model))
        buckets.append(Bucket(gpus, rows, model, known, model.nodes_of_jobs()))
    return buckets
