"""The ranks of a guest's gang pause at the same points: none waits at its gate while another is in a collective."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from plait.core.resources import Resource
from plait.runtime.guest_gate import SILENT_S, GuestGate, Neighbours
from plait.runtime.page import Page

GPU = Resource.GPU
POINTS = 5


class Rank:
    """Trains in a thread: each quantum launches a collective, in which it stays until the others have launched it."""

    def __init__(self, pages: list[Page], number: int, host: Path, barrier: threading.Barrier, together: bool) -> None:
        self.launched = self.inside = self.waits = 0
        self.others: list[Rank] = []
        self.found: list[str] = []
        self.before: set[tuple[int, int, int]] = set()  # what was so when this rank looked last
        self.page, self.barrier, self.number = pages[number], barrier, number
        ranks = tuple(page.path for page in pages) if together else ()
        self.gate = GuestGate(self.page, Neighbours(True, (host,), ranks=ranks), sleep=self.sleep)

    def sleep(self, seconds: float) -> None:
        """Wait at the gate. Another rank may have just begun; at the second look this one would have, too."""
        self.waits += 1
        ahead = {(self.launched, one.number, one.inside) for one in self.others if one.inside > self.launched}
        self.found += [
            f"rank {self.number} at {at} keeps {other} in {inside}" for at, other, inside in ahead & self.before
        ]
        self.before = ahead
        time.sleep(seconds)

    def train(self, steps: int, quantum_s: float) -> None:
        for step in range(steps):
            self.page.steps = float(step)
            self.gate.enter(GPU)
            for point in range(POINTS):
                if point:
                    self.gate.yield_point(lambda: None)
                self.launched += 1
                self.inside = self.launched
                self.barrier.wait(30.0)
                self.inside = 0
                time.sleep(quantum_s * (1 + self.number + step % 3))
            self.gate.leave(GPU)


def trained(tmp_path: Path, ranks: int, *, together: bool, quantum_s: float) -> list[Rank]:
    """The ranks of a gang after some steps beside a host that enters its stage now and then."""
    pages = [Page.create(tmp_path / f"{number}.bin", mapped=True) for number in range(ranks)]
    host = Page.create(tmp_path / "host.bin", mapped=True)
    for page in pages:
        page.share, page.share_until, page.share_number = 0.5, 1e18, 1
    barrier = threading.Barrier(ranks)
    made = [Rank(pages, number, host.path, barrier, together) for number in range(ranks)]
    for rank in made:
        rank.others = [one for one in made if one is not rank]
    threads = [threading.Thread(target=rank.train, args=(12, quantum_s), daemon=True) for rank in made]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        host.in_stage = GPU + 1
        time.sleep(0.004)
        host.in_stage = 0
        time.sleep(0.006)
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
    made = trained(tmp_path, ranks, together=True, quantum_s=quantum_s)
    assert [rank.launched for rank in made] == [12 * POINTS] * ranks
    assert [rank.found for rank in made] == [[]] * ranks
    assert all(rank.waits for rank in made)
    assert all(rank.page.path and rank.gate.waited_s > 0.0 for rank in made)


def test_ranks_that_pace_themselves_spin_for_one_another(tmp_path: Path) -> None:
    """What the test above would find."""
    assert any(rank.found for rank in trained(tmp_path, 2, together=False, quantum_s=0.0015))


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
        other.gang_point = (4 << 20 | 1) * (1 if first else 2)
        gate.enter(GPU)
        assert later.now_s < 101.0 + SILENT_S, "from the next step on they are together again"
        gate.close()
