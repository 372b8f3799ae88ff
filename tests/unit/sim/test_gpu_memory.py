"""Memory of a simulated GPU under the memory law, whatever happens in whichever order."""

from __future__ import annotations

import os

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from plait.core.errors import SimulationError
from plait.sharing.coordinator import CODEC, State, decide
from plait.sharing.directive import Action, Device, Directive, Reached, Sharer, SpillReason, StepStats
from plait.sharing.memory_law import CONTEXT_BYTES, MARGIN_BYTES, budget, headroom
from plait.sim.gpu import SimDevice

GB = 1_000_000_000
CAPACITY = 32 * GB
HOST = "host"
EXAMPLES = 1000 if os.environ.get("PLAIT_SLOW") else 25


class World:
    """Jobs that obey at their boundaries, and a coordinator that hears of it sooner or later."""

    def __init__(self) -> None:
        self.device, self.state, self.now_s = SimDevice(CAPACITY), State(), 0.0
        self.jobs: dict[str, Sharer] = {}
        self.persistent: dict[str, int] = {}
        self.directives: dict[str, Directive] = {}
        self.stats: dict[str, list[StepStats]] = {}
        self.steps: dict[str, int] = {}
        self.report: dict[str, Reached] = {}
        self.waiting: dict[str, Reached] = {}
        self.refused: dict[str, int] = {}
        self.names = 0

    def arrive(self, guaranteed: bool, persistent_gb: int, known: bool = True) -> None:
        if guaranteed and HOST in self.jobs:
            return
        self.names += 1
        name = HOST if guaranteed else f"o{self.names}"
        self.persistent[name] = 0 if guaranteed else persistent_gb * GB
        self.jobs[name] = Sharer(guaranteed, persistent_bytes=self.persistent[name] if known else None)
        self.steps[name] = 0

    def leave(self, index: int) -> None:
        if self.jobs:
            self.end(list(self.jobs)[index % len(self.jobs)])

    def end(self, name: str) -> None:
        del self.jobs[name]
        for table in (self.directives, self.stats, self.report, self.refused, self.waiting):
            table.pop(name, None)
        self.device.leave(name)

    def listen(self) -> None:
        self.report = self.waiting | self.device.reached()

    def refuse(self, index: int, size_gb: int) -> None:
        """A job that runs waits in an allocation that nobody can serve, until its next boundary."""
        running = list(self.device.reached())
        if running:
            self.refused[running[index % len(running)]] = size_gb * GB

    def decide(self, seconds: float) -> None:
        """With the last report, which may be older than what jobs did since."""
        self.now_s += seconds
        stats, self.stats = self.stats, {}
        reached = {name: one for name, one in self.report.items() if name in self.jobs}
        self.state, self.directives = decide(
            self.state, self.now_s, stats, Device(CAPACITY, self.jobs, reached, dict(self.refused))
        )
        self.state = CODEC.decode(State, CODEC.encode(self.state))

    def forget(self) -> None:
        """The coordinator loses its state, reads what jobs hold and decides before it says anything else."""
        self.state = State()
        self.listen()
        self.decide(0.1)

    def boundary(self, index: int, demand_gb: int, live_gb: int = 0) -> None:
        """A job ends its step, obeys the last directive it was given, and begins the next."""
        if not self.jobs:
            return
        name = list(self.jobs)[index % len(self.jobs)]
        given, job = self.directives.get(name), self.jobs[name]
        if given is None:
            return
        if given.action in (Action.CHECKPOINT, Action.STOP):
            assert not job.guaranteed or set(self.device.reached()) == {HOST}, "it never goes for others"
            self.end(name)
            return
        if name not in self.device.reached() and given.action is not Action.RUN:
            self.waiting[name] = Reached(given.limit_number, given.memory_limit_bytes or 0)  # at the start of CUDA
            return
        self.waiting.pop(name, None)
        live = 0 if job.guaranteed else max(live_gb * GB, self.persistent[name])
        self.device.bound(name, given, live)
        if given.action is Action.PAUSE:
            return
        self.refused.pop(name, None)
        got = self.device.step(name, max(demand_gb * GB, self.persistent[name]))
        assert not (job.guaranteed and got.refused_bytes), "a burst fails the guaranteed job"
        self.steps[name] += 1
        step = StepStats(
            step=self.steps[name], step_s=0.1, device_persistent_bytes=self.persistent[name],
            device_reserved_bytes=got.reserved_bytes, host_spill_bytes=got.spill_bytes, work=1.0 + demand_gb,
        )  # fmt: skip
        self.stats.setdefault(name, []).append(step)


