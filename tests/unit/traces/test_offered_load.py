"""Offered load: a definition by hand, its bounds, and clusters that are as busy as the load of their jobs."""

import numpy as np
import pytest

from plait import Cluster, load_jobs, make_world
from plait.core.errors import InputError
from plait.sim.studies.cases import Case, run_case
from plait.traces.synthetic import generate, target_load
from plait.traces.table import TraceTable, busy_period, offered_load

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
