"""A job that moves trains on until its next processes are ready, and goes on without them whatever happens to them."""

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from live_cases import Cluster, Node
from local_agent import LocalAgent

from plait.core.goodput import Estimate
from plait.core.plan import Plan
from plait.core.policy import Policy, View
from plait.live.layout import make_private
from plait.live.protocol.wire import ENDED, RUNNING, STARTING, Assignment, GroupInfo, Observed, Run, Seen
from plait.live.system import procs
from plait.outlook.log_replay import replay, stored_rows
from plait.policies.catalog import make_policy


@dataclass(frozen=True)
class Sized:
    """Gives each job as many GPUs as `SIZES` has at the time."""

    name: str = "sized"
    inner: Policy = field(default_factory=lambda: make_policy("smallest-first"))

    def decide(self, view: View) -> Plan:
        """All jobs, at that size."""
        gpus = view.jobs.max_gpus * 0 + [gpus for at_s, gpus in SIZES if at_s <= view.now_s][-1]
        sized = view.jobs.subset(view.jobs.number, gpus=gpus)
        plan = self.inner.decide(replace(view, jobs=sized))
        return replace(plan, settled=False, valid_until_s=view.now_s + 1.0)


class SuccessorNode(Node):
    """An agent that has successors; those of `ready` ranks are."""

    ready: tuple[int, ...] = ()

    def observed(self) -> Observed:
        """What it says, with the successors of its last answer that are ready."""
        listed = [] if self.answer is None else self.answer.successors
        return replace(
            super().observed(), successors=[[r.job, r.epoch, r.rank] for r in listed if r.rank in self.ready]
        )


#: How many GPUs the policy of these tests gives to a job, from which time on.
SIZES = [(0.0, 1)]


@pytest.fixture
def moving(tmp_path: Path) -> Iterator[Cluster]:
    """A job that runs on one GPU of four and has saved."""
    SIZES[1:] = []
    c = Cluster(tmp_path, (2, 2), f"{__name__}:Sized", overlap_s=30.0)
    c.nodes = [SuccessorNode(c, f"n{i}", 2) for i in range(2)]
    c.pass_s(1)
    c.submit({"gpus": 1, "min_gpus": 1, "max_gpus": 4}, then_s=3)
    for node in c.nodes:
        node.report(0, steps=5.0, step_s=0.1, first_step_s=1.0, last_step_s=2.0)
    c.pass_s(20)  # a policy lets it run for a while before it stops it
    yield c
    c.store.close()


def grow(c: Cluster, gpus: int, seconds: float = 3.0) -> None:
    """The policy gives the job so many GPUs."""
    SIZES.append((c.now - 0.1, gpus))
    c.pass_s(seconds)


def epochs(c: Cluster) -> set[tuple[int, bool]]:
    """Attempts that are assigned, and whether they are to stop."""
    return {(run.epoch, run.stop) for node in c.nodes for run in c.engine.assignment(node.info.id).attempts}


def waiting(c: Cluster) -> list[tuple[str, int, int, int]]:
    """Node, epoch, rank and number of ranks of each process that is to start beside the attempt."""
    nodes = [node.info.id for node in c.nodes]
    return [(n, run.epoch, run.rank, run.world) for n in nodes for run in c.engine.assignment(n).successors]


def test_a_job_that_moves_trains_on_until_all_its_next_processes_are_ready(moving: Cluster) -> None:
    c = moving
    before = c.nodes[0].seen
    assert epochs(c) == {(1, False)}
    assert waiting(c) == []
    grow(c, 3)
    assert epochs(c) == {(1, False)}
    assert waiting(c) == [("n0", 2, 0, 3), ("n0", 2, 1, 3), ("n1", 2, 2, 3)]
    assert all(key[1] == 1 for key in before)  # nothing of the next attempt has begun
    c.nodes[0].ready = (0, 1)  # type: ignore[attr-defined]
    c.pass_s(3)
    assert epochs(c) == {(1, False)}
    c.nodes[1].ready = (2,)  # type: ignore[attr-defined]
    c.nodes[1].sync()
    c.engine.tick(c.now)
    assert epochs(c) == {(1, True)}
    assert len(waiting(c)) == 3  # they wait for the old attempt to end
    c.pass_s(1)
    assert epochs(c) == {(2, False)}
    assert waiting(c) == []
    assert c.engine.context.successors == {}
    entry = next(e for e in c.store.entries() if e.type == "StopAsked")
    assert json.loads(entry.entry)["why"] == "moved"
    c.store.close()
    found = replay(list(stored_rows(c.store)))
    assert found.difference is None


