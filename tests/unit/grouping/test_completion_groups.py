"""Groups by completion time: values by hand, the builder against enumeration, and the rule against the optimum."""

import functools
import itertools
import math
import os
import random

import numpy as np
import pytest

from plait.core.cluster import Cluster
from plait.core.jit import plain
from plait.core.jobs import JobBatch, JobSpec
from plait.core.plan import Group, Groups, Member
from plait.core.resources import StageProfile
from plait.grouping import completion as kernels
from plait.grouping.bucket import ClassedBucket, GroupingOptions
from plait.grouping.completion import WorthLine, group_worth
from plait.grouping.interference import MEASURED_INTERFERENCE
from plait.policies.by_completion import best_plan, law_of, room_for_paces
from plait.sim.physics import StandardPhysics

#: Seconds on storage, CPU, GPU and network, and of an iteration alone: eight models of Muri's third trace, 8 GPUs each.
PROFILES = {
    "bert": (0.0005, 0, 0.167, 0.059, 0.192),
    "dqn": (0, 0.435, 0.008, 0.0005, 0.509),
    "gpt2": (0.0006, 0, 0.419, 0.049, 0.437),
    "shufflenet": (0.769, 0, 0.057, 0.01, 0.957),
    "vgg16": (0.082, 0, 0.075, 0.066, 0.214),
    "a2c": (0, 0.502, 0.014, 0.0004, 0.555),
    "resnet18": (0.784, 0, 0.117, 0.077, 1.01),
    "vgg19": (0.082, 0, 0.088, 0.06, 0.226),
}
GPUS = 8
OPTIONS = GroupingOptions(4, "efficiency", "best", True, MEASURED_INTERFERENCE, None, 1.0)
SLOW = pytest.mark.skipif(not os.environ.get("PLAIT_SLOW"), reason="takes minutes; PLAIT_SLOW=1 runs it")


def line_of(names, values, *, runs=None, kept=None, stay=None, guests=0):
    profile = np.array([PROFILES[name] for name in names], dtype=float)
    model = ClassedBucket.of(OPTIONS, profile[:, :4], profile[:, 4], None, None)
    about = np.zeros((len(names), 7), dtype=np.int64)
    about[:, kernels.BUCKET] = about[:, kernels.GPUS] = GPUS
    about[:, kernels.CLASS] = model.of_job
    about[:, kernels.RUNS] = -1 if runs is None else runs
    about[:, kernels.KEPT] = 0 if kept is None else kept
    worth = np.column_stack([np.asarray(values, dtype=float), np.zeros(len(names)) if stay is None else stay])
    return WorthLine(
        about, worth, model.rows, *model.packed, law_of(model, guests), np.zeros((6, 5)), *room_for_paces(4)
    )


def values_of(jobs, slots, future):
    behind = np.array([max(0, jobs - max(rank + 1, slots)) for rank in range(jobs)])
    return 1 + (1 + future) * behind / slots


def planned(names, slots, future, **about):
    """The groups, by name, and what they are worth together."""
    line = line_of(names, values_of(len(names), slots, future), **about)
    units, _, worth = best_plan(line, np.array([slots * GPUS]), np.ones((1, 1), dtype=bool))
    return [[names[rank] for rank in unit] for unit in units], worth


def worth_of(names, values):
    ranks = np.arange(len(names))
    return group_worth(ranks, len(names), line_of(names, values), np.zeros(kernels.SCRATCH, dtype=np.int64))


