"""Durations of zero, and stage times against the iteration, in every reader alike."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from plait.core.cluster import Cluster
from plait.core.errors import InputError, TraceError
from plait.core.jobs import JobBatch, JobSpec
from plait.core.resources import StageProfile
from plait.goodput.fixed_batch import fixed_s, prior
from plait.goodput.shipped import shipped
from plait.policies.catalog import make_policy
from plait.sim.run import simulate
from plait.sim.studies.cases import Case, run_case
from plait.sim.world import make_world
from plait.traces.canonical import read_canonical, write_canonical
from plait.traces.formats.registry import read_trace
from plait.traces.load import load_jobs, no_larger_than
from plait.traces.synthetic import generate, target_load
from plait.traces.table import TraceTable, busy_period, offered_load

FIXTURES = Path(__file__).parent / "fixtures"
CANONICAL = "job_id,submit_s,gpus,duration_s,iterations,iteration_s,storage_s,cpu_s,gpu_s,network_s\n"

#: fixture -> (text in it, what it becomes, whose run time is zero then, seconds of its one iteration)
ZEROS = {
    "muri.csv": ("2,8,5000,30,vgg16,16,7000", "2,8,5000,30,vgg16,16,0", "2", 0.2),
    "muri_testbed.csv": ("60.5,33.0,", "60.5,0.0,", "1", 1.0),
    "tiresias.csv": ("vgg19,164", "vgg19,0", "0", 1.0),
    "helios.csv": ("2020-05-01 10:05:00,2020-05-01 12:05:00", "2020-05-01 10:05:00,2020-05-01 10:05:00", "900001", 1.0),
    "openb_pods.csv": ("Running,100,700,130", "Running,100,700,700", "pod-10", 1.0),
    "gavel12.trace": ("\t600\t30", "\t0\t30", None, 1.0),
    "philly.json": (
        '"start_time":"2017-10-01 08:05:00","end_time":"2017-10-01 09:05:00"',
        '"start_time":"2017-10-01 08:05:00","end_time":"2017-10-01 08:05:00"',
        "application_1_0001",
        1.0,
    ),
}


@pytest.mark.parametrize("name", ZEROS)
def test_a_run_of_zero_seconds_is_one_iteration_and_noted(name: str, tmp_path: Path) -> None:
    before, after, job, seconds = ZEROS[name]
    text = (FIXTURES / name).read_text()
    assert before in text
    path = tmp_path / name
    path.write_text(text.replace(before, after))
    table, whole = read_trace(path), read_trace(FIXTURES / name)
    assert len(table) == len(whole)
    assert table.meta["rows_dropped"] == whole.meta["rows_dropped"]
    ids = table["job_id"].tolist()
    row = (
        int(np.argmin(table["duration_s"]))
        if job is None
        else next(i for i, own in enumerate(ids) if own.endswith(job))
    )
    assert table["duration_s"][row] == pytest.approx(seconds)
    assert table["duration_kind"][row] != "exact"
    note = [text for text in table.meta["warnings"] if "of 0" in text]
    assert "one iteration (first on line " in "".join(note)
    if table["gpus"][row] > 0:
        jobs = load_jobs(table).jobs
        assert jobs.iterations[jobs.id.tolist().index(ids[row])] == pytest.approx(1.0)


def written(tmp_path: Path, *rows: str) -> Path:
    path = tmp_path / "jobs.csv"
    path.write_text(CANONICAL + "".join(f"{row}\n" for row in rows))
    return path


def test_one_row_of_zero_does_not_cost_a_canonical_trace(tmp_path: Path) -> None:
    table = read_trace(written(tmp_path, "a,0,1,100,,,,,,", "b,1,1,0,,,,,,", "c,2,1,0,50,0.5,,,,"))
    assert table["duration_s"].tolist() == [100.0, 1.0, 0.5]
    assert "2 jobs have a duration of 0 and count as one iteration (first on line 3)" in table.meta["warnings"]
    assert load_jobs(table).jobs.iterations.tolist() == [100.0, 1.0, 1.0]


def test_stages_without_an_iteration_time_give_it(tmp_path: Path) -> None:
    table = read_trace(written(tmp_path, "a,0,1,100,,,0.1,0.2,0.3,0", "b,0,1,100,,4,1,2,3,0", "c,0,1,100,50,,1,2,1,0"))
    assert table["iteration_s"].tolist() == pytest.approx([0.6, 4.0, 2.0])  # the sum; as given; duration / iterations


def test_a_stage_longer_than_its_iteration_is_refused_with_its_row(tmp_path: Path) -> None:
    with pytest.raises(
        TraceError, match=r"jobs.csv:3: column 'gpu_s': a stage longer than its iteration of 1 s .got 5"
    ):
        read_trace(written(tmp_path, "a,0,1,100,100,1,0.5,0.6,0.7,0.8", "b,0,1,100,100,1,0,0,5,0"))
    close = read_trace(written(tmp_path, "a,0,1,107,1000,0.107,0.117,0,0.068,0"))  # Muri's vgg16 as published
    assert close["storage_s"].tolist() == [0.117]


# Elastic jobs that ask for more GPUs than a cluster has together: what they ask for instead, and how long it takes.

CIFAR = shipped()["cifar10"]


def adaptive(**changes: object) -> JobSpec:
    model = {"model": CIFAR.name, "batch": CIFAR.batch, "iterations": 100.0, "iteration_s": CIFAR.iteration_s(4, 16)}
    return JobSpec(**{"id": "a", "gpus": 16, "min_gpus": 1, "max_gpus": 64, **model, **changes})


def elastic(**changes: object) -> JobSpec:
    return JobSpec(**{"id": "e", "gpus": 8, "min_gpus": 2, "max_gpus": 16, "iterations": 10, **changes})


def capped(spec: JobSpec, cluster: str) -> JobSpec:
    return no_larger_than(JobBatch.of([spec]), Cluster.parse(cluster))[0]


@pytest.mark.parametrize(
    ("cluster", "kinds", "gpus"),
    [("4x4", None, 16), ("2x4:a,1x4:b", None, 8), ("2x4:a,1x4:b", frozenset({"b"}), 4), ("1x4,1x2", None, 6)],
)
def test_a_job_asks_for_the_largest_gang_of_a_kind_it_may_use(cluster: str, kinds: frozenset[str] | None, gpus: int):
    got = capped(adaptive(gpu_kinds=kinds), cluster)
    assert (got.gpus, got.max_gpus) == (gpus, 64 if gpus == 16 else gpus)


def test_on_two_kinds_it_runs_to_its_end():
    cluster = Cluster.parse("2x4:a,2x4:b")
    jobs = no_larger_than(JobBatch.of([adaptive()]), cluster)
    done = simulate(jobs, cluster, make_policy("fifo"), make_world("ideal"))
    assert done.controller.job_store.columns["end_s"][0] > 0


def test_an_iteration_takes_what_the_model_takes_at_that_size():
    assert capped(adaptive(), "1x4").iteration_s == pytest.approx(CIFAR.iteration_s(1, 4))
    assert capped(adaptive(iteration_s=None), "1x4").iteration_s is None


@pytest.mark.parametrize("changes", [{}, {"model": "mine", "batch": CIFAR.batch}], ids=["fixed", "unknown model"])
def test_what_is_not_known_takes_longer_as_the_prior_of_a_fixed_batch(changes: dict[str, object]):
    profile = StageProfile((0.1, 0.2, 0.4, 0.3), 1.0)
    got = capped(elastic(profile=profile, cpus=8.0, memory_bytes=80.0, **changes), "1x4")
    slower = float(fixed_s(prior(), 1, 4) / fixed_s(prior(), 2, 8))
    assert 1.5 < slower < 2.0, "half the GPUs, and no network between nodes"
    assert (got.gpus, got.iteration_s, got.cpus, got.memory_bytes) == (4, slower, 4.0, 40.0)
    assert got.profile.stage_s == pytest.approx(np.array((0.1, 0.2, 0.4, 0.3)) * slower)


def test_who_cannot_do_with_fewer_asks_for_what_it_asked():
    assert capped(elastic(min_gpus=5), "1x4").gpus == 8


# Offered load: a definition by hand, its bounds, and clusters that are as busy as the load of their jobs.

GPUS = 64


def _table(submit_s, gpus, duration_s, **columns):
    ids = np.array([f"j{i}" for i in range(len(submit_s))], dtype=object)
    columns = {name: np.array(values, dtype=float) for name, values in columns.items()}
    numbers = {"submit_s": np.array(submit_s, dtype=float), "gpus": np.array(gpus, dtype=np.int32)}
    return TraceTable({"job_id": ids, **numbers, "duration_s": np.array(duration_s, dtype=float), **columns})


def test_work_before_and_after_the_busy_period_does_not_count():
    submit_s = np.arange(0.0, 210.0, 10.0)  # the 5th percentile is 10 s, the last 200 s
    assert busy_period(submit_s) == (10.0, 200.0)
    gpus, duration_s = np.ones(21), np.zeros(21)
    duration_s[0] = 30.0  # 20 s of it after the period's begin
    duration_s[1] = np.nan
    duration_s[19] = 1e6  # at 190 s: 10 s are due before the last submission
    gpus[19] = 2
    duration_s[20] = 1e6
    assert offered_load(submit_s, gpus, duration_s, 4) == pytest.approx((20 + 2 * 10) / (4 * 190))


def test_a_job_that_requests_part_of_a_gpu_counts_the_whole_one_that_it_gets():
    table = _table(np.arange(0.0, 12000.0, 60.0), [1] * 200, [2000] * 200, gpu_milli=[250] * 200)
    stretched = target_load(table, 8, 0.7)
    jobs = load_jobs(stretched).jobs
    series = run_case(Case("parts", jobs, "fifo", Cluster.parse("1x8"), make_world("ideal"))).series
    first, last = busy_period(stretched["submit_s"])
    inside = (series["from_s"] >= first) & (series["to_s"] <= last)
    assert series["gpus_held"][inside].mean() / 8 == pytest.approx(0.7, abs=0.02)


def test_no_load_is_reached_without_enough_jobs():
    table = _table([0, 10, 20, 30, 40], [1] * 5, [5] * 5)
    most = offered_load(table["submit_s"], table["gpus"], np.full(5, 1e9), 2)
    assert target_load(table, 2, most * 0.9).load(2) == pytest.approx(most * 0.9, rel=1e-3)
    with pytest.raises(InputError, match=r"load 3 needs more jobs: these 5 reach at most 1\.3 on 2 GPUs"):
        target_load(table, 2, 3.0)
    with pytest.raises(InputError, match="submitted at one time"):
        target_load(_table([7] * 5, [1] * 5, [5] * 5), 2, 0.5)


@pytest.mark.parametrize("preset", ["philly", "gavel", "muri_like"])
def test_a_cluster_is_as_busy_as_the_load_of_its_jobs(preset):
    """GPU-seconds over the span of submissions would leave the Philly-like cluster idle: see the last line."""
    for load, low in ((0.7, 0.55), (1.0, 0.70), (1.3, 0.82)):
        table = generate(preset, 800, GPUS, load, seed=0)
        held, queue = _busy(table, "srtf")
        assert low <= held / GPUS <= min(1.0, load) + 0.02, (load, held)
    assert queue[1] >= 1  # at a load of 1.3 there is a queue even under the best order
    _, queue = _busy(table, "fifo")
    assert queue[1] > 50, queue
    assert queue[1] > 1.5 * queue[0], queue  # it grows
    if preset == "philly":
        span_s = table.gpu_s / (GPUS * 1.0)  # submissions over this span: load 1.0 by all GPU-seconds
        stretched = table.select(np.arange(len(table)))
        stretched.columns["submit_s"] = table["submit_s"] * (span_s / table.span_s)
        assert _busy(stretched, "srtf")[0] / GPUS < 0.45


def _busy(table, policy):
    """GPUs held in the busy period, and the mean queue in each half of it."""
    jobs = load_jobs(table).jobs
    series = run_case(Case("generated", jobs, policy, Cluster.parse("8x8"), make_world("ideal"))).series
    first, last = busy_period(table["submit_s"])
    middle = (first + last) / 2

    def mean(name, low, high):
        part_s = np.clip(np.minimum(series["to_s"], high) - np.maximum(series["from_s"], low), 0, None)
        return (series[name] * part_s).sum() / (high - low)

    return mean("gpus_held", first, last), (mean("queue_length", first, middle), mean("queue_length", middle, last))


# Recurring work: its shares against those that it follows, and how jobs carry what they run.


@pytest.fixture(scope="module")
def table():
    return generate("recurring", 2000, 64, 1.0, seed=3)


def test_the_trace_is_a_function_of_its_seed_with_the_load_asked_for(table):
    assert table.equals(generate("recurring", 2000, 64, 1.0, seed=3))
    assert not table.equals(generate("recurring", 2000, 64, 1.0, seed=4))
    assert table.load(64) == pytest.approx(1.0, rel=1e-4)
    assert np.array_equal(generate("recurring", 2000, 64, None, seed=3)["duration_s"], table["duration_s"])


@pytest.mark.parametrize("seed", [0, 1])
def test_scripts_repeat_and_end_early_by_the_shares_of_production_fleets(seed):
    table = generate("recurring", 2000, 64, 1.0, seed)
    script = list(zip(table["user"].tolist(), table["script"].tolist(), strict=True))
    same = list(zip(script, table["arguments"].tolist(), strict=True))
    counts, same_counts = Counter(script), Counter(same)
    shares = {
        "of scripts that run five times or more": (np.mean([counts[one] >= 5 for one in script]), 0.79, 1.0),
        "of these with equal arguments": (np.mean([same_counts[one] >= 5 for one in same]), 0.43, 0.75),
        "first runs": (len(counts) / len(table), 0.079, 0.124),
        "failed": ((table["state"] == "failed").mean(), 0.133, 0.207),
        "stopped early": ((table["state"] == "cancelled").mean(), 0.108, 0.166),
    }
    for name, (share, low, high) in shares.items():
        assert low < share < high, name
    done = table["state"] == "completed"
    logs: dict[object, list[float]] = {}
    for one, log_s in zip(np.flatnonzero(done).tolist(), np.log(table["duration_s"][done]).tolist(), strict=True):
        logs.setdefault(same[one], []).append(log_s)
    within = np.concatenate([np.array(some) - np.mean(some) for some in logs.values() if len(some) >= 5])
    assert 0.2 < within.std() < 0.35
    assert np.log(table["duration_s"]).std() > 5 * within.std(), "what a job runs says most of its duration"


def test_failures_of_users_come_within_minutes(table):
    assert np.median(table["duration_s"][table["state"] == "failed"]) < 300


def test_jobs_carry_script_and_arguments_through_a_file(table, tmp_path):
    write_canonical(table, tmp_path / "jobs.csv")
    jobs = load_jobs(read_canonical(tmp_path / "jobs.csv")).jobs
    script, arguments = table["script"][7], table["arguments"][7]
    assert jobs[7].like == (f"{script} {arguments}", script)
    assert load_jobs(generate("gavel", 3, 8)).jobs[0].like == ()


def test_options_that_the_preset_draws_itself_are_refused():
    with pytest.raises(InputError, match="recurring draws models"):
        generate("recurring", 10, 8, models="uniform")
    with pytest.raises(InputError, match="leave out arrivals, max_duration"):
        generate("recurring", 10, 8, max_duration_s=60.0)
