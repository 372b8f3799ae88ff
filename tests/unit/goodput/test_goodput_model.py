"""What throughput, efficiency, goodput, shares and restarts must satisfy, and the choice of (m, s) by an oracle."""

import csv
import math
import os
from dataclasses import replace
from pathlib import Path

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
from plait.goodput import throughput
from plait.goodput.batch import best_batch, best_batch_each, fixed_batch, goodput, goodput_table
from plait.goodput.fit import Measurements, fit, loss
from plait.goodput.jobs import GoodputJobs
from plait.goodput.lr_scaling import RULES, adamscale, adascale, default_rule, legw, linear, rule_of, square_root
from plait.goodput.shipped import ShippedNoise, shipped
from plait.goodput.throughput import step_s, sync_s
from plait.policies.catalog import make_policy

seeds = st.integers(0, 10**6)
LIMITS = np.array([[16, 4096, 1, 4096]])


@given(seeds)
def test_goodput_is_throughput_times_efficiency_in_its_bounds(seed) -> None:
    jobs = some_jobs(seed, 10, LIMITS)
    rng = np.random.default_rng(seed)
    gpus = rng.integers(1, 16, 10)
    nodes = np.minimum(rng.integers(1, 16, 10), gpus)
    local, passes = rng.integers(16, 64, 10), rng.integers(0, 4, 10)
    rate = throughput.throughput(jobs.theta, nodes, gpus, local, passes)
    scale = gpus * local * (passes + 1) / 16
    worth = throughput.efficiency(jobs.sqr, jobs.var, scale)
    assert (rate >= 0).all()
    assert ((worth >= 0) & (worth <= 1 + 1e-15)).all()
    assert goodput(jobs, nodes, gpus, local, passes) == pytest.approx(rate * worth, rel=1e-15)
    assert rate == pytest.approx(
        gpus * local * (passes + 1) / throughput.iteration_s(jobs.theta, nodes, gpus, local, passes), rel=1e-15
    )


@given(seeds)
def test_efficiency_falls_and_gain_rises_with_the_batch(seed) -> None:
    jobs = some_jobs(seed, 10, LIMITS)
    scale = np.geomspace(1, 100, 40)[:, None]
    assert (np.diff(throughput.efficiency(jobs.sqr, jobs.var, scale), axis=0) <= 1e-15).all()
    gains = throughput.gain(jobs.sqr, jobs.var, scale)
    assert (np.diff(gains, axis=0) >= -1e-12).all()
    assert (gains >= 1 - 1e-12).all()
    assert (gains <= scale + 1e-12).all()
    phi = throughput.noise_scale(jobs.sqr, jobs.var, 16)
    assert throughput.efficiency(jobs.sqr, jobs.var, scale) == pytest.approx((phi + 16) / (phi + 16 * scale), rel=1e-12)


@given(seeds)
def test_throughput_rises_and_is_concave_in_the_local_batch(seed) -> None:
    theta = some_jobs(seed, 10, LIMITS).theta
    for nodes, gpus in [(1, 1), (1, 4), (3, 7)]:
        rate = throughput.throughput(theta, nodes, gpus, np.arange(1, 60)[:, None], 0)
        assert (np.diff(rate, axis=0) >= -1e-9 * rate[1:]).all()
        assert (np.diff(rate, 2, axis=0) <= 1e-9 * rate[2:]).all()


@given(seeds)
def test_throughput_of_a_gpu_does_not_rise_with_their_number(seed) -> None:
    theta = some_jobs(seed, 10, LIMITS).theta
    for nodes, gpus in [(1, np.arange(1, 17)), (2, np.arange(2, 65))]:
        each = throughput.throughput(theta, nodes, gpus[:, None], 16, 1) / gpus[:, None]
        assert (np.diff(each, axis=0) <= 1e-9 * each[1:]).all()


