"""Runs of Muri's artifact: its world by hand, what decides a run's key, and the comparison made of runs."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from artifact_jobs import job, trace_of

from artifact_traces import rows, write_trace
from plait.core.errors import InputError
from plait.policies import themis as reference
from plait_papers.muri import testbed
from plait_papers.muri.artifact.antman import host_turns
from plait_papers.muri.artifact.engine import ArtifactRun, run
from plait_papers.muri.artifact.settings import POLICIES
from plait_papers.muri.artifact.speeds import INTERFERENCE, Profiles, raw_time
from plait_papers.muri.artifact.themis import fair_shares
from plait_papers.muri.artifact.trace import read
from plait_papers.muri.artifact.yarn import candidates, fits, lay_out
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


NO_DEMOTIONS = tuple(p for p in POLICIES if p != "tiresias")


def ends(result: ArtifactRun) -> list[float]:
    return [round(end_s, 6) for end_s in result.end_s.tolist()]


# -- events and overheads ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", POLICIES)
def test_a_job_alone_runs_from_its_submission(policy: str) -> None:
    result = run(trace_of(job(iterations=100, submit_s=5)), policy)
    assert ends(result) == [105]  # the overhead never falls on the last segment
    assert (result.first_start_s[0], result.starts[0], result.attained_s[0]) == (5, 1, 100)
    assert (result.jct_s[0], result.mean_jct_s, result.makespan_s, result.p99_jct_s) == (100, 100, 105, 100)
    assert result.events == 2


@pytest.mark.parametrize("policy", NO_DEMOTIONS)
def test_every_event_takes_the_overhead_from_every_running_job(policy: str) -> None:
    result = run(trace_of(job(iterations=100), job(iterations=100, submit_s=50)), policy)
    # At 50 the first has done 40 and ends at 110. By then the second has done 50 of its own: 40 on the same day.
    assert ends(result) == [110, 160]


def test_at_start_the_overhead_falls_once_and_always() -> None:
    trace = trace_of(job(iterations=100), job(iterations=100, submit_s=50))
    assert ends(run(trace, "tiresias", overhead="at_start")) == [110, 160]
    # SRTF places from nothing: at 110 the second job moves to the first node, and pays again.
    assert ends(run(trace, "srtf", overhead="at_start")) == [110, 170]


def test_preempted_jobs_wait_and_start_again() -> None:
    result = run(trace_of(job(32, 1000), job(32, 1000), job(32, 50, submit_s=100)), "srtf")
    # At 100 both long jobs have 910 left; the second waits until 150, the first ends at 1020, which costs the
    # second another 10 s.
    assert ends(result) == [1020, 1070, 150]
    assert result.starts.tolist() == [1, 2, 1]
    assert result.queue.tolist() == [0, 1, 0, 0, 0]
    assert result.mean_queue == pytest.approx(50 / 1070)
    assert result.blocking.tolist() == [0, 0, 0, 0, 0]
    assert result.attained_s.tolist() == [1020, 100 + 920, 50]


def test_blocking_is_time_waited_over_time_left() -> None:
    result = run(trace_of(job(32, 500), job(32, 500), job(32, 1000), job(32, 2000, submit_s=100)), "srtf")
    assert result.queue.tolist() == [1, 2, 0, 0, 0]
    assert result.blocking.tolist() == [0, (100 / 1000 + 0 / 2000) / 2, 0, 0, 0]
    assert result.mean_blocking == pytest.approx(0.01)
    assert result.median_blocking == 0


def test_arrival_and_completion_close_together_are_one_event_for_muri() -> None:
    trace = trace_of(job(iterations=100), job(iterations=10, submit_s=100.00005))
    assert ends(run(trace, "muri-s")) == [100.00005, 110.00005]
    assert (run(trace, "muri-s").events, run(trace, "srtf").events) == (3, 4)


def test_completions_within_a_billionth_end_together() -> None:
    trace = trace_of(job(iterations=1e6), job(iterations=1e6 + 5e-4), job(iterations=1e6 + 2e-3))
    together = run(trace, "srsf").end_s
    assert together[1] == together[0] == 1e6
    assert together[2] > 1e6


def test_tiresias_demotes_at_3250_and_7200_gpu_seconds() -> None:
    result = run(trace_of(job(8, 1000)), "tiresias")
    # Events of their own at ceil(3250 / 8) and 7200 / 8 seconds; each takes 10 s.
    assert ends(result) == [1020]
    assert result.event_s.tolist() == [0, 407, 900, 1020]


def test_tiresias_prefers_those_that_had_less() -> None:
    result = run(trace_of(job(32, 1000), job(32, 1000), job(32, 50, submit_s=200)), "tiresias")
    # Both long jobs leave the first queue at 102 s; the newcomer preempts the second of them at 200. The first
    # reaches the last queue at 225 and the second takes its place, until it gets there too, at 250; the newcomer
    # ends at 270.
    assert result.first_start_s.tolist() == [0, 0, 200]
    assert result.event_s.tolist()[:6] == [0, 102, 200, 225, 250, 270]
    assert result.starts.tolist() == [2, 3, 1]


# -- rounds ------------------------------------------------------------------------------------------------------


def test_with_rounds_jobs_start_at_boundaries_and_end_when_they_end() -> None:
    trace = trace_of(job(32, 500), job(32, 100, submit_s=5), job(32, 100, submit_s=7))
    result = run(trace, "srtf", round_s=360, overhead="at_start")
    # At 360 the first has 150 left and makes room for the others; it comes back at 720.
    assert result.first_start_s.tolist() == [0, 360, 360]
    assert ends(result) == [720 + 10 + 150, 470, 470]
    assert result.event_s.tolist() == [0, 360, 720, 1080]


def test_rounds_without_anyone_waiting_are_skipped() -> None:
    result = run(trace_of(job(iterations=1e6)), "muri-l", round_s=360)
    assert result.events == 2
    assert ends(result) == [1e6]


def test_with_rounds_demotions_are_noticed_at_boundaries() -> None:
    result = run(trace_of(job(8, 2000)), "tiresias", round_s=360)
    # Due at 407 and 900; nobody waits, so the other rounds are skipped. Each boundary takes 10 s.
    assert result.event_s.tolist() == [0, 720, 1080, 2160]
    assert ends(result) == [2020]


# -- Muri --------------------------------------------------------------------------------------------------------

CPU = {"data_s": 1.0, "gpu_s": 0.1}
GPU = {"data_s": 0.1, "gpu_s": 1.0}


def test_muri_groups_what_fits_together_only_if_gpus_are_short() -> None:
    pair = [job(32, 1000, **CPU), job(32, 1000, **GPU)]
    assert ends(run(trace_of(*pair), "muri-s")) == [1000, 1000]
    time_s = raw_time([(1.0, 0.1, 0.0), (0.1, 1.0, 0.0)]) * INTERFERENCE[2]
    first, *others = ends(run(trace_of(*pair, job(32, 1000, **GPU)), "muri-s"))
    # The CPU-bound job shares with one of the others until the third ends, alone, at 1000; both starts are paid.
    late = 1000 + (1000 - (1000 - 20) / time_s)
    assert sorted(others) == [1000, round(late, 6)]
    assert first == round(late, 6)


def test_the_guard_splits_groups_that_do_not_pay() -> None:
    trace = trace_of(*(job(32, 1000) for _ in range(3)))
    guarded, grouped = run(trace, "muri-s"), run(trace, "muri-s", {"unpack": False})
    assert guarded.queue.tolist()[0] == 1
    assert grouped.queue.tolist()[0] == 0
    time_s = 2 * INTERFERENCE[2]  # one GPU stage after the other
    # Two share until the third, alone, ends at 1000; each of the two pays for both starts, 20 s.
    left = 1000 - (1000 - 20) / time_s
    assert sorted(ends(grouped)) == [1000, round(1000 + left, 6), round(1000 + left, 6)]


def test_muri_without_interference_is_faster() -> None:
    trace = trace_of(*(job(32, 1000, **(CPU if i % 2 else GPU)) for i in range(4)))
    honest, ideal = run(trace, "muri-l"), run(trace, "muri-l", {"interference": "off"})
    assert honest.end_s.max() / ideal.end_s.max() == pytest.approx(INTERFERENCE[2])


def test_options_reach_the_world() -> None:
    trace = trace_of(*(job(16, 500 + i, i, **(CPU if i % 3 else GPU)) for i in range(24)))
    plain = run(trace, "muri-l", {"unpack": False}).mean_jct_s
    for options in ({"max_jobs": 2}, {"ordering": "worst"}, {"blossom": False}, {"order": "discretised"}):
        assert run(trace, "muri-l", {"unpack": False, **options}).mean_jct_s != plain
    exact = run(trace, "muri-l", {"unpack": False, "matching": "exact"}).mean_jct_s
    assert exact == pytest.approx(plain, rel=0.05)


@pytest.mark.parametrize("policy", POLICIES)
def test_runs_repeat_and_progress_is_told(policy: str) -> None:
    rng = np.random.default_rng(7)
    trace = trace_of(
        *(
            job(int(g), float(n), float(s), priority=int(p), **(CPU if p else GPU))
            for g, n, s, p in zip(
                rng.choice([1, 2, 4, 8, 16, 32], 60),
                rng.integers(50, 5000, 60),
                np.sort(rng.integers(0, 3000, 60)),
                rng.integers(0, 2, 60),
                strict=True,
            )
        )
    )
    told: list[int] = []
    first = run(trace, policy, ended=told.append)
    assert told == sorted(set(told))
    assert told[-1] == 60
    assert run(trace, policy).end_s.tolist() == first.end_s.tolist()
    assert (first.first_start_s >= trace.submit_s).all()
    assert (first.end_s - first.submit_s >= first.attained_s - 1e-6).all()
    assert (first.attained_s >= trace.iterations * trace.iteration_s - 1e-2).all()
    assert (first.starts >= 1).all()


# -- AntMan and Themis -------------------------------------------------------------------------------------------


def test_antman_runs_opportunistic_jobs_beside_guaranteed_ones() -> None:
    host = {"priority": 0, "data_s": 0.4, "gpu_s": 0.4, "network_s": 0.2}
    guest = {"priority": 1, "data_s": 0.1, "gpu_s": 0.1, "network_s": 0.1}
    result = run(trace_of(*(job(32, 1000, **host) for _ in range(2)), job(32, 300, **guest)), "antman")
    # The guest's data stage takes one turn of the host; nothing of the GPU stage is left, the network fits in a gap.
    assert host_turns(0.1, 0.1, 0.1, 0.4, 0.4, 0.2) == 1 + 0 + 0
    assert result.starts.tolist() == [1, 1, 1]
    assert ends(result)[2] == 300


def test_antman_does_not_preempt_and_hoards() -> None:
    jobs = [job(32, 1000), job(32, 100), job(32, 10, submit_s=1), job(16, 10, submit_s=2)]
    result = run(trace_of(*jobs), "antman")
    # The third takes the nodes that free up at 120; the fourth, behind it, the next ones.
    assert result.first_start_s[2] < result.first_start_s[3]
    assert result.first_start_s[2] == result.end_s[1]


def test_turns_of_a_host_use_the_floor_of_the_rounded_quotient() -> None:
    assert 1.0 // 0.1 == 9
    assert host_turns(1.0, 0.0, 0.0, 0.2, 0.1, 0.0) == 11  # 10, and one for the rest that the division hides


@pytest.mark.parametrize("seed", range(20))
def test_fair_shares(seed: int) -> None:
    """The largest rho is as small as the bisection of `policies.themis` finds; all other jobs are at one rho."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 40))
    elapsed, remaining, life = (rng.uniform(1, 1000, n) for _ in range(3))
    gpus = rng.choice([1.0, 2, 4, 8, 16, 32], n)
    x = fair_shares(elapsed, remaining, life, gpus, 64.0)
    _, least = reference.fair_shares(elapsed, remaining, life, gpus, 64.0)
    rho = (elapsed + remaining / x) / life
    assert rho.max() == pytest.approx(least)
    assert (gpus * x).sum() == pytest.approx(min(64, gpus.sum()))
    below = x < 1
    if below.any():
        assert rho[below] == pytest.approx(rho[below][0])
        assert (rho[~below] >= rho[below][0] * (1 - 1e-9)).all()


