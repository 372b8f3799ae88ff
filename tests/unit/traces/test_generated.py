"""Synthetic traces against their published targets; assignments that depend on nothing but the job."""

import hashlib

import numpy as np
import pytest

from plait.core.errors import InputError
from plait.traces.assign import assign_classes, assign_deadlines, assign_models, catalogue, uniforms
from plait.traces.load import load_jobs
from plait.traces.synthetic import PRESETS, SHARES, RecurringWork, fit_recurring, generate, target_load, tuned_sizes
from plait.traces.table import TraceTable, offered_load


@pytest.mark.parametrize("preset", sorted(PRESETS))
def test_presets_are_functions_of_their_seed_with_the_load_asked_for(preset):
    table = generate(preset, 2000, 64, 0.9, seed=3)
    assert table.equals(generate(preset, 2000, 64, 0.9, seed=3))
    assert not table.equals(generate(preset, 2000, 64, 0.9, seed=4))
    assert table.load(64) == pytest.approx(0.9, rel=1e-4)
    for name in ("submit_s", "duration_s"):
        assert np.array_equal(table[name], np.round(table[name] * 1000) / 1000)
    unscaled = generate(preset, 2000, 64, None, seed=3)
    assert np.array_equal(np.sort(unscaled["duration_s"]), np.sort(table["duration_s"]))
    assert table.meta["warnings"] == []


@pytest.fixture(scope="module")
def philly():
    return generate("philly", 200_000, 6504, None, seed=1)


def test_philly_durations():
    philly = generate("philly_poisson", 200_000, 6504, None, seed=1)  # bursts share sizes, which adds noise
    targets = {5: 48, 25: 115, 50: 1144, 75: 2932, 90: 11265, 95: 43646, 99: 254758}
    for percent, seconds in targets.items():
        assert np.percentile(philly["duration_s"], percent) == pytest.approx(seconds, rel=0.15), percent
    assert (philly["duration_s"] > 86_400).mean() == pytest.approx(0.032, abs=0.006)
    assert (philly["duration_s"] < 60).mean() == pytest.approx(0.093, abs=0.01)


def test_philly_sizes_and_shares_of_gpu_time(philly):
    for size, share in PRESETS["philly"].sizes.items():
        assert (philly["gpus"] == size).mean() == pytest.approx(share, abs=0.01), size
    assert philly["gpus"].mean() == pytest.approx(1.30, abs=0.1)
    work = philly["gpus"] * philly["duration_s"]
    shares = [
        work[(philly["gpus"] > a) & (philly["gpus"] <= b)].sum() / work.sum()
        for a, b in ((0, 1), (1, 4), (4, 8), (8, 64))
    ]
    assert shares == pytest.approx([0.18, 0.20, 0.48, 0.14], abs=0.1)


def test_philly_arrivals_come_in_bursts(philly):
    gaps = np.diff(philly["submit_s"])
    assert gaps.mean() == pytest.approx(114, rel=0.1)
    assert np.median(gaps) < 15
    assert gaps.std() / gaps.mean() > 2.5
    poisson = np.diff(generate("philly", 20_000, 6504, None, 1, arrivals="poisson")["submit_s"])
    assert poisson.std() / poisson.mean() == pytest.approx(1.0, abs=0.05)


def test_lognormal_is_the_benchmark_trace():
    table = generate("lognormal", 100_000, 2504, 0.8, seed=7)
    assert np.median(table["duration_s"]) == pytest.approx(1800, rel=0.03)
    assert table["duration_s"].min() == 60
    assert table["duration_s"].max() <= 20 * 86_400
    assert (table["gpus"] == 1).mean() == pytest.approx(0.6, abs=0.01)


def test_streams_are_separate():
    bursty = generate("lognormal", 500, 64, None, seed=1)
    poisson = generate("lognormal", 500, 64, None, seed=1, arrivals="poisson", users=3)
    assert np.array_equal(bursty["duration_s"], poisson["duration_s"])
    assert np.array_equal(bursty["gpus"], poisson["gpus"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"preset": "phily"}, "did you mean 'philly'"),
        ({"jobs": 0}, "jobs must be at least 1"),
        ({"load": -1.0}, "load must be more than 0"),
        ({"seed": -1}, "a seed is at least 0"),
        ({"arrivals": "bursts"}, "did you mean 'bursty'"),
        ({"models": "uniformly"}, "did you mean 'uniform'"),
    ],
)
def test_wrong_parameters_say_what_would_work(change, message):
    with pytest.raises(InputError, match=message):
        generate(**{"preset": "gavel", "jobs": 5, "gpus": 8, "load": 0.5, "seed": 0} | change)


