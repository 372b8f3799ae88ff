"""Loaders that a script makes anew: a resumed training continues in the one that was in use."""

from pathlib import Path

import pytest

pytest.importorskip("torch")
from attempts import PREEMPTED, Forker

#: By kind: the lines after which the process is stopped, in one attempt each.
EXACT = {
    "plain": [8, 3],
    "by_batches": [14],
    "seeded_in_each_epoch": [8],
    "one_generator": [6, 3, 5],
    "one_sampler": [15],
    "sampler_in_each_epoch": [9],
    "made_by_a_function": [8, 6],
    "two_from_one_line": [5],
    "validation_first": [8, 2],
    "longer_and_longer": [9],
    "drawn_subset": [6, 2],
    "in_pieces": [9, 2],
    "two_loops_over_kept_loaders": [14, 3],
    "kept_by_size": [12, 6],
    "drawn_by_hand": [9],
    "streams": [9],
    "lists": [9],
    "without_epochs": [9, 2],
    "number_drawn_in_each_epoch": [9],
}


def run(forker: Forker, job: Path, epoch: int, trace: Path, kind: str, stop: int) -> str:
    """One attempt, which ends as it should; returns its output."""
    return forker.start(job, epoch, "renewed_loaders.py", str(trace), kind, str(stop)).ends(PREEMPTED if stop else 0)


@pytest.mark.parametrize("kind", EXACT)
def test_a_stopped_training_continues_in_the_loader_that_was_in_use(kind: str, forker: Forker, tmp_path: Path) -> None:
    plain, ours = tmp_path / "plain", tmp_path / "ours"
    undisturbed = forker.start(tmp_path / "j-1", 1, "renewed_loaders.py", str(plain), kind, "0")
    for epoch, stop in enumerate([*EXACT[kind], 0], 1):
        run(forker, tmp_path / "j-2", epoch, ours, kind, stop)
    undisturbed.ends()
    assert ours.read_text() == plain.read_text()


def test_a_loader_of_another_length_is_named_at_the_resume(forker: Forker, tmp_path: Path) -> None:
    run(forker, tmp_path / "j-1", 1, tmp_path / "trace", "other_data", 8)
    output = run(forker, tmp_path / "j-1", 2, tmp_path / "trace", "other_data", 0)
    assert "loader 1 of this epoch is a StagedLoader of 5 batches, and was a StagedLoader of 6 batches" in output


def test_loops_that_were_over_at_the_checkpoint_are_named_at_the_resume(forker: Forker, tmp_path: Path) -> None:
    assert "left out" not in run(forker, tmp_path / "j-1", 1, tmp_path / "trace", "in_pieces", 9)
    output = run(forker, tmp_path / "j-1", 2, tmp_path / "trace", "in_pieces", 0)
    assert "after the first loops over data of this epoch: they are left out now" in output


def test_loaders_of_earlier_epochs_are_not_kept(forker: Forker, tmp_path: Path) -> None:
    run(forker, tmp_path / "j-1", 1, tmp_path / "trace", "counts_what_is_kept", 0)
    kept = [line for line in (tmp_path / "trace").read_text().splitlines() if line.startswith("kept")]
    assert len(kept) == 12
    assert set(kept[1:]) == {kept[0]}
