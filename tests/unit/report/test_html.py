import json
import re
import shutil
import subprocess
from html import unescape
from pathlib import Path

import numpy as np
import pytest

from plait.report.html import html_report, write_html
from plait.report.payload import distribution, embed, gantt

CHROMIUM = next((p for n in ("chromium", "chromium-browser", "google-chrome") if (p := shutil.which(n))), None)
HOSTILE = "</script><img src=x onerror=alert(1)>&\u2028'\""


def data_of(page: str) -> dict:
    return json.loads(re.search(r'<script type="application/json" id="report-data">(.*?)</script>', page, re.S)[1])


def test_the_page_is_complete_and_loads_nothing(results):
    page = html_report(results, settings={"Load": "1.5"})
    own = re.sub(r"<script>/?.*?</script>", "", page, flags=re.S)  # without the chart library
    assert not re.findall(r"""(?:src|href)=["'](?!#|data:|https://echarts\.apache\.org)""", own)
    assert "Content-Security-Policy" in page
    for text in ("<title>2 policies on tiny</title>", "linear, at (n - 1) q", "1.5", "Show all figures"):
        assert text in page
    assert page == html_report(results, settings={"Load": "1.5"})


def test_hostile_names_stay_text(make):
    result = make(f"policy{HOSTILE}", id=HOSTILE)
    page = html_report([result], title=HOSTILE, settings={HOSTILE: HOSTILE})
    assert "<img src=x" not in page
    assert page.count("</script>") == 3
    run = data_of(page)["runs"][0]
    assert run["jobs"]["id"][0] == f"{HOSTILE}-0"
    assert run["label"] == f"policy{HOSTILE}"


def test_what_is_left_out_is_counted(make):
    run = data_of(html_report([make(jobs=30)], rows=10))["runs"][0]
    assert (run["jobs"]["total"], run["jobs"]["shown"], len(run["jobs"]["id"])) == (30, 10, 10)
    assert run["gantt"]["shown"] == 10 < run["gantt"]["total"]
    assert run["gantt"]["until_s"] > 0


def test_bars_cover_what_was_held(make):
    result = make("shared", company=2)
    bars = gantt(result.timeline, result.jobs["id"], 1000, 0.0)
    assert bars["until_s"] is None
    area = sum(c * (b - a) for c, a, b in zip(bars["count"], bars["from"], bars["to"], strict=True))
    assert area == pytest.approx(result.jobs["attained_gpu_s"].sum())
    assert all(0 <= m < n for m, n in zip(bars["member"], bars["members"], strict=True))
    assert set(bars["members"]) >= {2}


def test_gangs_on_scattered_gpus_give_one_bar_a_stretch(make):
    timeline = make(jobs=1).timeline
    object.__setattr__(timeline, "group_gpus", np.array([0, 1, 3], dtype=np.int32))
    object.__setattr__(timeline, "group_first_gpu", np.array([0, 3]))
    bars = gantt(timeline, ["a"], 10, 0.0)
    assert (bars["gpu"], bars["count"], bars["total"]) == ([0, 3], [2, 1], 1)


def test_distributions_end_at_one_and_keep_the_tail():
    values = np.append(np.random.default_rng(0).lognormal(5, 2, 10_000), np.nan)
    points = distribution(values)
    assert len(points) < 500
    assert points[-1] == [round(np.nanmax(values), 3), 1]
    assert [p[1] for p in points] == sorted(p[1] for p in points)
    assert distribution(np.array([np.nan])) == []


def test_embedded_json_has_no_way_out():
    text = embed({"a": HOSTILE})
    assert not set(text) & set("<>&\u2028")
    assert json.loads(text) == {"a": HOSTILE}


@pytest.mark.parametrize("count", [0, 1])
def test_reports_of_nothing_and_of_one_run(make, count):
    page = html_report([make()] * count)
    assert "Settings and method" in page


def test_open_jobs_are_warned_about(make):
    result = make()
    result.summary["unfinished"] = 3
    assert "3 jobs did not end" in html_report([result])


browser = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here; install chromium to render the report")

#: What a reader does: sorts both tables, searches, turns pages, zooms and pans the Gantt chart, picks other figures.
READER = """
const heads = document.querySelectorAll("#compare-table thead button");
heads[1].click();
const firstAscending = byId("compare-table").tBodies[0].rows[0].cells[0].textContent;
heads[1].click();
const firstDescending = byId("compare-table").tBodies[0].rows[0].cells[0].textContent;
byId("jobs-next").click();
const page = byId("jobs-page").textContent;
byId("jobs-search").value = "job-7 ada";
byId("jobs-search").dispatchEvent(new Event("input"));
const found = [...byId("jobs-table").tBodies[0].rows].map((r) => r.cells[0].textContent);
byId("jobs-search").value = "";
document.querySelectorAll("#jobs-table thead button")[4].click();
const canvas = byId("gantt-canvas"), before = canvas.toDataURL();
for (const key of ["+", "ArrowRight", "+"]) canvas.dispatchEvent(new KeyboardEvent("keydown", { key }));
byId("gantt-find").value = "job-3";
byId("gantt-find").dispatchEvent(new Event("input"));
for (const id of ["queue-metric", "utilisation-metric", "gantt-run", "jobs-run"]) {
  byId(id).selectedIndex = byId(id).options.length - 1;
  byId(id).dispatchEvent(new Event("change"));
}
setTimeout(() => {
  const moved = canvas.toDataURL() !== before;
  root.dataset.read = JSON.stringify({ firstAscending, firstDescending, page, found, moved });
}, 500);
"""


def dump(page: Path, tmp_path: Path) -> tuple[dict[str, str], str, list[str]]:
    """(data attributes of the root, the DOM, console messages) after the page has run in a browser."""
    out = subprocess.run(
        [
            str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
            "--disable-background-networking", "--disable-component-update", "--disable-sync",
            "--enable-logging=stderr", "--virtual-time-budget=5000", "--dump-dom",
            f"--user-data-dir={tmp_path / 'profile'}", page.as_uri(),
        ],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    head = re.search(r"<html[^>]*>", out.stdout)
    assert head is not None, out.stderr
    data = {name: unescape(value) for name, value in re.findall(r'data-([a-z]+)="([^"]*)"', head[0])}
    return data, out.stdout, [line for line in out.stderr.splitlines() if "CONSOLE" in line]


@pytest.mark.browser
@browser
def test_a_browser_draws_it_without_errors(results, make, tmp_path):
    write_html([*results, make(HOSTILE, id=HOSTILE)], tmp_path / "report.html")
    data, dom, console = dump(tmp_path / "report.html", tmp_path)
    assert data == {"ready": "1", "charts": "4", "jobs": "12"}
    assert console == []
    assert "<img src=x" not in dom


@pytest.mark.browser
@browser
def test_a_reader_can_sort_search_page_and_zoom(make, tmp_path):
    results = [make("fifo", jobs=120), make("shared", jobs=120, company=2)]
    page = tmp_path / "report.html"
    page.write_text(
        html_report(results).replace("</body>\n</html>", f"<script>{READER}</script></body></html>"), encoding="utf-8"
    )
    data, _, console = dump(page, tmp_path)
    assert console == []
    assert "error" not in data
    read = json.loads(data["read"])
    assert (read["firstAscending"], read["firstDescending"]) == ("shared", "fifo")
    assert read["page"] == "51 to 100 of 120"
    assert read["found"] == ["job-7", *(f"job-{i}" for i in range(70, 80))]
    assert read["moved"]
