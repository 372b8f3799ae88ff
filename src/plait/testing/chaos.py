"""Carries out a plan of faults against a running cluster, and records them.

Signals go to processes by pid and start time, never by name. A disk is full for a process of a job by its
limit on the size of files (RLIMIT_FSIZE, which needs no privileges): every write beyond it fails with EFBIG, the
training process has to live with that as with ENOSPC. The limit is lifted afterwards.
"""

from __future__ import annotations

import contextlib
import enum
import hashlib
import json
import os
import random
import resource
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from plait.core.errors import InputError
from plait.live.layout import Layout
from plait.live.system import procs
from plait.live.system.procs import Process
from plait.testing.cluster import Cluster, switch_processes, workers

T = TypeVar("T")

#: Bytes a file may have while the disk is full.
FULL_BYTES = 64


@dataclass(frozen=True)
class Done:
    """A fault that happened: seconds after the begin, kind, target, duration."""

    at_s: float
    kind: Kind
    target: str
    length_s: float


class Chaos:
    """One plan against one cluster. A fault without a target yet waits, and later ones with it."""

    def __init__(self, cluster: Cluster, faults: Sequence[Fault], record: Path | None = None) -> None:
        """`record`: a file that gets one JSON line a fault."""
        self.cluster, self.record = cluster, record
        self.done: list[Done] = []
        self._left = list(faults)
        self._begin = self._last = time.monotonic()
        self._undo: list[tuple[float, Callable[[], object]]] = []
        self._make: Mapping[Kind, Callable[[Fault], str | None]] = {
            Kind.KILL_SERVICE: self._kill_service,
            Kind.STOP_SERVICE: self._stop_service,
            Kind.KILL_AGENT: self._kill_agent,
            Kind.STOP_AGENT: self._stop_agent,
            Kind.KILL_WORKER: self._kill_worker,
            Kind.KILL_RUNNER: self._kill_runner,
            Kind.FULL_DISK: self._full_disk,
            Kind.KILL_SWITCH: partial(self._kill_plane, "switch"),
            Kind.KILL_SERVER: partial(self._kill_plane, "server"),
        }

    @property
    def over(self) -> bool:
        """Whether all faults have happened and ended."""
        return not self._left and not self._undo

    def step(self) -> None:
        """Execute due actions: faults that end, dead services and agents started again, the next fault."""
        now = time.monotonic()
        for at, undo in [entry for entry in self._undo if entry[0] <= now]:
            self._undo.remove((at, undo))
            undo()
        self.cluster.maintain()
        if self._left and now >= self._last + self._left[0].after_s:
            fault = self._left[0]
            target = self._make[fault.kind](fault)
            if target is not None:
                self._left.pop(0)
                self._last = now
                done = Done(round(now - self._begin, 3), fault.kind, target, round(fault.length_s, 3))
                self.done.append(done)
                if self.record is not None:
                    with open(self.record, "a", encoding="utf-8") as file:
                        file.write(json.dumps(asdict(done)) + "\n")

    def end(self) -> None:
        """End all faults that still last."""
        for _, undo in self._undo:
            undo()
        self._undo.clear()

    def _later(self, fault: Fault, undo: Callable[[], object]) -> None:
        self._undo.append((time.monotonic() + fault.length_s, undo))

    # Each makes a fault and returns its target; None if there is none.

    def _kill_service(self, fault: Fault) -> str | None:
        process = self.cluster.service
        if process is None or self.cluster.url is None:
            return None
        self.cluster.keep_down(fault.length_s)
        return _send(process, signal.SIGKILL, "service")

    def _stop_service(self, fault: Fault) -> str | None:
        process = self.cluster.service
        if process is None or self.cluster.url is None:
            return None
        self._later(fault, lambda: process.send(signal.SIGCONT))
        return _send(process, signal.SIGSTOP, "service")

    def _agent(self, fault: Fault) -> tuple[str, Process] | None:
        found = [(name, process) for name in self.cluster.backend.nodes if (process := self.cluster.agent(name))]
        return _pick(found, fault.pick)

    def _kill_agent(self, fault: Fault) -> str | None:
        found = self._agent(fault)
        return None if found is None else _send(found[1], signal.SIGKILL, f"agent {found[0]}")

    def _stop_agent(self, fault: Fault) -> str | None:
        found = self._agent(fault)
        if found is None:
            return None
        process = found[1]
        self._later(fault, lambda: process.send(signal.SIGCONT))
        return _send(process, signal.SIGSTOP, f"agent {found[0]}")

    def _kill_worker(self, fault: Fault) -> str | None:
        child = _pick([child for _, child in workers(self.cluster.layout) if child is not None], fault.pick)
        return None if child is None else _send(child, signal.SIGKILL, "worker")

    def _kill_runner(self, fault: Fault) -> str | None:
        found = _pick(workers(self.cluster.layout), fault.pick)
        return None if found is None else _send(found[0], signal.SIGKILL, "runner")

    def _kill_plane(self, kind: str, fault: Fault) -> str | None:
        found = [one for one in switch_processes(self.cluster.layout) if one[0].startswith(kind)]
        one = _pick(found, fault.pick)
        return None if one is None else _send(one[1], signal.SIGKILL, one[0])

    def _full_disk(self, fault: Fault) -> str | None:
        child = _pick([child for _, child in workers(self.cluster.layout) if child is not None], fault.pick)
        if child is None or not _limit(child, FULL_BYTES):
            return None
        self._later(fault, lambda: _limit(child, None))
        return f"worker {child.pid}"


