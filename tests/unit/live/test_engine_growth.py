"""What must not grow with the jobs that ever were, and what must not wait for others."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

import pytest
from live_cases import Cluster

from plait.live.fencing import Fences
from plait.live.layout import Layout
from plait.live.protocol.wire import NodeInfo
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
from plait.live.store import pack
from plait.outlook.eta import forecast
from plait.outlook.queue import controller_of
from plait.testing.fleet import Fleet, MemoryDisk, Program, SimulatedAgent

Make = Callable[..., Cluster]


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
    first, waiting = c.submit({"iterations": 100}, {"gpus": 2, "iterations": 50})
    c.pass_s(2)
    c.nodes[0].report(first, steps=50.0, step_s=0.5)
    sizes, answers = [], []
    for count in (20, 200):
        done_with(c, count)
        c.pass_s(2)
        sizes.append(len(json.dumps(c.engine.state.to_json())))
        answers.append(len(json.dumps(c.engine.state_for_forecast(c.now)())))
    assert sizes[1] < sizes[0] + 200 * 11 + 300  # their service, eight bytes a job
    assert answers[1] < answers[0] + 200 * 11 + 20_000
    c.restart()
    c.pass_s(2)
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
    c.submit({"command": ["hush"], "env": {"hush": "hush"}, "workdir": "/hush", "name": "hush", "retries": 0})
    c.pass_s(2)
    c.nodes[0].end(0, 1, reason="hush")
    c.pass_s(2)
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
    c.submit({}, {}, {})
    c.pass_s(2)
    taken_at = c.engine.state.seq
    assert len(waiting) == 1  # one at a time, however much happens meanwhile
    assert c.store.load()[0] == before
    c.submit({})
    waiting[0][1].set_result(waiting[0][0]())
    c.submit({})
    found, tail = c.store.load()
    assert found is not None
    assert found["seq"] <= taken_at
    state = State.from_json(found)
    assert state.seq + len(list(tail)) == c.engine.state.seq
    jobs = c.engine.status(c.now).jobs
    c.restart()
    c.pass_s(0.1)
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
    c = cluster((4,), round_s=5.0)
    c.submit({})
    c.pass_s(1)
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
    c = cluster((64,), round_s=5.0)
    c.submit({})
    c.pass_s(1)
    before, begin = decided(c), c.now
    while c.now < begin + 2.0:
        c.now += 0.02
        c.submit({})
    assert before + 4 <= decided(c) <= before + 2.0 / 0.25


def test_a_job_that_finds_no_free_gpus_waits_for_the_round(cluster: Make) -> None:
    c = cluster((2,), round_s=60.0)
    c.submit({"gpus": 2})
    c.pass_s(1)
    before = decided(c)
    c.submit({})
    c.pass_s(5)
    assert decided(c) == before


def test_questions_have_an_end(cluster: Make) -> None:
    """Those asked while too many wait are told so; those asked again are not asked again."""
    c = cluster((1,))
    c.submit(*[{} for _ in range(20)])
    c.pass_s(2)
    what_if = WhatIfService(c.store)
    try:
        asked: list[Future[list[dict[str, object]]]] = []
        first = what_if.explain(c.engine, 1, c.now)[1]
        assert first is not None
        stuck: Future[None] = Future()
        what_if._pool.submit(stuck.result)
        for number in range(1, 20):
            question = what_if.explain(c.engine, number, c.now)[1]
            assert question is not None
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
