"""Pollux in the artifact's world, on measurements made from formulas."""

from dataclasses import replace

import numpy as np
import pytest

from plait.goodput.batch import best_batch
from plait.goodput.throughput import Measurements, loss
from plait.goodput.throughput import step_s as plain_step_s
from plait_papers.pollux import command
from plait_papers.pollux.clock import GPUS_PER_NODE, Shape, free_gpus, run
from plait_papers.pollux.command import Comparison, over_workloads, points
from plait_papers.pollux.jobs import KnownJob, PolluxJob, table_of
from plait_papers.pollux.pollux import FLOOR, Mean, Pollux, PolluxExact, PolluxSearch, Round
from plait_papers.pollux.settings import make_rule, read_setting
from plait_papers.pollux.workload import load
from plait_papers.pollux.world import fairness, simulate
from pollux_files import step_s, write_measurements, write_workload
from sampling import THOROUGH

NAMES = ("pollux", "pollux:exact=on", "pollux-ga", "pollux-ga:avoid=off,interference=0.5")


def jobs_of(workload):
    return [PolluxJob(i, s, workload.measured[s.application.name]) for i, s in enumerate(workload.jobs)]


@pytest.fixture(scope="module")
def long(tmp_path_factory):
    """Three jobs that come one after another and take some rounds."""
    folder = tmp_path_factory.mktemp("long")
    path = write_workload(folder / "w.csv", *[(70 * i, "bert", 1, 12) for i in range(3)])
    return load(path, write_measurements(folder / "data", "bert", iterations=150))


def test_a_job_learns_about_itself(workload):
    (job,) = jobs_of(workload((0, "cifar10", 1, 128)))
    job.place(60, (1,))
    assert (job.local, job.passes) == (128, 0)  # what the workload says of GPUs and batch does not count
    assert job.most_gpus == 1
    assert np.isnan(job.theta).all()
    job.advance(60, 60, 0.0)
    assert job.profile == {(1, 1, 128): pytest.approx((step_s((1,), 128)[0] - 0.001, step_s((1,), 128)[0]))}
    assert job.most_gpus == 2
    assert np.isfinite(job.theta).all()
    assert (job.sqr, job.var) == job.measured.noise(128, 0)
    job.place(120, (2,))
    assert job.restarts == 1
    assert job.delay_s == 30
    best = best_batch(table_of([job]), 1, 2, artifact=True)
    assert (job.local, job.passes) == (best.local[0, 0], best.passes[0, 0])
    job.advance(120, 60, 0.0)
    assert job.most_gpus == 4
    assert {key[1] for key in job.profile} == {1, 2}
    assert job.attained_gpu_s == 60 + 2 * 60


def test_the_fit_is_to_all_that_was_measured(workload):
    (job,) = jobs_of(workload((0, "bert", 1, 12)))
    for now, placement in enumerate([(1,), (2,), (4,), (4, 4), (4, 1), (4, 4, 4)]):
        job.place(60.0 * now, placement)
        job.advance(60.0 * now, 60, 0.0)
    keys, times = zip(*job.profile.items(), strict=True)
    nodes, gpus, local = (np.array(column) for column in zip(*keys, strict=True))
    seen = Measurements(nodes, gpus, local, *(np.array(column) for column in zip(*times, strict=True)))
    assert loss(job.theta, seen) < 0.3
    assert job.theta is job.theta  # made once


def test_some_never_choose_their_batch(workload):
    (job,) = jobs_of(workload((0, "ncf", 1, 512)))
    job.place(60, (1,))
    assert (job.local, job.passes) == (16384, 1)
    job.advance(60, 60, 0.0)
    assert (job.local, job.passes) == (16384, 1)
    assert job.most_gpus == 1


@pytest.mark.parametrize("name", NAMES)
def test_whole_runs(long, name):
    """Every job finishes; nobody has more than he may, no node more than it has; the same run comes out again."""
    w = long
    setting = replace(read_setting(name), nodes=2)
    rule = make_rule(setting, w)
    decide = rule.decide
    told: list[int] = []

    def watched(now_s, jobs, allocations):
        found = decide(now_s, jobs, allocations)
        assert min(free_gpus(setting.nodes, found)) >= 0
        spread = [set(nodes) for nodes in found.values() if len(set(nodes)) > 1]
        assert "avoid=off" in name or sum(map(len, spread)) == len(set().union(*spread))
        assert all(len(found.get(job.number, ())) <= job.most_gpus for job in jobs)
        assert all(list(nodes) == sorted(nodes) for nodes in found.values())
        told.append(len(jobs))
        return found

    rule.decide = watched  # type: ignore[method-assign]
    done = run(w, rule, setting.shape)
    assert (done.end_s > done.first_start_s).all()
    assert 2 < len(told) < done.rounds
    if name == NAMES[-1] and not THOROUGH:
        return  # the search of the one before it is repeated
    again = simulate(w, setting)
    assert again.end_s.tolist() == done.end_s.tolist()
    assert again.restarts.tolist() == done.restarts.tolist()


