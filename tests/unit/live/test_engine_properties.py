"""Whatever is repeated, late or lost: no job is lost, none runs twice, and a restart changes nothing."""

import json
import math
import random
import tempfile
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from live_cases import Cluster

from plait.core.errors import Conflict, InputError
from plait.core.jobs import Phase
from plait.live.api import encoded
from plait.live.fencing import Fences
from plait.live.layout import Layout
from plait.live.protocol.wire import (
    ENDED,
    LONGEST_REASON,
    RUNNING,
    Assignment,
    NodeInfo,
    Observed,
    Profile,
    Run,
    to_json,
)
from plait.live.scheduler import decide as rounds_module
from plait.live.scheduler import engine as engine_module
from plait.live.scheduler import fold as fold_module
from plait.live.scheduler import state as state_module
from plait.live.scheduler.context import Context
from plait.live.scheduler.engine import Engine
from plait.live.scheduler.fold import apply
from plait.live.scheduler.options import Options
from plait.live.scheduler.reconcile import NextEpoch, reconcile
from plait.live.scheduler.records.notes import ProfileRecorded
from plait.live.scheduler.state import State
from plait.live.service.what_if import WhatIfService
from plait.live.service.worker import Worker
from plait.live.store import pack
from plait.outlook.eta import forecast
from plait.outlook.log_replay import replay, stored_rows
from plait.outlook.queue import controller_of
from plait.testing.fleet import Fleet, MemoryDisk, Program, SimulatedAgent
from sampling import sample

FINAL = {"finished", "failed", "cancelled"}


def plain(assignment: Assignment) -> list[dict[str, object]]:
    """What it says, without its numbering."""
    return [to_json(run) for run in assignment.attempts]


def check(c: Cluster) -> None:
    """No GPU is used by two groups, no job by two attempts, and gangs are whole or ending."""
    engine = c.engine
    holders: dict[int, str] = {}
    for number in engine.state.live:
        attempt = engine.state.jobs[number].live
        assert attempt is not None
        if attempt.stop is None:
            group = engine.state.groups.by_gpus[attempt.gpus].id
            for gpu in attempt.gpus:
                assert holders.setdefault(gpu, group) == group
    for node in c.nodes:
        runs: list[Run] = engine.assignment(node.info.id).attempts
        assert len({(r.job, r.rank) for r in runs}) == len(runs)
        for run in runs:
            assert engine.layout.epoch_file(run.job).read_text() == f"{run.epoch}\n"


def step(c: Cluster, draw: random.Random, old: list[Observed]) -> None:
    """Something happens."""
    c.now += draw.choice([0.1, 0.5, 1.0, 4.0])
    kind = draw.randrange(12)
    running = sorted({k[0] for n in c.nodes for k, s in n.seen.items() if s.state == RUNNING})
    node = draw.choice(c.nodes)
    if kind == 0 and c.engine.state.numbers < 8:
        c.submit({"gpus": draw.choice([1, 1, 2, 3]), "retries": 1})
    elif kind == 1 and running:
        job, code = draw.choice(running), draw.choice([0, 0, 0, 1, 75, -9, None])
        for one in c.nodes:
            one.end(job, code)
    elif kind == 2 and running:
        node.end(draw.choice(running), draw.choice([1, -9, 75]))
    elif kind == 3 and old:
        c.engine.observe(draw.choice(old), c.now)
    elif kind == 4:
        said = node.observed()
        for _ in range(draw.choice([1, 2])):
            c.engine.observe(said, c.now)
    elif kind == 5:
        node.agent = f"{node.agent}x"[-8:]
        if draw.random() < 0.5:
            node.seen = {}
    elif kind == 6:
        c.now += 20  # everybody is lost
        c.engine.tick(c.now)
    elif kind == 7:
        with suppress(Conflict):  # a job there has only just started, and whether it saves is not known yet
            c.engine.drain(node.info.id, c.now)
    elif kind == 8:
        c.engine.resume(node.info.id, c.now)
    elif kind == 9 and running and draw.random() < 0.3:
        with suppress(Conflict):  # it may have ended where nobody has told its agent yet
            c.engine.cancel(running[0], c.now)
    elif kind == 10:
        c.restart()
    else:
        c.engine.set_policy(draw.choice(["fifo-backfill", "las:quantum_s=2", "muri-l:quantum_s=2"]), c.now)
    old.append(node.observed())
    node.obeys = draw.random() < 0.8
    node.sync()
    c.engine.tick(c.now)


