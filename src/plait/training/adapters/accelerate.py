"""Accelerate: one call after `accelerator.prepare`.

    accelerator = Accelerator(dataloader_config=DataLoaderConfiguration(use_stateful_dataloader=True))
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    job, loader = attach(accelerator, loader, model=model, optimizer=optimizer)
    for epoch in job.epochs(10):
        for batch in loader: ...

The state of the loader is Accelerate's own, which it keeps if it uses torchdata's StatefulDataLoader.
"""

from __future__ import annotations

from typing import Any

from torch.nn.parallel import DistributedDataParallel

from plait.training import job as jobs
from plait.training.outside import Job


def attach(accelerator: Any, loader: Any, *, model: Any, optimizer: Any, **stateful: Any) -> tuple[Job, Any]:
    """The job and the marked loader. `stateful`: schedulers and what else belongs into checkpoints."""
    scaler = {"scaler": accelerator.scaler} if getattr(accelerator, "scaler", None) is not None else {}
    job = jobs.attach()
    if isinstance(model, DistributedDataParallel):
        job.wrap_ddp(model)
    else:
        stateful["model"] = accelerator.unwrap_model(model)
    job.register_state(optimizer=optimizer, **scaler, **stateful)
    return job, job.wrap_loader(loader)
