"""The loop that every backend shares."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from plait.control.controller import Controller
from plait.control.messages import Command, Event


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

    def __call__(self, event: Event, commands: Sequence[Command]) -> None:
        """One step of the run."""
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
