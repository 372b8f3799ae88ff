"""One job cannot take the cluster down: odd files in its folder and odd reports are the trouble of that job alone.

Each kind of nonsense is planted in each file that an agent or the service reads (a third of all; with `PLAIT_SLOW=1`
all of it); agent and engine run in this process.
"""

import contextlib
import json
import math
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from live_cases import Cluster
from local_agent import LocalAgent

from plait.core.errors import InputError
from plait.live.fencing import Fences
from plait.live.layout import Layout, make_private
from plait.live.protocol import wire
from plait.live.scheduler.context import Context
from plait.live.scheduler.records.attempts import Attempt, JobRecord
from plait.live.scheduler.records.notes import AttemptOver, RankEnded
from plait.live.system import procs

DEEP = "[" * 100_000 + "]" * 100_000
NONSENSE: dict[str, bytes] = {
    "nothing": b"", "no object": b"[]", "empty": b"{}", "deep": DEEP.encode(), "not text": b"\xff\xfe{\x80",
    "cut": b'{"pid": 1', "long number": b"9" * 5000, "huge": b"50 MB", "null": b"null",
}  # fmt: skip
VALUES: list[Any] = [
    None,
    10**30,
    -(10**30),
    1e308,
    -1e308,
    math.nan,
    math.inf,
    "x",
    [],
    {},
    True,
    "\x1b]0;x\x07" * 99_999,
]
FIELDS = {
    "runner.json": ("pid", "start_time", "boot", "child", "child_start_time", "merged", "mark"),
    "exit.json": ("exit_code", "reason", "ended_boot_s", "boot", "merged", "seconds"),
    "stop.json": ("grace_s", "own"), "hung.json": ("reason",), "control.json": ("version", "epoch", "group"),
    "log.json": ("1", "2"), "page.bin": (), "EPOCH": (),
}  # fmt: skip


def good(file: str) -> dict[str, Any]:
    """What a runner writes there."""
    me = procs.Process.of(os.getpid())
    assert me is not None
    if file == "runner.json":
        return {"pid": 2**21, "start_time": 5, "boot": me.boot, "child": 2**21 + 1}
    return {"exit_code": 0, "reason": None, "seconds": 1.0, "ended_boot_s": procs.boot_s(), "boot": me.boot}


def planted() -> Iterator[tuple[str, bytes]]:
    """(file, bytes): every nonsense in every file, and every odd value of every field."""
    for file, names in FIELDS.items():
        yield from ((file, data) for data in NONSENSE.values())
        for name in names:
            yield file, json.dumps({k: v for k, v in good(file).items() if k != name}).encode()
            yield from ((file, json.dumps(good(file) | {name: value}).encode()) for value in VALUES)
    yield from (("EPOCH", text) for text in (b"10000000000000000000000", b"-5", b"1e308", b"nan", b"\xd9\xa1"))


def test_files_of_a_job_are_its_own_trouble(node: LocalAgent) -> None:
    """The agent reattaches to a job whose folder was spoilt, tells of it, answers for its log, and collects its end."""
    service = Cluster(node.layout.home, (8,))
    cases = list(planted())[:: 1 if os.environ.get("PLAIT_SLOW") == "1" else 3]
    for i, (file, data) in enumerate(cases):
        run = wire.Run(i, 1, 0, 1, ["true"], [i % 8], wire.GroupInfo(f"g{i}", members=[wire.Mate(i, 0)]))
        folder = make_private(node.layout.rank(i, 1, 0))
        for name in ("runner.json", "exit.json"):
            (folder / name).write_text(json.dumps(good(name)))
        (folder / "out.log").write_text("hello")
        path = node.layout.epoch_file(i) if file == "EPOCH" else folder / file
        path.write_bytes(data)
        if data == NONSENSE["huge"]:
            os.truncate(path, 50 << 20)
        node.died(run)
        told = node.want(run, asks=[wire.Ask(i, i, 1, 0)])
        text = json.dumps(wire.to_json(told), allow_nan=False)
        assert len(text) < 100_000, (file, data[:80])
        assert [one.state for one in told.attempts] == [wire.ENDED], (file, data[:80])
        assert "\x1b" not in (told.attempts[0].reason or "")
        wire.decode_report(text.encode())
        assert service.engine.fencing.next_epoch(i, 0) < 1000, (file, data[:80])
        path.unlink()
        node.want()
    assert len(cases) > 90
    service.store.close()