def rounds(data_workload, policy, seed):
    """A round of jobs that have measured themselves on a few placements."""
    rng = np.random.default_rng(seed)
    jobs = jobs_of(data_workload)
    for job in jobs:
        for placement in ((1,), (2,), (4,), (4, 4)):
            if sum(placement) <= job.most_gpus:
                job.place(0.0, placement)
                job.advance(0.0, 60, 0.0)
    running = np.zeros((len(jobs), policy.nodes), dtype=np.int64)
    free = policy.capacity.copy()
    for row in range(0, len(jobs), 2):
        node = int(rng.integers(policy.nodes))
        running[row, node] = min(int(rng.integers(1, 3)), free[node])
        free[node] -= running[row, node]
    factor = rng.uniform(0.3, 1.0, len(jobs))
    return Round(jobs, policy._speedup(jobs), running, factor)


def value(now, configs, gpus):
    """The harmonic mean of speed-ups after restarts, with the floor."""
    total = 0.0
    for row, placed in enumerate(gpus):
        several, size = (placed > 0).sum() > 1, placed.sum()
        at = np.flatnonzero((configs[:, 1] == size) & ((configs[:, 0] > 1) == several))[0]
        stays = (placed == now.running[row]).all()
        total += 1 / (now.speedup[row, at] * (1.0 if stays else now.factor[row]) + FLOOR)
    return len(gpus) / total


@pytest.mark.parametrize("seed", range(2))
def test_the_program_is_no_worse_than_the_others(workload, seed):
    w = workload(*[(0, "cifar10", 1, 512)] * 4, *[(0, "yolov3", 1, 512)] * 3)
    shape = Shape(nodes=3)
    exact, ladder, search = PolluxExact(shape), Pollux(shape), PolluxSearch(shape, seed=seed)
    now = rounds(w, exact, seed)
    short = replace(now, speedup=ladder._speedup(now.jobs))
    best = value(now, exact.configs, exact.choose(now))
    assert best >= value(now, exact.configs, search.choose(now)) * (1 - 1e-9)
    assert best >= value(short, ladder.configs, ladder.choose(short)) * (1 - 1e-9)
    assert best >= value(now, exact.configs, now.running)


def test_seeds(workload):
    w = workload(*[(0, "cifar10", 1, 512)] * 4, *[(0, "yolov3", 1, 512)] * 3)
    now = rounds(w, PolluxExact(Shape(nodes=3)), 0)
    one, same, other = (PolluxSearch(Shape(nodes=3), seed=seed).choose(now).tolist() for seed in (0, 0, 1))
    assert one == same
    assert one != other


def test_bases(workload):
    """A fair share of more than one node is looked up as if it were on one, as released, or on as few as hold it."""
    w = workload((0, "cifar10", 1, 512), (0, "cifar10", 1, 512))
    for base, nodes in (("artifact", 1), ("corrected", 4)):
        policy = Pollux(Shape(nodes=8), Mean(base=base))
        now = rounds(w, policy, 0)
        fair = best_batch(table_of(now.jobs), nodes, 16, artifact=True).goodput[:, 0]
        one = best_batch(table_of(now.jobs), 1, 1, artifact=True).goodput[:, 0]
        assert now.speedup[:, 1] == pytest.approx(one / fair)
    assert (now.speedup[:, policy.configs[:, 1] > now.jobs[0].most_gpus] == 0).all()
    assert policy.configs[:, 1].max() == 8 * GPUS_PER_NODE


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("pollux:seed=1", "pollux has no option 'seed' in world pollux-artifact"),
        ("pollux:exact=yes", "exact must be one of on, off, got 'yes'"),
        ("pollux:floor=0", "floor must be a number from 1e-9 to 1, got '0'"),
        ("pollux-ga:seed=-1", "seed must be a whole number, got '-1'"),
        ("pollux-ga:base=fixed", "base must be one of artifact, corrected, got 'fixed'"),
        ("pollux:p=99", "p must be a number from -50 to 50, got '99'"),
    ],
)
def test_settings_that_are_refused(text, message):
    from plait.core.errors import InputError

    with pytest.raises(InputError) as error:
        read_setting(text)
    assert message in str(error.value)


