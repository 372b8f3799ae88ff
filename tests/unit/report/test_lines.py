"""Pictures of lines: well formed, every line there, its best point where it is."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from plait.core.errors import InputError
from plait.report.charts import ChartLine, lines_svg

SVG = "{http://www.w3.org/2000/svg}"


def test_every_line_is_drawn_and_named_and_its_best_point_marked() -> None:
    lines = [ChartLine("a <b>", [1, 2, 4, 8], [1, 3, 2, 1], mark_best=True), ChartLine("flat", [1, 8], [0.5, 0.5])]
    root = ElementTree.fromstring(lines_svg("Goodput", lines, "batch", "examples/s"))
    curves = [c.attrib["points"].split() for c in root.iter(f"{SVG}polyline")]
    assert [len(c) for c in curves] == [4, 2]
    (best,) = root.iter(f"{SVG}circle")
    assert f"{best.attrib['cx']},{best.attrib['cy']}" == curves[0][1]
    words = [t.text for t in root.iter(f"{SVG}text")]
    assert {"a <b>", "flat", "batch", "examples/s", "Goodput"} <= set(words)


def test_powers_of_two_are_equally_far_apart() -> None:
    picture = lines_svg("t", [ChartLine("a", [1, 2, 4], [1, 1, 1])], "x", "y")
    (points,) = re.findall(r"points='([^']*)'", picture)
    x = [float(p.split(",")[0]) for p in points.split()]
    assert x[2] - x[1] == pytest.approx(x[1] - x[0], abs=0.11)


@pytest.mark.parametrize(
    "line",
    [
        ChartLine("a", [0, 1], [1, 1]),
        ChartLine("a", [1], [1, 2]),
        ChartLine("a", [], []),
        ChartLine("a", [1], [float("nan")]),
    ],
)
def test_lines_that_cannot_be_drawn_are_named(line: ChartLine) -> None:
    with pytest.raises(InputError, match="'a'"):
        lines_svg("t", [line], "x", "y")