def step_with_waits(c: Cluster, draw: random.Random, old: list[Observed]) -> None:
    """Something happens, also to jobs that wait on purpose; none of these runs before it may."""
    kind, numbers = draw.randrange(4), c.engine.state.numbers
    if kind == 0 and numbers < 12:
        fields = draw.choice([{"hold": True}, {"begin_s": draw.choice([0.5, 30.0])}, {"time_limit_s": 2.0}, {}])
        for field in draw.sample(["after", "after_any", "after_fail"], draw.choice([0, 1, 1, 2])):
            named = draw.randrange(numbers)
            if not any(f"j-{named}" in jobs for jobs in fields.values() if isinstance(jobs, list)):
                fields = {**fields, field: [f"j-{named}"]}
        with suppress(InputError):  # one that it names may have ended in another way
            c.submit({"retries": 1, **fields})
    elif kind == 1:
        with suppress(Conflict):
            c.engine.update(draw.randrange(numbers), {"hold": draw.random() < 0.5}, c.now, by="ann")
    elif kind == 2:
        for node in c.nodes:
            for job in node.jobs():
                node.report(job, held_s=draw.choice([0.5, 3.0]))
    step(c, draw, old)
    for job in c.engine.state.jobs.values():
        assert not (job.waits_for and job.epoch), job
        assert job.live is not None or not job.request.get("hold") or c.engine.state.phase(job) is not Phase.RUNNING


@settings(max_examples=sample(3, 12))
@given(seed=st.integers(0, 10**6), waits=st.booleans())
@example(seed=37680, waits=False)
@example(seed=533, waits=False)
@example(seed=1, waits=True)
@example(seed=2, waits=True)
def test_any_order_of_events(seed: int, waits: bool) -> None:
    draw = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        c = Cluster(Path(folder), (2, 1, 1), settle_s=0.5)
        c.submit({"retries": 1}, {"gpus": 2, "retries": 1})
        old: list[Observed] = []
        for _ in range(40):
            (step_with_waits if waits else step)(c, draw, old)
            check(c)
        for number in range(c.engine.state.numbers if waits else 0):
            with suppress(Conflict):
                c.engine.update(number, {"hold": False}, c.now, by="ann")
        for node in c.nodes:
            node.obeys = True
            c.engine.resume(node.info.id, c.now)
        for _ in range(60):
            c.pass_s(1.1)
            check(c)
            for node in c.nodes:
                node.end(next(iter(sorted(node.jobs())), -1))
        states = [c.state(n) for n in range(c.engine.state.numbers)]
        verified = replay(stored_rows(c.store))
        finished = [e.entry for e in c.store.entries() if e.type == "JobFinished"]
        c.store.close()
    assert set(states) <= FINAL, states
    assert len(finished) == states.count("finished")
    assert verified.difference is None, str(verified.difference)


