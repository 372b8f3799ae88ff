"""Accelerate: one call after `accelerator.prepare`.

    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    job, loader = attach(accelerator, loader, model=model, optimizer=optimizer)
    for epoch in job.epochs(10):
        for batch in loader: ...

The returned loader replaces the prepared one: it yields the same batches on the same device, with marks, and after a
resume the remaining ones. Accelerate's own loader would fetch one batch ahead of every checkpoint.

With an adaptive loader, which is not prepared, the batch follows the GPUs of the job:

    model, optimizer = accelerator.prepare(model, optimizer)
    adaptive, batches = adapt(accelerator, loader, model=model, optimizer=optimizer, epochs=10)
    for batch in batches: ...                                   # backward, step, zero_grad for each batch
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from accelerate.data_loader import DataLoaderShard
from accelerate.utils import send_to_device, synchronize_rng_states
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset

from plait.core.errors import InputError
from plait.training import attachment
from plait.training.adapters.foreign import Passes
from plait.training.adaptive import Adaptive, AdaptiveLoader
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


def adapt(
    accelerator: Any, loader: AdaptiveLoader, *, model: Any, optimizer: Any, epochs: float, **options: Any
) -> tuple[Adaptive, Passes]:
    """Adapt prepared `model` and `optimizer`; also returns the batches of all passes, on the accelerator's device.

    They end at the progress of `epochs` at the initial batch. `options`: those of `Adaptive`; a scheduler among them is
    not prepared. Raises `InputError` if Accelerate accumulates gradients itself.
    """
    if accelerator.gradient_accumulation_steps > 1:
        raise InputError(
            f"adapt(Accelerator(gradient_accumulation_steps={accelerator.gradient_accumulation_steps})): leave it out; "
            "an adaptive loader with accumulation=True decides how many batches make a step"
        )
    scaler = getattr(accelerator, "scaler", None)
    inner = getattr(optimizer, "optimizer", optimizer)
    adaptive = Adaptive(attachment.attach(), model, inner, loader, scaler=scaler, **options)
    return adaptive, Passes(loader, epochs, lambda batch: send_to_device(batch, accelerator.device))


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
