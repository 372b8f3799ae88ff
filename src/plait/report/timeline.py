"""A run as a Chrome trace, to open in Perfetto (ui.perfetto.dev) or chrome://tracing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from plait.control.history import SpanEnd
from plait.control.metrics import RunResult
from plait.control.step_functions import Steps
from plait.report.files import whole_file


def write_chrome_trace(result: RunResult, path: str | Path) -> None:
    """One process a node, one thread a GPU, one complete event a job and GPU; waiting jobs as a counter.

    Where there are guests, a second thread a GPU has them.

    Times are microseconds, as the format requires. Jobs that share a GPU begin together, so the longest is drawn around
    the others.
    """
    with whole_file(path) as file:
        file.write('{"displayTimeUnit":"ms","traceEvents":[')
        for i, event in enumerate(_events(result)):
            file.write((",\n" if i else "\n") + json.dumps(event, separators=(",", ":"), ensure_ascii=False))
        file.write("\n]}\n")


def _events(result: RunResult) -> Iterator[dict[str, Any]]:
    yield from _names(result)
    yield from _queue(result)
    yield from _spans(result)


def _names(result: RunResult) -> Iterator[dict[str, Any]]:
    cluster = result.timeline.cluster
    yield {"ph": "M", "pid": 0, "name": "process_name", "args": {"name": "queue"}}
    for n, node in enumerate(cluster):
        yield {"ph": "M", "pid": n + 1, "name": "process_name", "args": {"name": f"node {node.id}"}}
        yield {"ph": "M", "pid": n + 1, "name": "process_sort_index", "args": {"sort_index": n + 1}}
        for gpu in range(int(cluster.first_gpu[n]), int(cluster.first_gpu[n + 1])):
            name = {"name": f"GPU {gpu}"}
            yield {"ph": "M", "pid": n + 1, "tid": gpu + 1, "name": "thread_name", "args": name}
            if len(result.timeline.group_guest):
                name = {"name": f"GPU {gpu}, guests"}
                yield {"ph": "M", "pid": n + 1, "tid": gpu + 1 + cluster.gpus, "name": "thread_name", "args": name}


def _queue(result: RunResult) -> Iterator[dict[str, Any]]:
    t = result.timeline
    waiting = Steps.of(t.wait_from_s, t.wait_to_s)
    for at_s, jobs in zip(waiting.times_s.tolist(), waiting.values.tolist(), strict=True):
        yield {"ph": "C", "pid": 0, "name": "waiting jobs", "ts": _us(at_s), "args": {"jobs": int(jobs)}}


def _spans(result: RunResult) -> Iterator[dict[str, Any]]:
    t = result.timeline
    ids = dict(zip(result.jobs["number"].tolist(), result.jobs["id"].tolist(), strict=True))
    ends = [end.name.lower().replace("_", " ") for end in SpanEnd]
    for i in np.lexsort((-t.span_to_s, t.span_from_s)).tolist():
        from_s, to_s, job, row = float(t.span_from_s[i]), float(t.span_to_s[i]), int(t.span_job[i]), t.span_group[i]
        if to_s <= from_s:
            continue
        args = {
            "job": job,
            "gpus": int(t.span_gpus[i]),
            "jobs on these GPUs": int(t.span_company[i]),
            "then": ends[t.span_end[i]],
        }
        guest = bool(len(t.group_guest) and t.group_guest[row])
        if guest:
            args["as a guest"] = True
        name = str(ids.get(job, f"number {job}"))
        for gpu in t.group_gpus[t.group_first_gpu[row] : t.group_first_gpu[row + 1]].tolist():
            yield {
                "ph": "X", "pid": int(t.cluster.gpu_node[gpu]) + 1, "tid": gpu + 1 + guest * t.cluster.gpus,
                "name": name, "cat": "job",
                "ts": _us(from_s), "dur": _us(to_s) - _us(from_s), "args": args,
            }  # fmt: skip


def _us(seconds: float) -> int:
    return round(seconds * 1e6)
