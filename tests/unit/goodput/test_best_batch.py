"""The choice of (m, s): the oracle table, a loop that does the same one candidate at a time, and its bounds."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from goodput_cases import oracle, some_jobs
from plait.control.controller import Controller
from plait.control.messages import GoodputReported, JobSubmitted
from plait.core.cluster import Cluster
from plait.core.errors import InputError
from plait.core.goodput import BatchLimits, Estimate
from plait.core.jobs import JobBatch, JobSpec
from plait.goodput.batch import best_batch, best_batch_each, fixed_batch, goodput, goodput_table
from plait.goodput.jobs import GoodputJobs
from plait.goodput.throughput import efficiency, iteration_s, throughput
from plait.policies.catalog import make_policy

CONFIGS = [(1, 1), (1, 2), (1, 4), (2, 2), (2, 8), (4, 16), (16, 64), (32, 128)]


@pytest.mark.parametrize(
    ("config", "time", "rate", "worth", "value"),
    [
        ((1, 1, 16, 0), 0.260000, 61.538462, 1, 61.538462),
        ((1, 1, 16, 3), 1.040000, 61.538462, 0.625, 38.461538),
        ((1, 4, 32, 0), 0.533584, 239.887090, 0.416667, 99.952954),
        ((2, 8, 32, 0), 0.991805, 258.115230, 0.25, 64.528807),
        ((4, 16, 8, 1), 1.426037, 179.518479, 0.25, 44.879620),
    ],
)
def test_the_oracle_of_given_batches(config, time, rate, worth, value) -> None:
    jobs = oracle()
    _, gpus, local, passes = config
    scale = gpus * local * (passes + 1) / 16
    assert iteration_s(jobs.theta, *config)[0] == pytest.approx(time, abs=5e-7)
    assert throughput(jobs.theta, *config)[0] == pytest.approx(rate, abs=5e-7)
    assert efficiency(jobs.sqr, jobs.var, scale)[0] == pytest.approx(worth, abs=5e-7)
    assert goodput(jobs, *config)[0] == pytest.approx(value, abs=5e-7)


@pytest.mark.parametrize("artifact", [False, True])
def test_the_oracle_of_best_batches(artifact) -> None:
    nodes, gpus = np.array([1, 1, 1, 2, 4, 16]), np.array([1, 2, 4, 8, 16, 64])
    choice = best_batch(oracle(), nodes, gpus, artifact=artifact)
    assert choice.local[0].tolist() == [16, 28, 22, 31, 16, 4]
    assert choice.passes[0].tolist() == [0] * 6
    assert choice.goodput[0] == pytest.approx(
        [61.538462, 79.191185, 103.675038, 64.536760, 50.024092, 17.687463], abs=5e-7
    )


def slowly(jobs: GoodputJobs, row: int, nodes: int, gpus: int, artifact: bool) -> float:
    """The specification, one candidate at a time."""
    initial, most = int(jobs.initial[row]), int(jobs.most[row])
    least_local, most_local = int(jobs.least_local[row]), int(jobs.most_local[row])
    accumulates = bool(jobs.accumulates[row])
    if not artifact and gpus * least_local > most:
        return 0.0
    best = 0.0
    for batch in np.geomspace(max(initial, least_local * gpus), most):
        local = batch / gpus
        passes = 0
        if accumulates:
            passes = math.ceil(local / most_local - 1e-8) - 1
            if gpus == 1 and local > initial + 1e-8:
                passes = max(passes, 1)
        atomic = math.ceil(local / (passes + 1) - 1e-8)
        if gpus == 1 and not accumulates:
            atomic = initial
        if artifact:
            if not least_local <= atomic <= most_local:
                continue
        else:
            atomic = min(max(atomic, least_local), most_local)
            total, step = atomic * gpus * (passes + 1), gpus * (passes + 1)
            if total < initial or total >= most + step:
                continue
        best = max(best, float(goodput(jobs[[row]], nodes, gpus, atomic, passes)[0]))
    return best


@pytest.mark.parametrize("artifact", [False, True])
def test_all_at_once_is_one_at_a_time(artifact) -> None:
    jobs = some_jobs(3, 12)
    nodes, gpus = np.array(CONFIGS).T
    choice = best_batch(jobs, nodes, gpus, artifact=artifact)
    expected = [[slowly(jobs, row, *config, artifact) for config in CONFIGS] for row in range(len(jobs))]
    assert choice.goodput == pytest.approx(np.array(expected), rel=1e-12)


@given(
    st.integers(0, 10**6),
    st.booleans(),
    st.booleans(),
    st.lists(st.tuples(st.integers(1, 8), st.integers(1, 64)).filter(lambda c: c[0] <= c[1]), min_size=1),
)
def test_choices_keep_the_bounds(seed, accumulates, artifact, configs) -> None:
    jobs = replace(some_jobs(seed, 5), accumulates=np.full(5, accumulates))
    nodes, gpus = np.array(configs).T
    local, passes, value, _ = best_batch(jobs, nodes, gpus, artifact=artifact)
    assert local.shape == passes.shape == value.shape == (5, len(configs))
    some = value > 0
    initial, most, least_local, most_local = (
        np.broadcast_to(column[:, None], local.shape)[some]
        for column in (jobs.initial, jobs.most, jobs.least_local, jobs.most_local)
    )
    many = np.broadcast_to(gpus, local.shape)[some]
    assert not local[~some].any()
    assert not passes[~some].any()
    local, passes = local[some], passes[some]
    total = many * local * (passes + 1)
    assert (local >= least_local).all()
    assert (local <= most_local).all()
    assert (total >= initial).all()
    assert (total < np.maximum(most, many * least_local) + many * (passes + 1)).all()
    alone = many == 1
    if accumulates:
        assert (passes[alone & (total > initial)] >= 1).all()
    else:
        assert not passes.any()
        assert (local[alone] == initial[alone]).all()


def test_each_on_its_own_configuration_is_the_diagonal() -> None:
    jobs = some_jobs(5, 8)
    nodes, gpus = np.array(CONFIGS).T
    for whole, own in zip(best_batch(jobs, nodes, gpus), best_batch_each(jobs, nodes, gpus), strict=True):
        assert own.tolist() == whole.diagonal().tolist()


def test_no_more_gpus_than_leave_each_its_smallest_batch() -> None:
    choice = best_batch(oracle(), [16, 17, 1], [64, 65, 0])
    assert (choice.goodput[0] > 0).tolist() == [True, False, False]


def test_without_a_fit_goodput_is_proportional_to_gpus() -> None:
    jobs = replace(oracle(), theta=np.full((1, 7), np.nan))
    choice = best_batch(jobs, [1, 1, 2, 17], [1, 2, 8, 65])
    assert choice.goodput[0].tolist() == [1, 2, 8, 0]
    assert choice.local[0].tolist() == [16, 8, 4, 0]
    assert goodput_table(jobs, [(1, 1), (2, 8)], most_gpus=[4]).tolist() == [[1, 0]]


@st.composite
def any_limits(draw: st.DrawFn) -> tuple[int, int, int, int, bool]:
    least_local = draw(st.integers(1, 45))
    initial = draw(st.integers(least_local, 90))
    most_local = draw(st.integers(least_local, 100))
    return initial, draw(st.integers(initial, 200)), least_local, most_local, draw(st.booleans())


@given(any_limits())
@example((6, 6, 4, 5, True))
@example((39, 42, 37, 38, True))
@example((4, 4, 3, 3, True))
@example((3, 3, 1, 1, True))
def test_limits_are_taken_exactly_if_some_gpus_have_a_batch_with_and_without_a_fit(given_) -> None:
    names = ("initial", "most", "least_local", "most_local", "accumulation")
    try:
        BatchLimits(**dict(zip(names, given_, strict=True)))
        taken = True
    except InputError:
        taken = False
    initial, most, least_local, most_local, accumulates = given_
    gpus = np.arange(1, most // least_local + 1)
    columns = ([1.0, 1.0], [4.0, 4.0], *([value] * 2 for value in given_))
    jobs = GoodputJobs(np.stack([oracle().theta[0], np.full(7, np.nan)]), *columns)
    local, passes, value, _ = best_batch(jobs, np.ones_like(gpus), gpus)
    alone = accumulates or initial <= most_local
    assert bool((value[0] > 0).any()) == taken or not alone
    assert ((value[0] > 0) == (value[1] > 0)).all()
    assert value[1].tolist() == (gpus * (value[1] > 0)).tolist()
    assert ((local > 0) == (value > 0)).all()
    some = value > 0
    total = gpus * local * (passes + 1)
    assert ((local >= least_local) & (local <= most_local))[some].all()
    assert ((total >= initial) & (total < most + gpus * (passes + 1)))[some].all()


def test_the_model_of_throughput_can_be_replaced() -> None:
    def only_gpus(theta, nodes, gpus, local, passes):
        return gpus * np.ones_like(local)

    jobs = replace(oracle(), sqr=np.array([0.0]), var=np.array([1.0]))
    assert best_batch(jobs, [1, 1], [1, 2], speed=only_gpus).goodput[0] == pytest.approx([1, 2])


@pytest.mark.parametrize(
    ("batch", "gpus", "expected"),
    [(16, 1, (16, 0)), (17, 1, (9, 1)), (128, 1, (32, 3)), (64, 3, (22, 0)), (256, 2, (32, 3)), (256, 3, (28, 2))],
)
def test_a_fixed_batch_is_split(batch, gpus, expected) -> None:
    local, passes = fixed_batch(batch, gpus, initial=16, most=256, most_local=32)
    assert (int(local), int(passes)) == expected


def test_a_fixed_batch_never_exceeds_the_largest() -> None:
    gpus = np.arange(1, 40)
    local, passes = fixed_batch(256, gpus, initial=16, most=256, most_local=32)
    assert (local * gpus * (passes + 1) <= 256).all()
    local, passes = fixed_batch(256, [1, 8], initial=16, most=256, most_local=64, accumulates=False)
    assert (local.tolist(), passes.tolist()) == ([64, 32], [0, 0])
    local, passes = fixed_batch(6, [1, 2, 3], initial=6, most=9, most_local=5, least_local=4)
    assert (local.tolist(), passes.tolist()) == ([4, 4, 0], [1, 0, 0])


def test_the_table_computes_what_the_model_cannot_tell_apart_once(monkeypatch) -> None:
    jobs = some_jobs(7, 6)
    configs = np.array([(2, 4), (3, 4), (1, 4), (4, 4), (1, 1), (0, 0), (1, 4)])
    asked = []

    def counted(theta, nodes, gpus, local, passes):
        asked.append(len(local))
        return throughput(theta, nodes, gpus, local, passes)

    monkeypatch.setattr("plait.goodput.batch.throughput", counted)
    table = goodput_table(jobs, configs, speed=counted)
    assert sum(asked) == 6 * 3
    assert table == pytest.approx(best_batch(jobs, *configs.T).goodput, rel=1e-15)
    assert not table[:, 5].any()


def test_another_model_of_throughput_is_asked_about_all_nodes_that_there_are() -> None:
    jobs, configs = some_jobs(7, 6), np.array([(1, 4), (2, 4), (4, 4), (2, 8), (2, 4)])
    asked = []

    def racks(theta, nodes, gpus, local, passes):
        asked.append(np.broadcast_to(nodes, local.shape)[:, 0])
        return throughput(theta, nodes, gpus, local, passes) / nodes

    table = goodput_table(jobs, configs, speed=racks)
    assert sorted(np.concatenate(asked).tolist()) == sorted([1, 2, 4, 2] * 6)
    assert table == pytest.approx(best_batch(jobs, *configs.T, speed=racks).goodput, rel=1e-15)
    assert (table[:, 1] > table[:, 2]).all()


def test_columns_of_the_job_table() -> None:
    limits = BatchLimits(initial=16, most=256, least_local=4, most_local=32, accumulation=True)
    controller = Controller(make_policy("fifo"), Cluster.parse("1x4"))
    batch = JobBatch.of([JobSpec(id=name, iterations=10, iteration_s=1, batch=limits) for name in "ab"])
    controller.handle(JobSubmitted(0.0, 0, batch))
    row = np.append(oracle().theta[0], [1, 4, 2, 30])
    controller.handle(GoodputReported(1.0, np.array([1]), row[None]))
    jobs = GoodputJobs.of(controller.view().jobs)
    assert jobs.fitted.tolist() == [False, True]
    assert (jobs.sqr.tolist(), jobs.var.tolist()) == ([0, 1], [1, 4])
    assert goodput_table(jobs, [(1, 2), (1, 4)]) == pytest.approx(np.array([[2, 4], [79.191185, 103.675038]]))


def test_a_job_that_does_not_adapt_is_named_and_what_takes_it() -> None:
    controller = Controller(make_policy("fifo"), Cluster.parse("1x4"))
    controller.handle(JobSubmitted(0.0, 0, JobBatch.of([JobSpec(id="a", iterations=10, iteration_s=1)])))
    with pytest.raises(
        InputError, match=r"job 0 does not adapt its batch, .* take plait.policies.sizing.pools.goodput_jobs"
    ):
        GoodputJobs.of(controller.view().jobs)


@pytest.mark.parametrize("wrong", [np.inf, -np.inf, -1.0, 0.0, 1e300])
@pytest.mark.parametrize("column", list(Estimate)[: Estimate.PROFILED_GPUS], ids=str)
def test_estimates_that_cannot_be_count_as_not_known_from_any_backend(wrong, column) -> None:
    limits = BatchLimits(initial=16, most=256, least_local=4, most_local=32, accumulation=True)
    controller = Controller(make_policy("fifo"), Cluster.parse("1x4"))
    controller.handle(
        JobSubmitted(
            0.0, 0, JobBatch.of([JobSpec(id=name, iterations=10, iteration_s=1, batch=limits) for name in "ab"])
        )
    )
    rows = np.tile(np.append(oracle().theta[0], [1, 4, 2, 30]), (2, 1))
    rows[0, column] = wrong
    controller.handle(GoodputReported(1.0, np.arange(2), rows))
    jobs = GoodputJobs.of(controller.view().jobs)
    noisy = column >= Estimate.SQR
    assert jobs.fitted.tolist() == [noisy, True]
    if noisy and wrong != 0.0:
        assert (jobs.sqr[0], jobs.var[0]) == (0, 1)
    table = goodput_table(jobs, [(1, 1), (1, 4)])
    assert (np.isfinite(table) & (table > 0)).all()
    assert table[1] == pytest.approx([61.538462, 103.675038])


def test_wrong_columns_are_refused() -> None:
    good = oracle()
    with pytest.raises(InputError, match=r"sqr of goodput jobs has shape \(2,\); 1 jobs take \(1,\)"):
        replace(good, sqr=[1, 2])
    with pytest.raises(InputError, match="goodput job 0 has batch sizes M0=16, M_max=8"):
        replace(good, most=[8])
    with pytest.raises(InputError, match=r"theta of goodput jobs has shape \(7,\)"):
        replace(good, theta=good.theta[0])
    for theta in (np.inf, -1.0):
        with pytest.raises(InputError, match="theta of goodput jobs holds a number below 0"):
            replace(good, theta=np.full((1, 7), theta))
    with pytest.raises(InputError, match="sqr and var of goodput jobs need finite numbers"):
        replace(good, var=[np.inf])