@pytest.mark.parametrize("name", ["EPOCH", "EPOCH.lock", "EPOCH.part"])
@pytest.mark.parametrize("kind", ["pipe", "folder", "link"])
def test_what_lies_in_the_way_of_an_epoch_is_put_aside(tmp_path: Path, name: str, kind: str) -> None:
    c = Cluster(tmp_path, (1,))
    (job,) = c.submit({})
    path = make_private(c.engine.layout.job(job)) / name
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to("/dev/zero")
    c.pass_s(3.0)
    assert c.nodes[0].jobs() == {job}
    assert c.engine.layout.epoch_file(job).read_text() == "1\n"
    c.store.close()


def test_a_pipe_that_comes_while_an_epoch_is_written_holds_no_scheduler_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("plait.live.fencing._plain", lambda path: os.mkfifo(path) if path.suffix else None)
    fences = Fences(Layout(tmp_path))
    with pytest.raises(OSError, match=r"EPOCH\.lock") as error:
        fences.write(3, 1, 1)
    assert not fences.may_pass(3, error.value)


def test_a_runner_without_its_fields_that_is_killed_ends_its_job_alone(node: LocalAgent) -> None:
    run = wire.Run(
        1,
        1,
        0,
        1,
        [sys.executable, "-S", "-c", "import time; time.sleep(600)"],
        [0],
        wire.GroupInfo("g", members=[wire.Mate(1, 0)]),
    )
    with contextlib.ExitStack() as stack:
        told = node.want(run)
        attempt = node.agent.attempts[1, 1, 0]
        stack.callback(attempt.process.send, signal.SIGKILL)
        until = time.monotonic() + 20
        while not told.attempts[0].pid and time.monotonic() < until:
            time.sleep(0.02)
            told = node.agent.observe(0.0)
        (attempt.folder / "runner.json").write_text("{}")
        attempt.process.send(signal.SIGKILL)
        while told.attempts[0].state != wire.ENDED and time.monotonic() < until:
            node.agent._wait()
            told = node.agent.observe(0.0)
    assert (told.attempts[0].state, told.attempts[0].exit_code) == (wire.ENDED, -9)
    assert procs.marked(attempt.mark) == []


def test_what_goes_wrong_before_a_process_is_waited_for_is_its_own_trouble(node: LocalAgent) -> None:
    run = wire.Run(1, 1, 0, 1, ["true"], [0], wire.GroupInfo("g"))
    with node.agent.lock:
        attempt = node.agent._new(run)
        with node.agent._quarantined(attempt):
            attempt.pidfd = os.pidfd_open(os.getpid())  # `began` opens it, then looks at the job's files
            raise OSError("its page cannot be read")
    assert (attempt.state, attempt.pidfd) == (wire.ENDED, -1)


ODD_SEEN = [
    {"steps": "many"}, {"pid": None}, {"stage_s": 5}, {"profile": {"stage_s": "x"}}, {"state": 7}, {"exit_code": 1.5},
    {"adaptive": []}, {"step_s": 10**400},
]  # fmt: skip