def test_settings_as_text():
    text = "pollux-ga:seed=2,avoid=off,interference=0.25,floor=0.001"
    assert read_setting(text).text == "pollux-ga:interference=0.25,floor=0.001,seed=2,avoid=off"
    assert read_setting(read_setting(text).text) == read_setting(text)
    assert read_setting("pollux:exact=off").text == "pollux"


def test_p_decides_how_much_the_slowest_job_counts(workload):
    """Of three jobs on 4 GPUs p = 1 leaves one without; p = -10 leaves none."""
    w = workload(*[(0, name, 1, batch) for name, batch in (("cifar10", 512), ("bert", 12), ("yolov3", 8))])
    gpus = {}
    for p in (1.0, -10.0):
        policy = Pollux(Shape(nodes=1), Mean(p=p))
        now = rounds(w, policy, 0)
        speedup = np.where(policy.configs[:, 1] > 0, np.array([[4.0], [1.0], [1.0]]) * policy.configs[:, 1], 0.0)
        gpus[p] = policy.choose(replace(now, speedup=speedup, factor=np.ones(3))).sum(axis=1).tolist()
    assert gpus[1.0] == [4, 0, 0]
    assert min(gpus[-10.0]) == 1


def test_a_job_with_an_oracle_explores_nothing(workload):
    w = workload((0, "cifar10", 1, 512))
    measured = w.measured["cifar10"]
    learns, knows = (kind(0, w.jobs[0], measured) for kind in (PolluxJob, KnownJob))
    assert learns.most_gpus == 1
    assert knows.most_gpus == 64
    step_s, sync_s = measured.step((4,), 64)
    assert float(plain_step_s(knows.theta, 1, 4, 64)) == pytest.approx(step_s, rel=0.2)
    assert knows.state[0] == 0
    knows.seen(step_s, sync_s, 1.0, 2.0)
    assert knows.state == (1, 1.0, 2.0)
    policies = ("pollux", "pollux:oracle=on")
    ends = [simulate(w, read_setting(policy)).jct_s[0] for policy in policies]
    assert ends[1] < ends[0], "exploring costs time"


def test_fairness_compares_a_job_with_itself_on_its_share(workload):
    """Alone, Tiresias gives a job all it asks for: 1, but for its start; of two of 64 GPUs one waits for the other."""
    for jobs, low, high in (([(0, "cifar10", 8, 512)], 0.8, 1.2), ([(0, "bert", 64, 384)] * 2, 1.0, 4.0)):
        w, setting = workload(*jobs), read_setting("tiresias")
        found = fairness(w, simulate(w, setting), setting)
        assert low < found["worst_rho"] < high


def test_other_loads_are_the_authors_files_where_they_are_and_copies_elsewhere(tmp_path, monkeypatch):
    half = tmp_path / "workloads-0.5"
    half.mkdir()
    files = [write_workload(folder / "w.csv", (0, "ncf", 1, size)) for size, folder in ((256, tmp_path), (512, half))]
    rows = {(command._hash(file), "", "", "optimus"): {"avg_jct_s": str(i)} for i, file in enumerate(files, 1)}
    monkeypatch.setattr(command, "_published", lambda: rows)
    of_one, of_half = (
        {p.at: p for p in points(file, tmp_path, ["load"], [0]) if (p.study, p.policy) == ("load", "optimus")}
        for file in files
    )
    assert [(p.cases[0].workload, p.cases[0].times) for p in of_half.values()] == [
        (str(files[1]), t) for t in (1, 2, 3, 4)
    ]
    assert {at: (p.cases[0].workload, p.cases[0].times, p.published) for at, p in of_one.items()} == {
        "0.5 x": (str(files[1]), 1.0, {"avg_jct_s": 2.0}),
        "1 x": (str(files[0]), 1.0, {"avg_jct_s": 1.0}),
        "1.5 x": (str(files[0]), 1.5, {}),
        "2 x": (str(files[0]), 2.0, {}),
    }


def test_the_mean_over_workloads_has_its_interval():
    row = Comparison("a", "", "", "pollux", "Pollux", "avg_jct_s", 1.0, 1.0, 1.0, 1, 1.0, 0.0)
    (mean,) = over_workloads([row, replace(row, workload="b", ours=3.0, published=3.0)])
    assert (mean.workload, mean.ours, mean.published, mean.off) == ("mean of 2 workloads", 2.0, 2.0, 0.0)
    assert (mean.low, mean.high) == pytest.approx((2.0 - 12.706, 2.0 + 12.706), abs=1e-3)  # t of one degree of freedom
    assert not list(over_workloads([row]))
