"""Tiresias' claims run again: every section runs, and what it compares is what it says."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from artifact_traces import rows, write_trace
from plait.core.errors import InputError
from plait_papers.command import TiresiasRequest
from plait_papers.muri import resources, testbed
from plait_papers.muri.artifact.themis import central_shares, fair_shares
from plait_papers.muri.compare import Folder, themis_cases, themis_rows
from plait_papers.muri.noise import NOISE, SEEDS, cases, rows_of
from plait_papers.muri.runs import Case, run_case
from plait_papers.tiresias import PLACEMENTS, POLICIES, STUDIES, jobs_of, points, reproduce_tiresias
from plait_papers.tiresias import Case as TiresiasCase

SIXTY = "job_id,num_gpu,submit_time,iterations,model_name,duration,interval\n" + "".join(
    f"{i},{(1, 8, 2, 4)[i % 4]},{20 * i},{200 + i},{('vgg19', 'resnet50')[i % 2]},{300 + 7 * i},20\n" for i in range(12)
)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A folder with both kinds of traces, small ones."""
    (tmp_path / "tiresias").mkdir()
    (tmp_path / "tiresias" / "60_job.csv").write_text(SIXTY)
    write_trace(tmp_path / "muri" / "trace3.csv", rows(24))
    return tmp_path


