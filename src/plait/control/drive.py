"""The loop that every backend shares."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from plait.control.controller import Controller
from plait.control.messages import Command, Event
from plait.core.arrays import FloatArray, IntArray

#: Kinds of rows: a job has ended, is stopped, starts.
ENDS, STOPS, STARTS = range(3)


class Backend(Protocol):
    """A source of events and a sink of commands: a simulator, a live cluster, or a log."""

    def events(self) -> Iterable[Event]:
        """Events in order; commands executed so far may change the later ones."""
        ...

    def execute(self, command: Command) -> None:
        """Carry out one command; executing it twice is the same as once."""
        ...


class Record(Protocol):
    """Takes note of each event and the commands it caused, before they are executed."""

    def __call__(self, event: Event, commands: Sequence[Command]) -> None: ...


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """What happened to jobs in a row of instants that were driven without messages, one row an end, stop or start.

    `at_s` (rows,) are seconds; of an end when the job ended, not when that was noticed. `done` (starts,) is the
    progress of the jobs that start, in iterations; each start has `gpu_count` (starts,) entries of `gpus`, in order.
    `events` have been handled since the last block, and the last one was at `last_s`.
    """

    kind: IntArray
    job: IntArray
    at_s: FloatArray
    done: FloatArray
    gpu_count: IntArray
    gpus: IntArray
    events: int
    last_s: float


@runtime_checkable
class TakesBlocks(Protocol):
    """A `Record` that also takes note of many instants at once; without it, runs are driven message by message."""

    def take(self, block: Block) -> None:
        """All steps of these instants."""
        ...


def ignore(event: Event, commands: Sequence[Command]) -> None:
    """A `Record` that keeps nothing."""


def drive(controller: Controller, backend: Backend, record: Record = ignore) -> None:
    """Pass events of `backend` to `controller`, and commands back, to the last event; `record` sees each step."""
    for event in backend.events():
        commands = controller.handle(event)
        record(event, commands)
        for command in commands:
            backend.execute(command)
