"""The process that runs the scripts of a merged group, each as a thread: `python -m plait.training.merged.host`.

The agent's runner starts it and holds the other end of the socket PLAIT_MERGED (a descriptor). Messages are JSON
objects, one a line; the first one from the runner lists the members:

    -> {"members": [{"name", "argv", "env", "out": descriptor}]}
    <- {"began": 0, "thread": ident}       the script of member 0 is about to run
    -> {"stop": 0}                         the runner has asked it to stop (by its page); at once if it never reads it
    -> {"interrupt": 0}                    its grace period is over: raise an exception in its thread
    <- {"last": 0, "what": "os._exit(3)"}  it is about to end the process
    <- {"ended": 0, "code", "refused"}     its thread has ended; `refused`: why it cannot run merged
    <- {"lost": "..."}                     this process can no longer use the GPU: all members end

The process ends with its last member. The agent starts this module by name, also in environments with another version
of plait: do not rename it.
"""

from __future__ import annotations

import contextlib
import faulthandler
import importlib.util
import io
import json
import os
import select
import socket
import sys
import threading
from types import ModuleType
from typing import Any, NoReturn

from plait.runtime.command_line import Script, parse_script
from plait.training.merged.jobs import JobResult, JobThreads, device_lost
from plait.training.merged.routes import leave_all
from plait.training.merged.thread_jobs import Preempted, ThreadJob, Unmergeable
from plait.training.stopping import PREEMPTED

#: Exit code of a process whose GPU is lost.
LOST = 70
_LOOK_S = 0.5


class MergedProcess:
    """Runs the scripts of one group."""

    def __init__(self, control: socket.socket) -> None:
        """Receive the list of members from the runner."""
        self._control, self._lock, self._rest = control, threading.Lock(), b""
        plan = self._read(None)
        assert plan, "the runner says who is to run before anything else"
        self.members = [
            ThreadJob(index, one["name"], one["env"], list(one["argv"]), _open(one["out"]))
            for index, one in enumerate(plan[0]["members"])
        ]
        self.scripts = [parse_script(one["argv"]) for one in plan[0]["members"]]
        self._over, self._wake = os.pipe()

    def run(self) -> None:
        # Import libraries whose random streams are routed, before several threads import them at the same time.
        for name in ("numpy", "torch"):
            if importlib.util.find_spec(name) is not None:
                with contextlib.suppress(ImportError):
                    __import__(name)
        with JobThreads(self._ended, self._last_words) as threads:
            for member, script in zip(self.members, self.scripts, strict=True):
                threads.start(member, lambda member=member, script=script: self._play(member, script))  # type: ignore[misc]
            while len(threads.results) < len(self.members):
                self._obey(self._read(_LOOK_S) or [])

    def _say(self, **message: Any) -> None:
        with self._lock, contextlib.suppress(OSError):
            self._control.sendall(json.dumps(message).encode() + b"\n")

    def _read(self, wait_s: float | None) -> list[dict[str, Any]]:
        """Messages of the runner; none if none arrive within `wait_s` or if a member has ended."""
        waits: list[Any] = [self._control] if wait_s is None else [self._control, self._over]
        while b"\n" not in self._rest:
            ready = select.select(waits, [], [], wait_s)[0]
            if wait_s is not None and self._over in ready:
                os.read(self._over, 64)
            if self._control not in ready:
                return []
            data = self._control.recv(1 << 16)
            if not data:  # the runner is gone, so this process will be killed
                leave_all(LOST)
            self._rest += data
        *lines, self._rest = self._rest.split(b"\n")
        return [json.loads(line) for line in lines]

    def _obey(self, orders: list[dict[str, Any]]) -> None:
        for order in orders:
            member = self.members[order["interrupt" if "interrupt" in order else "stop"]]
            # Nothing reads the page of a script without a job: it ends as by an unhandled SIGTERM.
            if member.ident and ("interrupt" in order or member.job is None):
                member.interrupt(Preempted)

    def _play(self, member: ThreadJob, script: Script) -> None:
        self._say(began=member.index, thread=member.ident)
        run_script(member, script)

    def _ended(self, member: ThreadJob, result: JobResult) -> None:
        why = device_lost() if result.error is not None else ""
        if why:
            self._say(lost=why)
            leave_all(LOST)
        refused = str(result.error) if isinstance(result.error, Unmergeable) else None
        self._say(ended=member.index, code=PREEMPTED if refused else result.exit_code, refused=refused)
        with contextlib.suppress(OSError):
            member.out.close()
        os.write(self._wake, b".")

    def _last_words(self, member: ThreadJob, what: str) -> None:
        self._say(last=member.index, what=what)


def run_script(member: ThreadJob, script: Script) -> None:
    """Run `script` as the module __main__ of `member`, as Python itself would."""
    main = ModuleType("__main__")
    if script.module:
        spec = importlib.util.find_spec(script.target)
        if spec is not None and spec.submodule_search_locations is not None:
            spec = importlib.util.find_spec(f"{script.target}.__main__")
        get_code = getattr(spec.loader, "get_code", None) if spec is not None else None
        if spec is None or get_code is None:
            _fail(f"{script.python}: no module named {script.target}", 1)
        code = get_code(spec.name)
        main.__spec__, main.__package__, main.__file__ = spec, spec.parent, spec.origin
    else:
        try:
            with io.open_code(os.path.abspath(script.target)) as file:
                code = compile(file.read(), script.target, "exec", dont_inherit=True)
        except OSError as error:
            _fail(f"{script.python}: can't open file {script.target!r}: {error.strerror}", 2)
        main.__spec__, main.__file__ = None, script.target
    member.argv = [main.__file__ or script.target, *script.args]
    member.main = main
    vars(main)["__builtins__"] = __builtins__
    exec(code, vars(main))


def _fail(text: str, code: int) -> NoReturn:
    print(text, file=sys.stderr)
    raise SystemExit(code)


def _open(descriptor: int) -> io.TextIOWrapper:
    """The output of a member, unbuffered as by `python -u`."""
    os.set_inheritable(descriptor, False)
    raw: Any = io.FileIO(descriptor, "w")
    return io.TextIOWrapper(raw, encoding="utf-8", errors="backslashreplace", write_through=True)


def main() -> None:
    """Run the members, then end without waiting for their remaining threads."""
    control = socket.socket(fileno=int(os.environ.pop("PLAIT_MERGED")))
    control.set_inheritable(False)
    faulthandler.enable()  # names the thread that broke the process
    process = MergedProcess(control)
    folders = [script.folder for script in process.scripts]
    sys.path[0] = os.path.abspath(folders[0])  # the same for all: the runner merges only such scripts
    process.run()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    leave_all(0)


if __name__ == "__main__":
    main()
