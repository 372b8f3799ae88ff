"""The coordinator of a node by hand: pages of jobs that report steps and obey, turn after turn of the test's clock."""

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from plait.live.agent import sharing as coordinating
from plait.live.agent.monitor import Busy, GpuWindow
from plait.live.agent.sharing import (
    LEASE_S,
    OBEY_S,
    PERIOD_S,
    Coordinator,
    GpuProcess,
    hold_back,
    neighbours,
    shared_gpus,
)
from plait.live.protocol.wire import GpuMean, GpuUsage
from plait.runtime.guest_gate import APART, Neighbours
from plait.runtime.page import Page
from plait.sharing.coordinator import State
from plait.sharing.directive import Action, Directive, StepStats
from plait.sharing.memory_law import CONTEXT_BYTES, MARGIN_BYTES

GB = 1_000_000_000


@dataclass
class Job:
    """A process that reports a step in each turn, and keeps to its limit at once unless it is `stuck`."""

    process: GpuProcess
    step_s: float = 0.1
    memory_bytes: int = 0
    persistent_bytes: int = 0
    stuck: bool = False
    silent: bool = False
    step: int = -1

    def __post_init__(self) -> None:
        Page.create(self.process.page).close()

    @property
    def page(self) -> Page:
        return Page.open(self.process.page, mapped=False)

    def live(self) -> None:
        with self.page as page:
            if not self.silent:
                self.step += 1
                page.add_step(
                    StepStats(
                        self.step, self.step_s, device_peak_bytes=self.memory_bytes, quantum_s=0.001,
                        device_reserved_bytes=self.memory_bytes, device_persistent_bytes=self.persistent_bytes,
                    )
                )  # fmt: skip
            if not self.stuck:
                limit = page.directive.memory_limit_bytes
                page.set_reached(page.directive.limit_number, math.inf if limit is None else limit)

    @property
    def told(self) -> Directive:
        with self.page as page:
            return page.directive


@dataclass
class Bench:
    """A node with its coordinator and these jobs; `at_s` is its clock."""

    folder: Path
    capacity_bytes: float = 0.0
    at_s: float = 1000.0
    jobs: dict[int, Job] = field(default_factory=dict)
    said: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.coordinator = self.made()

    def made(self) -> Coordinator:
        def log(event: str, **facts: object) -> None:
            self.said.append(f"{event} {facts}")

        return Coordinator(self.folder / "sharing.json", self.capacity_bytes, log, clock=lambda: self.at_s)

    def add(self, job: int, *, guest: bool = False, gpu: int = 0, rank: int = 0, **values: object) -> Job:
        page = self.folder / f"page-{job}-{rank}.bin"
        made = Job(GpuProcess((job, 1, rank), gpu, guest, page), **values)  # type: ignore[arg-type]
        self.jobs[job + 100 * rank] = made
        return made

    def turns(self, count: int = 1) -> None:
        for _ in range(count):
            self.at_s += PERIOD_S
            for job in self.jobs.values():
                job.live()
            self.coordinator.assign([job.process for job in self.jobs.values()])
            self.coordinator.run_once()

    def most(self, count: int, guest: Job) -> tuple[float, float]:
        """The last share above 0 that a guest has in so many turns, and its largest one."""
        last = most = 0.0
        for _ in range(count):
            self.turns()
            share = guest.told.share
            last, most = share or last, max(most, share)
        return last, most


@pytest.fixture
def bench(tmp_path: Path) -> Callable[..., Bench]:
    return lambda **values: Bench(tmp_path, **values)


def test_jobs_that_share_nothing_are_told_nothing(bench: Callable[..., Bench]) -> None:
    b = bench(capacity_bytes=16.0 * GB)
    one, two = b.add(0), b.add(1, gpu=1)
    b.turns(5)
    assert (one.told, two.told) == (Directive(), Directive())
    assert not (b.folder / "sharing.json").exists()
    assert b.coordinator.of((0, 1, 0)) is None


