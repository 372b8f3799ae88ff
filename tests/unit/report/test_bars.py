"""Grouped bars."""

import math
import xml.etree.ElementTree as ET

import pytest

from plait.report.charts import GroupedBar, grouped_bars_svg

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
