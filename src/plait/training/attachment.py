"""Attach a process to its job: by `attach`, or at the first optimizer step of a script that does not call it.

Outside plait `attach` gives a `Job` whose methods do nothing, so a script runs unchanged anywhere. Under plait it gives
the one `AttachedJob` of the process.
"""

from __future__ import annotations

import os
from typing import Any

from plait.runtime.page import Page
from plait.training.attached_job import AttachedJob
from plait.training.environment import Environment, claim
from plait.training.job import Job
from plait.training.process import here
from plait.training.torch_watch import watch_ddp, watch_torch


def current() -> AttachedJob | None:
    """The job of this process, or of this thread where several share it; none in forked children."""
    job: AttachedJob | None = here().job
    return job if job is not None and job._pid == os.getpid() else None


def attach(*, seed: int = 0, **stateful: Any) -> Job:
    """The job of this process; outside plait one that does nothing. `stateful` as for `Job.register_state`.

        job = attach(model=model, optimizer=optimizer)       # torch
        job = attach(state=state)                            # anything else: a dict that the loop reads and writes
        for step in job.steps(1000):
            ...

    Raises `InputError` for state that cannot be saved. If another process represents the rank already (a script that
    starts its training several times), the job does nothing either. In a process that several jobs share, it is the
    job of the thread.
    """
    job = attach_quietly(seed=seed)
    job._seed = seed
    job.register_state(**stateful)
    if isinstance(job, AttachedJob):
        job.advice.begin()
    return job


def attach_quietly(*, seed: int = 0) -> Job:
    """Attach a script that has not called `attach`; gives it no advice."""
    job: Job | None = current()
    if job is None:
        around = Environment.of(os.environ)
        lock_fd = claim(around.run_dir) if around.run_dir is not None and around.page_file.exists() else None
        if lock_fd is None:
            return Job(seed=seed)
        job = AttachedJob(around, Page.open(around.page_file), seed=seed)
        job.process.attached(job, lock_fd)
        watch_torch(optimizer_stepped)
        watch_ddp()
        job.settle()  # a guest waits for its turn
    return job


def optimizer_stepped(optimizer: Any, *_: object) -> None:
    """After every optimizer step of the process; the first one attaches a script that has not called `attach`."""
    job = here().job
    if job is None or not job.compute.glances:
        job = _job()
    if job is not None:
        job.optimizer_stepped(optimizer)


def optimizer_made(optimizer: Any) -> None:
    """A guest has made an optimizer; the first one attaches a script that has not called `attach`."""
    job = _job()
    if job is not None:
        job.shared.trains(optimizer)


def _job() -> AttachedJob | None:
    job = current()
    if job is None and here().looks_first():  # else this process has no job
        made = attach_quietly()
        job = made if isinstance(made, AttachedJob) else None
    return job