def _pick(found: Sequence[T], pick: float) -> T | None:
    return found[min(int(pick * len(found)), len(found) - 1)] if found else None


def _send(process: Process, number: int, name: str) -> str | None:
    return f"{name} {process.pid}" if process.send(number) else None


def _limit(process: Process, most_bytes: int | None) -> bool:
    """Let a process write files of so many bytes at most, None for as many as it may; False if it has ended."""
    with contextlib.suppress(ProcessLookupError):
        if process.alive:
            hard = resource.prlimit(process.pid, resource.RLIMIT_FSIZE)[1]
            soft = hard if most_bytes is None else most_bytes
            resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (soft, hard))
            return True
    return False


class Kind(enum.StrEnum):
    """Kinds of faults."""

    KILL_SERVICE = "kill the service"
    STOP_SERVICE = "stop the service for a while"
    KILL_AGENT = "kill an agent"
    STOP_AGENT = "stop an agent for a while"
    KILL_WORKER = "kill a process of a job"
    KILL_RUNNER = "kill the runner of a process"
    FULL_DISK = "no room for the files of a job"
    KILL_SWITCH = "kill a switch"
    KILL_SERVER = "kill the aggregation server of a switch"


#: Relative frequency of each kind; on a cluster with switches give them weights, too.
WEIGHTS: Mapping[Kind, float] = {
    Kind.KILL_SERVICE: 2.0,
    Kind.STOP_SERVICE: 1.0,
    Kind.KILL_AGENT: 2.0,
    Kind.STOP_AGENT: 2.0,
    Kind.KILL_WORKER: 2.0,
    Kind.KILL_RUNNER: 1.0,
    Kind.FULL_DISK: 2.0,
}


@dataclass(frozen=True)
class Fault:
    """One fault: `after_s` seconds after the previous one, on the target at `pick` (0 to 1) of those at that time.

    `length_s`: until the service is started again, the stopped one continues, there is room again.
    """

    after_s: float
    kind: Kind
    pick: float
    length_s: float


def plan_faults(
    seed: int,
    count: int,
    *,
    every_s: float = 1.5,
    longest_s: float = 5.0,
    weights: Mapping[Kind, float] = WEIGHTS,
) -> Sequence[Fault]:
    """`count` faults, `every_s` seconds apart in the mean, each at most `longest_s` long.

    Each kind with a weight comes at least once if there are enough faults. Stopping an agent takes the longest time, so
    with `longest_s` above the cluster's `lost` its work is replaced. Raises `InputError` for invalid numbers.

    >>> [fault.kind.name for fault in plan_faults(3, 2)] == [fault.kind.name for fault in plan_faults(3, 2)]
    True
    """
    if count < 0 or not every_s > 0 or not longest_s > 0:
        raise InputError(f"{count} faults every {every_s:g} s of up to {longest_s:g} s; needs >= 0, > 0 and > 0")
    kinds = [kind for kind in Kind if weights.get(kind, 0.0) > 0]
    if not kinds:
        raise InputError("no kind of fault has a weight > 0; give some of plait.testing.Kind")
    draw = random.Random(seed)
    chosen = draw.sample(kinds, len(kinds))[:count]
    chosen += draw.choices(kinds, [weights[kind] for kind in kinds], k=count - len(chosen))
    draw.shuffle(chosen)
    faults = []
    for kind in chosen:
        after_s = draw.expovariate(1 / every_s)
        share = 1.0 if kind is Kind.STOP_AGENT else draw.random()
        faults.append(Fault(after_s, kind, draw.random(), share * longest_s))
    return faults


def leaks(layout: Layout) -> list[str]:
    """Remaining processes, gates, sockets and files of running processes of a home folder, as sentences.

    Processes are known by the mark of their attempt or by the folder in their command line; a port is left only with a
    process that has it. The store, logs, checkpoints and attempts' folders are meant to stay.
    """
    found = []
    home = str(layout.home)
    mark = f"{procs.MARK}={hashlib.sha256(home.encode()).hexdigest()[:12]}:".encode()
    for pid in procs.pids():
        if pid == os.getpid():
            continue
        try:
            environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if (home.encode() in command or any(word.startswith(mark) for word in environment)) and procs.start_time(pid):
            found.append(f"process {pid}: {b' '.join(command).decode(errors='replace').strip()}")
    if layout.gates.is_dir():
        found += [f"gate {path}" for path in layout.gates.iterdir()]
    if layout.gates.parent != layout.home and layout.gates.parent.exists():
        found.append(f"folder {layout.gates.parent}")
    running = [layout.service_file, *layout.home.glob("nodes/*/agent.json"), *layout.home.glob("nodes/*/stop.json")]
    found += [f"file {path}" for path in running if path.exists()]
    found += [f"socket {path}" for path in layout.home.rglob("*") if path.is_socket()]
    return found
