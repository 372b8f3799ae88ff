"""The agent of a node: starts and stops processes as the service assigns them, and reports their state.

One lock guards everything; the threads of the link and the main loop share it. The main loop sleeps until a process
ends (a pidfd becomes readable), something is due, or half a second has passed.
"""

from __future__ import annotations

import contextlib
import math
import os
import secrets
import selectors
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

from plait.core.errors import InputError
from plait.live import tls
from plait.live.agent import journal
from plait.live.agent.lease import Lease, sound_lease_s
from plait.live.agent.link import Link
from plait.live.agent.logs import read_part
from plait.live.agent.monitor import Busy, GpuWindow, ProcessUsage, disk_bytes
from plait.live.agent.node import AgentOptions, AlreadyRuns, take_node
from plait.live.agent.outside import BEGIN_S, OutsideWatch
from plait.live.agent.processes import container
from plait.live.agent.processes.attempt import RUNNER_PATIENCE_S, LocalAttempt
from plait.live.agent.processes.console import ECHO_S
from plait.live.agent.processes.process_manager import NOT_RUNNABLE, ProcessManager
from plait.live.agent.processes.successor import Successor
from plait.live.layout import Layout, may_lead, read_epoch
from plait.live.protocol import wire
from plait.live.system import procs
from plait.live.system.accounts import job_folder, owner_of
from plait.live.system.procs import Process

__all__ = ["HELD_BACK", "Agent", "AgentOptions", "AlreadyRuns"]

_TICK_S = 0.5
#: The end of one of several jobs in a process wakes no waiting call, and neither do guests that have freed memory.
_SHARED_TICK_S = 0.1
_LEAVES = "its node is leaving"
#: Seconds after which a missing home folder counts as deleted.
HOMELESS_S = 5.0
_LAST_REPORT_S = 5.0  # another service takes the lead within this time
#: Threads that answer consoles and close them.
_CONSOLE_THREADS = 8
#: Signals that end an agent: blocked from the start of its process until it can handle them.
HELD_BACK = frozenset((signal.SIGTERM, signal.SIGINT, signal.SIGUSR1))