@pytest.mark.parametrize("policy", ["fifo-backfill", "muri-l:quantum_s=2"])
def test_a_restart_at_any_event_gives_the_same_assignments(tmp_path: Path, policy: str) -> None:
    draw = random.Random(5)
    c = Cluster(tmp_path, (2, 2), policy, snapshot_weight=25.0)
    for _ in range(sample(20, 40)):
        c.submit({"gpus": draw.choice([1, 2]), "profile": {"gpu": 0.2, "cpu": 0.1 * draw.randint(1, 3)}})
        for node in c.nodes:
            if draw.random() < 0.3:
                node.end(next(iter(sorted(node.jobs())), -1), draw.choice([0, 0, 1]))
            node.report(next(iter(sorted(node.jobs())), -1), steps=5.0, held_s=1.0)
        c.pass_s(0.7)
        before = [plain(c.engine.assignment(n.info.id)) for n in c.nodes]
        state = c.engine.state.to_json()
        c.restart()
        assert [plain(c.engine.assignment(n.info.id)) for n in c.nodes] == before
        after = c.engine.state.to_json()
        assert after["controller"] == state["controller"]
        assert after["groups"] == state["groups"]
        ours = {j["number"]: j for j in after["jobs"] if j["attempt"] and j["attempt"]["ended_s"] is None}
        assert ours == {j["number"]: j for j in state["jobs"] if j["attempt"] and j["attempt"]["ended_s"] is None}
    assert c.store.load()[0] is not None  # snapshots were among it
    assert replay(stored_rows(c.store)).difference is None
    c.store.close()


def test_versions_grow_over_restarts(tmp_path: Path) -> None:
    c = Cluster(tmp_path, (1,))
    terms, versions = [], []
    for _ in range(5):
        c.submit({}, then_s=0.6)
        answer = c.nodes[0].sync()
        terms.append(answer.term)
        versions.append(answer.version)
        c.restart()
    c.store.close()
    assert terms == sorted(set(terms))
    assert versions == sorted(versions)


def test_a_message_said_twice_is_written_down_once(tmp_path: Path) -> None:
    c = Cluster(tmp_path, (1,))
    c.submit({}, then_s=1.1)
    c.nodes[0].end(0, 0)
    said = c.nodes[0].observed()
    c.engine.observe(said, c.now)
    count = len(c.types())
    for _ in range(3):
        c.engine.observe(said, c.now)
    assert len(c.types()) == count
    assert c.types().count("RankEnded") == 1
    c.store.close()


def test_an_end_is_reported_until_it_is_known(tmp_path: Path) -> None:
    """What an agent says of an attempt that is over does not bring it back, and it may forget it."""
    c = Cluster(tmp_path, (1,))
    c.submit({}, then_s=1.1)
    said = replace(c.nodes[0].observed())
    c.nodes[0].end(0, 0, then_s=0.6)
    answer = c.engine.observe(said, c.now)  # running, says an old message
    assert answer.attempts == []
    assert answer.keep == []
    assert c.state(0) == "finished"
    assert all(s.state != ENDED for s in c.nodes[0].seen.values())
    c.store.close()


# -- what jobs and agents say that cannot be: the log, the policy and the other jobs must not suffer from it ---


Make = Callable[..., Cluster]


def started(cluster: Make, policy: str = "muri-l") -> Cluster:
    """Two jobs that run (of three) on one node."""
    c = cluster(policy=policy)
    for node in c.nodes:
        node.sync()
    c.engine.submit([{"command": ["a", str(i)], "iterations": 1000} for i in range(3)], owner="ann", now_s=c.now)
    go(c, 4)
    return c


def go(c: Cluster, rounds: int, step_s: float = 2.0) -> None:
    for _ in range(rounds):
        c.now += step_s
        for node in c.nodes:
            node.sync()
        c.engine.tick(c.now)


@pytest.mark.parametrize(
    "values",
    [
        {"held_s": math.inf}, {"held_s": math.nan}, {"steps": math.inf}, {"steps": math.nan}, {"steps": -4.0},
        {"step_s": math.inf, "steps": 3.0}, {"step_s": math.nan, "steps": 3.0}, {"stage_s": [math.nan, 1.0]},
        {"total_steps": math.inf}, {"skew": math.nan}, {"gate": "\ud800" * 1000},
        {"profile": Profile([1e308, 1e308, 0.0, 0.0], 1e308, 20)}, {"profile": Profile([1.0], 1.0, 20)},
        {"profile": Profile([math.nan, 1.0, 0.0, 0.0], 1.0, 20)},
    ],
    ids=repr,
)  # fmt: skip
def test_numbers_that_are_none_harm_nobody(cluster: Make, values: dict[str, Any]) -> None:
    c = started(cluster)
    c.nodes[0].report(0, **values)
    go(c, 8)
    assert not c.engine.broken
    assert c.engine.state.policy_error == ""
    for job in c.engine.state.jobs:
        encoded(c.engine.jobs([job], c.now)[job])
    assert Engine(c.store, c.engine.fencing, now_s=c.now).state.seq >= c.engine.state.seq


