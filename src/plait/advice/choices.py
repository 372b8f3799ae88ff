"""What could have been chosen, how one choice is simulated, and how many are in rounds."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from plait.advice.blocks import Block, blocks
from plait.advice.past import Past
from plait.core.arrays import BoolArray, FloatArray, IntArray
from plait.core.cluster import Cluster
from plait.core.errors import SimulationError
from plait.core.jobs import JobBatch, Phase
from plait.policies.catalog import make_policy, rows
from plait.sim.overheads import LAUNCH, Overheads
from plait.sim.run import simulate
from plait.sim.studies.cases import over_processes
from plait.sim.world import World

#: Of the policies of a round a third goes on (Jamieson and Talwalkar, AISTATS 2016: successive halving).
KEEP = 3
#: What a policy may know that users do not have to say.
KNOWN_ANYWAY = ("nothing", "GPU count", "demands", "distribution of past sizes")


@dataclass(frozen=True)
class Choice:
    """A policy on a cluster. `kind` is what was changed: `policy`, `size` or `quota`, or "" for what was used."""

    kind: str
    label: str
    policy: str
    cluster: Cluster

    @property
    def oracle(self) -> bool:
        """Whether the policy knows what users would have to say, as the work of their jobs."""
        row = rows().get(self.policy.partition(":")[0])
        return row is not None and row.knows not in KNOWN_ANYWAY


@dataclass(frozen=True, eq=False)
class Outcome:
    """Jobs that count, by row of the past, with seconds from submission to end and to the first start (jobs,).

    `gpu_h` is what the cluster had and `busy_gpu_h` what jobs had, from the first submission to the last end.
    `hours` are between these. `preemptions` and `lost_gpu_h` (work thrown away) are of all jobs. `unfinished` jobs
    count, and did not end.
    """

    rows: IntArray
    jct_s: FloatArray
    start_s: FloatArray
    queue_s: FloatArray
    hours: float
    gpu_h: float
    busy_gpu_h: float
    preemptions: int
    lost_gpu_h: float
    unfinished: int = 0


@dataclass(frozen=True)
class _Task:
    choice: Choice
    jobs: JobBatch
    rows: IntArray
    counts: BoolArray


def history_world() -> World:
    """No cost of a first start, which a recorded run time has in it; restarts cost what was measured."""
    measured = Overheads.measured()
    free = tuple(
        (model, tuple(tuple(0.0 if i == LAUNCH + 1 else value for i, value in enumerate(row)) for row in sizes))
        for model, sizes in measured.rows
    )
    return World("history", "recorded run times; restarts as measured", overheads=replace(measured, rows=free))


def run_choice(task: _Task) -> Outcome:
    """Simulate one choice on one block; no job counts as finished where some can never run."""
    jobs, cluster = task.jobs, task.choice.cluster
    try:
        run = simulate(jobs, cluster, make_policy(task.choice.policy), history_world())
    except SimulationError:  # some jobs can never run under this choice
        none = np.zeros(0)
        return Outcome(task.rows[:0], none, none, none, 0.0, 0.0, 0.0, 0, 0.0, int(task.counts.sum()))
    store = run.controller.job_store
    columns = {name: column[: store.count] for name, column in store.columns.items()}
    end_s, submit_s = columns["end_s"], jobs.submit_s
    counts = task.counts
    finished = counts & (columns["phase"] == int(Phase.FINISHED))
    hours = (float(np.nanmax(end_s)) - float(submit_s.min())) / 3600
    return Outcome(
        task.rows[finished],
        (end_s - submit_s)[finished],
        (columns["first_start_s"] - submit_s)[finished],
        (end_s - submit_s - columns["run_s"])[finished],
        hours,
        hours * cluster.gpus,
        float(np.nansum(columns["attained_gpu_s"])) / 3600,
        int(columns["preemptions"].sum()),
        float(np.nansum(columns["lost_s"] * columns["gpus"])) / 3600,
        int((counts & ~finished).sum()),
    )


def joined(parts: Sequence[Outcome]) -> Outcome:
    """The outcomes of the blocks of a choice as one."""

    def together(name: str) -> Any:
        return np.concatenate([getattr(part, name) for part in parts])

    return Outcome(
        together("rows"), together("jct_s"), together("start_s"), together("queue_s"),
        *(sum(getattr(part, name) for part in parts)
          for name in ("hours", "gpu_h", "busy_gpu_h", "preemptions", "lost_gpu_h", "unfinished")),
    )  # fmt: skip


def simulated(
    past: Past, choices: Sequence[Choice], jobs: int, processes: int, ended: Callable[[int], None] | None = None
) -> list[Outcome]:
    """The outcome of each choice on blocks of about so many `jobs`; `ended(n)` is called after n more."""
    parts: list[Block] = blocks(past, jobs)
    tasks = [_Task(one, part.jobs, part.rows, part.counts) for one in choices for part in parts]
    found: list[Outcome | None] = [None] * len(tasks)
    for i, outcome in over_processes(run_choice, tasks, processes):
        found[i] = outcome
        if ended is not None:
            ended(len(tasks[i].jobs))
    done = [one for one in found if one is not None]
    return [joined(done[i : i + len(parts)]) for i in range(0, len(done), len(parts))]


@dataclass(frozen=True)
class Plan:
    """How many choices each round has, and on how many jobs."""

    rounds: tuple[tuple[int, int], ...]

    @property
    def simulated(self) -> int:
        """Jobs simulated in all."""
        return sum(choices * jobs for choices, jobs in self.rounds)


def planned(choices: int, always: int, jobs: int, budget: int) -> Plan:
    """Rounds in which a third of the `choices` goes on, beside `always` that are in the last one whatever happens.

    Every round has an equal part of the `budget` of simulated jobs, of a past of so many `jobs`.

    >>> planned(20, 0, 100_000, 90_000).rounds
    ((20, 1500), (7, 4285), (3, 10000))
    >>> planned(20, 0, 1000, 90_000).rounds
    ((20, 1000),)
    """
    if (choices + always) * jobs <= budget:
        return Plan(((choices + always, jobs),))
    counts = [choices]
    while counts[-1] > KEEP:
        counts.append(max(KEEP, math.ceil(counts[-1] / KEEP)))
    share = budget // len(counts)
    sizes = [count + (always if i == len(counts) - 1 else 0) for i, count in enumerate(counts)]
    return Plan(tuple((size, max(1, min(jobs, share // size))) for size in sizes))


def in_rounds(
    past: Past,
    choices: Sequence[Choice],
    always: Sequence[Choice],
    score: Callable[[Outcome], float],
    *,
    budget: int,
    processes: int,
    ended: Callable[[int], None] | None = None,
) -> dict[Choice, tuple[int, Outcome]]:
    """The last outcome of each choice and the round it is of, from 1; the lowest `score`s are in the last round.

    `always` are simulated in the last round only, and do not compete.
    """
    plan = planned(len(choices), len(always), len(past.jobs), budget)
    found: dict[Choice, tuple[int, Outcome]] = {}
    left = list(choices)
    for number, (_, jobs) in enumerate(plan.rounds, start=1):
        last = number == len(plan.rounds)
        if number > 1:
            left = sorted(left, key=lambda one: score(found[one][1]))[: plan.rounds[number - 1][0] - last * len(always)]
        group = [*left, *(always if last else ())]
        for choice, outcome in zip(group, simulated(past, group, jobs, processes, ended), strict=True):
            found[choice] = number, outcome
    return found


def mean_jct_s(outcome: Outcome) -> float:
    """Mean seconds from submission to end; infinite if a job that counts did not end."""
    return math.inf if outcome.unfinished or not len(outcome.rows) else float(outcome.jct_s.mean())
