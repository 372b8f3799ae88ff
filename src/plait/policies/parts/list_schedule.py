"""An order between shortest remaining time and shortest remaining service, chosen by look-ahead."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from plait.core.arrays import FloatArray, IntArray
from plait.core.compile_policy import either
from plait.core.errors import InputError
from plait.core.jit import kernel
from plait.core.policy import View

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
    last of `alphas` rules. Raises `InputError` without alphas or for one outside 0 to 1.
    """

    alphas: tuple[float, ...] = (0.0, 0.5, 1.0)

    def __post_init__(self) -> None:
        if not self.alphas or not all(0 <= alpha <= 1 for alpha in self.alphas):
            raise InputError(f"alphas must be numbers from 0 to 1, got {self.alphas!r}")

    def __call__(self, view: View) -> FloatArray:
        """The keys of the alpha whose list schedule has the smallest sum of completion times."""
        jobs = view.jobs
        room = int(view.node_gpus.sum())
        keys: FloatArray = jobs.remaining_s * jobs.gpus ** self.alphas[-1]
        if jobs.gpus.sum() <= room or len(self.alphas) == 1 or not np.isfinite(jobs.remaining_s).all():
            return keys
        schedule = either(list_schedule, len(jobs) ** 2 * 2e-3)
        best_s = np.inf
        for alpha in self.alphas:
            found: FloatArray = jobs.remaining_s * jobs.gpus**alpha
            sum_s = schedule(np.argsort(found, kind="stable"), jobs.gpus, jobs.remaining_s, room)
            if sum_s < best_s * (1 - TIE):
                keys, best_s = found, sum_s
        return keys
