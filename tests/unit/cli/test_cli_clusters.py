"""`plait simulate` on several clusters: one table with the differences; and demos that keep each other's reports."""

import json

from plait.cli.experiments import demonstration


def test_clusters_are_compared_in_one_table_with_the_differences(plait, small, tmp_path):
    answer = plait(
        "simulate", small, "-p", "fifo,srsf", "-c", "1x4", "-c", "2x4", "--json", "out.json", "--csv", "o.csv"
    )
    assert answer.code == 0, answer.err
    rows = [line for line in answer.out.splitlines() if "fifo" in line or "srsf" in line]
    assert [row.split()[1:4] for row in rows] == [
        ["fifo", "·", "1x4"], ["srsf", "·", "1x4"], ["fifo", "·", "2x4"], ["srsf", "·", "2x4"],
    ]  # fmt: skip
    assert "(-" not in rows[0]
    assert "(-" in rows[2]
    assert "in brackets: the change from the first cluster" in answer.out
    figures = {
        (run["policy"], run["cluster"]): run["avg_jct_s"] for run in json.loads((tmp_path / "out.json").read_text())
    }
    change = figures["fifo", "2x4"] / figures["fifo", "1x4"] - 1
    assert f"({change:+.0%})".replace("%", " %") in rows[2]


def test_files_of_runs_on_several_clusters_have_names_of_their_own(plait, small, tmp_path):
    clusters, files = ("-c", "1x4", "-c", "2x4"), ("--jobs-csv", "jobs.csv", "--report", "r.html")
    assert plait("simulate", small, "-p", "fifo", *clusters, *files).code == 0
    assert sorted(path.name for path in tmp_path.glob("jobs*.csv")) == ["jobs-1x4.csv", "jobs-2x4.csv"]
    page = (tmp_path / "r.html").read_text()
    assert "In brackets: the change from the first cluster." in page
    assert "<title>1 policy on" in page


def test_one_cluster_of_several_kinds_is_said(plait, small):
    answer = plait("simulate", small, "-p", "fifo", "-c", "1x4:a,1x4:b")
    assert answer.code == 0
    said = "1x4:a,1x4:b is one cluster of 2 kinds of nodes; to compare clusters give each by itself: -c 1x4:a -c 1x4:b"
    assert said in answer.err
    assert "is one cluster" not in plait("simulate", small, "-p", "fifo", "-c", "2x4").err


def test_a_published_world_has_one_cluster(plait, small):
    answer = plait("simulate", small, "-p", "fifo", "--world", "muri-artifact", "-c", "1x4", "-c", "2x4")
    assert answer.code == 2
    assert "world muri-artifact has its own cluster" in answer.err


def test_the_live_demo_leaves_the_report_of_the_simulated_one(tmp_path, capsys):
    (tmp_path / "report.html").write_text("simulated")
    demonstration.write([], tmp_path)
    assert (tmp_path / "report.html").read_text() == "simulated"
    assert (tmp_path / "live.html").exists()
    assert "live.html" in capsys.readouterr().out
