import json
import re
import shutil
import subprocess
from html import unescape
from pathlib import Path

import numpy as np
import pytest

from plait.core.cluster import Cluster
from plait.core.jobs import JobBatch, JobSpec
from plait.goodput.shipped import shipped
from plait.report.html import distribution, embed, gantt, html_report, write_html
from plait.report.sections import sweep_page
from plait.sim.studies.cases import Case, run_case
from plait.sim.world import make_world

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
    result = make("muri-l", company=2)
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


#: Frames of the widths of a phone, a tablet and a screen around a page: how far each can be scrolled sideways, and
#: which elements outside a table that scrolls stick out.
FRAMES = """<!doctype html><html><head><meta charset="utf-8"></head><body><script>
const page = PAGE, found = {};
const frames = [360, 768, 1400].map((width) => {
  const frame = document.createElement("iframe");
  frame.style = `width:${width}px;height:900px;border:0`;
  frame.srcdoc = page;
  const loaded = new Promise((done) => frame.addEventListener("load", done));
  document.body.append(frame);
  return [width, frame, loaded];
});
Promise.all(frames.map((f) => f[2])).then(() => setTimeout(() => {
  for (const [width, frame] of frames) {
    const doc = frame.contentDocument, out = [...doc.body.querySelectorAll("*")].filter((e) =>
      e.getBoundingClientRect().right > width + 1 && !e.closest(".scroll, .skip, .sr, svg"));
    const sideways = doc.documentElement.scrollWidth - doc.documentElement.clientWidth;
    found[width] = [sideways, [...new Set(out.map((e) => e.tagName + "." + e.className))].slice(0, 5),
      [...doc.querySelectorAll(".legend")].map((c) => c.querySelectorAll("button").length)];
  }
  document.documentElement.dataset.found = JSON.stringify(found);
}, 500));
</script></body></html>"""


def measured(page: str, tmp_path: Path) -> dict[str, list]:
    """By width of the window: how far the page is wider, what sticks out, and the legends' lengths."""
    inner = json.dumps(page).replace("</", "<\\/")
    (tmp_path / "frames.html").write_text(FRAMES.replace("PAGE", inner), encoding="utf-8")
    data, _, _ = dump(tmp_path / "frames.html", tmp_path)
    return json.loads(data["found"])


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
    results = [make("fifo", jobs=120), make("muri-l", jobs=120, company=2)]
    page = tmp_path / "report.html"
    page.write_text(
        html_report(results).replace("</body>\n</html>", f"<script>{READER}</script></body></html>"), encoding="utf-8"
    )
    data, _, console = dump(page, tmp_path)
    assert console == []
    assert "error" not in data
    read = json.loads(data["read"])
    assert (read["firstAscending"], read["firstDescending"]) == ("muri-l", "fifo")
    assert read["page"] == "51 to 100 of 120"
    assert read["found"] == ["job-7", *(f"job-{i}" for i in range(70, 80))]
    assert read["moved"]


LONG = "a-policy-with-a-very-long-name:option=value,another=value,one-more=0.123456789"


@pytest.mark.browser
@browser
def test_no_page_is_wider_than_its_window_and_legends_name_all_policies(make, tmp_path):
    names = ["fifo", "srtf", "srsf", "las", "themis", "muri-s", "muri-l", "gandiva", "drf", LONG]
    results = [make(name, id="a-job-with-a-long-name-" + "x" * 60) for name in names]
    settings = {"Command": "plait simulate " + "/a/long/path" * 20}
    found = measured(html_report(results, settings=settings, title="/long" * 30), tmp_path)
    assert {width: row[:2] for width, row in found.items()} == WIDE
    assert [row[2] for row in found.values()] == [[10, 10, 10, 10]] * 3


@pytest.mark.browser
@browser
def test_pages_of_sweeps_fit_their_window_too(make, tmp_path):
    groups = {"trace " + "/a/long/path" * 8: [make("fifo"), make("muri-l", company=2), make(LONG)]}
    assert {w: row[:2] for w, row in measured(sweep_page(groups, 3), tmp_path).items()} == WIDE


