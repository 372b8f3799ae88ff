"""The front: Algorithm 1, its limits, an answer by the jobs alone; and learnt costs of sharing."""

import csv
import functools
import itertools
import json
import math
import random
from collections import Counter
from unittest import mock

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grouping_cases import candidates, continuous, few_kinds, stages
from plait.core.errors import InputError
from plait.core.jit import plain
from plait.grouping import algorithm1, bucket, kernels
from plait.grouping import completion as by_completion
from plait.grouping.bucket import Candidates, ClassedBucket, GroupingCache, GroupingOptions
from plait.grouping.completion import NO_LAW, SCRATCH, WorthLine, group_worth
from plait.grouping.group import group
from plait.grouping.interference import MEASURED_INTERFERENCE, REPORT, PairCosts, PairReports, scheduled_s
from plait.grouping.interference import SharingTraits as Job
from plait.grouping.times import best_turns, together_s
from plait.policies.by_completion import room_for_paces
from plait.sim.measured_pairs import MeasuredPairs

METHODS = ("auto", "blossom", "exact", "greedy", "consecutive")


class CountingCache(GroupingCache):
    """A cache that counts how often it was asked, and how often it had to compute what holds for any order of jobs."""

    asked = made = 0

    def remember(self, key, make):
        self.asked += 1

        def counted():
            self.made += key[0] not in ("classes", "jobs")
            return make()

        return super().remember(key, counted)


def check(found, jobs, max_jobs=4, order="best", idle_slots=True, interference=(1.0,), memory_limit_bytes=None):
    """Everything that holds for every grouping."""
    assert sorted(r for rows in found.groups for r in rows) == list(range(len(jobs)))
    assert list(found.groups) == sorted(found.groups), "groups by their best job"
    for g, rows in enumerate(found.groups):
        assert list(rows) == sorted(rows), "best priority first"
        assert len(rows) <= max_jobs
        assert len(set(jobs.gpus[list(rows)])) == 1, "jobs of different GPU counts share GPUs"
        if memory_limit_bytes is not None and len(rows) > 1:
            assert jobs.memory_bytes[list(rows)].sum() <= memory_limit_bytes
        stage_s = jobs.stage_s[list(rows)]
        shares = None if jobs.shares is None else jobs.shares[list(rows)]
        if len(rows) == 1:
            time = float(jobs.iteration_s[rows[0]])
        else:
            time = best_turns(stage_s, order=order, idle_slots=idle_slots, shares=shares)[0]
            turns = found.turns[g]
            assert turns[0] == 0
            slots = [max(stage_s[i, (t + j) % 4] for i, t in enumerate(turns)) for j in range(4)]
            assert sum(slots) == pytest.approx(time)
            time = max(time, jobs.iteration_s[list(rows)].max())  # no member is faster than alone
            time *= interference[min(len(rows), len(interference)) - 1]
        assert found.iteration_s[g] == pytest.approx(time, rel=1e-12)
        assert found.speedup[g] == pytest.approx(jobs.iteration_s[list(rows)].sum() / time)
        assert found.efficiency[g] == pytest.approx(min(1, stage_s.sum() / 4 / time))
    assert found.total <= found.bound + 1e-9
    assert 0 <= found.gap <= 1


@given(
    stage_s=stages(st.integers(1, 12)),
    seed=st.integers(0, 99),
    max_jobs=st.integers(1, 4),
    method=st.sampled_from(METHODS),
    objective=st.sampled_from(["efficiency", "speedup"]),
    order=st.sampled_from(["best", "worst"]),
    idle_slots=st.booleans(),
    interference=st.sampled_from([(1.0,), (1.0, 1.31, 1.48, 1.35), (1.0, 0.9)]),
    guard=st.sampled_from([None, 0.0, 0.2]),
    improve=st.sampled_from([None, True, False]),
    available=st.sampled_from([None, 0, 5, 9]),
    limit=st.sampled_from([None, 3.0, 7.0]),
)
def test_every_grouping_is_sound(stage_s, seed, max_jobs, method, available, limit, guard, **options):
    random = np.random.default_rng(seed)
    jobs = Candidates(
        stage_s,
        stage_s.sum(axis=1) * random.choice([0.8, 1.0, 2.5], len(stage_s)),  # overlap inside a job, none, gaps
        random.choice([1, 2], len(stage_s)),
        memory_bytes=random.integers(0, 4, len(stage_s)).astype(float),
        shares=random.choice([0.5, 1.0], stage_s.shape) if seed % 3 == 0 else None,
    )
    found = group(
        jobs, max_jobs, method=method, guard=guard, gpus_available=available, memory_limit_bytes=limit, **options
    )
    physics = {name: options[name] for name in ("order", "idle_slots", "interference")}
    check(found, jobs, max_jobs, memory_limit_bytes=limit, **physics)
    if guard is not None:
        assert all(s > 1 + guard for s, rows in zip(found.speedup, found.groups, strict=True) if len(rows) > 1)


