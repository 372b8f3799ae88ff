"""Simulated nodes: agents that follow the protocol of real ones, with simulated processes.

    fleet = Fleet(home, [SimulatedAgent(NodeInfo(f"n{i}", 8), program) for i in range(4)], policy="muri-l")
    fleet.engine.submit([{"command": ["train"]}], owner="ann", now_s=fleet.now_s)
    fleet.pass_s(10.0)

Time is given to every call, so a day of a thousand nodes takes as long as the scheduler needs for it. An agent's
refusals (lower terms, lower epochs, old versions), its journal, which survives its death, and its losses with its
machine are as in `plait.live.agent`; the contract suite runs the same script against both.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

from plait.live.agent.lease import Lease
from plait.live.fencing import Fences
from plait.live.layout import Layout
from plait.live.protocol.leases import LEASE_SHARE, LOST_S
from plait.live.protocol.wire import ENDED, PREEMPTED, STARTING, Ask, Assignment, NodeInfo, Observed, Reply, Run
from plait.live.scheduler.engine import Engine
from plait.live.scheduler.options import Options
from plait.live.store import Store
from plait.testing.programs import Disk, Held, Key, MemoryDisk, Process, Program

_LEAVES = "its node is leaving"


class SimulatedAgent:
    """A node with its agent. Agent and node may die or stop responding; processes survive only the agent's death."""

    def __init__(self, node: NodeInfo, program: Callable[[Run], Program], disk: Disk | None = None) -> None:
        """`program` returns the program of a run's process; `disk` is shared by the nodes of a cluster."""
        self.node, self.program, self.disk = node, program, disk or MemoryDisk()
        #: The journal of a real agent, which survives its death.
        self.term, self.epochs = 0, dict[int, int]()
        self.held: dict[Key, Held] = {}
        #: All processes that were started here: their logs stay on the disk.
        self.processes: dict[Key, Process] = {}
        #: Whether it runs, and whether it stands still (SIGSTOP): processes run meanwhile.
        self.alive, self.frozen = False, False
        self._births = self._pids = 0
        self.refused: list[str] = []
        #: The lease of the runners, which survives the agent's death; and the time of each request.
        self.lease = Lease(-math.inf, LEASE_SHARE * LOST_S)
        self._asked: deque[tuple[Observed, float]] = deque(maxlen=64)
        self.start()

    def start(self) -> None:
        """A new agent process takes the node, and reattaches to what runs there."""
        self._births += 1
        self.id, self.alive, self.frozen = f"{self.node.id}-{self._births}", True, False
        self.reached, self.ever = 0, False
        self.replies: list[Reply] = []
        self._leave_s = math.inf

    def kill(self) -> None:
        """Kill the agent; processes that it started continue."""
        self.alive = False

    def crash(self, now_s: float) -> None:
        """Crash the machine with everything that runs on it."""
        self.advance(now_s)
        self.alive = False
        for held in self.held.values():
            if held.process is not None:
                held.process.end(now_s, -9, "the machine was restarted while it ran")
                held.collect()

    def leave(self, now_s: float, grace_s: float = 10.0) -> None:
        """Drain the node: the agent gives notice and jobs stop after a checkpoint; once nothing runs, `kill` it."""
        self._leave_s = now_s + grace_s
        for held in self.held.values():
            held.stop(now_s, min(held.run.grace_s, grace_s), _LEAVES, own=True)

    # -- reports -----------------------------------------------------------------------------------------

    def observe(self, now_s: float, wait_s: float = 0.0) -> Observed:
        """The present observation; replies to questions are included once."""
        self.advance(now_s)
        replies, self.replies = self.replies, []
        seen = [held.seen(now_s) for held in self.held.values()]
        words = Observed(self.node, self.id, self.term, self.reached, seen, replies=replies, wait_s=wait_s)
        if self._leave_s < math.inf:
            left_s = max(self._leave_s - now_s, 0.001) if any(held.alive for held in self.held.values()) else 0.0
            words = replace(words, leaving_s=left_s)
        self._asked.append((words, now_s))
        return words

    # -- assignments --------------------------------------------------------------------------------------

    def obey(self, answer: Assignment, report: Observed, now_s: float) -> bool:
        """Apply the assignment `answer` to report `report`; False if its leader was replaced. It is idempotent."""
        asked_s = next((at for words, at in self._asked if words is report), now_s)
        lease = Lease(asked_s, answer.lease_s)
        if now_s >= lease.stop_s():
            return True  # it was under way for as long as the lease
        if answer.term < self.term:
            self.refused.append(f"term {answer.term}: term {self.term} was seen")
            return False
        if answer.term > self.term:
            self.term, self.reached = answer.term, 0
        if lease.asked_s >= self.lease.asked_s:
            self.lease = lease
        if self._leave_s < math.inf:
            for run in answer.attempts:  # assigned before the service knew of the drain
                if (key := (run.job, run.epoch, run.rank)) not in self.held:
                    self.held[key] = Held(run)
                    self.held[key].end(now_s, PREEMPTED, _LEAVES)
            return True
        self.ever = True
        self._forget(answer, report)
        if answer.version >= self.reached:
            self._apply(answer.attempts, now_s)
            self.reached = answer.version
        self.advance(now_s)
        self.replies += [self._answer(ask) for ask in answer.ask]
        return True

    def _forget(self, answer: Assignment, report: Observed) -> None:
        needed = {tuple(key) for key in answer.keep} | {(run.job, run.epoch, run.rank) for run in answer.attempts}
        for seen in report.attempts:
            key = seen.job, seen.epoch, seen.rank
            if seen.state == ENDED and key not in needed:
                self.held.pop(key, None)

    def _apply(self, runs: Iterable[Run], now_s: float) -> None:
        wanted = {(run.job, run.epoch, run.rank): run for run in runs}
        newest = {run.job: run.epoch for run in wanted.values()}
        for key, held in self.held.items():
            if key not in wanted:
                replaced = held.run.epoch < max(self.disk.epoch(held.run.job), newest.get(held.run.job, 0))
                held.stop(now_s, 0.0 if replaced else held.run.grace_s, "no longer wanted")
        for key, run in wanted.items():
            held = self.held.get(key) or self._accept(key, run, now_s)
            held.run = replace(held.run, group=run.group, stop=run.stop, grace_s=run.grace_s)
            if run.stop:
                held.stop(now_s, run.grace_s, "preempted")

    def _accept(self, key: Key, run: Run, now_s: float) -> Held:
        held = self.held[key] = Held(run)
        newest = max(self.epochs.get(run.job, 0), self.disk.epoch(run.job))
        if run.epoch < newest:
            why = f"refused: attempt {run.epoch} of job {run.job} was replaced by attempt {newest}"
            self.refused.append(why)
            held.end(now_s, None, why)
        elif run.stop:
            held.end(now_s, PREEMPTED, "stopped before it started")
        elif not all(0 <= gpu < self.node.gpus for gpu in run.gpus):
            held.end(now_s, 126, f"GPUs {run.gpus} were requested; this node has {self.node.gpus}")
        else:
            self.epochs[run.job] = run.epoch
        return held

    def _answer(self, ask: Ask) -> Reply:
        process = self.processes.get((ask.job, ask.epoch, ask.rank))
        if process is None:
            return Reply(ask.id, error=f"no log of process {ask.rank} of attempt {ask.epoch} of job {ask.job}")
        data = process.log.encode()
        at = min(ask.offset if ask.offset >= 0 else max(len(data) + ask.offset, 0), len(data))
        part = data[at : at + ask.limit]
        return Reply(ask.id, part.decode(errors="replace"), at, at + len(part), len(data))

    def advance(self, now_s: float) -> None:
        """Advance the processes; the agent acts on them unless it is dead or stopped."""
        for held in self.held.values():
            if held.process is not None:
                held.process.lapse(now_s, self.lease)
                held.process.advance(now_s)
        if not self.alive or self.frozen:
            return
        in_touch = now_s < self.lease.stop_s()
        for held in self.held.values():
            held.collect()
            if held.state == STARTING and not in_touch:
                held.end(now_s, PREEMPTED, str(self.lease))
        if not (self.ever and in_touch) or self._leave_s < math.inf:
            return
        for key, held in self.held.items():
            if held.state == STARTING and not any(o.alive and not _share(held.run, o.run) for o in self.held.values()):
                self._pids += 1
                self.processes[key] = held.begin(self.program(held.run), self.disk, self._pids, now_s)
            elif held.state == STARTING:
                held.reason = f"attempt {key[1]} of job {key[0]} waits until others have left its GPUs"

    def running(self) -> list[Key]:
        """All processes on the machine."""
        return [key for key, held in self.held.items() if held.process is not None and held.process.ended_s is None]


