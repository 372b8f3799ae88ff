"""Inside the training process: stages, gates, profiles, checkpoints. Nothing here imports torch until it is used.

from plait.training import attach

job = attach(model=model, optimizer=optimizer)     # a job that does nothing outside plait
loader = job.wrap_loader(loader)
for epoch in job.epochs(10):                       # continues from the newest checkpoint
    for batch in loader:
        ...                                        # the usual loop
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from plait.core.resources import Resource
    from plait.training.attached_job import AttachedJob
    from plait.training.attachment import attach
    from plait.training.collectives.ina_hook import ina, ina_allreduce_hook
    from plait.training.job import Job

__all__ = ["AttachedJob", "Job", "Resource", "attach", "ina", "ina_allreduce_hook"]

_HOMES = {
    "AttachedJob": "plait.training.attached_job",
    "Job": "plait.training.job",
    "Resource": "plait.core.resources",
    "attach": "plait.training.attachment",
    "ina": "plait.training.collectives.ina_hook",
    "ina_allreduce_hook": "plait.training.collectives.ina_hook",
}


def __getattr__(name: str) -> object:
    """Load a public name when it is first asked for: every Python process of a job passes here."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