def test_figure_4():
    """{A, B}, {C, D} has weight 2 and {A, C}, {B, D} 1.5."""
    jobs = candidates(np.array([[2.0, 1.0], [1.0, 2.0], [2.0, 1.0], [1.0, 2.0]]))
    assert group(jobs, 2).total == 2.0
    assert group(jobs, 2).groups == ((0, 1), (2, 3))
    assert group(jobs, 2, order="worst", method="blossom").total == pytest.approx(2.0)
    assert group(jobs, 2, method="consecutive").groups == ((0, 1), (2, 3))


def test_two_rounds_are_two_best_matchings():
    """Algorithm 1 step by step with another library and the plain formula."""
    stage_s = continuous(16, 3)
    nodes = [(i,) for i in range(16)]
    for _ in range(2):
        graph = nx.Graph()
        for u, v in itertools.combinations(nodes, 2):
            members = stage_s[list(u + v)]
            graph.add_edge(u, v, weight=members.sum() / 4 / best_turns(members)[0])
        nodes = [tuple(sorted(u + v)) for u, v in nx.max_weight_matching(graph)]
    found = group(candidates(stage_s), method="blossom", guard=None)
    assert set(found.groups) == set(nodes)
    assert found.method == "blossom"


@pytest.mark.parametrize(("max_jobs", "sizes"), [(2, [1, 2, 2, 2]), (3, [1, 2, 2, 2]), (4, [3, 4])])
def test_group_sizes(max_jobs, sizes):
    """Three jobs a group: pairs first, so only what is left over makes a triple, as published."""
    found = group(candidates(few_kinds(7, 3)), max_jobs, method="blossom", guard=None)
    assert sorted(len(rows) for rows in found.groups) in (sizes, [2, 2, 3])


def test_triples_where_pairs_are_scarce():
    jobs = candidates(np.array([[2.0, 1, 1, 0], [0, 2, 1, 1], [1, 0, 2, 1]]))
    found = group(jobs, 3, method="blossom", guard=None)
    assert found.groups == ((0, 1, 2),)
    assert found.iteration_s == (4.0,)
    assert found.efficiency == (0.75,)


class TestGpusAvailable:
    def test_nothing_is_grouped_if_all_fit(self):
        jobs = candidates(continuous(6), 2)
        found = group(jobs, gpus_available=12)
        assert [len(rows) for rows in found.groups] == [1] * 6
        assert (found.method, found.why) == ("alone", "all jobs fit alone, 12 GPUs of 12")

    @pytest.mark.parametrize("available", range(2, 8))
    def test_as_little_as_needed(self, available):
        found = group(candidates(continuous(8)), guard=None, gpus_available=available, method="blossom")
        assert len(found.groups) == available

    def test_cheapest_merges_first(self):
        """Of two good pairs the one is taken that leaves fewer GPUs idle, (1 - gamma) * gpus."""
        good = np.array([[1.0, 0, 0, 0], [0, 1.0, 0, 0]])
        fair = np.array([[1.0, 0.5, 0.1, 0], [0, 1.0, 0.5, 0.1]])
        both = candidates(np.concatenate([fair, good]), np.array([1, 1, 2, 2]))
        assert group(both, gpus_available=5).groups == ((0, 1), (2,), (3,)), "(1 - 0.5) * 2 is more than (1 - 0.4) * 1"
        same = candidates(np.concatenate([fair, good]), 1)
        assert (2, 3) in group(same, gpus_available=3, method="blossom").groups

    def test_all_that_is_possible_if_nothing_is_enough(self):
        for available in (0, -3):
            assert len(group(candidates(continuous(8)), guard=None, gpus_available=available).groups) == 2


