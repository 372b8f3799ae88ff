"""A process at a gate that does what a test tells it, one line at a time.

Run as a script it is the process: its first argument is control.json. `Player` is the test's end of it.
"""

import json
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

from plait.core.resources import Resource
from plait.runtime.gates import GateTimeout, Group, open_gate
from plait.runtime.group_files import STATE, GroupPage

PATIENCE_S = 20.0  # how long a test waits for what must come; never asserted


class Player:
    """A process of a member of a group."""

    def __init__(self, group: Group, job: int, rank: int = 0) -> None:
        control = json.dumps({"version": 1, "epoch": 1, "group": group.control(job, rank)})
        self.process = subprocess.Popen(
            [sys.executable, __file__, control], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self._rest = b""
        assert self.hear().startswith("ready")

    def say(self, line: str) -> None:
        self.process.stdin.write(line.encode() + b"\n")
        self.process.stdin.flush()

    def hear(self) -> str:
        """Its next line."""
        line = self._line(PATIENCE_S)
        assert line is not None, "the process says nothing"
        return line

    def quiet(self) -> bool:
        """Whether it has said nothing more by now."""
        line = self._line(0.0)
        if line is not None:
            self._rest = line.encode() + b"\n" + self._rest
        return line is None

    def ask(self, line: str) -> str:
        self.say(line)
        return self.hear()

    def _line(self, timeout_s: float) -> str | None:
        out = self.process.stdout
        until = time.monotonic() + timeout_s
        while b"\n" not in self._rest:
            ready, _, _ = select.select([out], [], [], max(0.0, until - time.monotonic()))
            data = os.read(out.fileno(), 65_536) if ready else b""
            if not data:
                return None
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\n")
        return line.decode()

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        self.process.wait()

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()


def until(condition) -> None:
    """Wait for what must come."""
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end, "this never came"
        time.sleep(0.001)


class Watch:
    """A test's own look at the words of a group."""

    def __init__(self, group: Group) -> None:
        self.page = GroupPage(group)

    def waiting(self, resource: int) -> int:
        """How many threads stand in line for a token."""
        at = self.page.at
        return self.page.words[at.want : at.want + at.rows].tolist().count(resource + 1)

    def expect(self, need_s: float) -> None:
        """Let everybody's stages be thought to take so long."""
        at = self.page.at
        for row in range(at.rows):
            self.page.words[at.need + row] = int(need_s * 1e9)

    def member(self, index: int, word: int = STATE) -> int:
        return self.page.words[self.page.at.member(index) + word]


def main() -> None:
    """The process: reads a command a line, answers a line each."""
    gate = open_gate(json.loads(sys.argv[1]))
    print("ready", gate.kind, gate.reason, flush=True)
    for line in sys.stdin:
        verb, *words = line.split()
        if verb == "fork" and os.fork() == 0:  # like a worker of a data loader, which outlives its parent
            os.close(1)
            time.sleep(60)
            os._exit(0)
        print(COMMANDS[verb](gate, *words), flush=True)


def _enter(gate, resource, timeout_s="20"):
    try:
        gate.enter(Resource(int(resource)), float(timeout_s))
    except GateTimeout as error:
        return f"timeout {error.holder_pid} {error}"
    return f"in {resource}"


def _leave(gate, resource):
    gate.leave(Resource(int(resource)))
    return f"out {resource}"


def _work(gate, iterations, folder, resources="0123"):
    """Iterations over these resources; counts how often somebody else was on the same one."""
    met = 0
    for _ in range(int(iterations)):
        for r in (Resource(int(digit)) for digit in resources):
            gate.enter(r)
            path = Path(folder) / r.name
            try:
                os.close(os.open(path, os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                met += 1
            os.sched_yield()
            path.unlink(missing_ok=True)
            gate.leave(r)
    gate.drop()
    return f"met {met}"


def _yield(gate):
    gate.yield_point()
    return f"yields {gate.stats.yields}"


COMMANDS = {
    "enter": _enter,
    "leave": _leave,
    "work": _work,
    "yield": _yield,
    "kind": lambda gate: gate.kind,
    "drop": lambda gate: gate.drop() or "dropped",
    "close": lambda gate: gate.close() or "closed",
    "fork": lambda gate: "forked",
}

if __name__ == "__main__":
    main()
