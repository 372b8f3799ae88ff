"""The agent of a node: makes the processes on it what the service says they should be, and tells what they are.

One lock guards everything; the threads of the link and the main loop take it in turns. The main loop sleeps until a
process ends (a pidfd becomes readable), something is due, or half a second has passed.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import math
import os
import secrets
import selectors
import signal
import sys
import threading
import time
from dataclasses import dataclass
from functools import partial
from typing import Any

from plait.core.errors import InputError
from plait.live import tls
from plait.live.agent import journal, launch, procs
from plait.live.agent.attempt import Attempt
from plait.live.agent.gates import Gates
from plait.live.agent.journal import Journal, Key
from plait.live.agent.link import Link
from plait.live.agent.logs import read_part
from plait.live.agent.monitor import Monitor
from plait.live.agent.procs import Process
from plait.live.layout import Layout, make_private
from plait.live.wire import ENDED, PREEMPTED, RUNNING, STARTING, Ask, Assignment, Observed, Reply, Run

_TICK_S = 0.5
_SHARED_TICK_S = 0.1  # the end of one of several jobs in a process wakes nobody
_LOCK_TRIES = 10
_NOT_RUNNABLE = 126
_LEAVES = "its node is leaving"
_LAST_WORD_S = 5.0  # another service takes the lead within so many seconds
#: Errors of the machine, not of the job, that may pass: disk, processes, files, memory.
_PASSING = (errno.ENOSPC, errno.EDQUOT, errno.EAGAIN, errno.EMFILE, errno.ENFILE, errno.ENOMEM)


#: What tells an agent to end: held back from the start of its process until it is ready to obey.
HELD_BACK = frozenset((signal.SIGTERM, signal.SIGINT, signal.SIGUSR1))


class AlreadyRuns(Exception):
    """Another agent has the node."""


@dataclass(frozen=True)
class Settings:
    """What an agent is told when it starts.

    `cuda`: the machine's numbers of its GPUs, None for CPU slots. `on_loan`: whoever lent the node
    gets it back when the agent ends, so it ends when it has lost the service for good.
    """

    node: str
    gpus: int
    cuda: list[int] | None = None
    url: str | None = None
    stop_jobs: bool = False
    stop_grace_s: float = 10.0
    on_loan: bool = False
    rack: int = 0
    gpu_kind: str | None = None


class Agent:
    """The agent of one node; `run` returns when it is told to end."""

    def __init__(self, layout: Layout, settings: Settings) -> None:
        """Take the node, and take back what an earlier agent started. Raises `AlreadyRuns`, OSError."""
        self.layout, self.settings = layout, settings
        self.id = secrets.token_hex(8)
        self.folder = make_private(layout.node(settings.node))
        self._lock_fd = self._take_node()
        procs.prctl(procs.PR_SET_CHILD_SUBREAPER, 1)  # orphans of a killed runner come here
        self.lock = threading.RLock()
        self.monitor = Monitor(
            settings.node, settings.gpus, settings.cuda, rack=settings.rack, gpu_kind=settings.gpu_kind
        )
        self._threads = max(1, int(self.monitor.node.cpus // max(1, settings.gpus)))
        self.gates = Gates(layout, settings.node, self.log)
        self.journal = Journal(self.folder / "journal.jsonl")
        self.term, self.reached, self.lease_s = self.journal.memory.term, 0, 600.0
        self.epochs = self.journal.memory.epochs
        self.attempts: dict[Key, Attempt] = {}
        self.replies: list[Reply] = []
        self._refused: set[int] = set()
        self.selector = selectors.DefaultSelector()
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self.selector.register(self._wake_read, selectors.EVENT_READ)
        trust = partial(tls.context, self.layout)
        self.link = Link(self._address, self.observe, self.obey, self._unsent, self.log, trust)
        self._leaving = self._stop_jobs = False
        #: When the node goes, of the monotonic clock, once it was told to go with its jobs; then whether it has.
        self._leave_at, self._left = math.inf, False
        self._retry_at = 0.0
        for remembered in self.journal.memory.attempts.values():
            self._take_back(remembered)
        self.gates.clear(self.attempts.values())
        me = Process.of(os.getpid())
        assert me is not None
        self._record = {"pid": me.pid, "start_time": me.start_time, "boot": me.boot, "agent": self.id}
        procs.write_json(self.folder / "agent.json", self._record | {"gpus": settings.gpus, "cuda": settings.cuda})

    def log(self, event: str, **facts: Any) -> None:
        """One JSON line to standard error, which is agent.log under a backend."""
        line = {"at": round(time.time(), 3), "node": self.settings.node, "event": event} | facts
        with contextlib.suppress(OSError):
            print(json.dumps(line, default=str), file=sys.stderr, flush=True)

    def _take_node(self) -> int:
        fd = os.open(self.folder / "agent.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        for _ in range(_LOCK_TRIES):  # whoever looks whether an agent runs holds the lock for a moment
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return fd
            time.sleep(0.02)
        os.close(fd)
        other = procs.read_json(self.folder / "agent.json") or {}
        raise AlreadyRuns(
            f"node {self.settings.node!r} of {self.layout.home} already has an agent (pid {other.get('pid', '?')})"
        )

    def _address(self) -> tuple[str, str]:
        token = (self.folder / "enrol").read_text(encoding="ascii").strip()
        url = self.settings.url or (procs.read_json(self.layout.service_file) or {}).get("url")
        if not isinstance(url, str):
            raise ValueError(f"no service: {self.layout.service_file} is not there")
        return url, token

    # ---- taking back ----

    def _take_back(self, known: journal.Remembered) -> None:
        """A process the journal knows: still running, ended meanwhile, or never started."""
        run = known.run
        attempt = self._new(run)
        if known.ended:
            attempt.end(known.exit_code, known.reason)
            attempt.merged = known.merged
            return
        process = known.process or self._claimed(attempt)
        if process is None:
            return  # announced but never begun: may still be started
        attempt.began(process)
        attempt.group_version = None
        if attempt.pidfd < 0:
            self._collect(attempt)
        else:
            self.selector.register(attempt.pidfd, selectors.EVENT_READ, attempt)
            self.log("taken back", key=attempt.key, pid=process.pid)
        self._complain(attempt)

    def _complain(self, attempt: Attempt) -> None:
        if attempt.page is not None and attempt.page.trouble:
            self.log("progress unknown", key=attempt.key, why=attempt.page.trouble)

    def _claimed(self, attempt: Attempt) -> Process | None:
        """The runner that claimed the folder; waits a moment for one that is just being born."""
        for _ in range(50):
            claim = procs.read_json(attempt.folder / "runner.json")
            if claim is not None:
                return Process(_int(claim["pid"]), _int(claim["start_time"]), str(claim["boot"]))
            if not procs.marked(attempt.mark):
                return None
            time.sleep(0.02)
        return None

    def _new(self, run: Run) -> Attempt:
        attempt = Attempt(run, self.layout.rank(run.job, run.epoch, run.rank), launch.mark_of(self.layout, run))
        self.attempts[attempt.key] = attempt
        return attempt

    # ---- what the link asks for ----

    def observe(self, wait_s: float) -> Observed:
        """Everything that is seen now; answers to questions go with it once."""
        with self.lock:
            replies, self.replies = self.replies, []
            return Observed(
                node=self.monitor.node,
                agent=self.id,
                term=self.term,
                reached=self.reached,
                attempts=[attempt.seen() for attempt in self.attempts.values()],
                usage=self.monitor.usage(),
                replies=replies,
                wait_s=wait_s,
                leaving_s=self._leaving_s(),
            )

    def _leaving_s(self) -> float | None:
        if self._leave_at == math.inf:
            return None
        return 0.0 if self._left else max(self._leave_at - time.monotonic(), 0.001)  # 0 is the last word

    def _unsent(self, told: Observed) -> None:
        with self.lock:
            self.replies = told.replies + self.replies

    def obey(self, answer: Assignment, told: Observed) -> bool:
        """Take in what should be; False if its leader was replaced. Told twice or late, it changes nothing."""
        with self.lock:
            if answer.term < self.term:
                if answer.term not in self._refused:
                    self._refused.add(answer.term)
                    self._note({"what": "refuse", "term": answer.term, "because": f"term {self.term} was seen"})
                return False
            if answer.term > self.term:
                if not self._note({"what": "term", "term": answer.term}):
                    return True  # a full disk: not without having written it down
                self.term, self.reached = answer.term, 0
            if self._leaving:
                self._decline(answer)
                return True
            self.lease_s = answer.lease_s
            changed = self._forget(answer, told)
            if answer.version >= self.reached:
                changed |= self._apply(answer.attempts)
                changed |= self.reached != answer.version
                self.reached = answer.version
            self.link.contact, self.link.ever = time.monotonic(), True
            self._advance()
        replies = [self._answer(ask) for ask in answer.ask]
        if replies:
            with self.lock:
                self.replies += replies
        if changed or replies:
            self.link.wake()
            self._wake()
        return True

    def _decline(self, answer: Assignment) -> None:
        """What was assigned before the service knew that the node goes: it is not begun here."""
        for run in answer.attempts:
            if (run.job, run.epoch, run.rank) not in self.attempts:
                attempt = self._new(run)
                attempt.end(PREEMPTED, _LEAVES)
                self.link.wake()

    def _forget(self, answer: Assignment, told: Observed) -> bool:
        """Ended attempts that this answer shows to be known."""
        keep = {tuple(key) for key in answer.keep}
        listed = {(run.job, run.epoch, run.rank) for run in answer.attempts}
        gone = []
        for seen in told.attempts:
            key = seen.job, seen.epoch, seen.rank
            if seen.state == ENDED and key not in keep and key not in listed and key in self.attempts:
                gone.append(key)
                del self.attempts[key]
        if gone:
            self._note(*(journal.forget(key) for key in gone))
        return bool(gone)

    def _apply(self, runs: list[Run]) -> bool:
        wanted = {(run.job, run.epoch, run.rank): run for run in runs}
        before = [attempt.state for attempt in self.attempts.values()]
        for key, attempt in self.attempts.items():
            if key not in wanted:
                attempt.stop(attempt.run.grace_s, "no longer wanted")
        for key, run in wanted.items():
            if key not in self.attempts:
                self._meet(run)
            attempt = self.attempts[key]
            attempt.update(run)
            if run.stop:
                attempt.stop(run.grace_s, "preempted")
        return before != [attempt.state for attempt in self.attempts.values()]

    def _meet(self, run: Run) -> None:
        """An attempt that is new here: to be started, refused, or one that was forgotten."""
        attempt = self._new(run)
        newest = max(self.epochs.get(run.job, 0), _epoch(self.layout, run.job))
        process = self._claimed(attempt) if (attempt.folder / "runner.json").exists() else None
        if process is not None:  # it did run: the journal was lost, or its end was noted and asked for again
            attempt.began(process)
            if attempt.pidfd < 0:
                self._collect(attempt)
            else:
                self.selector.register(attempt.pidfd, selectors.EVENT_READ, attempt)
        elif min(run.job, run.epoch, run.rank) < 0 or not run.argv or "\0" in "".join((*run.argv, run.workdir)):
            attempt.end(_NOT_RUNNABLE, "the service asked for something that cannot be a process")
        elif run.epoch < newest:
            self._note({"what": "refuse", "key": list(attempt.key), "because": f"epoch {newest} was seen"})
            attempt.end(None, f"refused: attempt {run.epoch} of job {run.job} was replaced by attempt {newest}")
        elif run.stop:
            attempt.end(PREEMPTED, "stopped before it started")
        elif not all(0 <= gpu < self.monitor.node.gpus for gpu in run.gpus):
            attempt.end(_NOT_RUNNABLE, f"GPUs {run.gpus} were asked for; this node has {self.monitor.node.gpus}")
        else:
            self.epochs[run.job] = run.epoch

    def _answer(self, ask: Ask) -> Reply:
        try:
            if min(ask.job, ask.epoch, ask.rank) < 0:
                raise FileNotFoundError(f"no process {ask.rank} of attempt {ask.epoch} of job {ask.job}")
            part = read_part(self.layout.rank(ask.job, ask.epoch, ask.rank), ask.offset, ask.limit)
            return Reply(ask.id, part.text, part.offset, part.next, part.size)
        except OSError as error:
            return Reply(ask.id, error=str(error))

    # ---- making it so ----

    def _advance(self) -> None:
        """One step towards what is wanted: ends seen, overdue ones killed, groups told, free GPUs used."""
        self._reap()
        now = time.monotonic()
        in_touch = now - self.link.contact <= self.lease_s
        if not in_touch and self.link.failed > self.link.contact + self.lease_s:
            # Asked after the lease was over, and nobody answered; an agent that was only stopped asks first.
            for attempt in self.attempts.values():
                if attempt.state in (STARTING, RUNNING):
                    self.log("lease expired", key=attempt.key)
                    attempt.stop(attempt.run.grace_s, f"no contact with the service for {self.lease_s:g} s", own=True)
            if self.settings.on_loan and not self._leaving and not any(a.alive for a in self.attempts.values()):
                self.log("gives the node back", why=f"no contact with the service for {self.lease_s:g} s")
                self._leaving = self._stop_jobs = True
        for attempt in self.attempts.values():
            if attempt.gone:
                self._collect(attempt)
            elif attempt.overdue():
                self._end_by_force(attempt)
            elif attempt.alive:
                self._tell_group(attempt)
                attempt.watch()
        self.gates.clear(self.attempts.values())
        if in_touch and self.link.ever and not self._leaving and now >= self._retry_at:
            self._start([a for a in self.attempts.values() if a.state == STARTING])

    def _tell_group(self, attempt: Attempt) -> None:
        try:
            self.gates.tell(attempt)
        except OSError as error:
            attempt.group_version = None
            self.log("group not told", key=attempt.key, why=error)

    def _start(self, waiting: list[Attempt]) -> None:
        """Start those whose GPUs nobody of another group holds, and whose job has no earlier attempt here."""
        holding = [a for a in self.attempts.values() if a.alive]
        ready: list[Attempt] = []
        for attempt in waiting:
            other = next((o for o in (*holding, *ready) if not _may_share(attempt.run, o.run)), None)
            if other is None:
                ready.append(attempt)
            else:
                attempt.reason = f"waits until attempt {other.run.epoch} of job {other.run.job} has left its GPUs"
        if not ready or not self._note(*(journal.start(a.run) for a in ready)):
            return
        for together in _to_launch(ready):
            self._launch(together)
        self._note(*(journal.began(a.key, a.process) for a in ready if a.process is not None and a.alive))

    def _launch(self, attempts: list[Attempt]) -> None:
        """Start a process for one attempt, or one that several share."""
        if launch.meeting_port_taken(run := attempts[0].run):  # the next attempt is given another port
            busy = f"port {run.master_port} of node {self.settings.node} is in use by another program"
            self._over(attempts[0], PREEMPTED, busy)
            return
        try:
            process = self._spawn(attempts)
        except (OSError, ValueError, InputError) as error:
            for attempt in attempts:
                if isinstance(error, OSError) and error.errno in _PASSING:
                    self._later(attempt, f"cannot be started now on node {self.settings.node}: {error}")
                else:
                    self._over(attempt, _NOT_RUNNABLE, f"could not be started on node {self.settings.node}: {error}")
            return
        for attempt in attempts:
            if process is None:
                self._over(attempt, _NOT_RUNNABLE, f"its runner died at once; see {attempts[0].folder / 'runner.log'}")
            else:
                self._began(attempt, process)

    def _spawn(self, attempts: list[Attempt]) -> Process | None:
        envs = []
        for attempt in attempts:
            launch.prepare(attempt.run, self.layout)
            attempt.group_version = None
            self.gates.tell(attempt)
            envs.append(launch.environment(attempt.run, self.layout, self.settings.cuda, self._threads))
            attempt.mark, attempt.shares = envs[-1][procs.MARK], False  # an earlier try may have been with others
        if len(attempts) == 1:
            return Process.of(launch.spawn(attempts[0].run, self.layout, envs[0]))
        process = Process.of(launch.spawn_host([a.run for a in attempts], self.layout, envs))
        for attempt in attempts:
            attempt.know({"merged": len(attempts), "mark": envs[0][procs.MARK]})
        return process

    def _began(self, attempt: Attempt, process: Process) -> None:
        run = attempt.run
        attempt.began(process)
        attempt.reason = None
        self.log("started", key=attempt.key, pid=process.pid, gpus=run.gpus)
        self._complain(attempt)
        if attempt.pidfd < 0:
            self._collect(attempt)
        else:
            self.selector.register(attempt.pidfd, selectors.EVENT_READ, attempt)
        self.link.wake()

    def _later(self, attempt: Attempt, why: str) -> None:
        """Nothing was started: try again in a second, for as long as it is wanted."""
        attempt.wait(why)
        self._retry_at = time.monotonic() + 1.0
        self.log("later", key=attempt.key, why=why)
        self.link.wake()

    def _collect(self, attempt: Attempt) -> None:
        """The runner has ended; one that found the folder claimed by another is not the one to look at."""
        if attempt.pidfd >= 0:
            self.selector.unregister(attempt.pidfd)
            os.close(attempt.pidfd)
            attempt.pidfd = -1
        claim = procs.read_json(attempt.folder / "runner.json") or {}
        if attempt.process is not None and claim.get("pid") not in (None, attempt.process.pid):
            other = Process(_int(claim["pid"]), _int(claim["start_time"]), str(claim["boot"]))
            if other.alive:
                state, kill_at = attempt.state, attempt.kill_at
                attempt.began(other)
                attempt.state, attempt.kill_at = state, kill_at
                if attempt.pidfd >= 0:
                    self.selector.register(attempt.pidfd, selectors.EVENT_READ, attempt)
                    return
        if not claim and not (attempt.folder / "exit.json").exists():  # it never became the job's
            if attempt.state == RUNNING:
                self._later(attempt, f"its runner could not begin; see {attempt.folder / 'runner.log'}")
            else:
                self._over(attempt, PREEMPTED, "stopped before it started")
            return
        attempt.collect(self._strays, self._reap)
        self._over(attempt, attempt.exit_code, attempt.reason)

    def _over(self, attempt: Attempt, exit_code: int | None, reason: str | None) -> None:
        if attempt.state != ENDED:
            attempt.end(exit_code, reason)
        self._note(journal.end(attempt.key, exit_code, reason, attempt.merged))
        self.log("ended", key=attempt.key, exit_code=exit_code, reason=reason)
        self.link.wake()

    def _end_by_force(self, attempt: Attempt) -> None:
        """Neither the process nor its runner ended in time (stopped, or stuck): kill both and all below them."""
        process = attempt.process
        if process is not None:
            below = {Process.of(pid) for pid in procs.descendants(process.pid)} - {None}
            process.send(signal.SIGKILL)
            procs.kill_until_none(
                lambda: {p.pid for p in below if p is not None and p.alive} | set(procs.marked(attempt.mark)),
                self._reap,
                0.5,
            )
        if process is None or not process.alive:
            self._collect(attempt)

    def _strays(self) -> set[int]:
        """Children of this agent that are no runners: orphans of runners that were killed."""
        runners = {a.process.pid for a in self.attempts.values() if a.process is not None and a.alive}
        children = [pid for pid in procs.children(os.getpid()) if pid not in runners]
        return {pid for child in children for pid in (child, *procs.descendants(child))}

    def _reap(self) -> None:
        """Take in ended children; a pidfd stays readable, so nothing is lost by it."""
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass

    def _note(self, *entries: dict[str, Any]) -> bool:
        """Write to the journal; False if the disk refuses, which holds up what depends on it."""
        try:
            self.journal.append(*entries)
        except OSError as error:
            self._retry_at = time.monotonic() + 1.0
            self.log("journal", why=error)
            return False
        return True

    # ---- running ----

    def run(self) -> None:
        """Until SIGTERM (jobs go on, to be taken back) or SIGUSR1 (the node goes: jobs are stopped first)."""
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        for number in HELD_BACK:
            signal.signal(number, self._told_to_leave)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, HELD_BACK)
        self.log(
            "agent", pid=os.getpid(), gpus=self.settings.gpus, cuda=self.settings.cuda, attempts=len(self.attempts)
        )
        self.link.start()
        while not self._leaving:
            self._wait()
        if self._stop_jobs:
            self._stop_all()
        self.link.close()
        if self._stop_jobs:
            self._left = True
            self.link.tell_last(max(self._leave_at, time.monotonic() + _LAST_WORD_S))
        with self.lock:
            self.log("agent leaves", running=sum(a.alive for a in self.attempts.values()))
            with contextlib.suppress(OSError):
                os.unlink(self.folder / "agent.json")

    def _told_to_leave(self, number: int, _frame: object) -> None:
        self._leaving = True
        self._stop_jobs |= number == signal.SIGUSR1 or self.settings.stop_jobs

    def _wait(self) -> None:
        now = time.monotonic()
        due = [a.kill_at - now for a in list(self.attempts.values()) if a.alive and a.kill_at and a.kill_at > now]
        tick_s = _SHARED_TICK_S if any(a.shares and a.alive for a in list(self.attempts.values())) else _TICK_S
        events = self.selector.select(min([tick_s, *due]))
        with self.lock:
            for key, _ in events:
                if key.fd == self._wake_read:
                    with contextlib.suppress(BlockingIOError):
                        os.read(self._wake_read, 4096)
                elif isinstance(key.data, Attempt) and key.data.pidfd == key.fd:
                    self._collect(key.data)
            self._advance()

    def _wake(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.write(self._wake_write, b"\0")

    def _stop_all(self) -> None:
        """The node goes: tell the service, which finds other places for its jobs, and let them make checkpoints."""
        asked = procs.read_json(self.folder / "stop.json") or {}
        (self.folder / "stop.json").unlink(missing_ok=True)
        said = asked.get("grace_s")
        grace_s = float(said) if isinstance(said, (int, float)) else self.settings.stop_grace_s
        with self.lock:
            self._leave_at = time.monotonic() + grace_s
            self.link.wake()
            for attempt in list(self.attempts.values()):
                attempt.stop(min(attempt.run.grace_s, grace_s), _LEAVES, own=True)
        while any(a.alive for a in list(self.attempts.values())):
            self._wait()


def _to_launch(ready: list[Attempt]) -> list[list[Attempt]]:
    """Who gets a process together: those of one group on the same GPUs that may be merged; all others alone."""
    found: dict[object, list[Attempt]] = {}
    for attempt in ready:
        run = attempt.run
        alone = not run.merge or run.world > 1
        found.setdefault(attempt.key if alone else (run.merge, run.group.id, tuple(run.gpus)), []).append(attempt)
    return list(found.values())


def _may_share(new: Run, other: Run) -> bool:
    """Whether `new` may start while `other` has its GPUs."""
    if new.job == other.job and new.epoch != other.epoch:
        return False
    return new.group.id == other.group.id or not set(new.gpus) & set(other.gpus)


def _epoch(layout: Layout, job: int) -> int:
    """The highest attempt of a job that may commit checkpoints; 0 if none was named."""
    try:
        return int(layout.epoch_file(job).read_text(encoding="ascii"))
    except (OSError, ValueError):
        return 0


def _int(value: object) -> int:
    return value if isinstance(value, int) else 0
