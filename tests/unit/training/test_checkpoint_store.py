"""Which checkpoints count, which are removed, who may commit."""

import random

import pytest

from plait.core.errors import PlaitError
from plait.training.state import checkpoint_store
from plait.training.state.checkpoint_store import MARKER, CheckpointStore, Damaged, StaleEpoch


def made(into, step, content="state"):
    making = into.begin(step)
    (making / "rank0.pt").write_text(content)
    return into.commit(making, step)


def test_the_newest_counts_and_so_many_are_kept(tmp_path):
    store = CheckpointStore(tmp_path / "c", keep=2)
    for step in (5, 10, 15):
        made(store, step)
    assert [c.step for c in store.complete()] == [15, 10]


def test_a_later_attempt_counts_more_than_a_later_step(tmp_path):
    made(CheckpointStore(tmp_path / "c", epoch=1, keep=9), 100)
    made(CheckpointStore(tmp_path / "c", epoch=2, keep=9), 60)
    assert [(c.epoch, c.step) for c in CheckpointStore(tmp_path / "c").complete()] == [(2, 60), (1, 100)]


def test_a_job_starts_from_a_checkpoint_of_an_ended_one_whose_files_stay_or_not_at_all(tmp_path):
    old, new = CheckpointStore(tmp_path / "o"), CheckpointStore(tmp_path / "n", keep=1, source=tmp_path / "o")
    with pytest.raises(PlaitError, match="o has no undamaged checkpoint"):
        new.choose()
    made(old, 5)
    assert [(c.step, (c.path / "rank0.pt").read_text()) for c in new.choose()] == [(5, "state")]
    made(new, 9)
    assert [c.step for store in (new, old) for c in store.complete()] == [9, 5]


@pytest.mark.parametrize("harm", ["no marker", "half a marker", "a file cut short", "a file gone"])
def test_what_is_not_whole_does_not_count(tmp_path, harm):
    store = CheckpointStore(tmp_path / "c")
    made(store, 5)
    newest = made(store, 10).path
    if harm == "no marker":
        (newest / MARKER).unlink()
    elif harm == "half a marker":
        (newest / MARKER).write_text('{"step": 10, "epo')
    elif harm == "a file cut short":
        (newest / "rank0.pt").write_text("st")
    else:
        (newest / "rank0.pt").unlink()
    assert [c.step for c in store.complete()] == [5]


def flip(path, bit):
    data = bytearray(path.read_bytes())
    data[bit // 8 % len(data)] ^= 1 << bit % 8
    path.write_bytes(data)


@pytest.mark.parametrize("file", ["rank0.pt", "rank1.pt", MARKER])
def test_any_flipped_bit_is_found_told_and_the_checkpoint_before_it_counts(tmp_path, file):
    draw = random.Random(file)
    for trial in range(8):
        store = CheckpointStore(tmp_path / f"c{trial}")
        for step in (5, 10):
            for rank in (0, 1):
                (store.begin(step) / f"rank{rank}.pt").write_bytes(draw.randbytes(500))
            newest = store.commit(store.begin(step), step, world_size=2).path
        flip(newest / file, draw.randrange(8 * (newest / file).stat().st_size))
        with pytest.warns(RuntimeWarning, match="DAMAGED CHECKPOINT step-0000000010-e0 is not loaded"):
            assert [c.step for c in store.choose(rank=0, world_size=2)] == [5]
        assert [c.step for c in store.choose(rank=1, world_size=2)] == [5]  # what rank 0 wrote down
        assert [c.step for c in CheckpointStore(tmp_path / f"c{trial}").complete()] == [5]


def test_a_rank_that_reads_something_else_than_rank_0_stops_and_the_next_attempt_goes_back(tmp_path):
    store = CheckpointStore(tmp_path / "c")
    for step in (5, 10):
        (store.begin(step) / "rank1.pt").write_bytes(b"state")
        made(store, step)
    chosen = store.choose(rank=0, world_size=2)
    flip(chosen[0].path / "rank1.pt", 9)
    other = CheckpointStore(tmp_path / "c")
    other.verify(chosen[0], rank=0)
    with pytest.warns(RuntimeWarning), pytest.raises(Damaged, match=r"rank1\.pt is not what was written"):
        other.verify(chosen[0], rank=1)
    assert [c.step for c in CheckpointStore(tmp_path / "c", epoch=1).choose(rank=0, world_size=2)] == [5]


def test_a_checkpoint_of_before_there_were_checksums_is_loaded(tmp_path):
    store = CheckpointStore(tmp_path / "c")
    path = made(store, 5).path
    (path / MARKER).write_text('{"step": 5, "epoch": 0, "world": 1, "files": {"rank0.pt": 5}}')
    assert [c.step for c in store.choose()] == [5]


def test_a_stale_attempt_commits_nothing(tmp_path):
    (tmp_path / "EPOCH").write_text("3\n")
    stale = CheckpointStore(tmp_path / "c", epoch=2, epoch_file=tmp_path / "EPOCH")
    with pytest.raises(StaleEpoch, match="attempt 2 was replaced by attempt 3"):
        made(stale, 5)
    assert stale.complete() == []
    assert made(CheckpointStore(tmp_path / "c", epoch=3, epoch_file=tmp_path / "EPOCH"), 5).epoch == 3


def test_an_attempt_replaced_just_before_its_marker_leaves_nothing(tmp_path, monkeypatch):
    late = CheckpointStore(tmp_path / "c", epoch=2, epoch_file=tmp_path / "EPOCH")
    flush = checkpoint_store.flush_to_disk

    def replaced(path):
        (tmp_path / "EPOCH").write_text("3\n")  # once everything but the marker is there
        flush(path)

    monkeypatch.setattr(checkpoint_store, "flush_to_disk", replaced)
    with pytest.raises(StaleEpoch):
        made(late, 5)
    assert list((tmp_path / "c").iterdir()) == []


def test_an_epoch_that_cannot_be_read_commits_nothing(tmp_path):
    (tmp_path / "EPOCH").write_text("three")
    with pytest.raises(StaleEpoch, match="not a number"):
        made(CheckpointStore(tmp_path / "c", epoch=3, epoch_file=tmp_path / "EPOCH"), 5)


def test_leftovers_of_this_and_earlier_attempts_go_those_of_later_ones_stay(tmp_path):
    for epoch in (1, 2, 3):
        (CheckpointStore(tmp_path / "c", epoch=epoch).begin(7) / "rank0.pt").write_text("half")
    CheckpointStore(tmp_path / "c", epoch=2).choose()
    assert [p.name for p in (tmp_path / "c").iterdir()] == ["tmp-0000000007-e3"]


def test_all_ranks_resume_from_what_rank_0_saw(tmp_path):
    store = CheckpointStore(tmp_path / "c", epoch=2)
    made(CheckpointStore(tmp_path / "c", epoch=1), 5)
    assert [c.step for c in store.choose(rank=0, world_size=2)] == [5]
    made(CheckpointStore(tmp_path / "c", epoch=1), 9)  # by a stale attempt, between the two looks
    assert [c.step for c in store.choose(rank=1, world_size=2)] == [5]


def test_a_silent_rank_0_is_an_error_not_a_hang(tmp_path):
    with pytest.raises(PlaitError, match="rank 0 has not written"):
        CheckpointStore(tmp_path / "c").choose(rank=1, world_size=2, timeout_s=0.05)


def test_the_same_step_again_replaces_it(tmp_path):
    store = CheckpointStore(tmp_path / "c")
    made(store, 5, "first")
    assert (made(store, 5, "second").path / "rank0.pt").read_text() == "second"
