"""Jobs: the users' requests (`JobSpec`, `JobBatch`) and their present state (`JobStatus`, `JobTable`).

A single job is a frozen object; many jobs are columns. Both have the same content: `batch[i]` is a `JobSpec`,
`table[i]` a `JobStatus`. Jobs have a name (`id`, the user's) and a number (dense, in order of submission), and events,
commands and plans use numbers.

`spec` and `batch` hold requests, `table` the present state. Start at `spec.JobSpec`.
"""

from plait.core.ina_request import InaRequest
from plait.core.jobs.batch import FLOAT_ROW, WHOLE_ROW, JobBatch, placement_skew
from plait.core.jobs.spec import TRANSITIONS, Checkpoints, JobClass, JobSpec, Phase
from plait.core.jobs.table import JobArchive, JobColumn, JobStatus, JobTable, gpu_use, work_done_s

__all__ = [
    "FLOAT_ROW",
    "TRANSITIONS",
    "WHOLE_ROW",
    "Checkpoints",
    "InaRequest",
    "JobArchive",
    "JobBatch",
    "JobClass",
    "JobColumn",
    "JobSpec",
    "JobStatus",
    "JobTable",
    "Phase",
    "gpu_use",
    "placement_skew",
    "work_done_s",
]
