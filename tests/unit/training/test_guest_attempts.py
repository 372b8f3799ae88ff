"""Real training processes as guests and hosts, their agent played: paced, held, promoted, moved, left alone."""

import json
import signal
import time
from pathlib import Path

import pytest
from attempts import PREEMPTED, Attempt, Forker, same_weights, steps_saved

from plait.core.resources import Resource
from plait.runtime.guest_gate import Neighbours
from plait.runtime.page import VERSION, Page
from plait.sharing.directive import Action, Directive

pytest.importorskip("torch")


class Player:
    """An attempt, and the words of its agent."""

    def __init__(self, forker: Forker, folder: Path, *args: str, neighbours: Neighbours | None, weights: str = "w"):
        self.run_dir = folder / "attempts" / "1" / "rank0"
        self.run_dir.mkdir(parents=True)
        self.version, self.steps = 0, []
        self.tell(neighbours)
        self.weights = folder / weights
        self.attempt: Attempt = forker.start(folder, 1, "guest.py", str(self.weights), *args)
        self.page: Page = self.attempt.page
        self.page.control_version = self.version

    def tell(self, neighbours: Neighbours | None) -> None:
        self.version += 1
        control = {"version": self.version, "epoch": 1, "group": None, "made_by": VERSION}
        entry = {} if neighbours is None else {"sharing": neighbours.control()}
        (self.run_dir / "control.json").write_text(json.dumps(control | entry))
        if self.version > 1:
            self.page.control_version = self.version

    def lease(self, seconds: float = 60.0) -> None:
        self.page.share_until = time.monotonic() + seconds

    def collect(self) -> list:
        self.steps += self.page.new_steps(self.steps[-1].step if self.steps else -1)
        return self.steps

    def attached(self) -> None:
        end_s = time.monotonic() + 60
        while not self.page.pid:
            assert time.monotonic() < end_s
            time.sleep(0.002)

    def until(self, steps: int) -> None:
        end_s = time.monotonic() + 60
        while self.page.steps < steps and not self.attempt.ended:
            assert time.monotonic() < end_s, f"no {steps} steps, only {self.page.steps}"
            self.collect()
            time.sleep(0.002)
        self.collect()


GUEST = Neighbours(guest=True)


def test_a_guest_of_no_lines_waits_before_its_first_step_and_trains_as_if_alone(forker, tmp_path):
    alone = Player(forker, tmp_path / "j-1", "plain", "12", "0", neighbours=None)
    guest = Player(forker, tmp_path / "j-2", "plain", "12", "0", neighbours=GUEST)
    assert alone.attempt.end()[0] == 0
    guest.attached()
    assert guest.page.steps == 0
    assert not guest.attempt.ended
    guest.lease()
    guest.attempt.ends()
    assert guest.page.steps == 12
    assert same_weights(alone.weights, guest.weights)
    assert [stats.step for stats in guest.collect()] == list(range(2, 13))
    assert len(alone.collect()) <= 6  # one a second, and never two in a row


