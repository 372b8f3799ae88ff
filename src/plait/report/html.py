"""The report of a run: one self-contained HTML file.

Its data is one JSON value: small, rounded, with a note of omitted rows (`run_payload`).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed_version
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from plait.control.compare import Comparison, compare
from plait.control.history import SpanEnd, Timeline
from plait.control.metrics import RunResult
from plait.core.arrays import FloatArray, IntArray
from plait.core.files import write_text
from plait.report.metrics import METRICS, Metric, best, show, unit_of
from plait.report.tables import baselines, change, comparable, cost_sections, figure, knowledges, labels, time_unit_of

#: Points of a distribution: evenly over the jobs, and closer together in the tail.
CDF_POINTS = 300
#: Jobs that adapt whose training is drawn.
TRAINED_JOBS = 10
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
    submit_s = result.jobs["submit_s"]
    origin = float(submit_s.min()) if len(submit_s) else 0.0
    jobs = result.jobs
    # User and model by job number; "" for jobs outside the window of a result
    out = {}
    for name in ("user", "model"):
        out[name] = np.full(result.timeline.jobs, "", dtype=object)
        out[name][result.jobs["number"]] = result.jobs[name]
    return {
        "label": label,
        "seed": str(result.summary.get("seed", "")),
        "series": _series(result, origin),
        "jct": distribution(jobs["jct_s"]),
        "slowdown": distribution(jobs["slowdown"]),
        "rho": distribution(jobs.get("finish_time_fairness", np.zeros(0))),
        "training": _training(result, origin),
        "jobs": _jobs(jobs, limit, origin),
        "gantt": gantt(result.timeline, _names(result), limit, origin, out),
    }


def _names(result: RunResult) -> Any:
    """Ids by job number; jobs outside the window of a result are known by number only."""
    names = np.array([f"number {i}" for i in range(result.timeline.jobs)], dtype=object)
    names[result.jobs["number"]] = result.jobs["id"]
    return names


def _series(result: RunResult, origin: float) -> dict[str, Any]:
    series = result.series
    out: dict[str, Any] = {"t": numbers((series["from_s"] + series["to_s"]) / 2 - origin, 1)}
    for name in SERIES:
        if len(series[name]) and not np.isnan(series[name]).all():
            out[name] = numbers(series[name], 4)
    return out


def _training(result: RunResult, origin: float) -> list[dict[str, Any]]:
    """Batch, efficiency, noise and GPUs over time of the jobs that adapt and trained longest, a step at each change."""
    rows, names = result.training, _names(result)
    if rows is None:
        return []
    job = rows["job"].astype(np.int64)
    first, last = np.full(result.timeline.jobs, np.inf), np.zeros(result.timeline.jobs)
    np.minimum.at(first, job, rows["at_s"])
    np.maximum.at(last, job, rows["at_s"])
    out = []
    for number in np.argsort(first - last, kind="stable")[:TRAINED_JOBS].tolist():
        at = np.flatnonzero(job == number)
        at = at[np.unique(np.linspace(0, len(at) - 1, min(len(at), CDF_POINTS)).astype(np.int64))] if len(at) else at
        if len(at):
            columns = {name: numbers(rows[name][at], 4) for name in ("batch", "efficiency", "noise", "gpus")}
            out.append({"name": str(names[number]), "t": numbers(rows["at_s"][at] - origin, 1), **columns})
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
    # Runs of neighbouring GPUs: (first GPU, GPUs, index into `groups`).
    groups = t.span_group[shown]
    lengths = t.group_first_gpu[groups + 1] - t.group_first_gpu[groups]
    owner = np.repeat(np.arange(len(groups)), lengths)
    offset = np.arange(len(owner)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    gpus = t.group_gpus[np.repeat(t.group_first_gpu[groups], lengths) + offset].astype(np.int64)
    starts = np.flatnonzero(np.append(True, (owner[1:] != owner[:-1]) | (gpus[1:] != gpus[:-1] + 1))[: len(gpus)])
    first, count, bar_of = gpus[starts], np.diff(np.append(starts, len(gpus))), owner[starts]
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


#: Rows of the job table, and bars of the Gantt chart, in a whole report; runs share them equally.
ROWS = 20_000
SCRIPTS = ("util.js", "charts.js", "gantt.js", "tables.js")
COUNTS = ("jobs", "finished", "failed", "cancelled", "refused", "unfinished", "events")


def write_html(
    results: Sequence[RunResult], path: str | Path, *, title: str = "", settings: Mapping[str, str] | None = None
) -> None:
    """Write the report of `results` to `path`; `title` and `settings` as for `html_report`."""
    write_text(path, html_report(results, title=title, settings=settings))


def html_report(
    results: Sequence[RunResult],
    *,
    title: str = "",
    settings: Mapping[str, str] | None = None,
    rows: int = ROWS,
) -> str:
    """The report as text; a function of its arguments.

    `settings` are shown as given (load, overheads, command line, ...). `rows` bounds the jobs and the Gantt
    bars that go into the file, over all runs; the report states what is left out. Runs that differ only
    in their seed are one row of the comparison, and charts show the first of them.
    """
    groups = compare(results)
    names = labels(groups)
    shown = [
        next(r for r in results if _key(r) == (group.trace, group.policy, group.world, group.cluster))
        for group in groups
    ]
    limit = shares(rows, shown)
    data = {"runs": [run_payload(r, name, limit) for r, name in zip(shown, names, strict=True)]}
    environment = Environment(
        loader=PackageLoader("plait.report"), autoescape=True, undefined=StrictUndefined, keep_trailing_newline=True
    )
    columns = table_columns(groups)
    many = max((g.runs for g in groups), default=0)
    seeds = f" Means over {many} seeds with 95 % bootstrap intervals; charts show the first seed." if many > 1 else ""
    if baselines(groups) != list(range(len(groups))):
        seeds += " In brackets: the change from the first cluster."
    rivals = any(len(group) > 1 for group in comparable(groups))
    same = "on the same trace, world and cluster that know the same of durations"
    best_of = f"★ best of its column among runs {same}; click" if rivals else "Click"
    return environment.get_template("report.html.j2").render(
        title=title or _title(groups, names),
        version=version(),
        facts=_facts(results, names),
        warnings=_warnings(results),
        cards=_cards(groups, names),
        columns=columns,
        rows=[table_row(i, groups, names, columns) for i in range(len(groups))],
        table_note=f"{best_of} a heading to sort.{seeds}",
        costs=cost_sections(shown, names),
        settings=_settings(results, settings or {}),
        run_columns=["Run", "Seed", *(c.capitalize() for c in COUNTS), "Wall time (s)"],
        runs=_runs(results, groups, names),
        adapts=any(run["training"] for run in data["runs"]),
        data=Markup(embed(data)),
        css=Markup(asset("report.css")),
        echarts=Markup(asset("echarts.common.min.js")),
        script=Markup("\n".join(asset(name) for name in SCRIPTS)),
    )


def asset(name: str) -> str:
    """A style sheet or script of the reports."""
    return (Path(__file__).parent / "assets" / name).read_text(encoding="utf-8")


def version() -> str:
    """The version of plait that writes a report."""
    try:
        return installed_version("plait")
    except PackageNotFoundError:
        return "from source"


def _key(result: RunResult) -> tuple[str, str, str, str]:
    s = result.summary
    return str(s["trace"]), str(s["policy"]), str(s["world"]), str(s["cluster"])


def _title(groups: Sequence[Comparison], names: Sequence[str]) -> str:
    traces = list(dict.fromkeys(g.trace for g in groups if g.trace))
    on = f" on {', '.join(traces)}" if traces else ""
    count = len({g.policy for g in groups})
    what = names[0] if len(names) == 1 else f"{count} polic{'y' if count == 1 else 'ies'}"
    return f"{what}{on}"


def _facts(results: Sequence[RunResult], names: Sequence[str]) -> list[str]:
    def several(name: str) -> str:
        values = list(dict.fromkeys(str(r.summary.get(name, "")) for r in results))
        return ", ".join(v for v in values if v)

    jobs = sorted({int(r.summary["jobs"]) for r in results})
    count = " to ".join(f"{n:,}" for n in sorted({jobs[0], jobs[-1]})) if jobs else "0"
    facts = [f"{count} jobs", f"{several('gpus')} GPUs ({several('cluster')})"]
    facts += [f"{name}: {several(name)}" for name in ("world", "trace") if several(name)]
    seeds = {str(r.summary.get("seed", "")) for r in results}
    return [*facts, f"{len(results)} runs" + (f", {len(seeds)} seeds" if len(seeds) > 1 else "")]


def _warnings(results: Sequence[RunResult]) -> list[str]:
    out = []
    for name, text in (
        ("unfinished", "did not end in the time of the run; that run has no averages over jobs"),
        ("refused", "can never run on this cluster and were refused when they were submitted"),
        ("failed", "failed"),
    ):
        hit = [r for r in results if int(r.summary[name]) > 0]
        if hit:
            numbers = sorted({int(r.summary[name]) for r in hit})
            count = f"{numbers[0]:,}" if len(numbers) == 1 else f"{numbers[0]:,} to {numbers[-1]:,}"
            jobs = "job" if numbers == [1] else "jobs"
            out.append(f"In {len(hit)} of {len(results)} runs {count} {jobs} {text}.")
    return out


def _cards(groups: Sequence[Comparison], names: Sequence[str]) -> list[dict[str, str]]:
    """The winner of each headline figure, with its lead; only where all rows compete."""
    if len(comparable(groups)) != 1 or len(groups) < 2:
        return []
    cards = []
    for key in ("avg_jct_s", "p99_jct_s", "makespan_s", "max_fairness", "gpu_busy"):
        metric = next(m for m in METRICS if m.key == key)
        values = [figure(g, metric) for g in groups]
        winner = best(metric, values)
        if winner is None:
            continue
        unit, factor = unit_of(metric, values, time_unit_of(groups))
        worst = max(v if metric.better == "low" else -v for v in values if math.isfinite(v))
        worst = worst if metric.better == "low" else -worst
        other = names[values.index(worst)]
        more = worst / winner if metric.better == "low" else winner / worst
        word = "lower" if metric.better == "low" else "higher"
        cards.append(
            {
                "label": f"Best {metric.label}",
                "meaning": metric.meaning,
                "value": names[values.index(winner)],
                "note": f"{show(winner, factor)}{f' {unit}' if unit else ''}, {show(more)}× {word} than {other}",
            }
        )
    return cards


def table_columns(groups: Sequence[Comparison]) -> list[dict[str, Any]]:
    """Columns of a comparison: the known figures, with unit and meaning."""
    out = []
    for metric in METRICS:
        values = [figure(g, metric) for g in groups]
        if not any(math.isfinite(v) for v in values):
            continue
        unit, factor = unit_of(metric, values, time_unit_of(groups))
        out.append(
            {
                "metric": metric,
                "label": metric.label,
                "unit": unit,
                "factor": factor,
                "main": metric.main,
                "meaning": metric.meaning,
            }
        )
    return out


def table_row(
    i: int, groups: Sequence[Comparison], names: Sequence[str], columns: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Row `i` of a comparison of `groups` labelled `names`: its label, and a cell per entry of `columns`."""
    rivals = next(group for group in comparable(groups) if i in group)
    before = baselines(groups)[i]
    cells = []
    for column in columns:
        metric: Metric = column["metric"]
        value = figure(groups[i], metric)
        estimate = groups[i].figures.get(metric.key)
        interval = ""
        if estimate is not None and math.isfinite(estimate.low):
            interval = f"{show(estimate.low, column['factor'])} to {show(estimate.high, column['factor'])}"
        other = figure(groups[before], metric) if before != i else math.nan
        cells.append(
            {
                "text": show(value, column["factor"]) + change(value, other),
                "sort": repr(float(value)) if math.isfinite(value) else "",
                "best": value == best(metric, [figure(groups[j], metric) for j in rivals]),
                "interval": interval,
                "main": metric.main,
            }
        )
    known = knowledges(groups)
    return {"label": f"{names[i]} (knowledge: {known[i]})" if known else names[i], "cells": cells}


