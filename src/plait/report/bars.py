"""Grouped bars as SVG: one group a label, one bar a series, with what others published as a mark across the bar."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

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


def grouped_bars_svg(
    title: str, bars: Sequence[GroupedBar], unit: str = "", width: int = 760, up_to: float | None = None
) -> str:
    """Vertical bars from 0. A published value is a line across the bar, a published range a dashed box.

    Groups and series come in order of first appearance. The axis reaches at least `up_to`, so that
    pictures can be compared.
    """
    groups = list(dict.fromkeys(bar.group for bar in bars))
    series = list(dict.fromkeys(bar.series for bar in bars))
    left, top, bottom, height = 44, 58, 250, 284
    highest = highest_of(bars) if up_to is None else max(up_to, highest_of(bars))
    step = _step(highest)
    scale = (bottom - top) / (math.ceil(highest / step - 1e-9) * step)
    parts = [_text(8, 16, title, "class='title'")]
    for i, name in enumerate(series):
        x = left + i * (width - left) / max(len(series), 4)
        parts.append(f"<rect x='{x:.1f}' y='28' width='11' height='11' rx='2' fill='{_FILLS[i % len(_FILLS)]}'/>")
        parts.append(_text(x + 16, 38, name))
    for k in range(math.ceil(highest / step - 1e-9) + 1):
        y = bottom - k * step * scale
        parts.append(f"<path class='axis' d='M{left} {y:.1f}H{width - 8}'/>")
        parts.append(_text(left - 6, y + 4, f"{k * step:g}{unit}", "class='soft' text-anchor='end'"))
    span = (width - left - 8) / max(len(groups), 1)
    wide = min(34.0, 0.8 * span / max(len(series), 1))
    for bar in bars:
        if not math.isfinite(bar.value):
            continue
        at, index = groups.index(bar.group), series.index(bar.series)
        x = left + at * span + span / 2 + (index - len(series) / 2) * wide
        parts += _bar(bar, x, wide - 3, bottom, scale, _FILLS[index % len(_FILLS)], unit)
    for i, name in enumerate(groups):
        parts.append(_text(left + (i + 0.5) * span, bottom + 18, name, "text-anchor='middle'"))
    head = f"<svg xmlns='http://www.w3.org/2000/svg' class='bars' viewBox='0 0 {width} {height}' width='{width}'"
    body = "\n".join(parts)
    return f"{head} role='img'>\n<title>{escape(title)}</title>\n<style>{_STYLE}</style>\n{body}\n</svg>\n"


def highest_of(bars: Sequence[GroupedBar]) -> float:
    """The largest value of bars and marks; 1 if there is none."""
    return max((v for b in bars for v in (b.value, b.high) if math.isfinite(v)), default=1.0) or 1.0


def _bar(bar: GroupedBar, x: float, wide: float, bottom: float, scale: float, fill: str, unit: str) -> list[str]:
    y = bottom - bar.value * scale
    low, high = bottom - bar.low * scale, bottom - bar.high * scale
    known = math.isfinite(bar.low) and math.isfinite(bar.high)
    published = ""
    if known:
        shown = f"{bar.low:.3g}" if bar.low == bar.high else f"{bar.low:.3g} to {bar.high:.3g}"
        published = f", published {shown}{unit}"
    tip = f"<title>{escape(f'{bar.group}, {bar.series}: {bar.value:.3g}{unit}{published}')}</title>"
    area = f"x='{x:.1f}' y='{y:.1f}' width='{wide:.1f}' height='{bottom - y:.1f}'"
    parts = [f"<rect {area} fill='{fill}'>{tip}</rect>"]
    if known and bar.low == bar.high:
        parts.append(f"<path class='mark' d='M{x - 2:.1f} {low:.1f}h{wide + 4:.1f}'/>")
    elif known:
        parts.append(f"<rect class='range' x='{x:.1f}' y='{high:.1f}' width='{wide:.1f}' height='{low - high:.1f}'/>")
    above, middle = (min(y, high) if known else y) - 5, x + wide / 2
    upright = f"transform='rotate(-90 {middle:.1f} {above:.1f})' dy='3.5'"
    lies = "text-anchor='middle'" if wide >= ROOM else upright
    parts.append(_text(middle, above, f"{bar.value:.2f}", f"{lies} style='font-size:10px'"))
    return parts


def _step(highest: float) -> float:
    """A round distance between lines of the grid."""
    power = 10.0 ** math.floor(math.log10(highest))
    return next(m * power for m in (0.2, 0.5, 1.0, 2.0) if highest <= 6 * m * power)


def _text(x: float, y: float, text: str, more: str = "") -> str:
    return f"<text x='{x:.1f}' y='{y:.1f}' {more}>{escape(text)}</text>"
