"""Lightning: `Trainer(callbacks=[PlaitCallback()])`, and `trainer.fit(..., ckpt_path=callback.checkpoint())`.

Lightning writes its own checkpoint; random streams go with the callback's state. Lightning itself goes back to a place
within an epoch only for loaders that keep it (torchdata's StatefulDataLoader); with an ordinary DataLoader a resumed
epoch sees its data in a new order.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from plait.core.resources import Resource
from plait.training import streams
from plait.training.adapters import foreign
from plait.training.job import AttachedJob, attach
from plait.training.page import STOP_NOW
from plait.training.profiler import skew

FILE = "lightning.ckpt"


class PlaitCallback(Callback):
    """Counts steps, marks the GPU stage, makes checkpoints, stops when asked. Nothing outside plait."""

    def __init__(self) -> None:
        """For one Trainer."""
        job = attach()
        self.job = job if isinstance(job, AttachedJob) else None
        self._streams: dict[str, Any] | None = None

    def checkpoint(self) -> str | None:
        """What to give `trainer.fit(ckpt_path=...)`; None at the beginning."""
        found = foreign.newest(self.job) if self.job else None
        return str(found / FILE) if found else None

    def state_dict(self) -> dict[str, Any]:
        """The random streams, for Lightning's checkpoint."""
        return {"streams": streams.capture()} if self.job is not None else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Keep them until the first batch: what comes before may draw."""
        self._streams = state.get("streams")

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Take over the counting from where Lightning is."""
        if self.job is None:
            return
        total = trainer.estimated_stepping_batches
        self.job.take_over(trainer.global_step, total if 0 < total < float("inf") else 0)
        self.job.page.skew = skew(p.numel() * p.element_size() for p in pl_module.parameters() if p.requires_grad)

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """A batch is there: the GPU stage begins."""
        if self.job is None:
            return
        if self._streams is not None:
            streams.restore(self._streams)
            self._streams = None
        self.job.stages.enter(Resource.GPU)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """The stage ends; if the optimizer has stepped, so does an iteration."""
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
        if stop or save:
            foreign.save(job, lambda making: trainer.save_checkpoint(_in(making)))
        if stop:
            job.leave()
        job.settle()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Nobody may wait for a stage that ended with an error."""
        if self.job is not None:
            self.job.stages.close_all()


def _in(folder: Path) -> Path:
    return folder / FILE
