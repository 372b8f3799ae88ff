"""Promotion under contention: nobody is started to be stopped in the next moment."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from plait.control.controller import Controller
from plait.control.messages import Command, Event, Launch, Stop
from plait.core.cluster import Cluster
from plait.core.jobs import JobBatch
from plait.policies.catalog import make_policy
from plait.policies.tiresias import TICK_S
from plait.sim.run import simulate
from plait.sim.world import make_world


def jobs(n: int, seed: int) -> JobBatch:
    """More work than four GPUs do while jobs arrive; sizes over two orders of magnitude."""
    rng = np.random.default_rng(seed)
    gpus, work = rng.choice([1, 1, 2, 4], n), np.round(np.exp(rng.normal(5, 1.5, n))) + 1
    return JobBatch(
        {
            "id": [f"j{i}" for i in range(n)],
            "submit_s": np.sort(rng.uniform(0, (gpus * work).sum() / 4 / 1.3, n)),
            "gpus": gpus,
            "iterations": work,
            "iteration_s": np.ones(n),
        }
    )


def shortest_runs_s(policy: str, batch: JobBatch) -> tuple[list[float], int]:
    """How long jobs ran that were stopped, ascending, and the number of promotions."""
    since: dict[int, float] = {}
    found: list[float] = []

    def observe(controller: Controller) -> Callable[[Event, Sequence[Command]], None]:
        def step(event: Event, commands: Sequence[Command]) -> None:
            for command in commands:
                if isinstance(command, Stop):
                    found.extend(event.at_s - since[job] for job in command.jobs.tolist())
                elif isinstance(command, Launch):
                    since.update((m.job, event.at_s) for group in command.groups for m in group.members)

        return step

    run = simulate(batch, Cluster.parse("1x4"), make_policy(policy), make_world("ideal"), observe=observe)
    job_store = run.controller.job_store
    return sorted(found), int(job_store.columns["promotions"][: job_store.count].sum())


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("options", ["guard=off,knob=1", "guard=off,knob=2,within=submit", "knob=1,floor_s=100"])
def test_nobody_runs_for_a_tick(options: str, seed: int) -> None:
    stopped_after_s, promotions = shortest_runs_s(f"tiresias-l:thresholds=400/900,{options}", jobs(90, seed))
    assert promotions > 10
    assert not [t for t in stopped_after_s if t < 2 * TICK_S]
