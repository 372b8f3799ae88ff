"""However its data come, a job that was killed and resumed has the losses of one that was not."""

import json
import random
import signal
import time
from pathlib import Path

import pytest

pytest.importorskip("torch")
from attempts import PREEMPTED, Forker, steps_saved

from sampling import sample

EXACT = [
    "generator",
    "generator, no workers",
    "weighted",
    "with replacement",
    "tuples",
    "unsized",
    "distributed",
    "stream",
    "stream, workers that stay",
    "subclass",
    "plain",
    "stateful",
    "stateful, own state",
    "stateful stream",
]


def losses(path: Path) -> dict[int, str]:
    """The loss of each step; the same step done twice must have had the same."""
    found: dict[int, str] = {}
    for line in path.read_text().splitlines():
        step, loss = line.split()
        assert found.setdefault(int(step), loss) == loss, f"step {step} of {path.name}"
    return found


@pytest.mark.parametrize("kind", EXACT)
def test_losses_after_kills_are_those_of_an_undisturbed_run(kind: str, forker: Forker, tmp_path: Path) -> None:
    if kind.startswith("stateful"):
        pytest.importorskip("torchdata")
    dice, plain, ours = random.Random(kind), tmp_path / "plain", tmp_path / "ours"
    undisturbed = forker.start(tmp_path / "j-1", 1, "feeds.py", str(plain), kind, "--delay", "0")
    steps, epoch, code = 0, 1, -1
    while code:
        attempt = forker.start(tmp_path / "j-2", epoch, "feeds.py", str(ours), kind, PLAIT_CHECKPOINT_S="0.02")
        if epoch <= sample(2, 3):
            attempt.until(steps + dice.randrange(1, 10))
            attempt.send(dice.choice([signal.SIGTERM, signal.SIGKILL]))
        code, output = attempt.end()
        assert code in (0, PREEMPTED, -signal.SIGKILL, -signal.SIGTERM), output
        steps, epoch = int(attempt.page.steps), epoch + 1
    assert undisturbed.end()[0] == 0
    expected = losses(plain)
    assert losses(ours) == expected
    assert len(expected) == (18 if kind == "distributed" else 36)


@pytest.mark.parametrize("stop", [5, 6, 7])
def test_turns_over_passes_go_on_in_the_next_pass_too(stop: int, forker: Forker, tmp_path: Path) -> None:
    """Stopped before, at and after the end of a pass of six batches: a sampler draws at its end as well."""
    attempts = [forker.start(tmp_path / "j-1", 1, "turns.py", str(tmp_path / "plain"), "0")]
    attempts += [forker.start(tmp_path / "j-2", 1, "turns.py", str(tmp_path / "ours"), str(stop))]
    assert [attempt.end()[0] for attempt in attempts] == [0, PREEMPTED]
    forker.start(tmp_path / "j-2", 2, "turns.py", str(tmp_path / "ours"), "0").ends()
    assert losses(tmp_path / "ours") == losses(tmp_path / "plain")


def test_a_stream_that_does_not_come_again_is_an_error_and_not_another_training(forker: Forker, tmp_path: Path) -> None:
    attempt = forker.start(tmp_path / "j-1", 1, "feeds.py", str(tmp_path / "l"), "fickle")
    attempt.until(5)
    attempt.send(signal.SIGTERM)
    assert attempt.end()[0] == PREEMPTED
    output = forker.start(tmp_path / "j-1", 2, "feeds.py", str(tmp_path / "l"), "fickle").ends(1)
    assert "Fickle does not give the same items again" in output


def test_an_order_that_does_not_come_again_is_reported_and_no_later_start_fails(forker: Forker, tmp_path: Path) -> None:
    attempt = forker.start(tmp_path / "j-1", 1, "feeds.py", str(tmp_path / "l"), "lazy")
    attempt.until(5)
    attempt.send(signal.SIGTERM)
    output = attempt.ends(PREEMPTED)
    assert "Lazy does not repeat its order" in output
    assert attempt.page.checkpoint_steps == max(steps_saved(tmp_path / "j-1"), default=0)
    output = forker.start(tmp_path / "j-1", 2, "feeds.py", str(tmp_path / "l2"), "lazy").ends()


def test_a_stop_asked_in_an_evaluation_waits_for_its_end_and_loses_nothing(forker: Forker, tmp_path: Path) -> None:
    plain, ours = tmp_path / "plain", tmp_path / "ours"
    undisturbed = forker.start(tmp_path / "j-1", 1, "feeds.py", str(plain), "subclass", "--delay", "0")
    attempt = forker.start(tmp_path / "j-2", 1, "feeds.py", str(ours), "subclass", "--evaluate-s", "0.05")
    attempt.says("evaluating")
    attempt.send(signal.SIGTERM)
    output = attempt.ends(PREEMPTED)
    assert steps_saved(tmp_path / "j-2") == [attempt.page.steps]
    code, output = forker.start(tmp_path / "j-2", 2, "feeds.py", str(ours), "subclass").end()
    assert (code, undisturbed.end()[0]) == (0, 0), output
    assert losses(ours) == losses(plain)


@pytest.mark.parametrize("asked", ["half the grace is over", "a second time"])
def test_an_evaluation_that_takes_too_long_is_left(asked: str, forker: Forker, tmp_path: Path) -> None:
    job = tmp_path / "j-1"
    attempt = forker.start(job, 1, "feeds.py", str(tmp_path / "l"), "plain", "--evaluate-s", "0.3")
    grace_s = 0.2 if asked.startswith("half") else 100.0
    (attempt.folder / "stop.json").write_text(json.dumps({"grace_s": grace_s}))
    attempt.says("evaluating")
    attempt.send(signal.SIGTERM)
    if grace_s > 1:
        time.sleep(0.1)  # two at once would be one
        attempt.send(signal.SIGTERM)
    output = attempt.ends(PREEMPTED)
    assert output.count("evaluating") == 1
    assert steps_saved(job) == []
