"""Goodput relative to a fair share of the cluster, and what a restart costs (Pollux, OSDI'21, section 4.2)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from plait.core.arrays import BoolArray, FloatArray, IntArray


def fair_share(gpus: int, jobs: int, gpus_per_node: int, *, one_node: bool = False) -> tuple[int, int]:
    """(N_f, K_f): the share of each of `jobs` jobs in `gpus` GPUs, rounded up, on as few nodes as hold it.

    `one_node` puts every share on one node, as the published code does by mistake.
    """
    share = -(-gpus // max(jobs, 1))
    return (1 if one_node else max(1, -(-share // gpus_per_node))), share


def speedup(values: FloatArray, base: FloatArray) -> FloatArray:
    """Goodputs (J, C) over each job's goodput on its fair share (J,); 0 where the job cannot run on that share."""
    base = np.asarray(base, dtype=np.float64)[:, None]
    ratio: FloatArray = np.where(base > 0, values / np.where(base > 0, base, 1.0), 0.0)
    return ratio


def restart_factor(
    age_s: npt.ArrayLike, restarts: npt.ArrayLike, delta_s: npt.ArrayLike, *, ran: BoolArray | None = None
) -> FloatArray:
    """The part of a speed-up that remains when the job has to restart: max(T - R delta, 0) / (T + delta), in [0, 1).

    T is the age of a job (s since submission), R its restarts so far and delta the cost of one (s). Jobs that never
    ran (`ran` false) lose nothing: their factor is 1. Without `ran` the formula holds for all, as published, and a job
    submitted at this very moment is worth nothing.
    """
    age, delta = np.asarray(age_s, dtype=np.float64), np.asarray(delta_s, dtype=np.float64)
    left = np.maximum(age - np.asarray(restarts) * delta, 0.0)
    total = age + delta
    factor: FloatArray = np.divide(left, total, out=np.ones(np.broadcast(left, total).shape), where=total > 0)
    return factor if ran is None else np.where(ran, factor, 1.0)


def replica_cap(profiled: npt.ArrayLike, most: npt.ArrayLike, least_local: npt.ArrayLike) -> IntArray:
    """Most GPUs of a job: twice the most it has been `profiled` on, and at most `most` / `least_local`."""
    explored = np.maximum(1, 2 * np.asarray(profiled, dtype=np.int64))
    cap: IntArray = np.minimum(explored, np.asarray(most, dtype=np.int64) // np.asarray(least_local, dtype=np.int64))
    return cap
