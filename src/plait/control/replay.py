"""Replay is a backend over a log: it yields what was recorded and compares what the controller decides."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from plait.control.controller import Controller
from plait.control.drive import drive
from plait.control.log import LogStep, RecordedRun
from plait.control.messages import Command, Event, to_json
from plait.core.policy import Policy
from plait.core.preemption import PreemptionRule


@dataclass(frozen=True)
class Difference:
    """The first step at which a replay makes another decision than the log has."""

    line: int
    at_s: float
    recorded: dict[str, Any] | None
    derived: dict[str, Any] | None

    def __str__(self) -> str:
        return (
            f"line {self.line}, at {self.at_s} s: the log has {self.recorded or 'nothing'}, "
            f"the controller returns {self.derived or 'nothing'}"
        )


class Replay:
    """Feeds the events of a recorded run to a controller and notes the first difference in commands."""

    def __init__(self, run: RecordedRun) -> None:
        self.run = run
        self.difference: Difference | None = None
        self._derived: list[Command] = []

    def events(self) -> Iterator[Event]:
        """The recorded events, until the first difference."""
        for step in self.run.steps:
            self._derived = []
            yield step.event
            self._compare(step)
            if self.difference is not None:
                return

    def execute(self, command: Command) -> None:
        """Collect what the controller decided."""
        self._derived.append(command)

    def _compare(self, step: LogStep) -> None:
        recorded = [to_json(c) for c in step.commands]
        derived = [to_json(c) for c in self._derived]
        for i in range(max(len(recorded), len(derived))):
            ours = derived[i] if i < len(derived) else None
            theirs = recorded[i] if i < len(recorded) else None
            if ours != theirs:
                self.difference = Difference(step.line, step.event.at_s, theirs, ours)
                return


def replay(run: RecordedRun, policy: Policy) -> tuple[Controller, Difference | None]:
    """Re-derive every command of a recorded run; the controller is in its state at the end, or at the difference."""
    backend = Replay(run)
    rule = PreemptionRule.from_json(run.header.get("preemption"))
    controller = Controller(policy, run.cluster, rule, measures_memory=False)
    drive(controller, backend)
    return controller, backend.difference