def test_target_load_moves_arrivals_only():
    table = generate("gavel", 300, 16, None, seed=2)
    moved = target_load(table, 16, 1.5)
    assert moved.load(16) == pytest.approx(1.5, rel=1e-5)
    assert np.array_equal(moved["duration_s"], table["duration_s"])


def test_catalogue_is_the_measured_table():
    known = catalogue()
    assert len(known.profiles) == 48
    assert known.sizes == (1, 2, 4, 8, 16, 32)
    profile = known.profile("dqn", 8)
    assert (profile.storage_s, profile.cpu_s, profile.gpu_s, profile.network_s) == (0.0, 0.435, 0.008, 0.0005)
    assert catalogue("storage").profile("dqn", 8).cpu_s == 0.0
    assert catalogue("storage").version != known.version
    with pytest.raises(InputError, match="measured on 1, 2, 4, 8, 16, 32"):
        known.profile("dqn", 64)


def test_a_model_depends_on_seed_and_job_alone():
    table = generate("gavel", 400, 64, 0.9, seed=5)
    whole = assign_models(table, seed=9, noise=0.1)
    some = np.flatnonzero(np.arange(400) % 3 == 1)
    part = assign_models(table.select(some), seed=9, noise=0.1)
    assert part.equals(whole.select(some))
    assert not assign_models(table, seed=10).equals(assign_models(table, seed=9))
    assert assign_classes(whole, seed=9, opportunistic=0.5)["model"].tolist() == whole["model"].tolist()
    assert whole.meta["assignments"][0]["catalogue"] == catalogue().version


def test_assigned_work_is_whole_iterations():
    table = generate("muri_like", 3000, 64, 0.9, seed=5)
    done = assign_models(table, seed=1)
    assert done["duration_s"] == pytest.approx(done["iterations"] * done["iteration_s"])
    assert np.array_equal(done["x_duration_trace_s"], table["duration_s"])
    assert np.abs(done["duration_s"] - table["duration_s"]).max() <= 0.6 or (done["iterations"] == 1).any()
    models, counts = np.unique(done["model"].astype(str), return_counts=True)
    assert len(models) == 8
    assert counts.min() > 3000 / 8 * 0.8
    by_hours = assign_models(table, seed=1, mix="by_gpu_hours")
    small = table["gpus"] * table["duration_s"] < 3600
    assert set(by_hours["model"][small]) <= {"dqn", "a2c", "resnet18"}
    assert set(assign_models(table, seed=1, mix={"bert": 1.0})["model"]) == {"bert"}


def test_a_size_without_profile_is_refused():
    table = generate("lognormal", 3000, 64, 0.9, seed=5)
    with pytest.raises(InputError, match="asks for 64 GPUs, where no model of the mix was measured; sizes: 1, 2"):
        assign_models(table, seed=1)
    with pytest.raises(InputError, match="did you mean 'bert'"):
        assign_models(table, seed=1, mix={"brt": 1})


def test_deadlines_and_draws():
    table = generate("gavel", 300, 64, 0.9, seed=5)
    ratio = assign_deadlines(table, seed=2)["deadline_s"] / table["duration_s"]
    assert set(np.round(ratio, 6)) == {1.2, 2.0, 10.0}
    for factors in ([], [0.0], [-1.0, 2.0], [float("inf")], [float("nan")]):
        with pytest.raises(InputError, match="finite and above 0"):
            assign_deadlines(table, seed=2, factors=factors)
    with pytest.raises(InputError, match="no job of this trace has a duration"):
        assign_deadlines(generate("pollux", 5, 64), seed=2)
    draws = uniforms(3, "key", [str(i) for i in range(2000)])
    assert 0 <= draws.min() < draws.max() < 1
    assert draws.mean() == pytest.approx(0.5, abs=0.02)
    word = hashlib.blake2b(b"3\nkey\n0", digest_size=8).digest()
    assert draws[0] == (int.from_bytes(word, "little") >> 11) / 2**53


