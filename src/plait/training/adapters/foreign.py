"""Commit checkpoints that a trainer writes in its own format, and adapt its batch.

With an adaptive loader checkpoints are plait's own: a trainer begins again after a restart, and the loader continues.
"""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from plait.core.errors import PlaitError
from plait.training.adaptive import AdaptiveLoader
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


class Passes:
    """All passes of an adaptive loader as one, until the progress of so many epochs at the initial batch is made."""

    def __init__(
        self, loader: AdaptiveLoader, epochs: float, place: Callable[[Any], Any] = lambda batch: batch
    ) -> None:
        """`place` moves a batch to the device of the trainer."""
        self.loader, self.epochs, self._place = loader, epochs, place

    @property
    def iterations(self) -> int:
        """Iterations at the initial batch, for which schedulers are made."""
        return round(self.epochs * self.loader.progress.an_epoch)

    def __iter__(self) -> Iterator[Any]:
        for _ in self.loader.remaining_epochs(self.epochs):
            for batch in self.loader:
                yield self._place(batch)


class Followed:
    """A scheduler that `Adaptive` steps by progress; the trainer's own calls of its `step` do nothing."""

    def __init__(self, scheduler: Any) -> None:
        self.step, self.load_state_dict = scheduler.step, scheduler.load_state_dict
        self._scheduler = scheduler
        scheduler.step = lambda *_: None

    def state_dict(self) -> dict[str, Any]:
        """Of the scheduler, without the function that its attribute `step` is now."""
        return {name: value for name, value in self._scheduler.state_dict().items() if name != "step"}
