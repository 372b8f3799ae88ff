"""Accelerate: one call after `accelerator.prepare`.

    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    job, loader = attach(accelerator, loader, model=model, optimizer=optimizer)
    for epoch in job.epochs(10):
        for batch in loader: ...

The returned loader replaces the prepared one: it yields the same batches on the same device, with marks, and after a
resume the remaining ones. Accelerate's own loader would fetch one batch ahead of every checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from accelerate.data_loader import DataLoaderShard
from accelerate.utils import send_to_device, synchronize_rng_states
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset

from plait.training import attachment
from plait.training.job import Job


def attach(accelerator: Any, loader: Any, *, model: Any, optimizer: Any, **stateful: Any) -> tuple[Job, Any]:
    """The job and the marked loader. `stateful`: schedulers and what else belongs into checkpoints."""
    scaler = {"scaler": accelerator.scaler} if getattr(accelerator, "scaler", None) is not None else {}
    job = attachment.attach()
    if isinstance(model, DistributedDataParallel):
        job.wrap_ddp(model)
    else:
        stateful["model"] = accelerator.unwrap_model(model)
    job.register_state(optimizer=optimizer, **scaler, **stateful)
    if not job.attached:
        return job, loader
    base = getattr(loader, "base_dataloader", None)
    # A loader that dispatches batches from rank 0 does more around its own loader than we do.
    known = isinstance(loader, DataLoaderShard)
    if not known or not isinstance(base, DataLoader) or isinstance(base.dataset, IterableDataset):
        return job, job.wrap_loader(loader)
    return job, PreparedLoader(job, loader, job.wrap_loader(base))


class PreparedLoader:
    """Does what Accelerate's loader does with each batch, around a loader of plait."""

    def __init__(self, job: Job, prepared: Any, marked: Any) -> None:
        """`prepared`: the loader from Accelerate; `marked`: the wrapped loader inside it."""
        self._job, self._prepared, self._marked = job, prepared, marked

    def __len__(self) -> int:
        return len(self._marked)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_prepared"], name)

    def __iter__(self) -> Iterator[Any]:
        """Yield the batches on the accelerator's device; announces the last one, at which accumulation ends."""
        prepared = self._prepared
        if prepared.rng_types is not None:
            synchronize_rng_states(prepared.rng_types, prepared.synchronized_generator)
        self._job.resume()
        prepared.iteration = self._marked.next_pass
        prepared.set_epoch(prepared.iteration)
        batches = iter(self._marked)
        prepared.begin()
        try:
            for batch in batches:
                prepared.end_of_dataloader = self._marked.done >= len(self)
                if prepared.device is not None:
                    batch = send_to_device(batch, prepared.device, non_blocking=prepared._non_blocking)
                yield batch
        finally:
            prepared.end()
