"""The worth of every pair of nodes as one group."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from plait.core.arrays import FloatArray
from plait.grouping.group import checked
from plait.grouping.model.bucket import Model, Objective, Options
from plait.grouping.model.candidates import Candidates
from plait.grouping.model.times import Order


def pair_weights(
    jobs: Candidates,
    nodes: Sequence[Sequence[int]] | None = None,
    max_jobs: int = 4,
    objective: Objective = "efficiency",
    *,
    order: Order = "best",
    idle_slots: bool = True,
    interference: tuple[float, ...] = (1.0,),
    guard: float | None = None,
    memory_limit_bytes: float | None = None,
) -> FloatArray:
    """Objective of the union of every two nodes, shape (m, m): the edge weights of Algorithm 1 (Muri, section 4.2).

    `nodes` are groups of rows of `jobs`, None = each job alone. 0 on the diagonal and for nodes that may not join: of
    different GPU counts, together more than `max_jobs`, above the memory limit or the shares, or split by the `guard`.
    Options as in `group`. Raises `InputError`.

    >>> stages = np.array([[2.0, 1.0], [2.0, 1.0], [1.0, 2.0]])
    >>> pair_weights(Candidates(stages, stages.sum(axis=1), np.ones(3)), max_jobs=2)
    array([[0.  , 0.75, 1.  ],
           [0.75, 0.  , 1.  ],
           [1.  , 1.  , 0.  ]])
    """
    limit = float("inf") if memory_limit_bytes is None else float(memory_limit_bytes)
    options = Options(max_jobs, objective, order, idle_slots, interference, guard, limit)
    checked(options, jobs)
    groups = [(row,) for row in range(len(jobs))] if nodes is None else [tuple(node) for node in nodes]
    if not groups:
        return np.zeros((0, 0))
    model = Model.of(options, jobs.stage_s, jobs.iteration_s, jobs.memory_bytes, jobs.shares)
    weight = model.weights([tuple(sorted(model.of_job[list(g)].tolist())) for g in groups], guarded=True)
    gpus = jobs.gpus[[g[0] for g in groups]]
    weight[gpus[:, None] != gpus] = 0.0
    np.fill_diagonal(weight, 0.0)
    return weight
