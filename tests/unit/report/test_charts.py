"""Charts of reports as SVG: bars, lines, points, stages and timelines; and their tables."""

import csv
import io
import json
import math
import re
import stat
import xml.etree.ElementTree as ET
from xml.etree import ElementTree

import pytest
from rich.console import Console

from plait.control.metrics import CLASS_NAMES, COST_NAMES, NETWORK_NAMES, SHARING, SPILL
from plait.control.prices import Prices
from plait.core.cluster import Cluster
from plait.core.errors import InputError
from plait.core.files import whole_file
from plait.report.charts import ChartLine, GroupedBar, grouped_bars_svg, lines_svg, write_chrome_trace
from plait.report.html import html_report
from plait.report.metrics import METRICS, best, show, unit_of
from plait.report.sections import policy_bars_svg
from plait.report.tables import MOST, by_owner, comparison_table, owner_rows, write_csv, write_jobs_csv, write_json
from plait.sim.studies.cases import Case, run_case
from plait.sim.world import make_world
from plait.traces.assign import assign_tenants
from plait.traces.load import load_jobs
from plait.traces.synthetic import generate

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


def text_of(table) -> str:
    console = Console(width=240, file=io.StringIO())
    console.print(table)
    return console.file.getvalue()


def test_the_table_has_a_row_a_policy_and_marks_the_best(results):
    text = text_of(comparison_table(results))
    assert text.count("fifo") == 1
    assert "muri-l" in text
    assert "* " in text
    assert "means over 2 seeds" in text
    assert "Avg JCT (min)" in text


def test_columns_without_a_value_are_left_out_and_nothing_is_best_where_nothing_is_compared(make):
    alone = make("fifo")
    alone.summary["gpu_busy"] = math.nan
    text = text_of(comparison_table([alone]))
    assert "GPU busy" not in text
    assert "Avg JCT" in text
    assert "*" not in text
    other = make("muri-l", company=2)
    assert "GPU busy" in text_of(comparison_table([alone, other])), "one of them has it"
    assert "* best" in text_of(comparison_table([alone, other]))
    elsewhere = make("fifo", company=2)
    elsewhere.summary["cluster"] = "8x8"
    text = text_of(comparison_table([alone, elsewhere]))
    assert "* best" not in text, "other clusters do not compete"
    assert "in brackets: the change from the first cluster" in text
    two = [make("fifo"), make("muri-l", company=2)]
    for run in two:
        run.summary["cluster"] = "8x8"
    text = text_of(comparison_table([make("fifo"), make("muri-l", company=2), *two]))
    assert "* best of its cluster" in text


def test_policies_compete_with_those_that_know_as_much_of_durations(make):
    names = ("fifo", "srsf", "srsf:knows=predicted", "las")
    text = text_of(comparison_table([make(name, company=i + 1) for i, name in enumerate(names)])).replace("│", " ")
    rows = [line.split() for line in text.splitlines() if line.strip().startswith(names)]
    assert [row[1] for row in rows] == ["nothing", "exact", "predicted", "nothing"]
    assert ["*" in row for row in rows][1:3] == [False, False], "no other knows as much"
    assert "* best of its knowledge" in text
    same = text_of(comparison_table([make("fifo"), make("las", company=2)]))
    assert "knows" not in same


def test_policies_outside_the_catalog_compete_with_one_another(make):
    """One row of a user's own leaves the others where they are."""
    names = ("fifo", "srsf", "mine:Policy", "mine:Other", "las")
    text = text_of(comparison_table([make(name, company=i + 1) for i, name in enumerate(names)])).replace("│", " ")
    rows = [line.split() for line in text.splitlines() if line.strip().startswith(names)]
    assert [row[1] for row in rows] == ["nothing", "exact", "unknown", "unknown", "nothing"]
    assert ["*" in row for row in rows] == [True, False, True, True, True], "no other knows as much as srsf"
    own = text_of(comparison_table([make("mine:Policy"), make("mine:Other", company=2)]))
    assert "knows" not in own


def test_names_with_markup_are_shown_as_they_are(make):
    assert "[red]x[/red]" in text_of(comparison_table([make("[red]x[/red]"), make("y", company=2)]))


