"""Static pictures for documents: small SVG files, written by hand, for light and dark pages."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from html import escape

from plait.control.compare import compare
from plait.control.metrics import RunResult
from plait.core.errors import InputError, suggest
from plait.report.metrics import METRICS, best, show, unit_of
from plait.report.payload import distribution
from plait.report.tables import figure, labels

_STYLE = (
    "text{font:13px system-ui,sans-serif;fill:#1b2430}.soft{fill:#566274;stroke:none}.axis{stroke:#8a94a3}"
    ".bar{fill:#5b8fc7}.best{fill:#0a7a45}.whisker{stroke:#1b2430;stroke-width:1.5}"
    "polyline{fill:none;stroke-width:2}"
    "@media(prefers-color-scheme:dark){text{fill:#e6eaf0}.soft{fill:#9fabbb}.bar{fill:#4f7fb5}"
    ".best{fill:#2fae72}.whisker{stroke:#e6eaf0}}"
)
_STROKES = ("#2b83ba", "#e0692a", "#1f9d76", "#c0609c", "#a88a1c", "#7a67d0")
_DASHES = ("", "7 3", "2 3", "10 3 2 3", "14 4", "4 2")


def policy_bars_svg(
    results: Iterable[RunResult], metric: str = "avg_jct_s", width: int = 640, time: tuple[str, float] | None = None
) -> str:
    """Horizontal bars of one figure, one a policy; the best is starred; whiskers are 95 % intervals over seeds.

    `time`: the unit of times, where a table next to the picture has chosen one.
    """
    known = {m.key: m for m in METRICS}
    if metric not in known:
        raise InputError(f"unknown metric {metric!r}; {suggest(metric, known)}")
    chosen = known[metric]
    rows = compare(results)
    names = labels(rows)
    values = [figure(row, chosen) for row in rows]
    unit, factor = unit_of(chosen, values, time)
    winner = best(chosen, values)
    room = max(int((0.45 * width - 24) / 8), 8)
    left = 24 + 8 * min(max((len(n) for n in names), default=0), room)
    highs = [row.figures[metric].high for row in rows if metric in row.figures]
    largest = max((v for v in [*values, *highs] if math.isfinite(v)), default=1.0) or 1.0
    scale = max(width - left - 110, 1) / largest
    parts = [_text(8, 20, f"{chosen.label}{f' ({unit})' if unit else ''}", "font-weight='600'")]
    for i, (name, value) in enumerate(zip(names, values, strict=True)):
        y = 36 + 28 * i
        short = name if len(name) <= room else f"{name[: room - 1]}…"
        parts.append(_text(left - 8, y + 14, short, "text-anchor='end'", name))
        if not math.isfinite(value):
            parts.append(_text(left + 4, y + 14, "–", "class='soft'"))
            continue
        kind = "best" if value == winner else "bar"
        parts.append(
            f"<rect class='{kind}' x='{left}' y='{y}' width='{max(value * scale, 1):.1f}' height='19' rx='2'/>"
        )
        low, high = rows[i].figures[metric].low, rows[i].figures[metric].high
        end = value
        if math.isfinite(low):
            x = [left + v * scale for v in (low, high)]
            parts.append(f"<path class='whisker' d='M{x[0]:.1f} {y + 9.5}H{x[1]:.1f}'/>")
            end = max(value, high)
        star = "★ " if kind == "best" else ""
        parts.append(_text(left + end * scale + 6, y + 14, star + show(value, factor)))
    return _svg(width, 48 + 28 * len(rows), f"{chosen.label} of {', '.join(names)}. {chosen.meaning}", parts)


def cdf_svg(results: Sequence[RunResult], column: str = "jct_s", width: int = 640, height: int = 320) -> str:
    """Distribution of the job column `column`, one line per run of `results`, on a logarithmic axis.

    `width` and `height` are in pixels.
    """
    names = [str(r.summary["policy"]) for r in results]
    lines = [[(max(float(x), 1e-3), float(y)) for x, y in distribution(r.jobs[column])] for r in results]
    xs = [x for line in lines for x, _ in line]
    low, high = (math.floor(math.log10(min(xs))), math.ceil(math.log10(max(xs)))) if xs else (0, 1)
    high = max(high, low + 1)
    left, right, top, bottom = 52, width - 32, 40, height - 34

    unit = " s" if column.endswith("_s") else ""

    def place(x: float, y: float) -> str:
        across = (math.log10(x) - low) / (high - low)
        return f"{left + across * (right - left):.1f},{bottom - y * (bottom - top):.1f}"

    parts = [f"<path class='axis' fill='none' d='M{left} {top}V{bottom}H{right}'/>"]
    for share in (0, 50, 100):
        y = bottom - share / 100 * (bottom - top)
        parts.append(_text(left - 6, y + 4, f"{share} %", "class='soft' text-anchor='end'"))
    for power in range(low, high + 1):
        x = left + (power - low) / (high - low) * (right - left)
        parts.append(_text(x, bottom + 18, f"{10.0**power:g}{unit}", "class='soft' text-anchor='middle'"))
    for i, (name, line) in enumerate(zip(names, lines, strict=True)):
        pen = f"stroke='{_STROKES[i % len(_STROKES)]}' stroke-dasharray='{_DASHES[i % len(_DASHES)]}'"
        parts.append(f"<polyline {pen} points='{' '.join(place(x, y) for x, y in line)}'/>")
        x = left + (i % 4) * (right - left) / 4
        y = 14 + 16 * (i // 4)
        parts.append(f"<path {pen} stroke-width='2' d='M{x:.0f} {y - 4}h24'/>{_text(x + 30, y, name)}")
    return _svg(width, height, f"Distribution of {column} for {', '.join(names)}", parts)


def _text(x: float, y: float, text: str, more: str = "", whole: str = "") -> str:
    """A text; `whole` is shown by the mouse where the text had to be cut."""
    title = f"<title>{escape(whole)}</title>" if whole and whole != text else ""
    return f"<text x='{x:.1f}' y='{y:.1f}' {more}>{escape(text)}{title}</text>"


def _svg(width: int, height: int, title: str, parts: Sequence[str]) -> str:
    head = f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {width} {height}' width='{width}' height='{height}'"
    body = "\n".join(parts)
    return f"{head} role='img'>\n<title>{escape(title)}</title>\n<style>{_STYLE}</style>\n{body}\n</svg>\n"
