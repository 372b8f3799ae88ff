"""The bound on waiting that every policy must keep: a stream of narrow jobs does not starve the first of the queue."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from plait.control.controller import Controller, describe
from plait.control.messages import Command, Event, ReplanDue
from plait.core.arrays import IntArray
from plait.core.cluster import Cluster
from plait.core.jobs import Checkpoints, JobBatch, JobSpec, Phase
from plait.core.words import counted
from plait.sim.contract.runs import BrokenPromise, Make, all_finish
from plait.sim.contract.workloads import COSTLY, IDEAL, Workload

#: Seconds after the last job in the way has ended by which the first of the queue has started: rounds and time slices
#: of policies, and jobs that are kept until they have run longer than their start and stop took.
LATE_S = 120.0
_WAITING, _RUNNING = int(Phase.WAITING), int(Phase.RUNNING)


def starves_nobody(make: Make, seed: int) -> None:
    """Check that the first of the queue waits no longer than for the jobs that ran when it became first."""
    for workload in streams(seed):
        all_finish(make, workload, observe=_FirstOfTheQueue)


def streams(seed: int) -> Iterator[Workload]:
    """Streams of narrow jobs that leave no node idle, and wide jobs of a higher priority among them."""
    rng = np.random.default_rng((seed, 0x57A2))
    plain, on_stop = Checkpoints.NEVER, Checkpoints.ON_STOP
    kinds = "1x4:v100,1x4:a100"
    for name, cluster, world, saves, wide in (
        ("plain narrow jobs and a wide one", "2x2", IDEAL, (plain,), ((4, None),)),
        ("narrow jobs, every second one plain, and two wide ones", "2x4", COSTLY, (plain, on_stop), ((8, None),) * 2),
        ("plain narrow jobs and a wide one of one kind of GPU", kinds, IDEAL, (plain,), ((4, ("a100",)),)),
    ):
        gpus = Cluster.parse(cluster).gpus
        narrow = [
            JobSpec(id=f"n{i:03d}", submit_s=16.0 * i, gpus=1, iterations=float(16 * gpus + rng.integers(0, 9)),
                    iteration_s=1.0, checkpoints=saves[i % len(saves)])
            for i in range(6 * gpus)
        ]  # fmt: skip
        gangs = [
            JobSpec(id=f"wide{i}", submit_s=16.0 * gpus + i, gpus=size, iterations=5.0, iteration_s=1.0, priority=5.0,
                    gpu_kinds=kind, checkpoints=plain)
            for i, (size, kind) in enumerate(wide)
        ]  # fmt: skip
        jobs = JobBatch.of(sorted([*narrow, *gangs], key=lambda spec: spec.submit_s))
        yield Workload(f"{name} on {cluster}", jobs, Cluster.parse(cluster), world, seed=seed)


class _FirstOfTheQueue:
    """Raise when a job that stays first in the queue still waits long after all that ran when it became first."""

    def __init__(self, controller: Controller) -> None:
        self.controller = controller
        self.first = -1
        self.ahead: IntArray = np.zeros(0, dtype=np.int64)

    def __call__(self, event: Event, commands: Sequence[Command]) -> None:
        c = self.controller
        phase, end_s = c.job_store.columns["phase"], c.job_store.columns["end_s"]
        first = self._first() if isinstance(event, ReplanDue) else self.first
        if first < 0 or phase[first] != _WAITING:
            self.first = -1
            return
        if first != self.first:
            self.first, self.ahead = first, c.active[phase[c.active] == _RUNNING]
        ends_s = end_s[self.ahead]
        left_s = float(np.where(phase[self.ahead] > _RUNNING, ends_s, math.inf).max(initial=-math.inf))
        if event.at_s > left_s + LATE_S:
            raise BrokenPromise(
                f"policy {describe(c.policy)} has let {c.job_store.name(first)} wait, the first of its queue, until "
                f"{event.at_s} s; the {counted(len(self.ahead), 'job')} that ran when it became first had ended at "
                f"{left_s} s. Start the first job of `Plan.order` where its GPUs are free"
            )

    def _first(self) -> int:
        """The number of the first waiting job: by the plan's order, or by priority and submission; -1 for none."""
        c = self.controller
        phase, priority = c.job_store.columns["phase"], c.job_store.columns["priority"]
        order = c.plan.order
        if order is None:
            order = c.active[np.lexsort((c.active, -priority[c.active]))]
        waiting = order[phase[order] == _WAITING]
        return int(waiting[0]) if len(waiting) else -1
