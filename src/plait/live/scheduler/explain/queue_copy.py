"""The queue after a decision, in a copy for other threads: owners of jobs, and their reports."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from plait.control.controller import Controller
from plait.control.snapshot import of_active
from plait.core.arrays import IntArray
from plait.core.jobs import JobBatch, JobSpec
from plait.core.policy import Policy
from plait.core.words import command_line
from plait.live.api.jobs import FINAL, JobRow
from plait.live.layout import job_name
from plait.live.scheduler.context import Context
from plait.live.scheduler.explain.durations import History
from plait.live.scheduler.explain.next_starts import Release, next_starts
from plait.live.scheduler.explain.outlook import Calibrations
from plait.live.scheduler.explain.queue_arrays import QueueArrays, Who, arrays_of
from plait.live.scheduler.measured import WorkDone, work_of
from plait.live.scheduler.state import RECENT
from plait.policies.compose import Composed


@dataclass(frozen=True)
class QueueCopy:
    """Jobs by the numbers that they have in `controller`; `numbers` are their own. `decision`: the entry of the log.

    `ready`: False while what decisions need is still being compiled.
    """

    decision: int
    controller: Controller
    numbers: IntArray
    owners: Mapping[int, Who]
    reported: Mapping[int, WorkDone]
    by: Calibrations
    policy: str
    ready: bool = True

    @classmethod
    def of(cls, ctx: Context, now_s: float) -> QueueCopy | None:
        """Made in the engine's thread; None before any node has joined."""
        state = ctx.state
        if state.controller is None:
            return None
        small, numbers = of_active(state.controller, RECENT)
        small.policy = state.policy_again()  # what a policy remembers is not shared between threads
        small.now_s = max(small.now_s, now_s)
        for node in small.cluster:
            if node.id in state.nodes and state.nodes[node.id].state == "suspect":  # it will probably report again
                small.cluster = small.cluster.with_node(node)
        owners: dict[int, Who] = {}
        reported: dict[int, WorkDone] = {}
        for row, number in enumerate(numbers.tolist()):
            job = state.jobs.get(number)
            if job is None:
                continue
            name = str(job.request.get("name") or job.request.get("model") or "")
            owners[row] = Who(job.owner, name, command_line(job.request["command"]))
            if job.live is not None:
                reported[row] = work_of(ctx, job, job.live)
        by = Calibrations.of(state.record, now_s)
        return cls(state.decision_seq, small, numbers, owners, reported, by, state.policy_text, ctx.ready)

    def arrays(self, order: IntArray | None = None) -> QueueArrays:
        """The active jobs in the order of the last decision, or in this one."""
        return arrays_of(self.controller, self.who, self.reported, order)

    def releases(self, left_s: Mapping[int, float], new: JobSpec | None = None) -> dict[int, Release]:
        """When the policy lets waiting jobs start, by their numbers in the copy, or only a `new` one, as number -1.

        `left_s`: seconds that jobs still run. Empty while what decisions need is being compiled.
        """
        return next_starts(self.controller, left_s, new) if self.ready else {}

    def who(self, row: int) -> Who:
        """Whose a job is."""
        return self.owners.get(row, Who("", ""))

    def name(self, row: int) -> str:
        """Name of a job as users write it."""
        return job_name(int(self.numbers[row]))

    def row(self, number: int) -> int | None:
        """The number of a job in the copy; None for a job that it lacks."""
        at = int(np.searchsorted(self.numbers, number))
        return at if at < len(self.numbers) and self.numbers[at] == number else None

    def stated(self) -> dict[int, float]:
        """Seconds that jobs which have ended lately were stated to take, by their own numbers."""
        columns = self.controller.job_store.columns
        rows = self.controller.job_store.last_departed(RECENT).tolist()
        return {int(self.numbers[row]): float(columns["iterations"][row] * columns["iteration_s"][row]) for row in rows}


def history_of(rows: Iterable[JobRow], stated: Mapping[int, float]) -> History:
    """Jobs that have ended, oldest first."""
    history = History()
    for row in rows:
        if row.state in FINAL and row.run_s > 0:
            stated_s, command = stated.get(row.number, np.nan), command_line(row.command)
            history.add(row.user, row.name or row.model, row.gpus, row.run_s, stated_s, command)
    return history


def order_with(controller: Controller, specs: Sequence[JobSpec], policy: Policy | None = None) -> IntArray:
    """The active jobs and new ones, by number, in the order in which a policy would look at them now.

    New jobs get the numbers after the present ones. `policy`: another one than the controller's. The controller is
    unchanged afterwards. Jobs that the policy holds back come last. Raises any exception of the policy.
    """
    store, active, chosen = controller.job_store, controller.active, policy or controller.policy
    first = store.count
    try:
        if specs:
            new = store.append(JobBatch.of(list(specs)), controller.competing)
            controller.active = np.concatenate([active, new])
        view = controller.view()
        if isinstance(chosen, Composed):
            return view.jobs.number[chosen.ranked(view)]
        order = chosen.decide(view).order
        named = np.array([], dtype=np.int64) if order is None else np.asarray(order, dtype=np.int64)
        rest = controller.active[~np.isin(controller.active, named)]
        return np.concatenate([named, rest])
    finally:
        controller.active = active
        if specs:
            store.count = first
            store.batches.pop()
