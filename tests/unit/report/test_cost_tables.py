"""Tables of money by user and project."""

import json

import pytest

from plait.control.prices import Prices
from plait.core.cluster import Cluster
from plait.report.html import html_report
from plait.report.tables import MOST, by_owner, owner_rows, write_json
from plait.sim.studies.cases import Case, run_case
from plait.sim.world import make_world
from plait.traces.assign import assign_tenants
from plait.traces.load import load_jobs
from plait.traces.synthetic import generate


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
