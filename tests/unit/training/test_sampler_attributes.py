"""A loader is wrapped and saved whatever attributes its sampler has, and whatever else the script iterates over."""

from __future__ import annotations

import gc
import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from plait.training.loader import consumers
from plait.training.loader.sampler_replay import SamplerState


class Sampler:
    """Has an attribute of its own."""

    def __init__(self, value: Any) -> None:
        self.value, self.taken = value, 0


@pytest.mark.parametrize(
    "value",
    [random.SystemRandom(), torch.zeros(2, dtype=torch.bfloat16), [*range(8), lambda: 0]],
    ids=["no state", "no array", "a function at the end"],
)
def test_an_attribute_that_cannot_be_copied_is_left_alone(value: Any) -> None:
    sampler = Sampler(value)
    state = SamplerState(sampler)
    sampler.taken = 3
    assert list(state.changes()) == ["taken"]
    changes, sampler.taken = state.changes(), 0
    state.put(changes)
    assert sampler.value is value
    assert sampler.taken == 3


def test_data_that_is_counted_elsewhere_is_not_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    """A script may be in the middle of `enumerate(paths)` at each checkpoint, with millions of paths."""

    def passes() -> Iterator[int]:
        yield 0

    batches = passes()
    looked: list[int] = []
    near = gc.get_referents

    def look(part: Any) -> list[Any]:
        found = near(part)
        looked.append(len(found))
        return found

    monkeypatch.setattr(gc, "get_referents", look)
    outer, inner = enumerate(list(range(100_000))), enumerate(batches)
    next(outer)
    assert consumers.numbers(batches) == [0]
    assert max(looked) <= consumers.MOST_OBJECTS
    del outer, inner