class Agent(ProcessManager):
    """The agent of one node; `run` returns after a signal to end."""

    def __init__(self, layout: Layout, settings: AgentOptions) -> None:
        """Take the node, and reattach to what an earlier agent started. Raises `AlreadyRuns`, OSError."""
        self.id = secrets.token_hex(8)
        self.lock = threading.RLock()
        self._lock_fd = take_node(layout, settings.node)
        self._home = _identity(layout.home)
        procs.prctl(procs.PR_SET_CHILD_SUBREAPER, 1)  # orphans of a killed runner come here
        super().__init__(layout, settings, lambda: self.link.wake())
        self.term, self.reached = self.journal.memory.term, 0
        self.epochs = self.journal.memory.epochs
        self.replies: list[wire.Reply] = []
        self._window, self._process_usage = GpuWindow(settings.slots), ProcessUsage()
        self._watch = OutsideWatch(self.folder, self.monitor.node.cpus, disk_bytes)
        self._began_s = procs.boot_s()
        self._pool = ThreadPoolExecutor(_CONSOLE_THREADS, "console")
        self._refused: set[int] = set()
        self._lease_trouble, self._homeless_s = "", math.inf
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self.selector.register(self._wake_read, selectors.EVENT_READ)
        trust = partial(tls.context, self.layout)
        self.link = Link(self._address, self.observe, self.obey, self._unsent, self.log, trust)
        self._leaving = self._stop_jobs = False
        #: When the node leaves (monotonic clock), after a request to leave with its jobs; whether it has left.
        self._leave_at, self._left = math.inf, False
        for remembered in self.journal.memory.attempts.values():
            with self._quarantined(attempt := self._new(remembered.run)):
                self._reattach(attempt, remembered)
        self._reattach_unknown()
        self._share()
        self.gates.clear(self.attempts.values())
        me = Process.of(os.getpid())
        assert me is not None
        self._record = {"pid": me.pid, "start_time": me.start_time, "boot": me.boot, "agent": self.id}
        procs.write_json(
            self.folder / "agent.json",
            self._record | {"gpus": settings.slots, "cuda": settings.devices, "rack": settings.rack},
        )

    def _address(self) -> tuple[tuple[str, ...], str]:
        token = (self.folder / "enrol").read_text(encoding="ascii").strip()
        record = {"url": self.settings.url} if self.settings.url else procs.read_json(self.layout.service_file) or {}
        # Where a firewall lets through the port of users alone, agents use that.
        urls = tuple(url for url in (record.get("agents"), record.get("url")) if isinstance(url, str))
        if not urls:
            raise ValueError(f"no service: {self.layout.service_file} is not there")
        return urls, token

    # ---- what the link asks for ----

    def observe(self, wait_s: float) -> wire.Observed:
        """The report of everything on this node now; includes each answer to a question once."""
        with self.lock:
            replies, self.replies = self.replies, []
            self._measure()
            return wire.Observed(
                node=self.monitor.node,
                agent=self.id,
                term=self.term,
                reached=self.reached,
                attempts=[seen for attempt in list(self.attempts.values()) for seen in self._seen(attempt)],
                usage=self._usage(),
                replies=replies,
                wait_s=wait_s,
                leaving_s=self._leaving_s(),
                switch=self.switch.seen(),
                successors=[list(key) for key, successor in self.successors.items() if successor.report < 0],
            )

    def _measure(self) -> None:
        """Note the resource use of each attempt; not of attempts that share a process, whose parts are inseparable."""
        runners = {
            a.key: a.process for a in self.attempts.values() if a.alive and not a.shares and a.process is not None
        }
        known = self._process_usage.read(time.monotonic(), runners)
        for attempt in self.attempts.values():
            attempt.resources = known.get(attempt.key)

    def _watch_outside(self) -> None:
        """OutsideWatch an attempt whose iterations nothing in its processes sees, while it has its GPUs to itself."""
        if self._watch.busy:
            return
        alive = [attempt for attempt in self.attempts.values() if attempt.alive]
        if self._watch.peaks is None and not alive and procs.boot_s() - self._began_s >= BEGIN_S:
            self._watch.start()
        for attempt in alive:
            if attempt.process is not None and attempt.unseen() and self._alone(attempt):
                attempt.outside_s = procs.boot_s()
                self._watch.start(partial(self._watch_from, attempt, attempt.process.pid))
                return

    def _alone(self, attempt: LocalAttempt) -> bool:
        others = [other for other in self.attempts.values() if other.alive and other.run.job != attempt.run.job]
        return not any(set(attempt.run.gpus) & set(other.run.gpus) for other in others)

    def _watch_from(self, attempt: LocalAttempt, root: int) -> None:
        """Watch the processes of an attempt in this thread, and keep what was seen if it holds for the attempt."""
        busy = None if self.monitor.cuda is None else partial(self.monitor.busy, attempt.run.gpus)
        parts = self._watch.parts(root, busy)
        with self.lock:
            # A program that imported and read for longer than usual may count iterations by now.
            if attempt.alive and self._alone(attempt) and not attempt.counts_iterations():
                attempt.outside = parts
                self.log("seen from outside", key=attempt.key, parts=parts)
                self.link.wake()

    def _usage(self) -> wire.Usage:
        usage, now_s = replace(self.monitor.usage(), peaks=self._watch.peaks), time.monotonic()
        if self.monitor.cuda is not None:
            return replace(usage, means=self._window.gpus(now_s, usage.gpus))
        busy = [
            Busy(a.key, a.run.gpus[0], a.page.gpu_busy_s, a.page.last_step_s, a.page.peak_bytes)
            for a in self.attempts.values()
            if a.alive and a.page is not None and a.run.gpus
        ]
        return replace(usage, means=self._window.slots(now_s, busy))

    def _seen(self, attempt: LocalAttempt) -> list[wire.Seen]:
        """The report of an attempt; if it cannot be made, that the attempt has failed."""
        found: list[wire.Seen] = []
        with self._quarantined(attempt):
            found = [attempt.seen()]
        return found or [wire.Seen(*attempt.key, wire.ENDED, exit_code=attempt.exit_code, reason=attempt.reason)]

    def _leaving_s(self) -> float | None:
        if self._leave_at == math.inf:
            return None
        return 0.0 if self._left else max(self._leave_at - time.monotonic(), 0.001)  # 0 marks the last report

    def _unsent(self, report: wire.Observed) -> None:
        with self.lock:
            self.replies = report.replies + self.replies

    def obey(self, answer: wire.Assignment, report: wire.Observed, asked_s: float) -> bool:
        """Apply an assignment; False if its leader was replaced. Idempotent; late answers change nothing.

        `answer`: of the service to `report`, which was sent at `asked_s` (CLOCK_BOOTTIME). The lease counts from then:
        the service received the report at that time or later.
        """
        lease = Lease(asked_s, sound_lease_s(answer.lease_s))
        if procs.boot_s() >= lease.stop_s():
            return True  # it took as long as the lease and is outdated: send again
        with self.lock:
            if answer.term < self.term:
                if answer.term not in self._refused:
                    self._refused.add(answer.term)
                    self._note({"what": "refuse", "term": answer.term, "because": f"term {self.term} was seen"})
                return False
            if answer.term > self.term:
                if not self._note({"what": "term", "term": answer.term}):
                    self._renew(lease)
                    return True  # a full disk: not without having written it down
                self.term, self.reached = answer.term, 0
            self._renew(lease)
            if self._leaving:
                for run in answer.attempts:
                    if (run.job, run.epoch, run.rank) not in self.attempts:
                        attempt = self._new(run)
                        attempt.end(wire.PREEMPTED, _LEAVES)
                        self.link.wake()
                return True
            changed = self._forget(answer, report)
            if answer.version >= self.reached:
                changed |= self._apply(answer.attempts)
                self._start_beside(answer.successors)
                changed |= self.reached != answer.version
                self.reached = answer.version
                self.switch.follow(answer.switch, asked_s, lease.lease_s)
            self.link.ever = True
            self._advance()
        self._reply(*[self._answer(ask) for ask in answer.ask if ask.console is None])
        self._answer_consoles([ask for ask in answer.ask if ask.console is not None])
        if changed:
            self.link.wake()
            with contextlib.suppress(BlockingIOError):
                os.write(self._wake_write, b"\0")
        return True

    def _reply(self, *replies: wire.Reply) -> None:
        if replies:
            with self.lock:
                self.replies += replies
            self.link.wake()

    def _renew(self, lease: Lease) -> None:
        """Extend the lease of the runners; on a leaving node, at most until it leaves."""
        if self._leave_at < math.inf:
            left_s = self._leave_at - time.monotonic() + RUNNER_PATIENCE_S
            until_s = min(lease.until_s, procs.boot_s() + max(left_s, 0.0))
            lease = Lease(lease.asked_s, max(until_s - lease.asked_s, 0.1))
        self.link.beat_for(lease.lease_s)
        try:
            self.lease.renew(lease)
            self._lease_trouble = ""
        except OSError as error:
            if str(error) != self._lease_trouble:
                self._lease_trouble = str(error)
                self.log("lease not written", why=error, until=f"jobs end {lease.lease_s:g} s after the last one")

    def _forget(self, answer: wire.Assignment, report: wire.Observed) -> bool:
        """Drop ended attempts that the service has recorded, by this answer; whether there were any."""
        keep = {tuple(key) for key in answer.keep}
        listed = {(run.job, run.epoch, run.rank) for run in answer.attempts}
        gone = []
        for seen in report.attempts:
            key = seen.job, seen.epoch, seen.rank
            if seen.state == wire.ENDED and key not in keep and key not in listed and key in self.attempts:
                gone.append(key)
                del self.attempts[key]
        if gone:
            self._note(*(journal.forget(key) for key in gone))
        return bool(gone)

    def _apply(self, runs: list[wire.Run]) -> bool:
        wanted = {(run.job, run.epoch, run.rank): run for run in runs}
        before = [attempt.state for attempt in self.attempts.values()]
        newest = {run.job: run.epoch for run in runs}
        for key, attempt in self.attempts.items():
            if key not in wanted:
                # A replaced attempt may run elsewhere by now: end it at once.
                replaced = attempt.run.epoch < max(_epoch(self.layout, attempt.run.job), newest.get(attempt.run.job, 0))
                attempt.stop(0.0 if replaced else attempt.run.grace_s, "replaced" if replaced else "no longer wanted")
        for key, run in wanted.items():
            if key not in self.attempts:
                self._accept(run)
            with self._quarantined(attempt := self.attempts[key]):
                attempt.update(run)
                if run.hung:
                    attempt.fail_with_gang()
                if run.stop:
                    attempt.stop(run.grace_s, "preempted")
        return before != [attempt.state for attempt in self.attempts.values()]

    def _accept(self, run: wire.Run) -> None:
        """Take on an attempt that is new here: start it, refuse it, or reattach to its process."""
        attempt = self._new(run)
        newest = max(self.epochs.get(run.job, 0), _epoch(self.layout, run.job))
        process = self._claimed(attempt) if (attempt.folder / "runner.json").exists() else None
        if process is not None:  # it did run: the journal was lost, or the service requests its end again
            attempt.began(process)
            if attempt.pidfd < 0:
                self._collect(attempt)
            else:
                self.selector.register(attempt.pidfd, selectors.EVENT_READ, attempt)
        elif min(run.job, run.epoch, run.rank) < 0 or not run.argv or "\0" in "".join((*run.argv, run.workdir)):
            attempt.end(NOT_RUNNABLE, "the service requested an impossible process")
        elif run.epoch < newest:
            self._note({"what": "refuse", "key": list(attempt.key), "because": f"epoch {newest} was seen"})
            attempt.end(None, f"refused: attempt {run.epoch} of job {run.job} was replaced by attempt {newest}")
        elif run.stop:
            attempt.end(wire.PREEMPTED, "stopped before it started")
        elif not all(0 <= gpu < self.monitor.node.gpus for gpu in run.gpus):
            attempt.end(NOT_RUNNABLE, f"GPUs {run.gpus} were requested; this node has {self.monitor.node.gpus}")
        else:
            self.epochs[run.job] = run.epoch

    def _answer_consoles(self, asks: list[wire.Ask]) -> None:
        """Answer in other threads: programs start slowly, and users' folders may be on slow storage."""
        wait_s = ECHO_S if len(asks) == 1 else 0.0  # several users are not to wait for each other's echoes
        for ask in asks:
            self._pool.submit(lambda ask: self._reply(self._answer(ask, wait_s)), ask)

    def _answer(self, ask: wire.Ask, wait_s: float = 0.0) -> wire.Reply:
        try:
            if ask.console is not None:
                return wire.Reply(ask.id, console=self._console(ask, ask.console, wait_s))
            if min(ask.job, ask.epoch, ask.rank) < 0:
                raise FileNotFoundError(f"no process {ask.rank} of attempt {ask.epoch} of job {ask.job}")
            part = read_part(self.layout.rank(ask.job, ask.epoch, ask.rank), ask.offset, ask.limit)
            return wire.Reply(ask.id, part.text, part.offset, part.next, part.size)
        # The job can write to the file that locates its log, and its account may have been deleted.
        except (OSError, ValueError, ArithmeticError, InputError) as error:
            return wire.Reply(ask.id, error=str(error))

    def _console(self, ask: wire.Ask, request: wire.ConsoleAsk, wait_s: float) -> wire.ConsoleReply:
        """Let a user's program run next to a process of this node; raises `ValueError`, `OSError`."""
        with self.lock:
            attempt = self.attempts.get((ask.job, ask.epoch, ask.rank))
            if attempt is None or not attempt.alive:
                raise ValueError("its process does not run (any more)")
            run = attempt.run
        env = self.environment(run) if request.command else {}
        if container.VARIABLE in env:
            raise ValueError("the job runs in a container, which plait does not enter; use the container's own tool")
        workdir = run.workdir or str(self.layout.job(run.job))
        try:
            return self.consoles.answer(
                request, env, workdir, attempt.folder, wait_s, owner_of(job_folder(attempt.folder))
            )
        except LookupError as error:
            raise ValueError(str(error.args[0])) from None

    # ---- making it so ----

    def _advance(self) -> None:
        """One step towards the assignment: collect ended processes, kill overdue ones, update groups, start others."""
        self._reap()
        self._look_for_home()
        now, now_s, lease = time.monotonic(), procs.boot_s(), self.lease.now
        in_touch = now_s < lease.stop_s()
        for attempt in self.attempts.values() if not in_touch else ():
            if attempt.state in (wire.STARTING, wire.RUNNING) and now_s >= lease.stop_s(attempt.run.grace_s):
                self.log("lease expired", key=attempt.key)  # its runner also watches the lease and kills it then
                attempt.stop(max(lease.kill_s - now_s, 0.0), str(lease), own=True)
        # Only after a failed request since the lease ended: an agent that was merely paused sends one first.
        alone = (
            not in_touch and self.link.failed_s > lease.stop_s() and not any(a.alive for a in self.attempts.values())
        )
        if alone and self.settings.on_loan and not self._leaving:
            self.log("gives the node back", why=str(lease))
            self._leaving = self._stop_jobs = True
        self._share()
        for console in self.consoles.abandoned():
            self._pool.submit(console.close)
        for attempt in self.attempts.values():
            with self._quarantined(attempt):
                if attempt.gone:
                    self._collect(attempt)
                elif attempt.overdue():
                    self._end_by_force(attempt)
                elif attempt.alive:
                    self._tell_group(attempt)
                    self._tell_network(attempt)
                    attempt.watch()
        self.gates.clear(self.attempts.values())
        self._watch_outside()
        if in_touch and self.link.ever and not self._leaving and now >= self._retry_at:
            self._start([a for a in self.attempts.values() if a.state == wire.STARTING])

    def _look_for_home(self) -> None:
        """End jobs and agent if the home folder stays deleted or moved: nothing can be stored there.

        Another folder at its path is not the home: a process that ends late may have made it. Storage that does not
        answer may still have the home.
        """
        try:
            here = _identity(self.layout.home) == self._home
        except OSError:
            here = True
        if here:
            self._homeless_s = math.inf
            return
        self._homeless_s = min(self._homeless_s, procs.boot_s())
        if procs.boot_s() - self._homeless_s >= HOMELESS_S and not self._leaving:
            self.log("the home folder has vanished", home=str(self.layout.home))
            self._leaving = self._stop_jobs = True

    # ---- running ----

    def run(self) -> None:
        """Run until SIGTERM (jobs keep running for the next agent) or SIGUSR1 (the node leaves: stop jobs first)."""
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        for number in HELD_BACK:
            signal.signal(number, self._leave_signal)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, HELD_BACK)
        self.log(
            "agent", pid=os.getpid(), gpus=self.settings.slots, cuda=self.settings.devices, attempts=len(self.attempts)
        )
        self.coordinator.start()
        self.switch.start()
        self.link.start()
        while not self._leaving:
            self._wait()
        if self._stop_jobs:
            self._stop_all()
        self.consoles.close()
        self.link.close()
        self.coordinator.close()
        self.switch.close()
        if self._stop_jobs:
            self._left = True
            self.link.send_last_report(max(self._leave_at, time.monotonic() + _LAST_REPORT_S))
        with self.lock:
            running = sum(a.alive for a in self.attempts.values())
            self.log("agent leaves", running=running, parked=bool(running and self._park()))
            if not running:
                self.lease.forget()
            with contextlib.suppress(OSError):
                os.unlink(self.folder / "agent.json")

    def _park(self) -> bool:
        """Let jobs run without a lease if no service runs that could start them elsewhere; whether it did."""
        if not self.settings.parks or self._stop_jobs or may_lead(self.layout):
            return False
        with contextlib.suppress(OSError):
            self.lease.renew(replace(self.lease.now, parked=True))
        return self.lease.now.parked

    def _leave_signal(self, number: int, _frame: object) -> None:
        self._leaving = True
        self._stop_jobs |= number == signal.SIGUSR1 or self.settings.stop_jobs

    def _wait(self) -> None:
        now = time.monotonic()
        due = [a.kill_at - now for a in list(self.attempts.values()) if a.alive and a.kill_at and a.kill_at > now]
        quick = any(
            (a.shares and a.alive) or (a.owed_since_s is not None and a.state == wire.STARTING)
            for a in list(self.attempts.values())
        )
        tick_s = _SHARED_TICK_S if quick else _TICK_S
        events = self.selector.select(min([tick_s, *due]))
        with self.lock:
            for key, _ in events:
                if key.fd == self._wake_read:
                    with contextlib.suppress(BlockingIOError):
                        os.read(self._wake_read, 4096)
                elif isinstance(key.data, LocalAttempt) and key.data.pidfd == key.fd:
                    with self._quarantined(key.data):
                        self._collect(key.data)
                elif isinstance(key.data, Successor):
                    self._successor_settled(key.data)
            self._advance()

    def _stop_all(self) -> None:
        """The node leaves: give notice to the service, which moves the jobs, and let them write checkpoints."""
        asked = procs.read_json(self.folder / "stop.json") or {}
        (self.folder / "stop.json").unlink(missing_ok=True)
        said = asked.get("grace_s")
        grace_s = float(said) if isinstance(said, (int, float)) else self.settings.stop_grace_s
        with self.lock:
            self._start_beside([])
            self._leave_at = time.monotonic() + grace_s
            self.link.wake()
            for attempt in list(self.attempts.values()):
                attempt.stop(min(attempt.run.grace_s, grace_s), _LEAVES, own=True)
        while any(a.alive for a in list(self.attempts.values())):
            self._wait()


def _identity(folder: Path) -> tuple[int, int] | None:
    """Which folder is at a path, whatever its name; None for none. Raises `OSError` if the storage does not answer."""
    try:
        found = folder.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return found.st_dev, found.st_ino


def _epoch(layout: Layout, job: int) -> int:
    """The newest attempt of a job that may commit checkpoints; 0 if there is no record."""
    try:
        return read_epoch(layout.epoch_file(job))
    except OSError:
        return 0