class TestGuard:
    GPU_BOUND = np.array([[0.0, 0, 1.0, 0.01]]).repeat(4, axis=0)

    def test_jobs_of_one_kind_stay_alone(self):
        jobs = candidates(self.GPU_BOUND)
        found = group(jobs, interference=(1.0, 1.3), guard=0.0, method="blossom")
        assert [len(rows) for rows in found.groups] == [1, 1, 1, 1]
        assert found.split == 2, "the pairs of the first round"
        kept = group(jobs, interference=(1.0, 1.3), guard=None)
        assert [len(rows) for rows in kept.groups] == [4]
        assert kept.speedup[0] < 1

    def test_the_ordering_in_use_counts(self):
        jobs = candidates(np.array([[4.0, 1.0, 1.0, 1.0], [1.0, 1.0, 4.0, 1.0]]))
        assert group(jobs, guard=0.4).groups == ((0, 1),)
        assert group(jobs, guard=0.4, order="worst").groups == ((0,), (1,))

    def test_a_bad_group_goes_to_its_best_parts(self):
        """Two jobs that fit and one that spoils it: the pair stays together."""
        stage_s = np.array([[1.0, 0, 0, 0], [0, 1.0, 0, 0], [1.0, 1.0, 1.0, 1.0]])
        jobs = Candidates(stage_s, np.array([1.0, 1.0, 1.5]), np.ones(3))
        found = group(jobs, 3, method="consecutive")
        assert found.groups == ((0, 1), (2,))
        assert found.split == 1


class TestMemory:
    def test_no_method_exceeds_it(self):
        jobs = candidates(continuous(12), memory_bytes=np.arange(12.0))
        for method in METHODS:
            for improve in (False, True):
                found = group(jobs, method=method, improve=improve, guard=None, memory_limit_bytes=14.0)
                check(found, jobs, memory_limit_bytes=14.0)
                assert len(found.groups) < 12

    def test_a_job_that_is_too_large_is_alone(self):
        jobs = candidates(continuous(3), memory_bytes=np.array([9.0, 1, 1]))
        assert (0,) in group(jobs, guard=None, memory_limit_bytes=4.0).groups