WIDE = {str(width): [0, []] for width in (360, 768, 1400)}


@pytest.mark.browser
@browser
def test_the_tooltip_of_a_bar_names_job_user_and_model(make, tmp_path):
    script = """
    const canvas = byId("gantt-canvas"), tips = new Set();
    for (let x = 80; x < canvas.clientWidth; x += 7) for (let y = 4; y < canvas.clientHeight - 30; y += 9) {
      const box = canvas.getBoundingClientRect();
      canvas.dispatchEvent(new PointerEvent("pointermove", { clientX: box.left + x, clientY: box.top + y }));
      if (!byId("gantt-tip").hidden) tips.add(byId("gantt-tip").innerText.replaceAll("\\n", "|"));
    }
    root.dataset.tips = JSON.stringify([...tips]);
    """
    page = tmp_path / "report.html"
    text = html_report([make("fifo", model="bert")]).replace(
        "</body>\n</html>", f"<script>{script}</script></body></html>"
    )
    page.write_text(text, encoding="utf-8")
    data, _, console = dump(page, tmp_path)
    assert console == []
    tips = json.loads(data["tips"])
    assert any(re.match(r"job-\d+\|user ada, model bert\|GPU", tip) for tip in tips), tips


def test_every_figure_says_what_it_means(results):
    page = html_report(results)
    for head in re.findall(r"<button type=\"button\" ([^>]*)>[^<]*(?:<span class=\"unit\"|</button></th>)", page):
        assert "title=" in head or head == ""
    assert "Fairness of the job treated worst; fair is at most 1." in page
    assert page.count('aria-description="') > 15
    heads = re.findall(r'<th scope="col" class="num" title="([^"]+)"', sweep_page({"g": results}, 2))
    assert len(heads) > 5
    assert all(heads)


def test_all_times_of_a_table_have_one_unit(results):
    units = set(re.findall(r'<span class="unit">(s|min|h|d)</span>', html_report(results)))
    assert len(units) == 1
    groups = sweep_page({"a": results}, 2)
    assert set(re.findall(r'<span class="unit">(s|min|h|d)</span>', groups)) == units
    assert set(re.findall(r"font-weight='600'>[^<]*JCT \((\w+)\)", groups)) == units


def test_adaptive_jobs_show_how_they_trained_and_all_runs_their_fairness(results):
    model = shipped()["cifar10"]
    spec = JobSpec(
        id="trains", gpus=1, max_gpus=8, model=model.name, batch=model.batch, iterations=model.iterations / 4,
        iteration_s=model.iteration_s(1, 1),
    )  # fmt: skip
    case = Case("t", JobBatch.of([spec]), "pollux", Cluster.parse("2x4"), make_world("pollux"))
    result = run_case(case)
    assert result.training is not None
    page = html_report([result])
    (run,) = data_of(page)["runs"]
    (job,) = run["training"]
    assert job["name"] == "trains"
    assert len(job["t"]) == len(job["batch"]) == len(job["noise"]) == len(job["efficiency"])
    assert job["batch"][0] == 128
    assert max(job["batch"]) > 1000
    assert 1 < max(job["gpus"]) <= 8
    assert all(0 < worth <= 1 for worth in job["efficiency"])
    first, last = (job["noise"][i] for i in (0, -1))
    assert last > 10 * first
    # An example is worth (noise + M0) / (noise + M), section 3.1.
    for batch, noise, worth in zip(job["batch"], job["noise"], job["efficiency"], strict=True):
        assert worth == pytest.approx((noise + 128) / (noise + batch), abs=1e-3)
    assert run["rho"][-1][1] == 1.0
    assert 'data-chart="training"' in page
    fixed = html_report(results)
    assert 'data-chart="training"' not in fixed
    assert all(run["rho"] for run in data_of(fixed)["runs"])