def _settings(results: Sequence[RunResult], given: Mapping[str, str]) -> list[tuple[str, str]]:
    """The settings of the runs, from the summaries and from the caller; never empty."""
    out: dict[str, str] = {}
    for name, label in (
        ("trace", "Trace"),
        ("policy", "Policies"),
        ("cluster", "Cluster"),
        ("gpus", "GPUs"),
        ("world", "World"),
        ("seed", "Seeds"),
        ("window", "Jobs that count"),
        ("percentile_rule", "Percentiles"),
    ):
        values = list(dict.fromkeys(str(r.summary.get(name, "")) for r in results))
        out[label] = ", ".join(v for v in values if v) or "not stated"
    out.update({str(name): str(value) for name, value in given.items()})
    out["Version"] = f"plait {version()}"
    return list(out.items())


def _runs(results: Sequence[RunResult], groups: Sequence[Comparison], names: Sequence[str]) -> list[list[str]]:
    label = {(g.trace, g.policy, g.world, g.cluster): name for g, name in zip(groups, names, strict=True)}
    rows = []
    for result in results:
        wall = result.summary.get("wall_s", math.nan)
        counts = [f"{int(result.summary[name]):,}" for name in COUNTS]
        seed = str(result.summary.get("seed", ""))
        rows.append([label[_key(result)], seed, *counts, show(wall) if isinstance(wall, (int, float)) else str(wall)])
    return rows
