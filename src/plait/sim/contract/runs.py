"""Runs of small workloads with all invariants on, and what every run must satisfy."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from plait.control.controller import Controller, describe
from plait.control.drive import drive
from plait.control.messages import Command, Event, ReplanDue, to_json
from plait.control.snapshot import restore, snapshot
from plait.core.errors import PlaitError
from plait.core.jobs import Phase
from plait.core.policy import Policy
from plait.sim.contract.workloads import Workload
from plait.sim.invariants import Invariants
from plait.sim.run import Step, refuse_silence, simulator

Make = Callable[[], Policy]

#: Decisions after which a run of a dozen jobs counts as thrashing.
MOST_DECISIONS = 20_000


class BrokenPromise(PlaitError):
    """A policy broke its contract."""


@dataclass
class Played:
    """The result of a run: each event with its commands as JSON, and the controller at the end."""

    lines: list[str]
    commands: list[str]
    controller: Controller

    def ends(self) -> Mapping[int, float]:
        """When each finished job finished, seconds."""
        columns = self.controller.job_store.columns
        jobs = np.flatnonzero(columns["phase"][: self.controller.job_store.count] == int(Phase.FINISHED))
        return dict(zip(jobs.tolist(), columns["end_s"][jobs].tolist(), strict=True))


class _Watch:
    """A backend whose controller can be exchanged, watched by invariants and by a limit on decisions."""

    def __init__(self, policy: Policy, workload: Workload, restarts: Mapping[int, Make], also: Step | None) -> None:
        self.backend = simulator(
            workload.jobs, workload.cluster, workload.world, seed=workload.seed, node_changes=workload.changes
        )
        self.workload, self.restarts, self.also = workload, restarts, also
        self.played = Played([], [], Controller(policy, workload.cluster))
        self.invariants = Invariants(self.played.controller, self.backend)
        self.decisions = 0

    def handle(self, event: Event) -> Sequence[Command]:
        """Let the current controller handle the event."""
        make = self.restarts.get(len(self.played.lines))
        if make is not None:
            self.played.controller = restore(json.loads(json.dumps(snapshot(self.played.controller))), make())
            self.invariants.controller = self.played.controller
        return self.played.controller.handle(event)

    def __call__(self, event: Event, commands: Sequence[Command]) -> None:
        """Note the step and check it."""
        said = [to_json(c) for c in commands]
        self.played.lines.append(json.dumps([to_json(event), said]))
        self.played.commands += [json.dumps(c) for c in said]
        self.invariants(event, commands)
        self.decisions += isinstance(event, ReplanDue)
        if self.decisions > MOST_DECISIONS:
            waiting = self.played.controller.job_store.name(int(self.played.controller.active[0]))
            raise BrokenPromise(
                f"{MOST_DECISIONS} decisions until {event.at_s} s for {len(self.workload.jobs)} jobs, and {waiting} "
                f"has not ended: policy {describe(self.played.controller.policy)} thrashes"
            )
        if self.also is not None:
            self.also(event, commands)


def play(
    policy: Policy,
    workload: Workload,
    *,
    restarts: Mapping[int, Make] | None = None,
    observe: Callable[[Controller], Step] | None = None,
) -> Played:
    """Run a workload to its end with all invariants on; every job must end well.

    `restarts` maps step numbers to what makes the policy of a controller restored from a snapshot just then.
    Raises for a wrong plan, a broken invariant or a lost job, naming workload and time.
    """
    watch = _Watch(policy, workload, restarts or {}, None)
    if observe is not None:
        watch.also = observe(watch.played.controller)
    try:
        drive(watch, watch.backend, watch)  # type: ignore[arg-type]
        refuse_silence(watch.played.controller)
    except Exception as error:
        at_s = watch.backend.now / 1000 + 0.0  # never -0.0
        where = f"workload {workload.name}, seed {workload.seed}, round {workload.world.round_s} s, at {at_s} s"
        raise BrokenPromise(f"{where}: {what_it_said(error)}") from error
    return watch.played


def what_it_said(error: Exception) -> str:
    """An error as a sentence."""
    return str(error) if isinstance(error, PlaitError) else f"{type(error).__name__}: {error}"


def all_finish(make: Make, workload: Workload, observe: Callable[[Controller], Step] | None = None) -> Played:
    """Run a workload; raises `BrokenPromise` if a job did not finish. `observe` is as for `play`."""
    played = play(make(), workload, observe=observe)
    ends = played.ends()
    job_store = played.controller.job_store
    for job in range(len(workload.jobs)):
        if job not in ends:
            phase = Phase(int(job_store.columns["phase"][job])).name.lower()
            raise BrokenPromise(
                f"workload {workload.name}, seed {workload.seed}: {job_store.name(job)} ended as {phase}: "
                f"{job_store.columns['reason'][job]}"
            )
    return played


def same(workload: Workload, first: Sequence[str], second: Sequence[str], what: str) -> None:
    """Raise `BrokenPromise` at the first step in which the logs `first` and `second` differ; `what` says how."""
    if first == second:
        return
    at = next((i for i, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), min(len(first), len(second)))
    ours = first[at] if at < len(first) else "nothing"
    theirs = second[at] if at < len(second) else "nothing"
    raise BrokenPromise(
        f"workload {workload.name}, seed {workload.seed}: {what} differs at step {at}: {ours[:300]} and {theirs[:300]}"
    )
