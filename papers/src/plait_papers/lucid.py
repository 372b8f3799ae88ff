"""Lucid (Hu et al., ASPLOS'23) as a policy: the published description with plait's predictions.

Jobs start in order of GPUs times predicted seconds, what fits may go ahead, and none is stopped. While jobs would wait,
each first looks for a mate ("indolent packing"): a running job without one, of equal GPUs, whose memory leaves room,
which has at least half of its predicted service left, and whose sharing score with its own is at most 2. A job is
tiny (0), medium (1) or jumbo (2). Lucid finds that by a decision tree over measurements of a profiling stage; here it
follows from the part of time in which the job keeps its GPUs busy alone, with bounds that agree with the labels of
62 of the 66 jobs in the released measurements. plait has profiles of its own instead of that stage, so short jobs do
not end in it. Lucid turns packing off where it predicts little work; here it is off while all jobs fit alone. Virtual
clusters are left to quotas.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from plait.core.arrays import BoolArray, FloatArray, IntArray
from plait.core.jobs import JobTable
from plait.core.plan import Gate
from plait.core.policy import View
from plait.core.resources import Resource
from plait.policies.catalog import Row
from plait.policies.compose import Composed
from plait.policies.interleave import Room, Units, room_taken, units_of
from plait.policies.predicted import ByPrediction, lives

#: A job is medium from this part of busy time on, and jumbo from the second one on.
MEDIUM, JUMBO = 0.25, 0.53
#: Sharing scores of two jobs together at most; GPUs of a job that is packed at most (a node of the released simulator).
MOST_SCORE, MOST_GPUS = 2, 8


def scores(jobs: JobTable) -> IntArray:
    """The sharing score of each job; 3, which goes with none, without a profile."""
    busy = jobs.stage_s[:, Resource.GPU] / jobs.iteration_s
    return np.where(np.isnan(busy), MOST_SCORE + 1, np.searchsorted([MEDIUM, JUMBO], busy, side="right"))


@dataclass(frozen=True)
class IndolentPacking:
    """Waiting jobs join running ones of equal size that they hardly slow down; running groups stay."""

    def __call__(self, view: View, order: IntArray, _due: BoolArray | None = None) -> Units:
        """Units of running jobs with those that join them, then the waiting jobs alone in `order`."""
        jobs, room = view.jobs, Room.in_view(view)
        units = units_of(view, order[jobs.running[order]])
        waiting = order[~jobs.running[order]].tolist()
        if (room.asked(jobs.gpus, order) > room.gpus).any():
            left, score = lives(jobs).mean_s() * jobs.gpus, scores(jobs)
            waiting = [row for row in waiting if not self._joins(view, row, units, left, score)]
        companions = {unit[0]: tuple(unit[1:]) for unit in units if len(unit) > 1}
        rows = np.array([unit[0] for unit in units] + waiting, dtype=np.int64)
        return Units(rows, len(units), companions, np.zeros(len(jobs), dtype=np.int64), Gate.NONE)

    def _joins(self, view: View, row: int, units: list[list[int]], left: FloatArray, score: IntArray) -> bool:
        """Add a waiting job to the first unit that may take it; return whether there is one."""
        jobs, room = view.jobs, Room.in_view(view)
        of_gpu, of_node = room_taken(view)
        taken = np.maximum(of_gpu, of_node.max(axis=1))
        for unit in units:
            host = unit[0]
            alike = len(unit) == 1 and jobs.gpus[host] == jobs.gpus[row] and room.of[host] == room.of[row]
            fits = taken[host] + taken[row] <= 1.0 and score[host] + score[row] <= MOST_SCORE
            if alike and fits and jobs.gpus[row] <= MOST_GPUS and left[row] <= 2 * left[host]:
                unit.append(row)
                return True
        return False


def lucid() -> Composed:
    """Smallest predicted GPU time first, packed in pairs; a job that runs stays where it is."""
    order = ByPrediction(power=1.0, mean=True)
    return Composed("lucid", order=order, group=IndolentPacking(), min_run_s=math.inf)


LUCID = Row(
    "smallest predicted GPU time first, packed in pairs by sharing score, not preemptive; published description",
    lucid, "predicted durations, stage profiles", ("lucid",), preempts=False,
)  # fmt: skip
