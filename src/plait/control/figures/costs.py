"""Costs of a run: every GPU for every hour of the run, divided among jobs, idle GPUs and nodes that are down.

Conventions:
  all GPUs of the cluster are paid for from the first submission to the last end of the counted jobs, also while their
  node is down: the total is GPUs x hours x price
  jobs that share a GPU divide its price equally, at every moment; a GPU without a job is idle
  a job's money includes its lost work and restarts, which are also shown apart: the part of its time on GPUs that is
  lost work (as in `metrics`), and the cost of its restarts by the job store (saving and loading a checkpoint)
  money of jobs outside the window of a result is `other_jobs`
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from plait.control.figures.prices import Prices
from plait.control.history import Timeline
from plait.core.arrays import BoolArray, FloatArray, IntArray

#: Figures of a run with prices, in this order.
NAMES = ("cost", "cost_jobs", "cost_idle", "cost_down", "cost_lost", "cost_restarts")


@dataclass(frozen=True, slots=True, eq=False)
class Costs:
    """Money of a run. `job`, `lost` and `restarts` have one entry a job of the run; lost and restarts are part of it.

    `total` is what the whole cluster costs over `hours`; it equals the sum of `job`, `idle` and `down` up to rounding.
    """

    prices: Prices
    gpus: int
    hours: float
    total: float
    idle: float
    down: float
    job: FloatArray
    lost: FloatArray
    restarts: FloatArray
    counted: BoolArray

    def figures(self) -> dict[str, float | str]:
        """The figures of a summary."""
        values = (
            self.total, float(self.job[self.counted].sum()), self.idle, self.down,
            float(self.lost[self.counted].sum()), float(self.restarts[self.counted].sum()),
        )  # fmt: skip
        known: dict[str, float | str] = dict(zip(NAMES, values, strict=True))
        if not self.counted.all():
            known["cost_other_jobs"] = float(self.job[~self.counted].sum())
        return known | {"prices": str(self.prices)}


def costs(
    prices: Prices, timeline: Timeline, columns: Mapping[str, Any], counted: BoolArray, span: tuple[float, float]
) -> Costs:
    """The costs of a run over `span` (seconds). `columns` are from the job store.

    Raises `InputError` for a kind of GPU without a price.
    """
    cluster, n = timeline.cluster, timeline.jobs
    prices.refuse_unknown(cluster.kinds)
    rate = prices.of_gpus(cluster) / 3600
    first, last = span
    gpu, from_s, to_s, job = _rows(timeline, span)
    shares, held_s = _divided(gpu, from_s, to_s, cluster.gpus)
    money = np.bincount(job, weights=shares * rate[gpu], minlength=n).astype(np.float64)
    up_s = np.full(cluster.gpus, last - first)
    down_s = np.zeros(len(cluster.nodes))
    lasted = np.minimum(timeline.down_to_s, last) - np.maximum(timeline.down_from_s, first)
    np.add.at(down_s, timeline.down_node, np.maximum(lasted, 0.0))
    up_s -= down_s[cluster.gpu_node]
    ran_s = np.bincount(timeline.span_job, weights=timeline.span_to_s - timeline.span_from_s, minlength=n)
    lost_s = np.clip(columns["lost_s"][:n], 0.0, ran_s)
    again = np.maximum(columns["starts"][:n] - 1, 0) * np.nan_to_num(columns["restart_s"][:n])
    again_s = np.clip(again, 0.0, ran_s - lost_s)
    per_s = np.divide(money, ran_s, out=np.zeros(n), where=ran_s > 0)
    hours = (last - first) / 3600
    return Costs(
        prices, cluster.gpus, hours, math.fsum(rate.tolist()) * (last - first), float(((up_s - held_s) * rate).sum()),
        float((down_s[cluster.gpu_node] * rate).sum()), money, per_s * lost_s, per_s * again_s, counted,
    )  # fmt: skip


def _rows(t: Timeline, span: tuple[float, float]) -> tuple[IntArray, FloatArray, FloatArray, IntArray]:
    """One row a GPU of each span of a job, cut to `span`: (GPU, from, to, job)."""
    lengths = np.diff(t.group_first_gpu)[t.span_group]
    row = np.repeat(np.arange(len(lengths)), lengths)
    offset = np.arange(len(row)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    gpu = t.group_gpus[t.group_first_gpu[t.span_group[row]] + offset].astype(np.int64)
    from_s, to_s = np.clip(t.span_from_s[row], *span), np.clip(t.span_to_s[row], *span)
    keep = to_s > from_s
    return gpu[keep], from_s[keep], to_s[keep], t.span_job[row[keep]]


def _divided(gpu: IntArray, from_s: FloatArray, to_s: FloatArray, gpus: int) -> tuple[FloatArray, FloatArray]:
    """Seconds of each row, divided equally among the rows on a GPU at every moment; seconds each GPU is held."""
    n = len(gpu)
    if not n:
        return np.zeros(0), np.zeros(gpus)
    on, at_s = np.concatenate([gpu, gpu]), np.concatenate([from_s, to_s])
    order = np.lexsort((at_s, on))
    present = np.cumsum(np.repeat([1, -1], n)[order])[:-1]
    lasted = np.where(present > 0, np.diff(at_s[order]), 0.0)  # no job is left where the next GPU begins
    total = np.empty(2 * n)
    total[order] = np.append(0.0, np.cumsum(lasted / np.maximum(present, 1)))
    held_s = np.bincount(on[order][:-1], weights=lasted, minlength=gpus)
    return total[n:] - total[:n], held_s.astype(np.float64)
