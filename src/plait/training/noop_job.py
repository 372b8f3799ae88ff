"""The job of a script that runs outside plait: nothing happens, and the script runs as if plait were not there."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from operator import index
from typing import TYPE_CHECKING, Any, SupportsIndex

from plait.core.errors import InputError
from plait.core.resources import Resource
from plait.training.device.cuda import torch_cuda

if TYPE_CHECKING:
    from plait.training.state.checkpoint import CheckpointHandle


def whole_number(total: object, loop: str) -> int:
    """How many steps `job.<loop>(total)` has; raises `InputError` for what is no whole number from 0 on."""
    if isinstance(total, SupportsIndex) and not isinstance(total, bool) and (number := index(total)) >= 0:
        return number
    plain = isinstance(total, int | float | str)
    raise InputError(
        f"job.{loop} takes how many {loop} the whole training has, as in `for {loop[:-1]} in job.{loop}(100):`; got "
        + (repr(total) if plain else f"a {type(total).__name__}; for batches: `for batch in job.wrap_loader(loader):`")
    )


class Job:
    """A job outside plait: every method does nothing, or what a plain script would have done."""

    def __init__(self, *, seed: int = 0) -> None:
        """`seed` of `rng`."""
        self._seed = seed
        self._rng: Any = None

    @property
    def attached(self) -> bool:
        """Whether plait runs this process."""
        return False

    @property
    def rng(self) -> Any:
        """A torch generator of the job's own, seeded by `attach(seed=...)`; its state is in checkpoints."""
        if self._rng is None:
            import torch

            self._rng = torch.Generator().manual_seed(self._seed)
        return self._rng

    @property
    def process_group(self) -> Any:
        """The process group of all ranks: torch.distributed's default one; a merged job with peers has its own.

        None for a job of one process.
        """
        dist = sys.modules.get("torch.distributed")
        return dist.group.WORLD if dist is not None and dist.is_available() and dist.is_initialized() else None

    @property
    def stream(self) -> Any:
        """The CUDA stream the job computes on (a merged job's own); None where the process uses no GPU."""
        cuda = torch_cuda()
        return None if cuda is None else cuda.current_stream()

    def stage(self, resource: Resource, *, sync: bool = False) -> AbstractContextManager[None]:
        """`with job.stage(Resource.GPU):` marks a stage and waits for its turn. `sync`: wait for the GPU at the end."""
        return nullcontext()

    def wrap_loader(self, loader: Any, *, train: bool = True) -> Any:
        """The loader with storage and CPU stages marked and, if it is the one for training, its place remembered.

        An ordinary DataLoader goes on with exactly the batches that were left, in the middle of an epoch too;
        torchdata's StatefulDataLoader keeps its own state. `train=False`, for evaluation: marks only.
        """
        return loader

    def wrap_optimizer(self, optimizer: Any) -> Any:
        """The same optimizer: its steps count, the GPU stage ends with them, its state is in checkpoints."""
        return optimizer

    def wrap_ddp(self, model: Any, *, inner: Any = None) -> Any:
        """The same DDP model with its network stage marked. `inner`: a communication hook of one's own to go through.

        DDP takes one hook, so a script that registers its own gives it here instead.
        """
        if inner is not None:
            model.register_comm_hook(None, inner)
        return model

    def register_state(self, **stateful: Any) -> None:
        """Have these in checkpoints, by name.

        Whatever has `state_dict` and `load_state_dict`; also dicts, lists, sets, NumPy arrays, tensors, random
        generators and objects that can be pickled, which are put back in place: the loop has to change the object
        itself. Optimizers are also wrapped as by `wrap_optimizer`. Raises `InputError` for what cannot be saved.
        """

    def resume(self) -> int:
        """Put back the newest checkpoint's state, if there is one; the number of the next step, 0 at the beginning.

        What is registered later is put back when it is registered.
        """
        return 0

    def steps(self, total: int) -> Iterable[int]:
        """`for step in job.steps(1000):` the steps that are left; resumes first.

        Where no torch optimizer steps, a step of this loop is an iteration. Raises `InputError` if `total` is no number
        of steps, e.g. a loader, which is for `wrap_loader`.
        """
        return range(whole_number(total, "steps"))

    def epochs(self, total: int) -> Iterable[int]:
        """`for epoch in job.epochs(10):` the epochs that are left, the first perhaps begun; resumes first.

        Raises `InputError` if `total` is no number of epochs.
        """
        return range(whole_number(total, "epochs"))

    def yield_point(self) -> None:
        """Inside a long stage: a moment at which others may go first."""

    def step_boundary(self) -> None:
        """End of an iteration, for loops that end it elsewhere than in an optimizer step; from then on the only one."""

    def checkpoint(self, *, block: bool = False) -> CheckpointHandle | None:
        """Save now, at the end of an iteration, written beside training unless `block`; all ranks together.

        None if nothing is registered, and in a loop without torch optimizer, which saves at the end of the loop step.
        """
        return None
