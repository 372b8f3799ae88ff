"""Runner of the process that several merged jobs share, with a folder, a log and an end for each of them.

    python -S -P -m plait.live.agent.processes.merged_runner   < {"host": task, "members": [task, ...]}

To the agent each member is an attempt like any other: its folder is claimed by this runner, its output is in its own
out.log, and exit.json appears when its thread has ended, while the others continue. The process itself (see
`plait.training.merged.host`) reports on a socket which members have begun and ended.

When the process dies, all members that had not ended are over. The culprit gets the exit code of the process; the
others get 75, so that they restart from their checkpoints, and `merged` in exit.json has the known role: `culprit`,
`bystander` (another one did it), `unknown` (the culprit is unknown), or `refused` (a member that cannot run merged,
alone). The culprit is known from the last words of os._exit and its like, from the thread that a segmentation fault
names, and from a member that did not end within its grace.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import selectors
import signal
import socket
import struct
import sys
import time
from dataclasses import dataclass, field
from typing import Any

from plait.live.agent.processes import runner
from plait.live.system import procs

CULPRIT, BYSTANDER, UNKNOWN, REFUSED = "culprit", "bystander", "unknown", "refused"
_PREEMPTED, _LOST = 75, 70
_STOP_AT = 2048  # the word of a page with the request to stop, see plait.runtime.page
#: A member whose grace is over is interrupted, and after so long its process is killed.
_INTERRUPTED_S = 2.0
_HURRY_S = 0.5
#: Seconds of the process for leaving after its last member.
_LEAVE_S = 5.0
_FAULT = re.compile(rb"Current thread 0x([0-9a-f]+)")
_CHUNK = 1 << 16


@dataclass
class MergedMember:
    """One job of the process."""

    task: runner.Task
    log: runner.LogWriter
    pipe: int
    output: int
    name: str
    thread: int = 0
    interrupt_at: float | None = None
    kill_at: float | None = None
    ended: dict[str, Any] | None = None
    written: bool = False

    @property
    def stopping(self) -> bool:
        """Whether it has a request to stop."""
        return self.kill_at is not None

    def copy(self) -> bool:
        """Move waiting output to the log; False at its end."""
        try:
            data = os.read(self.pipe, _CHUNK)
        except BlockingIOError:
            return True
        self.log.write(data)
        return bool(data)

    def drain(self) -> None:
        """All that waits now."""
        for _ in range(1 << 10):
            before = self.log.start + self.log.size
            if not self.copy() or self.log.start + self.log.size == before:
                return


class _Everybody:
    """The log of what the process itself prints: C libraries, faults. It goes to all members that have not ended."""

    def __init__(self, members: list[MergedMember]) -> None:
        self._members, self.tail = members, b""

    def write(self, data: bytes) -> None:
        self.tail = (self.tail + data)[-16384:]
        for member in self._members:
            if not member.written:
                member.log.write(data)


@dataclass
class HostRunner(runner.Runner):
    """Carries out the tasks of a group in one process; see the module."""

    members: list[MergedMember] = field(default_factory=list)
    culprit: MergedMember | None = None
    lost: str = ""
    _control: socket.socket | None = None
    _rest: bytes = b""
    _last: str = ""

    def run(self) -> int:
        """From start to the last `exit.json`; the exit code of the process."""
        self.log = _Everybody(self.members)  # type: ignore[assignment]
        wake = self._listen()
        self._started = procs.boot_s()
        kills = runner.kernel_kills()
        failure = self._start_host()
        if failure is None:
            self._watch(wake)
        self._clean_up()
        killed_by_kernel = runner.kernel_kills() > kills
        for member in self.members:
            if not member.written:
                self._write(member, *(failure or self._end_of(member, killed_by_kernel)))
        return os.waitstatus_to_exitcode(self.status or 0)

    @property
    def _folders(self) -> list[str]:
        return [member.task.folder for member in self.members]

    @property
    def _marks(self) -> list[str]:
        return [self.task.mark, *(member.task.mark for member in self.members)]

    def _start_host(self) -> tuple[int, str] | None:
        ours, theirs = socket.socketpair()
        self._control = ours
        self.task.env = self.task.env | {"PLAIT_MERGED": str(theirs.fileno())}
        self._inherited = (theirs.fileno(), *(member.output for member in self.members))
        failure = self._start()
        for fd in (theirs.detach(), *(member.output for member in self.members)):
            os.close(fd)
        if failure is None:
            plan = [{"name": m.name, "argv": m.task.argv, "env": m.task.env, "out": m.output} for m in self.members]
            with contextlib.suppress(OSError):  # it died at once; that is noticed as any death is
                ours.sendall(json.dumps({"members": plan}).encode() + b"\n")
            ours.setblocking(False)
        return failure

    # ---- while it runs ----

    def _watch(self, wake: int) -> None:
        """Until the process has ended: outputs, its words, signals, the clock, its memory."""
        assert self._control is not None
        with selectors.DefaultSelector() as selector:
            selector.register(wake, selectors.EVENT_READ, lambda: self._woken(wake))
            selector.register(self._pipe, selectors.EVENT_READ, self._copy)
            selector.register(self._control, selectors.EVENT_READ, self._listen_to_host)
            for member in self.members:
                selector.register(member.pipe, selectors.EVENT_READ, member.copy)
            check_at = time.monotonic()
            while self.status is None:
                now = time.monotonic()
                self._keep_time(now)
                if self.task.memory_bytes > 0 and now >= check_at:
                    self._check_memory()
                    check_at = now + 0.5
                due = [m.interrupt_at or m.kill_at for m in self.members if m.stopping and m.ended is None]
                due += [self.kill_at, check_at if self.task.memory_bytes > 0 else None]
                waits = [at - now for at in due if at is not None] + self._look_at_lease()
                for key, _ in selector.select(max(0.0, min(waits)) if waits else None):
                    if not key.data():
                        selector.unregister(key.fileobj)

    def _keep_time(self, now_s: float) -> None:
        """Interrupt and kill members whose time is over."""
        if self.kill_at is not None and now_s >= self.kill_at:
            self._kill("its last job had ended, it had not")
            self.kill_at = now_s + 1.0
        for index, member in enumerate(self.members):
            if member.ended is not None or not member.stopping:
                continue
            if member.interrupt_at is not None and now_s >= member.interrupt_at:
                member.interrupt_at = None
                self._say(interrupt=index)
            elif member.kill_at is not None and now_s >= member.kill_at and not self.lapsed:
                self.culprit = self.culprit or member
                member.kill_at = now_s + 1.0
                self._kill(f"{member.name} did not end within its grace")

    def _ask_to_stop(self, grace_s: float) -> None:
        """Stop all members, and kill the process after that."""
        for index, member in enumerate(self.members):
            if member.ended is None and not member.stopping:
                # Request a job's stop in the place of its agent, which may be dead.
                folder = member.task.folder
                with contextlib.suppress(OSError):
                    fd = os.open(os.path.join(folder, "page.bin"), os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
                    try:
                        os.pwrite(fd, struct.pack("<q", 1), _STOP_AT)
                    finally:
                        os.close(fd)
                self._say(stop=index)
                member.kill_at = time.monotonic() + grace_s

    def _say(self, **message: Any) -> None:
        assert self._control is not None
        with contextlib.suppress(OSError):
            self._control.sendall(json.dumps(message).encode() + b"\n")

    def _listen_to_host(self) -> bool:
        """Read a message of the process; False when it sends no more."""
        assert self._control is not None
        try:
            data = self._control.recv(_CHUNK)
        except BlockingIOError:
            return True
        except OSError:
            return False
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            with contextlib.suppress(
                ValueError, LookupError, TypeError, ArithmeticError
            ):  # user code has this socket too
                self._heard(json.loads(line))
        return bool(data)

    def _heard(self, message: dict[str, Any]) -> None:
        if "began" in message:
            self.members[message["began"]].thread = int(message["thread"])
        elif "last" in message:
            self.culprit, self._last = self.members[message["last"]], str(message["what"])
        elif "lost" in message:
            self.lost = str(message["lost"])
        elif "ended" in message and (member := self.members[message["ended"]]).ended is None:
            member.ended = message
            member.drain()
            if all(m.ended is not None for m in self.members):
                self.kill_at = time.monotonic() + _LEAVE_S  # ends are reported when the process has gone
            else:
                # processes that it started; children that it forked bear the mark of the process, and end with it
                procs.kill_until_none(
                    lambda: set(procs.marked(member.task.mark)) - {os.getpid(), self.child}
                    if member.task.mark != self.task.mark else set(), self._collect, 1.0
                )  # fmt: skip
                self._write(member, *self._own_end(member))

    def _woken(self, wake: int) -> bool:
        self._signalled(os.read(wake, 512))
        return True

    def _signalled(self, numbers: bytes) -> None:
        """Stop members whose folders or pages request it."""
        if self._deadman is not None:
            self._deadman.look()
        if signal.SIGTERM in numbers or signal.SIGUSR1 in numbers:
            now = time.monotonic()
            for index, member in enumerate(self.members):
                asked = procs.read_json(os.path.join(member.task.folder, "stop.json"))
                if member.ended is not None or (asked is None and not _page_says_stop(member.task.folder)):
                    continue
                grace_s = runner.grace_of((asked or {}).get("grace_s"), member.task.grace_s)
                at = now + (grace_s or _HURRY_S)
                if not member.stopping:
                    self._say(stop=index)
                if member.kill_at is None or at + _INTERRUPTED_S < member.kill_at:
                    member.interrupt_at, member.kill_at = at, at + _INTERRUPTED_S
        self._collect()

    # ---- how it ended ----

    def _drain(self) -> None:
        super()._drain()
        if self._control is not None:
            while runner.readable(self._control.fileno()) and self._listen_to_host():
                pass
            self._control.close()
        for member in self.members:
            member.drain()
            os.close(member.pipe)

    def _own_end(self, member: MergedMember) -> tuple[int, str | None, str]:
        """Of a member whose thread has ended."""
        assert member.ended is not None
        code, refused = int(member.ended["code"]), member.ended.get("refused")
        if self.lapsed and (code < 0 or code == _PREEMPTED):
            return _PREEMPTED, self.lapsed, ""
        if refused:
            return _PREEMPTED, str(refused), REFUSED
        if code in (0, _PREEMPTED):
            return code, None, ""
        if code < 0:
            return code, "stopped without a checkpoint", ""
        return code, f"exit code {code}{member.log.tail_text()}", ""

    def _end_of(self, member: MergedMember, killed_by_kernel: bool) -> tuple[int, str | None, str]:
        """Of a member when the process is over."""
        if member.ended is not None:
            return self._own_end(member)
        if self.lapsed:
            return _PREEMPTED, self.lapsed, ""
        if self.culprit is None and (found := _FAULT.search(self.log.tail)):
            thread = int(found[1], 16)
            self.culprit = next((m for m in self.members if m.thread == thread), None)
        code, what = self._what_happened(killed_by_kernel)
        if member is self.culprit:
            return code, f"{what}{member.log.tail_text()}" if code else None, CULPRIT
        who = f" ({self.culprit.name} did it)" if self.culprit else ""
        return (
            _PREEMPTED, f"the process that it shared {what}{who}; it begins again by itself",
            BYSTANDER if self.culprit else UNKNOWN,
        )  # fmt: skip

    def _what_happened(self, killed_by_kernel: bool) -> tuple[int, str]:
        code = os.waitstatus_to_exitcode(self.status or 0)
        if self.killed:
            return code, f"was killed: {self.killed}"
        if self.lost:
            return code, f"lost its GPU: {self.lost}"
        if self._last:
            return code, f"ended by {self._last}"
        if code >= 0:
            return code, f"ended with exit code {code}"
        name = signal.Signals(-code).name if -code in {s.value for s in signal.Signals} else f"signal {-code}"
        if -code == signal.SIGKILL:
            name += " (the kernel ran out of memory)" if killed_by_kernel else " (by hand, or out of memory)"
        return code, f"was killed by {name}"

    def _write(self, member: MergedMember, code: int, reason: str | None, merged: str = "") -> None:
        member.written = True
        record = {"exit_code": code, "reason": reason, "seconds": procs.boot_s() - self._started}
        runner.write_exit(member.task.folder, record | ({"merged": merged} if merged else {}))


def _page_says_stop(folder: str) -> bool:
    """Whether the page has a request to stop: known also when a full disk kept stop.json from being written."""
    try:
        with procs.open_plain(os.path.join(folder, "page.bin")) as page:
            page.seek(_STOP_AT)
            return bool(struct.unpack("<q", page.read(8))[0] > 0)
    except (OSError, struct.error):
        return False


def _claim_all(tasks: list[runner.Task], mark: str) -> list[runner.Task]:
    """Tasks whose folders are ours now; without any claim if the disk refuses one."""
    ours: list[runner.Task] = []
    try:
        for task in tasks:
            if runner.claim(task.folder, merged=len(tasks), mark=mark):
                ours.append(task)  # noqa: PERF401  (one by one: an error leaves none)
    except OSError:
        for task in ours:
            os.unlink(os.path.join(task.folder, "runner.json"))
        raise
    return ours


def main() -> int:
    """Carry out the tasks on standard input."""
    try:
        message = json.loads(sys.stdin.buffer.read())
        host, tasks = runner.Task(**message["host"]), [runner.Task(**one) for one in message["members"]]
    except ValueError:
        return 0  # the agent died while it wrote: nothing was started
    os.umask(0o077)
    procs.prctl(procs.PR_SET_CHILD_SUBREAPER, 1)
    members = []
    for task in _claim_all(tasks, host.mark):
        try:
            log = runner.LogWriter(task.folder, task.log_bytes, task.output)
        except OSError as error:
            no_log = {"exit_code": 126, "reason": f"no log or output could be made: {error}", "seconds": 0.0}
            runner.write_exit(task.folder, no_log)
            continue
        pipe, output = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(pipe, False)
        members.append(MergedMember(task, log, pipe, output, task.env.get("PLAIT_JOB", task.folder)))
    if members:
        HostRunner(host, members=members).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
