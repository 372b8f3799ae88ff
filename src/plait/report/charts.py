"""Charts as SVG, each in both colour schemes and without scripts.

lines     over a logarithmic axis: how a quantity changes with the batch size, the GPUs, an interval
bars      one group a label, one bar a series, with what others published as a mark across the bar
series    lines over time: what a simulation measures in bins of equal width
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from plait.control.history import SpanEnd
from plait.control.metrics import RunResult
from plait.control.step_functions import Steps
from plait.core.errors import InputError
from plait.core.files import whole_file

#: Colours and dashes by line, so that lines can be distinguished without colours.
PENS = (("#2b83ba", ""), ("#e0692a", "7 3"), ("#1f9d76", "2 3"), ("#a88a1c", "10 3 2 3"), ("#7a67d0", "14 4"))
STYLE = (
    ".lines text{font:12px system-ui,sans-serif;fill:#1b2430}.lines .soft{fill:#566274}.lines .title{font-weight:600}"
    ".lines .axis{stroke:#c3cad5;fill:none}.lines .curve{fill:none;stroke-width:2}"
    "@media(prefers-color-scheme:dark){.lines text{fill:#e6eaf0}.lines .soft{fill:#9fabbb}.lines .axis{stroke:#3a4556}}"
)


@dataclass(frozen=True, slots=True)
class ChartLine:
    """A named line: x (> 0) and y, and whether its highest point is marked."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    mark_best: bool = False


def lines_svg(
    title: str, lines: Sequence[ChartLine], x_label: str, y_label: str, *, width: int = 420, height: int = 300
) -> str:
    """Draw `lines` over x in powers of two, y from 0, in `width` x `height` pixels.

    `x_label` and `y_label` name the axes. Raises `InputError` for a line that cannot be drawn.
    """
    for line in lines:
        if len(line.x) != len(line.y) or not len(line.x) or min(line.x) <= 0 or not all(map(math.isfinite, line.y)):
            raise InputError(f"line {line.name!r} needs as many finite y as x, and x > 0")
    low = min(math.floor(math.log2(min(line.x))) for line in lines)
    high = max(max(math.ceil(math.log2(max(line.x))) for line in lines), low + 1)
    top_y, step = round_up(max(max(line.y) for line in lines))
    left, right, top, bottom = 52, width - 20, 44 + 16 * len(lines), height - 40

    def at(x: float, y: float) -> tuple[float, float]:
        across = (math.log2(x) - low) / (high - low)
        return left + across * (right - left), bottom - y / top_y * (bottom - top)

    parts = [
        text_at(8, 18, title, "class='title'"),
        f"<path class='axis' d='M{left} {top}V{bottom}H{right}'/>",
        text_at(8, top - 10, y_label, "class='soft'"),
        text_at((left + right) / 2, height - 6, x_label, "class='soft' text-anchor='middle'"),
    ]
    for i in range(round(top_y / step) + 1):
        y = at(2.0**low, i * step)[1]
        parts.append(text_at(left - 6, y + 4, f"{i * step:g}", "class='soft' text-anchor='end'"))
    every = max(1, math.ceil((high - low) / 8))
    parts += [
        text_at(at(2.0**power, 0)[0], bottom + 16, f"{2**power:g}", "class='soft' text-anchor='middle'")
        for power in range(low, high + 1, every)
    ]
    for i, line in enumerate(lines):
        colour, dash = PENS[i % len(PENS)]
        pen = f"stroke='{colour}' stroke-dasharray='{dash}'"
        places = [at(x, y) for x, y in zip(line.x, line.y, strict=True)]
        parts.append(f"<polyline class='curve' {pen} points='{' '.join(f'{x:.1f},{y:.1f}' for x, y in places)}'/>")
        if line.mark_best:
            x, y = places[max(range(len(places)), key=lambda k: line.y[k])]
            parts.append(f"<circle cx='{x:.1f}' cy='{y:.1f}' r='4' fill='{colour}'/>")
        parts.append(f"<path {pen} stroke-width='2' d='M{left + 8} {30 + 16 * i}h24'/>")
        parts.append(text_at(left + 38, 34 + 16 * i, line.name))
    return _drawn(title, lines, parts, width, height)


def _drawn(title: str, lines: Sequence[ChartLine], parts: list[str], width: int, height: int) -> str:
    """A picture of these lines, made of `parts`."""
    label = escape(f"{title}: {', '.join(line.name for line in lines)}")
    head = f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {width} {height}' width='{width}' height='{height}'"
    body = "\n".join(parts)
    return f"{head} role='img' class='lines'>\n<title>{label}</title>\n<style>{STYLE}</style>\n{body}\n</svg>\n"


