"""Orders by what is predicted of jobs whose durations are not known, from jobs of their kind that ended.

srtf = Composed("srtf", order=ByPrediction())
srsf = Composed("srsf", order=ByPrediction(power=1.0))
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from plait.core.arrays import FloatArray
from plait.core.jobs import JobTable
from plait.core.policy import View
from plait.policies.parts.compose import Ranking
from plait.queueing.kinds import Kinds, Lives

#: A waiting job takes the GPUs of a running one only if its key is below this part of that one's: ranks grow with
#: service, so jobs of one kind would stop each other over and over.
KEEP = 0.7
#: The order changes by itself at most this often, seconds.
LEAST_S = 60.0


def lives(jobs: JobTable) -> Lives:
    """What each job of the table still needs, from what has ended by then."""
    kinds: Kinds = jobs.memo.setdefault("kinds", Kinds())
    kinds.add(*jobs.ended(kinds.ended))
    return kinds.lives(jobs.kinds, jobs.done_s)


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
