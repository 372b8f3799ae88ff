"""Programs that users run next to a running job: a shell, `nvidia-smi`, the end of a tunnel.

A console is a process with the environment of the job's process, its folder and its mark, so it ends with the job. The
requests of a client come one by one, each with bytes of input from a place of the client's and for output from a place
of the agent's; so a request that comes twice types nothing twice, and no output is lost. A console that nobody has
requested anything of for `ABANDONED_S` is ended, as its client has gone.

Threads may answer requests to several consoles in parallel; each console answers one at a time.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import termios
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from plait.live.protocol.wire import ConsoleAsk, ConsoleReply
from plait.live.system import procs
from plait.live.system.accounts import Account, acting_as
from plait.live.system.procs import Process

#: A console is ended after so many seconds without a request.
ABANDONED_S = 120.0
#: Output that waits for its client, at most, and what one answer has, bytes.
ROOM, PART = 1 << 20, 1 << 16
#: An answer waits so long for output, seconds: the echo of a key comes with the answer to its request.
ECHO_S = 0.02
#: The exit code of a program that a signal ended with its shell.
KILLED = 137
#: Consoles of one node.
MOST = 200
#: In the folder of a rank: touched at each input and output of a console. Interactive jobs end when it is old.
ACTIVE = "console"


class Console:
    """One program of a user, its output that has not been fetched, and how much of its input came."""

    def __init__(
        self, ask: ConsoleAsk, env: Mapping[str, str], workdir: str, folder: Path, account: Account | None = None
    ) -> None:
        """Start the program as `account` (None: that of this process); raises `OSError`."""
        self._account = account
        self.requested_s = time.monotonic()
        self._lock = threading.Lock()
        self._active = folder / ACTIVE
        self._taken, self._start, self._output = 0, 0, b""
        self._more, self._over = threading.Condition(), False
        self._exited: int | None = None
        env = {**env, "TERM": ask.term or "dumb"}
        if ask.term:
            ours, theirs = pty.openpty()
            self._read = self._write = ours
            streams = [theirs, theirs, theirs]
        else:
            (into, self._write), (self._read, out) = os.pipe(), os.pipe()
            streams = [into, out, out]
        self._resize(ask)
        self._code, code = os.pipe()
        self._closing = os.eventfd(0)
        # Children of the agent are reaped where they end, so their parent here, a shell, writes the exit code.
        words = ["sh", "-c", f'"$@"; echo $? >/dev/fd/{code}', "sh", *ask.command]
        rights: dict[str, Any] = {}
        if account is not None:
            rights = {"user": account.uid, "group": account.gid, "extra_groups": account.groups, "umask": 0o077}
            for fd in {*streams, code}:  # which programs open again by their names in /dev
                os.fchown(fd, account.uid, -1)
        try:
            with acting_as(account):  # it enters the working folder before it changes its account
                started = subprocess.Popen(
                    ["setsid", *(["--ctty"] if ask.term else []), *words], env=env, cwd=workdir, pass_fds=[code],
                    stdin=streams[0], stdout=streams[1], stderr=streams[2], **rights,
                )  # fmt: skip
        except OSError:
            self._close()
            raise
        finally:
            for fd in {*streams, code}:
                os.close(fd)
        self.process = Process.of(started.pid)
        started.returncode = 0  # it is reaped elsewhere
        os.set_blocking(self._write, False)
        self._thread = threading.Thread(target=self._copy, daemon=True)
        self._thread.start()

    def _copy(self) -> None:
        """Keep the output until it is fetched; a program that writes more than there is room for waits."""
        ready = select.poll()
        for fd in (self._read, self._closing):
            ready.register(fd, select.POLLIN)
        while self._closing not in dict(ready.poll()):
            try:
                data = os.read(self._read, PART)
            except OSError:  # the terminal is closed
                data = b""
            with self._more:
                self._output += data
                self._over |= not data
                self._more.notify_all()
                if not data:
                    return
                self._more.wait_for(lambda: len(self._output) < ROOM or self._over)
                if self._over:
                    return

    def answer(self, ask: ConsoleAsk, wait_s: float = ECHO_S) -> ConsoleReply:
        """Take input, and return output from the place that the client has reached; wait so long for the next one."""
        self.requested_s = time.monotonic()
        if ask.end:
            self.end()
        with self._lock:
            return self._answer(ask, wait_s)

    def _answer(self, ask: ConsoleAsk, wait_s: float) -> ConsoleReply:
        self._resize(ask)
        data, new = base64.b64decode(ask.input), self._taken - ask.input_at
        given = data[new:] if new >= 0 else b""  # a request that came late, or twice, has bytes that were taken
        with contextlib.suppress(OSError):  # there is no room, or the program has closed its input
            self._taken += os.write(self._write, given) if given else 0
        all_taken = self._taken >= ask.input_at + len(data)
        if ask.input_over and all_taken and self._read != self._write and self._write >= 0:
            os.close(self._write)
            self._write = -1
        with self._more:
            fetched = max(ask.output_at - self._start, 0)
            self._output, self._start = self._output[fetched:], self._start + min(fetched, len(self._output))
            self._more.notify_all()
            self._more.wait_for(lambda: self._output or self._over, wait_s)
            output, over = self._output[:PART], self._over and len(self._output) <= PART
        if given or output:
            with contextlib.suppress(OSError), acting_as(self._account):
                self._active.touch()
        code = self._exit_code(wait_s) if over else None
        return ConsoleReply(base64.b64encode(output).decode(), self._start, self._taken, code)

    @property
    def ended(self) -> bool:
        """Whether an answer had the exit code."""
        return self._exited is not None

    def _exit_code(self, wait_s: float) -> int | None:
        """The exit code, of a program that has closed its output and is about to end, too."""
        if self._exited is None:
            ready = select.poll()
            ready.register(self._code, select.POLLIN)
            if ready.poll(1000 * wait_s):
                text = os.read(self._code, 10)  # the program has the pipe, too, and may write anything
                self._exited = int(text) if text.strip().isdigit() else KILLED
        return self._exited

    def _resize(self, ask: ConsoleAsk) -> None:
        if ask.term and ask.rows and ask.columns and self._write >= 0:
            with contextlib.suppress(OSError):
                fcntl.ioctl(self._write, termios.TIOCSWINSZ, struct.pack("HHHH", ask.rows, ask.columns, 0, 0))

    def end(self) -> None:
        """End the program and what it has started."""
        if self.process is not None and self.process.alive:
            for pid in (*procs.descendants(self.process.pid), self.process.pid):
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
        with self._more:
            self._over = True
            self._more.notify_all()

    def _close(self) -> None:
        for fd in {self._read, self._write, self._code, self._closing} - {-1}:
            os.close(fd)
        self._read = self._write = self._code = self._closing = -1

    def close(self) -> None:
        """End it, and free its descriptors, also where a process that left its session has the output open."""
        self.end()
        os.eventfd_write(self._closing, 1)
        self._thread.join()
        with self._lock:
            self._exited = KILLED if self._exited is None else self._exited
            self._close()


class Consoles:
    """The consoles of a node by their names."""

    def __init__(self) -> None:
        self._consoles: dict[str, Console] = {}
        self._lock, self._closed = threading.Lock(), False

    @property
    def pids(self) -> set[int]:
        """The children of this process that are consoles, of all that were started before."""
        with self._lock:
            return {one.process.pid for one in self._consoles.values() if one.process is not None}

    def answer(
        self, ask: ConsoleAsk, env: Mapping[str, str], workdir: str, folder: Path, wait_s: float = ECHO_S,
        account: Account | None = None,
    ) -> ConsoleReply:  # fmt: skip
        """Answer a request, the first of which starts the program; raises `OSError`, `LookupError`.

        `env` is of no use to requests without a command; `wait_s`: the answer waits so long for output; `account`: as
        which the program runs, None: that of this process.
        """
        with self._lock:
            console = self._consoles.get(ask.name)
            if console is None:
                if not ask.command:
                    raise LookupError("this console is over: it was not used, or its node's agent was started again")
                if self._closed:
                    raise OSError("the node's agent ends")
                if len(self._consoles) >= MOST:
                    # Make room: close the consoles whose client got their exit code, which it might only request again
                    for name in [name for name, one in self._consoles.items() if one.ended]:
                        self._consoles.pop(name).close()
                if len(self._consoles) >= MOST:
                    raise OSError(f"{MOST} consoles are open on this node; close some")
                console = self._consoles[ask.name] = Console(ask, env, workdir, folder, account)
        return console.answer(ask, wait_s)

    def abandoned(self) -> list[Console]:
        """Take out the consoles that nobody uses; the caller closes them, which takes a while."""
        with self._lock:
            now = time.monotonic()
            names = [name for name, one in self._consoles.items() if now - one.requested_s > ABANDONED_S]
            return [self._consoles.pop(name) for name in names]

    def close(self) -> None:
        """End all of them, and start no more."""
        with self._lock:
            consoles, self._consoles, self._closed = list(self._consoles.values()), {}, True
        for console in consoles:
            console.close()
