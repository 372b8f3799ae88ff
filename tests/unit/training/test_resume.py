"""Killed anywhere and resumed, a job ends with the very weights of an undisturbed run."""

import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
from attempts import PREEMPTED, SCRIPTS, Forker, environment, same_weights, steps_saved

from sampling import sample

WAYS = {
    "main process": [],
    "two workers": ["--workers", "2"],
    "workers that stay": ["--workers", "2", "--persistent"],
}


@pytest.mark.parametrize("way", WAYS)
def test_killed_at_random_steps_and_resumed_the_weights_are_bitwise_equal(
    way: str, forker: Forker, tmp_path: Path
) -> None:
    dice = random.Random(way)
    assert forker.start(tmp_path / "j-1", 1, "tiny.py", str(tmp_path / "plain"), *WAYS[way]).end()[0] == 0
    for trial in range(sample(1, 2)):
        job, weights = tmp_path / f"j-{trial + 2}", tmp_path / f"weights{trial}"
        for epoch in range(1, 5):
            attempt = forker.start(job, epoch, "tiny.py", str(weights), *WAYS[way], PLAIT_CHECKPOINT_S="0.02")
            attempt.until(dice.randrange(1, 12) + 11 * (epoch - 1))
            number = dice.choice([signal.SIGTERM, signal.SIGKILL])
            attempt.send(number)
            code, output = attempt.end()
            assert code in (0, PREEMPTED if number == signal.SIGTERM else -signal.SIGKILL, -signal.SIGTERM), output
        output = forker.start(job, 5, "tiny.py", str(weights), *WAYS[way]).ends()
        assert same_weights(tmp_path / "plain", weights)


def test_a_polite_stop_loses_no_step(forker: Forker, tmp_path: Path) -> None:
    attempt = forker.start(tmp_path / "j-1", 1, "tiny.py", str(tmp_path / "w"), "--delay", "0.01")
    attempt.until(20)
    attempt.send(signal.SIGTERM)
    assert attempt.end()[0] == PREEMPTED
    done = int(attempt.page.steps)
    assert steps_saved(tmp_path / "j-1") == [done]
    assert 20 <= done < 48
    output = forker.start(tmp_path / "j-1", 2, "tiny.py", str(tmp_path / "w")).ends()
    assert f"steps {48 - done}\n" in output


