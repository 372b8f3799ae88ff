"""When a guest may use the GPU: share, lease, hosts, stop; in time that is played."""

import fcntl
import itertools
import math
import os
import random

import pytest

from plait.core.resources import Resource
from plait.runtime import guest_gate
from plait.runtime.gates import GroupMember, make_group, open_gate
from plait.runtime.guest_gate import GuestGate, Neighbours
from plait.runtime.page import JobState, Page
from plait.sharing.quanta import FIRST_S

GPU = Resource.GPU


class Played:
    """A clock that sleeping moves, and that calls what was planned for a time."""

    def __init__(self) -> None:
        self.now_s, self.plans, self.sleeps = 100.0, [], 0

    def clock(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.sleeps += 1
        self.pass_by(seconds)

    def pass_by(self, seconds: float) -> None:
        end_s = self.now_s + seconds
        while self.plans and self.plans[0][0] <= end_s:
            self.now_s, plan = self.plans.pop(0)
            plan()
        self.now_s = end_s

    def at(self, seconds: float, plan) -> None:
        self.plans.append((100.0 + seconds, plan))
        self.plans.sort(key=lambda planned: planned[0])


@pytest.fixture
def time():
    return Played()


@pytest.fixture
def page(tmp_path):
    with Page.create(tmp_path / "guest.bin", mapped=True) as made:
        made.share_until = 1e9
        yield made


@pytest.fixture
def host(tmp_path):
    (tmp_path / "host").mkdir()
    with Page.create(tmp_path / "host" / "page.bin", mapped=True) as made:
        yield made


@pytest.fixture
def gate(page, time):
    def make(*hosts, inner=None, wants_stop=lambda: False, **options):
        neighbours = Neighbours(True, tuple(host.path for host in hosts), **options)
        return GuestGate(
            page, neighbours, inner, wants_stop=wants_stop, clock=time.clock, sleep=time.sleep, chance=lambda: 0.5
        )  # pauses do not vary

    return make


def quanta(gate, time, count, seconds, between=0.0):
    """A stage of so many quanta; when each began, after the beginning of time."""
    began = []
    gate.enter(GPU)
    for i in range(count):
        if i:
            gate.yield_point()
        began.append(time.now_s - 100.0)
        time.pass_by(seconds)
    gate.leave(GPU)
    time.pass_by(between)
    return began


def test_with_all_of_the_gpu_nothing_waits(gate, time):
    assert quanta(gate(), time, 3, 0.004) == pytest.approx([0.0, 0.004, 0.008])
    assert time.sleeps == 0


def test_a_share_makes_a_pause_after_each_quantum(gate, time, page, host):
    page.share, host.gpu_left_monotonic = 0.25, 1.0
    guest = gate(host)
    assert quanta(guest, time, 3, 0.004) == pytest.approx([0.0, 0.016, 0.032])
    assert (guest.quanta, guest.longest_s) == (3, pytest.approx(0.004))
    assert guest.waited_s == pytest.approx(0.024)


def test_what_the_guest_does_elsewhere_counts_as_its_pause(gate, time, page):
    page.share = 0.5
    guest = gate()
    quanta(guest, time, 1, 0.010, between=0.006)
    assert quanta(guest, time, 1, 0.010) == pytest.approx([0.020])
    time.pass_by(1.0)
    before_s = time.now_s
    quanta(guest, time, 1, 0.010)
    assert time.now_s - before_s == pytest.approx(0.010)


def test_a_new_share_counts_at_once(gate, time, page):
    page.share = 0.01
    time.at(0.500, lambda: setattr(page, "share", 1.0))
    began = quanta(gate(), time, 2, 0.010)  # would wait a second
    assert 0.500 <= began[1] <= 0.500 + guest_gate.LOOK_S


@pytest.mark.parametrize("share", [0.0, -1.0, math.nan])
def test_share_zero_waits_until_there_is_one(gate, time, page, share):
    page.share = share
    time.at(2.0, lambda: setattr(page, "share", 1.0))
    (began,) = quanta(gate(), time, 1, 0.010)
    assert 2.0 <= began <= 2.0 + guest_gate.LOOK_S


def test_a_guest_whose_agent_is_gone_pauses_and_goes_on_when_the_lease_is_renewed(gate, time, page):
    page.share_until = 100.030
    time.at(5.0, lambda: setattr(page, "share_until", 200.0))
    began = quanta(gate(), time, 5, 0.010)
    assert began[:3] == pytest.approx([0.0, 0.010, 0.020])
    assert 5.0 <= began[3] <= 5.0 + guest_gate.LOOK_S


@pytest.mark.parametrize("until_s", [0.0, math.nan])
def test_without_a_lease_nothing_begins(gate, time, page, until_s):
    page.share_until = until_s
    time.at(1.0, lambda: setattr(page, "share_until", 200.0))
    assert quanta(gate(), time, 1, 0.010)[0] >= 1.0


def test_who_is_asked_to_stop_waits_no_longer(gate, time, page):
    page.share = 0.0
    asked = []
    time.at(0.7, lambda: asked.append(True))
    (began,) = quanta(gate(wants_stop=lambda: bool(asked)), time, 1, 0.010)
    assert 0.7 <= began <= 0.7 + guest_gate.LOOK_S


def test_gpu_work_begins_only_while_hosts_are_outside_their_gpu_stage(gate, time, host):
    for begin, end in ((0.005, 0.105), (0.205, 0.305)):
        time.at(begin, lambda: setattr(host, "in_stage", GPU + 1))
        time.at(end, lambda: setattr(host, "in_stage", Resource.NETWORK + 1))
    began = quanta(gate(host), time, 30, 0.010)
    inside = [b for b in began if 0.005 < b < 0.105 or 0.205 < b < 0.305]
    assert inside == []
    assert any(0.105 <= b <= 0.105 + 2 * guest_gate.GATE_LOOK_S for b in began)


def test_without_the_gate_only_the_share_counts(gate, time, host):
    host.in_stage = GPU + 1
    assert quanta(gate(host, gate=False), time, 2, 0.004) == pytest.approx([0.0, 0.004])


def test_a_host_that_marks_no_stages_or_is_not_there_closes_nothing(gate, time, host, page, tmp_path):
    nowhere = Neighbours(True, (tmp_path / "nowhere.bin", host.path))
    guest = GuestGate(page, nowhere, clock=time.clock, sleep=time.sleep)
    assert quanta(guest, time, 2, 0.004) == pytest.approx([0.0, 0.004])
    guest.close()
    guest.close()


@pytest.mark.parametrize("how", ["killed", "finished"])
def test_a_host_that_ended_in_its_stage_closes_nothing_for_long(gate, time, host, how):
    host.in_stage = GPU + 1
    lock = os.open(host.path.parent / "speaker.lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(lock, fcntl.LOCK_EX)
    if how == "killed":
        time.at(0.5, lambda: os.close(lock))
    else:
        time.at(0.5, lambda: setattr(host, "state", JobState.FINISHED))
    (began,) = quanta(gate(host), time, 1, 0.010)
    assert 0.5 <= began <= 0.5 + guest_gate.ALIVE_EVERY_S + 0.01
    if how == "finished":
        os.close(lock)


def test_a_host_that_waits_for_memory_closes_nothing(gate, time, host):
    """The guest has to come to its boundary to give that memory back."""
    host.in_stage, host.refused_bytes = GPU + 1, 4e9
    assert quanta(gate(host), time, 2, 0.010) == pytest.approx([0.0, 0.010])
    time.at(1.0, lambda: setattr(host, "in_stage", 0))
    host.refused_bytes = 0.0
    assert quanta(gate(host), time, 1, 0.010)[0] >= 1.0


def test_a_host_that_lives_closes_as_long_as_it_likes(gate, time, host):
    host.in_stage = GPU + 1
    with open(host.path.parent / "speaker.lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        time.at(60.0, lambda: setattr(host, "in_stage", 0))
        assert quanta(gate(host), time, 1, 0.010)[0] >= 60.0


def test_waiting_is_no_sign_of_hanging(gate, time, page):
    page.share, page.stage_since = 0.0, 7.0
    seen = []
    time.at(0.5, lambda: seen.append(page.stage_since))
    time.at(1.0, lambda: setattr(page, "share", 1.0))
    quanta(gate(), time, 1, 0.010)
    assert seen == [0.0]


def test_yield_points_close_together_are_passed_over(gate, time):
    guest = gate()
    calls = []
    guest.enter(GPU)
    for _ in range(10_000):
        time.pass_by(20e-6)  # an operation
        guest.yield_point(lambda: calls.append(time.now_s))
    guest.leave(GPU)
    assert 10_000 / 64 <= len(calls) < 10_000 / 40  # about every millisecond
    assert guest.longest_s < 0.002


def test_the_first_quantum_may_compile_a_model(gate, time, page):
    page.share = 0.5
    began = quanta(gate(), time, 1, 60.0)
    assert began == [0.0]
    guest = gate()
    quanta(guest, time, 1, 60.0)
    (after,) = quanta(guest, time, 1, 0.010)
    assert after + 100.0 <= time.now_s - 0.010
    assert guest.waited_s == pytest.approx(FIRST_S)


def test_the_wait_of_a_quantum_is_before_the_next_not_after_the_last(gate, time, page):
    """`before` finishes what was launched; others have gone first only after it."""
    page.share = 0.5
    order = []
    guest = gate()
    guest.enter(GPU)
    time.pass_by(0.010)
    guest.yield_point(lambda: (order.append(time.now_s - 100.0), time.pass_by(0.002)))
    assert order == pytest.approx([0.010])
    assert time.now_s - 100.0 == pytest.approx(0.024)  # the quantum took 12 ms


def test_outside_a_gpu_stage_a_yield_point_is_that_of_the_group(gate, time, page):
    page.share = 0.0
    guest = gate()
    guest.yield_point(lambda: pytest.fail("nothing to give way with"))
    guest.enter(Resource.CPU)
    guest.leave(Resource.CPU)
    assert time.sleeps == 0


def test_without_marked_stages_a_quantum_lasts_from_wait_to_wait(gate, time, page):
    page.share = 0.5
    guest = gate()
    guest.begin()
    time.pass_by(0.010)
    guest.yield_point()
    assert time.now_s - 100.0 == pytest.approx(0.020)
    time.pass_by(0.004)
    guest.end()
    guest.begin()
    assert time.now_s - 100.0 == pytest.approx(0.028)
    assert not guest.marked


def test_a_guest_that_waits_leaves_the_gate_of_its_own_group_to_others(gate, time, page, tmp_path):
    group = make_group(tmp_path / "g", "tokens", [GroupMember(1, 0), GroupMember(2, 1)], version=1)
    inner, other = (open_gate({"group": group.control(job)}) for job in (1, 2))
    guest = gate(inner=inner)
    assert (guest.kind, guest.version, guest.quantum_s) == ("guest", 1, inner.quantum_s)
    page.share = 0.5
    came = []

    def visit():
        other.enter(GPU, 1.0)
        came.append(time.now_s - 100.0)
        other.leave(GPU)

    time.at(0.015, visit)
    guest.enter(GPU)
    time.pass_by(0.010)
    guest.yield_point()
    assert came == pytest.approx([0.015])
    assert guest.stats.stages[GPU] >= 1
    guest.leave(GPU)
    guest.close()
    other.close()


def test_a_promotion_ends_the_wait_and_new_hosts_are_followed(page, time, host):
    page.share, now = 0.0, [Neighbours(guest=False)]
    guest = GuestGate(page, Neighbours(True), look=lambda: now[0], clock=time.clock, sleep=time.sleep)
    time.at(1.0, lambda: setattr(page, "control_version", 2))
    assert 1.0 <= quanta(guest, time, 1, 0.010)[0] <= 1.0 + guest_gate.LOOK_S
    page.share, now[0], page.control_version, host.in_stage = 1.0, Neighbours(True, (host.path,)), 3, GPU + 1
    time.at(2.0, lambda: setattr(host, "in_stage", 0))
    assert 2.0 <= quanta(guest, time, 1, 0.010)[0] <= 2.0 + guest_gate.LOOK_S


def test_time_behind_the_kernels_of_others_is_no_work_of_the_guest(gate, time, page):
    """Places of a step are told apart: a long quantum is as long as it is, one that waited is not."""
    page.share = 0.5
    guest = gate()
    for step in range(20):
        guest.enter(GPU)
        for place, seconds in enumerate((0.040, 0.004, 0.004)):
            if place:
                guest.yield_point()
            behind = 0.100 if (step + place) % 2 else 0.0
            time.pass_by(seconds + behind)
        guest.leave(GPU)
        if step == 10:
            before_s, guest.longest_s = guest.waited_s, 0.0
    assert guest.waited_s - before_s < 1.6 * 9 * 0.048
    assert 0.040 <= guest.longest_s <= 0.065


def test_each_look_at_the_share_is_noted_also_while_the_guest_waits(gate, time, page):
    guest = gate()
    assert page.paced_monotonic == 0.0
    quanta(guest, time, 2, 0.010)
    assert page.paced_monotonic == pytest.approx(100.010)
    page.share = 0.0
    seen = []
    for at_s in (1.0, 2.0):
        time.at(at_s, lambda: seen.append(time.now_s - page.paced_monotonic))
    time.at(3.0, lambda: setattr(page, "share", 1.0))
    quanta(guest, time, 1, 0.010)
    assert len(seen) == 2
    assert all(0.0 <= late_s <= guest_gate.LOOK_S + 1e-9 for late_s in seen)


def test_pauses_vary_by_half_so_that_they_do_not_fall_into_step_with_a_host(page, time):
    page.share = 0.25
    numbers = iter([0.0, 1.0, 0.25, 0.5])
    guest = GuestGate(page, Neighbours(True), clock=time.clock, sleep=time.sleep, chance=lambda: next(numbers))
    began = quanta(guest, time, 4, 0.004)
    pauses = [later - earlier - 0.004 for earlier, later in itertools.pairwise(began)]
    assert pauses == pytest.approx([0.006, 0.018, 0.009])


def test_a_guest_acknowledges_a_share_only_between_two_quanta(gate, time, page):
    guest = gate()
    guest.enter(GPU)
    page.share_number = 7
    time.pass_by(0.004)
    assert page.share_reached == 0
    guest.yield_point()
    assert page.share_reached == 7
    page.share, page.share_number = 0.0, 8
    seen = []
    time.at(0.050, lambda: seen.append(page.share_reached))
    time.at(0.100, lambda: setattr(page, "share", 1.0))
    guest.yield_point()
    assert seen == [8], "also while it waits"


def test_a_gate_opens_once_a_host_has_been_outside_for_a_millisecond(gate, time, page, host):
    host.in_stage = GPU + 1
    time.at(0.0100, lambda: (setattr(host, "in_stage", 0), setattr(host, "gpu_left_monotonic", 100.0100)))
    time.at(0.0105, lambda: setattr(host, "in_stage", GPU + 1))  # a gap of half a millisecond is none
    time.at(0.0200, lambda: (setattr(host, "in_stage", 0), setattr(host, "gpu_left_monotonic", 100.0200)))
    (began,) = quanta(gate(host), time, 1, 0.004)
    assert 0.0210 <= began <= 0.0210 + 2 * guest_gate.GATE_LOOK_S


@pytest.mark.parametrize(("own_gate", "counts_s"), [(0, 0.030), (1, 0.004)])
def test_a_long_quantum_that_meets_a_host_counts_until_the_host_came(gate, time, page, host, own_gate, counts_s):
    host.gpu_left_monotonic, host.gate = 1.0, own_gate
    guest = gate(host, gate=False)
    for _ in range(20):
        quanta(guest, time, 1, 0.004, between=0.010)
    guest.longest_s = 0.0
    came_s = time.now_s + 0.030
    time.at(came_s - 100.0, lambda: (setattr(host, "stage_since", came_s), setattr(host, "in_stage", GPU + 1)))
    quanta(guest, time, 1, 0.200)
    assert guest.longest_s == pytest.approx(counts_s)


def test_a_long_quantum_is_reported_whole_where_no_host_was_met(gate, time, page, host):
    host.gpu_left_monotonic = 1.0
    guest = gate(host)
    for seconds in (0.004, 0.004, 0.030):
        quanta(guest, time, 1, seconds)
    assert guest.longest_s == page.longest_quantum_s == pytest.approx(0.030)
    guest.longest_s = 0.0
    guest.enter(GPU)
    time.pass_by(0.030)
    host.in_stage = GPU + 1  # it waits behind the host's kernel, for all that the guest can know
    guest.leave(GPU)
    assert guest.longest_s < 0.010


class Fifo:
    """A device that serves kernels in the order of their launch, and a host of a 100 ms kernel, then 100 ms of its own.

    Events of the host happen while the time of a guest's kernel is passed.
    """

    def __init__(self, time, *pages, marks=True, period_s=0.2, gpu_s=0.1):
        self.time, self.pages, self.marks, self.host_s = time, pages, marks, period_s - gpu_s
        self.gpu_s, self.free_s = gpu_s, time.now_s
        self.enter(time.now_s)

    def enter(self, at_s):
        self.end_s = self.free_s = max(self.free_s, at_s) + self.gpu_s
        if self.marks:
            for page in self.pages:
                page.in_stage = GPU + 1
        self.time.at(self.end_s - 100.0, self.leave)

    def leave(self):
        if self.marks:
            for page in self.pages:
                page.in_stage, page.gpu_left_monotonic = 0, self.end_s
        at_s = self.end_s + self.host_s
        self.time.at(at_s - 100.0, lambda: self.enter(at_s))

    def kernel(self, seconds):
        self.free_s = end_s = max(self.free_s, self.time.now_s) + seconds
        self.time.pass_by(end_s - self.time.now_s)


@pytest.mark.parametrize("marks", [True, False])
def test_a_quantum_without_the_gate_is_not_its_wait_behind_the_kernel_of_a_host(page, time, host, marks):
    """Of a guest of many places, each of which waits sooner or later."""
    device = Fifo(time, host, marks=marks)
    numbers = random.Random(7)
    guest = GuestGate(
        page, Neighbours(True, (host.path,), gate=False), clock=time.clock, sleep=time.sleep, chance=numbers.random
    )
    page.share, longest_s, spent_s = 0.3, 0.0, []
    for _ in range(40):
        before_s = time.now_s
        guest.enter(GPU)
        for place in range(10):
            if place:
                guest.yield_point()
            device.kernel(0.004)
        guest.leave(GPU)
        longest_s, guest.longest_s = max(longest_s, guest.longest_s), 0.0
        spent_s.append(time.now_s - before_s)
    assert longest_s == pytest.approx(0.004, abs=0.0005)
    assert sum(spent_s[10:]) / 30 < 2.0 * 0.04 / 0.3 + 0.5


def test_behind_several_hosts_the_last_stage_that_ended_counts(gate, time, page, host, tmp_path):
    (tmp_path / "other").mkdir()
    other = Page.create(tmp_path / "other" / "page.bin")
    guest = gate(host, other, gate=False)
    for one, left_s in ((host, 0.040), (other, 0.090)):
        one.in_stage = GPU + 1
        time.at(left_s, lambda one=one: (setattr(one, "in_stage", 0), setattr(one, "gpu_left_monotonic", time.now_s)))
    quanta(guest, time, 1, 0.096)
    assert guest.longest_s == pytest.approx(0.006, abs=0.001)
    other.close()


def test_what_goes_on_beside_a_host_in_its_stage_says_too_little(gate, time, page, host):
    """Where time is sliced, or a host launches again before it leaves, less than all of a quantum may be its own."""
    guest = gate(host, gate=False)
    host.in_stage, host.gpu_left_monotonic = GPU + 1, 1.0
    quanta(guest, time, 4, 0.050)
    assert guest.longest_s == 0.0
    quanta(guest, time, 13, 0.004)
    assert guest.longest_s == pytest.approx(0.004)
