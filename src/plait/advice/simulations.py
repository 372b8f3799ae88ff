"""How choices are simulated on a past: on blocks of it, over processes that stay, and nothing twice."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any

import numpy as np

from plait.advice.blocks import Block, blocks
from plait.advice.choices import Choice, Outcome
from plait.advice.past import Past
from plait.core.errors import SimulationError
from plait.core.jobs import Phase
from plait.policies.catalog import make_policy
from plait.sim.overheads import LAUNCH, Overheads
from plait.sim.run import simulate
from plait.sim.studies.cases import Workers
from plait.sim.world import World

#: Of a long past, decisions are made at most so often, seconds, and so that waiting for one is at most this part of
#: the mean completion time: an error that all choices share, far below the tolerance of the fit.
ROUND_S, ROUND_SHARE = 60.0, 0.005
#: Lists of fewer jobs are simulated here: processes take seconds to start.
WORTH_PROCESSES = 8_000


def history_world(round_s: float = 0.0) -> World:
    """No cost of a first start, which a recorded run time has in it; restarts cost what was measured.

    Decisions are made every `round_s` seconds, or at every event (0).
    """
    measured = Overheads.measured()
    free = tuple(
        (model, tuple(tuple(0.0 if i == LAUNCH + 1 else value for i, value in enumerate(row)) for row in sizes))
        for model, sizes in measured.rows
    )
    return World(
        "history", "recorded run times; restarts as measured", overheads=replace(measured, rows=free), round_s=round_s
    )


def round_of(past: Past, budget: int) -> float:
    """Seconds between decisions in simulations of `past`: 0 (at every event) if it is within the `budget` whole.

    A round makes several decisions one where submissions and ends come more often than that. Its cost is half of it
    as additional waiting, the same for all choices.
    """
    if len(past.jobs) <= budget // 10:
        return 0.0
    mean_s = float(past.jct_s[past.judged].mean())
    return float(min(ROUND_S, math.floor(2 * ROUND_SHARE * mean_s)))


@dataclass(frozen=True, eq=False)
class _Ground:
    """Common input of all simulations of a past; sent to each process once."""

    past: Past
    world: World
    cut: dict[int, list[Block]] = field(default_factory=dict)

    def blocks(self, jobs: int) -> list[Block]:
        """The blocks of about so many jobs together."""
        if jobs not in self.cut:
            self.cut[jobs] = blocks(self.past, jobs)
        return self.cut[jobs]


#: A choice, how many jobs its blocks have together, and the number of the block.
_Task = tuple[Choice, int, int]


def _run(ground: _Ground, task: _Task) -> Outcome:
    """Simulate one choice on one block; no job counts as finished where some can never run."""
    choice, count, number = task
    block = ground.blocks(count)[number]
    jobs, cluster, counts = block.jobs, choice.cluster, block.counts
    try:
        run = simulate(jobs, cluster, make_policy(choice.policy), ground.world)
    except SimulationError:  # some jobs can never run under this choice
        none = np.zeros(0)
        return Outcome(block.rows[:0], none, none, none, 0.0, 0.0, 0.0, 0, 0.0, int(counts.sum()))
    store = run.controller.job_store
    columns = {name: column[: store.count] for name, column in store.columns.items()}
    end_s, submit_s = columns["end_s"], jobs.submit_s
    finished = counts & (columns["phase"] == int(Phase.FINISHED))
    hours = (float(np.nanmax(end_s)) - float(submit_s.min())) / 3600
    return Outcome(
        block.rows[finished],
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


class Simulations:
    """Simulations of one past, with processes that stay and outcomes that are kept.

    `jobs` is how many jobs were simulated so far.
    """

    def __init__(
        self, past: Past, *, round_s: float = 0.0, processes: int = 1, ended: Callable[[int], None] | None = None
    ) -> None:
        """Decide every `round_s` seconds (0: at every event); `ended(n)` is called after n more jobs."""
        self.past, self.jobs = past, 0
        self._ground = _Ground(past, history_world(round_s))
        self._ended = ended
        self._workers, self._here = Workers(processes, self._ground), Workers(1, self._ground)
        self._known: dict[tuple[str, str, int], Outcome] = {}

    def __enter__(self) -> Simulations:
        """Nothing starts before it is needed."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._workers.__exit__(kind, error, traceback)

    @property
    def round_s(self) -> float:
        """Seconds between decisions; 0 at every event."""
        return self._ground.world.round_s

    def of(self, choices: Sequence[Choice], jobs: int) -> list[Outcome]:
        """The outcome of each choice on blocks of about so many `jobs` together."""
        jobs = min(jobs, len(self.past.jobs))
        parts = self._ground.blocks(jobs)
        new = {_key(one, jobs): one for one in choices if _key(one, jobs) not in self._known}
        tasks = [(one, jobs, number) for one in new.values() for number in range(len(parts))]
        sizes = [len(parts[number].jobs) for _, _, number in tasks]
        workers = self._workers if sum(sizes) >= WORTH_PROCESSES else self._here
        found: dict[int, Outcome] = {}
        for i, outcome in workers.over(_run, tasks):
            found[i] = outcome
            self.jobs += sizes[i]
            if self._ended is not None:
                self._ended(sizes[i])
        for i, key in enumerate(new):
            self._known[key] = joined([found[i * len(parts) + number] for number in range(len(parts))])
        return [self._known[_key(one, jobs)] for one in choices]


def _key(choice: Choice, jobs: int) -> tuple[str, str, int]:
    return choice.policy, str(choice.cluster), jobs


def joined(parts: Sequence[Outcome]) -> Outcome:
    """The outcomes of the blocks of a choice as one."""

    def together(name: str) -> Any:
        return np.concatenate([getattr(part, name) for part in parts])

    return Outcome(
        together("rows"), together("jct_s"), together("start_s"), together("queue_s"),
        *(sum(getattr(part, name) for part in parts)
          for name in ("hours", "gpu_h", "busy_gpu_h", "preemptions", "lost_gpu_h", "unfinished")),
    )  # fmt: skip
