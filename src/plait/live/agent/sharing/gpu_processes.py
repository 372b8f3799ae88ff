"""The processes on the GPUs of a node, and their neighbours."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from plait.live.agent.journal import Key
from plait.runtime.neighbours import Neighbours


@dataclass(frozen=True)
class GpuProcess:
    """A process on a GPU (the node's number of it): it runs there, or is about to (not `alive`).

    `stopping`: it has a request to end. `persistent_bytes`: device memory that persists between steps, 0 if unknown.
    """

    key: Key
    gpu: int
    guest: bool
    page: Path
    alive: bool = True
    stopping: bool = False
    persistent_bytes: int = 0

    @property
    def name(self) -> str:
        """Its attempt: the law looks at jobs, of which a GPU may have several processes."""
        return f"{self.key[0]}:{self.key[1]}"


def shared_gpus(processes: Iterable[GpuProcess]) -> dict[int, list[GpuProcess]]:
    """Who is on each GPU that has guests, hosts first; processes of a job next to each other."""
    found: dict[int, list[GpuProcess]] = {}
    for process in sorted(processes, key=lambda s: (s.guest, not s.alive, s.stopping, s.key)):
        found.setdefault(process.gpu, []).append(process)
    return {gpu: here for gpu, here in found.items() if any(process.guest for process in here)}


def neighbours(processes: Iterable[GpuProcess]) -> dict[Key, Neighbours]:
    """The part of control.json about neighbours, for each process on a GPU with guests."""
    return {
        process.key: Neighbours(
            process.guest, tuple(one.page for one in here if not one.guest) if process.guest else ()
        )
        for here in shared_gpus(processes).values()
        for process in here
    }
