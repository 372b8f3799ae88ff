"""The Gantt of stages: slots as in the formula, nothing left out, names escaped."""

import math
import xml.etree.ElementTree as ET

import pytest

from plait.report.sections import StageGroup, StageRow, stages_page, stages_svg, write_stages

A, B = StageRow("a", 0, (1.0, 2.0, 3.0, 1.0)), StageRow("b", 1, (2.0, 1.0, 1.0, 0.0))


def test_a_bar_for_every_stage_that_takes_time():
    drawing = ET.fromstring(stages_svg([A, B]))
    titles = [t.text for t in drawing.iter("{http://www.w3.org/2000/svg}title")]
    assert len(titles) == 7
    assert "b: cpu 1000.0 ms" in titles
    assert "8000.0 ms" in "".join(drawing.itertext())
    widths = {t: float(r.get("width")) for r in drawing.iter() if r.tag.endswith("rect") for t in r.itertext()}
    assert widths["a: gpu 3000.0 ms"] == pytest.approx(3 * widths["a: storage 1000.0 ms"], rel=0.01)


def test_a_page_escapes_names_and_says_what_is_missing(tmp_path):
    group = StageGroup("<script>", ("12 ms measured",), (StageRow("<b>", 0, (math.nan,) * 4),))
    page = stages_page([group], "t")
    assert "<script>" not in page
    assert "&lt;b&gt;" in page
    assert "Not all stage times" in page
    write_stages([], tmp_path / "stages.html")
    assert "No jobs took turns" in (tmp_path / "stages.html").read_text()
