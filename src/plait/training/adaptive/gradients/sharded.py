"""Estimate the gradient noise of models sharded by `fully_shard` (FSDP2), from two consecutive steps.

Gradients of single ranks never exist there, only shards of the mean over all ranks. So each step gives one sample, and
the estimate is the biased one, from a copy of this rank's shards of the last gradient.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
import torch.distributed as dist

from plait.core.errors import InputError
from plait.training.adaptive.gradients.hooks import GradientHooks
from plait.training.adaptive.gradients.passes import Pass, Squares
from plait.training.adaptive.gradients.preconditioner import local


class ShardedHooks(GradientHooks):
    """Watches the shards of this rank; `fully_shard` runs the hooks of its parameters after the reduction.

    In uneven steps, the last ones of a pass over the data, ranks and passes count alike instead of examples.
    """

    def __init__(self, optimizer: Any) -> None:
        """Watch the parameters of `optimizer`; raises `InputError` if they are sharded over different ranks."""
        groups = {_shard_group(p) for group in optimizer.param_groups for p in group["params"]}
        if len(groups) != 1:
            raise InputError(
                f"Adaptive: the optimizer's parameters are sharded over {len(groups)} different groups of ranks; "
                "give all of them to fully_shard with the same mesh"
            )
        super().__init__(optimizer)
        self._shards, self._passes = groups.pop(), 1

    def begin(self, now: Pass, loss_scale: torch.Tensor | None = None) -> None:
        """See `GradientHooks.begin`: all ranks and passes together are one sample."""
        self._passes = now.passes
        if now.index == 0:
            super().begin(Pass(1, 1, 0, now.batch, now.batch, now.full, pairs=now.pairs), loss_scale)

    def end(self) -> None:
        """See `GradientHooks.end`."""
        super().end()
        self._passes = 1

    def collect(self) -> Squares | None:
        """See `GradientHooks.collect`; the device waits for the sum over all shards."""
        squares = super().collect()
        if squares is not None:
            both = torch.stack([squares.first, squares.second])
            dist.all_reduce(both, group=self._shards)
            squares.first, squares.second = both.unbind()
        return squares

    def no_sync(self, model: Any) -> AbstractContextManager[None]:
        """See `GradientHooks.no_sync`."""
        return _unreduced(model)

    def _accumulated(self, parameter: torch.Tensor, _: object) -> None:
        """Compare a complete shard: the mean over all ranks, summed over all passes."""
        if parameter.grad is None or self._now is self._idle:
            return
        self._once(id(parameter), self._passes)
        gradient = local(parameter.grad.detach())
        if self._passes > 1:
            gradient.div_(self._passes)
        if self._now.pairs:
            self._compare(parameter, gradient)


@contextmanager
def _unreduced(model: Any) -> Iterator[None]:
    model.set_requires_gradient_sync(False)
    try:
        yield
    finally:
        model.set_requires_gradient_sync(True)


def _shard_group(parameter: Any) -> Any:
    """The ranks over which a parameter is cut up."""
    placements = getattr(parameter, "placements", ())
    cut = [dim for dim, placement in enumerate(placements) if placement.is_shard()]
    if len(cut) != 1:
        raise InputError(
            f"Adaptive: a parameter of shape {tuple(parameter.shape)} is cut up along {len(cut)} dimensions of its "
            "mesh; gradient noise is estimated for parameters that fully_shard has sharded along one"
        )
    return parameter.device_mesh.get_group(cut[0])