@given(seeds)
def test_the_synchronising_pass_is_between_the_longer_phase_and_the_sum(seed) -> None:
    theta = some_jobs(seed, 10, LIMITS).theta
    grad, sync = throughput.grad_s(theta, 20), sync_s(theta, 2, 9)
    both = step_s(theta, 2, 9, 20)
    assert (both >= np.maximum(grad, sync) * (1 - 1e-12)).all()
    assert (both <= (grad + sync) * (1 + 1e-12)).all()
    direct = (grad ** theta[:, 6] + sync ** theta[:, 6]) ** (1 / theta[:, 6])
    assert both == pytest.approx(direct, rel=1e-9)


def test_synchronisation_uses_the_pair_of_the_placement() -> None:
    theta = np.array([0.1, 0.01, 0.5, 0.05, 0.2, 0.02, 1.5])
    times = sync_s(theta, [1, 1, 1, 2, 2], [1, 2, 4, 2, 6])
    assert times == pytest.approx([throughput.TINY, 0.2, 0.24, 0.5, 0.7], rel=1e-8)


def test_gain_of_known_noise_and_of_none() -> None:
    assert throughput.gain(1, 3, 3) == pytest.approx(2)
    assert throughput.gain(0, 0, 4) == 1
    assert throughput.gain(0, 1, 4) == 4
    assert throughput.efficiency(0, 1, 4) == 1
    assert throughput.noise_scale(0, 1, 16) == np.inf


def test_fair_share() -> None:
    assert throughput.fair_share(64, 20, 4) == (1, 4)
    assert throughput.fair_share(64, 3, 4) == (6, 22)
    assert throughput.fair_share(64, 3, 4, one_node=True) == (1, 22)
    assert throughput.fair_share(64, 100, 4) == (1, 1)
    assert throughput.fair_share(64, 0, 4) == (16, 64)


def test_speedup_where_the_share_cannot_be_used_is_nothing() -> None:
    values = throughput.speedup(np.array([[2.0, 4.0], [3.0, 6.0]]), np.array([2.0, 0.0]))
    assert values.tolist() == [[1, 2], [0, 0]]


def test_restart_factor() -> None:
    assert throughput.restart_factor([0, 60, 600, 600], [0, 3, 0, 10], 30).tolist() == pytest.approx(
        [0, 0, 600 / 630, 300 / 630]
    )
    assert throughput.restart_factor([0, 60], [0, 1], 30, ran=np.array([False, True])).tolist() == pytest.approx(
        [1, 30 / 90]
    )
    assert throughput.restart_factor(0, 0, 0) == 1


def test_replica_cap() -> None:
    assert throughput.replica_cap([0, 1, 8, 40], 256, 4).tolist() == [1, 2, 16, 64]


# Learning-rate rules: the published factors, to the last digit.

VAR, SQR = [1, 0, 0, 2], [-1, 0, -1, 1]


@pytest.mark.parametrize(
    ("scale", "factors"),
    [
        (0.5, [0.5, 0.5, 0.5, 0.6]),
        (1, [1, 1, 1, 1]),
        (2, [2, 2, 2, 1.5]),
        (4, [4, 4, 4, 2]),
        (10, [10, 10, 10, 2.5]),
    ],
)
def test_factors_of_each_group(scale, factors) -> None:
    assert adascale(scale, SQR, VAR) == pytest.approx(factors, rel=1e-14)
    assert adamscale(scale, SQR, VAR) == pytest.approx(np.sqrt(factors), rel=1e-14)
    assert linear(scale, SQR, VAR).tolist() == [scale] * 4
    assert square_root(scale, SQR, VAR).tolist() == [np.sqrt(scale)] * 4


@pytest.mark.parametrize(("scale", "factor"), [(1, 1 / 20), (4, 1 / 40), (9, 1 / 60)])
def test_legw_warms_up(scale, factor) -> None:
    rule = legw(10, 1000, 100)
    assert rule(scale, [0.0], [1.0], 5) == pytest.approx([factor], rel=1e-14)
    assert rule(scale, [0.0], [1.0], 10_000) == pytest.approx([np.sqrt(scale)], rel=1e-14)


def test_names() -> None:
    assert rule_of("adascale") is adascale
    assert default_rule(preconditioned=False) in RULES
    assert rule_of(default_rule(preconditioned=True)) is square_root
    with pytest.raises(InputError, match="did you mean 'adamscale'"):
        rule_of("adam-scale")
    with pytest.raises(InputError, match="legw with warmup_epochs=0"):
        legw(0, 10, 10)