def test_json_and_csv_have_one_row_a_run_and_nothing_for_the_unknown(results, tmp_path):
    write_json(results, tmp_path / "deep" / "out.json")
    rows = json.loads((tmp_path / "deep" / "out.json").read_text())
    assert [row["policy"] for row in rows] == ["fifo", "muri-l", "fifo"]
    assert list(rows[0])[:6] == ["trace", "policy", "world", "seed", "cluster", "jobs"]
    write_csv(results, tmp_path / "out.csv")
    table = list(csv.DictReader((tmp_path / "out.csv").read_text().splitlines()))
    assert float(table[1]["avg_jct_s"]) == rows[1]["avg_jct_s"]
    assert "nan" not in (tmp_path / "out.csv").read_text()


def test_the_job_file_has_every_job(results, tmp_path):
    write_jobs_csv(results[0], tmp_path / "jobs.csv")
    table = list(csv.DictReader((tmp_path / "jobs.csv").read_text().splitlines()))
    assert [row["id"] for row in table] == [f"job-{i}" for i in range(12)]


def test_a_file_that_fails_leaves_the_old_one_and_no_rubbish(tmp_path):
    target = tmp_path / "a.txt"
    target.write_text("old")

    def fail() -> None:
        with whole_file(target) as file:
            file.write("new")
            raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        fail()
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]
    with whole_file(target) as file:
        file.write("new")
    assert target.read_text() == "new"
    assert stat.S_IMODE(target.stat().st_mode) == 0o644


def test_units_and_winners():
    seconds = METRICS[0]
    assert unit_of(seconds, [30.0, 90.0]) == ("s", 1.0)
    assert unit_of(seconds, [30.0, 7200.0]) == ("h", 3600.0)
    assert best(seconds, [3.0, 2.0, math.nan]) == 2.0
    assert best(seconds, [2.0, 2.0]) is None
    assert best(seconds, [2.0]) is None
    assert show(math.nan) == "–"


def test_every_shown_metric_is_in_the_summary(results):
    assert {m.key for m in METRICS} - {*SHARING, SPILL, *CLASS_NAMES, *COST_NAMES, *NETWORK_NAMES} <= set(
        results[0].summary
    )


# Tables of money by user and project.


@pytest.fixture(scope="module")
def runs():
    table = assign_tenants(generate("philly", 80, 8, 0.8, 1), seed=1, tenants=MOST + 3)
    jobs = load_jobs(table).jobs
    prices = Prices.parse(["2"], "EUR")
    return [
        run_case(Case("t", jobs, policy, Cluster.parse("1x8"), make_world("plait"), prices=prices))
        for policy in ("fifo", "2d-las")
    ]


def test_owners_add_up_to_all_jobs_dearest_first(runs):
    for owner in ("user", "project"):
        rows = by_owner(runs[1], owner)
        money = [row["cost"] for row in rows.values()]
        assert money == sorted(money, reverse=True)
        assert sum(money) == pytest.approx(runs[1].summary["cost_jobs"])
        assert sum(row["jobs"] for row in rows.values()) == len(runs[1].jobs["id"])


def test_nobody_is_left_out_of_a_table(runs):
    rows = owner_rows(runs, ["fifo", "2d-las"], "project")
    assert [row[0] for row in rows[MOST:]] == ["3 others", "idle GPUs", "all GPUs"]
    assert all(len(row) == 3 for row in rows)


def test_json_and_page_have_them(runs, tmp_path):
    write_json(runs, tmp_path / "r.json")
    first = json.loads((tmp_path / "r.json").read_text())[0]
    costs = first["costs"]
    assert costs["per_gpu_h"] == {"*": 2.0}
    assert costs["total"] == pytest.approx(costs["gpus"] * costs["hours"] * 2)
    assert costs["total"] == pytest.approx(
        sum(row["cost"] for row in costs["by_project"].values()) + costs["idle"] + costs["down"]
    )
    page = html_report(runs)
    assert "Cost by project" in page
    assert "*=2 EUR" in page
