"""Every sample once an epoch, for any number of ranks, batch and number of passes, and across changes of all three."""

import io
import json
from dataclasses import asdict

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from plait.core.errors import InputError
from plait.core.goodput import BatchLimits
from plait.live.scheduler.assignments import BATCH_VARIABLE
from plait.training.adaptive import ranks as module
from plait.training.adaptive.batch import VARIABLE, bounds
from plait.training.adaptive.plan import EpochOrder, Microbatch, Plan, next_step, passes_left, steps_left
from plait.training.adaptive.ranks import Accumulator

pytest.importorskip("torch")


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
    assert list(EpochOrder(5, shuffle=False).of(3)) == [0, 1, 2, 3, 4]


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


# Between which bounds a batch is chosen: the script's, or those the job was submitted with.

GIVEN = BatchLimits(initial=16, most=256, least_local=4, most_local=32, accumulation=True)
THERE = {VARIABLE: json.dumps(asdict(GIVEN))}


def test_the_script_says_more_than_the_submission():
    assert bounds(8, environ=THERE) == BatchLimits(initial=8, most=8, least_local=1, most_local=8)
    mine = bounds(8, 64, (2, 16), True, environ=THERE)
    assert mine == BatchLimits(initial=8, most=64, least_local=2, most_local=16, accumulation=True)


def test_a_script_that_says_nothing_takes_what_was_submitted():
    assert VARIABLE == BATCH_VARIABLE
    assert bounds(None, environ=THERE) == GIVEN


@pytest.mark.parametrize(
    ("options", "environ", "says"),
    [
        ((None,), {}, "plait submit --batch-size"),
        ((None, 64), THERE, "without batch_size"),
        ((None, None, (2, None)), THERE, "without batch_size"),
        ((None,), {VARIABLE: "8"}, "PLAIT_BATCH is '8'"),
        ((None,), {VARIABLE: "{"}, "PLAIT_BATCH is '{'"),
        ((None,), {VARIABLE: '{"initial": 4, "most": 2, "least_local": 1, "most_local": 4}'}, "batch size 4 to 2"),
        ((8, 4), {}, "batch size 8 to 4: needs 1 <= batch_size <= max_batch_size"),
        ((64, 128, (256, 512)), {}, "give a smaller least of local_batch or a larger batch_size"),
        ((64, 128, (1, 32)), {}, "allow accumulation=True, or give a larger most of local_batch"),
        ((16.5,), {}, r"batch_size is 16.5; give a whole number"),
        ((16, 32.5), {}, r"max_batch_size is 32.5; give a whole number"),
        ((16, 64, "16..64"), {}, r"local_batch is '16..64'; .* such as local_batch=\(16, 64\)"),
        ((16, 64, 32), {}, "local_batch is 32; give the least and the most"),
        ((16, 64, (1, 2.5)), {}, r"local_batch is \(1, 2.5\)"),
    ],
)
def test_bounds_that_cannot_be(options, environ, says):
    with pytest.raises(InputError, match=says):
        bounds(*options, environ=environ)


# Sums over ranks: added anywhere, read together, in checkpoints.


def test_what_was_added_can_be_read_inside_alone() -> None:
    sums = Accumulator("a")
    sums["loss"] += 1.5
    sums["loss"] += 2
    sums["left"] -= 1
    sums.add(seen=torch.ones(2), loss=0.5)
    assert "loss" in sums
    with pytest.raises(InputError, match=r"outside `with a.synchronized\(\):`"):
        sums.sums()
    assert "to be read inside" in repr(sums["loss"])
    with pytest.raises(TypeError):
        float(sums["loss"])
    with sums.synchronized():
        assert (sums["loss"], sums["left"], sums["seen"].tolist(), set(sums)) == (
            4,
            -1,
            [1, 1],
            {"loss", "left", "seen"},
        )
        with pytest.raises(InputError, match="only be added to"):
            sums["loss"] += 1
        with pytest.raises(KeyError):
            sums["none"]
    sums["loss"] += 1
    with sums.synchronized():
        assert sums["loss"] == 5
    sums.reset()
    with sums.synchronized():
        assert sums.sums() == {}


def test_what_is_no_sum_is_refused() -> None:
    sums = Accumulator("b")
    for wrong in (1.0, sums["other"] + 1):
        with pytest.raises(InputError, match="only be added to"):
            sums["loss"] = wrong


def test_a_tensor_that_the_script_goes_on_using_is_copied() -> None:
    sums, mine = Accumulator("c"), torch.ones(1, requires_grad=True)
    sums["x"] += mine
    with torch.no_grad():
        mine += 1
    with sums.synchronized():
        assert (sums["x"].item(), sums["x"].requires_grad) == (1, False)


def test_a_name_is_for_one_at_a_time() -> None:
    first = Accumulator("d")
    with pytest.raises(InputError, match=r"'d'.*taken"):
        Accumulator("d")
    del first
    Accumulator("d")


def test_state_is_plain() -> None:
    sums = Accumulator("e")
    sums.add(loss=1.5, seen=torch.arange(3))
    file = io.BytesIO()
    torch.save(sums.state_dict(), file)
    file.seek(0)
    again = Accumulator("e2")
    again.load_state_dict(torch.load(file, weights_only=True))
    again["loss"] += 1
    with again.synchronized():
        assert (again["loss"], again["seen"].tolist()) == (2.5, [0, 1, 2])


class Four:
    """Four ranks, of which the other three have added the same as this one; `gather` is what they meet in."""

    def gather(self, value: dict[str, float]) -> list[dict[str, float]]:
        return [value] * 4


def test_four_ranks_after_one_and_before_two_count_once(monkeypatch: pytest.MonkeyPatch) -> None:
    sums = Accumulator("f")
    sums["n"] += 10
    sums.before_checkpoint()
    state = sums.state_dict()
    monkeypatch.setattr(module, "ranks", Four)
    monkeypatch.setattr(module, "world_size", lambda: 4)
    ranks = [Accumulator(f"f{r}") for r in range(4)]
    for each in ranks:
        each.load_state_dict(state)  # rank 0's: the others were not there
        each["n"] += 5
        with pytest.raises(InputError, match="before_checkpoint"):
            each.state_dict()
        each.before_checkpoint()
    states = [each.state_dict() for each in ranks]
    assert states == [{"total": {"n": 30}}] * 4
    again = Accumulator("f9")
    again.load_state_dict(states[1])
    with again.synchronized():
        assert again["n"] == 30
