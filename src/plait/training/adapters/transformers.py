"""Hugging Face Trainer: `callbacks=[PlaitCallback()]`, and `resume_from_checkpoint=callback.checkpoint()`.

The Trainer writes its own checkpoints (model, optimizer, scheduler, random streams, position in the data); plait
decides when, and moves the finished folder to the job's checkpoints.

With `adapt(trainer, max_batch_size=256)` in their place the batch follows the GPUs of the job:

    trainer = Trainer(model=model, args=arguments, train_dataset=data)
    adapt(trainer, max_batch_size=256, local_batch=(4, 32), accumulation=True)
    trainer.train()
"""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from plait.core.errors import InputError
from plait.core.resources import Resource, skew
from plait.runtime.page import STOP_NOW
from plait.training.adapters import foreign
from plait.training.adapters.foreign import Followed, Passes
from plait.training.adaptive import Adaptive, AdaptiveDataLoader
from plait.training.attached_job import AttachedJob
from plait.training.attachment import attach


class PlaitCallback(TrainerCallback):  # type: ignore[misc, unused-ignore]
    """Counts steps, marks the GPU stage, requests checkpoints, and stops on request; does nothing outside plait."""

    def __init__(self) -> None:
        job = attach()
        self.job = job if isinstance(job, AttachedJob) else None
        self._stopping = False

    def checkpoint(self) -> str | None:
        """The argument for `trainer.train(resume_from_checkpoint=...)`; None without a checkpoint."""
        found = foreign.newest(self.job) if self.job else None
        return str(found) if found else None

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Count on from the Trainer's step."""
        if self.job is None:
            return
        self.job.take_over(state.global_step, state.max_steps)
        if (model := kwargs.get("model")) is not None:
            self.job.page.skew = skew(p.numel() * p.element_size() for p in model.parameters() if p.requires_grad)

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.job is not None and not self.job.stages.is_open(Resource.GPU):
            self.job.stages.enter(Resource.GPU)

    def on_substep_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Yield to other jobs after a part of an accumulated step."""
        if self.job is not None:
            self.job.yield_point()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        """Count an iteration; request a checkpoint, or stop."""
        job = self.job
        if job is None:
            return control
        job.stages.leave(Resource.GPU)
        job.count()
        stop, save = job.boundary.decide()
        if stop == STOP_NOW:
            job.leave()
        self._stopping = bool(stop)
        control.should_save = control.should_save or save or self._stopping
        job.settle()
        return control

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Commit the checkpoint that the Trainer has written, and end if a stop was requested."""
        job = self.job
        if job is None:
            return
        written = Path(str(args.output_dir)) / f"checkpoint-{state.global_step}"
        begin_s = time.perf_counter()
        foreign.barrier()  # other ranks may still be writing

        def take(making: Path) -> None:
            if job.around.rank == 0:
                shutil.copytree(written, making, dirs_exist_ok=True, copy_function=shutil.move)
                shutil.rmtree(written, ignore_errors=True)

        foreign.save(job, take)
        job.page.blocking_s += time.perf_counter() - begin_s
        if self._stopping:
            job.leave()


class _Adapting(TrainerCallback):  # type: ignore[misc, unused-ignore]
    def __init__(self, trainer: Any, passes: Passes, options: dict[str, Any]) -> None:
        self._trainer, self._passes, self._options = trainer, passes, options

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Adapt the model as it is wrapped, and the optimizer within Accelerate's."""
        trainer = self._trainer
        optimizer = getattr(trainer.optimizer, "optimizer", trainer.optimizer)
        scheduler = Followed(trainer.lr_scheduler)
        scaler = getattr(trainer.accelerator, "scaler", None)
        trainer.adaptive = Adaptive(
            attach(), trainer.model_wrapped, optimizer, self._passes.loader,
            scheduler=scheduler, scaler=scaler, **self._options,
        )  # fmt: skip

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        """Stop at the progress of all epochs, before the Trainer looks for another batch."""
        control.should_training_stop = self._passes.loader.progress.reached
        return control


def adapt(trainer: Any, *, options: dict[str, Any] | None = None, **bounds: Any) -> None:
    """Let the batch and learning rate of a `Trainer` follow its job, for the progress of `num_train_epochs`.

    The initial batch is that of the arguments, all ranks and accumulated steps together. `bounds`: those of
    `AdaptiveDataLoader`; `options`: those of `Adaptive`. After `train` has begun, `trainer.adaptive` has the figures.
    Raises `InputError` for a trainer that counts steps (`max_steps`).
    """
    args = trainer.args
    if args.max_steps > 0:
        raise InputError(
            f"adapt(Trainer): max_steps={args.max_steps} counts steps, which differ in size; give num_train_epochs"
        )
    batch = args.train_batch_size * args.world_size * args.gradient_accumulation_steps
    args.gradient_accumulation_steps, args.max_steps, args.save_strategy = 1, 2**31, "no"
    trainer.accelerator.gradient_accumulation_steps = 1
    loader = AdaptiveDataLoader(
        trainer.train_dataset, batch, shuffle=True, seed=args.seed, collate_fn=trainer.data_collator,
        num_workers=args.dataloader_num_workers, pin_memory=args.dataloader_pin_memory and args.device.type == "cuda",
        **bounds,
    )  # fmt: skip
    passes = Passes(loader, args.num_train_epochs)
    create = trainer.create_scheduler
    trainer.create_scheduler = lambda num_training_steps, *rest: create(passes.iterations, *rest)
    trainer.get_train_dataloader = lambda: passes
    trainer.add_callback(_Adapting(trainer, passes, options or {}))