def round_up(value: float) -> tuple[float, float]:
    """A round number not below `value`, and a step that divides it, for an axis from 0."""
    if value <= 0:
        return 1.0, 0.5
    unit = 10.0 ** math.floor(math.log10(value))
    for factor, step in ((1.0, 0.25), (1.5, 0.5), (2.0, 0.5), (3.0, 1.0), (4.0, 1.0), (5.0, 1.0), (8.0, 2.0)):
        if value <= factor * unit * (1 + 1e-9):
            return factor * unit, step * unit
    return 10 * unit, 2.5 * unit


def text_at(x: float, y: float, text: str, more: str = "") -> str:
    """A text of a picture; `more` are attributes."""
    return f"<text x='{x:.1f}' y='{y:.1f}' {more}>{escape(text)}</text>"


#: Fill patterns by series; the same order as the columns of their tables.
_FILLS = ("#2b83ba", "#e0692a", "#1f9d76", "#a88a1c", "#7a67d0", "#c0609c")
#: The value above a bar narrower than this is turned, so that it does not run into the next one's.
ROOM = 20.0
_STYLE = (
    ".bars text{font:12px system-ui,sans-serif;fill:#1b2430}.bars .soft{fill:#566274}.bars .title{font-weight:600}"
    ".bars .axis{stroke:#c3cad5}"
    ".bars .mark{stroke:#1b2430;stroke-width:2}.bars .range{fill:none;stroke:#1b2430;stroke-dasharray:3 2}"
    "@media(prefers-color-scheme:dark){.bars text{fill:#e6eaf0}.bars .soft{fill:#9fabbb}.bars .axis{stroke:#3a4556}"
    ".bars .mark,.bars .range{stroke:#e6eaf0}}"
)


@dataclass(frozen=True, slots=True)
class GroupedBar:
    """One bar: its height, and the published height, `low` to `high`, where it is known (NaN otherwise)."""

    group: str
    series: str
    value: float
    low: float = math.nan
    high: float = math.nan


def grouped_bars_svg(title: str, bars: Sequence[GroupedBar], width: int = 760, up_to: float | None = None) -> str:
    """Vertical bars from 0. A published value is a line across the bar, a published range a dashed box.

    Groups and series come in order of first appearance. The axis reaches at least `up_to`, so that
    pictures can be compared.
    """
    groups = list(dict.fromkeys(bar.group for bar in bars))
    series = list(dict.fromkeys(bar.series for bar in bars))
    left, top, bottom, height = 44, 58, 250, 284
    highest = highest_of(bars) if up_to is None else max(up_to, highest_of(bars))
    power = 10.0 ** math.floor(math.log10(highest))
    step = next(m * power for m in (0.2, 0.5, 1.0, 2.0) if highest <= 6 * m * power)
    scale = (bottom - top) / (math.ceil(highest / step - 1e-9) * step)
    parts = [text_at(8, 16, title, "class='title'")]
    for i, name in enumerate(series):
        x = left + i * (width - left) / max(len(series), 4)
        parts.append(f"<rect x='{x:.1f}' y='28' width='11' height='11' rx='2' fill='{_FILLS[i % len(_FILLS)]}'/>")
        parts.append(text_at(x + 16, 38, name))
    for k in range(math.ceil(highest / step - 1e-9) + 1):
        y = bottom - k * step * scale
        parts.append(f"<path class='axis' d='M{left} {y:.1f}H{width - 8}'/>")
        parts.append(text_at(left - 6, y + 4, f"{k * step:g}", "class='soft' text-anchor='end'"))
    span = (width - left - 8) / max(len(groups), 1)
    wide = min(34.0, 0.8 * span / max(len(series), 1))
    for bar in bars:
        if not math.isfinite(bar.value):
            continue
        at, index = groups.index(bar.group), series.index(bar.series)
        x = left + at * span + span / 2 + (index - len(series) / 2) * wide
        parts += _bar(bar, x, wide - 3, bottom, scale, _FILLS[index % len(_FILLS)])
    for i, name in enumerate(groups):
        parts.append(text_at(left + (i + 0.5) * span, bottom + 18, name, "text-anchor='middle'"))
    head = f"<svg xmlns='http://www.w3.org/2000/svg' class='bars' viewBox='0 0 {width} {height}' width='{width}'"
    body = "\n".join(parts)
    return f"{head} role='img'>\n<title>{escape(title)}</title>\n<style>{_STYLE}</style>\n{body}\n</svg>\n"


def highest_of(bars: Sequence[GroupedBar]) -> float:
    """The largest value of bars and marks; 1 if there is none."""
    return max((v for b in bars for v in (b.value, b.high) if math.isfinite(v)), default=1.0) or 1.0


