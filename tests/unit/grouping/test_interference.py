"""Learnt costs of sharing: kernels against the plain form, reports, and pairs of a real GPU that were kept back."""

from __future__ import annotations

import csv
import functools
import itertools
import json
import math
import random

import numpy as np
import pytest

from plait.core.jit import plain
from plait.grouping import completion as by_completion
from plait.grouping import kernels
from plait.grouping.bucket import Candidates, ClassedBucket, GroupingOptions
from plait.grouping.completion import NO_LAW, SCRATCH, WorthLine, group_worth
from plait.grouping.group import group
from plait.grouping.interference import MEASURED_INTERFERENCE, REPORT, PairCosts, PairReports, scheduled_s
from plait.grouping.interference import SharingTraits as Job
from plait.grouping.times import together_s
from plait.policies.by_completion import room_for_paces
from plait.sim.measured_pairs import MeasuredPairs

OPTIONS = GroupingOptions(4, "speedup", "best", True, MEASURED_INTERFERENCE, None)
NOISE = 0.02


@pytest.fixture(scope="module")
def lucid(published):
    """The folder of measured pairs of Lucid (ASPLOS'23)."""
    if not (published / "lucid" / "colocate.csv").exists():
        pytest.skip(f"no measured pairs in {published}; set PLAIT_DATA to the folder that has lucid/colocate.csv")
    return published / "lucid"


def drawn(jobs: int, seed: int) -> Candidates:
    """Jobs with random profiles, and random costs of their pairs."""
    rng = np.random.default_rng(seed)
    stage_s = rng.random((jobs, 4))
    log = rng.normal(0.0, 0.2, (3, 3))
    costs = PairCosts(rng.integers(0, 3, jobs), (log + log.T) / 2)
    return Candidates(stage_s, stage_s.sum(axis=1), np.ones(jobs), costs=costs)


def group_s(jobs: Candidates, rows: tuple[int, ...]) -> float:
    """Seconds an iteration of a group, by the plain forms."""
    assert jobs.costs is not None
    alone_s = jobs.iteration_s[list(rows)]
    factor = OPTIONS.factor(len(rows)) * jobs.costs.factor(rows)
    return together_s(jobs.stage_s[list(rows)], alone_s) * factor


@pytest.mark.parametrize("seed", range(5))
def test_groups_take_as_long_as_by_the_plain_costs_of_their_pairs(seed):
    jobs = drawn(7, seed)
    model = ClassedBucket.of(OPTIONS, jobs.stage_s, jobs.iteration_s, None, None, jobs.costs)
    numbers, shape, table, first = model.packed
    groups = [g for size in (2, 3, 4) for g in itertools.combinations(range(7), size)]
    nodes = [tuple(sorted(model.of_job[list(g)].tolist())) for g in groups]
    expected = [group_s(jobs, g) for g in groups]
    assert model.values(nodes).iteration_s.tolist() == pytest.approx(expected)
    line = WorthLine(
        np.full((7, 7), -1), np.zeros((7, 2)), model.rows, *model.packed, NO_LAW, np.zeros((6, 5)), *room_for_paces(4)
    )
    line.about[:, by_completion.CLASS], line.worth[:, by_completion.V] = model.of_job, 1.0
    for g, node, seconds in zip(groups, nodes, expected, strict=True):
        speedup = jobs.iteration_s[list(g)].sum() / seconds
        classes = np.array(node + (-1,) * (4 - len(node)))
        for value in (kernels.group_value, plain(kernels.group_value)):
            assert value(model.rows, classes, len(g), numbers, shape, table, first)[1] == pytest.approx(speedup)
        assert group_worth(np.array(g), len(g), line, np.zeros(SCRATCH, dtype=np.int64)) == pytest.approx(speedup)


@pytest.mark.parametrize("seed", range(3))
def test_swaps_and_exact_groups_find_the_best_pairs_by_cost(seed):
    jobs = drawn(6, seed)
    best = max(
        sum(jobs.iteration_s[list(pair)].sum() / group_s(jobs, pair) for pair in way)
        for way in (((0, a), tuple(b), tuple(c)) for a, b, c in pairings())
    )
    for method, improve in (("exact", False), ("blossom", True)):
        found = group(
            jobs, 2, "speedup", method, interference=MEASURED_INTERFERENCE, guard=None, improve=improve
        )  # fmt: skip
        assert sum(found.speedup) == pytest.approx(best)
        assert found.total <= found.bound + 1e-9


def pairings():
    for a in range(1, 6):
        b, *rest = [i for i in range(1, 6) if i != a]
        for mate in rest:
            yield a, (b, mate), tuple(i for i in rest if i != mate)


def test_a_report_moves_its_pair_most_then_pairs_of_its_models_then_all():
    reports = PairReports()
    one, mate, third, others = (Job(m, 0.5, 0.0) for m in (1, 2, 3, 4))
    assert reports.costs([one, mate]) is None
    assert reports.note([one, mate], [0.5, 0.5])
    assert not reports.note([mate, one], [0.51, 0.51]), "no news"
    own, near, far = reports.cost(one, mate), reports.cost(one, third), reports.cost(others, third)
    assert own.factor == pytest.approx(math.exp(0.5), rel=0.05)
    assert own.factor > near.factor > far.factor > 1.0
    assert own.deviation < near.deviation < far.deviation
    assert (own.reports, near.reports) == (1, 0)
    costs = reports.costs([mate, one])
    assert costs.factor((0, 1)) == pytest.approx(own.factor, rel=0.01)
    assert not reports.note([one, mate], [9.0, 9.0]), "no factor of a group is so large"


