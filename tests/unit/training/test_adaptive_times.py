"""Times of passes by nodes, GPUs and examples a GPU: what is counted, pooled, and kept over restarts."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from plait.training.adaptive.batch import BatchSchedule
from plait.training.adaptive.plan import Microbatch, Step
from plait.training.adaptive.profile import Timings


class Clock:
    """Goes on by hand."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def play(times: Timings, clock: Clock, ranks: int, local: int, steps: int, passes: int = 1, nodes: int = 1) -> None:
    """Steps of which accumulating passes take 1 s, and the last one 3 s of which it reduces 2 s."""
    for _ in range(steps):
        step = Step(0, ranks * local * passes, passes, ranks, True)
        for index in range(passes):
            times.begin(Microbatch(step, index, local), nodes)
            clock.now_s += 1 if index < passes - 1 else 3
            times.synced(2)
            times.end()


def sums(times: Timings) -> dict[tuple[int, int, int], tuple[float, ...]]:
    return {key[:3]: (t.grad_s, t.grads, t.step_s, t.sync_s, t.steps) for key, t in times.keys.items()}


def test_keys_counts_and_sums_over_restarts_with_one_to_four_ranks() -> None:
    clock, state = Clock(), Timings().state_dict()
    for ranks in (1, 2, 3, 4, 2):
        times = Timings(clock=clock)
        state["keys"] = [[*key[:3], *key[4:]] for key in state["keys"]]  # as before there were ZeRO stages
        times.load_state_dict(state)
        times.begin_epoch()
        play(times, clock, ranks, 8, 3, passes=2, nodes=(ranks + 1) // 2)
        times.begin(Microbatch(Step(0, 8, 1, ranks, True), 0, 8), 1)  # never finished: the restart comes
        state = times.state_dict()
    # The first pass of each run is not counted: two accumulating passes and three steps of each are.
    once, alone = (2.0, 2, 9.0, 6.0, 3), (2.0, 2, 9.0, 0.0, 3)
    twice = tuple(2 * value for value in once)
    assert sums(times) == {(1, 1, 8): alone, (1, 2, 8): twice, (2, 3, 8): once, (2, 4, 8): once}
    assert times.most_gpus == 4


def test_a_pass_that_says_nothing_is_not_counted() -> None:
    clock = Clock()
    times = Timings(clock=clock)
    times.begin_epoch()
    play(times, clock, 1, 8, 1)  # the first of an epoch
    play(times, clock, 1, 4, 1)  # the first of a batch size
    step = Step(0, 3, 1, 1, False)
    for _ in range(2):  # of the end of an epoch
        times.begin(Microbatch(step, 0, 3), 1)
        times.end()
    assert sums(times) == {}
    assert not times.changed
    play(times, clock, 2, 3, 1)
    assert sums(times) == {(1, 2, 3): (0, 0, 3, 2, 1)}
    times.begin(Microbatch(Step(0, 6, 1, 2, True), 0, 3), 1)  # nobody has measured how long it reduced
    times.end()
    assert sums(times)[1, 2, 3][-1] == 1
    assert times.changed


def test_waiting_for_others_is_not_the_jobs_own_time() -> None:
    clock, still, reducing = Clock(), Clock(), Clock()
    times = Timings(lambda: (still(), reducing()), clock=clock)
    for _ in range(2):
        times.begin(Microbatch(Step(0, 16, 1, 2, True), 0, 8), 1)
        clock.now_s += 9
        still.now_s += 4
        reducing.now_s += 1.5
        times.synced(2)
        times.end()
    assert sums(times) == {(1, 2, 8): (0, 0, 3.5, 0.5, 1)}
    times.begin(Microbatch(Step(0, 16, 1, 2, True), 0, 8), 1)
    clock.now_s += 5
    reducing.now_s += 3  # of which the backward pass hid all but the last second
    times.synced(1)
    times.end()
    assert sums(times) == {(1, 2, 8): (0, 0, 3.5 + 4, 0.5, 2)}


class Event:
    """An event of a device that comes when it is told."""

    def __init__(self, at_s: float) -> None:
        self.at_s, self.over = at_s, False

    def query(self) -> bool:
        return self.over

    def elapsed_time(self, other: Event) -> float:
        return 1000 * (other.at_s - self.at_s)


def test_a_device_is_asked_later_and_never_waited_for() -> None:
    events: list[Event] = []
    times = Timings()

    def mark() -> Event:
        events.append(Event(float(len(events))))
        return events[-1]

    times._mark = mark  # type: ignore[method-assign]
    microbatch = Microbatch(Step(0, 16, 1, 2, True), 0, 8)
    asked = []
    for number in range(3):
        times.begin(microbatch, 1)
        times.synced(lambda number=number: asked.append(number) or 0.25)
        times.end()
    assert (sums(times), asked) == ({}, [])
    events[2].over = True
    times.begin(microbatch, 1)
    assert sums(times) == {(1, 2, 8): (0, 0, 1, 0.25, 1)}
    events[4].over = True
    times.end()
    assert asked == [1, 2]


def test_a_reduction_that_is_known_later_is_waited_for_but_not_for_ever() -> None:
    clock = Clock()
    times = Timings(clock=clock)
    later: list[float] = []
    microbatch = Microbatch(Step(0, 16, 1, 2, True), 0, 8)
    for number in range(40):
        times.begin(microbatch, 1)
        clock.now_s += 2
        times.synced(lambda number=number: None if number == 20 else later[0] if later else None)
        times.end()
        if number == 10:
            assert sums(times) == {}
            later.append(0.5)
    assert sums(times) == {(1, 2, 8): (0, 0, 38 * 2, 38 * 0.5, 38)}


def test_ranks_meet_after_as_many_steps_as_the_interval_holds() -> None:
    clock = Clock()
    schedule = BatchSchedule(30, clock)
    met, steps = [], 0
    while clock.now_s < 200:
        clock.now_s += 0.5
        steps += 1
        if schedule.stepped():
            met.append(steps)
            schedule.begin(schedule.next())
    assert met == [1, 11, 71, 131, 191, 251, 311, 371]
    clock.now_s += 10
    assert not schedule.soon
    clock.now_s += 5
    assert schedule.soon