def test_all_sections_run_and_are_shown(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    request = TiresiasRequest(data, "claims,studies,servers,preemption", work=tmp_path / "w")
    reproduce_tiresias(replace(request, json=str(tmp_path / "t.json"), report=tmp_path / "t.html"))
    assert "left out without muri/trace1.csv" in capsys.readouterr().err
    found = json.loads((tmp_path / "t.json").read_text())
    by = {(row["section"], row["trace"], row["policy"]): row for row in found["rows"]}
    assert {name for section, trace, name in by if (section, trace) == ("claims", "60 jobs")} == set(POLICIES)
    ours, yarn = (by["claims", "60 jobs", name]["figures"]["avg_jct_s"] for name in ("Tiresias-L", "YARN-CS"))
    assert by["claims", "60 jobs", "YARN-CS"]["ratio"] == pytest.approx(yarn / ours)
    assert by["claims", "60 jobs", "YARN-CS"]["published"] == "5.5, testbed"
    assert sum(section == "studies" for section, *_ in by) == sum(map(len, STUDIES.values()))
    assert sum(section == "servers" for section, *_ in by) == len(PLACEMENTS)
    waits = [by["preemption", f"starts x{cost}", "Tiresias-L"]["figures"]["avg_jct_s"] for cost in (0, 1, 10)]
    assert waits == sorted(waits)
    assert waits[0] < waits[-1]
    assert sum(v["jobs"] for v in found["models"].values()) == 24
    page = (tmp_path / "t.html").read_text()
    assert all(text in page for text in ("Claims: mean JCT over Tiresias", "Parameter servers", "restarts cost"))
    reproduce_tiresias(replace(request, section="claims,loads", jobs=5))
    assert "left out without" in capsys.readouterr().err
    with pytest.raises(InputError, match="did you mean 'claims'"):
        reproduce_tiresias(replace(request, section="claim"))


def test_jobs_with_parameter_servers_have_one_for_each_gpu(data: Path) -> None:
    asked = {case for section, _, _, case in points(["servers"], data, None)}
    assert {case.servers for case in asked} == {True}
    jobs = jobs_of(next(iter(asked)))
    assert jobs.column("servers").tolist() == [0 if gpus == 1 else gpus for gpus in jobs.gpus.tolist()]
    assert (jobs.column("gradient_bytes") > 0).all()
    half = TiresiasCase("trace 3", "srsf", str(data), load=0.5)
    assert jobs_of(half).submit_s.max() > jobs_of(TiresiasCase("trace 3", "srsf", str(data), load=1.0)).submit_s.max()


# -- Muri: what else its evaluation shows -----------------------------------------------------------------------


def test_figure_8_has_what_the_worlds_measure_over_time(tmp_path: Path) -> None:
    write_trace(tmp_path / "cluster_trace.csv", rows(16))
    folder = Folder(tmp_path, own=True)
    done = {case: run_case(case) for case in resources.cases(folder)}
    assert {case.world for case in done} == {"artifact", "plait"}
    found = {(row.metric, row.policy): row for row in resources.over_time(folder, done)}
    assert len(found) == len(resources.FIGURE_8) * len(testbed.POLICIES)
    run = done[testbed.cases(folder)["SRTF"]]
    queue = found["queue_length", "SRTF"]
    assert queue.artifact == pytest.approx(run.avg_queue_length, abs=1e-6), "parts of a run add up to it"
    assert queue.published == 18.2
    assert queue.paper_ratio == pytest.approx(18.2 / 2.3)
    gpu = found["gpu_busy", "Muri-L"]
    assert gpu.artifact is None
    assert 0 < (gpu.own or 0) <= 1
    assert gpu.published == pytest.approx(0.454)
    assert len(gpu.series) == len(gpu.at_s) > 10
    assert found["network_utilisation", "SRSF"].published is None


def test_table_1_is_of_the_profiles() -> None:
    busy = {row.model: row.busy for row in resources.models()}
    assert busy["gpt2"][2] == max(busy["gpt2"])
    assert busy["a2c"][1] == max(busy["a2c"])
    assert busy["vgg16"][3] == pytest.approx(0.33, abs=0.01)


def test_figure_14_is_of_both_worlds_and_ten_seeds(tmp_path: Path) -> None:
    write_trace(tmp_path / "trace3.csv", rows(12))
    folder = Folder(tmp_path, own=True)
    asked = cases(folder)
    assert len(asked) == 2 * 2 * (1 + len(SEEDS) * (len(NOISE) - 1))
    done = {case: run_case(case) for case in asked if case.noise in (0.0, NOISE[-1])}
    done |= {case: done[next(c for c in done if c.world == case.world)] for case in asked if case not in done}
    table = rows_of(folder, done)
    assert [row.jct_ratio for row in table if row.noise == 0] == [1.0] * 4
    assert len({(row.world, row.policy) for row in table}) == 4
    assert {row.world for row in rows_of(Folder(tmp_path), done)} == {"artifact"}


def test_intervals_are_of_the_same_jobs_for_both() -> None:
    jct_s = np.random.default_rng(1).lognormal(8, 1.5, 400)
    low, high = testbed.interval(2 * jct_s, jct_s, "avg_jct_s") or (0, 0)
    assert (low, high) == pytest.approx((2, 2)), "drawn together"
    low, high = testbed.interval(np.random.default_rng(2).permutation(2 * jct_s), jct_s, "avg_jct_s") or (0, 0)
    assert low < 2 < high
    assert testbed.interval(jct_s, jct_s, "makespan_s") is None


def test_the_ways_to_settle_shares_keep_the_largest_rho(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        n = int(rng.integers(4, 20))
        elapsed, left, life = rng.uniform(0.1, 100, (3, n))
        gpus = rng.integers(1, 9, n) * 1.0
        capacity = 0.6 * float(gpus.sum())
        fair = fair_shares(elapsed, left, life, gpus, capacity)
        centre = central_shares(elapsed, left, life, gpus, capacity, fair)
        worst = [((elapsed + left / x) / life).max() for x in (fair, centre)]
        assert worst[1] <= worst[0] * (1 + 1e-6)
        assert (gpus * centre).sum() <= capacity * (1 + 1e-6)
        assert ((centre > 0) & (centre <= 1)).all()
    write_trace(tmp_path / "trace3.csv", rows(12))
    folder = Folder(tmp_path)
    done = {case: run_case(case) for case in themis_cases(folder).values()}
    table = themis_rows(folder, done)
    fair_run = done[Case(str(tmp_path / "trace3.csv"), "themis:shares=fair")]
    assert table[0].ratios[0] == pytest.approx(fair_run.avg_jct_s / 397058.802)
    assert len({row.ratios for row in table}) == len(table) == 3
