"""A few small runs to report on: first come first served, with and without sharing."""

from dataclasses import dataclass

import numpy as np
import pytest

from plait.control.controller import Controller
from plait.control.history import History
from plait.control.messages import JobFinished, JobSubmitted, ReplanDue
from plait.control.metrics import RunResult, measure
from plait.core.cluster import Cluster
from plait.core.jobs import JobBatch, JobSpec
from plait.core.plan import Group, Member, Plan
from plait.core.policy import View
from plait.core.resources import StageProfile


@dataclass(frozen=True)
class Two:
    """Runs up to `company` one-GPU jobs on each GPU, in order of submission."""

    name: str
    company: int = 1

    def decide(self, view: View) -> Plan:
        numbers = view.jobs.number.tolist()
        groups = [numbers[i : i + self.company] for i in range(0, len(numbers), self.company)]
        return Plan.of(
            Group(tuple(Member(j) for j in members), (gpu,)) for gpu, members in enumerate(groups[: view.cluster.gpus])
        )


def make_result(policy: str = "fifo", seed: int = 0, jobs: int = 12, company: int = 1, **specs: str) -> RunResult:
    """All jobs come at once; whichever runs and would end first does."""
    controller = Controller(Two(policy, company), Cluster.parse("2x2"))
    history = History(controller)
    random = np.random.default_rng(seed)
    seconds = random.integers(50, 500, jobs).astype(float)
    profile = StageProfile.of(cpu=0.2, gpu=0.8)
    names = [specs.get("id", "job") + f"-{i}" for i in range(jobs)]
    batch = JobBatch.of(
        JobSpec(id=n, user="ada", model=specs.get("model", ""), iterations=s, profile=profile)
        for n, s in zip(names, seconds, strict=True)
    )

    def tell(event: object) -> None:
        history(event, controller.handle(event))  # type: ignore[arg-type]

    tell(JobSubmitted(0.0, 0, batch))
    tell(ReplanDue(0.0))
    left, now = seconds.copy(), 0.0
    while len(controller.active):
        running = controller.active[controller.job_store.columns["phase"][controller.active] == 1]
        first = int(running[np.argmin(left[running])])
        step = left[first]
        now += step
        left[running] -= step
        tell(JobFinished(now, np.array([first]), np.array([now])))
        tell(ReplanDue(now))
    return measure(controller, history, trace="tiny", world="none", seed=seed, wall_s=0.01)


@pytest.fixture
def results() -> list[RunResult]:
    return [make_result("fifo", 0), make_result("muri-l", 0, company=2), make_result("fifo", 1)]


@pytest.fixture
def make() -> object:
    return make_result
