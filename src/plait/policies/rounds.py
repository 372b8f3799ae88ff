"""Policies that choose all sizes anew in rounds: the clock, the line of those who waited, and what happens between."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from plait.core.arrays import BoolArray, FloatArray, IntArray
from plait.core.errors import InputError
from plait.core.jobs import JobClass
from plait.core.plan import NO_GROUPS, Plan
from plait.core.policy import View
from plait.goodput.fitness import FLOOR, HARMONIC, check, fitness
from plait.policies.pools import CLOCK_S, Pool, pools, staying
from plait.policies.seats import Seats, groups_of, with_companions, with_staying

NO_MATES: Mapping[int, tuple[int, ...]] = MappingProxyType({})


class Sizes(NamedTuple):
    """An allocation of one pool, GPUs (J, N), and how it was found: completes "sizes are ..."."""

    matrix: IntArray
    method: str


class Seated(NamedTuple):
    """A pool and the allocation that is applied there.

    `mates`: rows of the view that share the GPUs of a row and are not in the pool; `turns`: one a row of the view.
    """

    pool: Pool
    sizes: Sizes
    mates: Mapping[int, tuple[int, ...]] = NO_MATES
    turns: IntArray | None = None


@dataclass(frozen=True, kw_only=True)
class InRounds:
    """What policies that choose sizes have in common; `allocate` makes the difference.

    Every `interval_s` seconds all sizes are chosen anew. A job is taken to lose `restart_s` seconds by a restart until
    it has measured one.

    Between rounds nobody is moved. Waiting jobs take free GPUs at once, also those of a job that has just ended: the
    first GPU tells a new job's profile, and every size that changes costs a restart, so running jobs grow in the next
    round. Opportunistic jobs have weight 0: they use what the others leave, and give it back at once.

    Nobody starves: a job (neither opportunistic nor of weight 0) that waited for `patience_s` is due, and so is one
    whose waits since it was last due add up to that and to more than it ran. Due jobs get their fewest GPUs before
    anybody else does, whoever has waited longest first, and keep at least those until they have run for `patience_s`.
    So a job that the nodes which are up can hold starts at the latest `patience_s` + `interval_s` after it began to
    wait, and `patience_s` later for each time that due jobs before it fill the cluster.

    Nor is a start in vain: only for those who are due is a job stopped before it has run for as long as it took to
    start (twice `restart_s` in all).

    In which round a plan was made is kept in the level of its jobs, and that a job is due in its promotions, so the
    policy is a function of the view. Raises `InputError` for times that make no rounds.
    """

    interval_s: float = 60.0
    restart_s: float = 30.0
    patience_s: float = 3600.0
    name: str = "rounds"

    def __post_init__(self) -> None:
        """Refuse rounds without length."""
        self._require("interval_s", lambda value: math.isfinite(value) and value > 0, "a finite number of seconds > 0")
        self._require("patience_s", lambda value: value > 0, "seconds > 0, or inf")
        self._require("restart_s", lambda value: math.isfinite(value) and value >= 0, "a finite number of seconds >= 0")

    @property
    def longest_wait_s(self) -> float:
        """Seconds until a job starts at the latest that fits beside those due; `plait policy check` tests it."""
        return self.patience_s + self.interval_s

    def _require(self, name: str, good: Callable[[float], bool], wanted: str) -> None:
        value = getattr(self, name)
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not number or (isinstance(value, int) and abs(value) > sys.float_info.max) or not good(value):
            raise InputError(f"policy {self.name}: {name} is {value!r}; it takes {wanted}")

    def allocate(self, pool: Pool, view: View) -> Sizes:
        """The allocation of a pool for this round; jobs it leaves out may still find free GPUs.

        A policy defines this, or `anew` where it looks at all pools at once.
        """
        raise NotImplementedError(f"policy {self.name} has to define allocate(pool, view)")

    def choose(self, pool: Pool, found: Sizes, kept: Sizes) -> Sizes:
        """Which to apply: what `allocate` found, or what runs now with free GPUs for those who wait."""
        return found

    def between(self, view: View, due: BoolArray) -> list[Seated]:
        """What runs now, and free GPUs for those who wait."""
        found = [(pool, Seats(pool, pool.held).fill()) for pool in pools(view, due=due, restart_s=self.restart_s)]
        return [Seated(pool, Sizes(matrix, "kept until the next round")) for pool, matrix in found]

    def anew(self, view: View, due: BoolArray) -> list[Seated]:
        """All sizes anew, pool by pool, or as they are where `choose` says so."""
        out = []
        for pool, kept, *_ in self.between(view, due):
            found = self.allocate(pool, view)
            filled = Seats(pool, found.matrix).fill(found.matrix.sum(axis=1))
            out.append(Seated(pool, self.choose(pool, found._replace(matrix=filled), kept)))
        return out

    def decide(self, view: View) -> Plan:
        """All sizes anew once a round; else free GPUs for those who wait."""
        jobs = view.jobs
        if not len(jobs):
            return Plan(NO_GROUPS)
        now = math.floor((view.now_s + CLOCK_S) / self.interval_s)
        fresh = not (jobs.level == now).any()
        guaranteed = (
            (jobs.job_class != int(JobClass.OPPORTUNISTIC)) & (jobs.weight > 0) & math.isfinite(self.patience_s)
        )
        due = guaranteed & (jobs.promotions > 0) & (jobs.served_s < self.patience_s)
        long = jobs.waiting_s >= self.patience_s - CLOCK_S
        often = ~jobs.running & (jobs.idled_s >= np.maximum(self.patience_s, jobs.served_s) - CLOCK_S)
        late = guaranteed & ~due & (long | often) & fresh
        seated = self.anew(view, due | late) if fresh else self.between(view, due)
        groups = groups_of(view, [(one.pool, one.sizes.matrix) for one in seated])
        order = np.concatenate([np.flatnonzero(staying(view)), *(one.pool.rows for one in seated)])
        fixed = all((one.pool.least == one.pool.limit).all() for one in seated)
        settled = fixed and len(groups) == len(jobs) and not view.keeps.any
        mates = {row: some for one in seated for row, some in one.mates.items()}
        if mates:
            turns = np.sum([one.turns for one in seated if one.turns is not None and one.mates], axis=0)
            groups = with_companions(view, groups, mates, turns)
            order = np.concatenate([order, *(np.array(some, dtype=np.int64) for some in mates.values())])
        return Plan(
            with_staying(view, groups),
            jobs.number[order],
            np.full(len(order), now),
            jobs.number[late],
            _reasons(view, seated, (now + 1) * self.interval_s),
            math.inf if settled else (now + 1) * self.interval_s,
            settled=settled,
        )


@dataclass(frozen=True, kw_only=True)
class ByFitness(InRounds):
    """A policy whose aim is the mean of speed-ups of exponent `p`; `floor` is what a job without GPUs counts as.

    A new allocation is applied unless to go on as before makes that mean larger, with what moving really costs
    (methods price a size that stays as if nobody moved).
    """

    p: float = HARMONIC
    floor: float = FLOOR

    def __post_init__(self) -> None:
        """Refuse exponents that are no numbers too."""
        super().__post_init__()
        self._require("p", math.isfinite, "a finite number, e.g. -1 (fair) or 1 (efficient)")
        self._require("floor", lambda value: math.isfinite(value) and value >= 0, "a finite number >= 0")
        try:
            check(self.p, self.floor)
        except InputError as error:
            raise InputError(f"policy {self.name}: {error}") from None

    def choose(self, pool: Pool, found: Sizes, kept: Sizes) -> Sizes:
        """The better one."""
        if self._merit(pool, found.matrix) > self._merit(pool, kept.matrix):
            return found
        return kept._replace(method=f"kept, as {found.method} is not better")

    def _merit(self, pool: Pool, matrix: IntArray, pace: FloatArray | float = 1.0) -> tuple[float, ...]:
        """Due and fresh jobs that have GPUs, the fitness at a `pace` relative to alone, and that of weight 0."""
        worth, first = pool.worth(matrix) * pace, pool.weights > 0
        fit = [
            float(fitness(worth[some], self.p, floor=self.floor, weights=weights))
            for some, weights in ((first, pool.weights[first]), (~first, None))
        ]
        return (float(_in_line(pool, matrix)), float(matrix[pool.fresh].any(axis=1).sum()), *fit)


def _in_line(pool: Pool, matrix: IntArray) -> int:
    """Due jobs that have GPUs, up to the first that has none: nobody overtakes in that queue."""
    missing = np.flatnonzero(~matrix[pool.due].any(axis=1))
    return int(missing[0]) if len(missing) else int(pool.due.sum())


def _reasons(view: View, seated: list[Seated], until_s: float) -> Mapping[int, str]:
    """Why each waiting job waits, and how sizes were chosen."""
    out: dict[int, str] = {}
    for pool, (matrix, method), *_ in seated:
        waits = np.flatnonzero(~matrix.any(axis=1))
        if not len(waits):
            continue
        free = pool.total - int(matrix.sum())
        said = f"of {pool.total} GPUs {free} are free; sizes are {method}, next chosen at {until_s:g} s"
        numbers = view.jobs.number[pool.rows[waits]].tolist()
        for job, least in zip(numbers, pool.least[waits].tolist(), strict=True):
            out[job] = f"needs {least} GPU{'s' if least > 1 else ''} together; {said}"
    return out
