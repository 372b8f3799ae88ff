"""What policies of sizes compile: the same as their plain Python on random pools."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from test_skippable_rounds import drawn, needs_solver, run

from plait.core import compile_policy
from plait.core.goodput import Estimate
from plait.core.jit import HAVE_NUMBA
from plait.core.jobs import Checkpoints, JobClass, Phase
from plait.core.plan import Plan
from plait.core.policy import View
from plait.policies.catalog import make_policy
from plait.policies.sizing import kernels
from plait.policies.sizing.free_gpus import FreeGpus
from plait.policies.sizing.pools import Pool, pools
from plait.policies.sizing.rounds import InRounds, unchanged_until
from plait.policies.sizing.steps import Ladder
from sampling import sample

#: How many random pools, and how many random runs, of those that pytest may be asked for.
POOLS, RUNS = sample(100, 400), sample(2, 5)

pytestmark = pytest.mark.skipif(not HAVE_NUMBA, reason="needs the compiler: the extra sim")


def allocation(rng: np.random.Generator, sizes: np.ndarray, capacity: np.ndarray) -> np.ndarray:
    """GPUs (J, N) of jobs in turn, each of which takes what is free from a random node on, if that suffices."""
    out, free = np.zeros((len(sizes), len(capacity)), dtype=np.int64), capacity.copy()
    for j in rng.permutation(len(sizes)).tolist():
        if free.sum() < sizes[j] or rng.random() < 0.3:
            continue
        for n in rng.permutation(len(free)).tolist():
            out[j, n] = min(free[n], sizes[j] - out[j].sum())
            free[n] -= out[j, n]
    return out


def random_pool(seed: int) -> Pool:
    """A pool in which anything may be: jobs due, fresh and of no weight, nodes that are down or differ."""
    rng = np.random.default_rng(seed)
    jobs, nodes = int(rng.integers(1, 12)), int(rng.integers(1, 6))
    capacity = rng.choice([0, 2, 4, 4, 4], nodes)
    least = rng.choice([1, 1, 2, 3, 4, 6, 8], jobs)
    most = least if rng.random() < 0.5 else least + rng.integers(0, 6, jobs)
    held = allocation(rng, least, capacity)
    return Pool(
        np.arange(jobs), np.arange(nodes), capacity, np.full((nodes, 2), np.inf), np.zeros((jobs, 2)), held, least,
        most, most, rng.choice([0.0, 1.0, 1.0], jobs), rng.random(jobs) < 0.3, rng.random(jobs) < 0.2,
        rng.random(jobs), None,
    )  # fmt: skip


def both(monkeypatch: pytest.MonkeyPatch, call: Callable[[], Any]) -> list[Any]:
    """What a call gives without machine code and with it."""
    found = []
    for patience in (math.inf, 0):
        with monkeypatch.context() as patch:
            patch.setattr(compile_policy, "_loaded", set())
            patch.setattr(compile_policy, "PATIENCE", patience)
            patch.setattr(compile_policy, "READING", patience)
            found.append(call())
    return found


def test_free_gpus_go_to_the_same_jobs_compiled(monkeypatch):
    changed = 0
    for seed in range(POOLS):
        pool, rng = random_pool(seed), np.random.default_rng(seed)
        matrix = pool.held if seed % 2 else allocation(rng, pool.least, pool.capacity)
        want = None if seed % 3 else matrix.sum(axis=1)

        def fill(pool=pool, matrix=matrix, want=want):
            found = FreeGpus(pool, matrix)
            return found.fill(want).tolist(), found.free.tolist()

        plain, fast = both(monkeypatch, fill)
        assert plain == fast, seed
        changed += plain[0] != matrix.tolist()
    assert changed > POOLS / 4


def test_jobs_on_steps_get_the_same_gpus_compiled(monkeypatch):
    home = 0
    for seed in range(POOLS):
        pool, rng = random_pool(seed), np.random.default_rng(seed)
        ladder = Ladder.of(pool)
        column = np.where(rng.random(len(pool.rows)) < 0.7, np.maximum(ladder.running, 0), ladder.first)
        plain, fast = both(
            monkeypatch, lambda ladder=ladder, pool=pool, column=column: ladder.placed(pool, column).tolist()
        )
        assert plain == fast, seed
        home += (np.array(plain) == pool.held).all()
    assert POOLS / 4 < home < POOLS


@needs_solver
@pytest.mark.parametrize("policy", ["sia:p=0.5,patience_s=300", "pollux:patience_s=400,interval_s=50"])
def test_whole_runs_are_the_same_compiled(policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(200, 200 + RUNS):
        plain, fast = both(monkeypatch, lambda seed=seed: run(policy, drawn(seed)))
        assert (plain.commands, plain.asked) == (fast.commands, fast.asked), seed


def test_pools_of_one_size_each_are_no_special_case(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is known of them without looking at every size is what looking at every size finds."""
    for seed in range(400, 400 + RUNS):
        short = run("pollux:patience_s=400,interval_s=50", drawn(seed))
        with monkeypatch.context() as patch:
            patch.setattr(Pool, "simple", False)
            every = run("pollux:patience_s=400,interval_s=50", drawn(seed))
        assert (short.commands, short.asked) == (every.commands, every.asked), seed


def test_the_line_is_the_same_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who is due, until when that stays so, and how everybody stands, in all states of random runs."""
    found: list[list[object]] = []
    policy = make_policy("pollux:patience_s=300,restart_s=100")
    assert isinstance(policy, InRounds)

    def look(view: View) -> list[object]:
        guaranteed, due, late = policy._line(view)
        until_s = unchanged_until(view, due, guaranteed, policy.patience_s, policy.restart_s)
        seen: list[object] = [until_s, guaranteed.tolist(), due.tolist(), late.tolist()]
        for pool in pools(view, due=due, restart_s=policy.restart_s):
            seen += [one.tolist() for one in (pool.rows, pool.held, pool.due, pool.fresh, pool.kept, pool.weights)]
        return seen

    def decide(self: InRounds, view: View) -> Plan:
        if len(view.jobs):
            found.append(both(monkeypatch, lambda: look(view)))
        return decided(self, view)

    decided = InRounds.decide
    monkeypatch.setattr(InRounds, "decide", decide)
    for seed in range(300, 300 + sample(3, 6)):
        run("pollux:patience_s=300,restart_s=100,interval_s=45", drawn(seed))
    assert len(found) > 100
    for plain, fast in found:
        assert plain == fast
    changes = [one[0][0] for one in found]
    assert len({math.isfinite(at) for at in changes}) == 2
    assert any(any(one[0][2]) for one in found)


def test_numbers_that_compile_are_those_of_the_words() -> None:
    named = Phase.RUNNING, JobClass.OPPORTUNISTIC, Checkpoints.PERIODIC, Estimate.RESTART_S
    numbers = kernels._RUNNING, kernels._OPPORTUNISTIC, kernels._PERIODIC, kernels._RESTART_S
    assert tuple(map(int, named)) == numbers
