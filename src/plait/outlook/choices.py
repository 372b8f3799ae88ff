"""Choices on a past: their simulations in rounds, on blocks of the past, and the check that the past can be simulated.

Blocks of time begin as the cluster was then. Simulations run over processes that stay, and nothing is simulated twice.
A past can be simulated if its own policy, simulated, comes close to its record (`fitted`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any

import numpy as np

from plait.core.arrays import BoolArray, FloatArray, IntArray
from plait.core.cluster import Cluster
from plait.core.errors import SimulationError
from plait.core.jobs import JobBatch, Phase
from plait.outlook.past import Past
from plait.policies.catalog import beyond_durations, knowledge, make_policy
from plait.sim.run import simulate
from plait.sim.studies.cases import StudyWorkers
from plait.sim.world import LAUNCH, Overheads, World

#: Of the policies of a round a third continues (Jamieson and Talwalkar, AISTATS 2016: successive halving).
KEEP = 3
#: Knowledge that a policy may have without the users' help.
KNOWN_ANYWAY = frozenset({"nothing", "GPU count", "demands", "distribution of past sizes"})


@dataclass(frozen=True)
class Alternative:
    """A policy on a cluster. `kind` is what was changed: `policy`, `size` or `quota`, or "" for what was used."""

    kind: str
    label: str
    policy: str
    cluster: Cluster

    @property
    def oracle(self) -> bool:
        """Whether the policy needs knowledge from users, such as the work of their jobs."""
        return knowledge(self.policy) == "exact" or not KNOWN_ANYWAY.issuperset(beyond_durations(self.policy))


@dataclass(frozen=True, eq=False)
class PastOutcome:
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
class RoundsPlan:
    """How many choices each round has, and on how many jobs."""

    rounds: tuple[tuple[int, int], ...]

    @property
    def simulated(self) -> int:
        return sum(choices * jobs for choices, jobs in self.rounds)


def planned(choices: int, always: int, jobs: int, budget: int) -> RoundsPlan:
    """Rounds in which a third of the `choices` continues, in addition to `always` that are in the last one in any case.

    Every round has an equal part of the `budget` of simulated jobs, of a past of so many `jobs`.

    >>> planned(20, 0, 100_000, 90_000).rounds
    ((20, 1500), (7, 4285), (3, 10000))
    >>> planned(20, 0, 1000, 90_000).rounds
    ((20, 1000),)
    """
    if (choices + always) * jobs <= budget:
        return RoundsPlan(((choices + always, jobs),))
    counts = [choices]
    while counts[-1] > KEEP:
        counts.append(max(KEEP, math.ceil(counts[-1] / KEEP)))
    share = budget // len(counts)
    sizes = [count + (always if i == len(counts) - 1 else 0) for i, count in enumerate(counts)]
    return RoundsPlan(tuple((size, max(1, min(jobs, share // size))) for size in sizes))


def in_rounds(
    plan: RoundsPlan,
    choices: Sequence[Alternative],
    always: Sequence[Alternative],
    score: Callable[[PastOutcome], float],
    simulated: Callable[[Sequence[Alternative], int], list[PastOutcome]],
) -> dict[Alternative, tuple[int, PastOutcome]]:
    """The last outcome of each choice and the round it is of, from 1; the lowest `score`s are in the last round.

    `always` are simulated in the last round only, and do not compete. `simulated(choices, jobs)` gives the outcome of
    each on so many jobs.
    """
    found: dict[Alternative, tuple[int, PastOutcome]] = {}
    left = list(choices)
    for number, (_, jobs) in enumerate(plan.rounds, start=1):
        last = number == len(plan.rounds)
        if number > 1:
            left = sorted(left, key=lambda one: score(found[one][1]))[: plan.rounds[number - 1][0] - last * len(always)]
        group = [*left, *(always if last else ())]
        for choice, outcome in zip(group, simulated(group, jobs), strict=True):
            found[choice] = number, outcome
    return found


def mean_jct_s(outcome: PastOutcome) -> float:
    """Mean seconds from submission to end; infinite if a job that counts did not end."""
    return math.inf if outcome.unfinished or not len(outcome.rows) else float(outcome.jct_s.mean())


#: A block has at least so many jobs, and a past at most so many blocks.
LEAST_JOBS, MOST_BLOCKS = 800, 6
#: Part of the jobs of an incomplete block that does not count, from the end: later jobs are missing.
COOL_DOWN = 0.15


@dataclass(frozen=True, eq=False)
class PastBlock:
    """Jobs to simulate, and their place in the past: `rows` (jobs,), `counts` (jobs,) marks the ones compared.

    The first jobs are the ones that ran or waited when the block begins, with their recorded remaining time.
    """

    jobs: JobBatch
    rows: IntArray
    counts: BoolArray


def blocks(past: Past, jobs: int) -> list[PastBlock]:
    """Blocks of the past with about so many `jobs` together, evenly over it; all of it in one if it has no more."""
    n = len(past.jobs)
    if jobs >= n:
        return [PastBlock(past.jobs, np.arange(n), past.judged)]
    count = max(1, min(MOST_BLOCKS, jobs // LEAST_JOBS))
    size = jobs // count
    firsts = [round((i + 0.5) * n / count - size / 2) for i in range(count)]
    return [_block(past, first, first + size) for first in firsts]


def _block(past: Past, first: int, stop: int) -> PastBlock:
    """The jobs `first` to `stop` in order of submission, and what was there when the first of them came."""
    submit_s = past.jobs.submit_s
    begin_s = float(submit_s[first])
    before = np.flatnonzero(~(past.end_s[:first] <= begin_s) & ~np.isnan(past.start_s[:first]))
    ran = past.start_s[before] <= begin_s
    before = np.concatenate([before[ran], before[~ran]])  # running ones come first, and start at once
    rows = np.concatenate([before, np.arange(first, stop)])
    jobs = past.jobs[rows]
    left = np.ones(len(rows))
    left[: int(ran.sum())] = _left(past, before[: int(ran.sum())], begin_s)
    jobs = jobs.replace(submit_s=np.maximum(submit_s[rows], begin_s), iterations=jobs.iterations * left)
    counts = past.judged[rows] & (rows >= first) & (rows < stop - int(COOL_DOWN * (stop - first)))
    return PastBlock(jobs, rows, counts)


def _left(past: Past, rows: IntArray, at_s: float) -> FloatArray:
    """The part of the work of running jobs that is left at a time; all of it for an unseen end."""
    whole = past.end_s[rows] - past.start_s[rows]
    part = np.where(whole > 0, (past.end_s[rows] - at_s) / np.where(whole > 0, whole, 1.0), 1.0)
    result: FloatArray = np.clip(np.nan_to_num(part, nan=1.0), 1e-6, 1.0)
    return result


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
    cut: dict[int, list[PastBlock]] = field(default_factory=dict)

    def blocks(self, jobs: int) -> list[PastBlock]:
        """The blocks of about so many jobs together."""
        if jobs not in self.cut:
            self.cut[jobs] = blocks(self.past, jobs)
        return self.cut[jobs]


#: A choice, how many jobs its blocks have together, and the number of the block.
_Task = tuple[Alternative, int, int]


def _run(ground: _Ground, task: _Task) -> PastOutcome:
    """Simulate one choice on one block; no job counts as finished where some can never run."""
    choice, count, number = task
    block = ground.blocks(count)[number]
    jobs, cluster, counts = block.jobs, choice.cluster, block.counts
    try:
        run = simulate(jobs, cluster, make_policy(choice.policy), ground.world)
    except SimulationError:  # some jobs can never run under this choice
        none = np.zeros(0)
        return PastOutcome(block.rows[:0], none, none, none, 0.0, 0.0, 0.0, 0, 0.0, int(counts.sum()))
    store = run.controller.job_store
    columns = {name: column[: store.count] for name, column in store.columns.items()}
    end_s, submit_s = columns["end_s"], jobs.submit_s
    finished = counts & (columns["phase"] == int(Phase.FINISHED))
    hours = (float(np.nanmax(end_s)) - float(submit_s.min())) / 3600
    return PastOutcome(
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
        self._workers, self._here = StudyWorkers(processes, self._ground), StudyWorkers(1, self._ground)
        self._known: dict[tuple[str, str, int], PastOutcome] = {}

    def __enter__(self) -> Simulations:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._workers.__exit__(kind, error, traceback)

    @property
    def round_s(self) -> float:
        """Seconds between decisions; 0 at every event."""
        return self._ground.world.round_s

    def of(self, choices: Sequence[Alternative], jobs: int) -> list[PastOutcome]:
        """The outcome of each choice on blocks of about so many `jobs` together."""
        jobs = min(jobs, len(self.past.jobs))
        parts = self._ground.blocks(jobs)
        new = {_key(one, jobs): one for one in choices if _key(one, jobs) not in self._known}
        tasks = [(one, jobs, number) for one in new.values() for number in range(len(parts))]
        sizes = [len(parts[number].jobs) for _, _, number in tasks]
        workers = self._workers if sum(sizes) >= WORTH_PROCESSES else self._here
        found: dict[int, PastOutcome] = {}
        for i, outcome in workers.over(_run, tasks):
            found[i] = outcome
            self.jobs += sizes[i]
            if self._ended is not None:
                self._ended(sizes[i])
        for i, key in enumerate(new):
            self._known[key] = joined([found[i * len(parts) + number] for number in range(len(parts))])
        return [self._known[_key(one, jobs)] for one in choices]


def _key(choice: Alternative, jobs: int) -> tuple[str, str, int]:
    return choice.policy, str(choice.cluster), jobs


def joined(parts: Sequence[PastOutcome]) -> PastOutcome:
    def together(name: str) -> Any:
        return np.concatenate([getattr(part, name) for part in parts])

    return PastOutcome(
        together("rows"), together("jct_s"), together("start_s"), together("queue_s"),
        *(sum(getattr(part, name) for part in parts)
          for name in ("hours", "gpu_h", "busy_gpu_h", "preemptions", "lost_gpu_h", "unfinished")),
    )  # fmt: skip


#: Mean completion times that differ by more are no basis for advice.
TOLERANCE = 0.05
#: Common policies of cluster schedulers, among which the used one is searched.
COMMON = (
    "fifo", "fifo-backfill", "fifo-backfill:reserve_after_s=3600", "fifo-backfill:reserve_after_s=86400", "sjf",
    "drf", "knapsack",
)  # fmt: skip


class Unfaithful(SimulationError):
    """The past cannot be simulated closely enough to learn from it."""


@dataclass(frozen=True)
class PolicyFit:
    """The policy taken as the one that was used, and its difference from the record.

    `given`: whether the user named it. Times are means over the `jobs` that count, in seconds; `others` are the errors
    of other policies, by name.
    """

    choice: Alternative
    given: bool
    jobs: int
    simulated_s: float
    recorded_s: float
    simulated_queue_s: float
    recorded_queue_s: float
    others: tuple[tuple[str, float], ...] = ()

    @property
    def error(self) -> float:
        """Simulated over recorded mean completion time, minus one."""
        return self.simulated_s / self.recorded_s - 1.0

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return {
            "policy": self.choice.policy, "given": self.given, "jobs": self.jobs, "error": self.error,
            "tolerance": TOLERANCE, "simulated_mean_jct_s": self.simulated_s, "recorded_mean_jct_s": self.recorded_s,
            "simulated_mean_wait_s": self.simulated_queue_s, "recorded_mean_wait_s": self.recorded_queue_s,
            "other_policies": dict(self.others),
        }  # fmt: skip


def fitted(simulations: Simulations, policies: Sequence[str], *, given: bool, budget: int) -> PolicyFit:
    """The one of `policies` whose simulated mean completion time is closest to the recorded one."""
    past = simulations.past
    choices = [Alternative("", policy, policy, past.cluster) for policy in policies]

    def error(outcome: PastOutcome) -> float:
        return abs(_error(past, outcome))

    plan = planned(len(choices), 0, len(past.jobs), budget)
    found = in_rounds(plan, choices, (), error, simulations.of)
    last = max(number for number, _ in found.values())
    rivals = [choice for choice, (number, _) in found.items() if number == last]
    best = min(rivals, key=lambda choice: error(found[choice][1]))
    outcome = found[best][1]
    rows = outcome.rows
    others = tuple((one.policy, _error(past, result)) for one, (_, result) in found.items() if one != best)
    return PolicyFit(
        best, given, len(rows), float(outcome.jct_s.mean()) if len(rows) else math.nan,
        float(past.jct_s[rows].mean()) if len(rows) else math.nan,
        float(outcome.start_s.mean()) if len(rows) else math.nan,
        float((past.start_s - past.jobs.submit_s)[rows].mean()) if len(rows) else math.nan, others,
    )  # fmt: skip


def _error(past: Past, outcome: PastOutcome) -> float:
    """Relative error of the mean completion time; infinite if jobs do not end."""
    if outcome.unfinished or not len(outcome.rows):
        return math.inf
    return float(outcome.jct_s.mean() / past.jct_s[outcome.rows].mean()) - 1.0


def refuse_unfaithful(past: Past, fit: PolicyFit) -> None:
    """Raise `Unfaithful` with what may be missing, if the error is larger than `TOLERANCE`."""
    if abs(fit.error) <= TOLERANCE:
        return
    said = "as given" if fit.given else "the closest of those tried"
    lines = [
        (
            f"no advice: {fit.choice.policy} ({said}) on {past.cluster} gives a mean completion time of "
            f"{fit.simulated_s / 3600:.2f} h, and {fit.recorded_s / 3600:.2f} h happened ({fit.error:+.1%}; at most "
            f"{TOLERANCE:.0%} would do)"
        ),
        *(f"  {policy}: {error:+.1%}" for policy, error in fit.others),
        "what may be missing:",
        *(f"  {gap}" for gap in past.gaps),
    ]
    if any(remark.startswith("cluster inferred") for remark in past.remarks):
        lines.append("  the size of the cluster, which was inferred; give it with --cluster")
    elif fit.error < 0:
        lines.append("  GPUs that were down, reserved, or in use by others; a smaller --cluster stands for them")
    lines.append(
        "  the policy, which can be named with --policy" if not fit.given else "  the policy may have had other options"
    )
    raise Unfaithful("\n".join(lines))
