"""Commit checkpoints that a trainer writes in its own format."""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path

from plait.core.errors import PlaitError
from plait.training.attached_job import AttachedJob
from plait.training.state.checkpoint_store import Commit


def barrier() -> None:
    """Wait for all ranks, if there are several."""
    dist = sys.modules.get("torch.distributed")
    if dist is not None and dist.is_available() and dist.is_initialized():
        dist.barrier()


def save(job: AttachedJob, write: Callable[[Path], None]) -> Commit | None:
    """Let every rank `write` into one folder, then rank 0 commits it.

    Returns None on other ranks, and if it failed: then it warns, and the older checkpoint stays.
    """
    begin_s, commit = time.perf_counter(), None
    commits, step = job.checkpointer.commits, job.step
    try:
        commits.check_epoch()
        making = commits.begin(step)
        write(making)
        barrier()
        if job.around.rank == 0:
            commit = commits.commit(making, step, world_size=job.around.world_size)
    except (OSError, RuntimeError, PlaitError) as error:
        warnings.warn(f"plait: no checkpoint of step {step}, an older one stays: {error}", RuntimeWarning, stacklevel=2)
    job.saved(commit, time.perf_counter() - begin_s)
    return commit


def newest(job: AttachedJob) -> Path | None:
    """The folder of the checkpoint to go on from."""
    around = job.around
    found = job.checkpointer.commits.choose(rank=around.rank, world_size=around.world_size)
    return found[0].path if found else None