# -- placement ---------------------------------------------------------------------------------------------------


def test_yarn_takes_the_first_node_that_fits_and_whole_nodes() -> None:
    gpus = np.array([4, 8, 16, 4, 1, 32])
    running, where = np.zeros(6, dtype=bool), np.zeros(6, dtype=np.int64)
    order = np.arange(6)
    lay_out(order, np.arange(6), gpus, running, where)
    assert where.tolist() == [0b1, 0b10, 0b1100, 0b1, 0b10000, 0]  # 32 GPUs are free, on no four idle nodes
    assert running.tolist() == [True] * 5 + [False]
    lay_out(order, np.array([0, 1, 1, 0, -1, 5]), gpus, running, where)
    assert where.tolist() == [0b1, 0b10, 0b10, 0b1, 0, 0b111100]


def test_what_does_not_fit_is_skipped() -> None:
    assert fits(np.array([32, 16, 32, 8, 16, 8, 1])).tolist() == [True, True, False, True, False, True, False]


def test_candidates_take_jobs_of_their_bucket_along() -> None:
    gpus = np.array([32, 8, 32, 32, 8, 8, 32, 32])
    jobs, bucket = candidates(np.arange(8), gpus, 2)
    # The first 32 takes job 2 along, job 1 takes 4; job 3 no longer fits, 5 does and is the last of its bucket.
    assert jobs.tolist() == [0, 2, 1, 4, 5]
    assert bucket.tolist() == [0, 0, 1, 1, 1]


