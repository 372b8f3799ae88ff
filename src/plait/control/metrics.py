"""The figures of a run: one code for simulated, live and replayed runs.

    result = measure(controller, history, trace="trace3", policy="srsf", seed=0)
    result.summary["avg_jct_s"]

Conventions, once for all figures:
  completion times are over finished jobs; if a counted job has not ended there is no average (NaN, null)
  percentiles interpolate between order statistics at (n - 1) q
  time averages run from the first submission to the last end of the counted jobs, over the whole cluster
  GPU time held counts each GPU once, however many jobs share it
  lost work is the work that stops and failures threw away, in seconds of the job alone: it had to be done again; for
  jobs without progress and checkpoints, their seconds on GPUs
  useful work is in GPU-seconds at the speed of a job alone, so jobs that share a GPU may add up to more than the time
  they hold; `lost_gpu_h` is what useful work leaves of each GPU while it is held, never below 0; both are unknown if a
  job that ran adapts its batch, as its work is worth other GPU time at another size
  spill is the part of the jobs' GPU memory that is on the host, of runs in which usage is reported
  money is divided as in `Costs`, in runs for which prices were given
  reserved idle is GPU time in which a GPU is held for a waiting job and no host runs there; guests may use it, and
  their time counts each GPU once; runs without reservations and guests do not have these figures

Costs of a run: every GPU for every hour of the run, divided among jobs, idle GPUs and nodes that are down.

Conventions:
  all GPUs of the cluster are paid for from the first submission to the last end of the counted jobs, also while their
  node is down: the total is GPUs x hours x price; of an elastic cluster only while their node is up
  jobs that share a GPU divide its price equally, at every moment; a GPU without a job is idle
  a job's money includes its lost work and restarts, which are also shown apart: the part of its time on GPUs that is
  lost work (as above), and the cost of its restarts by the job store (saving and loading a checkpoint)
  money of jobs outside the window of a result is `other_jobs`

Figures of guaranteed and opportunistic jobs side by side: an average over both hides what was promised to each.

In addition to the conventions above:
  a job counts in the class it was submitted with
  stretch is a job's time on GPUs over its time alone at the requested size: it includes the cost of sharing,
  placement, starts and lost work, but no waiting
  throttled time is the time of guests on their GPUs, starts included, minus the time of their work alone
  a conversion lets a job of class auto run as a guest, once a job
  a promotion makes a guest the host of the GPUs it is on
  a kill stops an opportunistic job without a checkpoint, or one that cannot resume from any

Figures of runs on a cluster with a network; other runs do not have them.

In addition to the conventions above:
  a deadline is missed by a job that ended after it, or has not ended
  the aggregated share is the mean over time and over jobs that exchange gradients between nodes, of the share of their
  packets that switches add up; the fallback share, of packets whose aggregator belongs to others, so that the server
  adds them; NaN without such jobs
  granted time is the time in which jobs have memory of switches, added up over jobs
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np

from plait.control.controller import Controller, describe
from plait.control.history import History, SpanEnd, Timeline
from plait.control.occupancy import (
    Occupancy,
    blocking_index,
    by_gpu,
    covered,
    fragmentation,
    occupancy,
    useful_work,
)
from plait.control.outcomes import STATES, Isolated, Outcomes, fairness, outcomes, table
from plait.control.prices import Prices
from plait.control.step_functions import Steps
from plait.core.arrays import BoolArray, FloatArray, IntArray
from plait.core.errors import InputError
from plait.core.jobs import Checkpoints, JobBatch, JobClass
from plait.core.resources import Resource

#: Figures of a run with prices, in this order.
COST_NAMES = ("cost", "cost_jobs", "cost_idle", "cost_down", "cost_lost", "cost_restarts")


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
        values = (
            self.total, float(self.job[self.counted].sum()), self.idle, self.down,
            float(self.lost[self.counted].sum()), float(self.restarts[self.counted].sum()),
        )  # fmt: skip
        known: dict[str, float | str] = dict(zip(COST_NAMES, values, strict=True))
        if not self.counted.all():
            known["cost_other_jobs"] = float(self.job[~self.counted].sum())
        return known | {"prices": str(self.prices)}


def costs(
    prices: Prices, timeline: Timeline, columns: Mapping[str, Any], counted: BoolArray, span: tuple[float, float],
    *, pays_down: bool = True,
) -> Costs:  # fmt: skip
    """The costs of a run over `span` (seconds). `columns` are from the job store; `pays_down`: of nodes that are down.

    Raises `InputError` for a kind of GPU without a price.
    """
    cluster, n = timeline.cluster, timeline.jobs
    prices.refuse_unknown(cluster.kinds)
    rate = prices.of_gpus(cluster) / 3600
    first, last = span
    gpu, from_s, to_s, row = _rows(timeline, span)
    shares, held_s = _divided(gpu, from_s, to_s, cluster.gpus)
    money = np.bincount(timeline.span_job[row], weights=shares * rate[gpu], minlength=n).astype(np.float64)
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
    hours, down = (last - first) / 3600, float((down_s[cluster.gpu_node] * rate).sum())
    total = math.fsum(rate.tolist()) * (last - first)
    total, down = (total, down) if pays_down else (total - down, 0.0)
    idle, lost, again = float(((up_s - held_s) * rate).sum()), per_s * lost_s, per_s * again_s
    return Costs(prices, cluster.gpus, hours, total, idle, down, money, lost, again, counted)


def _rows(t: Timeline, span: tuple[float, float]) -> tuple[IntArray, FloatArray, FloatArray, IntArray]:
    """One row a GPU of each span of a job, cut to `span`: (GPU, from, to, which span)."""
    lengths = np.diff(t.group_first_gpu)[t.span_group]
    row = np.repeat(np.arange(len(lengths)), lengths)
    offset = np.arange(len(row)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    gpu = t.group_gpus[t.group_first_gpu[t.span_group[row]] + offset].astype(np.int64)
    from_s, to_s = np.clip(t.span_from_s[row], *span), np.clip(t.span_to_s[row], *span)
    keep = to_s > from_s
    return gpu[keep], from_s[keep], to_s[keep], row[keep]


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


def _lost_s(t: Timeline, jobs: Outcomes, span: tuple[float, float]) -> float:
    """GPU-seconds of held GPUs that the work of the jobs there does not fill; NaN where its speed is unknown."""
    gpu, from_s, to_s, row = _rows(t, span)
    speed = (useful_work(t, jobs) / np.maximum(t.span_gpus * (t.span_to_s - t.span_from_s), 1e-9))[row]
    at_s = np.concatenate([from_s, to_s])
    order = np.lexsort((at_s, np.concatenate([gpu, gpu])))
    present = np.cumsum(np.repeat([1, -1], len(gpu))[order])[:-1]
    # A host at full speed and its guest do more than one GPU's work: what they win is no negative loss of others.
    left = np.maximum(1.0 - np.cumsum(np.concatenate([speed, -speed])[order])[:-1], 0.0)
    return float(np.where(present > 0, np.diff(at_s[order]) * left, 0.0).sum())


#: Figures of runs in which some job is not guaranteed; `*_auto` and others only if there is a job of that class.
CLASS_NAMES = (
    *(f"{figure}_{each.name.lower()}{unit}" for each in JobClass
      for figure, unit in (("jobs", ""), ("avg_jct", "_s"), ("p99_jct", "_s"), ("avg_queue", "_s"))),
    *(f"{name}_stretch_guaranteed" for name in ("avg", "p50", "p99", "max")),
    "throttled_h", "conversions", "promotions_in_place", "opportunistic_kills", "opportunistic_killed_share",
)  # fmt: skip


def class_figures(
    columns: Mapping[str, Any], jobs: Outcomes, timeline: Timeline, counted: BoolArray
) -> dict[str, float | int]:
    """Figures by class, of the jobs that count; none if all are guaranteed.

    `columns` are from the job store. Averages are NaN if a job of the class has not ended, as in `metrics`.
    """
    n = len(jobs.state)
    job_class, checkpoints = columns["job_class"][:n], columns["checkpoints"][:n]
    if not (job_class[counted] != int(JobClass.GUARANTEED)).any():
        return {}
    figures: dict[str, float | int] = {}
    for each in JobClass:
        rows = counted & (job_class == int(each))
        if rows.any():
            figures |= _of_class(each.name.lower(), rows, jobs)
    rows = counted & (job_class == int(JobClass.GUARANTEED)) & jobs.finished & (jobs.duration_s > 0)
    stretch = jobs.run_s[rows] / jobs.duration_s[rows]
    names = ("avg", "p50", "p99", "max")
    values = [_mean(stretch), *_percentiles(stretch, (50, 99, 100))]
    figures |= {f"{name}_stretch_guaranteed": value for name, value in zip(names, values, strict=True)}
    lowly = (job_class != int(JobClass.GUARANTEED)) & counted
    lost = lowly & (checkpoints == int(Checkpoints.NEVER))
    kills = (timeline.span_end == int(SpanEnd.STOPPED)) & lost[timeline.span_job]
    kills |= (timeline.span_end == int(SpanEnd.KILLED)) & lowly[timeline.span_job]
    killed = np.unique(timeline.span_job[kills])
    return figures | {
        "throttled_h": _throttled_s(timeline, jobs, counted) / 3600,
        "conversions": _conversions(timeline, job_class == int(JobClass.AUTO), counted),
        "promotions_in_place": _promotions(timeline, counted),
        "opportunistic_kills": int(kills.sum()),
        "opportunistic_killed_share": len(killed) / int(lowly.sum()),
    }


def _of_class(name: str, rows: BoolArray, jobs: Outcomes) -> dict[str, float | int]:
    open_jobs = bool(np.isnan(jobs.end_s[rows]).any())
    use = rows & jobs.finished & (not open_jobs)
    return {
        f"jobs_{name}": int(rows.sum()),
        f"avg_jct_{name}_s": _mean(jobs.jct_s[use]),
        f"p99_jct_{name}_s": _percentiles(jobs.jct_s[use], (99,))[0],
        f"avg_queue_{name}_s": _mean(jobs.queue_s[use]),
    }


def _guest_spans(timeline: Timeline) -> BoolArray:
    if not len(timeline.group_guest):
        return np.zeros(len(timeline.span_job), dtype=bool)
    flags: BoolArray = timeline.group_guest[timeline.span_group]
    return flags


def _throttled_s(timeline: Timeline, jobs: Outcomes, counted: BoolArray) -> float:
    spans = _guest_spans(timeline) & counted[timeline.span_job]
    held_s = timeline.span_to_s[spans] - timeline.span_from_s[spans]
    alone_s = timeline.span_iterations[spans] * jobs.iteration_s[timeline.span_job[spans]]
    return float(np.nansum(np.maximum(held_s - alone_s, 0.0)))


def _conversions(timeline: Timeline, auto: BoolArray, counted: BoolArray) -> int:
    """Jobs of class auto that were guests at some time."""
    job = timeline.span_job[_guest_spans(timeline)]
    return len(np.unique(job[(auto & counted)[job]]))


def _promotions(timeline: Timeline, counted: BoolArray) -> int:
    """Spans of hosts that continue a span of the same job as a guest, on the same GPUs."""
    guest, job = _guest_spans(timeline), timeline.span_job
    turned: IntArray = np.flatnonzero(guest[:-1] & ~guest[1:] & (job[:-1] == job[1:]) & timeline.span_continued[1:])
    return int(counted[job[turned]].sum())


NETWORK_NAMES = (
    "deadlines",
    "deadlines_missed",
    "aggregated_share",
    "fallback_share",
    "exchange_job_h",
    "granted_job_h",
)


def network_figures(
    controller: Controller, jobs: Outcomes, timeline: Timeline, counted: BoolArray
) -> dict[str, float | int]:
    """Deadlines of jobs that count, and what became of exchanges of all jobs; none without a network."""
    if controller.cluster.network is None:
        return {}
    deadline_s = controller.job_store.columns["deadline_s"][: len(jobs.state)]
    has = counted & ~np.isnan(deadline_s)
    end_s = np.where(jobs.finished, jobs.end_s, math.inf)
    missed = has & ~(end_s <= jobs.submit_s + deadline_s)
    last_s = timeline.last_s if len(timeline.exchange_at_s) else 0.0
    lasted_s = np.diff(timeline.exchange_at_s, append=last_s)
    exchanged_s = float((timeline.exchange_jobs * lasted_s).sum())
    aggregated_s = float((timeline.exchange_aggregated * lasted_s).sum())
    fallback_s = float((timeline.exchange_fallback * lasted_s).sum())
    pairs: dict[int, list[tuple[float, float]]] = {}  # a job with grants on several switches counts once
    for job, begin_s, end in zip(timeline.grant_job, timeline.grant_from_s, timeline.grant_to_s, strict=True):
        pairs.setdefault(int(job), []).append((float(begin_s), float(end)))
    return {
        "deadlines": int(has.sum()),
        "deadlines_missed": int(missed.sum()),
        "aggregated_share": aggregated_s / exchanged_s if exchanged_s else math.nan,
        "fallback_share": fallback_s / exchanged_s if exchanged_s else math.nan,
        "exchange_job_h": exchanged_s / 3600,
        "granted_job_h": sum(_covered_s(spans) for spans in pairs.values()) / 3600,
    }


def _covered_s(spans: list[tuple[float, float]]) -> float:
    total, until_s = 0.0, -math.inf
    for begin_s, end_s in sorted(spans):
        total += max(0.0, end_s - max(begin_s, until_s))
        until_s = max(until_s, end_s)
    return total


Value: TypeAlias = float | int | str

PERCENTILE_RULE = "linear, at (n - 1) q"
LABELS = ("trace", "policy", "world", "seed", "cluster")
#: Regular sample times of the blocking index, and points of a time series.
SAMPLES, POINTS = 2000, 1000
BLOCKING_CAP = 100.0
#: Figures of runs with reservations or guests.
SPILL = "spill_gb_h"
SHARING = ("reserved_idle_gpu_h", "reserved_idle_used_gpu_h", "guest_gpu_h")
UTILISATION = {
    Resource.STORAGE: "storage_utilisation",
    Resource.CPU: "cpu_utilisation",
    Resource.GPU: "gpu_busy",
    Resource.NETWORK: "network_utilisation",
}


@dataclass(frozen=True, slots=True)
class Window:
    """Which jobs count: the ones submitted (or numbered) from `start` to before `stop`. All jobs still run."""

    start: float
    stop: float
    by: Literal["submit_s", "number"] = "submit_s"

    def __post_init__(self) -> None:
        if not self.start < self.stop:
            raise InputError(f"window {self.start}..{self.stop} is empty; give start < stop")
        if self.by not in ("submit_s", "number"):
            raise InputError(f"window by {self.by!r}; known: submit_s, number")

    def mask(self, submit_s: FloatArray) -> BoolArray:
        """Whether each job counts."""
        value = submit_s if self.by == "submit_s" else np.arange(len(submit_s))
        result: BoolArray = (value >= self.start) & (value < self.stop)
        return result


@dataclass(frozen=True, slots=True, eq=False)
class RunResult:
    """All figures of one run.

    `summary` has one value a name in a stable order (NaN: unknown or undefined). `jobs` has one column a name
    and one row a counted job. `series` has time averages over bins from `from_s` to `to_s`. `timeline` is the
    record they were computed from. `costs` is None without prices. `training` has a row whenever an adaptive job chose
    its batch: job (number), at_s, gpus, batch (examples), efficiency, noise (scale, examples); None without such jobs.
    """

    summary: Mapping[str, Value]
    jobs: Mapping[str, Any]
    series: Mapping[str, FloatArray]
    timeline: Timeline
    costs: Costs | None = None
    training: Mapping[str, FloatArray] | None = None

    def to_json(self) -> dict[str, Value | None]:
        """The summary with None for what is unknown."""
        return {
            name: None if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in self.summary.items()
        }


def measure(
    controller: Controller,
    history: History,
    *,
    window: Window | tuple[float, float] | None = None,
    truth: JobBatch | None = None,
    isolated: Isolated | None = None,
    prices: Prices | None = None,
    pays_down: bool = True,
    **labels: Value,
) -> RunResult:
    """Figures of the run that `history` recorded.

    A `window` (two numbers: submission seconds) leaves out jobs of warm-up and cool-down. `truth` has the
    jobs as they are, by number, if the controller was given noisy estimates. `isolated` knows how long adaptive jobs
    take alone on so many GPUs, for fairness and slowdown; without, all are as fast as they have GPUs. With
    `prices` of GPU-hours there are costs, also of nodes that are down if `pays_down`. `labels` go into the summary:
    trace, policy, world, seed, cluster, wall_s and any other.
    """
    timeline = history.timeline()
    jobs = outcomes(controller.job_store, timeline, truth)
    if isinstance(window, tuple):
        window = Window(*window)
    counted = np.ones(len(jobs.state), dtype=bool) if window is None else window.mask(jobs.submit_s)
    known: dict[str, Value] = {"policy": describe(controller.policy), "cluster": str(controller.cluster)}
    known.update(labels)
    use = occupancy(timeline, jobs)
    span = _span(jobs, timeline, counted)
    columns = table(controller.job_store, jobs)
    rho, slowdown = fairness(jobs, timeline, isolated), jobs.slowdown(isolated)
    summary: dict[str, Value] = {name: known.pop(name, "") for name in LABELS}
    summary |= _counts(jobs, counted)
    summary |= _job_figures(jobs, rho, slowdown, counted)
    summary |= _effort(columns, jobs, counted)
    fragments = fragmentation(use)
    summary |= _cluster_figures(use, fragments, span, _lost_s(timeline, jobs, span))
    summary |= _sharing(timeline, span)
    summary |= class_figures(controller.job_store.columns, jobs, timeline, counted)
    summary |= network_figures(controller, jobs, timeline, counted)
    summary |= _blocking(timeline, span)
    money = (
        None
        if prices is None
        else costs(prices, timeline, controller.job_store.columns, counted, span, pays_down=pays_down)
    )
    if money is not None:
        summary |= money.figures()
    summary |= {
        "gpus": timeline.cluster.gpus,
        "span_s": span[1] - span[0],
        "window": "all" if window is None else f"{window.by} {window.start:g}..{window.stop:g}",
        "percentile_rule": PERCENTILE_RULE,
        "events": timeline.events,
        "wall_s": math.nan,
    }
    summary.update(known)
    rows = {**columns, "slowdown": slowdown, "finish_time_fairness": rho}
    if money is not None:
        rows |= {"cost": money.job, "cost_lost": money.lost, "cost_restarts": money.restarts}
    if window is not None:
        rows = {name: column[counted] for name, column in rows.items()}
    return RunResult(summary, rows, _series(use, fragments, timeline, span), timeline, money)


def _span(jobs: Outcomes, timeline: Timeline, counted: BoolArray) -> tuple[float, float]:
    """First submission and last end of the counted jobs, seconds."""
    if not counted.any():
        return 0.0, 0.0
    end_s = np.where(np.isnan(jobs.end_s), timeline.last_s, jobs.end_s)[counted]
    first = float(jobs.submit_s[counted].min())
    return first, max(first, float(end_s.max()))


def _counts(jobs: Outcomes, counted: BoolArray) -> dict[str, Value]:
    states = np.bincount(jobs.state[counted], minlength=len(STATES))
    by_name = dict(zip(STATES, states.tolist(), strict=True))
    return {
        "jobs": int(counted.sum()),
        "finished": by_name["finished"],
        "failed": by_name["failed"],
        "cancelled": by_name["cancelled"],
        "refused": by_name["refused"],
        "unfinished": by_name["waiting"] + by_name["running"],
    }


def _job_figures(jobs: Outcomes, rho: FloatArray, slowdown: FloatArray, counted: BoolArray) -> dict[str, Value]:
    """Averages over finished jobs; NaN throughout if a counted job has not ended."""
    open_jobs = bool((counted & np.isnan(jobs.end_s)).any())
    use = counted & jobs.finished & (not open_jobs)
    ended = counted & (not open_jobs)
    jct_s, queue_s = jobs.jct_s[use], jobs.queue_s[use]
    slowdown, fair = slowdown[use], rho[use]
    p50, p95, p99 = _percentiles(jct_s, (50, 95, 99))
    makespan = float(jobs.end_s[ended].max() - jobs.submit_s[ended].min()) if ended.any() else math.nan
    return {
        "avg_jct_s": _mean(jct_s),
        "p50_jct_s": p50,
        "p95_jct_s": p95,
        "p99_jct_s": p99,
        "makespan_s": makespan,
        "avg_queue_s": _mean(queue_s),
        "max_queue_s": _max(queue_s),
        "avg_slowdown": _mean(slowdown),
        "p99_slowdown": _percentiles(slowdown, (99,))[0],
        "avg_fairness": _mean(fair),
        "max_fairness": _max(fair),
        "unfair_share": math.nan if np.isnan(fair).any() else _mean((fair > 1.0 + 1e-9).astype(np.float64)),
    }


def _effort(columns: Mapping[str, Any], jobs: Outcomes, counted: BoolArray) -> dict[str, Value]:
    """How often jobs were moved about; refused jobs never started."""
    use = counted & ~jobs.refused
    restarts = np.maximum(columns["starts"][use] - 1, 0)
    return {
        "preemptions": int(columns["preemptions"][use].sum()),
        "failures": int(columns["failures"][use].sum()),
        "restarts": int(restarts.sum()),
        "avg_restarts": _mean(restarts),
        "lost_work_s": float(columns["lost_s"][use].sum()),
        "lost_work_gpu_h": float((columns["lost_s"] * columns["gpus"])[use].sum()) / 3600,
    }


def _cluster_figures(
    use: Occupancy, fragments: tuple[Steps, Steps], span: tuple[float, float], lost_s: float
) -> dict[str, Value]:
    capacity, held = use.capacity.area(*span), use.held.area(*span)
    useful = math.nan if use.useful is None else use.useful.area(*span)
    share, counted = fragments

    def part(area: float, whole: float) -> float:
        return area / whole if whole > 0 else math.nan

    busy = {
        name: math.nan if steps is None else part(steps.area(*span), capacity)
        for name, steps in zip(UTILISATION.values(), use.busy, strict=True)
    }
    return {
        "lost_gpu_h": lost_s / 3600,
        "gpu_utilisation": part(held, capacity),
        "gpu_useful": part(useful, capacity),
        **busy,
        "avg_queue_length": use.waiting.mean(*span),
        "max_queue_length": int(use.waiting.max(*span)),
        "fragmentation": part(share.area(*span), counted.area(*span)),
    }


def _sharing(timeline: Timeline, span: tuple[float, float]) -> dict[str, Value]:
    """GPU time of reservations and guests, in GPU-hours; nothing for a run without any."""
    t = timeline
    if not len(t.reserved_gpu) and not len(t.group_guest):
        return {}
    reserved = t.reserved_gpu, t.reserved_from_s, t.reserved_to_s
    guests = covered(*by_gpu(t, np.flatnonzero(t.group_guest)))
    rows = reserved, covered(*reserved, by=guests), guests
    hours: dict[str, Value] = {
        name: float(np.maximum(np.minimum(to_s, span[1]) - np.maximum(from_s, span[0]), 0.0).sum()) / 3600
        for name, (_, from_s, to_s) in zip(SHARING, rows, strict=True)
    }
    return hours | ({SPILL: _spill_gb_h(t, span)} if len(t.spill_at_s) else {})


def _spill_gb_h(timeline: Timeline, span: tuple[float, float]) -> float:
    """Gigabytes in host memory times hours, inside a span."""
    at = np.clip(np.append(timeline.spill_at_s, timeline.last_s), *span)
    return float((np.diff(at) * timeline.spill_bytes).sum()) / 1e9 / 3600


def _blocking(timeline: Timeline, span: tuple[float, float]) -> dict[str, Value]:
    unknown = bool(len(timeline.wait_job)) and bool(np.isnan(timeline.wait_remaining_s).all())
    names = ("blocking_index_mean", "blocking_index_median", "blocking_index_capped")
    if unknown or not span[1] > span[0]:
        return dict.fromkeys(names, math.nan)
    times = _middles(np.linspace(*span, SAMPLES + 1))
    plain, capped = blocking_index(timeline, times), blocking_index(timeline, times, BLOCKING_CAP)
    return dict(zip(names, (_mean(plain), float(np.median(plain)), _mean(capped)), strict=True))


def _series(
    use: Occupancy, fragments: tuple[Steps, Steps], timeline: Timeline, span: tuple[float, float]
) -> dict[str, FloatArray]:
    """Exact time averages over at most `POINTS` equal bins; the blocking index is taken mid-bin."""
    edges = np.linspace(*span, POINTS + 1) if span[1] > span[0] else np.zeros(1)
    unknown = np.full(len(edges) - 1, math.nan)
    capacity, held = use.capacity.bins(edges), use.held.bins(edges)
    with np.errstate(invalid="ignore", divide="ignore"):
        busy = {
            name: unknown if steps is None else steps.bins(edges) / capacity
            for name, steps in zip(UTILISATION.values(), use.busy, strict=True)
        }
        scattered = fragments[0].bins(edges) / fragments[1].bins(edges)
        utilisation = held / capacity
    return {
        "from_s": edges[:-1],
        "to_s": edges[1:],
        "queue_length": use.waiting.bins(edges),
        "running_jobs": use.running.bins(edges),
        "gpus_held": held,
        "gpus_up": capacity,
        "gpu_utilisation": utilisation,
        **busy,
        "fragmentation": scattered,
        "blocking_index": blocking_index(timeline, _middles(edges), BLOCKING_CAP),
    }


def _middles(edges: FloatArray) -> FloatArray:
    result: FloatArray = (edges[:-1] + edges[1:]) / 2
    return result


def _mean(values: Any) -> float:
    return float(np.mean(values)) if len(values) else math.nan


def _max(values: FloatArray) -> float:
    return float(np.max(values)) if len(values) else math.nan


def _percentiles(values: FloatArray, at: tuple[float, ...]) -> list[float]:
    if not len(values) or np.isnan(values).any():
        return [math.nan] * len(at)
    return [float(v) for v in np.percentile(values, at)]