# The models that ship with plait, against the measurements (where they are) and the published values.

#: Objective of the reference fit of each model, and the noise scale of its first, middle and last epoch.
PUBLISHED = {
    "bert": (0.12953, 423, None, 1124),
    "cifar10": (0.18366, 72, 4944, 38660),
    "deepspeech2": (0.22123, 10, 33200, 210600),
    "imagenet": (0.13636, 928, 11400, 14430),
    "ncf": (0.19590, 1.9e4, 2.1e7, 5.9e7),
    "yolov3": (0.32497, 0.65, 590, 5099),
}


def measured(model: str) -> Measurements:
    """All step times of a model; skips the test where they are not."""
    root = Path(os.environ.get("PLAIT_DATA", Path(__file__).parents[3] / ".." / "shared" / "data")) / "pollux" / model
    if not root.exists():
        pytest.skip("needs the measurements of Pollux's authors; set PLAIT_DATA to the folder that has pollux/")
    rows = []
    for name in ("placements", "scalability"):
        with (root / f"{name}.csv").open() as file:
            for row in csv.DictReader(file):
                nodes = [int(digit) for digit in row.get("placement", "")] or [0]
                at = (len(nodes), sum(nodes)) if sum(nodes) else (int(row["num_nodes"]), int(row["num_replicas"]))
                step_s, sync_s = float(row["step_time"]), float(row["sync_time"])
                rows.append((*at, float(row["local_bsz"]), step_s - sync_s, step_s))
    return Measurements(*np.array(rows).T)


@pytest.mark.parametrize("name", sorted(PUBLISHED))
def test_parameters_are_at_least_as_good_as_the_reference_fit(name: str):
    profile = measured(name)
    theta = np.array(shipped()[name].theta)
    ours = loss(theta, profile)
    assert ours <= PUBLISHED[name][0] + 5e-6
    assert loss(fit(profile, theta), profile) >= ours * (1 - 1e-4)


@pytest.mark.parametrize("name", sorted(PUBLISHED))
def test_noise_curves_pass_through_the_published_values(name: str):
    model = shipped()[name]
    curve = model.noise.by_epoch(model.epochs)
    _, first, middle, last = PUBLISHED[name]
    assert len(curve) == len(model.epoch_ends) == model.epochs
    assert curve[[0, -1]] == pytest.approx([first, last], rel=0.01)
    assert middle is None or curve[model.epochs // 2] == pytest.approx(middle, rel=0.01)
    assert (np.diff(curve) > 0).all()


def test_a_curve_of_one_epoch_stays_where_it_begins():
    assert ShippedNoise(3.0, 7.0, 0.5).by_epoch(1).tolist() == [3.0]


def test_iterations_by_hand():
    bert = shipped()["bert"]
    alpha, beta = bert.theta[:2]
    assert bert.iteration_s(1, 1) == pytest.approx(alpha + 12 * beta, rel=1e-6)  # accumulating brings nothing
    assert bert.iteration_s(1, 4) < bert.iteration_s(1, 2) < bert.iteration_s(1, 1)
    assert bert.epoch_ends.tolist() == [bert.iterations / 2, bert.iterations]


def test_more_gpus_than_there_is_work_for_are_refused():
    yolo = shipped()["yolov3"]
    assert yolo.most_gpus == 512 // 4
    with pytest.raises(InputError, match="at most 128"):
        yolo.iteration_s(33, 129)


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
    assert throughput.iteration_s(jobs.theta, *config)[0] == pytest.approx(time, abs=5e-7)
    assert throughput.throughput(jobs.theta, *config)[0] == pytest.approx(rate, abs=5e-7)
    assert throughput.efficiency(jobs.sqr, jobs.var, scale)[0] == pytest.approx(worth, abs=5e-7)
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
        return throughput.throughput(theta, nodes, gpus, local, passes)

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
        return throughput.throughput(theta, nodes, gpus, local, passes) / nodes

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