def test_a_guest_waits_until_its_host_is_measured_and_then_gets_more_and_more(bench: Callable[..., Bench]) -> None:
    b = bench()
    host, guest = b.add(0), b.add(1, guest=True)
    b.turns(15)
    assert (host.told.share, guest.told.share) == (1.0, 0.0)
    early, most = b.most(40, guest)
    assert 0 < early == most < 0.5
    assert b.most(250, guest)[1] == 1.0
    host.step_s = 0.2  # it suffers only beside the guest
    for _ in range(400):
        host.step_s = 0.2 if guest.told.share > 0 else 0.1
        b.turns(1)
    assert b.most(60, guest)[1] < 0.5
    assert (host.told.share, host.told.memory_limit_bytes) == (1.0, None)
    said = b.coordinator.of((1, 1, 0))
    assert (said.guest, said.share, said.beside, said.action) == (True, guest.told.share, [0], "run")
    assert b.coordinator.of((0, 1, 0)).beside == [1]
    assert "; alarm " in said.law


def test_a_guest_that_its_runner_throttles_is_reported_and_judged_by_its_quantum(bench: Callable[..., Bench]) -> None:
    b = bench()
    b.add(0)
    guest = b.add(1, guest=True, silent=True)
    b.turns(2)
    said = b.coordinator.of((1, 1, 0))
    assert (said.throttled, said.duty) == ("", None)
    for number, name in ((1, "cgroup"), (2, "signals"), (7, "")):
        with guest.page as page:
            page.throttle, page.throttle_quantum_s, page.throttle_duty = number, 0.02, 0.25
        b.turns()
        said = b.coordinator.of((1, 1, 0))
        assert (said.throttled, said.duty) == (name, 0.25 if name else None)
        jobs = {process.name: [process] for process in (one.process for one in b.jobs.values())}
        device = b.coordinator._reports.device(State().memory, jobs, "0:1")
        assert [device.jobs[job].quantum_s for job in ("0:1", "1:1")] == [0.0, 0.02 if name else 0.0]


def test_guests_never_seen_start_one_after_the_other_where_memory_is_limited(bench: Callable[..., Bench]) -> None:
    for capacity, actions in ((32.0 * GB, (Action.RUN, Action.PAUSE)), (0.0, (Action.RUN, Action.RUN))):
        b = bench(capacity_bytes=capacity)
        guests = [b.add(i, guest=True, silent=True) for i in range(2)]
        b.turns(2)
        assert tuple(guest.told.action for guest in guests) == actions
        if capacity:
            assert (guests[0].told.memory_limit_bytes or 0) > 0.9 * capacity
            (b.folder / "sharing.json").unlink(missing_ok=True)


def test_a_guest_may_run_for_a_lease_after_each_turn_and_a_host_without_one(bench: Callable[..., Bench]) -> None:
    b = bench()
    host, guest = b.add(0), b.add(1, guest=True)
    b.turns(3)
    with host.page as free, guest.page as leased:
        assert (free.share_until, leased.share_until) == (0.0, b.at_s + LEASE_S)
    b.turns(2)
    with guest.page as leased:
        assert leased.share_until == b.at_s + LEASE_S


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("share_until", 0.0), ("share_until", math.inf), ("share", 1.0), ("share", math.nan), ("share_number", 7),
        ("memory_limit_bytes", 0.0), ("limit_number", 99), ("action", 0), ("micro_batches", 4),
    ],
)  # fmt: skip
def test_a_guest_that_writes_its_own_directive_fails_with_the_reason(
    bench: Callable[..., Bench], word: str, value: float
) -> None:
    b = bench(capacity_bytes=16.0 * GB)
    host, guest = b.add(0, memory_bytes=GB), b.add(1, guest=True, memory_bytes=GB, persistent_bytes=GB)
    b.turns(3)
    b.coordinator = b.made()  # the next agent writes first, and compares from then on
    b.turns(2)
    assert b.coordinator.tampered((1, 1, 0)) == ""
    if word == "action":  # it is to pause, and says that it may run
        value = Action.RUN.value if guest.told.action is not Action.RUN else Action.PAUSE.value
    with guest.page as page:
        setattr(page, word, value)
    b.turns()
    assert word in b.coordinator.tampered((1, 1, 0))
    assert b.coordinator.tampered((0, 1, 0)) == ""
    assert (host.told.share, guest.told.share) == (1.0, 0.0)
    del b.jobs[1]
    b.turns()
    assert b.coordinator.tampered((1, 1, 0)) == ""


