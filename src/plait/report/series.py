"""Lines over time as SVG: what a simulation measures in bins of equal width."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from plait.report.lines import PENS, STYLE, Line, round_up, text_at

_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns"))


def unit_of_time(span_s: float) -> tuple[float, str]:
    """The seconds of a unit in which a span is a number of at least 1, and its name.

    >>> unit_of_time(0.02), unit_of_time(3e-6)
    ((0.001, 'ms'), (1e-06, 'us'))
    """
    return next((one for one in _UNITS if span_s >= one[0]), _UNITS[-1])


def series_svg(title: str, lines: Sequence[Line], y_label: str, *, width: int = 560, height: int = 300) -> str:
    """Draw `lines` over time, whose x are seconds from 0, y from 0; as many as there are pens, the rest is left out."""
    shown = lines[: len(PENS)]
    last_s = max((max(line.x, default=0.0) for line in lines), default=0.0) or 1.0
    seconds, unit = unit_of_time(last_s)
    top_x, step_x = round_up(last_s / seconds)
    top_y, step_y = round_up(max((max(line.y, default=0.0) for line in shown), default=0.0))
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
    label = escape(f"{title}: {', '.join(line.name for line in shown)}")
    head = f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {width} {height}' width='{width}' height='{height}'"
    body = "\n".join(parts)
    return f"{head} role='img' class='lines'>\n<title>{label}</title>\n<style>{STYLE}</style>\n{body}\n</svg>\n"