@pytest.mark.parametrize(
    ("names", "line", "expected"),
    [
        (("dqn", "shufflenet"), 0, 1.574960),
        (("dqn", "shufflenet"), 2, 3.913078),
        (("dqn", "shufflenet"), 10, 13.265550),
        (("resnet18", "a2c", "gpt2", "vgg19"), 0, 4.707433),
        (("resnet18", "a2c", "gpt2", "vgg19"), 2, 7.789919),
        (("resnet18", "a2c", "gpt2", "vgg19"), 10, 20.119865),
        (("shufflenet", "dqn", "bert", "vgg16"), 0, 4.486708),
        (("bert", "gpt2"), 10, 8.538099),
    ],
)
def test_a_group_is_worth_the_progress_of_its_members(names, line, expected):
    values = [len(names) + line - rank for rank in range(len(names))]
    assert worth_of(names, values) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(
    ("jobs", "slots", "future", "groups", "expected"),
    [
        (4, 1, 0, [["bert"]], 4.0),
        (8, 1, 0, [["dqn", "gpt2"]], 9.273343),
        (4, 2, 0, [["bert"], ["dqn", "gpt2"]], 4.509125),
        (8, 2, 0, [["bert"], ["dqn", "gpt2"]], 9.345854),
        (8, 2, 3, [["bert"], ["dqn", "gpt2"]], 30.128322),
    ],
)
def test_plans_are_the_best_by_enumeration(jobs, slots, future, groups, expected):
    found, worth = planned(list(PROFILES)[:jobs], slots, future)
    assert sorted(found) == groups
    assert worth == pytest.approx(expected, abs=1e-6)


def test_a_running_pair_goes_on_where_a_better_one_does_not_earn_the_restart():
    names = ["gpt2", "bert", "dqn", "a2c", "vgg16", "vgg19"]
    free, _ = planned(names, 1, 0)
    runs = [0 if name in ("gpt2", "a2c") else -1 for name in names]
    assert sorted(free[0]) != ["a2c", "gpt2"]
    stays, _ = planned(names, 1, 0, runs=runs, stay=[9.0 if at == 0 else 0.0 for at in runs])
    assert {"a2c", "gpt2"} <= set(stays[0])


def test_jobs_that_may_not_be_stopped_stay_together_and_others_may_join():
    names = list(PROFILES)
    kept = [name in ("gpt2", "bert") for name in names]  # a pair that pays for nobody
    found, _ = planned(names, 1, 0, runs=[0 if one else -1 for one in kept], kept=kept)
    assert {"gpt2", "bert"} <= set(found[0])
    assert len(found) == 1


@pytest.mark.parametrize(
    "names", [("bert", "dqn"), ("dqn", "a2c"), ("resnet18", "shufflenet"), ("bert", "a2c", "vgg16")]
)
def test_guests_are_worth_what_the_simulator_lets_them_do(names):
    """By the sharing law and by the resources that nobody hands out; the host is the one that is worth most there."""
    truth = JobBatch.of(
        JobSpec(id=name, iterations=1.0, gpus=GPUS, profile=StageProfile.from_sequence(one[:4], one[4]))
        for name in names
        for one in [PROFILES[name]]
    )
    values, found = [5.0, 2.0, 1.0][: len(names)], []
    for host in range(len(names)):
        there = Groups.of(Group((Member(i),), tuple(range(GPUS)), guest=i != host) for i in range(len(names)))
        pace_s = StandardPhysics().iteration_s(truth, there, Cluster.parse("1x8"))
        found.append(float(np.sum(np.array(values) * truth.iteration_s / pace_s)))
    scratch, line = np.zeros(kernels.SCRATCH, dtype=np.int64), line_of(names, values, guests=2)
    row = kernels.known_group(np.arange(len(names)), len(names), line, scratch)
    for worth in (kernels.turns_and_guests, plain(kernels.turns_and_guests)):
        assert worth(row, len(names), line, scratch)[1] == pytest.approx(max(found), rel=1e-9)
        assert scratch[-1] == int(np.argmax(found))


