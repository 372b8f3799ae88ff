"""The simulator, started in the middle of a run instead of at its beginning."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from plait.control.controller import Controller
from plait.core.arrays import FloatArray
from plait.core.errors import InputError
from plait.core.jobs import JobBatch, Phase
from plait.core.plan import Group, Groups
from plait.sim.backend import Simulator
from plait.sim.overheads import CHECKPOINT, RESTORE, Overheads
from plait.sim.settings import SimulationSettings
from plait.sim.state import DONE, RUN, SERVICE, to_ms
from plait.sim.training import Training


class ResumedSimulator(Simulator):
    """A cluster that is in the state of a controller's job store: running jobs and their GPUs, progress, waiting jobs.

    `truth` has every job of the job store by number, with the work and pace that are assumed to be true. A running job
    needs `left_s` seconds in addition to its iterations (the rest of its start-up, and its end). `costs_s` (jobs, 4)
    are costs job by job, in the order of `plait.sim.overheads.FIELDS`, instead of those of `settings`. The first event
    is a decision.
    """

    def __init__(
        self, controller: Controller, truth: JobBatch, settings: SimulationSettings,
        left_s: FloatArray | None = None, costs_s: FloatArray | None = None,
    ) -> None:  # fmt: skip
        """Take over the present state of `controller`."""
        job_store = controller.job_store
        n = job_store.count
        if len(truth) != n:
            raise InputError(f"the job store has {n} jobs, the assumptions {len(truth)}; give one row a job")
        columns = {name: column[:n] for name, column in job_store.columns.items()}
        training = _as_said(columns, truth)
        super().__init__(truth, controller.cluster, replace(settings, overheads=Overheads(), training=training))
        if self.adaptive is not None:
            self.adaptive.trust(columns["goodput"])
        self.now = to_ms(max(controller.now_s, 0.0))
        self.arrived = n
        self.ended = int((columns["phase"] >= int(Phase.FINISHED)).sum())
        self.state[:, DONE] = columns["iterations_done"] * self.unit_ms
        self.state[:, RUN] = columns["run_s"] * 1000
        self.state[:, SERVICE] = columns["attained_gpu_s"] * 1000
        self.safe_ms[:] = self.done_ms
        self.attempts[:] = columns["starts"]
        over = (columns["phase"] < int(Phase.FINISHED)) & (self.done_ms >= self.total_ms)
        self.total_ms[over] = self.done_ms[over] + 1.0
        if left_s is not None:
            self.cost_ms[:, RESTORE] = np.rint(left_s * 1000)
        self.run_groups(running_now(controller))
        self.cost_ms = np.rint((settings.overheads.for_batch(truth) if costs_s is None else costs_s) * 1000)
        self.saves = bool(self.cost_ms[:, CHECKPOINT].any())
        self.news_ms = self.now


def _as_said(columns: Mapping[str, Any], truth: JobBatch) -> Training:
    """Jobs that adapt their batch continue by their own reports, faster or slower where `truth` is."""
    slower = truth.iteration_s / columns["iteration_s"]
    reports = [[(0.0, row)] for row in columns["goodput"]]
    return Training.reported(truth, reports, np.where(np.isfinite(slower), slower, 1.0))


def running_now(controller: Controller) -> Groups:
    """The groups of a controller without members that have ended since the last decision."""
    phases = controller.job_store.columns["phase"]
    groups = []
    for group in controller.running:
        members = tuple(m for m in group.members if phases[m.job] == int(Phase.RUNNING))
        if members:
            groups.append(Group(members, group.gpus, group.gate))
    return Groups.of(groups)
