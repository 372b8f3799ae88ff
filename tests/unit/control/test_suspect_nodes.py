"""A node that is silent but not lost: what runs there stays, and nothing new starts there, under every policy."""

import json
from dataclasses import dataclass, replace

import numpy as np
import pytest

from plait.control import messages
from plait.control.controller import Controller
from plait.control.snapshot import restore, snapshot
from plait.core.cluster import Cluster
from plait.core.jobs import JobBatch, JobSpec
from plait.core.plan import Gate, Group, Member, Plan
from plait.core.policy import Policy, View
from plait.core.resources import StageProfile
from plait.placement import place
from plait.policies.catalog import make_policy

POLICIES = (
    "fifo", "fifo-backfill", "yarn-cs", "srtf", "tiresias-l", "themis", "gandiva", "drf", "muri-s", "muri-l", "pollux",
    "optimus",
)  # fmt: skip


def job(name: str, gpus: int = 1, iterations: float = 1000.0) -> JobSpec:
    profile = StageProfile.of(cpu=0.4, gpu=0.6)
    return JobSpec(id=name, gpus=gpus, iterations=iterations, iteration_s=1.0, profile=profile)


def handle(c: Controller, *events: messages.Event) -> None:
    for event in events:
        c.handle(messages.from_json(json.loads(json.dumps(messages.to_json(event)))))  # type: ignore[arg-type]


def submit(c: Controller, at_s: float, *specs: JobSpec) -> None:
    handle(c, messages.JobSubmitted(at_s, c.job_store.count, JobBatch.of(specs)), messages.ReplanDue(at_s))


def on(c: Controller, node: int) -> set[int]:
    """Jobs with GPUs on a node."""
    columns, cluster = c.job_store.columns, c.cluster
    return {
        int(number)
        for number in c.active
        if columns["running_group"][number] >= 0
        and node in cluster.gpu_node[list(c.running[int(columns["running_group"][number])].gpus)].tolist()
    }


def progressed(c: Controller, at_s: float) -> None:
    """Everything that runs has run since the beginning."""
    jobs = np.array([n for n in c.active.tolist() if c.job_store.columns["running_group"][n] >= 0])
    done = np.full(len(jobs), at_s)
    handle(c, messages.ProgressReported(at_s, jobs, done, done, done, np.full(len(jobs), np.nan)))


@pytest.mark.parametrize("name", POLICIES)
def test_a_silent_node_keeps_its_work_and_gets_no_other(name: str) -> None:
    c = Controller(make_policy(name), Cluster.parse("3x2"))
    submit(c, 0.0, job("a"), job("b"), job("c"))
    silent = int(c.cluster.gpu_node[c.running.gpus[0]])
    before = on(c, silent)
    assert before
    progressed(c, 100.0)
    handle(c, messages.NodeSuspected(100.0, f"n{silent}", suspect=True))
    commands = list(c.handle(messages.ReplanDue(100.0)))
    for i in range(6):
        submit(c, 200.0 + 400 * i, *[job(f"new{i}-{k}", iterations=10.0) for k in range(3)])
        commands += c.handle(messages.ReplanDue(500.0 + 400 * i))
        assert on(c, silent) == before
    assert not before.intersection(n for s in commands if isinstance(s, messages.Stop) for n in s.jobs.tolist())
    others = {n for n in c.active.tolist() if c.job_store.columns["running_group"][n] >= 0} - before
    assert len(others) >= 4, "the GPUs of the other nodes are used"
    handle(c, messages.NodeSuspected(3000.0, f"n{silent}", suspect=False), messages.ReplanDue(3000.0))
    assert c.cluster.all_up
    assert len(on(c, silent)) >= 2


@pytest.mark.parametrize("name", POLICIES)
def test_a_silent_node_that_is_lost_gives_its_jobs_back(name: str) -> None:
    c = Controller(make_policy(name), Cluster.parse("2x2"))
    submit(c, 0.0, job("a", 2), job("b", 2))
    silent = int(c.cluster.gpu_node[c.running.gpus[0]])
    before = on(c, silent)
    handle(c, messages.NodeSuspected(10.0, f"n{silent}", suspect=True), messages.ReplanDue(10.0))
    again = restore(json.loads(json.dumps(snapshot(c))), c.policy)
    for one in (c, again):
        assert on(one, silent) == before
        (stop,) = one.handle(messages.NodeLost(300.0, f"n{silent}"))
        assert isinstance(stop, messages.Stop)
        assert set(stop.jobs.tolist()) == before
        handle(one, messages.ReplanDue(300.0))
        assert not on(one, silent)


def test_a_gang_across_a_silent_node_and_another_stays_whole() -> None:
    c = Controller(make_policy("fifo-backfill"), Cluster.parse("2x2"))
    submit(c, 0.0, job("wide", 3))
    assert on(c, 0) == on(c, 1) == {0}
    free = int(c.cluster.gpu_node[next(iter(set(range(4)) - set(c.running.gpus.tolist())))])
    handle(c, messages.NodeSuspected(10.0, f"n{free}", suspect=True))
    submit(c, 20.0, job("small"))
    assert on(c, free) == {0}
    assert on(c, 1 - free) == {0}
    handle(c, messages.NodeSuspected(30.0, f"n{free}", suspect=False), messages.ReplanDue(30.0))
    assert on(c, free) == {0, 1}


@dataclass(frozen=True)
class Joins:
    """All jobs in one group on the GPUs of the first, whatever happened to its node."""

    def decide(self, view: View) -> Plan:
        return Plan.of([Group(tuple(Member(int(n)) for n in view.jobs.number), (0,), Gate.TOKENS)])


@dataclass(frozen=True)
class JoinsWithReasons(Joins):
    """The same, and a reason for everybody."""

    def decide(self, view: View) -> Plan:
        return replace(super().decide(view), reasons=dict.fromkeys(view.jobs.number.tolist(), "not yet"))


@dataclass(frozen=True)
class Pairs:
    """`place` with every second job as the company of the one before it."""

    def decide(self, view: View) -> Plan:
        rows = range(len(view.jobs))
        pairs = {row: (row + 1,) for row in rows[:-1:2]}
        return place(view, np.array(rows[::2]), companions=pairs)


@pytest.mark.parametrize("policy", [Joins(), JoinsWithReasons(), Pairs()])
def test_nobody_joins_a_group_on_a_silent_node(policy: Policy) -> None:
    c = Controller(policy, Cluster.parse("2x1"))
    submit(c, 0.0, job("a"))
    handle(c, messages.NodeSuspected(10.0, "n0", suspect=True))
    c.handle(messages.JobSubmitted(20.0, 1, JobBatch.of([job("b")])))
    launched = [one for one in c.handle(messages.ReplanDue(20.0)) if isinstance(one, messages.Launch)]
    assert on(c, 0) == {0}
    if isinstance(policy, Pairs):
        assert on(c, 1) == {1}, "it starts by itself on the other node"
    else:
        assert not launched
        assert "not reported" in c.plan.reasons[1]
    handle(c, messages.NodeSuspected(30.0, "n0", suspect=False), messages.ReplanDue(30.0))
    assert on(c, 0) == {0, 1}