def test_jobs_share_as_guests_or_in_turns_whichever_is_worth_more():
    names = ["bert", "dqn", "resnet18", "gpt2"]  # each needs something else: turns for four, guests for two
    ranks, scratch = np.arange(4), np.zeros(kernels.SCRATCH, dtype=np.int64)
    turns, either = (line_of(names, [4.0, 3.0, 2.0, 1.0], guests=guests) for guests in (0, 1))
    pair = [group_worth(ranks, 2, line, scratch) for line in (turns, either)]
    assert pair[0] < 5.0 < pair[1]
    assert group_worth(ranks, 4, turns, scratch) == group_worth(ranks, 4, either, scratch)
    _, hosts, _ = best_plan(either, np.array([GPUS]), np.ones((1, 1), dtype=bool))
    assert hosts[0] >= 0
    either.about[:, kernels.PLAIN] = 1  # each iteration of the guest is one quantum
    assert group_worth(ranks, 2, either, scratch) == pytest.approx(4.0, abs=0.05), "hardly more than the host alone"
    _, hosts, _ = best_plan(turns, np.array([GPUS]), np.ones((1, 1), dtype=bool))
    assert hosts == [-1]
    either.about[:, kernels.PLAIN] = kernels.WIDE  # over several nodes nobody is a guest
    assert group_worth(ranks, 2, either, scratch) == pair[0]


def test_a_plain_job_does_not_stand_for_others_of_its_class():
    line = line_of(["shufflenet"] + ["gpt2"] * 4, [4.0, 3.0, 3.0, 3.0, 3.0], guests=1)
    line.about[1:4, kernels.PLAIN] = 1
    built, pair = empty_plan(5), empty_plan(5)
    kernels.construct(line, built, 1e9, True, np.array([GPUS]), np.ones((1, 1), bool))
    pair.members[0, 1], pair.size[0], pair.unit_of[:2] = 1, 2, 0
    kernels.exchange(line, pair, 1)
    assert [set(plan.members[0, :2].tolist()) for plan in (built, pair)] == [{0, 4}] * 2


def test_guests_need_memory_for_a_process_of_their_own():
    model = ClassedBucket.of(OPTIONS, np.array([[0, 0.9, 0.1, 0.0]] * 2), np.ones(2), np.array([0.5, 0.5]), None)
    assert model.packed[0][4] == 1.0, "the limit"
    fits, full = (law_of(model, 1, context) for context in (0.0, 0.02))
    assert fits[0, kernels.OWN_MEMORY] == 0.5
    assert full[0, kernels.OWN_MEMORY] == 0.52
    line = line_of(["bert", "dqn"], [2.0, 1.0])
    line.about[:, kernels.CLASS] = 0
    for law, allowed in ((fits, True), (full, False)):
        one = line._replace(rows=model.rows, law=law, keys=np.zeros(8, dtype=np.int64))
        scratch = np.zeros(kernels.SCRATCH, dtype=np.int64)
        _, found = kernels.turns_and_guests(kernels.known_group(np.arange(2), 2, one, scratch), 2, one, scratch)
        assert (found > 0) == allowed


def sets_of(jobs, most=4):
    return [chosen for size in range(1, most + 1) for chosen in itertools.combinations(range(jobs), size)]


def optimum(names, slots, future):
    """The largest worth of a plan, over all sets of groups."""
    line = line_of(names, values_of(len(names), slots, future))
    scratch = np.zeros(kernels.SCRATCH, dtype=np.int64)
    count = 1 << len(names)
    masks = np.arange(count)
    best = np.zeros(count)
    for _ in range(slots):
        more = best.copy()
        for chosen in sets_of(len(names)):
            worth = group_worth(np.array(chosen), len(chosen), line, scratch)
            bits = sum(1 << rank for rank in chosen)
            inside = masks[masks & bits == bits]
            more[inside] = np.maximum(more[inside], worth + best[inside ^ bits])
        best = more
    return best[-1]


def instances(count):
    draw = random.Random(1)
    for _ in range(count):
        jobs, slots = draw.randint(6, 10), draw.randint(1, 3)
        yield [draw.choice(list(PROFILES)) for _ in range(jobs)], slots, draw.choice((0, 3))


@pytest.mark.parametrize("count", [12, pytest.param(100, marks=SLOW)])
def test_plans_are_close_to_the_optimum_and_never_below_the_plan_without_groups(count):
    ratios = []
    for names, slots, future in instances(count):
        found, worth = planned(names, slots, future)
        assert len(found) <= slots
        assert worth >= values_of(len(names), slots, future)[:slots].sum() - 1e-9
        ratios.append(worth / optimum(names, slots, future))
    assert np.mean(ratios) >= 0.99
    assert min(ratios) >= 0.93


