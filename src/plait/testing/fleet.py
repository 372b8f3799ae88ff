"""Simulated nodes: agents that follow the protocol of real ones, with simulated processes.

    fleet = Fleet(home, [SimulatedAgent(NodeInfo(f"n{i}", 8), program) for i in range(4)], policy="muri-l")
    fleet.engine.submit([{"command": ["train"]}], owner="ann", now_s=fleet.now_s)
    fleet.pass_s(10.0)

Time is given to every call, so a day of a thousand nodes takes as long as the scheduler needs for it. An agent's
refusals (lower terms, lower epochs, old versions), its journal, which survives its death, and its losses with its
machine are as in `plait.live.agent`; the contract suite runs the same script against both. Its processes make
iterations at a pace and save fenced checkpoints. `HttpLink` connects the same agents to a real service.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol
from urllib.parse import urlsplit

from plait.live.agent.lease import Lease
from plait.live.agent.link import PATH
from plait.live.fencing import Fences
from plait.live.layout import Layout
from plait.live.protocol import wire
from plait.live.protocol.leases import LEASE_SHARE, LOST_S
from plait.live.scheduler.engine import Engine
from plait.live.scheduler.options import Options
from plait.live.store import Store

#: (job, epoch, rank).
Key = tuple[int, int, int]


@dataclass(frozen=True)
class Program:
    """Work of a process: so many `steps`, one each `pace_s`, then it ends with `exit_code`.

    It makes a checkpoint `every` so many steps (0 = never) and at a stop request, which takes `stop_s`; a `stubborn`
    one ignores the request and is killed after the grace period. From step `hangs_at` on it makes no more steps.
    `keep`: a name under which its checkpoints are found by later jobs; "" = they are this job's own. `boot_s`: before
    its first step. A `plain` one is a script that does not use plait: it reports nothing, saves nothing, and starts
    from scratch.
    """

    steps: float = math.inf
    pace_s: float = 1.0
    exit_code: int = 0
    every: int = 0
    stop_s: float = 0.0
    stubborn: bool = False
    hangs_at: float = math.inf
    keep: str = ""
    plain: bool = False
    boot_s: float = 0.0

    def process(self, run: wire.Run, disk: Disk, pid: int, now_s: float) -> Process:
        """A process of the program that starts now."""
        return Process(run, self, disk, pid, now_s)


class Disk(Protocol):
    """Where jobs keep checkpoints and the service fences them."""

    def fence(self, job: int, epoch: int, first: int) -> None:
        """Only attempts of a job from this epoch on may commit."""

    def epoch(self, job: int) -> int:
        """The highest attempt of a job that was named; 0 if none was."""

    def newest(self, run: wire.Run, keep: str) -> int:
        """The step that an attempt resumes from."""

    def commit(self, run: wire.Run, keep: str, step: int) -> str:
        """Make a checkpoint count; returns why it does not, "" if it does."""


class MemoryDisk:
    """A `Disk` without files, for clusters of thousands of nodes."""

    def __init__(self) -> None:
        self._epochs: dict[int, int] = {}
        self._newest: dict[str, tuple[int, int]] = {}

    def fence(self, job: int, epoch: int, first: int) -> None:
        self._epochs[job] = max(epoch, self.epoch(job))

    def epoch(self, job: int) -> int:
        return self._epochs.get(job, 0)

    def newest(self, run: wire.Run, keep: str) -> int:
        return self._newest.get(keep or str(run.job), (0, 0))[1]

    def commit(self, run: wire.Run, keep: str, step: int) -> str:
        if run.epoch < self.epoch(run.job):
            return f"attempt {run.epoch} was replaced by attempt {self.epoch(run.job)}: its checkpoints no longer count"
        self._newest[keep or str(run.job)] = max(self._newest.get(keep or str(run.job), (0, 0)), (run.epoch, step))
        return ""


class Process:
    """A process of an attempt; it runs independently of its agent."""

    def __init__(self, run: wire.Run, program: Program, disk: Disk, pid: int, now_s: float) -> None:
        """Start now, from the newest checkpoint."""
        self.run, self.program, self.pid, self.began_s = run, program, pid, now_s
        self._disk = disk
        self.first = self.saved = 0 if program.plain else disk.newest(run, program.keep)
        self._working_s = now_s + program.boot_s
        self.stop_s, self.grace_s, self.lapsed = math.inf, 0.0, ""
        self.saved_s = now_s
        self.ended_s: float | None = None
        self.exit_code: int | None = None
        self.reason: str | None = None
        self.log = f"rank {run.rank} of {run.world}: from step {self.first}\n"

    def steps(self, now_s: float) -> float:
        """Iterations since the beginning of the job."""
        until = min(now_s, self.stop_s, math.inf if self.ended_s is None else self.ended_s)
        made = self.first + math.floor((until - self._working_s) / self.program.pace_s + 1e-9)
        return max(self.first, min(made, self.program.steps, self.program.hangs_at))

    def said(self, now_s: float) -> dict[str, Any]:
        """Further fields of `Seen` from its page, besides the steps."""
        program, steps = self.program, self.steps(now_s)
        if program.plain:
            return {"steps": 0.0}
        begun, booted_s = steps > self.first, self._working_s - self.began_s
        return {
            "step_s": program.pace_s if begun else None,
            "total_steps": program.steps if math.isfinite(program.steps) else None,
            "saves": "yes" if begun else "no_boundary",
            "checkpoint_steps": float(self.saved) if self.saved else None,
            "checkpoint_age_s": max(0.0, min(now_s, self.ended_s or math.inf) - self.saved_s) if self.saved else None,
            "first_step_s": booted_s + program.pace_s if begun else None,
            "last_step_s": booted_s + (steps - self.first) * program.pace_s if begun else None,
        }

    def stop(self, now_s: float, grace_s: float) -> None:
        """Request a stop; a repeated request can only shorten the grace period."""
        self.advance(now_s)
        if self.stop_s == math.inf:
            self.stop_s, self.grace_s = now_s, grace_s
        else:
            self.grace_s = min(self.grace_s, now_s + grace_s - self.stop_s)

    def lapse(self, now_s: float, lease: Lease) -> None:
        """Set the lease of its node: `advance` stops the process shortly before it expires, and kills it then."""
        if self.ended_s is None and now_s >= lease.stop_s(self.run.grace_s):
            at_s = min(lease.stop_s(self.run.grace_s), self.stop_s)
            known_s = self.grace_s if self.stop_s < math.inf else math.inf
            self.stop_s, self.grace_s, self.lapsed = at_s, min(known_s, lease.kill_s - at_s), str(lease)

    def advance(self, now_s: float) -> None:
        """Advance to now: checkpoints that were due, its end."""
        if self.ended_s is not None:
            return
        program, step = self.program, self.steps(now_s)
        while program.every and self.saved + program.every <= step:
            self._save(self.saved + program.every, now_s)
        if step >= program.steps:
            self.log += f"rank {self.run.rank} of {self.run.world}: done at step {step:g}\n"
            self.end(self._working_s + (step - self.first) * program.pace_s, program.exit_code, None)
        elif program.stubborn or program.hangs_at <= step:
            if now_s >= self.stop_s + self.grace_s and self.lapsed:
                self.end(self.stop_s + self.grace_s, wire.PREEMPTED, self.lapsed)
            elif now_s >= self.stop_s + self.grace_s:
                why = f"did not end within {self.grace_s:g} s after SIGTERM, so it was killed"
                self.end(self.stop_s + self.grace_s, -9, why)
        elif now_s >= self.stop_s + program.stop_s:
            self._save(int(step), now_s)
            self.log += f"rank {self.run.rank} of {self.run.world}: stopped at step {step:g}\n"
            self.end(self.stop_s + program.stop_s, wire.PREEMPTED, self.lapsed or None)

    def _save(self, step: int, at_s: float) -> None:
        if self.program.plain:
            return
        self.saved, self.saved_s = step, at_s
        if self.run.rank == 0 and (why := self._disk.commit(self.run, self.program.keep, step)):
            self.log += f"refused: {why}\n"

    def end(self, at_s: float, exit_code: int, reason: str | None) -> None:
        """Note when and how the process ended; later calls change nothing."""
        if self.ended_s is None:
            self.ended_s, self.exit_code, self.reason = at_s, exit_code, reason


@dataclass
class Held:
    """A process of an attempt as its agent knows it."""

    run: wire.Run
    state: str = wire.STARTING
    process: Process | None = None
    exit_code: int | None = None
    reason: str | None = None
    ended_s: float = 0.0
    own: bool = False
    stop_reason: str | None = None

    @property
    def alive(self) -> bool:
        return self.state in (wire.RUNNING, wire.STOPPING)

    def begin(self, program: Program, disk: Disk, pid: int, now_s: float) -> Process:
        process = self.process = program.process(self.run, disk, pid, now_s)
        self.state, self.reason = wire.RUNNING, None
        return process

    def stop(self, now_s: float, grace_s: float, reason: str, *, own: bool = False) -> None:
        """Request its end; `own`: not by request of the service, so it is started again."""
        if self.state == wire.STARTING:
            self.end(now_s, wire.PREEMPTED, reason)
        elif self.state != wire.ENDED and self.process is not None:
            self.state, self.own, self.stop_reason = wire.STOPPING, self.own or own, self.stop_reason or reason
            self.process.stop(now_s, grace_s)
            self.process.advance(now_s)

    def collect(self) -> None:
        """Record whether and how its process has ended."""
        process = self.process
        if self.state == wire.ENDED or process is None or process.ended_s is None:
            return
        code, reason = process.exit_code, process.reason
        if self.own and code in (-9, -15, 137, 143):  # not its failure
            code, reason = wire.PREEMPTED, self.stop_reason
        self.end(process.ended_s, code, reason or (self.stop_reason if code == wire.PREEMPTED else None))

    def end(self, now_s: float, exit_code: int | None, reason: str | None) -> None:
        """Note when and how the process ended."""
        self.state, self.ended_s, self.exit_code, self.reason = wire.ENDED, now_s, exit_code, reason

    def seen(self, now_s: float) -> wire.Seen:
        """The process as reported to the service."""
        run, process = self.run, self.process
        if process is None:
            return wire.Seen(
                run.job, run.epoch, run.rank, self.state, exit_code=self.exit_code, reason=self.reason,
                ended_s_ago=max(0.0, now_s - self.ended_s) if self.state == wire.ENDED else 0.0,
            )  # fmt: skip
        over = self.state == wire.ENDED
        return wire.Seen(
            run.job, run.epoch, run.rank, self.state, process.pid, self.exit_code, self.reason,
            held_s=max(0.0, (self.ended_s if over else now_s) - process.began_s),
            ended_s_ago=max(0.0, now_s - self.ended_s) if over else 0.0,
            **{"steps": float(process.steps(now_s)), **process.said(now_s)},
        )  # fmt: skip


_LEAVES = "its node is leaving"


class SimulatedAgent:
    """A node with its agent. Agent and node may die or stop responding; processes survive only the agent's death."""

    def __init__(self, node: wire.NodeInfo, program: Callable[[wire.Run], Program], disk: Disk | None = None) -> None:
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
        self._asked: deque[tuple[wire.Observed, float]] = deque(maxlen=64)
        self.start()

    def start(self) -> None:
        """A new agent process takes the node, and reattaches to what runs there."""
        self._births += 1
        self.id, self.alive, self.frozen = f"{self.node.id}-{self._births}", True, False
        self.reached, self.ever = 0, False
        self.replies: list[wire.Reply] = []
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

    def observe(self, now_s: float, wait_s: float = 0.0) -> wire.Observed:
        """The present observation; replies to questions are included once."""
        self.advance(now_s)
        replies, self.replies = self.replies, []
        seen = [held.seen(now_s) for held in self.held.values()]
        words = wire.Observed(self.node, self.id, self.term, self.reached, seen, replies=replies, wait_s=wait_s)
        if self._leave_s < math.inf:
            left_s = max(self._leave_s - now_s, 0.001) if any(held.alive for held in self.held.values()) else 0.0
            words = replace(words, leaving_s=left_s)
        self._asked.append((words, now_s))
        return words

    # -- assignments --------------------------------------------------------------------------------------

    def obey(self, answer: wire.Assignment, report: wire.Observed, now_s: float) -> bool:
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
                    self.held[key].end(now_s, wire.PREEMPTED, _LEAVES)
            return True
        self.ever = True
        self._forget(answer, report)
        if answer.version >= self.reached:
            self._apply(answer.attempts, now_s)
            self.reached = answer.version
        self.advance(now_s)
        self.replies += [self._answer(ask) for ask in answer.ask]
        return True

    def _forget(self, answer: wire.Assignment, report: wire.Observed) -> None:
        needed = {tuple(key) for key in answer.keep} | {(run.job, run.epoch, run.rank) for run in answer.attempts}
        for seen in report.attempts:
            key = seen.job, seen.epoch, seen.rank
            if seen.state == wire.ENDED and key not in needed:
                self.held.pop(key, None)

    def _apply(self, runs: Iterable[wire.Run], now_s: float) -> None:
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

    def _accept(self, key: Key, run: wire.Run, now_s: float) -> Held:
        held = self.held[key] = Held(run)
        newest = max(self.epochs.get(run.job, 0), self.disk.epoch(run.job))
        if run.epoch < newest:
            why = f"refused: attempt {run.epoch} of job {run.job} was replaced by attempt {newest}"
            self.refused.append(why)
            held.end(now_s, None, why)
        elif run.stop:
            held.end(now_s, wire.PREEMPTED, "stopped before it started")
        elif not all(0 <= gpu < self.node.gpus for gpu in run.gpus):
            held.end(now_s, 126, f"GPUs {run.gpus} were requested; this node has {self.node.gpus}")
        else:
            self.epochs[run.job] = run.epoch
        return held

    def _answer(self, ask: wire.Ask) -> wire.Reply:
        process = self.processes.get((ask.job, ask.epoch, ask.rank))
        if process is None:
            return wire.Reply(ask.id, error=f"no log of process {ask.rank} of attempt {ask.epoch} of job {ask.job}")
        data = process.log.encode()
        at = min(ask.offset if ask.offset >= 0 else max(len(data) + ask.offset, 0), len(data))
        part = data[at : at + ask.limit]
        return wire.Reply(ask.id, part.decode(errors="replace"), at, at + len(part), len(data))

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
            if held.state == wire.STARTING and not in_touch:
                held.end(now_s, wire.PREEMPTED, str(self.lease))
        if not (self.ever and in_touch) or self._leave_s < math.inf:
            return
        for key, held in self.held.items():
            if held.state == wire.STARTING and not any(
                o.alive and not _share(held.run, o.run) for o in self.held.values()
            ):
                self._pids += 1
                self.processes[key] = held.begin(self.program(held.run), self.disk, self._pids, now_s)
            elif held.state == wire.STARTING:
                held.reason = f"attempt {key[1]} of job {key[0]} waits until others have left its GPUs"

    def running(self) -> list[Key]:
        """All processes on the machine."""
        return [key for key, held in self.held.items() if held.process is not None and held.process.ended_s is None]