@pytest.mark.parametrize("reason", ["a\ud800b", "a\0b", "x" * 100_000])
@pytest.mark.parametrize("code", [1, 10**30, -(10**30)])
def test_an_end_that_no_process_has_can_be_stored(cluster: Make, code: int, reason: str) -> None:
    c = started(cluster)
    c.nodes[0].end(0, code, reason=reason)
    go(c, 3)
    stored = c.stored(0)
    assert stored.row.failures == 1
    (failed,) = (a for a in stored.attempts if a.state == "failed")
    (rank,) = failed.ranks
    assert -128 <= rank.exit_code <= 255
    assert len(rank.reason) <= LONGEST_REASON
    rank.reason.encode()
    assert "\0" not in failed.reason


def test_a_report_that_cannot_be_taken_fails_its_job_and_is_logged_by_the_service(
    cluster: Make, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    c = started(cluster)

    def broken(*_: object) -> None:
        raise ZeroDivisionError("no such profile")

    monkeypatch.setattr("plait.live.scheduler.measured._learn", broken)
    c.nodes[0].sync()
    worker = Worker(c.engine, lambda: c.now, lambda versions: None, lambda error: None)
    worker._log_problems()
    record = next(one for one in caplog.records if one.getMessage() == "a report was refused")
    assert isinstance(record.exc_info[1], ZeroDivisionError)
    assert vars(record)["facts"] == {"job": 0, "epoch": 1}
    assert not c.engine.counts.problems
    go(c, 1)
    stored = c.stored(0)
    assert "the agent sent an invalid report about this process: no such profile" in stored.attempts[0].reason


@pytest.mark.parametrize(
    "info",
    [
        NodeInfo("x1", -1), NodeInfo("x1", 10**9), NodeInfo("x1", 1, "g\ud800"), NodeInfo("x1", 1, "gpu", math.nan),
        NodeInfo("x1", 1, cpus=math.inf), NodeInfo("x1", 1, memory_bytes=-1.0), NodeInfo("x1", 1, rack=10**30),
    ],
)  # fmt: skip
def test_hardware_that_no_node_has_is_refused(cluster: Make, info: NodeInfo) -> None:
    c = started(cluster)
    before = c.engine.state.seq
    with pytest.raises(InputError, match="x1"):
        c.engine.observe(Observed(info, "x1-a"), c.now)
    assert c.engine.state.seq == before
    assert not c.engine.broken


def test_what_cannot_be_stored_is_refused_before_it_changes_anything(cluster: Make) -> None:
    c = started(cluster)
    before = c.engine.state.seq
    with pytest.raises(InputError, match="ProfileRecorded: skew is nan"):
        c.engine.context.record(ProfileRecorded(c.now, key="k", skew=math.nan))
    assert (c.engine.broken, c.engine.state.seq) == (False, before)


def test_what_cannot_be_written_down_ends_the_engine_and_not_the_log(cluster: Make) -> None:
    """An entry that was applied but not noted would leave a gap that no restart gets over."""
    c = started(cluster)
    with pytest.raises(TypeError, match="JSON"):
        c.engine.context.record(ProfileRecorded(c.now, key="k", skew=0.5, like=[object()]))  # type: ignore[list-item]
    assert c.engine.broken
    assert Engine(c.store, c.engine.fencing, now_s=c.now).state.seq < c.engine.state.seq


def test_two_agents_of_one_name_do_not_both_get_the_work(cluster: Make) -> None:
    """The newer one has the node; the other, perhaps on another machine, is told to stop what it still runs."""
    c = started(cluster)
    first = c.nodes[0]
    assert first.jobs()
    told = first.observed()
    new = c.engine.observe(Observed(first.info, "another machine"), c.now)
    assert c.engine.observe(told, c.now).attempts == []
    c.engine.tick(c.now + 1.5)
    new = c.engine.observe(Observed(first.info, "another machine", new.term, new.version), c.now + 1.6)
    assert new.attempts
    assert {run.epoch for run in new.attempts} == {2}  # which keeps the processes of the first one out


# -- what must not grow with the jobs that ever were, and what must not wait for others -------------------


def done_with(c: Cluster, count: int) -> None:
    """So many jobs come and are cancelled."""
    with c.engine.batch():
        for _ in range(count):
            (number,) = c.submit({"iterations": 10})
            c.engine.cancel(number, c.now)


def test_snapshots_and_forecasts_are_about_jobs_that_have_not_ended(
    cluster: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_module, "RECENT", 5)
    c = cluster((2,), snapshot_weight=1.0)
    first, waiting = c.submit({"iterations": 100}, {"gpus": 2, "iterations": 50}, then_s=2)
    c.nodes[0].report(first, steps=50.0, step_s=0.5)
    sizes, answers = [], []
    for count in (20, 200):
        done_with(c, count)
        c.pass_s(2)
        sizes.append(len(json.dumps(c.engine.state.to_json())))
        answers.append(len(json.dumps(c.engine.state_for_forecast(c.now)())))
    assert sizes[1] < sizes[0] + 200 * 11 + 300  # their service, eight bytes a job
    assert answers[1] < answers[0] + 200 * 11 + 20_000
    c.restart(then_s=2)
    assert c.engine.state.numbers == 222
    assert {c.state(first), c.state(waiting)} == {"running", "waiting"}
    data = json.loads(json.dumps(c.engine.state_for_forecast(c.now)()))
    etas = {data["job_numbers"][i]: eta for i, eta in forecast(controller_of(data), runs=2).etas.items()}
    assert set(etas) == {first, waiting}
    assert etas[first].start is None
    (new,) = c.submit({})
    assert new == 222


def test_what_jobs_run_is_not_in_the_state_for_forecasts(cluster: Make) -> None:
    c = cluster((1,))
    c.submit({"command": ["hush"], "env": {"hush": "hush"}, "workdir": "/hush", "name": "hush", "retries": 0}, then_s=2)
    c.nodes[0].end(0, 1, reason="hush", then_s=2)
    assert c.state(0) == "failed"
    assert "hush" not in json.dumps(c.engine.state_for_forecast(c.now)())


def test_a_snapshot_is_written_when_it_is_ready_and_goes_on_the_same(cluster: Make) -> None:
    c = cluster((2,), snapshot_weight=3.0)
    waiting: list[tuple[Callable[[], bytes], Future[bytes]]] = []

    def later(work: Callable[[], bytes]) -> Future[bytes]:
        waiting.append((work, Future()))
        return waiting[-1][1]

    c.store.close()
    c.store = type(c.store).open(c.home / "plait.db")
    c.engine = Engine(c.store, Fences(Layout(c.home)), now_s=c.now, options=c.options, later=later)
    before = c.store.load()[0]
    c.submit({}, {}, {}, then_s=2)
    taken_at = c.engine.state.seq
    assert len(waiting) == 1  # one at a time, however much happens meanwhile
    assert c.store.load()[0] == before
    c.submit({})
    waiting[0][1].set_result(waiting[0][0]())
    c.submit({})
    found, tail = c.store.load()
    assert found["seq"] <= taken_at
    state = State.from_json(found)
    assert state.seq + len(list(tail)) == c.engine.state.seq
    jobs = c.engine.status(c.now).jobs
    c.restart(then_s=0.1)
    assert c.engine.status(c.now).jobs == jobs


def test_what_is_packed_in_parts_is_the_same_json() -> None:
    import zlib

    value = {"a": [{"b": list(range(1000)), "c": {}}] * 250, "d": [], "e": None, "é": "ü", "f": {"1": [1.5, None]}}
    assert json.loads(zlib.decompress(pack(value))) == value
    with pytest.raises(ValueError, match="JSON"):
        pack({"a": [float("nan")] * 500})


def test_profiles_for_later_jobs_are_not_kept_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fold_module, "MOST_LEARNT", 3)
    state = State()
    for i in [0, 1, 2, 0, 3]:
        apply(state, ProfileRecorded(1.0, key=f"k{i}", skew=0.5))
    assert list(state.learnt) == ["k2", "k0", "k3"]