small = st.integers(0, 7)
events = st.one_of(
    st.tuples(st.just("boundary"), small, st.integers(0, 30), st.integers(0, 12)),
    st.tuples(st.just("boundary"), small, st.integers(0, 30), st.integers(0, 12)),
    st.tuples(st.just("decide"), st.sampled_from([0.1, 1.0, 40.0])),
    st.tuples(st.just("decide"), st.just(0.1)),
    st.tuples(st.just("listen")),
    st.tuples(st.just("arrive"), st.booleans(), st.integers(0, 12), st.booleans()),
    st.tuples(st.just("leave"), small),
    st.tuples(st.just("refuse"), small, st.integers(1, 40)),
    st.tuples(st.just("forget")),
)


#: A guest starts with a limit that is lowered before anybody hears of it.
UNHEARD = [
    ("boundary", 0, 0, 0), ("decide", 0.1), *[("boundary", 0, 0, 0)] * 2, *[("decide", 0.1)] * 4, ("leave", 0),
    ("boundary", 0, 0, 0), ("arrive", False, 0, False), ("decide", 0.1), *[("boundary", 0, 0, 0)] * 8,
    ("boundary", 1, 0, 0), *[("decide", 0.1)] * 3, *[("boundary", 0, 0, 0)] * 5,
]  # fmt: skip


@settings(max_examples=EXAMPLES)
@example(UNHEARD)
@given(st.lists(events, min_size=30, max_size=120))
def test_memory_is_never_over_committed_and_bursts_never_fail_the_guaranteed_job(history) -> None:
    world = World()
    world.arrive(True, 0)
    world.arrive(False, 1)
    for what, *values in history:
        getattr(world, what)(*values)
        world.device.verify()
    world.arrive(True, 0)
    world.refused.clear()
    for _ in range(12):  # and once things calm down, it has what it asks for
        world.listen()
        world.decide(0.1)
        for name in tuple(world.jobs):
            world.boundary(list(world.jobs).index(name), 22 if name == HOST else 1)
            world.device.verify()
    assert world.stats[HOST][-1].host_spill_bytes == 0


def given_limit(size: int, number: int = 1) -> Directive:
    return Directive(memory_limit_bytes=size, limit_number=number)


def test_what_exceeds_the_limit_goes_to_the_host_and_then_nowhere() -> None:
    device = SimDevice(CAPACITY, host_bytes=4 * GB)
    device.bound("a", given_limit(8 * GB))
    assert device.step("a", 6 * GB).reason is SpillReason.NONE
    got = device.step("a", 10 * GB)
    assert (got.reserved_bytes, got.spill_bytes, got.refused_bytes) == (8 * GB, 2 * GB, 0)
    assert got.reason is SpillReason.OUT_OF_MEMORY
    got = device.step("a", 20 * GB)
    assert (got.spill_bytes, got.refused_bytes) == (4 * GB, 8 * GB)
    device.leave("a")
    assert device.reached() == {}


def test_releasing_the_cache_comes_before_the_host() -> None:
    device = SimDevice(CAPACITY)
    device.bound("a", given_limit(8 * GB))
    got = device.step("a", 7 * GB, fragmented_bytes=2 * GB)
    assert (got.spill_bytes, got.reason) == (0, SpillReason.NONE)


def test_a_shrink_frees_what_is_not_in_use() -> None:
    device = SimDevice(CAPACITY)
    device.bound("a", given_limit(8 * GB))
    device.step("a", 8 * GB)
    device.bound("a", given_limit(2 * GB, 2), live_bytes=5 * GB)
    assert device.reached()["a"] == Reached(2, 5 * GB)
    device.bound("a", given_limit(2 * GB, 2), live_bytes=GB)
    assert device.reached()["a"] == Reached(2, 2 * GB)
    device.bound("a", Directive(limit_number=3))
    assert device.reached()["a"] == Reached(3, CAPACITY)


def test_over_commitment_is_an_error_that_names_the_jobs() -> None:
    device = SimDevice(CAPACITY)
    device.bound("a", given_limit(budget(CAPACITY, 2) - GB))
    device.bound("b", given_limit(GB))
    device.verify()
    device.bound("b", given_limit(GB + 1, 2))
    with pytest.raises(SimulationError, match=r"over-committed by 1: a [\d,]+, b 1,000,000,001"):
        device.verify()


def test_the_budget_is_what_margin_and_contexts_leave() -> None:
    assert budget(CAPACITY, 3) == CAPACITY - MARGIN_BYTES - 3 * CONTEXT_BYTES
    assert budget(GB, 3) == 0
    assert headroom(8 * GB) == 400_000_000
    assert headroom(GB) == 256 << 20
