"""Lines as SVG over a logarithmic axis: how a quantity changes with the batch size, the GPUs, an interval."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from plait.core.errors import InputError

#: Colours and dashes by line, so that lines can be distinguished without colours.
PENS = (("#2b83ba", ""), ("#e0692a", "7 3"), ("#1f9d76", "2 3"), ("#a88a1c", "10 3 2 3"), ("#7a67d0", "14 4"))
STYLE = (
    ".lines text{font:12px system-ui,sans-serif;fill:#1b2430}.lines .soft{fill:#566274}.lines .title{font-weight:600}"
    ".lines .axis{stroke:#c3cad5;fill:none}.lines .curve{fill:none;stroke-width:2}"
    "@media(prefers-color-scheme:dark){.lines text{fill:#e6eaf0}.lines .soft{fill:#9fabbb}.lines .axis{stroke:#3a4556}}"
)


@dataclass(frozen=True, slots=True)
class Line:
    """A named line: x (> 0) and y, and whether its highest point is marked."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    mark_best: bool = False


def lines_svg(
    title: str, lines: Sequence[Line], x_label: str, y_label: str, *, width: int = 420, height: int = 300
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