# -- what is refused ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "options", "message"),
    [
        ("muri", {}, "unknown policy 'muri' of the artifact's world; did you mean 'muri-"),
        ("srtf", {"unpack": True}, "srtf takes no options in the artifact's world, got 'unpack'"),
        ("muri-l", {"unpak": True}, "unknown option 'unpak' of muri-l; did you mean 'unpack'?"),
        ("muri-l", {"max_jobs": 5}, "option max_jobs of muri-l cannot be 5; known: 2, 3, 4"),
        ("muri-l", {"unpack": 1}, "option unpack of muri-l cannot be 1; known: on"),
        ("muri-s", {"order": "discretised"}, "muri-s has no queues"),
    ],
)
def test_unknown_policies_and_options(policy: str, options: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        run(trace_of(job()), policy, options)


def test_options_may_be_words() -> None:
    trace = trace_of(*(job(32, 1000) for _ in range(3)))
    words = run(trace, "muri-l", {"unpack": "off", "max_jobs": "2"})
    assert words.end_s.tolist() == run(trace, "muri-l", {"unpack": False, "max_jobs": 2}).end_s.tolist()


def test_unknown_settings() -> None:
    with pytest.raises(InputError, match="round_s must be a number of seconds >= 0, got -1"):
        run(trace_of(job()), "srtf", round_s=-1)
    with pytest.raises(InputError, match="unknown overhead 'at_stat'; did you mean 'at_start'"):
        run(trace_of(job()), "srtf", overhead="at_stat")  # type: ignore[arg-type]
