"""The live event log, read back: the same fold as the service's, with every decision compared.

A log of the live cluster has the controller's events and the service's own notes; `State` takes both.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from plait.control.controller import Controller
from plait.control.history import History
from plait.control.messages import Event, from_json, to_json
from plait.control.metrics import RunResult, measure
from plait.control.outcomes import Isolated
from plait.core.errors import InputError
from plait.core.jobs import JobBatch
from plait.goodput.fixed_batch import with_fixed_batches
from plait.live.scheduler.fold import apply
from plait.live.scheduler.records.notes import Entry, Note, entry_from_json
from plait.live.scheduler.state import State
from plait.live.store import Store
from plait.sim.training import Training, isolated_s


@dataclass(frozen=True)
class LoggedEntry:
    """One entry of the log: its number, what happened, what the controller commanded then (as JSON)."""

    seq: int
    entry: Entry
    commands: list[dict[str, Any]]

    @property
    def event(self) -> Event | None:
        """The controller's event; None for a note."""
        return None if isinstance(self.entry, Note) else self.entry


@dataclass(frozen=True)
class LogDifference:
    """The first step at which the replay makes another decision: what the log has, and what comes out now."""

    seq: int
    at_s: float
    recorded: dict[str, Any] | None
    derived: dict[str, Any] | None

    def __str__(self) -> str:
        return (
            f"entry {self.seq}, {self.at_s:g} s: the log has {self.recorded or 'nothing'}, "
            f"now it is {self.derived or 'nothing'}"
        )


@dataclass(frozen=True)
class LogReplay:
    """The state at the end of the log (or at the difference), and what became of the jobs."""

    state: State
    history: History | None
    entries: int
    difference: LogDifference | None

    def result(self, **labels: Any) -> RunResult:
        """Figures of the whole run; `InputError` if no node ever joined."""
        if self.state.controller is None or self.history is None:
            raise InputError("the log has no nodes in it: nothing ran")
        named = {"policy": self.state.policy_text, **labels}
        return measure(self.state.controller, self.history, isolated=_isolated(self.state.controller), **named)


def _isolated(controller: Controller) -> Isolated | None:
    """How long adaptive jobs would have taken alone, by their last reports."""
    job_store = controller.job_store
    jobs = with_fixed_batches(JobBatch.of([job_store.spec(i) for i in range(job_store.count)]))
    if not (jobs.column("batch_size") > 0).any():
        return None
    iterations = np.where(
        np.isnan(jobs.iterations), job_store.columns["iterations_done"][: job_store.count], jobs.iterations
    )
    reports = [[(0.0, row)] for row in job_store.columns["goodput"][: job_store.count]]
    training = Training.reported(jobs, reports, int(controller.cluster.node_gpus.max()))
    return partial(isolated_s, jobs.replace(iterations=iterations), training, controller.cluster)


def read_rows(rows: Iterable[Mapping[str, Any]]) -> Iterator[LoggedEntry]:
    """The rows of `GET /v1/events`; raises `InputError` for one that is not of this version."""
    for row in rows:
        yield LoggedEntry(int(row["seq"]), entry_from_json(row["event"]), list(row.get("commands") or ()))


def stored_rows(store: Store) -> Iterator[LoggedEntry]:
    """The rows of a store, without its service."""
    for row in store.entries():
        yield LoggedEntry(row.seq, entry_from_json(json.loads(row.entry)), json.loads(row.commands))


def replay(
    rows: Iterable[LoggedEntry], *, compare: bool = True, observe: Callable[[State, LoggedEntry], None] | None = None
) -> LogReplay:
    """Fold the log from its beginning; stops at the first decision that differs from the recorded one.

    `observe` sees the state after each entry. Raises `InputError` for a log with a gap.
    """
    state, history, count = State(), None, 0
    for row in rows:
        if row.seq != count + 1:
            raise InputError(f"the log has entry {row.seq} where {count + 1} was expected; it is not whole")
        derived = [to_json(command) for command in apply(state, row.entry)]
        count += 1
        if compare and derived != row.commands:
            return LogReplay(state, history, count, _difference(row, derived))
        if observe is not None:
            observe(state, row)
        if state.controller is not None:
            if history is None:
                history = History(state.controller)  # from the first node on
            elif row.event is not None:
                history(row.event, tuple(from_json(command) for command in derived))  # type: ignore[misc]
    return LogReplay(state, history, count, None)


def _difference(row: LoggedEntry, derived: list[dict[str, Any]]) -> LogDifference:
    at_s = row.entry.at_s
    for i in range(max(len(derived), len(row.commands))):
        ours = derived[i] if i < len(derived) else None
        theirs = row.commands[i] if i < len(row.commands) else None
        if ours != theirs:
            return LogDifference(row.seq, float(at_s), theirs, ours)
    raise AssertionError("not reached: something differs")
