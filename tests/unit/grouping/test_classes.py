"""Exact grouping over kinds of jobs: against brute force, and its bound."""

from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grouping_cases import candidates, continuous, few_kinds, stages
from plait.core.jit import plain
from plait.grouping import exact, kernels
from plait.grouping.bucket import ClassedBucket, GroupingCache, GroupingOptions
from plait.grouping.exact import Relaxation, exact_groups, integer_program, kinds_of_groups, round_robin
from plait.grouping.group import group
from sampling import sample


def partitions(items, groups, most):
    """All ways to put items into exactly so many groups."""
    if not items:
        if groups == 0:
            yield []
        return
    head, *tail = items
    for way in partitions(tail, groups - 1, most) if groups else ():
        yield [(head,), *way]
    for way in partitions(tail, groups, most):
        for i, part in enumerate(way):
            if len(part) < most:
                yield [*way[:i], (head, *part), *way[i + 1 :]]


@given(
    stage_s=stages(st.integers(2, 7)),
    max_jobs=st.integers(2, 4),
    spare=st.integers(0, 2),
    objective=st.sampled_from(["efficiency", "speedup"]),
    order=st.sampled_from(["best", "worst"]),
    limit=st.sampled_from([float("inf"), 5.0]),
    shared=st.booleans(),
)
def test_brute_force(stage_s, max_jobs, spare, limit, shared, **options):
    made = ClassedBucket.of(
        GroupingOptions(max_jobs, guard=None, memory_limit_bytes=limit, **options),
        stage_s,
        stage_s.sum(axis=1) * 1.1,
        np.arange(len(stage_s)) % 3.0,
        np.where(stage_s > 0.8, 1.0, 0.5) if shared else None,
    )
    groups = min(len(stage_s), -(-len(stage_s) // max_jobs) + spare)

    @cache
    def value_of(node):
        return float(made.values([node]).value[0])

    best, start = 0.0, None
    for way in partitions(made.of_job.tolist(), groups, max_jobs):
        values = [value_of(tuple(sorted(part))) for part in way]
        if min(values) > 0:
            start = start or [tuple(sorted(part)) for part in way]
            best = max(best, sum(values))
    if start is None:
        return
    found = exact_groups(made, start, GroupingCache())
    assert len(found.nodes) == groups
    assert sorted(c for node in found.nodes for c in node) == sorted(made.of_job.tolist())
    assert best * (1 - exact.GAP) - 1e-9 <= found.total <= best + 1e-9
    assert found.bound >= best - 1e-9


@pytest.mark.parametrize(
    ("count", "kinds", "gap"), [(60, 8, 2e-4), (1000, 8, 1e-3), (900, 16, 1e-3), (10_000, 32, 2e-4)]
)
def test_many_jobs_of_few_kinds(count, kinds, gap):
    found = group(candidates(few_kinds(count, kinds)), method="exact", guard=None)
    assert found.method == "exact"
    assert found.gap < gap
    assert len(found.groups) == -(-count // 4)
    assert sorted(r for rows in found.groups for r in rows) == list(range(count))


def test_at_least_as_good_as_local_search():
    jobs = candidates(continuous(40))
    exact = group(jobs, method="exact", guard=None)
    assert exact.total >= group(jobs, guard=None).total
    assert exact.bound < group(jobs, guard=None).bound


def test_as_many_groups_as_gpus_ask_for():
    jobs = candidates(few_kinds(60, 6))
    found = group(jobs, method="exact", guard=None, gpus_available=33)
    assert len(found.groups) == 33
    assert found.total >= group(jobs, method="blossom", guard=None, gpus_available=33).total


@given(stages(st.integers(1, 6)), st.integers(1, 4), st.sampled_from([-0.2, 1e-7, 0.05]), st.booleans())
def test_pricing_finds_what_enumeration_finds(stage_s, max_jobs, floor, shared):
    made = ClassedBucket.of(
        GroupingOptions(max_jobs, guard=None),
        np.repeat(stage_s, 2, axis=0),
        np.repeat(stage_s.sum(axis=1), 2),
        None,
        np.full((2 * len(stage_s), 4), 0.5) if shared else None,
    )
    price = np.random.default_rng(len(stage_s)).random(len(made.counts) + 1) * 0.1
    known = {}
    for node in every_kind(made.counts.tolist(), max_jobs):
        gain = float(made.values([node]).value[0]) - sum(price[list(node)]) - price[-1]
        if made.values([node]).value[0] > 0 and abs(gain - floor) > 1e-12 and gain > floor:
            known[node] = gain
    for kernel in (kernels.price_groups, plain(kernels.price_groups)):
        for per_lead in (False, True):
            room = (len(made.counts) + 1) ** 2 if per_lead else kinds_of_groups(len(made.counts), max_jobs)
            members, gain = np.full((room, max_jobs), -1), np.full(room, -np.inf)
            count = kernel(made.rows, made.counts, price, floor, per_lead, *made.packed, members, gain)
            assert count == len(known)
            listed = {
                tuple(c for c in row if c >= 0): g for row, g in zip(members.tolist(), gain, strict=True) if g > -9
            }
            assert set(listed) <= set(known)
            assert all(known[node] == pytest.approx(g) for node, g in listed.items())
            if per_lead:
                best = {}
                for node, g in known.items():
                    best[(*node, -1)[:2]] = max(g, best.get((*node, -1)[:2], -9))
                assert sorted(listed.values()) == pytest.approx(sorted(best.values()))
            else:
                assert set(listed) == set(known)


def every_kind(counts, most, lowest=0):
    """Every group of 1 to `most` jobs out of so many of each class."""
    for c in range(lowest, len(counts)):
        if counts[c]:
            rest = counts[:c] + [counts[c] - 1] + counts[c + 1 :]
            yield (c,)
            if most > 1:
                yield from ((c, *more) for more in every_kind(rest, most - 1, c))


def test_the_linear_program_knows_what_it_cannot_seat():
    program = Relaxation(np.array([2, 1]), 2)
    program.add([(0, 0)], [0.5])
    program.solve()
    assert not program.covered
    assert program.add([(1,), (0, 0)], [0.25, 0.5]) == 1
    value, often, _ = program.solve()
    assert program.covered
    assert (value, often.tolist()) == (0.75, [1.0, 1.0])


def test_the_integer_program_says_if_jobs_cannot_be_seated():
    assert integer_program([(0, 0)], [0.5], np.array([3]), 2, 1e-6, 100)[0] is None
    nodes, bound = integer_program([(0, 0), (0,)], [0.5, 0.25], np.array([3]), 2, 1e-6, 100)
    assert (sorted(nodes), bound) == ([(0,), (0, 0)], pytest.approx(0.75))


def test_dealing_seats_every_job():
    nodes = round_robin(np.array([3, 2, 2]), 2)
    assert nodes == [(0, 0, 1, 2), (0, 1, 2)]


def test_the_same_answer_every_time():
    jobs = candidates(few_kinds(sample(120, 400), 16, 3))
    first = group(jobs, method="exact")
    assert all(vars(group(jobs, method="exact")) == vars(first) for _ in range(sample(1, 2)))
