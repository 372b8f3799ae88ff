"""The data of the HTML report as one JSON value: small, rounded, with a note of omitted rows."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from plait.control.history import SpanEnd, Timeline
from plait.control.metrics import RunResult
from plait.core.arrays import FloatArray, IntArray

#: Points of a distribution: evenly over the jobs, and closer together in the tail.
CDF_POINTS = 300
SERIES = (
    "queue_length",
    "running_jobs",
    "gpu_utilisation",
    "gpu_busy",
    "cpu_utilisation",
    "storage_utilisation",
    "network_utilisation",
    "fragmentation",
    "blocking_index",
)
JOB_COLUMNS = (
    "id", "user", "model", "gpus", "submit_s", "jct_s", "queue_s", "run_s", "duration_s", "slowdown", "starts",
    "preemptions", "failures", "state", "reason",
)  # fmt: skip


def run_payload(result: RunResult, label: str, limit: int) -> dict[str, Any]:
    """One run; at most `limit` rows of jobs and as many bars of the Gantt chart."""
    origin = _origin(result)
    jobs = result.jobs
    return {
        "label": label,
        "seed": str(result.summary.get("seed", "")),
        "series": _series(result, origin),
        "jct": distribution(jobs["jct_s"]),
        "slowdown": distribution(jobs["slowdown"]),
        "jobs": _jobs(jobs, limit, origin),
        "gantt": gantt(result.timeline, _names(result), limit, origin, _words(result)),
    }


def _origin(result: RunResult) -> float:
    submit_s = result.jobs["submit_s"]
    return float(submit_s.min()) if len(submit_s) else 0.0


def _names(result: RunResult) -> Any:
    """Ids by job number; jobs outside the window of a result are known by number only."""
    names = np.array([f"number {i}" for i in range(result.timeline.jobs)], dtype=object)
    names[result.jobs["number"]] = result.jobs["id"]
    return names


def _words(result: RunResult) -> dict[str, Any]:
    """User and model by job number; "" for jobs outside the window of a result."""
    out = {}
    for name in ("user", "model"):
        out[name] = np.full(result.timeline.jobs, "", dtype=object)
        out[name][result.jobs["number"]] = result.jobs[name]
    return out


def _series(result: RunResult, origin: float) -> dict[str, Any]:
    series = result.series
    out: dict[str, Any] = {"t": numbers((series["from_s"] + series["to_s"]) / 2 - origin, 1)}
    for name in SERIES:
        if len(series[name]) and not np.isnan(series[name]).all():
            out[name] = numbers(series[name], 4)
    return out


def distribution(values: FloatArray) -> list[list[Any]]:
    """Points (value, share of values at or below it) of the empirical distribution; unknown values are left out."""
    data = np.sort(values[~np.isnan(values)])
    n = len(data)
    if not n:
        return []
    even = np.linspace(0, n - 1, min(n, CDF_POINTS))
    tail = n - np.geomspace(1, n, min(n, CDF_POINTS // 3))
    at = np.unique(np.rint(np.concatenate([even, tail])).astype(np.int64).clip(0, n - 1))
    return [[a, b] for a, b in zip(numbers(data[at], 3), numbers((at + 1) / n, 5), strict=True)]


def _jobs(jobs: Mapping[str, Any], limit: int, origin: float) -> dict[str, Any]:
    """The first rows of the per-job table, by submission."""
    total = len(jobs["id"])
    out: dict[str, Any] = {"total": total, "shown": min(total, limit)}
    for name in JOB_COLUMNS:
        column = jobs[name][:limit]
        if name == "submit_s":
            column = column - origin
        out[name] = numbers(column, 3) if column.dtype.kind == "f" else column.tolist()
    return out


def gantt(t: Timeline, names: Any, limit: int, origin: float, words: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Bars (job, first GPU, GPUs, from, to, member, members, end) of the first spans, in order of start.

    Where there are guests, a flag marks their bars. `words`: user and model by job number, like `names`.

    A span over GPUs that are not neighbours gives several bars. All spans are shown up to `until_s`.
    """
    real = np.flatnonzero(t.span_to_s > t.span_from_s)
    order = real[np.argsort(t.span_from_s[real], kind="stable")]
    shown = order[:limit]
    member = _member(t.span_group)
    first, count, bar_of = _ranges(t, t.span_group[shown])
    span = shown[bar_of]
    numbers_shown, local = np.unique(t.span_job[span], return_inverse=True)
    until = float(t.span_from_s[order[limit]]) - origin if len(order) > limit else None
    return {
        "total": len(order),
        "shown": len(shown),
        "until_s": until,
        "gpus": t.cluster.gpus,
        "end_s": _number(t.last_s - origin, 1),
        "nodes": [node.id for node in t.cluster],
        "first_gpu": t.cluster.first_gpu.tolist(),
        "names": [str(names[i]) for i in numbers_shown.tolist()],
        **{
            f"{name}s": [str((words or {})[name][i]) if words else "" for i in numbers_shown.tolist()]
            for name in ("user", "model")
        },
        "job": local.tolist(),
        "gpu": first.tolist(),
        "count": count.tolist(),
        "from": numbers(t.span_from_s[span] - origin, 1),
        "to": numbers(t.span_to_s[span] - origin, 1),
        "member": member[span].tolist(),
        "members": t.span_company[span].tolist(),
        **({"guest": t.group_guest[t.span_group[span]].astype(int).tolist()} if len(t.group_guest) else {}),
        "ended": t.span_end[span].tolist(),
        "ends": [end.name.lower().replace("_", " ") for end in SpanEnd],
        "down": [
            [int(n), _number(max(lo - origin, 0.0), 1), _number(min(hi, t.last_s) - origin, 1)]
            for n, lo, hi in zip(t.down_node.tolist(), t.down_from_s.tolist(), t.down_to_s.tolist(), strict=True)
        ],
    }


