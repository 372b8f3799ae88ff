"""What two leaders do to a job's folder: the one that was replaced, and comes late, changes nothing there."""

from __future__ import annotations

import errno
import fcntl
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from live_cases import Cluster

from plait.live import fencing
from plait.live.fencing import Fences
from plait.live.layout import Layout, make_private
from plait.live.scheduler.records.attempts import JobRecord
from plait.live.store import Replaced, Store

Make = Callable[..., Cluster]


def contents(folder: Path) -> set[str]:
    return {str(p.relative_to(folder)) for p in folder.rglob("*")}


def test_a_leader_that_slept_leaves_alone_what_its_successor_has_started(cluster: Make) -> None:
    c = cluster((1,))
    first, second = c.submit({}, {})
    c.pass_s(3)
    assert (c.state(first), c.state(second)) == ("running", "waiting")
    c.now += 1.0
    c.submit({"gpus": 1})
    c.engine.tick(c.now)  # a decision: the next one is a second away
    c.nodes[0].end(first)
    c.nodes[0].sync()
    assert (c.state(first), c.state(second)) == ("finished", "waiting")
    sleeper, store = c.engine, c.store
    c.store = Store.open(c.home / "plait.db", exclusive=False)
    c.engine = c._engine(None)
    c.pass_s(4)
    assert c.state(second) == "running"
    folder = c.engine.layout.job(second)
    (folder / "checkpoints" / "step-1").mkdir(parents=True)
    before = contents(folder)
    with pytest.raises(Replaced):
        sleeper.tick(c.now)  # it would start the second job, of which its log says nothing yet
    assert contents(folder) == before
    store.close()


def test_a_leader_that_sleeps_before_it_fences_sets_no_epoch_back(cluster: Make) -> None:
    c = cluster((1,))
    (job,) = c.submit({})
    c.pass_s(2)
    late = Fences(c.engine.layout)
    c.nodes[0].end(job, 75, steps=1.0)
    c.pass_s(3)
    folder = c.engine.layout.job(job)
    before = contents(folder)
    assert c.engine.layout.epoch_file(job).read_text() == "2\n"
    late.write(job, 1, 1)
    assert c.engine.layout.epoch_file(job).read_text() == "2\n"
    assert contents(folder) == before