def test_a_report_that_cannot_be_read_fails_its_job_and_no_other(tmp_path: Path) -> None:
    c = Cluster(tmp_path, (9,))
    jobs = c.submit(*[{"retries": 0}] * (len(ODD_SEEN) + 1), then_s=3.0)
    assert c.nodes[0].jobs() == set(jobs)
    data = json.loads(json.dumps(wire.to_json(c.nodes[0].observed())))
    for one, odd in zip(data["attempts"], ODD_SEEN, strict=False):
        one |= odd
    c.engine.observe(wire.decode_report(json.dumps(data).encode()), c.now)
    states = [c.state(job) for job in jobs]
    assert states == ["failed"] * len(ODD_SEEN) + ["running"]
    stored = c.stored(jobs[0])
    assert (
        "the agent sent an unreadable report about this process: Seen: Expected `float`, got `str` - at `$.steps`"
        in stored.row.reason
    )
    c.store.close()


def test_a_node_of_another_size_joins_whatever_a_process_of_the_old_one_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    c = Cluster(tmp_path, (2,))
    odd, other = c.submit({"retries": 0}, {"retries": 0}, then_s=3.0)

    def broken(ctx: Context, job: JobRecord, attempt: Attempt, seen: wire.Seen) -> None:
        if seen.job == odd:
            raise ZeroDivisionError("odd")

    monkeypatch.setattr("plait.live.scheduler.report.report_measurements", broken)
    c.nodes[0].end(odd)
    c.nodes[0].end(other)
    c.engine.observe(wire.Observed(wire.NodeInfo("n0", 3), "new", attempts=list(c.nodes[0].seen.values())), c.now)
    assert [c.state(odd), c.state(other)] == ["failed", "finished"]
    assert [node.gpus for node in c.engine.nodes(c.now)] == [3]
    c.store.close()


def test_numbers_of_a_report_are_never_more_than_a_store_holds(tmp_path: Path) -> None:
    c = Cluster(tmp_path, (1,))
    (job,) = c.submit({"retries": 0}, then_s=3.0)
    odd = {"held_s": 1e308, "first_step_s": 1e308, "last_step_s": math.nan, "ended_s_ago": 1e308, "steps": 1e308,
           "pid": 10**30, "profile": wire.Profile([1e308] * 4, 1e308, 10**30), "checkpoint_age_s": 1e308}  # fmt: skip
    c.nodes[0].report(job, **odd, then_s=3.0)
    c.nodes[0].end(job, 10**30, reason="x" * 800_000, then_s=3.0)
    stored = c.stored(job)
    assert stored.row.state == "failed"
    assert len(stored.row.reason) < 3000
    assert "(cut: 800000 characters)" in stored.row.reason
    c.store.close()


def test_a_first_step_that_a_job_cannot_have_made_is_no_cost_of_starts(tmp_path: Path) -> None:
    c = Cluster(tmp_path, (1,))
    (job,) = c.submit({}, then_s=3.0)
    c.nodes[0].report(job, held_s=5.0, first_step_s=1e9, last_step_s=1e9, steps=3.0, then_s=1.0)
    c.nodes[0].end(job, then_s=1.0)
    record = c.engine.state.record
    assert max([*record.starts_s, *record.tails_s], default=0.0) < 100
    columns = c.controller.job_store.columns  # type: ignore[union-attr]
    assert not columns["restart_s"][job] > 100
    c.store.close()


def test_what_no_store_can_hold_breaks_no_engine(tmp_path: Path) -> None:
    c = Cluster(tmp_path, (1,))
    ended = RankEnded(c.now, 0, 10**30, 0, None, None, started=True)
    over = AttemptOver(c.now, 0, 1, "finished", math.inf, 0.0, 0.0, None, None)
    for entry in (ended, over):
        with pytest.raises(InputError, match="no number that can be stored"):
            c.engine.context.record(entry)
    assert not c.engine.broken
    c.store.close()


def test_reasons_of_many_ranks_fit_into_a_report() -> None:
    seen = [wire.Seen(1, 1, rank, wire.ENDED, reason="\x1b[2J" * 200_000) for rank in range(1000)]
    text = json.dumps(wire.to_json(wire.Observed(wire.NodeInfo("n0", 8), "a", attempts=seen)))
    assert len(text) < 4_000_000
    assert "\\u001b" not in text
