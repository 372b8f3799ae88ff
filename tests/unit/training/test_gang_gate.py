"""The ranks of a guest's gang pause at the same points: none waits at its gate while another is in a collective."""

import contextlib
import math
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from plait.core.resources import Resource
from plait.runtime import guest_gate
from plait.runtime.guest_gate import APART, SILENT_S, GuestGate, Neighbours
from plait.runtime.page import Page

GPU = Resource.GPU
POINTS = 5


class Rank:
    """Trains in a thread: each quantum launches a collective, in which it stays until the others have launched it."""

    def __init__(self, pages: list[Page], number: int, neighbours: Neighbours, barrier: threading.Barrier) -> None:
        self.launched = self.inside = self.waits = 0
        self.others: list[Rank] = []
        self.found: list[str] = []
        self.before: set[tuple[int, int, int]] = set()  # what was so when this rank looked last
        self.page, self.barrier, self.number = pages[number], barrier, number
        self.neighbours, self.stopped = neighbours, False  # as in control.json, and a request to stop
        self.gate = GuestGate(
            self.page,
            neighbours,
            look=lambda: self.neighbours,
            sleep=self.sleep,
            wants_stop=lambda: self.stopped,
        )

    def sleep(self, seconds: float) -> None:
        """Wait at the gate. Another rank may have just begun; at the second look this one would have, too."""
        self.waits += 1
        ahead = {(self.launched, one.number, one.inside) for one in self.others if one.inside > self.launched}
        self.found += [
            f"rank {self.number} at {at} keeps {other} in {inside}" for at, other, inside in ahead & self.before
        ]
        self.before = ahead
        time.sleep(seconds)

    def train(self, steps: int, quantum_s: float, more_points: int = 0) -> None:
        """Each step has the same collectives, `more_points` come before the last of them."""
        for step in range(steps):
            self.page.steps = float(step)
            self.gate.enter(GPU)
            for point in range(POINTS):
                for _ in range(1 + (more_points if point == POINTS - 1 else 0) if point else 0):
                    self.gate.yield_point(lambda: None)
                self.launched += 1
                self.inside = self.launched
                self.barrier.wait(30.0)
                self.inside = 0
                time.sleep(quantum_s * (1 + self.number + step % 3))
            self.gate.leave(GPU)


def trained(
    tmp_path: Path,
    ranks: int,
    *,
    together: bool = True,
    quantum_s: float = 0.0015,
    host_comes_to: Sequence[int] = (),
    more_points: int = 0,
) -> list[Rank]:
    """The ranks of a gang after some steps beside a host that enters its stage now and then.

    `host_comes_to`: they begin without a host; these ranks learn of it in this order, and that it has left likewise.
    `more_points`: how many more than the others the last rank has in a step.
    """
    pages = [Page.create(tmp_path / f"{number}.bin", mapped=True) for number in range(ranks)]
    host = Page.create(tmp_path / "host.bin", mapped=True)
    for page in pages:
        page.share, page.share_until, page.share_number = 0.5, 1e18, 1
    barrier = threading.Barrier(ranks)
    beside = Neighbours(True, (host.path,), ranks=tuple(page.path for page in pages) if together else ())
    begins = Neighbours(True) if host_comes_to else beside
    made = [Rank(pages, number, begins, barrier) for number in range(ranks)]
    for rank in made:
        rank.others = [one for one in made if one is not rank]
    threads = [
        threading.Thread(target=rank.train, args=(12, quantum_s, more_points * (rank is made[-1])), daemon=True)
        for rank in made
    ]
    for thread in threads:
        thread.start()
    told = iter([(number, to) for to in (beside, begins) for number in host_comes_to])
    turns = 0
    while any(thread.is_alive() for thread in threads):
        host.in_stage = GPU + 1
        time.sleep(0.004)
        host.in_stage = 0
        time.sleep(0.006)
        turns += 1
        if turns % 2 == 0 and (news := next(told, None)) is not None:
            number, neighbours = news
            made[number].neighbours = neighbours
            pages[number].control_version += 1
        if turns > 2000:  # they keep one another waiting
            barrier.abort()
            for rank in made:
                rank.stopped = True
    for rank in made:
        rank.gate.close()
    for page in (*pages, host):
        page.close()
    return made


@pytest.mark.parametrize("quantum_s", [0.0002, 0.0015], ids=["points that are passed over", "each point a quantum"])
@pytest.mark.parametrize("ranks", [2, 4])
def test_no_rank_waits_at_its_gate_while_another_is_in_a_collective(
    tmp_path: Path, ranks: int, quantum_s: float
) -> None:
    made = trained(tmp_path, ranks, quantum_s=quantum_s)
    assert [rank.launched for rank in made] == [12 * POINTS] * ranks
    assert [rank.found for rank in made] == [[]] * ranks
    assert all(rank.waits for rank in made)
    assert all(rank.gate.waited_s > 0.0 for rank in made)


def test_ranks_that_pace_themselves_spin_for_one_another(tmp_path: Path) -> None:
    """What the test above would find."""
    assert any(rank.found for rank in trained(tmp_path, 2, together=False))


@pytest.mark.parametrize("quantum_s", [0.0002, 0.0015], ids=["points that are passed over", "each point a quantum"])
@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2)], ids=str)
def test_a_host_that_comes_to_a_running_gang_and_leaves_keeps_no_rank_waiting_for_another(
    tmp_path: Path, order: Sequence[int], quantum_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guest_gate, "SILENT_S", math.inf)
    made = trained(tmp_path, 3, host_comes_to=order, quantum_s=quantum_s)
    assert [rank.launched for rank in made] == [12 * POINTS] * 3


