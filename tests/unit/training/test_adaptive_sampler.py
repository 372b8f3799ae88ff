"""Every sample once an epoch, for any number of ranks, batch and number of passes, and across changes of all three."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("torch")

from plait.training.adaptive.plan import EpochOrder, Microbatch, Plan, next_step, passes_left, steps_left


def taken(step) -> list[int]:
    return [place for p in range(step.passes) for r in range(step.ranks) for place in step.part(p, r)]


@pytest.mark.parametrize("ranks", [1, 3, 5])
@pytest.mark.parametrize("size", [9, 15, 25])
@pytest.mark.parametrize(("local", "passes"), [(1, 1), (2, 1), (3, 2), (100, 1)])
def test_every_sample_is_taken_once(ranks: int, size: int, local: int, passes: int) -> None:
    steps = list(steps_left(0, size, ranks, local, passes))
    assert [place for step in steps for place in taken(step)] == list(range(size))
    assert passes_left(0, size, ranks, local, passes) == sum(step.passes for step in steps)


@given(
    size=st.integers(1, 400),
    phases=st.lists(st.tuples(st.integers(1, 6), st.integers(1, 9), st.integers(1, 4), st.integers(1, 6)), min_size=1),
)
def test_a_step_is_spread_evenly_whatever_changes_on_the_way(size: int, phases: list[tuple[int, ...]]) -> None:
    done, seen, number = 0, [], 0
    while done < size:
        ranks, local, passes, steps = phases[number % len(phases)]
        number += 1
        for step in list(steps_left(done, size, ranks, local, passes))[:steps]:
            parts = [len(step.part(p, r)) for p in range(step.passes) for r in range(ranks)]
            assert min(parts) >= 1
            assert max(parts) - min(parts) <= 1
            assert max(parts) <= max(local, 2)
            assert step.full == (step.examples == ranks * local * passes)
            if step.examples >= ranks:
                assert taken(step) == list(range(done, done + step.examples))
                assert step.passes <= passes
            else:
                assert set(taken(step)) == set(range(done, size))
            seen += sorted(set(taken(step)))
            done += step.examples
    assert seen == list(range(size))


def test_a_rest_too_small_for_all_ranks_joins_the_step_before() -> None:
    assert [s.examples for s in steps_left(0, 42, 4, 10, 1)] == [21, 21]
    assert [s.examples for s in steps_left(0, 44, 4, 10, 1)] == [40, 4]
    step = next_step(0, 5, 4, 1, 1)
    assert [len(step.part(0, r)) for r in range(4)] == [1, 1, 1, 2]


def test_fewer_samples_than_ranks_are_shared() -> None:
    step = next_step(98, 100, 4, 8, 2)
    assert (step.examples, step.passes) == (2, 1)
    assert [list(step.part(0, r)) for r in range(4)] == [[98], [98], [99], [99]]


def test_an_order_is_its_own_for_each_seed_and_epoch_and_comes_again() -> None:
    orders = {
        (seed, epoch): tuple(EpochOrder(50, shuffle=True, seed=seed).of(epoch)) for seed in (0, 1) for epoch in (0, 1)
    }
    assert len({tuple(int(i) for i in order) for order in orders.values()}) == 4
    assert all(sorted(int(i) for i in order) == list(range(50)) for order in orders.values())
    assert EpochOrder(50, shuffle=True, seed=1).of(1).equal(EpochOrder(50, shuffle=True, seed=1).of(1))
    assert EpochOrder(5, shuffle=False).of(3).tolist() == [0, 1, 2, 3, 4]


@given(
    size=st.integers(1, 300),
    ahead=st.lists(st.integers(0, 6), min_size=1, max_size=4),
    changes=st.lists(st.tuples(st.integers(1, 5), st.integers(1, 9), st.integers(0, 3)), max_size=6),
)
def test_ranks_that_fetch_ahead_differently_change_in_the_same_step(
    size: int, ahead: list[int], changes: list[tuple[int, int, int]]
) -> None:
    world = len(ahead)
    plans = [Plan(EpochOrder(size, shuffle=True, seed=5)) for _ in ahead]
    for rank, plan in enumerate(plans):
        plan.change(3, 1, 0)
        plan.begin(7, 0, rank=rank, world_size=world)
    planned = [iter(plan) for plan in plans]
    fetched: list[list[list[int]]] = [[] for _ in ahead]
    seen: list[int] = []
    left, waiting = list(changes), changes[0][0] if changes else 0
    while True:
        microbatches: list[Microbatch] = []
        for rank, plan in enumerate(plans):
            while len(fetched[rank]) <= ahead[rank] and (indices := next(planned[rank], None)) is not None:
                fetched[rank].append(indices)
            if fetched[rank]:
                microbatches.append(plan.next_microbatch())
                seen += fetched[rank].pop(0)
        if not microbatches:
            break
        assert len(microbatches) == world
        assert len({(microbatch.step, microbatch.index) for microbatch in microbatches}) == 1
        waiting -= microbatches[0].is_sync
        if left and microbatches[0].is_sync and waiting <= 0:
            at = max(plan.steps for plan in plans)
            for plan in plans:
                plan.change(left[0][1], left[0][2], at)
            left.pop(0)
            waiting = left[0][0] if left else 0
    assert set(seen) == set(range(size))
    assert len(seen) == size or len(seen) - size < world
