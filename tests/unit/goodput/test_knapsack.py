"""One size for each job: against every choice there is, and the compiled table against the plain one."""

from __future__ import annotations

import math
from itertools import product
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plait.core import compile_policy
from plait.core.errors import InputError
from plait.core.jit import plain
from plait.goodput.fitness import fitness, ladder, terms
from plait.goodput.knapsack import best_of_only_sizes, best_sizes, fill_table, knapsack, plain_table
from sampling import examples

P = [-10.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0]


def speedups(seed: int, jobs: int, gpus: np.ndarray) -> np.ndarray:
    """Concave in the number of GPUs, some with a kink that makes whole nodes worth less."""
    rng = np.random.default_rng(seed)
    slow = rng.uniform(0.02, 0.9, (jobs, 1))
    return gpus / (1 + slow * gpus) * np.where(gpus > 4, rng.uniform(0.3, 1.0, (jobs, 1)), 1.0)


@settings(max_examples=examples(60), deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 4), st.integers(0, 3), st.sampled_from(P), st.booleans())
def test_nothing_is_better_and_no_equal_takes_fewer(seed, jobs, nodes, p, capped):
    gpus = ladder(4, nodes)[:, 1]
    values = speedups(seed, jobs, gpus)
    if capped:
        values[0, gpus > 2] = np.nan
    found = best_sizes(values, gpus, 4 * nodes, p)
    choices = [c for c in product(range(len(gpus)), repeat=jobs) if gpus[list(c)].sum() <= 4 * nodes]
    rows = np.arange(jobs)
    scores = {c: float(fitness(values[rows, list(c)], p)) for c in choices if not np.isnan(values[rows, list(c)]).any()}
    best = max(scores.values())
    assert scores[tuple(found.tolist())] == pytest.approx(best, rel=1e-12)
    fewest = min(gpus[list(c)].sum() for c, s in scores.items() if s == best)
    assert gpus[found].sum() <= fewest


@settings(max_examples=examples(40), deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(0, 6), st.integers(0, 5), st.sampled_from(P))
def test_the_kernel_and_the_plain_table_agree(seed, jobs, nodes, p):
    gpus = ladder(4, nodes)[:, 1]
    gain = terms(speedups(seed, jobs, gpus), p)
    chosen = [np.zeros(jobs, dtype=np.int64) for _ in range(3)]
    fits = [
        table(gain, np.array(gpus), 4 * nodes, out)
        for table, out in zip((fill_table, plain(fill_table), plain_table), chosen, strict=True)
    ]
    assert fits == [True] * 3
    assert chosen[0].tolist() == chosen[1].tolist() == chosen[2].tolist()


@pytest.mark.skipif(not hasattr(fill_table, "overloads"), reason="needs the compiler: the extra sim")
def test_the_table_is_compiled_for_one_layout_of_its_arguments():
    gpus = ladder(4, 3)[:, 1]
    gain = terms(speedups(0, 3, gpus))
    fill_table(gain, np.array(gpus), 12, np.zeros(3, dtype=np.int64))
    known = len(fill_table.overloads)
    knapsack(gain, gpus, 12)
    knapsack(np.asfortranarray(gain), gpus.astype(np.int32), 12)
    assert len(fill_table.overloads) == known


@settings(max_examples=examples(60), deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 9), st.sampled_from(P), st.sampled_from([0, math.inf]))
def test_jobs_of_one_size_each_are_chosen_as_among_all_sizes(seed, jobs, p, patience):
    rng, gpus, rows = np.random.default_rng(seed), ladder(4, 3)[:, 1], np.arange(jobs)
    column, its = rng.integers(0, len(gpus), jobs), np.where(rng.random(jobs) < 0.5, 1.0, rng.random(jobs).round(1))
    weights = rng.choice([1.0, 1.0, 2.5], jobs)
    must = np.flatnonzero((rng.random(jobs) < 0.3) & (column > 0))[:1]
    values = np.full((jobs, len(gpus)), np.nan)
    values[rows, column], values[:, 0] = its, 0.0
    values[must, 0] = np.nan
    with (
        mock.patch.object(compile_policy, "_loaded", set()),
        mock.patch.object(compile_policy, "PATIENCE", patience),
        mock.patch.object(compile_policy, "READING", patience),
    ):
        found = best_of_only_sizes(its, column, gpus, 12, p, must=must, weights=weights)
    assert found.tolist() == best_sizes(values, gpus, 12, p, weights=weights).tolist()


def test_equal_choices_take_the_fewest_gpus():
    gpus = np.array([0, 1, 2, 4])
    flat = np.array([[0.0, 1.0, 1.0, 1.0]] * 3)
    assert best_sizes(flat, gpus, 16).tolist() == [1, 1, 1]


def test_the_last_gpus_count_beside_a_job_left_out_at_a_low_p():
    """At p = -12 a job without GPUs costs 1e36, and the rest a few: single floats would not see the rest."""
    gpus = ladder(4, 2)[:, 1]
    values = speedups(3, 9, gpus)
    found = best_sizes(values, gpus, 8, -12.0)
    assert gpus[found].tolist().count(0) == 1
    assert gpus[found].sum() == 8
    values[0] = np.nan
    values[0, 0] = 0.0  # one job can have nothing at all: the others get what they would have had without it
    alone = best_sizes(values[1:4], gpus, 8, -12.0)
    assert best_sizes(values[:4], gpus, 8, -12.0)[1:].tolist() == alone.tolist()


def test_jobs_of_weight_zero_get_what_is_left():
    gpus = np.array([0, 1, 2, 4])
    values = np.array([[0.0, 1.0, 1.5, 1.5], [0.0, 1.0, 2.0, 4.0], [0.0, 1.0, 2.0, 4.0]])
    assert best_sizes(values, gpus, 8, weights=np.array([1.0, 0.0, 1.0])).tolist() == [2, 2, 3]
    assert best_sizes(values, gpus, 4, weights=np.array([1.0, 0.0, 1.0])).tolist() == [2, 0, 2]


def test_a_pinned_job_keeps_its_size_and_too_many_are_refused():
    gpus = np.array([0, 1, 2, 4])
    values = np.array([[0.0, 1.0, 1.5, 1.5], [np.nan, np.nan, np.nan, 0.1]])
    assert best_sizes(values, gpus, 4).tolist() == [0, 3]
    with pytest.raises(InputError, match="no choice of configurations for 2 jobs fits in 3 GPUs"):
        best_sizes(values, gpus, 3)
    with pytest.raises(InputError, match="one rising GPU count for each of its 4 columns"):
        knapsack(values, gpus[::-1], 4)


def test_no_jobs_and_no_gpus():
    gpus = ladder(4, 0)[:, 1]
    assert best_sizes(np.zeros((0, 1)), gpus, 0).tolist() == []
    assert best_sizes(np.zeros((2, 1)), gpus, 0).tolist() == [0, 0]
