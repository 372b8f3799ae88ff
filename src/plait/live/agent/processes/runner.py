"""Runner of one process of a job: starts it, keeps its output, ends it and its descendants, reports how it ended.

    python -S -P -m plait.live.agent.processes.runner   < the task as JSON

It outlives the agent, and everything that must not depend on the agent's life is here: grace before a kill, the memory
limit, rotation of the log, the exit code, and the `throttle` of a guest that does not pace itself. It leads no user
code: the job's process gets a session of its own and dies with the runner (PR_SET_PDEATHSIG); grandchildren that forked
away come back to it when they are orphaned, because it is their subreaper, and are killed when the job's process has
ended; where the machine allows it the job has a control group of its own (`cgroups`), in which daemons stay. Next to it
a `guardian` ends the job if the runner itself is killed, and both end it when the `lease` of the node is over.

Files in the folder of the process: `runner.json` is the claim (made by `link`, so that there is one runner whatever
happened to the agent between two tries), `out.log` with `out.log.first`, `out.log.1` ... and `log.json` (see `logs`),
`exit.json` at the end. Signals: SIGTERM stops gracefully (grace from `stop.json` if it is there), SIGUSR1 at once.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import os
import selectors
import signal
import sys
import time
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from plait.live.agent.lease import Deadman, Lease
from plait.live.system import cgroups, procs
from plait.live.system.freezer import Freezer

if TYPE_CHECKING:
    from plait.live.agent.processes.throttle import Throttle

# A small process next to each runner that ends the job when the runner cannot: it was killed, or it stands still.
#
# The process that the runner started dies with the runner (PR_SET_PDEATHSIG), its own children do not: a shell's
# program would continue alone if the agent were dead too. The guardian is a fork of the runner, has a session of its
# own, and the kernel signals it when the runner dies. It finds processes of the job by their mark, their control group
# and the session of the job.

_GUARDIAN_LOOKS_S = 5.0


def _fork_guardian(marks: Collection[str], session: int, clock: tuple[str, Deadman] | None) -> int:
    """Start one for the job with these marks and this session, and the lease at this path; its pid. Raises OSError."""
    runner = os.getpid()
    child = os.fork()
    if child == 0:
        try:
            _guard(runner, marks, session, clock)
        finally:
            os._exit(70)
    return child


def _guard(runner: int, marks: Collection[str], session: int, clock: tuple[str, Deadman] | None) -> NoReturn:
    os.setsid()
    signal.set_wakeup_fd(-1)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    procs.prctl(procs.PR_SET_PDEATHSIG, signal.SIGTERM)
    procs.prctl(procs.PR_SET_CHILD_SUBREAPER, 0)
    os.closerange(3, os.sysconf("SC_OPEN_MAX") if os.sysconf("SC_OPEN_MAX") < 1 << 16 else 1 << 16)
    deadman = Deadman(clock[0], clock[1].lease, kills=False) if clock is not None else None
    while os.getppid() == runner:
        wait_s = _GUARDIAN_LOOKS_S
        if deadman is not None:
            lease = deadman.look()
            wait_s = min(lease.look_s, lease.until_s - procs.boot_s())
            if wait_s <= 0:
                break
        if signal.sigtimedwait({signal.SIGTERM}, wait_s) is not None and os.getppid() != runner:
            break
    procs.kill_until_none(
        lambda: {p for m in marks for p in procs.marked(m)} | procs.in_session(session), lambda: None, 30.0
    )
    for mark in marks:
        cgroups.remove(mark)
    os._exit(0)


#: Full files of a log that are kept: the first one, then the newest.
FIRST_LOG, NEWEST_LOGS = "out.log.first", 2
#: Signals to a runner; it is born with them blocked, so that one sent too early waits.
HELD_BACK = (signal.SIGTERM, signal.SIGUSR1)
_CHUNK = 1 << 16
EXIT_BYTES = 4096  # of exit.json, taken from the disk at the start: a full disk must not hide how a job ended
_TAIL_BYTES = 1 << 15  # of the output, from which the last lines of a reason are taken
_MEMORY_EVERY_S = 0.5
_MOST_GRACE_S = 1e6
_STACKS_S = 1.0  # for writing down where a hung process is
_NOT_FOUND, _NOT_RUNNABLE, _PREEMPTED = 127, 126, 75


@dataclass
class Task:
    """The task from the agent. `folder` holds its files; `env` is complete; bytes and seconds.

    `output`: the file to which the output is appended too; "" for none.
    `lease`: the file of the node's lease, requested at `asked_s` (of CLOCK_BOOTTIME) and valid for `lease_s` when this
    was written; "" = nothing ends it. `guest`: it starts as a guest, which is held to its share.
    """

    folder: str
    argv: list[str]
    cwd: str
    env: dict[str, str]
    mark: str
    grace_s: float = 60.0
    log_bytes: int = 10_000_000
    output: str = ""
    memory_bytes: float = 0.0
    lease: str = ""
    asked_s: float = 0.0
    lease_s: float = 0.0
    guest: bool = False


class LogWriter:
    """`out.log`, turned over at a size. The first full file stays, since its beginning shows how a job was started; of
    the others the newest. Where each file begins in the whole log is kept by inode in `log.json`, written before files
    change their names, so that readers need no lock.
    """

    def __init__(self, folder: str, limit: int, output: str = "") -> None:
        """Open the log in a folder, and the file `output` to which all is appended too. Raises `OSError`."""
        self.folder, self.limit = folder, max(limit, 4096)
        self._output = -1
        if output:
            os.makedirs(os.path.dirname(output), exist_ok=True)
            append = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NONBLOCK  # a pipe may have no reader
            self._output = os.open(output, append, 0o666)
        self.tail = b""
        self._starts: dict[str, int] = {}
        self._fd = -1
        self._open("out.log", start=0)

    def _open(self, name: str, start: int) -> None:
        fd = os.open(os.path.join(self.folder, name), os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._starts[str(os.fstat(fd).st_ino)] = start
        procs.write_json(os.path.join(self.folder, "log.json"), self._starts)
        if self._fd >= 0:
            os.close(self._fd)
        self._fd, self.start, self.size = fd, start, os.fstat(fd).st_size

    def write(self, data: bytes) -> None:
        """Append. A full disk loses output, never the job."""
        self.tail = (self.tail + data)[-_TAIL_BYTES:]
        if self._output >= 0:
            with contextlib.suppress(OSError):
                os.write(self._output, data)
        try:
            while data:
                room = self.limit - self.size
                if len(data) > room:  # between two lines, if there is an end of one
                    room = data.rfind(b"\n", 0, max(room, 0)) + 1 or (0 if len(data) <= self.limit else room)
                if room <= 0:
                    self._turn_over()
                    continue
                written = os.write(self._fd, data[:room])
                self.size += written
                data = data[written:]
        except OSError:
            return

    def _turn_over(self) -> None:
        def path(number: int) -> str:
            return os.path.join(self.folder, f"out.log.{number}" if number else "out.log")

        first = self.start == 0
        if not first and os.path.exists(oldest := path(NEWEST_LOGS)):
            self._starts.pop(str(os.stat(oldest).st_ino), None)
        self._open("out.log.new", self.start + self.size)
        if first:
            os.replace(path(0), os.path.join(self.folder, FIRST_LOG))
        else:
            for number in range(NEWEST_LOGS, 0, -1):
                if os.path.exists(path(number - 1)):
                    os.replace(path(number - 1), path(number))
        os.replace(os.path.join(self.folder, "out.log.new"), path(0))

    def tail_text(self) -> str:
        """The end of the output as the end of a reason."""
        said = self.last_lines()
        return f"; last lines of the log: {said}" if said else "; it printed nothing"

    def last_lines(self, lines: int = 5, chars: int = 600) -> str:
        """The last lines of the output as one of so many characters; of long ones the beginning and the end."""
        text = [line.strip() for line in self.tail.decode(errors="replace").splitlines() if line.strip()][-lines:]
        room = chars - len(" | ") * (len(text) - 1)
        for done, i in enumerate(sorted(range(len(text)), key=lambda i: len(text[i]))):
            text[i] = _shortened(text[i], room // (len(text) - done))
            room -= len(text[i])
        return " | ".join(text)


@dataclass
class Runner:
    """Carries out one task; see the module."""

    task: Task
    log: LogWriter = field(init=False)
    child: int = 0
    status: int | None = None
    stopping: bool = False
    kill_at: float | None = None
    killed: str | None = None
    #: Why the lease of the node ended it, if so.
    lapsed: str = ""
    #: SIGTERM reached the job's process before its end, and was not ignored: an exit with 0 may be its answer.
    heeds_stop: bool = False
    _deadman: Deadman | None = None
    _guardian: int = 0
    _pipe: int = -1
    _inherited: tuple[int, ...] = ()
    _throttle: Throttle | None = None

    def run(self) -> int:
        """From start to `exit.json`; the exit code of the job's process, -n if signal n ended it."""
        try:
            self.log = LogWriter(self.task.folder, self.task.log_bytes, self.task.output)
        except OSError as error:
            no_log = {"exit_code": _NOT_RUNNABLE, "reason": f"no log or output could be made: {error}", "seconds": 0.0}
            write_exit(self.task.folder, no_log)
            return _NOT_RUNNABLE
        wake = self._listen()
        started = procs.boot_s()
        kills = kernel_kills()
        failure = self._start()
        if failure is None:
            self._watch(wake)
        self._clean_up()
        code, reason = failure or self._verdict(kernel_kills() - kills)
        record = {"exit_code": code, "reason": reason, "seconds": procs.boot_s() - started}
        write_exit(self.task.folder, record | ({"stopped": True} if self.heeds_stop else {}))
        return code

    def _listen(self) -> int:
        """Install signal handlers; return the file descriptor that becomes readable on a signal."""
        wake, wakeup = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGUSR1):
            signal.signal(number, lambda *_: None)
        for number in (signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, HELD_BACK)  # the agent held them back until here
        return wake

    def _start(self) -> tuple[int, str] | None:
        """Start the job's process; why it could not be, if so."""
        if self.task.lease:
            self._deadman = Deadman(self.task.lease, Lease(self.task.asked_s, self.task.lease_s))
            if (lease := self._deadman.lease).stop_s(self.task.grace_s) <= procs.boot_s():
                self.status = 0
                return _PREEMPTED, str(lease)
        if self.task.guest:  # modules that other runners do without, loaded before the job can run
            import plait.live.agent.processes.throttle  # noqa: F401
        if (failure := self._make_child(cgroups.make(self.task.mark))) is not None:
            return failure
        clock = (self.task.lease, self._deadman) if self._deadman is not None else None
        with contextlib.suppress(OSError):  # no room for one more process: the runner alone, then
            self._guardian = _fork_guardian(self._marks, self.child, clock)
        for folder in self._folders:
            path = os.path.join(folder, "runner.json")
            child = {"child": self.child, "child_start_time": procs.start_time(self.child)}
            with contextlib.suppress(OSError):
                procs.write_json(path, (procs.read_json(path) or {}) | child)
        return None

    def _make_child(self, group: str) -> tuple[int, str] | None:
        """Start the job's process in a control group; why it could not be, if so."""
        self._pipe, output = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self._pipe, False)
        with contextlib.suppress(OSError):
            fcntl.fcntl(self._pipe, fcntl.F_SETPIPE_SZ, 1 << 20)  # a slow disk holds the job up later
        trouble, report = os.pipe2(os.O_CLOEXEC)
        runner = os.getpid()
        self.child = os.fork()
        if self.child == 0:
            cgroups.enter(group)
            cgroups.drop()
            self._become(runner, output, report)
        os.close(output)
        os.close(report)
        with os.fdopen(trouble, "rb") as file:
            message = file.read()  # ends at once when exec succeeds
        if message:
            _, self.status = os.waitpid(self.child, 0)
            code, _, text = message.decode(errors="replace").partition(" ")
            return int(code), text
        return None

    @property
    def _folders(self) -> list[str]:
        """Folders that this runner has claimed."""
        return [self.task.folder]

    @property
    def _marks(self) -> list[str]:
        return [self.task.mark]

    def _become(self, runner: int, output: int, report: int) -> NoReturn:
        """In the new process: cut loose from the runner except for its death, and become the job."""
        try:
            os.setsid()
            procs.prctl(procs.PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != runner:  # it died before the line above
                os._exit(1)
            procs.prctl(procs.PR_SET_DUMPABLE, 1)  # its files in /proc are its own, also if it has just given up root
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGUSR1, signal.SIGINT, signal.SIGHUP,
                           signal.SIGPIPE, signal.SIGXFSZ):  # fmt: skip
                signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_SETMASK, ())
            with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
                file.write("500")  # when memory ends, jobs go before agents and the service
            nothing = os.open(os.devnull, os.O_RDONLY)
            for source, target in ((nothing, 0), (output, 1), (output, 2)):
                os.dup2(source, target)
            try:
                os.chdir(self.task.cwd)
            except OSError as error:
                os.write(report, f"{_NOT_RUNNABLE} cannot enter workdir {self.task.cwd!r}: {error.strerror}".encode())
                os._exit(_NOT_RUNNABLE)
            for fd in self._inherited:
                os.set_inheritable(fd, True)
            os.execvpe(self.task.argv[0], self.task.argv, self.task.env)
        except FileNotFoundError:
            text = f"{_NOT_FOUND} command not found: {self.task.argv[0]!r} (started in {self.task.cwd!r})"
        except BaseException as error:
            text = f"{_NOT_RUNNABLE} cannot run {self.task.argv[0]!r}: {error}"
        os.write(report, text.encode(errors="replace"))
        os._exit(_NOT_FOUND)

    def _watch(self, wake: int) -> None:
        """Until the job's process has ended: its output, signals, the clock, its memory."""
        self._throttle_guest()
        with selectors.DefaultSelector() as selector:
            selector.register(self._pipe, selectors.EVENT_READ)
            selector.register(wake, selectors.EVENT_READ)
            check_at = time.monotonic()
            while self.status is None:
                now = time.monotonic()
                if self.kill_at is not None and now >= self.kill_at:
                    self._kill(f"did not end within {self._grace_s():g} s after SIGTERM, so it was killed")
                    self.kill_at = now + 1.0
                if self.task.memory_bytes > 0 and now >= check_at:
                    self._check_memory()
                    check_at = now + _MEMORY_EVERY_S
                next_check = check_at if self.task.memory_bytes > 0 else None
                waits = [at - now for at in (self.kill_at, next_check) if at is not None] + self._look_at_lease()
                if self._throttle is not None and (turn_s := self._throttle.turn()) is not None:
                    waits.append(turn_s)
                for key, _ in selector.select(max(0.0, min(waits)) if waits else None):
                    if key.fd == self._pipe:
                        if not self._copy():
                            selector.unregister(self._pipe)  # the job closed its output and continues
                    else:
                        self._signalled(os.read(wake, 512))

    def _throttle_guest(self) -> None:
        """Hold a guest to its share from its start on, where it does not do so itself."""
        if not self.task.guest:
            return
        from plait.live.agent.processes.throttle import Throttle, opened

        def processes() -> set[int]:
            return {*self._below(), *procs.marked(self.task.mark)} - {self._guardian, os.getpid()}

        on_slot = not self.task.env.get("CUDA_VISIBLE_DEVICES")
        self._throttle = Throttle(
            Path(self.task.folder, "page.bin"),
            Freezer(self.task.mark, processes),
            uses_gpu=lambda: on_slot or opened(processes()),
        )

    def _release(self) -> None:
        if self._throttle is not None:  # a guest that is to end: frozen processes handle no signal but SIGKILL
            self._throttle.release()

    def _look_at_lease(self) -> list[float]:
        """End the job if the lease of the node is over, gracefully first; seconds until it is to be looked at again."""
        if self._deadman is None or self.status is not None:
            return []
        lease, now = self._deadman.look(), procs.boot_s()
        if now >= lease.kill_s:
            self.lapsed = self.lapsed or str(lease)
            self._kill(self.lapsed)
        elif now >= lease.stop_s(self.task.grace_s) and not self.lapsed:
            self.lapsed = str(lease)
            self._ask_to_stop(lease.kill_s - now)
        ahead = [at - now for at in (lease.stop_s(self.task.grace_s), lease.kill_s) if at > now]
        return [min([lease.look_s, *ahead])]

    def _ask_to_stop(self, grace_s: float) -> None:
        """Send SIGTERM once, and schedule the kill after the grace period."""
        self._collect()
        if self.status is None and not self.stopping:  # a second SIGTERM makes a job leave without a checkpoint
            self.heeds_stop = procs.heeds(self.child, signal.SIGTERM)
            deaf = self._throttle is not None and not self.heeds_stop  # a guest that uses no grace: it stays throttled
            if not deaf:
                self._release()
            for number in (signal.SIGTERM,) if deaf else (signal.SIGTERM, signal.SIGCONT):
                with contextlib.suppress(OSError):
                    os.kill(self.child, number)
        until = time.monotonic() + grace_s
        self.kill_at = until if self.kill_at is None else min(self.kill_at, until)
        self.stopping = True

    def _signalled(self, numbers: bytes) -> None:
        if self._deadman is not None:
            self._deadman.look()  # a node that leaves makes its lease shorter
        if signal.SIGUSR1 in numbers:
            self.stopping = True
            hung = procs.read_json(os.path.join(self.task.folder, "hung.json"))
            if hung is not None and self.killed is None:
                self._ask_what_it_does(str(hung.get("reason")))
            else:
                self._kill("killed on request")
        elif signal.SIGTERM in numbers:
            grace_s = self._grace_s()
            if grace_s <= 0:
                self.stopping = True
                self._kill("killed on request")
            else:
                self._ask_to_stop(grace_s)
        self._collect()

    def _ask_what_it_does(self, hung: str) -> None:
        """Before the kill: processes that know plait answer SIGQUIT with the stacks of their threads, in the log."""
        self.killed, self.kill_at = hung, time.monotonic() + _STACKS_S
        self._release()
        for pid in self._below():
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGQUIT)

    def _grace_s(self) -> float:
        return read_grace_s(Path(self.task.folder, "stop.json"), self.task.grace_s)

    def _check_memory(self) -> None:
        limit = self.task.memory_bytes
        used = procs.memory_bytes(self._below(), limit)
        if used > limit:
            self._kill(f"used {used / 1e9:.2f} GB, more than its memory limit of {limit / 1e9:.2f} GB; ask for more")

    def _copy(self) -> bool:
        try:
            data = os.read(self._pipe, _CHUNK)
        except BlockingIOError:
            return True
        self.log.write(data)
        return bool(data)

    def _collect(self) -> None:
        """Take in ended children: the job's process, and orphans that came back."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self.child:
                self.status = status

    def _below(self) -> set[int]:
        """Processes of the job: of its group, and descendants of this one, as all are that were orphaned."""
        return {*procs.descendants(os.getpid()), *cgroups.members(self.task.mark)} - {self._guardian}

    def _kill(self, why: str) -> None:
        self.killed = self.killed or why
        procs.kill_until_none(self._below, self._collect)

    def _clean_up(self) -> None:
        """End everything of the job that outlives its process, and keep its last output."""
        mine = {os.getpid(), self._guardian}
        procs.kill_until_none(
            lambda: {*self._below(), *(p for m in self._marks for p in procs.marked(m))} - mine, self._collect
        )
        self._release()
        if self._guardian:
            with contextlib.suppress(OSError):
                os.kill(self._guardian, signal.SIGKILL)
                os.waitpid(self._guardian, 0)
        cgroups.remove(self.task.mark)
        self._drain()

    def _drain(self) -> None:
        """Keep the last output of the job."""
        if self._pipe < 0:  # it was never started
            return
        for _ in range(1 << 10):
            try:
                if not self._copy():
                    break
            except OSError:
                break
            if not readable(self._pipe):
                break
        os.close(self._pipe)

    def _verdict(self, kernel_kills: int) -> tuple[int, str | None]:
        code = os.waitstatus_to_exitcode(self.status or 0)
        if self.lapsed and (code < 0 or code == _PREEMPTED):  # not its failure: it resumes from its checkpoint
            return _PREEMPTED, self.lapsed
        if self.killed:
            return code, self.killed
        if code == 0 or code == _PREEMPTED:
            return code, self.lapsed or None
        tail = self.log.tail_text()
        if code > 0:
            return code, f"exit code {code}{tail}"
        name = _signal_name(-code)
        if self.stopping and -code == signal.SIGTERM:
            return code, "stopped by SIGTERM without a checkpoint"
        if -code == signal.SIGKILL:
            limit = f", its limit is {self.task.memory_bytes / 1e9:.2f} GB" if self.task.memory_bytes else ""
            sure = "the kernel ran out of memory" if kernel_kills > 0 else "by hand, or out of memory"
            return code, f"killed by SIGKILL ({sure}{limit}){tail}"
        return code, f"killed by {name}{tail}"


def write_exit(folder: str, record: dict[str, Any]) -> None:
    """Write into the file that was made for it, then give it its name; try on while the disk gives errors."""
    record |= {"ended_boot_s": procs.boot_s(), "boot": procs.boot_id()}
    part = _exit_part(folder)
    text = json.dumps(record)
    if len(text) > EXIT_BYTES:
        text = json.dumps(record | {"reason": str(record["reason"])[:500]})
    for _ in range(600):
        try:
            fd = os.open(part, os.O_WRONLY | os.O_CREAT, 0o600)
            try:
                os.write(fd, text.encode().ljust(EXIT_BYTES))
                os.fsync(fd)
            finally:
                os.close(fd)
            os.replace(part, os.path.join(folder, "exit.json"))
            return
        except OSError:  # no room, or the job has spoilt its folder; how it ended is to be known all the same
            if not Path(folder).parents[4].is_dir():
                return  # the home has vanished
            _clear_way(folder)
            time.sleep(0.1)


def _clear_way(folder: str) -> None:
    """Make the folder again and put aside what the job has put in its place or in that of exit.json.

    The job may have put a file in the place of a folder above, too.
    """
    path = Path(folder)
    odd = f".odd-{time.time_ns()}"
    with contextlib.suppress(OSError):
        for above in [*reversed(path.parents[:4]), path]:  # from the folder of all jobs on
            if above == path.parents[3] and above.is_dir() and above.stat().st_uid != os.geteuid():
                continue  # of root, and this runner is of another account
            if os.path.lexists(above) and not above.is_dir():
                above.rename(above.with_name(above.name + odd))
            above.mkdir(mode=0o700, exist_ok=True)
            if not os.access(above, os.R_OK | os.W_OK | os.X_OK):
                above.chmod(0o700)
        if (end := path / "exit.json").is_dir():
            end.rename(end.with_name(end.name + odd))


def _shortened(line: str, chars: int) -> str:
    """The line in so many characters, without its middle if it is longer."""
    half = (chars - len(" ... ")) // 2
    return line if len(line) <= chars else f"{line[:half]} ... {line[-half:]}"


def readable(fd: int) -> bool:
    """Whether a descriptor has something to read, or has ended."""
    with selectors.DefaultSelector() as selector:
        selector.register(fd, selectors.EVENT_READ)
        return bool(selector.select(0))


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def kernel_kills() -> int:
    """How often the kernel has killed a process of this machine (or container) for want of memory."""
    for path in ("/sys/fs/cgroup/memory.events", "/proc/vmstat"):
        with contextlib.suppress(OSError, ValueError), open(path, encoding="ascii") as file:
            for line in file:
                name, _, count = line.partition(" ")
                if name == "oom_kill":
                    return int(count)
    return 0


def read_grace_s(path: Path, usual_s: float) -> float:
    """Seconds of grace in a stop.json."""
    return grace_of((procs.read_json(path) or {}).get("grace_s"), usual_s)


def grace_of(value: object, usual_s: float) -> float:
    """A grace that can be waited for.

    >>> grace_of(1e308, 60.0), grace_of("x", 60.0), grace_of(3, 60.0)
    (60.0, 60.0, 3.0)
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) <= _MOST_GRACE_S:
        return usual_s
    return max(float(value), 0.0) if math.isfinite(value) else usual_s


def claim(folder: str, **more: object) -> bool:
    """Become the runner of a folder, with `more` in the claim; False if it has or had one.

    Raises OSError, having claimed nothing, if the disk refuses: then the agent tries again.
    """
    me = procs.Process.of(os.getpid())
    assert me is not None
    with open(_exit_part(folder), "wb") as file:
        file.write(b" " * EXIT_BYTES)
    part = os.path.join(folder, f"runner.json.{me.pid}")
    procs.write_json(part, {"pid": me.pid, "start_time": me.start_time, "boot": me.boot} | more)
    try:
        os.link(part, os.path.join(folder, "runner.json"))
    except FileExistsError:
        os.unlink(_exit_part(folder))
        return False
    finally:
        os.unlink(part)
    return True


def _exit_part(folder: str) -> str:
    return os.path.join(folder, f"exit.json.{os.getpid()}")


def main() -> int:
    """Carry out the task on standard input."""
    try:
        task = Task(**json.loads(sys.stdin.buffer.read()))
    except ValueError:
        return 0  # the agent died while it wrote: it was never started
    os.umask(0o077)
    procs.prctl(procs.PR_SET_CHILD_SUBREAPER, 1)
    if not claim(task.folder):
        return 0
    Runner(task).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
