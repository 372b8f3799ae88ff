"""Inside the training process: stages, gates, profiles, checkpoints. Nothing here imports torch until it is used.

from plait.training import attach

job = attach(model=model, optimizer=optimizer)     # a job that does nothing outside plait
loader = job.wrap_loader(loader)
for epoch in job.epochs(10):                       # goes on where the newest checkpoint ends
    for batch in loader:
        ...                                        # as ever
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from plait.core.resources import Resource
    from plait.training.attachment import attach
    from plait.training.job import AttachedJob
    from plait.training.noop_job import Job

__all__ = ["AttachedJob", "Job", "Resource", "attach"]

_HOMES = {
    "AttachedJob": "plait.training.job",
    "Job": "plait.training.noop_job",
    "Resource": "plait.core.resources",
    "attach": "plait.training.attachment",
}


def __getattr__(name: str) -> object:
    """Load a public name when it is first asked for: every Python process of a job passes here."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
