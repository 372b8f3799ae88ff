"""Runs are kept under what decides them, and the comparison is made of them."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from artifact_traces import rows, write_trace
from plait.core.errors import InputError
from plait_papers.muri import testbed
from plait_papers.muri.artifact.engine import run
from plait_papers.muri.artifact.speeds import Profiles
from plait_papers.muri.artifact.trace import read
from plait_papers.muri.compare import Folder, cases_of, missing, rows_of
from plait_papers.muri.figures import FIGURES
from plait_papers.muri.noise_model import NoisyProfiles, noisy
from plait_papers.muri.runs import EVALUATION, Case, Done, run_case


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    write_trace(tmp_path / "data" / "trace3.csv")
    write_trace(tmp_path / "data" / "trace2.csv", rows(12, models=(1, 3)))
    return Folder(tmp_path / "data")


def key(case: Case) -> Path:
    return EVALUATION.file(case, Path())


def test_the_key_is_what_decides_the_result(folder: Folder) -> None:
    case = folder.case("trace3", "muri-l:unpack=off,order=discretised")
    keys = {
        key(case),
        key(folder.case("trace2", case.policy)),
        key(replace(case, policy="muri-l")),
        key(replace(case, jobs=5)),
        key(replace(case, round_s=360.0)),
        key(replace(case, overhead="at_start")),
        key(replace(case, noise=0.2)),
        key(replace(case, noise=0.2, seed=1)),
        key(replace(case, policy="muri-l", world="plait")),
    }
    assert len(keys) == 9
    assert key(replace(case, policy="muri-l:order=discretised,unpack=off")) == key(case)


def test_the_key_follows_the_bytes_not_the_name(tmp_path: Path) -> None:
    first, copy = write_trace(tmp_path / "a.csv"), write_trace(tmp_path / "b.csv")
    other = write_trace(tmp_path / "c.csv", rows(5))
    keys = [key(Case(str(path), "srtf")) for path in (first, copy, other)]
    assert keys[0] == keys[1] != keys[2]


def test_progress_counts_each_job_once(folder: Folder) -> None:
    told: list[int] = []
    done = run_case(folder.case("trace3", "srsf"), told.append)
    assert sum(told) == done.jobs == 24
    assert all(n > 0 for n in told)
    assert done.avg_jct_s == pytest.approx(sum(done.columns["jct_s"]) / 24)
    assert done.p99_jct_s == sorted(done.columns["jct_s"])[23]


# -- the comparison ----------------------------------------------------------------------------------------------


def test_rows_of_a_figure(folder: Folder) -> None:
    figure = FIGURES["9"]
    assert "trace1.csv" in missing(figure, folder)
    assert "trace3.csv" not in missing(figure, folder)
    cases = cases_of(figure, folder)
    assert {case.policy for case in cases} == {"srtf", "srsf", "muri-s", "muri-s:unpack=off"}
    assert len(cases) == 8
    done = {case: run_case(case) for case in cases}
    table = rows_of(figure, folder, done)
    assert len(table) == 2 * 3 * 3
    for row in table:
        muri = done[folder.case(row.trace, "muri-s:unpack=off")]
        ours = done[folder.case(row.trace, row.policy)]
        assert row.ours_s == getattr(ours, row.metric)
        assert row.ratio == row.ours_s / getattr(muri, row.metric)
        guarded = done[folder.case(row.trace, "muri-s")]
        assert row.consistent_ratio == row.consistent_s / getattr(guarded, row.metric)
        assert (row.published_s is None) == (row.trace == "trace2")
    held_back = next(r for r in table if (r.trace, r.metric, r.bar) == ("trace2", "avg_jct_s", "SRTF"))
    assert (held_back.paper_low, held_back.paper_high, held_back.ours_to_published) == (1.5, 2.26, None)
    known = next(r for r in table if (r.trace, r.metric, r.bar) == ("trace3", "avg_jct_s", "SRTF"))
    assert known.published_s == 193081.796024
    assert known.ours_to_published == pytest.approx(known.ours_s / 193081.796024)


def test_part_of_a_trace_is_not_compared_with_the_whole(folder: Folder) -> None:
    part = replace(folder, jobs=6)
    figure = FIGURES["13"]
    done = {case: run_case(case) for case in cases_of(figure, part)}
    assert {run.jobs for run in done.values()} == {6}
    assert all(row.published_s is None and row.paper_low is None for row in rows_of(figure, part, done))


def test_a_trace_that_plait_cannot_split_is_run_in_the_artifacts_world_only(tmp_path: Path) -> None:
    path = write_trace(tmp_path / "data" / "trace3.csv")
    path.write_text(path.read_text().replace("gpt2", "a-new-model"))
    folder = Folder(tmp_path / "data", own=True)
    assert "unknown model" in folder.not_in_own("trace3")
    assert folder.not_in_own("trace1") == "", "it is not there at all"
    assert {case.world for case in cases_of(FIGURES["9"], folder)} == {"artifact"}
    write_trace(tmp_path / "data" / "trace2.csv")
    assert {case.world for case in cases_of(FIGURES["9"], folder) if "trace2" in case.trace} == {"artifact", "plait"}


def test_exact_matching_is_for_muri_only(folder: Folder) -> None:
    exact = replace(folder, matching="exact")
    assert exact.case("trace3", "srtf").policy == "srtf"
    assert exact.case("trace3", "muri-s").policy == "muri-s:matching=exact"
    assert exact.case("trace3", "muri-s:unpack=off").policy == "muri-s:unpack=off,matching=exact"


def test_no_data_folder(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="give --data the folder with trace1"):
        Folder(tmp_path / "nowhere")


# -- profile noise -----------------------------------------------------------------------------------------------


def test_noise_is_one_draw_a_model_and_size(folder: Folder) -> None:
    trace = read(folder.path / "trace3.csv")
    seen = noisy(trace, 0.5, 3)
    factors = {(m, g): set() for m, g in zip(trace.model, trace.gpus.tolist(), strict=True)}
    for i, key in enumerate(zip(trace.model, trace.gpus.tolist(), strict=True)):
        factors[key].add(round(float(seen.gpu_s[i] / trace.gpu_s[i]), 9))
    assert all(len(values) == 1 for values in factors.values())
    assert len({v for values in factors.values() for v in values}) == len(factors)
    assert all(0.5 <= v <= 1.5 for values in factors.values() for v in values)
    assert (seen.iteration_s == trace.iteration_s).all()
    assert (noisy(trace, 0.5, 3).data_s == seen.data_s).all()
    assert (noisy(trace, 0.5, 4).data_s != seen.data_s).any()


def test_who_believes_the_truth_sees_true_times(folder: Folder) -> None:
    trace = read(folder.path / "trace3.csv")
    rng = np.random.default_rng(0)
    size = rng.integers(1, 5, 60)
    members = np.array([rng.permutation(24)[:4] for _ in size])
    factor = np.array([1.0, 1.0, 1.3, 1.4, 1.5])
    for worst in (False, True):
        true = Profiles.from_trace(trace).times(members, size, factor, worst=worst)
        assert NoisyProfiles(trace, trace).times(members, size, factor, worst=worst) == pytest.approx(true)


def test_a_wrong_belief_can_only_slow_a_group(folder: Folder) -> None:
    trace = read(folder.path / "trace3.csv")
    members = np.array([[a, b, c, 0] for a in range(8) for b in range(8) for c in range(8) if a < b < c])
    size, factor = np.full(len(members), 3), np.ones(5)
    true = Profiles.from_trace(trace).times(members, size, factor)
    believed = NoisyProfiles(trace, noisy(trace, 1.0, 1)).times(members, size, factor)
    assert (believed >= true - 1e-12).all()
    assert (believed > true + 1e-9).any()


def test_without_noise_the_run_is_the_same(folder: Folder) -> None:
    trace = read(folder.path / "trace3.csv")
    plain = run(trace, "muri-s")
    assert (run(trace, "muri-s", seen=noisy(trace, 0.0, 0)).end_s == plain.end_s).all()
    assert (run(trace, "muri-s", seen=noisy(trace, 1.0, 0)).end_s != plain.end_s).any()


# -- the testbed -------------------------------------------------------------------------------------------------

LOG = (
    "time,job_id,num_gpu,submit_time,start_time,end_time,executed_time,real_executed_time,JCT,duration,"
    "pending_time,job_counter,promote"
)


def write_log(path: Path, jct_s: list[float]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [f"{t},{i},8,0.0,0.0,{t},{t},{t},{t},50.0,0.0,1,0" for i, t in enumerate(jct_s)]
    path.write_text("\n".join([LOG, *reversed(lines)]) + "\n")  # logs are in order of completion
    return path


def test_errors_against_a_log(tmp_path: Path) -> None:
    logged = testbed.log(write_log(tmp_path / "SRTF-job.csv", [100.0, 200.0, 300.0, 400.0]))
    assert logged["jct_s"].tolist() == [100, 200, 300, 400]
    jct_s = [110.0, 200.0, 270.0, 400.0]
    done = Done(245.0, 400.0, 400.0, 0.0, 0.0, 0.0, 8, 0.0, {"jct_s": jct_s, "attained_s": jct_s, "starts": [1.0] * 4})
    row = testbed.errors("SRTF", done, logged)
    assert (row.avg_jct, row.makespan, row.p99_jct) == pytest.approx((-0.02, 0, 0))
    assert row.run_time == pytest.approx(-0.02)
    assert (row.job_p10, row.job_median, row.job_p90) == pytest.approx((-0.07, 0.0, 0.07))
    assert row.within
    assert not testbed.errors("SRTF", replace(done, makespan_s=430.0), logged).within
    with pytest.raises(InputError, match="the log of SRTF has 4 jobs, the trace 3"):
        testbed.errors("SRTF", replace(done, columns={"jct_s": jct_s[:3]}), logged)


def test_what_the_testbed_needs(tmp_path: Path) -> None:
    write_trace(tmp_path / "cluster_trace.csv")
    folder = Folder(tmp_path)
    assert testbed.missing(folder, logs=False) == []
    assert testbed.missing(folder, logs=True)[0] == "testbed/SRTF-job.csv"
    cases = testbed.cases(folder)
    assert {(c.round_s, c.overhead) for c in cases.values()} == {(360.0, "at_start")}
    table = testbed.table_rows(folder, {case: run_case(case) for case in cases.values()})
    assert {row.metric for row in table} == set(testbed.FIGURES)
    muri = [row for row in table if row.policy in ("Muri-S", "Muri-L") and row.metric == "avg_jct_s"]
    assert [(row.ratio, row.paper_ratio) for row in muri] == [(1, 1), (1, 1)]
    assert all(math.isfinite(row.ours) for row in table)


def test_the_testbed_within_five_percent(published: Path) -> None:
    """The goal of the project for mean completion time and makespan; muri-testbed.md says what the rest is."""
    folder = Folder(published / "muri")
    done = {case: run_case(case) for case in testbed.cases(folder).values()}
    rows = {row.policy: row for row in testbed.error_rows(folder, done)}
    for name in ("SRTF", "SRSF", "Tiresias", "Muri-S", "Muri-L"):
        assert rows[name].within, rows[name]
