"""Whatever is repeated, late or lost: no job is lost, none runs twice, and a restart changes nothing."""

from __future__ import annotations

import random
import tempfile
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from live_cases import Cluster

from plait.core.errors import Conflict, InputError
from plait.core.jobs import Phase
from plait.live.protocol.wire import ENDED, RUNNING, Assignment, Observed, Run, to_json
from plait.outlook.log_replay import replay, stored_rows
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
        c.submit({})
        c.pass_s(0.6)
        answer = c.nodes[0].sync()
        terms.append(answer.term)
        versions.append(answer.version)
        c.restart()
    c.store.close()
    assert terms == sorted(set(terms))
    assert versions == sorted(versions)


def test_a_message_said_twice_is_written_down_once(tmp_path: Path) -> None:
    c = Cluster(tmp_path, (1,))
    c.submit({})
    c.pass_s()
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
    c.submit({})
    c.pass_s()
    said = replace(c.nodes[0].observed())
    c.nodes[0].end(0, 0)
    c.pass_s(0.6)
    answer = c.engine.observe(said, c.now)  # running, says an old message
    assert answer.attempts == []
    assert answer.keep == []
    assert c.state(0) == "finished"
    assert all(s.state != ENDED for s in c.nodes[0].seen.values())
    c.store.close()
