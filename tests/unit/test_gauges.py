"""The gauges of the source are within the limits of CONTRIBUTING.md."""

from __future__ import annotations

import re

import pytest

import gauges

PAGE = gauges.ROOT / "CONTRIBUTING.md"
ROW = re.compile(r"^\| (.+?) \| at (most|least) ([\d.,]+) \| [\d.,]+ \|$", re.MULTILINE)


def test_words_of_the_dialect_are_counted_where_they_hide_a_noun() -> None:
    text = "What waits is stopped. It stops what waits; those that run say so."
    assert gauges.DIALECT.findall(text) == ["What", "those", "say"]
    assert gauges.dialect_per_mille([text]) == pytest.approx(1000 * 3 / 13)
    assert gauges.plain("a `say` b\n```sh\nthose\n```\nc").split() == ["a", "b", "c"]
    assert gauges.comments('x = 1  # why\n#: unit\ny = "# no"  # noqa: E501\n') == ["why", "unit"]


def test_no_gauge_is_worse_than_its_limit() -> None:
    if not PAGE.exists():
        pytest.skip("plait is installed without CONTRIBUTING.md")
    limits = {name: (side, float(text.replace(",", ""))) for name, side, text in ROW.findall(PAGE.read_text("utf-8"))}
    measured = gauges.gauges()
    assert set(limits) == set(measured)
    worse = {
        name: f"{measured[name]:,.1f}, limit at {side} {limit:,.1f}"
        for name, (side, limit) in limits.items()
        if (measured[name] > limit) is (side == "most") and measured[name] != limit
    }
    assert worse == {}, "see Gauges in CONTRIBUTING.md"
