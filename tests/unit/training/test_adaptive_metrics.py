"""Sums over ranks: added anywhere, read together, in checkpoints."""

from __future__ import annotations

import io

import pytest

from plait.core.errors import InputError

pytest.importorskip("torch")

import torch

from plait.training.adaptive import ranks as module
from plait.training.adaptive.ranks import Accumulator


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
