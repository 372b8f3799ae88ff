"""Several jobs as threads of one process, each with its own streams, files and end.

    from plait.training.merged import InterleavePlan, run_merged

This is the only door: what a job asks of its process goes through `plait.training.process`, which this package answers
for its threads. `host` is the process that agents start. Start reading at `jobs`.
"""

from plait.training.merged.jobs import InterleavePlan, JobResult, Merged, Peers, run_merged
from plait.training.merged.thread_jobs import Unmergeable

__all__ = ["InterleavePlan", "JobResult", "Merged", "Peers", "Unmergeable", "run_merged"]