def test_a_flipped_bit_is_told_and_costs_steps_but_not_the_result(forker: Forker, tmp_path: Path) -> None:
    job, weights = tmp_path / "j-1", tmp_path / "weights"
    assert forker.start(tmp_path / "j-0", 1, "tiny.py", str(tmp_path / "plain")).end()[0] == 0
    attempt = forker.start(job, 1, "tiny.py", str(weights), PLAIT_CHECKPOINT_S="0.02")
    attempt.until(12)
    attempt.send(signal.SIGTERM)
    assert attempt.end()[0] == PREEMPTED
    newest = max(job.glob("checkpoints/step-*/rank0.pt"))
    assert len(list(job.glob("checkpoints/step-*/COMMITTED"))) == 2
    data = bytearray(newest.read_bytes())
    data[len(data) // 2] ^= 1
    newest.write_bytes(data)
    output = forker.start(job, 2, "tiny.py", str(weights)).ends()
    assert f"DAMAGED CHECKPOINT {newest.parent.name} is not loaded" in output
    assert same_weights(tmp_path / "plain", weights)


def test_the_agents_word_stops_it_too_and_at_once_without_a_checkpoint(forker: Forker, tmp_path: Path) -> None:
    for job, stop, saved in ((tmp_path / "j-1", 1, 1), (tmp_path / "j-2", 2, 0)):
        attempt = forker.start(job, 1, "tiny.py", str(tmp_path / "w"), "--delay", "0.01")
        attempt.until(5)
        attempt.page.stop = stop
        assert attempt.end()[0] == PREEMPTED
        assert len(steps_saved(job)) == saved


def test_asked_to_stop_with_nothing_left_to_do_it_ends_as_finished(tmp_path: Path) -> None:
    env = environment(tmp_path / "j-1", 2)
    done = subprocess.run([sys.executable, str(SCRIPTS / "ending.py")], env=env, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "written\n"), done.stderr


def test_killed_while_a_checkpoint_is_written_the_older_one_counts(forker: Forker, tmp_path: Path) -> None:
    job, weights = tmp_path / "j-1", tmp_path / "w"
    assert forker.start(tmp_path / "j-2", 1, "during_save.py", str(tmp_path / "plain")).end()[0] == 0
    attempt = forker.start(job, 1, "during_save.py", str(weights), "--die")
    assert attempt.end()[0] == -signal.SIGKILL
    assert steps_saved(job) == [5]
    assert list((job / "checkpoints").glob("tmp-*10-*"))  # half of step 10 lies there
    code, output = forker.start(job, 2, "during_save.py", str(weights)).end()
    assert (code, output.splitlines()[0]) == (0, "resumed at 5"), output
    assert same_weights(tmp_path / "plain", weights)
    assert not list((job / "checkpoints").glob("tmp-*"))


def test_an_attempt_that_was_replaced_commits_nothing(forker: Forker, tmp_path: Path) -> None:
    job = tmp_path / "j-1"
    attempt = forker.start(job, 1, "tiny.py", str(tmp_path / "w"), "--delay", "0.01", PLAIT_CHECKPOINT_S="0")
    attempt.until(5)
    (job / "EPOCH").write_text("2")
    seen = max(steps_saved(job), default=0)
    attempt.until(15)
    attempt.send(signal.SIGTERM)
    output = attempt.ends(PREEMPTED)
    assert "was replaced by attempt 2" in output
    assert max(steps_saved(job), default=0) <= seen + 5
    assert not list((job / "checkpoints").glob("step-*")) or not steps_saved(job, marked=False)


def test_a_full_disk_is_a_warning_and_the_older_checkpoint_stays(forker: Forker, tmp_path: Path) -> None:
    job = tmp_path / "j-1"
    assert (
        "no checkpoint of step 10 (training goes on, an older checkpoint stays)"
        in forker.start(job, 1, "full_disk.py").ends()
    )
    assert steps_saved(job) == [5]
    assert not list((job / "checkpoints").glob("tmp-*"))


def test_a_folder_that_cannot_be_written_is_a_warning(forker: Forker, tmp_path: Path) -> None:
    job = tmp_path / "j-1"
    job.mkdir()
    (job / "checkpoints").write_text("in the way")
    assert (
        "no checkpoint of step" in forker.start(job, 1, "tiny.py", str(tmp_path / "w"), PLAIT_CHECKPOINT_S="0").ends()
    )


def test_two_ranks_stop_at_the_same_step_and_resume_exactly(forker: Forker, tmp_path: Path) -> None:
    def start(job: Path, epoch: int, weights: Path) -> list:
        return forker.gang(job, epoch, "two.py", str(weights), world=2)

    for attempt in start(tmp_path / "j-1", 1, tmp_path / "plain"):
        output = attempt.ends()
        assert "steps 24 of 24" in output  # of 48 passes: accumulation counts once
    job = tmp_path / "j-2"
    both = start(job, 1, tmp_path / "w")
    both[1].until(7)
    both[1].send(signal.SIGTERM)  # one rank alone is asked
    codes = [attempt.end() for attempt in both]
    assert [code for code, _ in codes] == [PREEMPTED, PREEMPTED], codes
    assert both[0].page.steps == both[1].page.steps
    assert steps_saved(job) == [both[0].page.steps]
    assert both[0].page.busy_s[3] > 0
    for attempt in start(job, 2, tmp_path / "w"):
        output = attempt.ends()
    for rank in "01":
        assert same_weights(tmp_path / f"plain{rank}", tmp_path / f"w{rank}")


@pytest.mark.parametrize(
    ("world", "options"),
    [(3, []), (4, []), (3, ["--accumulate"]), (3, ["--inner"]), (3, ["--unused"])],
    ids=["three", "four", "accumulating", "own hook", "unused parameters"],
)
def test_a_gang_stopped_twice_sums_its_gradients_as_torch_alone_does(
    world: int, options: list[str], forker: Forker, tmp_path: Path
) -> None:
    def start(job: Path, epoch: int, weights: Path, *more: str) -> list:
        return forker.gang(job, epoch, "gang.py", str(weights), *options, *more, world=world, PLAIT_CHECKPOINT_S="0.01")

    alone = start(tmp_path / "j-1", 1, tmp_path / "plain", "--alone")
    job, codes = tmp_path / "j-2", []
    for epoch, steps, number in ((1, 1, signal.SIGTERM), (2, 5, signal.SIGKILL)):
        gang = start(job, epoch, tmp_path / "w")
        for attempt in gang:
            attempt.until(steps)
        for attempt in gang:
            attempt.send(number)
        codes += [attempt.end()[0] for attempt in gang]
        assert steps_saved(job)
    assert codes == [PREEMPTED] * world + [-signal.SIGKILL] * world
    for attempt in [*start(job, 3, tmp_path / "w"), *alone]:
        attempt.ends()
    for rank in range(world):
        assert same_weights(tmp_path / f"plain{rank}", tmp_path / f"w{rank}")
