"""Jobs on paced devices, each job a process: what interleaving brings, without the noise of real work.

A device serves requests of 5 ms each, first come, first served, without interruption. It is a clock: a request takes
the next free 5 ms and sleeps until they are over. So a busy host hardly matters, and two jobs never use a device at
the same time, with or without a gate. Within a stage a job has the next request ready when one ends, as a GPU has the
next kernel.
"""

from __future__ import annotations

import multiprocessing
import queue
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

from plait.core.resources import Resource
from plait.runtime.gates import Group, GroupMember, NullGate, StageGate, make_group, open_gate

SLOT_S = 0.005
UNIT_S = 0.05
_fork = multiprocessing.get_context("fork")
Stages = Sequence[float]


class Device:
    """A resource of all jobs: first come first served, `SLOT_S` at a time."""

    def __init__(self) -> None:
        """Free from now on."""
        self._lock, self._free_s = _fork.Lock(), _fork.RawValue("d", 0.0)

    def run(self, seconds: float, between: Callable[[], bool]) -> None:
        """Be served for so many seconds; `between` is called after each slot and says whether others went first."""
        at = time.monotonic()
        for _ in range(round(seconds / SLOT_S)):
            with self._lock:
                at = self._free_s.value = max(at, self._free_s.value) + SLOT_S
            time.sleep(max(0.0, at - time.monotonic()))
            if between():  # what was ready has to be started again
                at = time.monotonic()


@dataclass(frozen=True)
class Played:
    """When each iteration of each job ended, seconds since all began; timeouts at gates."""

    ends_s: tuple[tuple[float, ...], ...]
    timeouts: int

    @property
    def seconds(self) -> float:
        """Until the last job had finished."""
        return max(ends[-1] for ends in self.ends_s)

    @property
    def steady_s(self) -> float:
        """Mean seconds of an iteration, over jobs, while all of them run: without filling and draining."""
        first, last = max(ends[0] for ends in self.ends_s), min(ends[-1] for ends in self.ends_s)
        means = []
        for ends in self.ends_s:
            inside = [e for e in ends if first <= e <= last]
            means.append((inside[-1] - inside[0]) / (len(inside) - 1))
        return sum(means) / len(means)


def play(
    mix: Sequence[Stages],
    iterations: int,
    *,
    gate: str = "none",
    turns: Sequence[int] | None = None,
    prefetch: bool = False,
    quantum_s: float = 0.01,
    for_s: float = 0.0,
    before: float = 1.0,
) -> Played:
    """Run the jobs at once, stage times in units; `for_s` ends each job then instead of after `iterations`.

    `before`: part of the GPU stage before the network stage; the rest follows it, as the optimizer does gradients.
    """
    root = Path(tempfile.mkdtemp(dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
    try:
        members = [GroupMember(i, t) for i, t in enumerate(turns or range(len(mix)))]
        group = make_group(root / "group", gate, members, version=1, quantum_s=quantum_s, capacities=(1,) * 4)
        devices = [Device() for _ in Resource]
        pipes = [_fork.Pipe() for _ in mix]
        workers = [
            _fork.Process(target=_job, args=(there, group, i, row, iterations, devices, prefetch, for_s, before))
            for i, (row, (_, there)) in enumerate(zip(mix, pipes, strict=True))
        ]
        for w in workers:
            w.start()
        for here, _ in pipes:
            here.recv()
        begin = time.monotonic() + 0.05
        for here, _ in pipes:
            here.send(begin)
        said = [here.recv() for here, _ in pipes]
        for w in workers:
            w.join()
    finally:
        shutil.rmtree(root, ignore_errors=True)
    return Played(tuple(tuple(ends) for ends, _ in said), sum(timeouts for _, timeouts in said))


def one_after_the_other(mix: Sequence[Stages], iterations: int) -> float:
    """Seconds for all jobs, each alone with its own prefetch: the fair alternative."""
    return sum(play([row], iterations, prefetch=True).seconds for row in mix)


def _job(
    pipe: Connection,
    group: Group,
    index: int,
    units: Stages,
    iterations: int,
    devices: Sequence[Device],
    prefetch: bool,
    for_s: float,
    before: float,
) -> None:
    gate = open_gate({"group": group.control(index)})
    assert gate.kind == group.gate, gate.reason
    pipe.send("ready")
    begin = pipe.recv()
    time.sleep(max(0.0, begin - time.monotonic()))
    until = begin + for_s if for_s else float("inf")
    count = iterations if not for_s else 10**9
    ends = (_prefetching if prefetch else _plain)(gate, units, count, until, devices, before)
    gate.close()
    pipe.send(([e - begin for e in ends], 0 if isinstance(gate, NullGate) else gate.stats.timeouts))


def _stages(
    gate: StageGate, units: Stages, devices: Sequence[Device], resources: Sequence[Resource], before: float = 1.0
) -> None:
    def between() -> bool:
        yields = gate.stats.yields
        gate.yield_point()
        return gate.stats.yields != yields

    parts = [(r, units[r]) for r in resources if units[r]]
    if before < 1 and units[Resource.GPU] and units[Resource.NETWORK] and Resource.NETWORK in resources:
        gpu = units[Resource.GPU]
        parts[-2:] = [(Resource.GPU, before * gpu), parts[-1], (Resource.GPU, (1 - before) * gpu)]
    for r, stage in parts:
        gate.enter(r)
        devices[r].run(stage * UNIT_S, between)
        gate.leave(r)


def _plain(
    gate: StageGate, units: Stages, count: int, until: float, devices: Sequence[Device], before: float
) -> list[float]:
    ends: list[float] = []
    while len(ends) < count and time.monotonic() < until:
        _stages(gate, units, devices, tuple(Resource), before)
        ends.append(time.monotonic())
    return ends


def _prefetching(
    gate: StageGate, units: Stages, count: int, until: float, devices: Sequence[Device], before: float
) -> list[float]:
    """A thread loads the next iteration while this one trains, as a data loader does."""
    ready: queue.Queue[int] = queue.Queue(maxsize=1)

    def load() -> None:
        for i in range(count):
            _stages(gate, units, devices, (Resource.STORAGE, Resource.CPU))
            ready.put(i)

    threading.Thread(target=load, daemon=True).start()
    ends: list[float] = []
    while len(ends) < count and time.monotonic() < until:
        ready.get()
        _stages(gate, units, devices, (Resource.GPU, Resource.NETWORK), before)
        ends.append(time.monotonic())
    return ends