def test_two_that_fence_the_same_job_take_turns(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    fences = Fences(layout)
    fences.write(0, 1, 1)
    with open(layout.job(0) / "EPOCH.lock", "ab") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        fences.write(0, 1, 1)  # nothing to do: whoever has the lock, and may be stopped, is not waited for
        with pytest.raises(OSError, match="locked by another service, which may be stopped"):
            fences.write(0, 2, 1)
        assert layout.epoch_file(0).read_text() == "1\n"
    fences.write(0, 2, 1)
    assert layout.epoch_file(0).read_text() == "2\n"


def test_an_epoch_that_cannot_be_read_is_not_taken_for_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    layout = Layout(tmp_path)
    make_private(layout.job(0).parent)
    layout.job(0).write_text("no folder")
    assert Fences(layout).next_epoch(0, 0) == 1  # what lies in its place is put aside
    assert [path.name.partition("-0.")[2][:4] for path in layout.job(0).parent.iterdir()] == ["odd-"]

    def fails(path: Path) -> int:
        raise OSError(errno.EIO, "input/output error")

    monkeypatch.setattr(fencing, "read_epoch", fails)
    with pytest.raises(OSError, match="input/output error"):
        Fences(layout).next_epoch(0, 0)


@pytest.mark.parametrize("put", [lambda at: at.write_text("no folder"), lambda at: at.symlink_to(at / "nowhere")])
def test_a_job_that_puts_something_in_the_place_of_its_folder_holds_nothing(
    put: Callable[[Path], object], cluster: Make
) -> None:
    c = cluster()
    (job,) = c.submit({"retries": 1})
    for _ in range(2):
        c.pass_s(3)
        assert c.nodes[0].jobs() == {job}
        shutil.rmtree(c.engine.layout.job(job))
        put(c.engine.layout.job(job))
        c.nodes[0].end(job, 1)
    c.pass_s(3)
    assert c.state(job) == "failed"


@pytest.mark.parametrize(("number", "state"), [(errno.EACCES, "failed"), (errno.ENOSPC, "starting")])
def test_a_folder_that_stays_unwritable_fails_its_job_unless_the_disk_is_full(
    cluster: Make, monkeypatch: pytest.MonkeyPatch, number: int, state: str
) -> None:
    c = cluster()
    write = Fences.write

    def refuses(fences: Fences, job: int, epoch: int, first: int) -> None:
        if job == 0:
            raise OSError(number, "refused", "jobs/j-0/EPOCH")
        write(fences, job, epoch, first)

    monkeypatch.setattr(Fences, "write", refuses)
    make_private(c.engine.layout.job(0).parent)  # that of all jobs is in order
    c.submit({"gpus": 2, "retries": None}, {"gpus": 2})
    c.pass_s(8)
    assert c.state(0) == "starting"  # a fault that passes in some seconds is no end
    c.pass_s(80)
    assert (c.state(0), c.state(1)) == (state, "waiting" if state == "starting" else "running")
    if state == "failed":
        stored = c.stored(0)
        assert "refused: 'jobs/j-0/EPOCH'; the folder of the job could not be written in 10 tries" in stored.row.reason
        return
    c.engine.cancel(0, c.now)  # nothing of it runs anywhere
    c.pass_s(3)
    assert (c.state(0), c.state(1)) == ("cancelled", "running")


def test_a_folder_of_another_job_is_put_aside_even_if_the_first_attempt_ended_before_its_fence(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    Fences(layout).write(0, 7, 7)
    (layout.job(0) / "checkpoints").mkdir()
    fences = Fences(layout)
    fences.write(0, 9, 8)
    assert contents(layout.job(0)) == {"EPOCH", "EPOCH.lock", "before-7", "before-7/checkpoints"}
    (layout.job(0) / "checkpoints").mkdir()
    fences.write(0, 10, 8)
    assert (layout.job(0) / "checkpoints").is_dir()


def test_a_restart_of_a_job_asks_the_store_nothing(cluster: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the store answers late, or not at all, ends a service that leads."""
    c = cluster()
    (job,) = c.submit({})
    c.pass_s(2)
    monkeypatch.setattr(Store, "reading", None)
    for _ in range(3):
        c.nodes[0].end(job, 75, steps=1.0)
        c.pass_s(3)
    assert c.nodes[0].jobs() == {job}
    assert c.engine.layout.epoch_file(job).read_text() == "4\n"


def test_the_epoch_of_the_first_attempt_is_kept_and_without_it_a_folder_is_its_jobs_own(cluster: Make) -> None:
    c = cluster()
    (job,) = c.submit({})
    Fences(c.engine.layout).write(job, 7, 0)
    c.pass_s(2)
    c.nodes[0].end(job, 75, steps=1.0)
    c.pass_s(3)
    record = c.engine.state.jobs[job]
    assert (record.first_epoch, record.epoch) == (8, 9)
    kept = record.to_json()
    assert JobRecord.from_json(kept).first_epoch == 8


def test_a_disk_that_fails_at_a_restart_stops_no_job_that_runs(cluster: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    c = cluster((2,))
    (job,) = c.submit({})
    c.pass_s(2)
    assert c.nodes[0].jobs() == {job}

    full, write = True, Fences.write

    def fence(self: Fences, number: int, epoch: int, first: int) -> None:
        if full:
            raise OSError("no space left on device")
        write(self, number, epoch, first)

    monkeypatch.setattr(Fences, "write", fence)
    c.restart()
    (other,) = c.submit({})
    c.pass_s(3)
    assert c.nodes[0].jobs() == {job}  # the new one is not begun before its fence is up
    assert c.engine.explain(other, c.now).summary == "no space left on device; waits until its folder can be written"
    full = False
    c.pass_s(3)
    assert c.nodes[0].jobs() == {job, other}
    assert c.engine.state.jobs[job].epoch == 1