def test_ranks_with_different_points_are_kept_waiting_in_two_steps_and_report_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guest_gate, "SILENT_S", 0.1)
    made = trained(tmp_path, 3, more_points=1)
    assert [rank.launched for rank in made] == [12 * POINTS] * 3
    with contextlib.ExitStack() as stack:
        pages = [stack.enter_context(Page.open(rank.page.path)) for rank in made]
        assert [page.gang_point for page in pages] == [APART] * 3


class Later:
    """A clock that sleeping moves."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


@pytest.mark.parametrize("first", [True, False])
def test_a_rank_does_not_wait_for_ever_for_one_that_does_something_else(tmp_path: Path, first: bool) -> None:
    later = Later()
    with Page.create(tmp_path / "a.bin", mapped=True) as page, Page.create(tmp_path / "b.bin", mapped=True) as other:
        page.share, page.share_until, page.steps = 1.0, 1e9, 3.0
        ranks = (page.path, other.path) if first else (other.path, page.path)
        gate = GuestGate(page, Neighbours(True, (), ranks=ranks), clock=later, sleep=later.sleep)
        gate.enter(GPU)
        assert later.now_s == pytest.approx(100.0 + SILENT_S, abs=0.01)
        for _ in range(3):
            later.now_s += 0.01
            gate.yield_point(lambda: None)
        assert later.now_s < 101.0 + SILENT_S, "it is known not to move"
        gate.leave(GPU)
        page.steps = 4.0
        other.gang_point = 2 * (4 << 20 | 1) - first
        gate.enter(GPU)
        assert later.now_s < 101.0 + SILENT_S, "from the next step on they are together again"
        gate.close()


@pytest.mark.parametrize(("silences", "steps"), [(2, 1), (12, 10)], ids=["in each step", "in every tenth step"])
@pytest.mark.parametrize("first", [True, False])
def test_a_gang_that_is_kept_waiting_in_step_after_step_stops_pausing_together(
    tmp_path: Path, first: bool, silences: int, steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guest_gate, "SILENT_S", 0.1)
    later = Later()
    with Page.create(tmp_path / "a.bin", mapped=True) as page, Page.create(tmp_path / "b.bin", mapped=True) as other:
        page.share, page.share_until = 1.0, 1e9
        ranks = (page.path, other.path) if first else (other.path, page.path)
        gate = GuestGate(page, Neighbours(True, (), ranks=ranks), clock=later, sleep=later.sleep)
        for step in range(0, 12 * steps, steps):
            page.steps = float(step)
            gate.enter(GPU)
            gate.leave(GPU)
        assert later.now_s == pytest.approx(100.0 + 0.1 * silences, abs=0.01)
        assert (page.gang_point == APART) == (steps == 1)
        gate.close()
        second = GuestGate(page, Neighbours(True, (), ranks=ranks), clock=later, sleep=later.sleep)
        page.steps = 1000.0
        begin_s = later.now_s
        second.enter(GPU)
        assert (later.now_s == begin_s) == (steps == 1), "a gate that replaces it continues from the page"
        second.close()


@pytest.mark.parametrize("first", [True, False])
def test_a_rank_that_another_may_wait_for_in_a_collective_ends_its_step_without_a_share(
    tmp_path: Path, first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guest_gate, "SILENT_S", 0.1)
    later = Later()
    with Page.create(tmp_path / "a.bin", mapped=True) as page, Page.create(tmp_path / "b.bin", mapped=True) as other:
        page.share, page.share_until, page.steps = 0.0, 1e9, 3.0

        def sleep(seconds: float) -> None:
            later.sleep(seconds)
            if later.now_s > 101.0:
                page.share = 1.0  # long after

        ranks = (page.path, other.path) if first else (other.path, page.path)
        gate = GuestGate(page, Neighbours(True, (), ranks=ranks), clock=later, sleep=sleep)
        gate.enter(GPU)
        for _ in range(3):
            later.now_s += 0.01
            gate.yield_point(lambda: None)
        gate.leave(GPU)
        assert later.now_s == pytest.approx(100.13, abs=0.001)
        if first:
            page.steps, other.gang_point = 4.0, 2 * (4 << 20 | 1) - 1
            gate.enter(GPU)
            assert later.now_s > 101.0, "in the next step it pauses again"
        gate.close()


@pytest.mark.parametrize("first", [True, False])
def test_a_rank_whose_page_is_not_there_yet_is_waited_for(tmp_path: Path, first: bool) -> None:
    later = Later()
    path, looks = tmp_path / "b.bin", 0

    def sleep(seconds: float) -> None:
        nonlocal looks
        looks += 1
        later.sleep(seconds)
        if looks == 100:
            with Page.create(path) as other:
                other.gang_point = 2 * (3 << 20 | 1) - first

    with Page.create(tmp_path / "a.bin", mapped=True) as page:
        page.share, page.share_until, page.steps = 1.0, 1e9, 3.0
        ranks = (page.path, path) if first else (path, page.path)
        gate = GuestGate(page, Neighbours(True, (), ranks=ranks), clock=later, sleep=sleep)
        gate.enter(GPU)
        assert looks == 100
        gate.close()