class TestOneAnswer:
    @pytest.mark.parametrize("method", ["auto", "blossom", "exact", "greedy"])
    def test_independent_of_the_order_of_rows(self, method):
        """Kinds of groups are the same to the last bit; only equal jobs are exchanged."""
        stage_s = few_kinds(30, 6, 2)
        gpus = np.random.default_rng(1).choice([1, 2], 30)
        reference = None
        for seed in range(4):
            order = np.random.default_rng(seed).permutation(30)
            found = group(candidates(stage_s[order], gpus[order]), method=method, gpus_available=17)
            kinds = sorted(
                (time, tuple(sorted((*stage_s[order[r]].tolist(), gpus[order[r]]) for r in rows)))
                for time, rows in zip(found.iteration_s, found.groups, strict=True)
            )
            reference = kinds if reference is None else reference
            assert kinds == reference

    def test_a_cache_changes_nothing(self):
        cache = CountingCache(limit=8)
        for seed in (1, 2, 1, 3, 1, 2):
            jobs = candidates(few_kinds(24, 5, seed))
            for method in ("auto", "blossom", "exact"):
                for available, bounded in itertools.product((None, 15), (True, False)):
                    options = {"method": method, "gpus_available": available, "bounded": bounded}
                    assert vars(group(jobs, cache=cache, **options)) == vars(group(jobs, **options))
        assert cache.made < cache.asked
        assert len(cache) <= 8

    @pytest.mark.parametrize("most", [6, 24])
    def test_classes_that_last_change_nothing(self, most):
        cache, rng, kinds = GroupingCache(), np.random.default_rng(most), few_kinds(40, 9)
        with mock.patch.object(bucket, "MOST_LASTING", most):
            for _ in range(12):
                rows = rng.choice(40, rng.integers(2, 14), replace=False)
                jobs = candidates(kinds[rows], memory_bytes=rows % 3.0, gpus=rows % 2 + 1)
                options = {"memory_limit_bytes": 4.0, "method": "blossom", "gpus_available": len(rows)}
                lasting, own = group(jobs, cache=cache, bounded=False, **options), group(jobs, **options)
                assert (lasting.groups, lasting.turns, lasting.speedup) == (own.groups, own.turns, own.speedup)
                assert lasting.why == own.why

    def test_a_cache_knows_sets_in_any_order(self):
        cache = CountingCache()
        stage_s = few_kinds(24, 5)
        group(candidates(stage_s), cache=cache)
        made = cache.made
        group(candidates(stage_s[::-1]), cache=cache)
        assert cache.made == made

    def test_a_cache_does_not_grow_by_sets_too_large_to_come_again(self):
        cache, stage_s, sizes = GroupingCache(), few_kinds(24, 5), set()
        with mock.patch.dict(group.__globals__, MOST_REMEMBERED=23):
            for i in range(3):
                group(candidates(np.roll(stage_s, i, axis=0)), cache=cache)
                sizes.add(len(cache))
        assert len(sizes) == 1

    def test_compiled_or_not(self):
        """Small problems do not wait for the compiler; what they get is the same."""
        jobs = candidates(continuous(14), memory_bytes=np.arange(14.0))
        answers = []
        for compiled in (True, False):
            with (
                mock.patch.object(bucket, "compiled", return_value=compiled),
                mock.patch("plait.grouping.algorithm1.compiled", return_value=compiled),
                mock.patch("plait.grouping.exact.compiled", return_value=compiled),
            ):
                answers += [[vars(group(jobs, method=m, memory_limit_bytes=20.0)) for m in ("auto", "exact")]]
        assert answers[0] == answers[1]

    def test_equal_jobs_go_by_priority(self):
        """The best priorities come together, and a group's first member is its best."""
        a, b = [1.0, 0, 0, 0], [0, 1.0, 0, 0]
        jobs = candidates(np.array([a, a, b, a, b, b]))
        assert group(jobs, 2).groups == ((0, 2), (1, 4), (3, 5))


@given(stages(st.integers(2, 7)), st.booleans(), st.booleans(), st.sampled_from([None, 5.0]))
def test_weights_of_all_pairs(stage_s, worst, speedup, limit):
    """Kernel, NumPy and the plain formula agree on unions of nodes."""
    options = GroupingOptions(
        order="worst" if worst else "best",
        objective="speedup" if speedup else "efficiency",
        interference=(1.0, 1.2, 1.5, 1.1),
        guard=0.05,
        memory_limit_bytes=float("inf") if limit is None else limit,
    )
    alone = stage_s.sum(axis=1) * np.where(np.arange(len(stage_s)) % 2, 0.9, 1.7)
    memory = np.arange(len(stage_s), dtype=float)
    made = ClassedBucket.of(options, stage_s, alone, memory, None)
    nodes = sorted({(int(c),) for c in made.of_job} | {tuple(sorted(made.of_job[:2].tolist()))})
    answers = []
    for compiled in (True, False):
        with mock.patch.object(bucket, "compiled", return_value=compiled):
            answers.append(made.weights(nodes, guarded=True))
    assert (answers[0] == answers[1]).all()
    job_of = {int(c): i for i, c in enumerate(made.of_job)}
    for u, v in itertools.product(range(len(nodes)), repeat=2):
        jobs = [job_of[c] for c in sorted(nodes[u] + nodes[v])]
        time = together_s(stage_s[jobs], alone[jobs], order=options.order) * options.factor(len(jobs))
        value = alone[jobs].sum() / time if speedup else stage_s[jobs].sum() / 4 / time
        gain = alone[jobs].sum() / time
        if memory[jobs].sum() > options.memory_limit_bytes or gain < 1.05 - 1e-9:
            value = 0.0
        if abs(gain - 1.05) > 1e-9:
            assert answers[0][u, v] == pytest.approx(value)


def test_large_buckets_are_matched_in_parts():
    with mock.patch.object(algorithm1, "MOST_NODES", 10):
        jobs = candidates(continuous(47))
        found = group(jobs, method="greedy", guard=None)
        check(found, jobs)
        assert len(found.groups) <= 14


