"""Orders: one key a job, smaller first.

Each is of a kind of `plait.core.jobs.keys`, where its expression is. An order may also be any function of a view.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from plait.core.arrays import FloatArray
from plait.core.jobs import keys
from plait.core.policy import View


@dataclass(frozen=True, slots=True)
class OrderKey:
    """An order by a key of `kind` (`plait.core.jobs.keys`), of the unit that the kind has."""

    kind: int

    def __call__(self, view: View) -> FloatArray:
        """The key of each row of `view.jobs`."""
        jobs = view.jobs
        c, out = jobs.columns, np.empty(len(jobs))
        keys.fill_keys(
            self.kind, jobs.number, c["gpus"], c["iterations"], c["iterations_done"], c["iteration_s"], c["run_s"],
            c["attained_gpu_s"], out,
        )  # fmt: skip
        return out


#: First come, first served: numbers are in order of submission.
by_arrival = OrderKey(keys.ARRIVAL)
#: Shortest job first: whole solo run time, seconds.
by_duration = OrderKey(keys.DURATION)
#: Shortest remaining time first, seconds.
by_remaining_time = OrderKey(keys.REMAINING)
#: Shortest remaining service first: remaining time times GPUs (Tiresias; Muri-S), GPU-seconds.
by_remaining_service = OrderKey(keys.REMAINING_SERVICE)
#: Smallest gang first: GPUs of each job.
by_gpus = OrderKey(keys.SIZE)
#: Least attained service in one dimension: seconds on GPUs so far (Nuyens and Wierman 2008).
by_run_time = OrderKey(keys.RUN)
#: Least attained service in two dimensions: GPU-seconds so far (Tiresias, section 3; Muri-L).
by_attained_service = OrderKey(keys.ATTAINED)