# -- decisions before the round -------------------------------------------------------------------------


def decided(c: Cluster) -> int:
    return c.types().count("ReplanDue")


def test_a_job_that_arrives_while_gpus_are_free_does_not_wait_for_the_round(
    cluster: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rounds_module, "REST", 0.0)  # however long the decision before took on this machine
    c = cluster((4,), round_s=5.0, jobs=[{}], then_s=1)
    before = decided(c)
    c.submit({})
    wake_s = c.engine.tick(c.now)
    assert decided(c) == before  # others may come right after it
    assert wake_s <= c.now + 0.06
    c.now += 0.06
    c.engine.tick(c.now)
    assert decided(c) == before + 1
    assert c.state(1) == "starting"


def test_early_decisions_are_few(cluster: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds_module, "REST", 0.0)  # however long decisions take on this machine
    c = cluster((64,), round_s=5.0, jobs=[{}], then_s=1)
    before, begin = decided(c), c.now
    while c.now < begin + 2.0:
        c.now += 0.02
        c.submit({})
    assert before + 4 <= decided(c) <= before + 2.0 / 0.25


def test_a_job_that_finds_no_free_gpus_waits_for_the_round(cluster: Make) -> None:
    c = cluster((2,), round_s=60.0, jobs=[{"gpus": 2}], then_s=1)
    before = decided(c)
    c.submit({}, then_s=5)
    assert decided(c) == before