def _bar(bar: GroupedBar, x: float, wide: float, bottom: float, scale: float, fill: str) -> list[str]:
    y = bottom - bar.value * scale
    low, high = bottom - bar.low * scale, bottom - bar.high * scale
    known = math.isfinite(bar.low) and math.isfinite(bar.high)
    published = ""
    if known:
        shown = f"{bar.low:.3g}" if bar.low == bar.high else f"{bar.low:.3g} to {bar.high:.3g}"
        published = f", published {shown}"
    tip = f"<title>{escape(f'{bar.group}, {bar.series}: {bar.value:.3g}{published}')}</title>"
    area = f"x='{x:.1f}' y='{y:.1f}' width='{wide:.1f}' height='{bottom - y:.1f}'"
    parts = [f"<rect {area} fill='{fill}'>{tip}</rect>"]
    if known and bar.low == bar.high:
        parts.append(f"<path class='mark' d='M{x - 2:.1f} {low:.1f}h{wide + 4:.1f}'/>")
    elif known:
        parts.append(f"<rect class='range' x='{x:.1f}' y='{high:.1f}' width='{wide:.1f}' height='{low - high:.1f}'/>")
    above, middle = (min(y, high) if known else y) - 5, x + wide / 2
    upright = f"transform='rotate(-90 {middle:.1f} {above:.1f})' dy='3.5'"
    lies = "text-anchor='middle'" if wide >= ROOM else upright
    parts.append(text_at(middle, above, f"{bar.value:.2f}", f"{lies} style='font-size:10px'"))
    return parts


_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns"))


def unit_of_time(span_s: float) -> tuple[float, str]:
    """The seconds of a unit in which a span is a number of at least 1, and its name.

    >>> unit_of_time(0.02), unit_of_time(3e-6)
    ((0.001, 'ms'), (1e-06, 'us'))
    """
    return next((one for one in _UNITS if span_s >= one[0]), _UNITS[-1])


def series_svg(title: str, lines: Sequence[ChartLine], y_label: str, *, width: int = 560) -> str:
    """Draw `lines` over time, whose x are seconds from 0, y from 0; as many as there are pens, the rest is left out."""
    shown = lines[: len(PENS)]
    last_s = max((max(line.x, default=0.0) for line in lines), default=0.0) or 1.0
    seconds, unit = unit_of_time(last_s)
    top_x, step_x = round_up(last_s / seconds)
    top_y, step_y = round_up(max((max(line.y, default=0.0) for line in shown), default=0.0))
    height = 300
    left, right, top, bottom = 56, width - 16, 44 + 16 * ((len(shown) + 2) // 3), height - 40

    def at(x: float, y: float) -> tuple[float, float]:
        return left + x / top_x * (right - left), bottom - y / top_y * (bottom - top)

    parts = [
        text_at(8, 18, title, "class='title'"),
        f"<path class='axis' d='M{left} {top}V{bottom}H{right}'/>",
        text_at(8, top - 10, y_label, "class='soft'"),
        text_at((left + right) / 2, height - 6, f"time, {unit}", "class='soft' text-anchor='middle'"),
    ]
    parts += [
        text_at(left - 6, at(0, i * step_y)[1] + 4, f"{i * step_y:g}", "class='soft' text-anchor='end'")
        for i in range(round(top_y / step_y) + 1)
    ]
    parts += [
        text_at(at(i * step_x, 0)[0], bottom + 16, f"{i * step_x:g}", "class='soft' text-anchor='middle'")
        for i in range(round(top_x / step_x) + 1)
    ]
    for i, line in enumerate(shown):
        colour, dash = PENS[i]
        pen = f"stroke='{colour}' stroke-dasharray='{dash}'"
        places = " ".join(
            f"{x:.1f},{y:.1f}" for x, y in (at(a / seconds, b) for a, b in zip(line.x, line.y, strict=True))
        )
        parts.append(f"<polyline class='curve' {pen} points='{places}'/>")
        x, y = 8 + (i % 3) * width / 3, 30 + 16 * (i // 3)
        parts.append(f"<path {pen} stroke-width='2' d='M{x:.0f} {y}h24'/>{text_at(x + 30, y + 4, line.name)}")
    return _drawn(title, shown, parts, width, height)


# A run as a Chrome trace, to open in Perfetto (ui.perfetto.dev) or chrome://tracing.


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
    t = result.timeline
    waiting = Steps.of(t.wait_from_s, t.wait_to_s)
    for at_s, jobs in zip(waiting.times_s.tolist(), waiting.values.tolist(), strict=True):
        yield {"ph": "C", "pid": 0, "name": "waiting jobs", "ts": _us(at_s), "args": {"jobs": int(jobs)}}
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
