"""Jobs that share GPUs where the sum of completion times falls.

plait = Composed("plait", order=ByListSchedule(), group=ByCompletion(), reserve_after_s=BOUND_S)
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from plait.core.arrays import BoolArray, FloatArray, IntArray
from plait.core.compile_policy import either
from plait.core.errors import InputError
from plait.core.policy import View
from plait.grouping.bucket import ClassedBucket, GroupingOptions
from plait.grouping.completion import (
    BUCKET,
    CLASS,
    GPUS,
    KEPT,
    KINDS,
    RUNS,
    SCRATCH,
    SCRATCH_ROWS,
    CompletionPlan,
    V,
    WorthLine,
    construct,
    exchange,
    plan_worth,
    repick,
)
from plait.grouping.interference import MEASURED_INTERFERENCE
from plait.grouping.times import Order, group_times
from plait.policies.interleave import MEMORY_LIMIT, Room, Units, buckets, profiles, running_groups

#: Cost of a restart without a measurement, seconds.
UNKNOWN_RESTART_S = 60.0
#: Rounds of exchanging and picking again at most.
ROUNDS = 4


def progress_values(view: View, room: Room, order: IntArray, future: float) -> FloatArray:
    """Value of a second of progress of each job of `order` for the sum of completion times.

    v(r) = 1 + (1 + future) * behind(r) * gpus(r) / G: its own end comes a second earlier, and the end of each job which
    waits behind it by its part of the G GPUs that it may use. `future` counts jobs that arrive while the queue lasts.
    """
    jobs = view.jobs
    waits = ~room.fits(jobs.gpus, order)
    kinds, gpus = room.of[order], jobs.gpus[order]
    behind = np.zeros((len(room.gpus), len(order)))
    for s in range(len(room.gpus)):
        mine = waits & (kinds == s)
        behind[s] = mine.sum() - np.cumsum(mine)
    meets = (room.inside | room.inside.T).astype(np.float64)
    in_line = (meets @ behind)[kinds, np.arange(len(order))]
    return 1.0 + (1.0 + future) * in_line * gpus / np.maximum(room.gpus[kinds], 1)


@dataclass(frozen=True)
class ByCompletion:
    """Groups of up to `max_jobs` jobs of equal size, formed where the sum of completion times falls.

    turns          best or worst stage order
    interference   slow-down by group size that is expected on top of the ideal schedule
    learn          expect what reports say of pairs of models instead (`grouping.interference`)
    future         jobs that arrive for each that waits, while the queue lasts
    horizon_s      a move of a running job has to earn its restart within this time, seconds

    Jobs that may not be stopped (`View.keeps`) stay on their GPUs, and others join them there. Jobs without a measured
    profile run alone. Memory of GPUs and nodes and declared cores are limits of a group.
    """

    max_jobs: int = 4
    turns: Order = "best"
    idle_slots: bool = True
    interference: tuple[float, ...] = MEASURED_INTERFERENCE
    future: float = 3.0
    horizon_s: float = 3600.0
    learn: bool = True

    def __post_init__(self) -> None:
        if isinstance(self.max_jobs, bool) or self.max_jobs not in (1, 2, 3, 4):
            raise InputError(f"max_jobs must be 1 to 4, one a resource, got {self.max_jobs}")
        if not self.future >= 0 or not self.horizon_s > 0:
            raise InputError(f"future must be >= 0 and horizon_s > 0, got {self.future} and {self.horizon_s}")

    def __call__(self, view: View, order: IntArray) -> Units:
        """Units of the best jobs in `order` (rows of `view.jobs`)."""
        jobs, room = view.jobs, Room.in_view(view)
        bucket = buckets(view, room, self.max_jobs)[order]
        alone = bool((room.asked(jobs.gpus, order) <= room.gpus).all()) and not view.keeps.any
        members = [[rank] for rank in range(len(order))] if alone else self._plan(view, room, order, bucket)
        leads = order[[unit[0] for unit in members]] if members else order[:0]
        companions = {int(order[unit[0]]): tuple(order[unit[1:]].tolist()) for unit in members if len(unit) > 1}
        turns = np.zeros(len(jobs), dtype=np.int64)
        together = [unit for unit in members if len(unit) > 1]
        if together:
            rows = np.array([rank for unit in together for rank in unit])
            taken = profiles(view, order[rows], self.max_jobs)
            padded = np.full((len(together), self.max_jobs), -1, dtype=np.int64)
            at = 0
            for u, unit in enumerate(together):
                padded[u, : len(unit)] = np.arange(at, at + len(unit))
                at += len(unit)
            _, when = group_times(
                taken.stage_s, padded, order=self.turns, idle_slots=self.idle_slots, shares=taken.shares
            )
            turns[order[rows]] = when[padded >= 0]
        place_of = np.empty(len(jobs), dtype=np.int64)
        place_of[order] = np.arange(len(order))
        largest_first = leads[np.lexsort((place_of[leads], -jobs.gpus[leads]))]
        inside = np.zeros(len(jobs), dtype=np.bool_)
        inside[[int(order[rank]) for unit in members for rank in unit]] = True
        return Units(np.concatenate([largest_first, order[~inside[order]]]), len(leads), companions, turns)

    def _plan(self, view: View, room: Room, order: IntArray, bucket: IntArray) -> list[list[int]]:
        """The ranks of each unit, its lead first: the best of four plans."""
        values = progress_values(view, room, order, self.future)
        return best_plan(self._line(view, room, order, bucket, values), room.gpus, room.inside)[0]

    def _line(self, view: View, room: Room, order: IntArray, bucket: IntArray, values: FloatArray) -> WorthLine:
        """The jobs as the kernels take them."""
        jobs, kept = view.jobs, view.keeps.rows[order]
        about = np.zeros((len(order), 6), dtype=np.int64)
        shares = np.flatnonzero(bucket >= 0)
        options = GroupingOptions(
            self.max_jobs, "efficiency", self.turns, self.idle_slots, self.interference, None, MEMORY_LIMIT
        )
        if len(shares):
            taken = profiles(view, order[shares], self.max_jobs, self.learn)
            model = ClassedBucket.of(
                options, taken.stage_s, taken.iteration_s, taken.memory_bytes, taken.shares, taken.costs
            )
            about[shares, CLASS] = model.of_job
            rows, packed = model.rows, model.packed
        else:
            rows, packed = np.zeros((1, 1)), ClassedBucket.of(options, np.ones((1, 4)), np.ones(1), None, None).packed
        about[:, BUCKET], about[:, GPUS], about[:, KINDS] = bucket, jobs.gpus[order], room.of[order]
        runs = np.where(kept, jobs.running_group[order], running_groups(view, order))
        about[:, RUNS] = np.where(bucket >= 0, runs, -1)
        about[:, KEPT] = kept
        restart_s = np.nan_to_num(jobs.restart_s[order], nan=UNKNOWN_RESTART_S)
        stay = np.where(about[:, RUNS] >= 0, values * restart_s / self.horizon_s, 0.0)
        return WorthLine(about, np.column_stack([values, stay]), rows, *packed)


def best_plan(line: WorthLine, gpus: IntArray, inside: BoolArray) -> tuple[list[list[int]], float]:
    """The ranks of each unit, its lead first, and what the plan is worth: the best of four plans.

    Three are built with the price of a GPU for the first job that waits in the plan before, at first in the plan
    without groups; the fourth starts from that plan, so that none is worth less.
    """
    jobs, most = len(line.about), int(line.shape[1])
    work = jobs * 10.0
    build, better, again = either(construct, work), either(exchange, work), either(repick, work)

    def built(price: float, grouped: bool) -> tuple[CompletionPlan, int, float]:
        """The plan, how many units it has, and the price of a GPU for the first that waits."""
        plan = CompletionPlan(
            np.full(jobs, -1, dtype=np.int64),
            np.zeros((jobs, most), dtype=np.int64),
            np.zeros(jobs, dtype=np.int64),
            np.zeros((SCRATCH_ROWS, SCRATCH), dtype=np.int64),
        )
        count = build(line, plan, price, grouped, gpus.copy(), inside)
        return plan, count, _price(line, plan)

    single = built(0.0, False)
    best, units, top, price = single[0], 0, -1.0, single[2]
    for grouped in (True, True, True, False):
        plan, count, _ = built(price, grouped) if grouped else single
        for _ in range(ROUNDS):
            better(line, plan)
            if not again(line, plan, count):
                break
        price = _price(line, plan)
        worth = either(plan_worth, work)(line, plan, count)
        if worth > top:
            best, units, top = plan, count, worth
    return [best.members[unit, : best.size[unit]].tolist() for unit in range(units)], top


def _price(line: WorthLine, plan: CompletionPlan) -> float:
    """Value of a GPU to the first waiting job; 0 if none waits."""
    waits = np.flatnonzero(plan.unit_of < 0)
    return float(line.worth[waits[0], V] / line.about[waits[0], GPUS]) if len(waits) else 0.0
