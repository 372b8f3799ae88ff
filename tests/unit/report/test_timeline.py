import json
import xml.etree.ElementTree as ET

import pytest

from plait.core.errors import InputError
from plait.report.sections import cdf_svg, policy_bars_svg
from plait.report.timeline import write_chrome_trace


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
    for svg in (policy_bars_svg(results), cdf_svg(results), policy_bars_svg([make("<b>&")], "p99_jct_s")):
        assert ET.fromstring(svg).tag.endswith("svg")
    assert "★" in policy_bars_svg(results)
    with pytest.raises(InputError, match="did you mean 'avg_jct_s'"):
        policy_bars_svg(results, "avg_jct")
