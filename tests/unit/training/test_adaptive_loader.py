"""The adaptive loader: passes, places, changes of the batch, and restarts on other numbers of ranks."""

import io
from pathlib import Path
from typing import Any

import pytest
from attempts import PREEMPTED, Forker

from plait.core.errors import InputError
from plait.runtime.page import Page

pytest.importorskip("torch")

import torch

from plait.training.adaptive.loader import AdaptiveDataLoader, AdaptiveLoader, TokenGroups, TokenStream

pytestmark = pytest.mark.filterwarnings("ignore:plait. this loader may grow its batch")


class Numbers:
    """The number of each sample."""

    def __init__(self, size: int = 100) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> int:
        return index


class Noise:
    """A gradient of which all is known."""

    known, sqr, var = True, 1.0, 3.0

    def gain(self, scale: float) -> float:
        return (self.var + self.sqr) / (self.var / scale + self.sqr)


def numbers(size: int = 100, batch_size: int = 10, **options: Any) -> AdaptiveDataLoader:
    return AdaptiveDataLoader(Numbers(size), batch_size, **({"shuffle": True, "seed": 1} | options))


def saved(loader: AdaptiveLoader) -> dict[str, Any]:
    """Its state after a way through a file that may hold nothing but plain values."""
    file = io.BytesIO()
    torch.save(loader.state_dict(), file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def test_a_pass_has_every_sample_once_and_the_next_one_another_order() -> None:
    loader = numbers(size=95)
    passes = [[[int(i) for i in batch] for batch in loader] for _ in range(2)]
    assert [len(p) for p in passes] == [10, 10]
    assert len(loader) == 10
    flat = [[i for batch in p for i in batch] for p in passes]
    assert [sorted(f) for f in flat] == [list(range(95))] * 2
    assert flat[0] != flat[1]
    assert loader.epoch == 2
    assert [[int(i) for b in numbers(size=95) for i in b]] == flat[:1]


def test_its_length_is_known_before_the_first_pass() -> None:
    loader = numbers(size=95)
    assert (len(loader), loader.current_batch_size, loader.current_local_batch) == (10, 10, 10)
    twice = numbers(size=95, accumulation=True, local_batch=(1, 5))
    assert (len(twice), twice.accumulation_steps, twice.is_sync_pass) == (19, 1, True)
    assert len(list(twice)) == 19


def test_a_pass_that_was_left_is_over_and_the_next_one_whole() -> None:
    loader = numbers()
    for number, _ in enumerate(loader):
        if number == 3:
            break
    assert loader.epoch == 1
    assert sorted(int(i) for batch in loader for i in batch) == list(range(100))
    left = iter(loader)
    next(left)
    assert sorted(int(i) for batch in loader for i in batch) == list(range(100))
    assert loader.epoch == 4
    left.close()
    assert loader.epoch == 4


def test_a_pass_goes_on_where_the_state_was_taken() -> None:
    first = numbers(size=95)
    before = []
    for number, batch in enumerate(first):
        before += [int(i) for i in batch]
        if number == 3:
            state = saved(first)
            break
    second = numbers(size=95)
    second.load_state_dict(state)
    after = [[int(i) for i in batch] for batch in second]
    assert len(after) == 6
    assert sorted(before + [i for batch in after for i in batch]) == list(range(95))
    assert second.epoch == 1
    assert second.progress.iterations == 10


def test_state_between_passes_begins_the_next_one() -> None:
    loader = numbers()
    for number, _ in enumerate(loader):
        if number == 9:
            state = saved(loader)  # a script that counts its passes itself has done with this one
    assert (state["epoch"], state["done"], state["active"]) == (1, 0, False)
    assert saved(loader) | {"timings": None} == state | {"timings": None}


def test_state_of_other_data_or_another_batch_does_not_fit() -> None:
    state = numbers().state_dict()
    with pytest.raises(ValueError, match="size 100, now 95; batch_size 10, now 5"):
        numbers(size=95, batch_size=5).load_state_dict(state)


def test_epochs_of_progress_at_the_initial_batch_are_passes_and_resume() -> None:
    loader = numbers(size=95)
    turns = []
    for epoch in loader.remaining_epochs(5):
        turns += [epoch] * sum(1 for _ in loader)
        if epoch == 2:
            break
    again = numbers(size=95)
    again.load_state_dict(saved(loader))
    for epoch in again.remaining_epochs(5):
        turns += [epoch] * sum(1 for _ in again)
    assert turns == [epoch for epoch in range(5) for _ in range(10)]
    assert list(again.remaining_epochs(5)) == []


def test_a_larger_batch_takes_more_passes_for_the_same_progress_and_the_last_one_ends_early() -> None:
    loader = numbers(size=1000, max_batch_size=40, accumulation=True, local_batch=(1, 20))
    loader.follow(Noise())
    loader.plan.change(20, 1, 0)  # scale 4, gain 16/7
    loader.decisions._of = (1, 1)
    made = [sum(len(batch) for batch in loader) for _ in loader.remaining_epochs(2)]
    steps = -(-200 * 7 // 16)
    assert made == [1000, 1000, 1000, steps * 40 - 3000]
    assert loader.progress.iterations == pytest.approx(steps * 16 / 7)


def test_a_pass_of_larger_batches_is_never_worth_more_than_its_samples() -> None:
    class Unknown(Noise):
        def gain(self, scale: float) -> float:
            return scale

    loader = numbers(size=1000, max_batch_size=40, accumulation=True, local_batch=(1, 20))
    loader.follow(Unknown())
    loader.plan.change(18, 1, 0)  # 27 steps of 36, and one of 28
    loader.decisions._of = (1, 1)
    for _ in loader:
        pass
    assert loader.progress.iterations == pytest.approx(100)
    loader = numbers(size=1004, max_batch_size=40)
    loader.follow(Unknown())
    for _ in loader:
        pass
    assert loader.progress.iterations == 101  # at the initial batch each step is one, the last one too


def test_a_turn_without_a_step_is_refused() -> None:
    with pytest.raises(InputError, match="iterate over the loader inside the loop"):
        list(numbers().remaining_epochs(1))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_change_of_the_batch_comes_between_steps_and_loses_nothing(workers: int) -> None:
    loader = numbers(size=200, max_batch_size=40, accumulation=True, local_batch=(1, 20), num_workers=workers)
    told, seen = [], []
    for number, batch in enumerate(loader):
        told.append((len(batch), loader.current_local_batch, loader.accumulation_steps, loader.is_sync_pass))
        seen += [int(i) for i in batch]
        assert loader.current_batch_size == len(batch) * (loader.accumulation_steps + 1)
        if number == 1:
            loader.plan.change(15, 1, loader.plan.steps)
    assert sorted(seen) == list(range(200))
    ahead = 2 + 2 * workers  # what its workers had been given is taken as it was
    first = told[:ahead]
    assert first == [(10, 10, 0, True)] * ahead
    assert told[ahead : ahead + 4] == [(15, 15, 1, False), (15, 15, 1, True)] * 2


class Two:
    """The second of two ranks on two nodes; the first one chooses 4 examples and no accumulation."""

    rank, world_size, nodes, same = 1, 2, 2, True

    def __init__(self) -> None:
        self.asked = 0

    def largest(self, values: list[int]) -> list[int]:
        self.asked += 1
        assert values[1:] == [0, 0, 0], "it has no say"
        return [values[0], 4, 0, 5]


def test_ranks_that_come_or_go_between_passes_are_taken_in(monkeypatch: pytest.MonkeyPatch) -> None:
    from plait.training.adaptive import loader as base

    loader = numbers(size=40)
    assert [len(batch) for batch in loader] == [10] * 4
    two = Two()
    monkeypatch.setattr(base, "ranks", lambda: two)
    monkeypatch.setattr(base, "world_size", lambda: 2)
    assert [len(batch) for batch in loader] == [4] * 5
    assert two.asked == 2, "before the first step and after the fifth"
    assert loader.state_dict()["chosen"] == [4, 0, 2, 2]
    assert (len(loader), loader.current_batch_size) == (5, 8)


class Stream(torch.utils.data.IterableDataset):
    """The numbers 0 to 69, in this order."""

    def __iter__(self) -> Any:
        return iter(range(70))


class Skipped(Stream):
    """... which counts the samples that it is spared."""

    def __init__(self) -> None:
        self.skipped = 0

    def skip(self, count: int) -> Any:
        self.skipped += count
        return range(count, 70)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_stream_is_read_on_from_pass_to_pass_and_begins_again_at_its_end(workers: int) -> None:
    loader = AdaptiveDataLoader(Stream(), 10, size=40, num_workers=workers)
    passes = [[int(i) for batch in loader for i in batch] for _ in range(2)]
    assert passes == [list(range(40)), [*range(40, 70), *range(10)]]


@pytest.mark.parametrize(("passes", "rest"), [(1, [*range(60, 70), *range(10)]), (2, list(range(30, 50)))])
def test_a_stream_goes_on_where_the_state_was_taken_without_reading_what_it_can_skip(
    passes: int, rest: list[int]
) -> None:
    first = AdaptiveDataLoader(Stream(), 10, size=40)
    for _ in range(passes):
        list(first)
    for number, _ in enumerate(first):
        if number == 1:
            state = saved(first)
            break
    for stream in (Stream(), Skipped()):
        second = AdaptiveDataLoader(stream, 10, size=40)
        second.load_state_dict(state)
        assert [int(i) for batch in second for i in batch] == rest
    assert stream.skipped == 40 * passes + 20  # type: ignore[attr-defined]


def test_tokens_are_batched_in_groups_of_nearly_the_same_number() -> None:
    words = ["a" * (1 + number % 9) for number in range(50)]
    groups = TokenGroups(words, [len(word) for word in words], 20)
    sizes = [sum(map(len, groups[index])) for index in range(len(groups))]
    assert sum(sizes) == sum(map(len, words))
    assert max(sizes) <= 20
    assert sorted(sizes)[1] > 10, "all but the last are more than half full"
    loader = AdaptiveDataLoader(groups, 3, shuffle=True, collate_fn=lambda batch: [w for g in batch for w in g])
    assert sorted(word for batch in loader for word in batch) == sorted(words)
    assert list(TokenStream(["aaa", "bb", "cccccccc", "d"], 5)) == [["aaa", "bb"], ["cccccccc"], ["d"]]


def test_what_it_cannot_load_it_refuses() -> None:
    with pytest.raises(InputError, match=r"AdaptiveDataLoader\(Stream, size=None\): give size= for a stream alone"):
        AdaptiveDataLoader(Stream(), 10)
    with pytest.raises(InputError, match=r"Numbers, size=5.*a length of its own"):
        AdaptiveDataLoader(Numbers(), 10, size=5)
    for options in ({"shuffle": True}, {"num_workers": 2}):
        with pytest.raises(InputError, match="one order and one reader"):
            AdaptiveDataLoader(Stream(), 10, size=20, **options)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="no samples"):
        list(AdaptiveDataLoader(iter([]), 10, size=20))
    with pytest.raises(InputError, match="batch_sampler, sampler"):
        numbers(sampler=[1], batch_sampler=[[1]])
    with pytest.raises(InputError, match="in_order"):
        numbers(in_order=False)
    with pytest.raises(InputError, match="no samples"):
        numbers(size=0)


def test_a_loader_of_ones_own_gets_the_indices() -> None:
    class Mine(AdaptiveLoader):
        def batches(self, plan: Any) -> Any:
            return ([10 * i for i in indices] for indices in plan)

    assert [i for batch in Mine(25, 10) for i in batch] == [10 * i for i in range(25)]


# --- real processes ---


@pytest.mark.parametrize("stream", [False, True])
def test_a_job_resized_in_the_middle_of_a_pass_sees_every_sample_once(
    stream: bool, forker: Forker, tmp_path: Path
) -> None:
    job, seen, outputs = tmp_path / "j-1", tmp_path / "seen", ""
    for epoch, (world, steps) in enumerate([(1, 2), (4, 4), (2, 0)], start=1):
        args = [str(seen), str(steps), "1", *["--stream"] * stream]
        gang = forker.gang(job, epoch, "adaptive_data.py", *args, world=world)
        for attempt in gang:
            outputs += attempt.ends(PREEMPTED if steps else 0)
    lines = [line.split() for file in tmp_path.glob("seen-*") for line in file.read_text().splitlines()]
    taken = {e: sorted(int(i) for line in lines if line[0] == e for i in line[1:]) for e in ("0", "1")}
    assert taken == {"0": list(range(100)), "1": list(range(100, 200) if stream else range(100))}
    resized = [len(line.split()) - 1 for line in (tmp_path / "seen-2-0").read_text().splitlines()]
    assert resized == [3] * 5, "asked to stop in the fourth step, agreed in the fifth"
    said = [line.split()[1:4] for line in outputs.splitlines() if line.startswith("sums")]
    assert said == [["0", "100", "4950.0"], ["1", "100", "14950.0" if stream else "4950.0"]]


def test_all_ranks_change_the_batch_in_the_same_step_whatever_their_workers_have_fetched(
    forker: Forker, tmp_path: Path
) -> None:
    args = [str(tmp_path / "seen"), "0", "1", "--change"]
    gang = forker.gang(tmp_path / "j-1", 1, "adaptive_data.py", *args, world=2)
    for attempt in gang:
        attempt.ends()
    lines = [[line.split() for line in (tmp_path / f"seen-1-{r}").read_text().splitlines()] for r in range(2)]
    assert sorted(int(i) for rank in lines for line in rank for i in line[1:]) == sorted([*range(100), *range(100)])
    sizes = [[len(line) - 1 for line in rank] for rank in lines]
    assert sizes[0] == sizes[1]
    before, after = sizes[0][:4], sizes[0][4:8]
    assert before == [5] * 4, "two steps, and two more that a worker had begun"
    assert after == [8, 8, 7, 7], "the last step has what is left"


def test_a_job_tells_its_agent_how_far_it_is(forker: Forker, tmp_path: Path) -> None:
    attempt = forker.start(tmp_path / "j-1", 1, "adaptive_data.py", str(tmp_path / "seen"), "0")
    output = attempt.ends()
    assert float(output.split("not training")[1]) >= 1, "it evaluated for a second"
    with Page.open(attempt.folder / "page.bin", mapped=False) as page:
        assert (page.steps, page.progress, page.total_progress, page.batch_size) == (20, 20, 20, 10)
        assert page.goodput is not None


@pytest.mark.parametrize("given", [-1, 0, float("nan"), float("inf"), "30", None, True])
def test_an_interval_that_is_no_time_is_refused(given: Any) -> None:
    with pytest.raises(InputError, match="interval_s is ") as refused:
        numbers(interval_s=given)
    assert f"interval_s is {given!r}; give a finite number of seconds > 0, such as interval_s=30" in str(refused.value)


def test_an_older_iterator_ends_with_an_error() -> None:
    loader = AdaptiveDataLoader(range(40), 10)
    first = iter(loader)
    next(first)
    second = iter(loader)
    next(second)
    with pytest.raises(InputError, match="one iterator at a time"):
        next(first)
    assert len(list(second)) == 3