def test_the_plan_with_which_successors_wait_is_recorded_and_runs_whatever_is_estimated_meanwhile(
    moving: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    c, batch = moving, {"initial": 64, "most": 64, "most_local": 64, "accumulation": True}
    c.engine.state.jobs[0].request["batch"] = batch | {"parameters": 10**9, "example_bytes": 10**9}
    goodput = c.controller.job_store.columns["goodput"]
    monkeypatch.setattr(type(c.controller.cluster), "node_gpu_memory_bytes", np.full(2, 20e9))
    goodput[0, : Estimate.SQR] = [0.02, 0.01, 5.0, 0.02, 5.0, 0.01, 1.6]  # exchanges cost all
    grow(c, 2)
    planned = {run.env["PLAIT_BATCH"] for run in c.engine.assignment("n0").successors}
    goodput[0, : Estimate.SQR] = [5.0, 0.01, 0.01, 0.0, 0.01, 0.0, 1.6]  # now passes do
    c.nodes[0].ready = (0, 1)  # type: ignore[attr-defined]
    c.pass_s(3)
    assert epochs(c) == {(2, False)}
    assert {run.env["PLAIT_BATCH"] for run in c.engine.assignment("n0").attempts} == planned
    assert len(planned) == 1
    began = [json.loads(e.entry) for e in c.store.entries() if e.type == "AttemptBegan"]
    assert [b.get("limits") for b in began] == [None, json.loads(planned.pop())]
    c.restart()
    assert c.engine.state.jobs[0].live.limits.zero_stage == began[1]["limits"]["zero_stage"]


def test_an_overlapped_start_does_not_make_later_stops_look_cheap(moving: Cluster) -> None:
    """The next start may be cold, and a policy that believes in a second would stop the job again and again."""
    before_s = float(moving.engine.state.controller.job_store.columns["restart_s"][0])
    for node in moving.nodes:
        node.ready = (0, 1)
    grow(moving, 2, 10.0)
    assert moving.engine.state.jobs[0].live.epoch == 2
    for node in moving.nodes:
        node.report(0, steps=9.0, step_s=0.1, first_step_s=0.01, last_step_s=0.2)
    moving.pass_s(3)
    assert float(moving.engine.state.controller.job_store.columns["restart_s"][0]) == before_s > 0


@pytest.mark.parametrize("why", ["silent", "older", "late", "off", "unsaved"])
def test_nobody_waits_for_what_will_not_come(moving: Cluster, why: str) -> None:
    c = moving
    if why == "older":
        c.nodes = [Node(c, f"n{i}", 2) for i in range(2)]
        for node in c.nodes:
            node.seen = {(0, 1, 0): Seen(0, 1, 0, RUNNING, saves="yes")} if node.info.id == "n0" else {}
            node.agent += "old"
        c.pass_s(1)
    if why == "off":
        object.__setattr__(c.engine.context.options, "overlap_s", 0.0)
    if why == "unsaved":
        c.nodes[0].report(0, saves="", then_s=1)
    grow(c, 4, 1.0)
    if why == "late":
        c.pass_s(25)
        assert epochs(c) == {(1, False)}
        c.pass_s(7)
    if why == "silent":
        assert epochs(c) == {(1, False)}
        c.nodes[0].ready = (0, 1)  # type: ignore[attr-defined]
        c.pass_s(5, silent=["n1"])  # its GPUs are no place for the job any more, and neither is what waits there
        assert c.engine.context.successors == {}
        return
    c.pass_s(2)
    assert epochs(c) == {(2, False)}
    assert [e.type for e in c.store.entries()].count("AttemptBegan") == 2


def test_another_plan_and_another_service_begin_again(moving: Cluster) -> None:
    c = moving
    grow(c, 3)
    assert len(waiting(c)) == 3
    grow(c, 2)
    assert [rank for _, _, rank, _ in waiting(c)] == [0, 1]
    grow(c, 1)
    assert (waiting(c), epochs(c)) == ([], {(1, False)})
    grow(c, 4, 20)
    assert len(waiting(c)) == 4
    c.restart(then_s=3)
    assert len(waiting(c)) == 4
    assert epochs(c) == {(1, False)}
    c.engine.cancel(0, c.now)
    c.pass_s(2)
    assert (waiting(c), epochs(c)) == ([], set())


def test_the_end_of_the_running_attempt_does_not_wait(moving: Cluster) -> None:
    """It fails while its next processes wait; these become the next attempt, which has their number and their GPUs."""
    c = moving
    grow(c, 3)
    c.nodes[0].end(0, 1, reason="boom", then_s=2)
    assert (epochs(c), waiting(c)) == ({(2, False)}, [])


def test_a_rank_that_left_before_the_service_began_again_holds_up_no_move(moving: Cluster) -> None:
    c = moving
    grow(c, 2, 35)  # without successors, which are not ready
    assert epochs(c) == {(2, False)}
    c.nodes[0].report(0, steps=5.0, step_s=0.1, first_step_s=1.0, last_step_s=2.0)
    c.nodes[0].end(0, 0, rank=1, then_s=3)
    c.restart(then_s=3)
    grow(c, 4, 5)
    assert epochs(c) == {(3, False)}


# -- the agent -----------------------------------------------------------------------------------------------------

SCRIPT = """
import json, os, sys, time
with open(sys.argv[1], "a") as file:
    file.write(json.dumps({"pid": os.getpid(), "epoch": os.environ["PLAIT_EPOCH"], "port": os.environ["MASTER_PORT"],
                           "loaded": "colorsys" in sys.modules, "waits": "PLAIT_SUCCESSOR" in os.environ}) + "\\n")
time.sleep(float(sys.argv[2]))
"""


@dataclass
class Local:
    """An agent of this process and a job that it can start."""

    agent: LocalAgent
    out: Path
    command: list[str]

    def run(self, epoch: int, **more: Any) -> Run:
        return Run(5, epoch, 0, 1, self.command, [0], GroupInfo("g1"), workdir=str(self.out.parent), **more)

    def record(self, command: list[str] | None = None) -> None:
        """As an earlier attempt of the job leaves it."""
        folder = make_private(self.agent.layout.job(5))
        start = {"argv": self.command if command is None else command, "modules": ["colorsys", "no_such_module"]}
        (folder / "start.json").write_text(json.dumps(start))

    def want(self, *runs: Run, successors: tuple[Run, ...] = ()) -> Observed:
        """Give an assignment to the agent."""
        self.agent.version += 1
        told = self.agent.agent.observe(0.0)
        answer = Assignment(1, self.agent.version, 60.0, list(runs), successors=list(successors))
        assert self.agent.agent.obey(answer, told, procs.boot_s())
        self.agent.agent._advance()
        return self.agent.agent.observe(0.0)

    def until(self, true: Callable[[], bool]) -> None:
        while not true():
            self.agent.agent._wait()

    def settled(self) -> list[list[int]]:
        return self.agent.agent.observe(0.0).successors or []

    def began(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.out.read_text().splitlines()] if self.out.exists() else []


@pytest.fixture
def local(tmp_path: Path) -> Iterator[Local]:
    (tmp_path / "train.py").write_text(SCRIPT)
    agent = LocalAgent(tmp_path / "home")
    agent.agent.link.ever = True
    out = tmp_path / "out"
    found = Local(agent, out, [sys.executable, "train.py", str(out), "0.3"])
    yield found
    found.want()
    found.until(lambda: all(a.state == ENDED for a in agent.agent.attempts.values()))
    assert not agent.agent.successors
    agent.close()


def test_a_process_that_waited_becomes_that_of_the_attempt(local: Local) -> None:
    local.record()
    local.want(successors=(local.run(3),))
    (successor,) = local.agent.agent.successors.values()
    local.until(lambda: local.settled() == [[5, 3, 0]])
    assert successor.ready
    assert successor.process is not None
    time.sleep(0.3)  # the attempt has its GPUs from its beginning on, not from the start of the process
    assert local.began() == []
    local.want(local.run(3, master_port=1234))
    attempt = local.agent.agent.attempts[5, 3, 0]
    assert attempt.process == successor.process
    assert attempt.seen().held_s + 0.3 <= successor.process.age_s
    local.until(lambda: attempt.state == ENDED)
    (said,) = local.began()
    assert said == {"pid": said["pid"], "epoch": "3", "port": "1234", "loaded": True, "waits": False}
    assert (attempt.exit_code, attempt.reason) == (0, None)


def test_an_agent_that_starts_again_counts_from_the_beginning_of_the_attempt(local: Local) -> None:
    local.command[-1] = "30"
    local.record()
    local.want(successors=(local.run(3),))
    local.until(lambda: local.settled() == [[5, 3, 0]])
    time.sleep(0.3)
    local.want(local.run(3))
    attempt = local.agent.agent.attempts[5, 3, 0]
    known = local.agent.agent.journal.memory.attempts[5, 3, 0]
    assert known.began_boot_s > procs.boot_s() - attempt.process.age_s + 0.3
    again = local.agent.agent._new(attempt.run)
    again.began(attempt.process, known.began_boot_s)
    assert again.began_boot_s == pytest.approx(attempt.began_boot_s)
    again.end(None, None)
    local.agent.agent.attempts[5, 3, 0] = attempt


@pytest.mark.parametrize("why", ["killed", "runner killed", "environment", "command", "guest", "not ready"])
def test_an_attempt_starts_as_any_other_without_a_process_that_fits(local: Local, why: str) -> None:
    local.record()
    run = local.run(3)
    local.want(successors=(run,))
    (successor,) = local.agent.agent.successors.values()
    local.until(lambda: local.settled() == [[5, 3, 0]])
    assert successor.process is not None
    if why == "killed":
        for pid in procs.children(successor.process.pid):
            os.kill(pid, signal.SIGKILL)
    elif why == "runner killed":
        successor.process.send(signal.SIGKILL)
    elif why == "environment":
        run = replace(run, env={"A": "1"})
    elif why == "command":
        run = replace(run, argv=[*run.argv[:-1], "0.31"])
    elif why == "guest":
        run = replace(run, group=GroupInfo("g1", guest=True))
        local.agent.agent.coordinator.start()  # a guest runs while somebody gives it a share
    else:
        successor.ready = False
    local.want(run)
    attempt = local.agent.agent.attempts[5, 3, 0]
    local.until(lambda: attempt.state == ENDED)
    assert (attempt.exit_code, attempt.reason) == (0, None)
    (said,) = local.began()  # once
    assert (said["epoch"], said["loaded"], said["waits"]) == ("3", False, False)
    local.until(lambda: successor.process is not None and not successor.process.alive)


def test_what_is_not_wanted_any_more_ends_without_having_begun(local: Local) -> None:
    local.record()
    local.want(successors=(local.run(3),))
    (first,) = local.agent.agent.successors.values()
    local.until(lambda: local.settled() == [[5, 3, 0]])
    local.want(successors=(local.run(4),))
    assert list(local.agent.agent.successors) == [(5, 4, 0)]
    (second,) = local.agent.agent.successors.values()
    local.agent.agent._stop_all()  # the node leaves
    for successor in (first, second):
        assert successor.process is not None
        local.until(lambda s=successor: not s.process.alive)  # type: ignore[misc]
    assert procs.marked(first.env[procs.MARK]) == []
    assert local.began() == []


@pytest.mark.parametrize("record", [None, ["bash", "-c", "python train.py"]])
def test_nothing_waits_for_a_command_that_was_not_seen_to_wait(local: Local, record: list[str] | None) -> None:
    if record is not None:
        local.record(record)
    told = local.want(successors=(local.run(3),))
    assert told.successors == [[5, 3, 0]]  # nobody waits for it
    assert all(successor.process is None for successor in local.agent.agent.successors.values())
    local.want(local.run(3))
    assert local.agent.agent.attempts[5, 3, 0].state in (STARTING, RUNNING)