class TestAuto:
    def test_few_kinds_of_many_jobs_are_exact(self):
        found = group(candidates(few_kinds(300, 8)), guard=None)
        assert found.method == "exact"
        assert found.why == "300 jobs of 8 kinds on 1 GPUs: exact, few kinds of many jobs"
        assert found.bound_kind == "exact"
        assert found.gap < 1e-3
        assert found.total > group(candidates(few_kinds(300, 8)), guard=None, method="blossom").total

    def test_otherwise_matching_and_local_search(self):
        jobs = candidates(continuous(60))
        found = group(jobs, guard=None)
        assert (found.method, found.bound_kind) == ("blossom", "matching")
        published = group(jobs, guard=None, method="blossom")
        assert found.total > 1.03 * published.total
        assert len(found.groups) == len(published.groups)
        assert group(jobs, guard=None, improve=False).total == published.total

    def test_too_many_kinds_for_exact(self):
        with mock.patch("plait.grouping.group.MOST_KINDS", 100):
            found = group(candidates(continuous(12)), method="exact")
        assert found.method == "blossom"
        assert found.why == "12 jobs of 12 kinds on 1 GPUs: blossom, too many kinds for exact"

    def test_without_highs(self):
        with mock.patch("plait.grouping.group.HAVE_HIGHS", False):
            assert group(candidates(few_kinds(300, 8))).method == "blossom"
        with (
            mock.patch("plait.core.highs.HAVE_HIGHS", False),
            pytest.raises(
                InputError, match=r"exact grouping needs highspy; install it with: pip install 'plait\[sim\]'"
            ),
        ):
            group(candidates(few_kinds(20, 8)), method="exact")


FINE = {"stage_s": np.ones((3, 4)), "iteration_s": np.full(3, 4.0), "gpus": np.ones(3, dtype=int)}


class TestMistakes:
    @pytest.mark.parametrize(
        ("column", "value", "message"),
        [
            ("stage_s", np.array([[1.0] * 4, [1, -1, 1, 1], [1.0] * 4]), "row 1: stage_s must be finite, >= 0"),
            ("stage_s", np.array([[1.0] * 4, [1.0] * 4, [0.0] * 4]), "row 2: stage_s"),
            ("stage_s", np.array([[np.nan] * 4, [1.0] * 4, [0.0] * 4]), "row 0: stage_s"),
            ("stage_s", np.ones(3), r"stage_s must have shape \(jobs, resources\), got \(3,\)"),
            ("iteration_s", np.array([1.0, 0.0, 1.0]), "row 1: iteration_s must be a positive number"),
            ("iteration_s", np.ones(2), r"iteration_s must have shape \(3,\), as for 3 jobs, got \(2,\)"),
            ("gpus", np.array([1, 1, 0]), "row 2: gpus must be at least 1, got 0"),
            ("memory_bytes", np.array([-1.0, 1, 1]), "row 0: memory_bytes must be finite and >= 0, got -1.0"),
            ("shares", np.array([[1.0] * 4, [0.5] * 4, [0.5, 0.5, 0.5, 1.5]]), r"row 2: shares must be in \(0, 1\]"),
        ],
    )
    def test_candidates(self, column, value, message):
        with pytest.raises(InputError, match=message):
            Candidates(**{**FINE, column: value})

    @pytest.mark.parametrize(
        ("option", "value", "message"),
        [
            ("method", "blosom", "unknown method 'blosom'; did you mean 'blossom'"),
            ("objective", "gamma", "unknown objective 'gamma'; known: efficiency, speedup"),
            ("order", "bets", "unknown order 'bets'; did you mean 'best'"),
            ("max_jobs", 5, r"max_jobs must be 1 to 4, the number of resources \(twice that with shares\), got 5"),
            ("max_jobs", 0, "max_jobs must be 1 to 4"),
            ("interference", (), "interference must be positive factors"),
            ("interference", (1.0, -1.0), "interference must be positive factors"),
            ("guard", -1.0, "guard must be a margin > -1, or None for no guard, got -1.0"),
            ("memory_limit_bytes", -1, "memory_limit_bytes must be >= 0, got -1"),
        ],
    )
    def test_options(self, option, value, message):
        with pytest.raises(InputError, match=message):
            group(Candidates(**FINE), **{option: value})

    def test_more_jobs_than_resources_need_shares(self):
        shared = Candidates(**FINE, shares=np.full((3, 4), 0.2))
        assert group(shared, 5).groups == ((0, 1, 2),)
        with pytest.raises(InputError, match="max_jobs must be 1 to 8, twice the resources, got 9"):
            group(shared, 9)

    def test_shares_that_nobody_can_use_change_nothing(self):
        """All need a whole GPU: groups are those of formula (3), and no more than four."""
        stage_s = continuous(9)
        shares = np.array([[0.1, 0.1, 1.0, 0.1]]).repeat(9, axis=0)
        found = group(candidates(stage_s, shares=shares), 6, method="exact", guard=None)
        assert max(map(len, found.groups)) <= 4
        one = vars(group(candidates(stage_s, shares=shares), guard=None))
        assert one == vars(group(candidates(stage_s), guard=None))

    def test_no_jobs(self):
        found = group(Candidates(np.ones((0, 4)), np.ones(0), np.ones(0)))
        assert (found.groups, found.total, found.gap) == ((), 0.0, 0.0)