def test_the_compiled_kernels_and_the_plain_ones_agree():
    for names, slots, future in instances(4):
        line = line_of(names, values_of(len(names), slots, future))
        both = []
        for make in (lambda kernel: kernel, plain):
            plan = empty_plan(len(names))
            count = make(kernels.construct)(line, plan, 0.1, True, np.array([slots * GPUS]), np.ones((1, 1), bool))
            make(kernels.exchange)(line, plan, count)
            changed = make(kernels.repick)(line, plan, count)
            both.append((changed, plan.members.tolist(), plan.size.tolist(), plan.value.tolist()))
        assert both[0] == both[1]


def empty_plan(jobs):
    return kernels.CompletionPlan(
        np.full(jobs, -1),
        np.zeros((jobs, 4), dtype=np.int64),
        np.zeros(jobs, dtype=np.int64),
        np.zeros(jobs),
        np.zeros((kernels.SCRATCH_ROWS, kernels.SCRATCH), dtype=np.int64),
    )


def drawn_line(seed, jobs=9, guests=2):
    draw = random.Random(seed)
    names = [draw.choice(list(PROFILES)) for _ in range(jobs)]
    runs = [draw.choice((-1, -1, 0, 1)) for _ in names]
    stay = [draw.random() if at >= 0 else 0.0 for at in runs]
    return line_of(names, values_of(jobs, 2, 3), runs=runs, stay=stay, guests=guests)


@pytest.mark.parametrize("guests", [0, 2])
def test_a_lead_gets_the_best_of_all_companions(guests):
    """Groups that a bound leaves out are no better, and those of known classes are worth what they were."""
    for seed in range(20):
        line, scratch = drawn_line(seed, guests=guests), empty_plan(9).scratch
        price = random.Random(seed).choice((0.0, 1.0, 3.0, 1e300))
        scratch[4, :8] = np.arange(1, 9)
        size = kernels.best_group(0, 0, 8, price, line, scratch)
        fresh = line._replace(keys=np.zeros(1, dtype=np.int64))

        def score(chosen, price=price, fresh=fresh):
            worth = group_worth(np.array(chosen), len(chosen), fresh, np.zeros(kernels.SCRATCH, dtype=np.int64))
            moves = fresh.about[:, kernels.RUNS] != fresh.about[0, kernels.RUNS]
            own = fresh.worth[:, kernels.V] + moves * fresh.worth[:, kernels.STAY]
            return worth - sum(max(0.0, own[rank] - price) for rank in chosen[1:])

        best = max(score((0, *more)) for k in range(4) for more in itertools.combinations(range(1, 9), k))
        assert score(tuple(scratch[2, :size].tolist())) == pytest.approx(best, rel=1e-8)


def test_no_exchange_is_left_that_gains():
    scratch = np.zeros(kernels.SCRATCH, dtype=np.int64)
    for seed in range(20):
        line, plan = drawn_line(seed), empty_plan(9)
        count = kernels.construct(line, plan, 1.0, True, np.array([3 * GPUS]), np.ones((1, 1), bool))
        for _ in range(5):
            kernels.exchange(line, plan, count)
        units = [plan.members[u, : plan.size[u]].tolist() for u in range(count)]
        alone = [[rank] for rank in np.flatnonzero(plan.unit_of < 0).tolist()]

        def worth(unit, waits, line=line):
            return 0.0 if waits else group_worth(np.array(unit), len(unit), line, scratch)

        for (i, one), (j, other) in itertools.combinations(enumerate(units + alone), 2):
            before = worth(one, i >= count) + worth(other, j >= count)
            for a, b in itertools.product(one, other):
                both = [b if r == a else r for r in one], [a if r == b else r for r in other]
                values = worth(both[0], i >= count), worth(both[1], j >= count)
                assert min(values) < 0 or sum(values) <= before * (1 + 1e-7), (seed, a, b)


