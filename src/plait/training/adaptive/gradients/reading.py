"""Read estimates from the device: on CUDA one step late, so that the host never waits for the current step.

All ranks read at the same steps, because the learning rate derived from an estimate must be the same on all of them.
"""

from __future__ import annotations

from typing import Any

import torch

from plait.training.adaptive.gradients.noise import Estimate
from plait.training.adaptive.gradients.passes import Squares, estimate


class Reading:
    """Holds the measurements that were not read yet."""

    def __init__(self) -> None:
        """Start without measurements."""
        self._waiting: tuple[torch.Tensor, Any, float, float, bool] | None = None

    def take(self, squares: Squares | None, initial_batch: int) -> Estimate | None:
        """Begin to read `squares`; returns the estimate of this step on a CPU, of the previous step on CUDA.

        `initial_batch`: examples of the initial batch.
        """
        if squares is not None and not squares.first.is_cuda:
            return squares.estimate(initial_batch)
        found, self._waiting = self._waiting, None
        if squares is not None:
            rows = torch.stack([squares.first, squares.second])
            host = torch.empty(rows.shape, dtype=rows.dtype, pin_memory=True)
            host.copy_(rows, non_blocking=True)
            make: Any = torch.cuda.Event  # untyped in torch
            copied = make()
            copied.record(torch.cuda.current_stream(rows.device))
            self._waiting = host, copied, squares.samples, squares.batch / initial_batch, squares.divided
        if found is None:
            return None
        host, copied, samples, scale, divided = found
        copied.synchronize()  # of the previous step: the GPU has passed it, unless the host is a whole step ahead
        return estimate(host.tolist(), samples, scale, divided=divided)
