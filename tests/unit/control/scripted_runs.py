"""Drive a real controller through a written script of events and plans."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from plait.control.controller import Controller
from plait.control.drive import drive
from plait.control.history import History
from plait.control.messages import Command, Event, JobFinished, JobSubmitted, ProgressReported, ReplanDue
from plait.core.cluster import Cluster
from plait.core.jobs import JobBatch, JobSpec
from plait.core.plan import Group, Member, Plan
from plait.core.policy import View


@dataclass
class Scripted:
    """Proposes the next plan of a list: one list of (job numbers, gpu numbers) a decision."""

    plans: list[Sequence[tuple[Sequence[int], Sequence[int]]]]
    name: str = "scripted"
    used: int = field(default=0)

    def decide(self, view: View) -> Plan:
        groups = self.plans[self.used]
        self.used += 1
        return Plan.of(Group(tuple(Member(j) for j in jobs), tuple(gpus)) for jobs, gpus in groups)


@dataclass
class Log:
    told: Sequence[Event]

    def events(self) -> Sequence[Event]:
        return self.told

    def execute(self, command: Command) -> None:
        pass


def run(cluster: str, events: Sequence[Event], plans: list) -> tuple[Controller, History]:
    controller = Controller(Scripted(plans), Cluster.parse(cluster))
    history = History(controller)
    drive(controller, Log(events), history)
    return controller, history


def ints(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


def floats(*values: float) -> np.ndarray:
    return np.array(values, dtype=np.float64)


def submit(first: int, *specs: JobSpec, at_s: float | None = None) -> JobSubmitted:
    at_s = max(s.submit_s for s in specs) if at_s is None else at_s
    return JobSubmitted(at_s, first, JobBatch.of(specs))


def finish(job: int, end_s: float, at_s: float | None = None) -> JobFinished:
    return JobFinished(end_s if at_s is None else at_s, ints(job), floats(end_s))


def progress(at_s: float, job: int, done: float) -> ProgressReported:
    return ProgressReported(at_s, ints(job), floats(done), floats(done), floats(done), floats(1.0))


def decide(at_s: float) -> ReplanDue:
    return ReplanDue(at_s)
