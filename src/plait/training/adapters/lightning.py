"""Lightning: `Trainer(callbacks=[PlaitCallback()])`, and `trainer.fit(..., ckpt_path=callback.checkpoint())`.

Lightning writes its own checkpoints. The training loaders are marked as by `job.wrap_loader`, so that a resumed epoch
continues with the remaining batches; their positions and the random streams are in the callback's state.

With an adaptive loader the batch follows the GPUs of the job, and checkpoints are plait's own:

    plait = AdaptiveCallback(AdaptiveDataLoader(data, 32, max_batch_size=256), epochs=10)
    Trainer(max_epochs=1, callbacks=[plait]).fit(module, plait.batches)
"""

from __future__ import annotations

import warnings
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from plait.core.resources import Resource, skew
from plait.runtime.page import STOP_NOW
from plait.training.adapters import foreign
from plait.training.adapters.foreign import Passes
from plait.training.adaptive import Adaptive, AdaptiveLoader
from plait.training.attached_job import AttachedJob
from plait.training.attachment import attach
from plait.training.loader.loader import wrap
from plait.training.state import random_streams

FILE = "lightning.ckpt"


class PlaitCallback(Callback):
    """Counts steps, marks the GPU stage, saves checkpoints, and stops on request; does nothing outside plait."""

    def __init__(self) -> None:
        job = attach()
        self.job = job if isinstance(job, AttachedJob) else None
        self._put_off = False
        self._loaders: list[Any] = []
        self._places: list[dict[str, Any]] = []
        self._fetcher: Any = None
        if self.job is not None:
            self.job.take_over(0, 0)

    def checkpoint(self) -> str | None:
        """The argument for `trainer.fit(ckpt_path=...)`; None without a checkpoint."""
        found = foreign.newest(self.job) if self.job else None
        return str(found / FILE) if found else None

    def state_dict(self) -> dict[str, Any]:
        """Random streams and positions in the data, for Lightning's checkpoint."""
        if self.job is None:
            return {}
        # Of data whose length it does not know Lightning fetches one batch ahead, to see the last one coming.
        ahead = len(getattr(self._fetcher, "batches", ()))
        return {"streams": random_streams.capture(), "loaders": [loader.state_dict(ahead) for loader in self._loaders]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Keep the state until the loaders exist and everything before the first batch has drawn."""
        if self.job is not None and "streams" in state:
            self._places = state["loaders"]
            self.job.kept.found({"plait": {"step": 0}, "states": {}, "streams": state["streams"]})

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Prevent Lightning from restoring the loaders before they are wrapped."""
        checkpoint.get("loops", {}).get("fit_loop", {}).get("state_dict", {}).pop("combined_loader", None)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Count on from Lightning's step."""
        if self.job is None:
            return
        total = trainer.estimated_stepping_batches
        self.job.take_over(trainer.global_step, total if 0 < total < float("inf") else 0)
        self.job.boundary.stop.listen(chain=False)  # Lightning's own handler ends it as failed, without a checkpoint
        self._mark_loaders(self.job, trainer)
        self.job.page.skew = skew(p.numel() * p.element_size() for p in pl_module.parameters() if p.requires_grad)

    def _mark_loaders(self, job: AttachedJob, trainer: Trainer) -> None:
        """Wrap Lightning's loaders, after it has added its own samplers."""
        loop = trainer.fit_loop
        combined, fetcher = getattr(loop, "_combined_loader", None), getattr(loop, "_data_fetcher", None)
        if combined is None or fetcher is None:
            warnings.warn("plait: this Lightning hides its loaders; a resumed epoch has a new order", stacklevel=2)
            return
        self._loaders = [wrap(job, loader, train=True) for loader in combined.flattened]
        combined.flattened, self._fetcher = self._loaders, fetcher
        for loader, place in zip(self._loaders, self._places, strict=False):
            loader.load_state_dict(place)
            for sampler in (loader.sampler, getattr(loader.batch_sampler, "sampler", None)):
                if (set_epoch := getattr(sampler, "set_epoch", None)) is not None:
                    set_epoch(trainer.current_epoch)
        self._places = []
        fetcher.setup(combined)
        iter(fetcher)  # Lightning has created its iterator already
        job.kept.restore_streams()

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        if self.job is None:
            return
        self.job.stages.enter(Resource.GPU)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """End the GPU stage, and an iteration if the optimizer has stepped."""
        job = self.job
        if job is None:
            return
        job.stages.leave(Resource.GPU)
        if trainer.global_step <= job.step:  # a part of an accumulated step
            return
        job.count()
        job.step = trainer.global_step
        stop, save = job.boundary.decide()
        if stop == STOP_NOW:
            job.leave()
        self._put_off = bool(stop or save) and not self._put_off and _validates_next(trainer)
        if self._put_off:  # after a resume from here Lightning would not validate; save at the next step
            job.settle()
            return
        if stop or save:
            foreign.save(job, lambda making: trainer.save_checkpoint(making / FILE))
        if stop:
            job.leave()
        job.settle()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Close all stages, so that no job waits for one that failed."""
        if self.job is not None:
            self.job.stages.close_all()


def _validates_next(trainer: Trainer) -> bool:
    """Whether the epoch's end or a validation follows this batch."""
    loop = trainer.fit_loop
    check = getattr(loop.epoch_loop, "_should_check_val_fx", None)
    return trainer.is_last_batch or (check is not None and bool(check(getattr(loop, "_data_fetcher", None))))


class _Sized(Passes):
    """Of a loader without a length Lightning fetches one batch ahead, before the step of the last one is made."""

    def __len__(self) -> int:
        return 2**31


class AdaptiveCallback(Callback):
    """Lets batch and learning rate follow the job, for the progress of so many epochs, all in one of Lightning's.

    Validate by steps (`val_check_interval`). One optimizer, with automatic optimization; leave its scheduler out of
    `configure_optimizers` if it goes by steps, and give it as an option: `scheduler=function of the optimizer`.
    """

    def __init__(self, loader: AdaptiveLoader, epochs: float, *, scheduler: Any = None, **options: Any) -> None:
        """`options`: those of `Adaptive`."""
        self.batches = _Sized(loader, epochs)
        self._scheduler, self._options = scheduler, options
        #: Once training has begun.
        self.adaptive: Adaptive | None = None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Adapt the model as Lightning has wrapped it."""
        (optimizer,) = trainer.optimizers
        model = trainer.model if trainer.world_size > 1 else pl_module
        if self._scheduler is not None:
            self._options["scheduler"] = self._scheduler(optimizer)
        job = attach()
        if isinstance(job, AttachedJob):
            job.boundary.stop.listen(chain=False)  # Lightning's own handler ends it as failed, without a checkpoint
        self.adaptive = Adaptive(job, model, optimizer, self.batches.loader, **self._options)
