"""Measured against predicted: a point each, the line on which both agree, and a band around it, as SVG."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from plait.core.errors import InputError
from plait.report.charts import PENS, STYLE, round_up, text_at


@dataclass(frozen=True, slots=True)
class Cloud:
    """Named points: x and y, finite and not negative."""

    name: str
    x: Sequence[float]
    y: Sequence[float]


def scatter_svg(
    title: str, clouds: Sequence[Cloud], x_label: str, y_label: str, *, band: float = 0.0, relative: bool = True,
    width: int = 420, height: int = 420,
) -> str:  # fmt: skip
    """Draw `clouds` over equal axes from 0, in `width` x `height` pixels.

    `band`: in addition to the line of agreement, lines at 1 - band and 1 + band times x, or band below and above x if
    not `relative`. Raises `InputError` for points that cannot be drawn.
    """
    for cloud in clouds:
        values = (*cloud.x, *cloud.y)
        if len(cloud.x) != len(cloud.y) or not all(math.isfinite(one) and one >= 0 for one in values):
            raise InputError(f"points {cloud.name!r} need as many y as x, finite and not negative")
    top_value, step = round_up(max((max(*cloud.x, *cloud.y) for cloud in clouds if len(cloud.x)), default=0.0))
    left, right, top, bottom = 52, width - 20, 44 + 16 * len(clouds), height - 40

    def at(x: float, y: float) -> tuple[float, float]:
        return left + x / top_value * (right - left), bottom - y / top_value * (bottom - top)

    def line(slope: float, shift: float, more: str) -> str:
        """Y = slope * x + shift, as far as it is inside."""
        first = max(0.0, -shift / slope)
        last = min(top_value, (top_value - shift) / slope)
        (x0, y0), (x1, y1) = at(first, slope * first + shift), at(last, slope * last + shift)
        return f"<path class='axis' {more} d='M{x0:.1f} {y0:.1f}L{x1:.1f} {y1:.1f}'/>"

    parts = [
        text_at(8, 18, title, "class='title'"),
        f"<path class='axis' d='M{left} {top}V{bottom}H{right}'/>",
        text_at(8, top - 10, y_label, "class='soft'"),
        text_at((left + right) / 2, height - 6, x_label, "class='soft' text-anchor='middle'"),
        line(1.0, 0.0, ""),
    ]
    for sign in (-1, 1) if band else ():
        dashed = "stroke-dasharray='4 4'"
        parts.append(line(1 + sign * band, 0.0, dashed) if relative else line(1.0, sign * band, dashed))
    for i in range(round(top_value / step) + 1):
        x, y = at(i * step, i * step)
        parts.append(text_at(left - 6, y + 4, f"{i * step:g}", "class='soft' text-anchor='end'"))
        parts.append(text_at(x, bottom + 16, f"{i * step:g}", "class='soft' text-anchor='middle'"))
    for i, cloud in enumerate(clouds):
        colour, y = PENS[i % len(PENS)][0], 30 + 16 * i
        places = [(left + 16.0, float(y)), *(at(a, b) for a, b in zip(cloud.x, cloud.y, strict=True))]
        parts += [_mark(i, x, y, colour) for x, y in places]
        parts.append(text_at(left + 30, y + 4, cloud.name))
    label = escape(f"{title}: {', '.join(cloud.name for cloud in clouds)}")
    head = f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {width} {height}' width='{width}' height='{height}'"
    body = "\n".join(parts)
    return f"{head} role='img' class='lines'>\n<title>{label}</title>\n<style>{STYLE}</style>\n{body}\n</svg>\n"


def _mark(i: int, x: float, y: float, colour: str) -> str:
    """A mark at a place; its form shows its cloud, also without colours."""
    forms = (
        "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0",
        "M-4-4h8v8h-8z",
        "M0-5L5 4H-5z",
        "M-4-4L4 4M4-4L-4 4",
        "M0-5L5 0L0 5L-5 0z",
    )
    return (
        f"<path transform='translate({x:.1f} {y:.1f})' d='{forms[i % len(forms)]}' fill='{colour}' fill-opacity='.35' "
        f"stroke='{colour}' stroke-width='1.5'/>"
    )