# -- against the optimum of completion times ---------------------------------------------------------------------------


@functools.cache
def rates_of(names):
    """Iterations a second of a group's members, relative to alone."""
    line = line_of(names, [1.0] * len(names))
    found = []
    for rank in range(len(names)):
        line.worth[:, 0] = [float(other == rank) for other in range(len(names))]
        found.append(group_worth(np.arange(len(names)), len(names), line, np.zeros(kernels.SCRATCH, dtype=np.int64)))
    return tuple(found)


def advance(left, units, names):
    """Seconds until the first job of a plan ends, and what is left of all jobs then."""
    speed = [0.0] * len(left)
    for unit in units:
        for rank, rate in zip(unit, rates_of(tuple(names[rank] for rank in unit)), strict=True):
            speed[rank] = rate
    step = min(left[rank] / speed[rank] for rank in range(len(left)) if speed[rank] > 0)
    after = [max(0.0, seconds - step * rate) for seconds, rate in zip(left, speed, strict=True)]
    return step, [0.0 if seconds < 1e-12 else seconds for seconds in after]


def summed(left, names, choose):
    """Sum of completion times if `choose` makes the plan at each completion."""
    total = 0.0
    while left:
        step, after = advance(left, choose(left, names), names)
        total += step * len(left)
        alive = [rank for rank, seconds in enumerate(after) if seconds > 0]
        left, names = [after[rank] for rank in alive], [names[rank] for rank in alive]
    return total


def in_order(left):
    return sorted(range(len(left)), key=lambda rank: left[rank])


def by_value(slots):
    def choose(left, names):
        order = in_order(left)
        line = line_of([names[rank] for rank in order], values_of(len(order), slots, 0))
        units, _, _ = best_plan(line, np.array([slots * GPUS]), np.ones((1, 1), dtype=bool))
        return [[order[rank] for rank in unit] for unit in units]

    return choose


def least(left, names, slots):
    """The smallest sum of completion times over all plans that change at completions."""
    if not left:
        return 0.0
    best = math.inf
    for units in plans(tuple(range(len(left))), slots):
        step, after = advance(left, units, names)
        if step * len(left) >= best:
            continue
        alive = [rank for rank, seconds in enumerate(after) if seconds > 0]
        rest = least([after[rank] for rank in alive], [names[rank] for rank in alive], slots)
        best = min(best, step * len(left) + rest)
    return best


def plans(jobs, slots):
    """All ways to run jobs on slots, none of them left empty while a job waits."""
    if not jobs or not slots:
        yield []
        return
    for size in range(1, min(4, len(jobs)) + 1):
        for chosen in itertools.combinations(jobs, size):
            for more in plans(tuple(job for job in jobs if job > chosen[0] and job not in chosen), slots - 1):
                yield [list(chosen), *more]


@pytest.mark.parametrize(
    ("count", "jobs", "slots", "mean", "worst"),
    [(40, 4, 1, 1.001, 1.02), (40, 4, 2, 1.005, 1.05), pytest.param(100, 5, 1, 1.002, 1.06, marks=SLOW)],
)
def test_sums_of_completion_times_are_close_to_the_optimum(count, jobs, slots, mean, worst):
    """On one slot never above SRTF; on two, where v is an average over the slots, sometimes by up to 4 %."""
    draw, ours, srtf = random.Random(0), [], []
    for _ in range(count):
        names = [draw.choice(list(PROFILES)) for _ in range(jobs)]
        left = [draw.lognormvariate(0, 1.5) for _ in names]
        best_s = least(left, names, slots)
        ours.append(summed(left, names, by_value(slots)) / best_s)
        alone_s = summed(left, names, lambda left, names: [[rank] for rank in in_order(left)[:slots]])
        srtf.append(alone_s / best_s)
    assert (np.array(ours) / np.array(srtf)).max() <= (1 + 1e-9 if slots == 1 else worst)
    assert np.mean(ours) <= mean
    assert np.mean(ours) < np.mean(srtf)
    assert max(ours) <= worst