def _member(group: IntArray) -> IntArray:
    """Place of each span among the spans of its group."""
    order = np.argsort(group, kind="stable")
    rows = group[order]
    first = np.append(True, rows[1:] != rows[:-1])[: len(rows)]
    begin = np.maximum.accumulate(np.where(first, np.arange(len(rows)), 0))
    out = np.empty(len(rows), dtype=np.int64)
    out[order] = np.arange(len(rows)) - begin
    return out


def _ranges(t: Timeline, groups: IntArray) -> tuple[IntArray, IntArray, IntArray]:
    """Runs of neighbouring GPUs: (first GPU, GPUs, index into `groups`)."""
    lengths = t.group_first_gpu[groups + 1] - t.group_first_gpu[groups]
    owner = np.repeat(np.arange(len(groups)), lengths)
    offset = np.arange(len(owner)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    gpus = t.group_gpus[np.repeat(t.group_first_gpu[groups], lengths) + offset].astype(np.int64)
    starts = np.flatnonzero(np.append(True, (owner[1:] != owner[:-1]) | (gpus[1:] != gpus[:-1] + 1))[: len(gpus)])
    return gpus[starts], np.diff(np.append(starts, len(gpus))), owner[starts]


def numbers(values: FloatArray, digits: int) -> list[Any]:
    """Rounded numbers: whole ones as integers, unknown ones as None."""
    return [_number(v, digits) for v in np.round(values, digits).tolist()]


def _number(value: float, digits: int) -> float | int | None:
    if not math.isfinite(value):
        return None
    value = round(value, digits)
    return int(value) if value == int(value) else value


def embed(data: Any) -> str:
    r"""JSON that is safe inside a `<script>` element.

    >>> embed({"id": "</script>"})
    '{"id":"\\u003c/script\\u003e"}'
    """
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    for char in "<>&\u2028\u2029":
        text = text.replace(char, f"\\u{ord(char):04x}")
    return text


def shares(total: int, parts: Sequence[Any]) -> int:
    """Rows each run may show, so that a report of many runs stays small."""
    return max(total // max(len(parts), 1), 1)