def test_pairs_explain_larger_groups():
    reports, jobs = PairReports(), [Job(m, 0.3, 0.0) for m in range(1, 6)]
    truth = {pair: random.Random(str(pair)).gauss(0.1, 0.2) for pair in itertools.combinations(range(5), 2)}
    for _ in range(12):
        for rows in itertools.combinations(range(5), 3):
            log = sum(truth[pair] for pair in itertools.combinations(rows, 2)) / 3
            reports.note([jobs[i] for i in rows], [log] * 3)
            assert reports.measured([jobs[i] for i in rows]) == pytest.approx(math.exp(log))
    costs, off, before = reports.costs(jobs), [], []
    for rows in itertools.combinations(range(5), 3):
        before.append(sum(truth[pair] for pair in itertools.combinations(rows, 2)) / 3)
        off.append(math.log(costs.factor(rows)) - before[-1])
    assert np.std(before) > 0.08
    assert np.linalg.norm(off) < 0.4 * np.linalg.norm(before)


def test_reports_survive_json_and_a_copy_goes_its_own_way():
    reports = PairReports()
    for i in range(6):
        reports.note([Job(i, 0.1 * i, 0.0), Job(i + 1, 0.5, 0.25), Job(7, 0.2, 0.0)], [0.1 * i] * 3)
    same, copy = PairReports.from_json(json.loads(json.dumps(reports.to_json()))), reports.copy()
    one, mate = Job(1, 0.3, 0.0), Job(5, 0.5, 0.25)
    assert same.cost(one, mate) == reports.cost(one, mate) == copy.cost(one, mate)
    copy.note([one, mate], [0.9, 0.9])
    assert same.cost(one, mate) == reports.cost(one, mate) != copy.cost(one, mate)


def test_schedules_of_groups_in_turn_and_at_the_same_time():
    stage_s, alone_s = np.array([[0.0, 2.0, 1.0, 0.0], [0.0, 1.0, 2.0, 0.0]]), np.array([3.0, 3.0])
    assert scheduled_s(stage_s, alone_s, [0, 1]).tolist() == [together_s(stage_s, alone_s)] * 2
    assert scheduled_s(stage_s, alone_s, None).tolist() == [3.0, 3.0]
    assert scheduled_s(stage_s, alone_s / 2, None).tolist() == [3.0, 3.0]
    assert scheduled_s(stage_s, alone_s, [0, 0]) is None
    assert scheduled_s(stage_s * np.nan, alone_s, None) is None


@functools.cache
def measured_pairs(folder):
    """The measured pairs: two sharers, and the speed of each relative to alone."""
    with open(folder / "single_data.csv", encoding="utf-8") as file:
        alone = {(r["model"], r["dataset"], r["batchsize"], r["amp"]): r for r in csv.DictReader(file)}
    models = {name: i + 1 for i, name in enumerate(sorted({key[0] for key in alone}))}

    def sharer(row, n):
        key = tuple(row[f"{name}{n}"] for name in ("model", "dataset", "batchsize", "amp"))
        busy, memory = float(alone[key]["gpu_util"]) / 100, float(alone[key]["gmem"]) / 24576
        return Job(models[key[0]], round(busy, 2), round(memory, 2))

    with open(folder / "colocate.csv", encoding="utf-8") as file:
        return [(sharer(r, 1), sharer(r, 2), float(r["speed1"]), float(r["speed2"])) for r in csv.DictReader(file)]


@pytest.mark.parametrize(("by_model", "most"), [(False, 0.05), (True, 0.07)])
@pytest.mark.parametrize("seed", range(3))
def test_costs_of_measured_pairs_that_were_kept_back(lucid, seed, by_model, most):
    pairs, rng = measured_pairs(lucid), np.random.default_rng(seed)
    what = [tuple(sorted((one.model, mate.model))) if by_model else i for i, (one, mate, *_) in enumerate(pairs)]
    back_of = {pair: rng.random() < 0.3 for pair in sorted(set(what))}
    kept_back = [back_of[pair] for pair in what]
    reports = PairReports()
    for (one, mate, speed, other), back in zip(pairs, kept_back, strict=True):
        if not back:
            reports.note([one, mate], [-math.log(speed), -math.log(other)])
    errors, inside, mean = [], [], np.mean([pair[2:] for pair, back in zip(pairs, kept_back, strict=True) if not back])
    for (*two, speed, other), back in zip(pairs, kept_back, strict=True):
        if back:
            for (one, mate), truth in ((two, speed), (two[::-1], other)):
                cost = reports.cost(one, mate)
                errors.append((abs(1 / cost.factor - truth), abs(mean - truth)))
                inside.append(abs(math.log(cost.factor * truth)) <= 2 * math.hypot(cost.deviation, REPORT))
    error, of_one_factor = np.mean(errors, axis=0)
    which = "pairs of models" if by_model else "pairs"
    print(f"{which} kept back: mean absolute error {error:.4f}, of one factor for all {of_one_factor:.4f}")
    assert error <= most < of_one_factor
    assert np.mean(inside) > 0.75, "the uncertainty is about right"


def test_true_costs_are_those_of_measured_pairs(lucid):
    truth = MeasuredPairs.read(lucid / "colocate.csv")
    assert len(truth.slower) == 2 * 971 - 41, "41 of 971 next to one of their own kind"
    logs = [truth.log((a, 0.5), (b, 0.8)) for a, b in itertools.product(("vgg16", "gpt2", "dqn", "a2c"), repeat=2)]
    assert np.std(logs) > NOISE
    assert all(math.log(0.6) < log < math.log(2.3) for log in logs)