def _share(new: wire.Run, other: wire.Run) -> bool:
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
        self.asks: dict[str, list[wire.Ask]] = {}
        self.replies: dict[int, wire.Reply] = {}
        #: Replacement of an agent's answer: older ones, in any order.
        self.deliver: Callable[[SimulatedAgent, wire.Assignment], list[wire.Assignment]] = lambda agent, answer: [
            answer
        ]

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
        report: dict[str, wire.Observed] = {}
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


class HttpLink:
    """A connection of an agent to a service, kept open. An answer that is no 200 is a `ConnectionError`."""

    def __init__(self, url: str, token: str) -> None:
        parts = urlsplit(url)
        self._host, self._port = parts.hostname or "127.0.0.1", parts.port or 80
        self._head = f"POST {PATH} HTTP/1.1\r\nHost: {parts.netloc}\r\nAuthorization: Bearer {token}\r\n"
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def __aenter__(self) -> HttpLink:
        self._streams = await asyncio.open_connection(self._host, self._port)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._streams is not None:
            self._streams[1].close()
            await self._streams[1].wait_closed()

    async def send(self, body: bytes) -> bytes:
        """Send one request and return the body of the answer."""
        assert self._streams is not None, "use it as a context manager"
        reader, writer = self._streams
        writer.write(f"{self._head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        head = await reader.readuntil(b"\r\n\r\n")
        lines = head.decode("latin-1").split("\r\n")
        sizes = [int(line.split(":")[1]) for line in lines if line.lower().startswith("content-length:")]
        data = await reader.readexactly(sizes[0] if sizes else 0)
        if lines[0].split()[1] != "200":
            raise ConnectionError(f"{lines[0]}: {data[:200].decode(errors='replace')}")
        return data

    async def ask(self, report: wire.Observed) -> wire.Assignment:
        """The assignment in answer to the report `report`."""
        return wire.decode(wire.Assignment, await self.send(wire.encode(report)))


async def live(
    agent: SimulatedAgent, link: HttpLink, until: Callable[[], bool], *, wait_s: float = 1.0,
    clock: Callable[[], float] = time.monotonic,
) -> int:  # fmt: skip
    """Run `agent` over `link` as a real agent until `until` is true; returns the number of requests."""
    asked = 0
    async with link:
        while not until():
            report = agent.observe(clock(), wait_s)
            agent.obey(await link.ask(report), report, clock())
            asked += 1
    return asked