def test_an_agent_that_starts_again_goes_on_where_the_last_one_was(bench: Callable[..., Bench]) -> None:
    b = bench(capacity_bytes=16.0 * GB)
    b.add(0, memory_bytes=4 * GB, persistent_bytes=2 * GB)
    guest = b.add(1, guest=True, memory_bytes=1 * GB, persistent_bytes=GB // 2)
    b.turns()
    while not 0.2 < guest.told.share < 1.0:
        b.turns()
    before = guest.told
    b.coordinator = b.made()  # the agent was killed: the file is at most a second old
    b.turns()
    after = guest.told
    assert after.share >= before.share / 2
    assert after.memory_limit_bytes == before.memory_limit_bytes
    assert after.limit_number <= before.limit_number + 1
    assert b.most(50, guest)[1] >= before.share


def test_what_was_remembered_before_a_restart_of_the_machine_is_worth_nothing(
    bench: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    b = bench()
    b.add(0)
    guest = b.add(1, guest=True)
    assert b.most(100, guest)[1] > 0
    monkeypatch.setattr(coordinating.procs, "boot_id", lambda: "another")
    b.coordinator = b.made()
    b.turns()
    assert guest.told.share == 0.0


@pytest.mark.parametrize("text", ["", "[]", '{"boot": 1}', '{"gpus": {"0": {"share": 7}}}', "\0"])
def test_a_spoilt_file_means_to_measure_anew(bench: Callable[..., Bench], text: str) -> None:
    b = bench()
    if text.startswith('{"gpus'):
        text = json.dumps({"boot": coordinating.procs.boot_id(), **json.loads(text)})
    (b.folder / "sharing.json").write_text(text)
    b.coordinator = b.made()
    b.add(0)
    guest = b.add(1, guest=True)
    assert b.most(120, guest)[1] > 0


def test_limits_and_contexts_never_exceed_the_gpu_and_a_burst_takes_from_the_guest(bench: Callable[..., Bench]) -> None:
    b = bench(capacity_bytes=16.0 * GB)
    host = b.add(0, memory_bytes=4 * GB, persistent_bytes=2 * GB)
    guest = b.add(1, guest=True, memory_bytes=1 * GB, persistent_bytes=GB // 2)
    room = 16 * GB - MARGIN_BYTES - 2 * CONTEXT_BYTES

    def limits() -> tuple[int, int]:
        found = host.told.memory_limit_bytes, guest.told.memory_limit_bytes
        assert found[0] is not None
        assert found[1] is not None
        return found[0], found[1]

    for _ in range(150):
        b.turns()
        if host.told.memory_limit_bytes is not None:
            assert sum(limits()) <= room
    before = limits()
    host.memory_bytes = int(13.5 * GB)
    for _ in range(30):
        b.turns()
        assert sum(limits()) <= room
    assert limits()[0] >= int(13.5 * GB)
    assert limits()[1] < before[1]


def test_a_guest_that_does_not_fit_leaves_with_the_reason(bench: Callable[..., Bench]) -> None:
    b = bench(capacity_bytes=16.0 * GB)
    b.add(3, memory_bytes=9 * GB, persistent_bytes=2 * GB)
    guest = b.add(5, guest=True, memory_bytes=GB, persistent_bytes=GB)
    b.turns(100)
    assert b.coordinator.of((5, 1, 0)).leaves == ""
    guest.persistent_bytes = guest.memory_bytes = 9 * GB
    b.turns(20)
    said = b.coordinator.of((5, 1, 0))
    assert (said.action, said.leaves) == ("checkpoint", "its GPU memory does not fit next to j-3")
    guest.process = replace(guest.process, stopping=True)  # it saves what it has, and is not slowed down in that
    b.turns()
    assert (guest.told.share, guest.told.action) == (1.0, Action.RUN)
    # One that is known to need as much waits, and does not start only to leave.
    del b.jobs[5]
    b.turns(60)
    later = b.add(6, guest=True, silent=True, stuck=True)
    later.process = replace(later.process, persistent_bytes=9 * GB)
    b.turns(2)
    later.stuck = False
    b.turns(20)
    assert (b.coordinator.of((6, 1, 0)).action, b.coordinator.of((6, 1, 0)).leaves) == ("pause", "")


@pytest.mark.parametrize("guests", [1, 2])
def test_guests_free_memory_before_a_host_starts(bench: Callable[..., Bench], guests: int) -> None:
    b = bench(capacity_bytes=16.0 * GB)
    here = [b.add(job, guest=True, memory_bytes=4 * GB, persistent_bytes=GB) for job in range(guests)]
    for _ in range(150):
        b.turns()
        for guest in here:  # up to 3 GB make it faster, so it is given more
            guest.step_s = 0.1 * GB / min(guest.told.memory_limit_bytes or GB, 3 * GB)
    assert not b.coordinator.owed(0)
    assert sum(guest.told.memory_limit_bytes for guest in here) > 4 * GB
    host = b.add(9, silent=True, stuck=True)
    host.process = replace(host.process, alive=False)
    b.coordinator.assign([job.process for job in b.jobs.values()])
    assert b.coordinator.owed(0)  # nobody has told them yet
    for guest in here:
        guest.stuck = True  # in the middle of a step
    b.turns(5)
    assert b.coordinator.owed(0)
    assert [guest.told.share for guest in here] == [1 / guests] * guests  # the GPU is theirs until the host starts
    here[0].stuck = False
    b.turns(2)
    assert b.coordinator.owed(0) is (guests == 2)
    here[-1].stuck = False
    b.turns(2)
    assert not b.coordinator.owed(0)
    assert not b.coordinator.owed(1)
    host.process = replace(host.process, alive=True)
    b.turns(2)
    assert host.told.memory_limit_bytes > 10 * GB
    assert [guest.told.share for guest in here] == [0.0] * guests


def test_only_guests_that_run_and_whose_memory_counts_owe_any(bench: Callable[..., Bench]) -> None:
    b = bench(capacity_bytes=16.0 * GB)
    guest = b.add(1, guest=True)
    b.turns(10)
    guest.stuck = True
    b.add(2, silent=True, stuck=True)
    b.turns()
    assert b.coordinator.owed(0)
    guest.process = replace(guest.process, alive=False)
    b.turns()
    assert not b.coordinator.owed(0)
    unlimited = bench()
    unlimited.add(1, guest=True, stuck=True)
    unlimited.turns(10)
    unlimited.add(2, silent=True, stuck=True)
    unlimited.turns()
    assert not unlimited.coordinator.owed(0)


def test_memory_that_nobody_knows_is_not_limited(bench: Callable[..., Bench]) -> None:
    b = bench()
    host = b.add(0, stuck=True, memory_bytes=4 * GB)
    guest = b.add(1, guest=True, stuck=True, memory_bytes=50 * GB, persistent_bytes=40 * GB)
    b.turns(100)
    assert (host.told.memory_limit_bytes, guest.told.memory_limit_bytes) == (None, None)
    assert b.most(40, guest)[1] > 0


def test_a_host_whose_last_guest_has_left_is_free_again(bench: Callable[..., Bench]) -> None:
    b = bench(capacity_bytes=16.0 * GB)
    host = b.add(0, memory_bytes=4 * GB)
    b.add(1, guest=True, memory_bytes=GB)
    b.turns(50)
    limited = host.told
    assert limited.memory_limit_bytes is not None
    del b.jobs[1]
    b.turns(2)
    assert replace(host.told, limit_number=0) == Directive()
    assert host.told.limit_number > limited.limit_number
    assert json.loads((b.folder / "sharing.json").read_text())["gpus"] == {}


def test_a_guest_that_becomes_a_host_is_free_without_a_lease(bench: Callable[..., Bench]) -> None:
    b = bench(capacity_bytes=16.0 * GB)
    guest = b.add(1, guest=True, memory_bytes=GB)
    b.turns(30)
    assert guest.told.share == 1.0
    guest.process = replace(guest.process, guest=False)
    b.turns(2)
    assert (guest.told.share, guest.told.memory_limit_bytes, guest.told.action) == (1.0, None, Action.RUN)
    with guest.page as page:
        assert page.share_until == 0.0
    later = b.add(2, guest=True)
    b.turns(3)
    assert (guest.told.share, later.told.share) == (1.0, 0.0)


def test_the_next_agent_frees_who_has_nobody_beside_him_any_more(bench: Callable[..., Bench]) -> None:
    b = bench(capacity_bytes=16.0 * GB)
    one = b.add(1)
    with one.page as page:
        page.set_directive(Directive(0.3, 5 * GB, 7, Action.PAUSE))
        page.share_until = 5.0
    b.turns()
    assert one.told == Directive(limit_number=8)
    with one.page as page:
        assert page.share_until == 0.0


def test_a_gang_has_the_share_of_its_worst_gpu(bench: Callable[..., Bench]) -> None:
    b = bench()
    b.add(0)
    first, second = b.add(1, guest=True), b.add(1, guest=True, gpu=1, rank=1)
    b.turns(10)
    assert (first.told.share, second.told.share) == (0.0, 0.0)  # alone it would have all of its second GPU
    while not first.told.share:
        b.turns()
    assert 0 < first.told.share == second.told.share < 1


def test_a_gang_over_nodes_runs_beside_no_host_and_says_why(bench: Callable[..., Bench]) -> None:
    b = bench()
    gang = b.add(1, guest=True)
    gang.process = replace(gang.process, world=2)
    b.turns(5)
    assert (gang.told.share, b.coordinator.of(gang.process.key).leaves) == (1.0, "")
    b.add(0)
    b.turns(100)
    said = b.coordinator.of(gang.process.key)
    assert (gang.told.share, said.leaves) == (0.0, ""), "it has made no step, so it waits"
    assert said.law.startswith("its 2 processes are on several nodes")
    assert "beside j-0" in said.law
    with gang.page as page:
        page.first_step_monotonic = 1.0
    b.turns()
    assert (gang.told.share, b.coordinator.of(gang.process.key).leaves) == (1.0, said.law), "it ends its step, and goes"
    gang.process = replace(gang.process, stopping=True)
    b.turns()
    assert (gang.told.share, b.coordinator.of(gang.process.key).leaves) == (1.0, "")


def test_a_gang_that_cannot_pause_together_leaves_its_hosts_and_runs_beside_none_again(
    bench: Callable[..., Bench],
) -> None:
    b = bench()
    ranks = [b.add(1, guest=True, gpu=rank, rank=rank) for rank in range(2)]
    for rank in ranks:
        rank.process = replace(rank.process, world=2)
        with rank.page as page:
            page.first_step_monotonic = 1.0
    with ranks[1].page as page:
        page.gang_point = APART
    b.turns(5)
    assert [(r.told.share, b.coordinator.of(r.process.key).leaves) for r in ranks] == [(1.0, "")] * 2, "no host"
    b.add(0)
    b.turns(5)
    why = b.coordinator.of(ranks[0].process.key).law
    assert why.startswith("its 2 processes do not come to the same points of a step")
    assert "beside j-0" in why
    assert [(r.told.share, b.coordinator.of(r.process.key).leaves) for r in ranks] == [(1.0, why)] * 2
    for rank in ranks:
        rank.process = replace(rank.process, alive=False)
    b.turns()
    for rank in ranks:
        Page.create(rank.process.page).close()
        rank.process, rank.step = replace(rank.process, key=(1, 2, rank.process.key[2]), alive=True), -1
    b.turns(100)
    assert [(r.told.share, b.coordinator.of(r.process.key).leaves) for r in ranks] == [(0.0, "")] * 2, "it is known"
    assert b.coordinator.of(ranks[0].process.key).law == why


def test_two_guests_divide_what_is_left(bench: Callable[..., Bench]) -> None:
    b = bench()
    b.add(0)
    one, two = b.add(1, guest=True), b.add(2, guest=True)
    b.turns()
    while not one.told.share:
        b.turns()
    assert 0 < one.told.share == two.told.share <= 0.5
    assert b.coordinator.of((1, 1, 0)).beside == [0, 2]


def test_processes_of_a_job_on_one_gpu_count_together(bench: Callable[..., Bench]) -> None:
    b = bench(capacity_bytes=16.0 * GB)
    one, other = b.add(0, memory_bytes=2 * GB), b.add(0, rank=1, memory_bytes=2 * GB)
    guest = b.add(1, guest=True, memory_bytes=GB // 2)
    b.turns(100)
    limit = one.told.memory_limit_bytes
    assert limit is not None
    assert limit == other.told.memory_limit_bytes
    assert 2 * limit + (guest.told.memory_limit_bytes or 0) <= 16 * GB - MARGIN_BYTES - 2 * CONTEXT_BYTES
    assert 2 * limit >= 4 * GB
    assert b.most(40, guest)[1] > 0


def test_a_job_that_spoils_its_page_harms_nobody_else(bench: Callable[..., Bench]) -> None:
    b = bench(capacity_bytes=16.0 * GB)
    host, guest, other = b.add(0), b.add(1, guest=True), b.add(2, guest=True)
    b.turns(30)
    guest.process.page.write_bytes(b"nonsense")
    guest.live = lambda: None  # type: ignore[method-assign]
    b.turns(20)
    with host.page as page:
        page.limit_reached_bytes, page.refused_bytes = math.nan, math.inf
        page.floats[576 // 8 + 1] = -1.0
    b.turns(100)
    assert b.most(40, other)[1] > 0


@pytest.mark.parametrize("number", [-1, 1 << 53, (1 << 63) - 1])
def test_numbers_that_no_agent_gave_are_not_taken(bench: Callable[..., Bench], number: int) -> None:
    b = bench(capacity_bytes=16.0 * GB)
    b.add(0, memory_bytes=GB)
    guest, other = b.add(1, guest=True), b.add(2, guest=True)
    elsewhere, last = b.add(3, gpu=1, guest=True), b.add(4, gpu=2)
    b.turns(30)
    guest.stuck = last.stuck = True
    with guest.page as page, last.page as alone:
        page.limit_reached_number = page.limit_number = number
        alone.limit_number, alone.share_until = number, 5.0
        assert (page.reached(16 * GB), page.directive.limit_number) == (None, 0)
    b.coordinator = b.made()
    b.turns(100)
    assert (b.most(40, other)[1] > 0, elsewhere.told.share, last.told.share) == (True, 1.0, 1.0)
    assert not b.said


def test_a_gpu_on_which_nothing_can_be_decided_harms_no_other(
    bench: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    b = bench()
    b.add(0)
    guest, other = b.add(1, guest=True), b.add(2, guest=True, gpu=1)
    b.turns(2)
    sane = coordinating.decide

    def odd(state: State, now_s: float, stats: Any, device: Any) -> Any:
        if len(device.jobs) == 2:
            raise KeyError("no such job")
        return sane(state, now_s, stats, device)

    monkeypatch.setattr(coordinating, "decide", odd)
    since = b.at_s
    b.turns(5)
    assert [line for line in b.said if "no such job" in line] == b.said
    assert len(b.said) == 1
    with guest.page as held, other.page as free:  # without a lease it pauses; its host has the GPU
        assert (held.share, held.share_until) == (0.0, since + LEASE_S)
        assert (free.share, free.share_until) == (1.0, b.at_s + LEASE_S)
    assert (b.coordinator.of((1, 1, 0)), b.coordinator.of((2, 1, 0)).share) == (None, 1.0)
    monkeypatch.setattr(coordinating, "decide", sane)
    b.turns(100)
    assert guest.told.share > 0


def test_a_thread_that_failed_tries_again_without_news(tmp_path: Path) -> None:
    import time

    tries: list[float] = []
    coordinator = Coordinator(tmp_path / "sharing.json", 0.0, lambda *_, **__: None)
    inner = coordinator.run_once

    def run_once() -> None:
        tries.append(time.monotonic())
        if len(tries) < 3:
            raise OSError("too many open files")
        inner()

    coordinator.run_once = run_once  # type: ignore[method-assign]
    page = tmp_path / "page.bin"
    Page.create(page).close()
    coordinator.assign([GpuProcess((1, 1, 0), 0, guest=True, page=page)])
    coordinator.start()
    until = time.monotonic() + 20
    while len(tries) < 4 and time.monotonic() < until:
        time.sleep(0.02)
    coordinator.close()
    assert len(tries) >= 4
    with Page.open(page, mapped=False) as words:
        assert words.share_until > 0


def test_a_page_that_is_not_there_yet_is_looked_for_again(bench: Callable[..., Bench]) -> None:
    b = bench()
    b.add(0)
    guest = b.add(1, guest=True)
    guest.process.page.unlink()
    processes = [job.process for job in b.jobs.values()]
    b.coordinator.assign(processes)
    b.coordinator.run_once()
    hold_back_missing = pytest.raises(Exception, match="no page")
    with hold_back_missing:
        hold_back(guest.process.page)
    Page.create(guest.process.page).close()
    hold_back(guest.process.page)
    with guest.page as page:
        assert page.share == 0.0
        assert page.share_until > 0
    b.turns()
    with guest.page as page:
        assert page.share_until == b.at_s + LEASE_S


def test_a_page_of_a_second_try_to_start_is_opened_anew(bench: Callable[..., Bench]) -> None:
    b = bench()
    b.add(0)
    guest = b.add(1, guest=True)
    b.turns(3)
    guest.process = replace(guest.process, alive=False)
    b.turns()
    Page.create(guest.process.page).close()
    guest.process, guest.step = replace(guest.process, alive=True), -1
    b.turns(2)
    with guest.page as page:
        assert page.share_until == b.at_s + LEASE_S


def test_neighbours_are_named_to_guests_and_hosts_know_of_guests(tmp_path: Path) -> None:
    host, guest, alone, free = (
        GpuProcess((job, 1, 0), gpu, is_guest, tmp_path / f"{job}.bin")
        for job, gpu, is_guest in ((0, 0, False), (1, 0, True), (2, 1, True), (3, 2, False))
    )
    assert neighbours([guest, host, alone, free]) == {
        (0, 1, 0): Neighbours(guest=False),
        (1, 1, 0): Neighbours(guest=True, hosts=(host.page,), crowded=False),
        (2, 1, 0): Neighbours(guest=True, crowded=False),
    }
    found = neighbours([guest, host, replace(alone, gpu=0)])
    assert [found[job, 1, 0].crowded for job in (1, 2)] == [True, True]
    second = replace(guest, key=(1, 1, 1), gpu=2, page=tmp_path / "1-1.bin", world=2)
    of_both = Neighbours(True, (host.page, free.page), ranks=(guest.page, second.page), crowded=False)
    found = neighbours([second, guest, host, free])
    assert (found[guest.key], found[second.key]) == (of_both, of_both)
    assert neighbours([second, guest])[guest.key] == Neighbours(True, crowded=False), "without hosts none pauses"
    leaving = replace(host, key=(9, 1, 0), stopping=True)
    assert shared_gpus([guest, leaving, host])[0] == [host, leaving, guest]


def test_a_thread_takes_the_turns_and_sleeps_while_nothing_is_shared(tmp_path: Path) -> None:
    import time

    turns: list[float] = []
    coordinator = Coordinator(tmp_path / "sharing.json", 0.0, lambda *_, **__: None)
    inner = coordinator.run_once
    coordinator.run_once = lambda: (turns.append(time.monotonic()), inner())[1]  # type: ignore[method-assign]
    coordinator.start()
    time.sleep(3 * PERIOD_S)
    assert turns == []
    page = tmp_path / "page.bin"
    Page.create(page).close()
    coordinator.assign([GpuProcess((1, 1, 0), 0, guest=True, page=page)])
    until = time.monotonic() + 20
    while len(turns) < 4 and time.monotonic() < until:
        time.sleep(0.02)
    with Page.open(page, mapped=False) as words:
        assert words.share == 1.0
    coordinator.close()
    assert len(turns) >= 4


def test_use_of_slots_is_what_processes_mark_over_ten_seconds() -> None:
    window = GpuWindow(2)
    key, other = (0, 1, 0), (1, 1, 0)
    assert window.slots(0.5, [Busy(key, 0, 5.0, 0.0)]) == [GpuMean(None, None), GpuMean(0.0, 0)]
    here = [Busy(key, 0, 6.0, 2.0, 3.0), Busy(other, 0, 9.0, 2.0, 4.0)]
    assert window.slots(2.5, here)[0] == GpuMean(None, 7.0)  # of the other one nothing is known yet
    here = [Busy(key, 0, 7.0, 4.0), Busy(other, 0, 9.4, 3.0)]
    used = window.slots(4.5, here)[0]
    assert (used.utilisation, used.memory_bytes) == (pytest.approx(0.9), None)
    assert window.slots(30.0, [Busy(key, 0, None)])[0].utilisation is None
    assert window.slots(31.0, [])[0] == GpuMean(0.0, 0)


@pytest.mark.parametrize("share", [1.0, 0.4])
def test_steps_longer_than_the_window_are_not_idle_while_they_last(share: float) -> None:
    window, found = GpuWindow(1), []
    for now in range(200):
        end = float(now - now % 30)
        found.append(window.slots(now + 0.5, [Busy((0, 1, 0), 0, share * end + 1.0, end)])[0].utilisation)
    assert found[:30] == [None] * 30
    assert found[30:] == [pytest.approx(share)] * 170


def test_a_process_that_ends_no_step_any_more_is_less_and_less_busy() -> None:
    window = GpuWindow(1)
    found = [window.slots(now + 0.5, [Busy((0, 1, 0), 0, min(now, 20.0), min(now, 20.0))])[0] for now in range(1, 400)]
    assert found[10].utilisation == found[25].utilisation == pytest.approx(1.0)
    assert found[-1].utilisation == pytest.approx(0.03, abs=0.03)


def test_a_process_that_marks_no_gpu_work_is_not_measured(tmp_path: Path) -> None:
    from plait.live.agent.pages import PageReader
    from plait.runtime.page import Page

    Page.create(tmp_path / "page").close()
    reader = PageReader(tmp_path / "page")
    assert reader.gpu_busy_s is None
    with Page.open(tmp_path / "page") as page:
        page.steps, page.step_s, page.last_step_monotonic = 20, 0.1, 3.0
        assert (reader.gpu_busy_s, reader.last_step_s) == (None, 3.0)
        page.busy_s = [0.0, 0.0, 2.0, 0.0]
        assert reader.gpu_busy_s == 2.0
    reader.close()


def test_use_of_gpus_is_the_mean_of_what_the_driver_says() -> None:
    window = GpuWindow(1)
    for i in range(5):
        window.gpus(float(i), [GpuUsage(0.2, 1.0)])
    assert [(one.utilisation, one.memory_bytes) for one in window.gpus(5.0, [GpuUsage(0.8, 2.0)])] == [
        (pytest.approx(0.3), 2.0)
    ]
    for i in range(6, 40):
        found = window.gpus(float(i), [GpuUsage(1.0, 3.0)])
    assert [(one.utilisation, one.memory_bytes) for one in found] == [(pytest.approx(1.0), 3.0)]


def test_the_pace_of_a_guest_counts_the_time_in_which_it_waits(bench: Callable[..., Bench]) -> None:
    from plait.live.agent.pages import PageReader

    b = bench()
    host, guest = b.add(0), b.add(1, guest=True, step_s=0.5)
    for job in (host, guest):
        with job.page as page:
            page.step_s = 0.01
    b.turns(5)
    readers = [PageReader(job.process.page) for job in (host, guest)]
    assert [one.read().step_s for one in readers] == [0.01, 0.5]
    for one in readers:
        one.close()


# -- guests that do not come to the end of a step ----------------------------------------------------------------------


def why_it_leaves(b: Bench, job: int) -> str:
    said = b.coordinator.of((job, 1, 0))
    return said.leaves


@pytest.mark.parametrize("starts", [False, True])
def test_a_guest_that_does_not_free_what_a_guaranteed_job_needs_leaves(
    bench: Callable[..., Bench], starts: bool
) -> None:
    b = bench(capacity_bytes=16.0 * GB)
    guest = b.add(1, guest=True, memory_bytes=9 * GB, persistent_bytes=GB)
    b.turns(5)
    guest.stuck = guest.silent = True  # in a step that takes long
    host = b.add(0, memory_bytes=12 * GB, persistent_bytes=4 * GB, stuck=True)  # it had no limit to confirm yet
    if not starts:
        host.process, host.silent = replace(host.process, alive=False), True
    b.turns(20)
    b.at_s += OBEY_S - 5
    b.turns()
    assert why_it_leaves(b, 1) == ""
    assert guest.told.share == 1.0
    b.at_s += 5
    b.turns()
    assert why_it_leaves(b, 1).startswith(
        "it was to free GPU memory for j-0 and has not come to the end of a step for 3"
    )
    guest.process = replace(guest.process, stopping=True)  # it has been told
    b.turns()
    assert (why_it_leaves(b, 1), why_it_leaves(b, 0)) == ("", "")


def test_a_guest_that_frees_memory_or_has_not_started_stays(bench: Callable[..., Bench]) -> None:
    b = bench(capacity_bytes=16.0 * GB)
    b.add(1, guest=True, memory_bytes=2 * GB, persistent_bytes=GB)
    b.add(2, guest=True, stuck=True, silent=True)  # no program that plait can limit, or one that still imports
    b.turns(5)
    host = b.add(0, memory_bytes=8 * GB, persistent_bytes=4 * GB)
    host.process, host.silent, host.stuck = replace(host.process, alive=False), True, True
    b.turns(3)
    assert not b.coordinator.owed(0)
    host.process, host.silent, host.stuck = replace(host.process, alive=True), False, False
    b.turns(20)
    b.at_s += OBEY_S
    b.turns(20)
    assert (host.told.memory_limit_bytes or 0) >= 8 * GB
    assert (why_it_leaves(b, 1), why_it_leaves(b, 2)) == ("", "")