def test_a_union_that_may_not_be_weighs_nothing():
    made = ClassedBucket.of(GroupingOptions(max_jobs=2), continuous(2), np.ones(2), None, None)
    weight = np.empty((2, 2))
    members = np.array([[0, 1], [0, -1]])
    kernels.fill_weights(made.rows, members, -1.0, *made.packed, weight)
    assert weight[0, 0] == weight[0, 1] == 0.0
    assert weight[1, 1] > 0.0


class TestWhoIsTogetherAlready:
    """`now` settles which of equal jobs are in which group, so that those who share go on sharing."""

    @given(
        seed=st.integers(0, 999),
        gone=st.integers(0, 3),
        available=st.sampled_from([None, 6, 10]),
        method=st.sampled_from(["blossom", "greedy", "consecutive"]),
    )
    def test_groups_are_as_good_and_those_of_wanted_kinds_stay(self, seed, gone, available, method):
        random = np.random.default_rng(seed)
        stage_s = few_kinds(24, 4, seed)
        gpus = random.choice([1, 2], 24)
        before = group(candidates(stage_s, gpus), method=method, gpus_available=available)
        left = np.sort(random.permutation(24)[gone:])
        jobs = candidates(stage_s[left], gpus[left])
        now = np.full(24, -1)
        for number, rows in enumerate(before.groups):
            now[list(rows)] = number
        if random.random() < 0.5:  # some have stopped
            now[random.integers(0, 24, 4)] = -1
        plain = group(jobs, method=method, gpus_available=available)
        found = group(jobs, method=method, gpus_available=available, now=now[left].tolist())
        check(found, jobs)

        def kinds(groups):
            return Counter(
                (int(jobs.gpus[rows[0]]), tuple(sorted(map(bytes, jobs.stage_s[list(rows)])))) for rows in groups
            )

        if method == "consecutive":  # groups by priority: nothing to choose
            assert vars(found) == vars(plain)
            return
        assert kinds(found.groups) == kinds(plain.groups)
        there = [tuple(np.flatnonzero(now[left] == number).tolist()) for number in range(len(before.groups))]
        there = [rows for rows in there if rows]
        stay = [rows for rows in there if rows in found.groups]
        assert kinds(stay) == kinds(there) & kinds(plain.groups), "whoever is in a group that is wanted, stays in it"

    def test_nothing_changes_twice(self):
        jobs = candidates(few_kinds(40, 5))
        now = np.random.default_rng(3).integers(0, 10, 40)
        found = group(jobs, now=now.tolist())
        for number, rows in enumerate(found.groups):
            now[list(rows)] = number
        assert group(jobs, now=now.tolist()).groups == found.groups

    def test_most_members_stay_where_the_whole_group_cannot(self):
        """Twice four kinds, in groups of one of each: three are together already, and two others are."""
        jobs = candidates(np.tile(np.eye(4), (2, 1)))
        now = [7, -1, -1, 9, 9, 7, 7, -1]
        assert group(jobs, gpus_available=2, now=now).groups == ((0, 5, 6, 7), (1, 2, 3, 4))
        assert group(jobs, gpus_available=2).groups == ((0, 1, 2, 3), (4, 5, 6, 7))


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