def test_questions_have_an_end(cluster: Make) -> None:
    """Those asked while too many wait are told so; those asked again are not asked again."""
    c = cluster((1,), jobs=[*[{} for _ in range(20)]], then_s=2)
    what_if = WhatIfService(c.store)
    try:
        asked: list[Future[list[dict[str, object]]]] = []
        first = what_if.explain(c.engine, 1, c.now)[1]
        assert first is not None
        stuck: Future[None] = Future()
        what_if._pool.submit(stuck.result)
        for number in range(1, 20):
            question = what_if.explain(c.engine, number, c.now)[1]
            assert question.copy is first.copy
            if (answer := what_if.ask(question)) is not None:
                asked.append(answer)
        assert len(asked) == 16
        stuck.set_result(None)
        assert asked[0].result()[0].jobs == ["j-0"]
    finally:
        what_if.close()


def test_reports_of_many_nodes_in_one_batch_are_acted_upon_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    passes = []

    def counted(ctx: Context, next_epoch: NextEpoch) -> bool:
        passes.append(ctx.now_s)
        return reconcile(ctx, next_epoch)

    monkeypatch.setattr(engine_module, "reconcile", counted)
    disk = MemoryDisk()
    agents = [SimulatedAgent(NodeInfo(f"n{i}", 1), lambda run: Program(steps=0), disk) for i in range(40)]
    fleet = Fleet(tmp_path, agents, policy="fifo-backfill", options=Options(round_s=0.5), disk=disk)
    fleet.sync()
    fleet.engine.submit([{"command": ["true"], "gpus": 1}] * 40, owner="ann", now_s=0.1)
    fleet.pass_s(5)
    fleet.close()
    assert fleet.engine.counts.left
    assert not fleet.engine.state.live
    assert len(passes) < 40  # forty processes began and ended, each told by a report of its own