def _share(new: Run, other: Run) -> bool:
    """Whether `new` may start while `other` has its GPUs."""
    if new.job == other.job and new.epoch != other.epoch:
        return False
    return new.group.id == other.group.id or not set(new.gpus) & set(other.gpus)


class DiskFences(Fences):
    """Fences on the disk of simulated agents."""

    def __init__(self, layout: Layout, disk: Disk) -> None:
        """`layout`: of the home, where epochs of earlier services are looked for."""
        super().__init__(layout)
        self._disk = disk

    def write(self, number: int, epoch: int, first: int) -> None:
        """Write the epoch to the simulated disk; arguments as for `Fences.write`."""
        self._disk.fence(number, epoch, first)


class Fleet:
    """An engine and its agents in one process, on a clock that is moved by hand."""

    def __init__(
        self, home: Path, agents: Iterable[SimulatedAgent] = (), *, policy: str | None = None,
        options: Options | None = None, disk: Disk | None = None,
    ) -> None:  # fmt: skip
        """`disk`: where attempts are fenced; that of the agents."""
        self.home, self.options, self.disk = home, options or Options(), disk or MemoryDisk()
        self.agents = {agent.node.id: agent for agent in agents}
        self.now_s = 0.0
        self.store = Store.open(home / "plait.db")
        self.engine = self._engine(policy)
        #: Questions for the agents of nodes, and what they replied by number.
        self.asks: dict[str, list[Ask]] = {}
        self.replies: dict[int, Reply] = {}
        #: Replacement of an agent's answer: older ones, in any order.
        self.deliver: Callable[[SimulatedAgent, Assignment], list[Assignment]] = lambda agent, answer: [answer]

    def _engine(self, policy: str | None) -> Engine:
        fences = DiskFences(Layout(self.home), self.disk)
        return Engine(self.store, fences, now_s=self.now_s, policy=policy, options=self.options)

    def restart(self) -> None:
        """Restart the service from its store."""
        self.store.close()
        self.store = Store.open(self.home / "plait.db")
        self.engine = self._engine(None)

    def sync(self, only: Iterable[str] | None = None) -> None:
        """Exchange reports and assignments of all agents in one commit, as the service does for a batch."""
        report: dict[str, Observed] = {}
        with self.engine.batch():
            for name in list(self.agents) if only is None else only:
                agent = self.agents[name]
                if not agent.alive or agent.frozen:
                    agent.advance(self.now_s)  # its processes continue
                else:
                    report[name] = agent.observe(self.now_s)
                    self.replies.update({reply.id: reply for reply in report[name].replies})
                    self.engine.observe(report[name], self.now_s)
            self.engine.step(self.now_s)
        for name, words in report.items():
            agent = self.agents[name]
            answer = replace(self.engine.assignment(name, agent.id), ask=self.asks.pop(name, []))
            for one in self.deliver(agent, answer):
                agent.obey(one, words, self.now_s)

    def pass_s(self, seconds: float, every_s: float = 0.25) -> None:
        """Let `seconds` pass; agents exchange reports every `every_s`."""
        until = self.now_s + seconds
        while self.now_s < until - 1e-9:
            self.now_s = min(self.now_s + every_s, until)
            self.sync()

    def close(self) -> None:
        """Close the store of the engine."""
        self.store.close()
