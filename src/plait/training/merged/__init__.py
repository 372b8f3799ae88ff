"""Run several jobs as threads of one process, each with its own random streams, output and end.

    from plait.training.merged import InterleavePlan, run_merged

Use only what this module exports. Elsewhere a job reaches its process through `plait.training.process`, for which this
package returns the job of the current thread. Agents start the process `host`. Start reading at `jobs`.
"""

from plait.training.merged.jobs import InterleavePlan, JobResult, Merged, Peers, run_merged
from plait.training.merged.thread_jobs import Unmergeable

__all__ = ["InterleavePlan", "JobResult", "Merged", "Peers", "Unmergeable", "run_merged"]