@pytest.mark.parametrize("kind", ["plain", "marked"])
def test_a_share_makes_pauses_between_the_quanta_of_a_step(forker, tmp_path, kind):
    """Beside a host that marks its stages and is in none: from the first quantum on."""
    with Page.create(tmp_path / "host.bin") as host:
        host.gpu_left_monotonic = 1.0
        guest = Player(forker, tmp_path / "j-1", kind, "14", "0.06", neighbours=Neighbours(True, (host.path,)))
        guest.page.share = 0.25
        guest.lease()
        guest.until(14)
        assert guest.attempt.end()[0] == 0
    paced = guest.steps[2:]
    assert len(paced) > 8
    ratio = sum(stats.own_s for stats in paced) / sum(stats.step_s for stats in paced)
    assert 0.1 < ratio < 0.35
    # A plain step of 60 ms is one quantum, a marked one has a yield point every 15 ms.
    part = sorted(stats.quantum_s / stats.own_s for stats in paced)[len(paced) // 2]
    assert (part < 0.6) is (kind == "marked")


def test_without_its_agent_a_guest_pauses_and_a_host_runs(forker, tmp_path):
    guest = Player(forker, tmp_path / "j-1", "marked", "100000", "0.004", neighbours=GUEST)
    host = Player(forker, tmp_path / "j-2", "marked", "100000", "0.004", neighbours=Neighbours(guest=False))
    guest.lease()
    guest.until(3)
    host.until(3)
    guest.lease(0.1)
    time.sleep(0.3)
    held, ran = guest.page.steps, host.page.steps
    time.sleep(0.4)
    assert guest.page.steps == held > 0
    assert host.page.steps > ran
    guest.lease()
    guest.until(int(held) + 3)
    for player in (guest, host):
        player.page.stop = 1
        assert player.attempt.end()[0] == PREEMPTED


def test_a_guest_is_gated_promoted_and_made_a_guest_again_without_a_restart(forker, tmp_path):
    with Page.create(tmp_path / "host.bin") as host:
        guest = Player(forker, tmp_path / "j-1", "marked", "100000", "0.004", neighbours=Neighbours(True, (host.path,)))
        guest.lease()
        guest.until(3)
        host.in_stage = Resource.GPU + 1
        time.sleep(0.1)
        held = guest.page.steps
        time.sleep(0.2)
        assert guest.page.steps == held
        host.in_stage = 0
        guest.until(int(held) + 3)
        guest.page.share = 0.0
        guest.tell(Neighbours(guest=False))  # promoted: it keeps to no share any more, from its next step on
        guest.page.share = 1.0
        guest.page.share_until = 0.0
        guest.until(int(guest.page.steps) + 5)
        guest.tell(GUEST)
        time.sleep(0.2)
        held = guest.page.steps
        time.sleep(0.2)
        assert guest.page.steps == held
        guest.page.stop = 1  # who is asked to stop waits for nothing
        assert guest.attempt.end()[0] == PREEMPTED


@pytest.mark.parametrize(("kind", "asked"), [("plain", "leave"), ("marked", "leave"), ("marked", "stop")])
def test_a_guest_is_held_at_its_boundary_and_leaves_from_there(forker, tmp_path, kind, asked):
    guest = Player(forker, tmp_path / "j-1", kind, "100000", "0.002", neighbours=GUEST)
    guest.lease()
    guest.until(3)
    guest.page.set_directive(Directive(0.0, 1 << 30, 5, Action.PAUSE))
    time.sleep(0.1)
    guest.page.share = 1.0  # it may reach its boundary
    end_s = time.monotonic() + 30
    while guest.page.limit_reached_number != 5:
        assert time.monotonic() < end_s
        time.sleep(0.002)
    reached = guest.page.reached(80 << 30)
    assert (reached.number, reached.limit_bytes) == (5, 1 << 30)
    held = guest.page.steps
    time.sleep(0.2)
    assert guest.page.steps == held
    if asked == "leave":
        guest.page.set_directive(Directive(1.0, 1 << 30, 6, Action.CHECKPOINT))
    else:
        guest.attempt.send(signal.SIGTERM)
    assert guest.attempt.end()[0] == PREEMPTED
    assert guest.page.steps == held  # not one step more
    assert steps_saved(tmp_path / "j-1") == ([int(held)] if kind == "marked" else [])


def test_a_job_that_is_too_large_for_the_gpu_fails_and_says_so(forker, tmp_path):
    guest = Player(forker, tmp_path / "j-1", "plain", "100000", "0.002", neighbours=GUEST)
    guest.lease()
    guest.until(3)
    guest.page.set_directive(Directive(0.0, 1 << 30, 5, Action.STOP))
    guest.page.share = 1.0
    output = guest.attempt.ends(1)
    assert "needs more GPU memory than it can have" in output
