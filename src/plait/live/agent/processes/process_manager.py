"""The processes of an agent's attempts, from the first try to start one to the note of its end."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import selectors
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from plait.core.errors import InputError
from plait.live.agent import journal
from plait.live.agent.gates import Gates
from plait.live.agent.journal import Journal, Key
from plait.live.agent.lease import NodeLease
from plait.live.agent.monitor import Monitor
from plait.live.agent.node import AgentOptions
from plait.live.agent.processes import launch
from plait.live.agent.processes.attempt import LocalAttempt
from plait.live.agent.processes.console import Consoles
from plait.live.agent.processes.job_files import read_claim
from plait.live.agent.processes.runner import EXIT_BYTES
from plait.live.agent.processes.successor import Successor
from plait.live.agent.sharing import Coordinator, hold_back, neighbours
from plait.live.agent.switch_host import SwitchHost
from plait.live.layout import Layout, make_private
from plait.live.protocol.leases import LEASE_SHARE, LOST_S
from plait.live.protocol.wire import ENDED, PREEMPTED, RUNNING, STARTING, STOPPING, GroupInfo, Run
from plait.live.system import procs
from plait.live.system.accounts import Account, in_name_of, job_folder, open_to_all
from plait.live.system.procs import Process
from plait.runtime.guest_gate import Neighbours

#: The exit code of what can never be started.
NOT_RUNNABLE = 126
#: Seconds that a host waits at most for the memory of guests on its GPUs.
FREED_S = 60.0
#: Runners of one attempt that may end before the job begins, not counting runners without room on the disk.
RUNNER_TRIES = 5
#: Errors of the machine, not of the job, that may pass: disk, processes, files, memory.
_PASSING = (errno.ENOSPC, errno.EDQUOT, errno.EAGAIN, errno.EMFILE, errno.ENFILE, errno.ENOMEM)


class ProcessManager:
    """Starts, reattaches to, ends and collects the processes of a node; calls `changed` when something changed."""

    def __init__(self, layout: Layout, settings: AgentOptions, changed: Callable[[], None]) -> None:
        """Read the journal; `reattach` to its attempts once `changed` can be called."""
        self.layout, self.settings, self._changed = layout, settings, changed
        self.folder = layout.node(settings.node)
        self.monitor = Monitor(
            settings.node,
            settings.slots,
            settings.devices,
            rack=settings.rack,
            gpu_kind=settings.gpu_kind,
            slot_memory_bytes=1e9 * (settings.slot_memory or 0.0),
        )
        self.consoles = Consoles()
        self._threads = max(1, int(self.monitor.node.cpus // max(1, settings.slots)))
        self.gates = Gates(layout, settings.node, self.log)
        self.journal = Journal(self.folder / "journal.jsonl")
        if settings.as_owner:  # accounts pass through to their jobs' folders, and to the files in shared memory
            for folder in (layout.home, layout.home / "jobs", layout.lease(settings.node).parent, layout.gates.parent):
                open_to_all(make_private(folder))
        self.lease = NodeLease.of(layout.lease(settings.node), LEASE_SHARE * LOST_S)
        self.coordinator = Coordinator(self.folder / "sharing.json", self.monitor.node.gpu_memory_bytes, self.log)
        self.switch = SwitchHost(layout, settings.node, settings.switch, self.log, changed)
        self.attempts: dict[Key, LocalAttempt] = {}
        #: Processes that wait for attempts that have not begun; see `successor`.
        self.successors: dict[Key, Successor] = {}
        self.selector = selectors.DefaultSelector()
        self._retry_at = 0.0

    def log(self, event: str, **facts: Any) -> None:
        """One JSON line to standard error, which is agent.log under a backend."""
        line = {"at": round(time.time(), 3), "node": self.settings.node, "event": event} | facts
        with contextlib.suppress(OSError):
            print(json.dumps(line, default=str), file=sys.stderr, flush=True)

    # ---- reattaching ----

    def _reattach(self, attempt: LocalAttempt, known: journal.Remembered) -> None:
        """A process the journal knows: still running, ended meanwhile, or never started."""
        if known.ended:
            attempt.ended_before(known)
            return
        process = known.process or self._claimed(attempt)
        if process is None:
            return  # announced but never begun: may still be started
        attempt.began(process, known.began_boot_s)
        attempt.remember_class()
        attempt.group_version = None
        if attempt.pidfd < 0:
            self._collect(attempt)
        else:
            self.selector.register(attempt.pidfd, selectors.EVENT_READ, attempt)
            self.log("reattached", key=attempt.key, pid=process.pid)
        self._complain(attempt)

    def _reattach_unknown(self) -> None:
        """Runners of this node that the journal does not know, because it was lost: they run, whatever their origin.

        Only their job is known; the service sends the rest, or the request to end them.
        """
        for pid in procs.with_environment(launch.LEASE_VARIABLE, str(self.lease.path)):
            mark = procs.environment(pid).get(procs.MARK, "")
            process, key = Process.of(pid), launch.key_of(self.layout, mark)
            if process is None or key is None or key in self.attempts:
                continue
            run = Run(*key, world=1, argv=[], gpus=[], group=GroupInfo(f"left-{key[0]}-{key[1]}"))
            claim = read_claim(self.layout.rank(*key))
            if (
                claim is not None
                and claim.process == process
                and self._note(journal.start(run), journal.began(key, process))
            ):
                self._reattach(self._new(run), journal.Remembered(run, process))

    def _complain(self, attempt: LocalAttempt) -> None:
        if attempt.page is not None and attempt.page.trouble:
            self.log("progress unknown", key=attempt.key, why=attempt.page.trouble)

    def _claimed(self, attempt: LocalAttempt) -> Process | None:
        """The runner that claimed the folder; waits a moment for one that is just starting."""
        for _ in range(50):
            if (claim := read_claim(attempt.folder)) is not None:
                return claim.process
            if not procs.marked(attempt.mark):
                return None
            time.sleep(0.02)
        return None

    def _new(self, run: Run) -> LocalAttempt:
        attempt = LocalAttempt(
            run,
            self.layout.rank(run.job, run.epoch, run.rank),
            launch.mark_of(self.layout, run.job, run.epoch, run.rank),
        )
        self.attempts[attempt.key] = attempt
        return attempt

    # ---- making it so ----

    def _share(self) -> None:
        """Pass the processes on each GPU to the coordinator, and carry out its decisions that jobs cannot."""
        processes = [
            attempt.gpu_process for attempt in self.attempts.values() if attempt.state != ENDED and attempt.run.gpus
        ]
        self.coordinator.assign(processes)
        beside = neighbours(processes)
        for attempt in self.attempts.values():
            if attempt.state == ENDED:
                continue
            attempt.neighbours = beside.get(attempt.key)
            if attempt.neighbours is None and attempt.run.group.guest:  # found without a journal: neighbours unknown
                attempt.neighbours = Neighbours(guest=True)
            if attempt.state != RUNNING:
                continue
            attempt.sharing = directive = self.coordinator.of(attempt.key)
            if why := self.coordinator.tampered(attempt.key):
                attempt.fail(why)
            elif directive is not None and directive.leaves:
                self.log("leaves", key=attempt.key, why=directive.leaves)
                attempt.stop(attempt.run.grace_s, directive.leaves, own=True)
                self._changed()
            elif directive is not None and directive.action == "stop":
                attempt.fail(
                    "out of GPU memory: what it needs is more than the GPU has, also alone and in small batches"
                )

    def _tell_group(self, attempt: LocalAttempt) -> None:
        try:
            self.gates.tell(attempt)
        except OSError as error:
            attempt.group_version = None
            self.log("group not told", key=attempt.key, why=error)

    def _tell_network(self, attempt: LocalAttempt) -> None:
        """Bring the grant file of a running rank up to date; a full disk means later."""
        if attempt.run.network is not None:
            try:
                attempt.network.write(attempt.run.network)
            except (OSError, InputError) as error:
                self.log("grant not written", key=attempt.key, why=error)

    def _start(self, waiting: list[LocalAttempt]) -> None:
        """Start attempts whose GPUs no job of another group holds, and whose job has no earlier attempt here.

        A host also waits until guests on its GPUs have freed the memory that it is to have.
        """
        holding = [a for a in self.attempts.values() if a.alive]
        ready: list[LocalAttempt] = []
        for attempt in waiting:
            other = next((o for o in (*holding, *ready) if not _may_share(attempt.run, o.run)), None)
            if other is not None:
                attempt.reason = f"waits until attempt {other.run.epoch} of job {other.run.job} has left its GPUs"
            elif self._memory_owed(attempt):
                attempt.reason = "waits until the guests on its GPUs have freed memory"
            else:
                ready.append(attempt)
        if not ready or not self._note(*(journal.start(a.run) for a in ready)):
            return
        for together in _to_launch(ready):
            with self._quarantined(*together):
                self._launch(together)
        self._note(
            *(journal.began(a.key, a.process, a.began_boot_s) for a in ready if a.process is not None and a.alive)
        )

    def _memory_owed(self, attempt: LocalAttempt) -> bool:
        """Whether guests still hold memory of a host that is to start; for `FREED_S`, or until leaving ones are gone.

        Without a coordinator that decides, it starts all the same then.
        """
        if attempt.run.group.guest or not any(map(self.coordinator.owed, attempt.run.gpus)):
            return False
        now_s = time.monotonic()
        if attempt.owed_since_s is None:
            attempt.owed_since_s = now_s
        leaving = any(
            a.state == STOPPING and a.run.group.guest and set(a.run.gpus) & set(attempt.run.gpus)
            for a in self.attempts.values()
        )
        if leaving or now_s - attempt.owed_since_s < FREED_S:
            return True
        self.log("starts although guests hold its memory", key=attempt.key, after_s=FREED_S)
        return False

    def _launch(self, attempts: list[LocalAttempt]) -> None:
        """Start a process for one attempt, or a common one for several."""
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
                    self._over(attempt, NOT_RUNNABLE, f"could not be started on node {self.settings.node}: {error}")
            return
        for attempt in attempts:
            if process is None:
                self._over(attempt, NOT_RUNNABLE, f"its runner died at once; see {attempts[0].folder / 'runner.log'}")
            else:
                self._began(attempt, process)

    def _spawn(self, attempts: list[LocalAttempt]) -> Process | None:
        envs = []
        for attempt in attempts:
            account = self.account(attempt.run)
            folder = launch.prepare(attempt.run, self.layout, account)
            if attempt.run.group.guest:
                hold_back(folder / "page.bin")
            attempt.group_version = None
            self.gates.tell(attempt)
            envs.append(self.environment(attempt.run))
            attempt.mark, attempt.shares = envs[-1][procs.MARK], False  # an earlier try may have been with others
        if len(attempts) == 1:
            begun = self._begin_successor(attempts[0].run, envs[0])
            return begun or Process.of(launch.spawn(attempts[0].run, self.layout, envs[0], self.lease))
        process = Process.of(launch.spawn_host([a.run for a in attempts], self.layout, envs, self.lease))
        for attempt in attempts:
            attempt.shares, attempt.mark = True, envs[0][procs.MARK]
        return process

    def account(self, run: Run) -> Account | None:
        """The account that runs a job, None for that of this agent; raises `InputError` if there is none."""
        return Account.of_owner(run.owner) if self.settings.as_owner else None

    def environment(self, run: Run) -> dict[str, str]:
        """All variables of a process of a job; raises `InputError` if it has no account."""
        return launch.environment(run, self.layout, self.settings.devices, self._threads, self.account(run))

    def _start_beside(self, runs: list[Run]) -> None:
        """Start the successors of running attempts, and end successors that no attempt needs."""
        wanted = {(run.job, run.epoch, run.rank): run for run in runs}
        begin = {key for key, attempt in self.attempts.items() if attempt.state == STARTING}
        for key in self.successors.keys() - wanted.keys() - begin:
            self._drop_successor(self.successors.pop(key))
        for key in wanted.keys() - self.successors.keys() - self.attempts.keys():
            try:
                successor = Successor.start(wanted[key], self.layout, self.environment(wanted[key]), self.lease)
            except InputError as error:  # its account was deleted, or nothing here runs its container any more
                self.log("no successor", key=key, why=error)
                successor = Successor(wanted[key], {})
            self.successors[key] = successor
            if successor.report >= 0:
                self.selector.register(successor.report, selectors.EVENT_READ, successor)
            self.log("waits for its attempt", key=key, pid=successor.process.pid if successor.process else None)
            self._changed()

    def _successor_settled(self, successor: Successor) -> None:
        """It is ready, or has ended."""
        self.selector.unregister(successor.report)
        successor.look()
        self._changed()

    def _drop_successor(self, successor: Successor) -> None:
        if successor.report >= 0:
            self.selector.unregister(successor.report)
        successor.close()

    def _begin_successor(self, run: Run, env: dict[str, str]) -> Process | None:
        """The process that waits for this attempt, which it becomes; None if there is none."""
        successor = self.successors.pop((run.job, run.epoch, run.rank), None)
        if successor is None:
            return None
        if not successor.fits(run, env):
            self._drop_successor(successor)
            return None
        return successor.begin(launch.task_of(run, self.layout, env, self.lease))

    def _began(self, attempt: LocalAttempt, process: Process) -> None:
        run = attempt.run
        attempt.began(process, procs.boot_s())
        attempt.reason = None
        self.log("started", key=attempt.key, pid=process.pid, gpus=run.gpus)
        self._complain(attempt)
        if attempt.pidfd < 0:
            self._collect(attempt)
        else:
            self.selector.register(attempt.pidfd, selectors.EVENT_READ, attempt)
        self._changed()

    def _later(self, attempt: LocalAttempt, why: str) -> None:
        """Nothing was started: retry in a second, as long as it is assigned."""
        attempt.wait(why)
        self._retry_at = time.monotonic() + 1.0
        self.log("later", key=attempt.key, why=why)
        self._changed()

    def _collect(self, attempt: LocalAttempt) -> None:
        """The runner has ended; one that found the folder claimed by another does not count."""
        if attempt.pidfd >= 0:
            self.selector.unregister(attempt.pidfd)
            os.close(attempt.pidfd)
            attempt.pidfd = -1
        claim = read_claim(attempt.folder)
        if attempt.process is not None and claim is not None and claim.process.pid != attempt.process.pid:
            other = claim.process
            if other.alive and launch.mark_of(self.layout, *attempt.key) == procs.environment(other.pid).get(
                procs.MARK
            ):
                state, kill_at = attempt.state, attempt.kill_at
                attempt.began(other)
                attempt.state, attempt.kill_at = state, kill_at
                if attempt.pidfd >= 0:
                    self.selector.register(attempt.pidfd, selectors.EVENT_READ, attempt)
                    return
        if claim is None and not attempt.claimed and not _was_claimed(attempt.folder):  # never the job's
            procs.kill_until_none(lambda: set(procs.marked(attempt.mark)), self._reap)
            self._not_begun(attempt)
            return
        if attempt.state == RUNNING:  # a guest may have left for want of memory before `_share` has looked
            attempt.sharing = self.coordinator.of(attempt.key) or attempt.sharing
        attempt.collect(self._strays, self._reap, self.lease.over_since(attempt.began_boot_s))
        self._over(attempt, attempt.exit_code, attempt.reason)

    def _not_begun(self, attempt: LocalAttempt) -> None:
        """The runner has ended without claiming the folder: try again, for ever only while the disk is full."""
        log = attempt.folder / "runner.log"
        if attempt.state != RUNNING:
            self._over(attempt, PREEMPTED, "stopped before it started")
            return
        attempt.runner_ends = 0 if _lacks_room(attempt.folder) else attempt.runner_ends + 1
        if attempt.runner_ends < RUNNER_TRIES:
            self._later(attempt, f"its runner could not begin; see {log}")
        else:
            why = f"its runner ended {RUNNER_TRIES} times in a row without a claim on its folder; see {log}"
            self._over(attempt, NOT_RUNNABLE, why)

    @contextlib.contextmanager
    def _quarantined(self, *attempts: LocalAttempt) -> Iterator[None]:
        """An error in this block ends and fails these attempts only; others continue."""
        try:
            yield
        except Exception as error:
            why = f"its files cannot be dealt with: {type(error).__name__}: {error}"
            self.log("quarantined", key=[a.key for a in attempts], why=why, where=traceback.format_exc(limit=-4))
            for attempt in attempts:
                if attempt.process is not None:
                    attempt.process.send(signal.SIGKILL)
                procs.kill_until_none(lambda a=attempt: set(procs.marked(a.mark)), self._reap, 1.0)  # type: ignore[misc]
                if attempt.pidfd >= 0:
                    with contextlib.suppress(KeyError):  # it went wrong before anybody waited for it
                        self.selector.unregister(attempt.pidfd)
                self._over(attempt, NOT_RUNNABLE, why)

    def _over(self, attempt: LocalAttempt, exit_code: int | None, reason: str | None) -> None:
        if attempt.state != ENDED:
            attempt.end(exit_code, reason)
        self._note(journal.end(attempt.key, exit_code, reason, attempt.merged))
        self.log("ended", key=attempt.key, exit_code=exit_code, reason=reason)
        self._changed()

    def _end_by_force(self, attempt: LocalAttempt) -> None:
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
        children = procs.children(os.getpid())  # before those of consoles, which other threads start
        runners = {a.process.pid for a in self.attempts.values() if a.process is not None and a.alive}
        runners |= {successor.process.pid for successor in self.successors.values() if successor.process is not None}
        runners |= self.switch.children | self.consoles.pids
        strays = [pid for pid in children if pid not in runners]
        return {pid for child in strays for pid in (child, *procs.descendants(child))}

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


def _was_claimed(folder: Path) -> bool:
    """Whether a runner had the folder, also if its job has made the claim unreadable since."""
    return os.path.lexists(folder / "runner.json") or (folder / "exit.json").exists()


def _lacks_room(folder: Path) -> bool:
    """Whether a runner cannot claim the folder because the disk, or something else that it shares, is full."""
    probe = folder / "room"
    try:
        with in_name_of(job_folder(folder)):
            probe.write_bytes(bytes(2 * EXIT_BYTES))
            probe.unlink()
    except OSError as error:
        return error.errno in _PASSING
    return False


def _to_launch(ready: list[LocalAttempt]) -> list[list[LocalAttempt]]:
    """Attempts by process: mergeable attempts of one group on the same GPUs share one; all others are alone."""
    found: dict[object, list[LocalAttempt]] = {}
    for attempt in ready:
        run = attempt.run
        alone = not run.merge or run.world > 1
        found.setdefault(attempt.key if alone else (run.merge, run.group.id, tuple(run.gpus)), []).append(attempt)
    return list(found.values())


def _may_share(new: Run, other: Run) -> bool:
    """Whether `new` may start while `other` has its GPUs: guests neither wait for others nor keep them waiting.

    Only their memory does, see `ProcessManager._memory_owed`.
    """
    if new.job == other.job and new.epoch != other.epoch:
        return False
    if new.group.guest or other.group.guest:
        return True
    return new.group.id == other.group.id or not set(new.gpus) & set(other.gpus)
