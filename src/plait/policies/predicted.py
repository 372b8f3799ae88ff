"""Orders by what is predicted of jobs whose durations are not known, from jobs of their kind that ended.

srtf = Composed("srtf", order=ByPrediction())
srsf = Composed("srsf", order=ByPrediction(power=1.0))

`ByListSchedule` is between shortest remaining time and shortest remaining service, chosen by look-ahead.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from plait.core.arrays import BoolArray, FloatArray, IntArray
from plait.core.compile_policy import either
from plait.core.errors import InputError
from plait.core.jit import kernel
from plait.core.jobs import JobTable
from plait.core.policy import View, layers
from plait.policies.compose import Ranking
from plait.policies.kinds import LEVELS, Kinds, Lives

#: What an order knows of durations.
Knows = Literal["exact", "predicted", "nothing"]
#: A waiting job takes the GPUs of a running one only if its key is below this part of that one's: ranks grow with
#: service, so jobs of one kind would stop each other over and over.
KEEP = 0.7
#: The order changes by itself at most this often, seconds.
LEAST_S = 60.0
#: The levels of kinds that count: all but the size alone, or only the size, where nothing else is known of jobs.
KNOWN = [np.array([(level == "size") == alike for level in LEVELS[:-1]], dtype=np.int64) for alike in (False, True)]


def lives(jobs: JobTable, alike: bool = False) -> Lives:
    """What each job of the table still needs, from what has ended by then; `alike`: only sizes tell jobs apart."""
    kinds: Kinds = jobs.memo.setdefault("all jobs" if alike else "kinds", Kinds())
    of, took_s = jobs.ended(kinds.ended)
    kinds.add(of * KNOWN[alike], took_s)
    return kinds.lives(jobs.kinds * KNOWN[alike], jobs.done_s)


@dataclass(frozen=True)
class Prediction:
    """Seconds of work that a job still needs: quartiles, from `ends` jobs that ended of the closest kind with any.

    `level` names what these jobs have in common (`plait.policies.kinds.LEVELS`).
    """

    level: str
    ends: int
    low_s: float
    median_s: float
    high_s: float


def prediction(jobs: JobTable, row: int, alike: bool = False) -> Prediction:
    """What is predicted of a job of the table, and from which jobs; arguments as of `lives`."""
    left = lives(jobs, alike)
    kinds: Kinds = jobs.memo["all jobs" if alike else "kinds"]
    of = jobs.kinds[row : row + 1]
    level, ends = kinds.ends(of * KNOWN[alike])[0].tolist()
    low_s, median_s, high_s = (float(left.quantile_s(share)[row]) for share in (0.25, 0.5, 0.75))
    return Prediction(LEVELS[level], ends, low_s, median_s, high_s)


def predicted_of(policy: object, jobs: JobTable, row: int) -> Prediction | None:
    """The prediction by which a policy orders a job of the table; None if it uses none."""
    for order in (getattr(one, "order", None) for one in layers(policy)):
        if isinstance(order, ByPrediction):
            return prediction(jobs, row)
        if isinstance(order, ByListSchedule) and order.unknown(jobs)[row]:
            return prediction(jobs, row, alike=order.knows == "nothing")
    return None


def kept(jobs: JobTable, keys: FloatArray) -> FloatArray:
    """The keys, those of running jobs times `KEEP`."""
    found: FloatArray = np.where(jobs.running, KEEP * keys, keys)
    return found


def changes_in_s(left: Lives) -> FloatArray:
    """Seconds until what is predicted of a job changes while it runs."""
    return np.maximum(left.next_edge_s(), LEAST_S)


@dataclass(frozen=True)
class ByPrediction:
    """Gittins rank in seconds times GPUs to the power of `power`: SRTF with 0, SRSF with 1.

    `mean`: the mean of what is left instead, for policies that stop no job.
    """

    power: float = 0.0
    mean: bool = False

    def __call__(self, view: View) -> Ranking:
        """Keys, and when those of running jobs change."""
        left, jobs = lives(view.jobs), view.jobs
        found = left.mean_s() if self.mean else left.rank_s()
        keys = kept(jobs, found * jobs.gpus**self.power)
        return Ranking((keys,), running_s=changes_in_s(left))


#: A reservation counts on the ends of jobs by this quantile of what they still need, where that is predicted.
LATE = 0.75


@dataclass(frozen=True)
class ByBackfill:
    """First in, first out, and a job goes ahead if that delays the start of the first that waits by no estimate.

    EASY backfilling (Lifka, JSSPP'95), by GPU counts: the first job that does not fit is due when running jobs will
    have left enough GPUs. Another goes ahead if it ends before, or if what it takes is left over then. It goes with
    `strict`, without preemption. `knows`: `exact` seconds left, or the quantile `LATE` of `predicted` ones.
    """

    knows: Knows = "predicted"

    def __call__(self, view: View) -> Ranking:
        """1 for the first job that has to wait and those behind it that may not go ahead, otherwise 0."""
        jobs = view.jobs
        left = None if self.knows == "exact" else lives(jobs)
        left_s = np.nan_to_num(jobs.remaining_s if left is None else left.quantile_s(LATE), nan=np.inf)
        keys = np.zeros(len(jobs), dtype=np.int64)
        holds = [(float(left_s[row]), int(jobs.gpus[row])) for row in np.flatnonzero(jobs.running).tolist()]
        free = int(view.node_gpus.sum()) - sum(gpus for _, gpus in holds)
        due_s, spare = -np.inf, 0
        for row in np.flatnonzero(~jobs.running).tolist():
            gpus, needs_s = int(jobs.gpus[row]), float(left_s[row])
            first = gpus > free and due_s < 0
            if first:
                due_s, spare = self._due(holds, free, gpus)
            ahead = due_s < 0 or (not first and gpus <= free and (needs_s <= due_s or gpus <= spare))
            if not ahead:
                keys[row] = 1
                continue
            free -= gpus
            spare -= gpus if needs_s > due_s else 0
            holds.append((needs_s, gpus))
        return Ranking((keys,), running_s=None if left is None else changes_in_s(left))

    @staticmethod
    def _due(holds: list[tuple[float, int]], free: int, gpus: int) -> tuple[float, int]:
        """In how many seconds so many GPUs will be free, and how many more then; infinite and all if never."""
        for end_s, held in sorted(holds):
            free += held
            if free >= gpus:
                return max(end_s, 0.0), free - gpus
        return np.inf, free


#: Sums of completion times that differ by less, relatively, are equal.
TIE = 1e-6


@kernel
def list_schedule(order: IntArray, gpus: IntArray, remaining_s: FloatArray, room: int) -> float:
    """Sum of completion times, seconds, if at each moment the best jobs of `order` that still find GPUs run.

    Jobs are stopped at will and count GPUs only; jobs wider than `room` never run and count nothing.
    """
    left = remaining_s.copy()
    waiting = order.copy()
    count, now_s, total_s = len(order), 0.0, 0.0
    while count > 0:
        free, step_s = room, np.inf
        for i in range(count):
            if gpus[waiting[i]] <= free:
                free -= gpus[waiting[i]]
                step_s = min(step_s, left[waiting[i]])
        if step_s == np.inf:
            break
        now_s += step_s
        free, kept = room, 0
        for i in range(count):
            row = waiting[i]
            if gpus[row] <= free:
                free -= gpus[row]
                left[row] -= step_s
                if left[row] <= 0.0:
                    total_s += now_s
                    continue
            waiting[kept] = row
            kept += 1
        count = kept
    return total_s


@dataclass(frozen=True)
class ByListSchedule:
    """Remaining time times GPUs to the power of alpha: 0 is SRTF, 1 is SRSF; the best of `alphas` at each decision.

    Neither end is right for every queue: few wide jobs favour one, many narrow ones the other. Where all jobs fit, the
    last of `alphas` rules. A job whose remaining time is unknown counts with its prediction: its Gittins rank in the
    order, its mean in the look-ahead. `knows`: `predicted`, all jobs do; `nothing`, all do, by their size alone. Raises
    `InputError` without alphas or for one outside 0 to 1.
    """

    alphas: tuple[float, ...] = (0.0, 0.5, 1.0)
    knows: Knows = "exact"

    def __post_init__(self) -> None:
        if not self.alphas or not all(0 <= alpha <= 1 for alpha in self.alphas):
            raise InputError(f"alphas must be numbers from 0 to 1, got {self.alphas!r}")

    def __call__(self, view: View) -> Ranking:
        """The keys of the alpha whose list schedule has the smallest sum of completion times."""
        jobs = view.jobs
        unknown = self.unknown(jobs)
        if not unknown.any():
            keys = self._keys(view, jobs.remaining_s, jobs.remaining_s)
            return Ranking((keys,), length_s=jobs.done_s + jobs.remaining_s)
        left = lives(jobs, alike=self.knows == "nothing")
        rank_s = np.where(unknown, kept(jobs, left.rank_s()), jobs.remaining_s)
        keys = self._keys(view, rank_s, np.where(unknown, left.mean_s(), jobs.remaining_s))
        # A prediction grows with the work done: unless it counts less, a job that is due stops being so once it runs.
        known_s = kept(jobs, jobs.done_s + left.quantile_s(0.5))
        length_s = np.where(unknown, known_s, jobs.done_s + jobs.remaining_s)
        return Ranking((keys,), running_s=np.where(unknown, changes_in_s(left), np.inf), length_s=length_s)

    def unknown(self, jobs: JobTable) -> BoolArray:
        """Whether each job goes by its prediction."""
        return np.isnan(jobs.remaining_s) | (self.knows != "exact")

    def _keys(self, view: View, rank_s: FloatArray, left_s: FloatArray) -> FloatArray:
        """Ranks times GPUs to the power of the alpha that rules; `left_s` is for the look-ahead. Both in seconds."""
        gpus = view.jobs.gpus
        room = int(view.node_gpus.sum())
        keys: FloatArray = rank_s * gpus ** self.alphas[-1]
        if gpus.sum() <= room or len(self.alphas) == 1:
            return keys
        schedule = either(list_schedule, len(gpus) ** 2 * 2e-3)
        best_s = np.inf
        for alpha in self.alphas:
            found: FloatArray = rank_s * gpus**alpha
            sum_s = schedule(np.argsort(found, kind="stable"), gpus, left_s, room)
            if sum_s < best_s * (1 - TIE):
                keys, best_s = found, sum_s
        return keys
