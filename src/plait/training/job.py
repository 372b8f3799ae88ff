"""The job of a script outside plait: its methods do nothing, and the script runs as if without plait."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from operator import index
from typing import TYPE_CHECKING, Any, Protocol, SupportsIndex

from plait.core.errors import InputError
from plait.core.resources import Resource
from plait.training.process import torch_cuda

if TYPE_CHECKING:
    from plait.training.environment import Environment
    from plait.training.iterations import Iterations
    from plait.training.stages import GpuStage, Stages
    from plait.training.state.checkpoint import CheckpointHandle
    from plait.training.state.state_registry import StateRegistry
    from plait.training.stopping import Boundary


def whole_number(total: object, loop: str) -> int:
    """Number of steps of `job.<loop>(total)`; raises `InputError` unless `total` is a whole number >= 0."""
    if isinstance(total, SupportsIndex) and not isinstance(total, bool) and (number := index(total)) >= 0:
        return number
    plain = isinstance(total, int | float | str)
    raise InputError(
        f"job.{loop} takes how many {loop} the whole training has, as in `for {loop[:-1]} in job.{loop}(100):`; got "
        + (repr(total) if plain else f"a {type(total).__name__}; for batches: `for batch in job.wrap_loader(loader):`")
    )


class Job:
    """A job outside plait: every method does nothing, or what a plain script does."""

    def __init__(self, *, seed: int = 0) -> None:
        """`seed`: initial seed of `rng`."""
        self._seed = seed
        self._rng: Any = None

    @property
    def attached(self) -> bool:
        return False

    @property
    def rng(self) -> Any:
        """A torch generator of the job, seeded by `attach(seed=...)`; checkpoints contain its state."""
        if self._rng is None:
            import torch

            self._rng = torch.Generator().manual_seed(self._seed)
        return self._rng

    @property
    def process_group(self) -> Any:
        """The process group of all ranks: torch.distributed's default one, or that of a merged job with peers.

        None without an initialised process group.
        """
        dist = sys.modules.get("torch.distributed")
        return dist.group.WORLD if dist is not None and dist.is_available() and dist.is_initialized() else None

    @property
    def stream(self) -> Any:
        """The CUDA stream of the job (a merged job has its own); None if the process uses no GPU."""
        cuda = torch_cuda()
        return None if cuda is None else cuda.current_stream()

    def stage(self, resource: Resource, *, sync: bool = False) -> AbstractContextManager[None]:
        """`with job.stage(Resource.GPU):` marks a stage and waits for its turn. `sync`: wait for the GPU at the end."""
        return nullcontext()

    def wrap_loader(self, loader: Any, *, train: bool = True) -> Any:
        """Mark the storage and CPU stages of `loader`, and save the position of a training loader in checkpoints.

        An ordinary DataLoader resumes with exactly the remaining batches, also in the middle of an epoch; torchdata's
        StatefulDataLoader keeps its own state. `train=False` is for evaluation: only the stages are marked.
        """
        return loader

    def batches(self, loader: Any) -> Iterator[tuple[int, Any]]:
        """Yield (number in the pass, batch) of `loader`: `for i, batch in job.batches(loader):`.

        As `enumerate(loader)`; after a resume in the middle of a pass, both go on with the number of the next batch. A
        loader that is not wrapped is wrapped as by `wrap_loader`, each one once.
        """
        return enumerate(loader)

    def wrap_optimizer(self, optimizer: Any) -> Any:
        """Count the steps of `optimizer`, end the GPU stage with them, and save its state; returns it unchanged."""
        return optimizer

    def wrap_ddp(self, model: Any, *, inner: Any = None) -> Any:
        """Mark the network stage of the DDP `model`; returns it. `inner`: the script's own communication hook.

        DDP accepts one hook only, so a script with its own passes it here instead of registering it.
        """
        if inner is not None:
            model.register_comm_hook(None, inner)
        return model

    def register_state(self, **stateful: Any) -> None:
        """Save these values in checkpoints, by name.

        They are objects with `state_dict` and `load_state_dict`, or dicts, lists, sets, NumPy arrays, tensors, random
        generators and picklable objects. The latter are restored in place, so the loop must change the object itself.
        Optimizers are also wrapped as by `wrap_optimizer`. Raises `InputError` for values that cannot be saved.
        """

    def resume(self) -> int:
        """Restore the newest checkpoint, if there is one; returns the number of the next step, 0 at the beginning.

        Values that are registered later are restored when they are registered.
        """
        return 0

    def steps(self, total: int) -> Iterable[int]:
        """Yield the remaining steps of `total`, after a resume: `for step in job.steps(1000):`.

        Without steps of a torch optimizer, each step of this loop is an iteration. Raises `InputError` if `total` is
        not a number of steps but, for example, a loader, which belongs to `wrap_loader`.
        """
        return range(whole_number(total, "steps"))

    def epochs(self, total: int) -> Iterable[int]:
        """Yield the remaining epochs of `total`, after a resume: `for epoch in job.epochs(10):`.

        The first one may have begun before the resume. Raises `InputError` if `total` is not a number of epochs.
        """
        return range(whole_number(total, "epochs"))

    def yield_point(self) -> None:
        """Mark a moment within a long stage at which other jobs may use the resource first."""

    @property
    def micro_batches(self) -> int:
        """Into how many micro-batches the next step should be split, because memory is short; 1 outside plait."""
        return 1

    def step_boundary(self, *, work: float = 0.0, phase: str = "") -> None:
        """End an iteration, in loops that do not end it with an optimizer step; from then on nothing else does.

        For jobs that share a GPU: `work` is its number of samples or tokens if batches differ, `phase` a label for its
        kind of work.
        """

    def checkpoint(self, *, block: bool = False) -> CheckpointHandle | None:
        """Save a checkpoint now, at the end of an iteration, on all ranks; written beside training unless `block`.

        Returns None if nothing is registered, and in loops without torch optimizer, which save at the end of the step.
        """
        return None


class Rank(Protocol):
    """Implemented by `plait.training.attached_job.AttachedJob`, whose docstrings describe each member."""

    around: Environment
    stages: Stages
    compute: GpuStage
    kept: StateRegistry
    iterations: Iterations
    boundary: Boundary
    advice: Any  # `advice.ResumeAdvice`, which imports this module

    @property
    def saves(self) -> Any: ...
    @property
    def epoch(self) -> int: ...
    @property
    def gate_thread(self) -> Any: ...
    def resume(self) -> int: ...
    def not_restorable(self) -> None: ...
    def safe_point(self, loop: str, *, last: bool = False) -> None: ...
    def batch_begins(self, passes: Any, length: int | None, batch: Any) -> None: ...
    def batch_ended(self) -> None: ...
    def look_up(self, *, evaluating: bool) -> None: ...
    def in_evaluation(self) -> AbstractContextManager[None]: ...
