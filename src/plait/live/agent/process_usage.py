"""Use of the node by the processes of each attempt: CPU, memory and disk, from /proc.

One pass over /proc serves all attempts of a node. Counters of a process include ended children that were waited for, so
that sums over a tree of processes do not lose them.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from plait.live.agent.journal import Key
from plait.live.protocol.wire import Resources
from plait.live.system import procs
from plait.live.system.procs import Process

#: Least time between two samples, seconds.
SAMPLE_S = 5.0
_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True)
class Counters:
    """Sums over a tree of processes: CPU seconds and disk bytes so far, resident bytes now.

    Bytes of the disk are None if the kernel does not count them.
    """

    cpu_s: float
    memory_bytes: float
    read_bytes: float | None
    written_bytes: float | None


class ProcessUsage:
    """Samples of the attempts of a node, some seconds apart."""

    def __init__(self, sample_s: float = SAMPLE_S) -> None:
        self._sample_s, self._at_s = sample_s, -sample_s
        self._before: dict[Key, Counters] = {}
        self._known: dict[Key, Resources] = {}

    def read(self, now_s: float, runners: Mapping[Key, Process]) -> Mapping[Key, Resources]:
        """Use of each attempt since the previous sample, new if that is old enough.

        `now_s`: monotonic seconds. `runners`: the process of each attempt from which all others of it descend. An
        attempt is in the answer once it was sampled twice.
        """
        passed_s = now_s - self._at_s
        if passed_s < self._sample_s:
            return self._known
        counted = counters({key: one.pid for key, one in runners.items() if one.alive}) if runners else {}
        self._known = {
            key: _rates(self._before[key], now, passed_s) for key, now in counted.items() if key in self._before
        }
        self._before, self._at_s = counted, now_s
        return self._known


def counters(roots: Mapping[Key, int]) -> dict[Key, Counters]:
    """Sums over each tree of processes, by the pid of its root; roots that have ended are left out."""
    children: dict[int, list[int]] = {}
    found: dict[int, tuple[float, float]] = {}
    for pid in procs.pids():
        fields = procs.stat_fields(pid)
        if fields is None or fields[0] in b"ZX":
            continue
        children.setdefault(int(fields[1]), []).append(pid)
        found[pid] = sum(map(int, fields[11:15])) / _TICKS, int(fields[21]) * _PAGE
    return {key: _summed(_tree(root, children), found) for key, root in roots.items() if root in found}


def _tree(root: int, children: Mapping[int, Iterable[int]]) -> list[int]:
    """A process and all that descend from it."""
    tree = [root]
    for pid in tree:  # it grows meanwhile
        tree += children.get(pid, ())
    return tree


def _summed(pids: Iterable[int], found: Mapping[int, tuple[float, float]]) -> Counters:
    cpu_s = memory = 0.0
    disk = [0.0, 0.0]
    told = False
    for pid in pids:
        cpu_s += found[pid][0]
        memory += found[pid][1]
        if (moved := _disk(pid)) is not None:
            told, disk = True, [disk[0] + moved[0], disk[1] + moved[1]]
    return Counters(cpu_s, memory, disk[0] if told else None, disk[1] if told else None)


def _disk(pid: int) -> tuple[float, float] | None:
    """Bytes that a process has read from disks and written to them; None if the kernel does not count them."""
    try:
        with open(f"/proc/{pid}/io", "rb") as file:
            rows = dict(line.split(b": ", 1) for line in file.read().splitlines())
        return float(rows[b"read_bytes"]), float(rows[b"write_bytes"])
    except (OSError, ValueError, KeyError):
        return None


def _rates(before: Counters, now: Counters, passed_s: float) -> Resources:
    """Means over so many seconds; a counter that fell, because a process was lost, counts as none."""

    def rate(old: float | None, new: float | None) -> float | None:
        return None if old is None or new is None else max(new - old, 0.0) / passed_s

    return Resources(
        max(now.cpu_s - before.cpu_s, 0.0) / passed_s, now.memory_bytes,
        rate(before.read_bytes, now.read_bytes), rate(before.written_bytes, now.written_bytes),
    )  # fmt: skip
