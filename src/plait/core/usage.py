"""What has been measured of GPUs and of the jobs on them, as policies see it."""

from __future__ import annotations

from dataclasses import dataclass

from plait.core.arrays import FloatArray, IntArray


@dataclass(frozen=True, slots=True, eq=False)
class Usage:
    """The last figures of GPUs and jobs; NaN where nothing is known.

    `utilisation` (gpus,) is the mean part of the last 10 s in which a GPU was busy, 0 to 1, and `memory_bytes` (gpus,)
    what is in use of its memory, by the number of the GPU in the cluster. `jobs` (n,) are numbers of running jobs,
    ascending; `step_s` (n,) is the mean of a job's last steps in seconds, `peak_bytes` (n,) and `persistent_bytes` (n,)
    the memory it takes on a GPU at most and between steps, `spill_bytes` (n,) what of it lies in host memory.
    """

    utilisation: FloatArray
    memory_bytes: FloatArray
    jobs: IntArray
    step_s: FloatArray
    peak_bytes: FloatArray
    persistent_bytes: FloatArray
    spill_bytes: FloatArray