def test_adaptive_jobs_have_the_mix_of_the_paper_and_no_durations():
    table = generate("pollux", 20_000, 64, None, seed=1)
    assert table.equals(generate("pollux", 20_000, 64, None, seed=1))
    for model, share in SHARES.items():
        assert (table["model"] == model).mean() == pytest.approx(share, abs=0.01), model
        assert set(table["gpus"][table["model"] == model].tolist()) == set(tuned_sizes(model))
    assert np.isnan(table["duration_s"].astype(float)).all()
    assert np.diff(table["submit_s"]).mean() == pytest.approx(180, rel=0.03)
    with pytest.raises(InputError, match="models of its own"):
        generate("pollux", 10, 64, models="uniform")


def test_the_load_of_adaptive_jobs_is_that_at_the_sizes_they_ask_for():
    jobs = load_jobs(generate("pollux", 400, 64, 0.7, seed=2)).jobs
    assert offered_load(jobs.submit_s, jobs.gpus, jobs.iterations * jobs.iteration_s, 64) == pytest.approx(
        0.7, rel=1e-4
    )
    assert (jobs.column("batch_size") > 0).all()


def test_without_durations_there_is_no_load_to_stretch():
    with pytest.raises(InputError, match="leave load out"):
        target_load(generate("pollux", 10, 64, None), 64, 0.5)


def test_no_size_is_asked_for_that_the_cluster_does_not_have():
    assert generate("pollux", 500, 8, seed=0)["gpus"].max() == 8


# -- habits fitted to a trace ------------------------------------------------------------------------------------------

#: Unlike the defaults in each habit.
OTHERS = RecurringWork(
    users=30, zipf=0.7, same_arguments=0.5, sweep=0.02, script_s=400.0, script_spread=1.0, argument_spread=0.6,
    run_spread=0.5, crash=0.02, stopped=0.3, gangs=((1, 0.5), (8, 0.5)),
)  # fmt: skip


@pytest.mark.parametrize("work", [RecurringWork(), OTHERS], ids=["default", "others"])
def test_habits_of_generated_work_are_found_again(work: RecurringWork) -> None:
    found = fit_recurring(generate("recurring", 3000, 64, seed=1, work=work))
    assert 0.9 * work.users <= found.users <= work.users
    for name, off in {"zipf": 0.2, "same_arguments": 0.1, "sweep": 0.05, "crash": 0.05, "stopped": 0.05}.items():
        assert getattr(found, name) == pytest.approx(getattr(work, name), abs=off), name
    for name, part in {"run_spread": 0.2, "argument_spread": 0.3, "script_spread": 0.3, "script_s": 0.6}.items():
        assert getattr(found, name) == pytest.approx(getattr(work, name), rel=part), name
    assert [size for size, _ in found.gangs] == [size for size, _ in work.gangs]
    assert work.reruns <= found.reruns <= 1.5 * work.reruns


def test_a_profile_needs_names_and_scripts_that_run_again() -> None:
    with pytest.raises(InputError, match="no column script"):
        fit_recurring(generate("philly", 50, 64))
    once = generate("recurring", 50, 64)
    names = np.arange(50).astype(str).astype(object)
    with pytest.raises(InputError, match="no script of a user runs twice"):
        fit_recurring(TraceTable({**once.columns, "script": names}, once.meta))
    jobs = generate("recurring", 300, 64, seed=1)
    with pytest.raises(InputError, match="no job of the trace completed on GPUs"):
        fit_recurring(TraceTable({**jobs.columns, "gpus": np.zeros(300, dtype=np.int64)}, jobs.meta))


def test_jobs_without_gpus_count_for_no_duration() -> None:
    jobs = generate("recurring", 300, 64, seed=1)
    gpus = np.where(np.arange(300) % 10 == 0, 0, np.asarray(jobs["gpus"]))
    found = fit_recurring(TraceTable({**jobs.columns, "gpus": gpus}, jobs.meta))
    assert np.isfinite([found.script_s, found.run_spread, found.argument_spread, found.script_spread]).all()
