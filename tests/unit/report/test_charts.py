"""Charts of reports: bars, lines, points, stages and timelines as SVG."""

from __future__ import annotations

import json
import math
import re
import xml.etree.ElementTree as ET
from xml.etree import ElementTree

import pytest

from plait.core.errors import InputError
from plait.report.charts import ChartLine, GroupedBar, grouped_bars_svg, lines_svg, write_chrome_trace
from plait.report.sections import policy_bars_svg

SPACE = "{http://www.w3.org/2000/svg}"


def drawn(*bars):
    return ET.fromstring(grouped_bars_svg("Mean <JCT>", bars))


def heights(root):
    rects = [r for r in root.iter(f"{SPACE}rect") if r.find(f"{SPACE}title") is not None]
    return [float(r.get("height")) for r in rects]


def test_heights_are_proportional():
    root = drawn(GroupedBar("a", "x", 1.0), GroupedBar("a", "y", 2.0), GroupedBar("b", "x", 0.5))
    one, two, half = heights(root)
    assert (two / one, half / one) == pytest.approx((2, 0.5), rel=0.01)
    texts = [t.text for t in root.iter(f"{SPACE}text")]
    assert {"Mean <JCT>", "a", "b", "x", "y", "1.00", "2.00", "0.50"} <= set(texts)


def test_published_values_are_marks_and_ranges_boxes():
    root = drawn(GroupedBar("a", "x", 1.0, 1.2, 1.2), GroupedBar("b", "x", 1.0, 0.9, 1.5), GroupedBar("c", "x", 1.0))
    kinds = [e.get("class") for e in root.iter() if e.get("class") in ("mark", "range")]
    assert sorted(kinds) == ["mark", "range"]
    tips = [t.text for t in root.iter(f"{SPACE}title")]
    assert "a, x: 1, published 1.2" in tips
    assert "b, x: 1, published 0.9 to 1.5" in tips
    assert "c, x: 1" in tips


def test_unknown_values_leave_a_gap():
    root = drawn(GroupedBar("a", "x", math.nan), GroupedBar("a", "y", 3.0))
    assert len(heights(root)) == 1


@pytest.mark.parametrize("highest", [1e-3, 0.19, 1.0, 5.99, 6.01, 7e5])
def test_the_tallest_bar_stays_in_the_picture(highest):
    (height,) = heights(drawn(GroupedBar("a", "x", highest)))
    assert 60 < height <= 192.1


def test_pictures_to_compare_share_their_axis():
    (alone,) = heights(drawn(GroupedBar("a", "x", 1.0)))
    root = ET.fromstring(grouped_bars_svg("", [GroupedBar("a", "x", 1.0)], up_to=4.0))
    assert heights(root)[0] == pytest.approx(alone / 4, rel=0.01)


def test_values_of_thin_bars_are_turned():
    def turned(groups):
        root = drawn(*(GroupedBar(str(i), s, 1.0) for i in range(groups) for s in "abcd"))
        return sum("rotate" in t.get("transform", "") for t in root.iter(f"{SPACE}text"))

    assert (turned(2), turned(12)) == (0, 48)


# Pictures of lines: well formed, every line there, its best point where it is.

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


def test_the_trace_has_every_gpu_second_and_names(make, tmp_path):
    result = make("fifo", id='"<&')
    write_chrome_trace(result, tmp_path / "t.json")
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    complete = [e for e in events if e["ph"] == "X"]
    assert sum(e["dur"] for e in complete) == pytest.approx(1e6 * result.jobs["attained_gpu_s"].sum())
    assert {e["name"] for e in complete} == set(result.jobs["id"])
    assert sum(e["name"] == "thread_name" for e in events) == 4
    assert [e["args"]["jobs"] for e in events if e["ph"] == "C"][-1] == 0


def test_jobs_that_share_a_gpu_nest(make, tmp_path):
    write_chrome_trace(make("shared", company=2), tmp_path / "t.json")
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    open_until: dict[int, list[int]] = {}
    for e in (e for e in events if e["ph"] == "X"):
        stack = open_until.setdefault(e["tid"], [])
        while stack and stack[-1] <= e["ts"]:
            stack.pop()
        assert not stack or stack[-1] >= e["ts"] + e["dur"]
        stack.append(e["ts"] + e["dur"])


def test_pictures_are_well_formed_and_name_the_policies(results, make):
    for svg in (policy_bars_svg(results), policy_bars_svg([make("<b>&")], "p99_jct_s")):
        assert ET.fromstring(svg).tag.endswith("svg")
    assert "★" in policy_bars_svg(results)
    with pytest.raises(InputError, match="did you mean 'avg_jct_s'"):
        policy_bars_svg(results, "avg_jct")
